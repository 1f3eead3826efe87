//! `pd-proxy` without a subcommand: load, build, serve until a signal.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::check::here;
use super::{Failure, failure, named, runtime};
use crate::app::{self, App, PassedSockets, Signals};
use crate::cli::ServeArgs;
use crate::config::{self, Config, Env, Loaded, LogFormat, Origin};
use crate::control::reload::{Content, Source};
use crate::obs::log::{self, LogGuard, Threshold};

/// Limit for the end of the runtime: cut requests are accounted for in this time. Look-ups and
/// disks that hang are not waited for.
const END_TIME: Duration = Duration::from_secs(1);

/// Serves until a signal.
pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let env = config::process_env();
    // Before they are read: what changes between the two is seen later.
    let content = Content::of(&Config::files(args, &env));
    let loaded = Config::load(args, &env).map_err(failure)?;
    let log = log::init(level(loaded.config.log.level), loaded.config.log.format == LogFormat::Json);
    let open_files = raise_open_files();
    // While there is one thread: it changes the environment.
    let sockets = PassedSockets::take().map_err(named)?;
    let runtime = runtime(loaded.config.server.workers).map_err(named)?;
    let threshold = log.as_ref().map(LogGuard::threshold);
    let source = source(args.clone(), env, content, threshold);
    let served = runtime.block_on(serve(loaded, source, Machine { open_files, sockets }));
    runtime.shutdown_timeout(END_TIME);
    served
}

/// Parts that the machine gives to the process.
struct Machine {
    /// Files that it may have open.
    open_files: u64,
    sockets: PassedSockets,
}

/// Starts, and serves until a signal.
async fn serve(loaded: Loaded, mut source: Source, machine: Machine) -> Result<(), Failure> {
    // First: starting takes time, in which engines are asked and names looked up, and the system's
    // own way to take a signal is to end the process; for the first one of a container it is to do
    // nothing.
    let mut signals = Signals::install().map_err(named)?;
    source.hangup = Some(signal(SignalKind::hangup()).map_err(named)?);
    let built = tokio::select! {
        built = App::build_on(&loaded.config, machine.sockets) => built,
        () = signals.next() => {
            tracing::info!("stopped before the start was over");
            return Ok(());
        }
    };
    let mut app = built.map_err(named)?;
    announce(&app, &loaded);
    say_if_too_few(machine.open_files, &loaded);
    app.announce_readiness(loaded.config.route.policy.name());
    app.follow(source, loaded);
    app::serve_until_signal(app, signals).await;
    Ok(())
}

/// Sources from which the configuration is read again while the gateway runs.
fn source(args: ServeArgs, env: Env, content: Content, threshold: Option<Threshold>) -> Source {
    let files = Config::files(&args, &env);
    let load = Arc::new(move || Config::load(&args, &env));
    Source { load, files, content, hangup: None, threshold, every: None }
}

/// Every stream takes two descriptors; the usual soft limit of 1024 is a trap.
pub(super) fn raise_open_files() -> u64 {
    rlimit::increase_nofile_limit(u64::MAX).unwrap_or_else(|e| {
        tracing::warn!("cannot raise the limit of open files: {e}");
        u64::MAX
    })
}

/// Beyond the system's limit clients are refused by nobody: their connections are not accepted, or
/// engines not reached.
/// The default of `limit.connections` is not what anybody has asked for: less is no trouble then.
fn say_if_too_few(open_files: u64, loaded: &Loaded) {
    let connections = loaded.config.limit.connections;
    let needed = here::files_needed(connections);
    if open_files >= needed {
        return;
    }
    let text = format!(
        "limit.connections = {connections} needs more open files than the hard limit allows: raise it (ulimit -Hn, \
         LimitNOFILE), or serve at most {} streams",
        here::streams_of(open_files)
    );
    if *loaded.origins.of("limit.connections") == Origin::Default {
        tracing::info!(open_files, needed, "{text}");
    } else {
        tracing::warn!(open_files, needed, "{text}");
    }
}

fn announce(app: &App, loaded: &Loaded) {
    let config = &loaded.config;
    app.open_routes().iter().for_each(|warning| tracing::warn!("{warning}"));
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    config.experimental_in_fleets().iter().for_each(|note| tracing::warn!("{note}"));
    for address in app.addresses() {
        tracing::info!("listening on {}://{address}", app.scheme());
    }
    for address in app.admin_addresses() {
        tracing::info!("listening for operators on {}://{address}", app.scheme());
    }
    if config.engine.api_key.is_some() && config.auth.keys_file.is_none() {
        let from = loaded.origins.of("engine.api_key");
        tracing::info!(
            "engines are sent engine.api_key ({from}) in place of what clients bring as Authorization"
        );
    }
}

fn level(level: config::Level) -> tracing::Level {
    level.filter().parse().unwrap_or(tracing::Level::INFO)
}
