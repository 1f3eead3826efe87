//! The simulated engines of one cell.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use pd_proxy::sim::{Engine, EngineSpec, Role};

/// Simulated engines, half of them prefillers and half decoders. Dropping them ends them.
#[derive(Debug)]
pub(crate) struct Engines {
    prefill: Vec<Engine>,
    decode: Vec<Engine>,
}

impl Engines {
    /// Starts `count` engines, all like `spec`.
    ///
    /// # Errors
    /// No port or descriptor is free.
    pub(crate) async fn start(count: usize, spec: &EngineSpec) -> io::Result<Engines> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for n in 0..count {
            let (role, into) =
                if n % 2 == 0 { (Role::Prefill, &mut prefill) } else { (Role::Decode, &mut decode) };
            into.push(Engine::start(EngineSpec { role, ..spec.clone() }, any).await?);
        }
        Ok(Engines { prefill, decode })
    }

    /// Ports on which the prefillers listen.
    pub(crate) fn prefill_ports(&self) -> Vec<u16> {
        self.prefill.iter().map(|engine| engine.addr().port()).collect()
    }

    /// Ports on which the decoders listen.
    pub(crate) fn decode_ports(&self) -> Vec<u16> {
        self.decode.iter().map(|engine| engine.addr().port()).collect()
    }

    /// Stops streams after their first token.
    pub(crate) fn hold(&self) {
        self.decode.iter().for_each(Engine::hold);
    }

    /// Lets the stopped streams go on.
    pub(crate) fn go_on(&self) {
        self.decode.iter().for_each(Engine::go_on);
    }
}
