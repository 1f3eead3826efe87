//! `pd-proxy sim mooncake`: a Mooncake master of one's own, to test against without Python and
//! without a pool.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::Builder;

use super::{DemoError, resolve};
use crate::app::Signals;
use crate::cli::{SimMooncakeArgs, SimRelease};
use crate::sim::mooncake::{AnswerFault, Arguments, Leadership, Mooncake, MooncakeSpec, Replicas};

/// Largest file of keys: some 600 000.
const MAX_KEYS_BYTES: u64 = 64 << 20;

/// Runs a simulated master until a signal.
///
/// # Errors
/// [`DemoError`] says what is in the way.
pub(super) fn run(args: &SimMooncakeArgs) -> Result<(), DemoError> {
    let keys = args.keys.as_deref().map(read).transpose()?.unwrap_or_default();
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let address = resolve(&args.host, args.port).await?;
        let failed = |address: SocketAddr| move |source| DemoError::Master { address, source };
        let master = Mooncake::start(spec(args.release), address).await.map_err(failed(address))?;
        let admin_address = SocketAddr::new(address.ip(), args.admin_port);
        let admin = master.admin(admin_address).await.map_err(failed(admin_address))?;
        let own = (0..args.fill).map(|n| format!("key-{n}"));
        keys.lines().filter(|key| !key.is_empty()).for_each(|key| master.put(key, &args.segment));
        own.for_each(|key| master.put(&key, &args.segment));
        misbehave(&master, args);
        let mut signals = Signals::install()?;
        let objects = master.objects();
        println!(
            "simulated Mooncake master on {}, admin http://{}, {objects} keys",
            master.addr(),
            admin.addr()
        );
        signals.next().await;
        Ok(())
    })
}

fn misbehave(master: &Mooncake, args: &SimMooncakeArgs) {
    master.set_deaf(args.deaf);
    if args.hang_up {
        master.always(Some(AnswerFault::Close));
    } else if args.delay_ms > 0 {
        master.always(Some(AnswerFault::Delay(Duration::from_millis(args.delay_ms))));
    }
    if let Some(leader) = &args.standby_of {
        master.stand(Leadership::Standby(leader.clone()));
        master.kill();
    }
}

fn spec(release: SimRelease) -> MooncakeSpec {
    let replicas = match release {
        SimRelease::V0_3_7 => Replicas::A,
        SimRelease::V0_3_8 => Replicas::B,
        SimRelease::V0_3_9 => Replicas::C,
        SimRelease::V0_3_11 | SimRelease::V0_3_12 => Replicas::D,
        SimRelease::V0_3_13 => Replicas::E,
    };
    let arguments = match release {
        SimRelease::V0_3_12 | SimRelease::V0_3_13 => Arguments::Tenant,
        _ => Arguments::Plain,
    };
    MooncakeSpec { arguments, replicas, ..MooncakeSpec::default() }
}

fn read(path: &Path) -> Result<String, DemoError> {
    let text = std::fs::metadata(path).and_then(|meta| {
        if meta.len() > MAX_KEYS_BYTES {
            return Err(io::Error::other(format!("it is longer than {MAX_KEYS_BYTES} bytes")));
        }
        std::fs::read_to_string(path)
    });
    text.map_err(|source| DemoError::Keys { path: path.display().to_string(), source })
}
