//! The `pd-proxy` command: parse, load, build, serve until a signal.

use std::process::ExitCode;

use pd_proxy::app::{self, App, Signals};
use pd_proxy::cli::{self, Command, KeysArgs, ReplayArgs, ServeArgs};
use pd_proxy::config::{self, Config, LogFormat, report};
use pd_proxy::keys;
use pd_proxy::obs::log;
use tokio::runtime::{Builder, Runtime};

/// A command that could not be carried out: what to print and the exit code.
struct Failure(String);

fn main() -> ExitCode {
    let outcome = match cli::parse_from(std::env::args_os()) {
        Ok(Command::Serve(args)) => serve(&args),
        Ok(Command::Check(args)) => check(&args),
        Ok(Command::Keys(args)) => keys(&args),
        Ok(Command::Replay(args)) => replay(&args),
        #[cfg(feature = "sim")]
        Ok(Command::Demo(args)) => pd_proxy::demo::run(&args).map_err(|e| Failure(e.to_string())),
        #[cfg(feature = "sim")]
        Ok(Command::Sim(args)) => pd_proxy::demo::run_engine(&args).map_err(|e| Failure(e.to_string())),
        Err(e) => {
            // clap prints help and version through the same door, with code 0.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message)) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let loaded = Config::load(args, &config::process_env()).map_err(|e| Failure(e.to_string()))?;
    let config = loaded.config;
    let _log = log::init(level(config.log.level), config.log.format == LogFormat::Json);
    raise_open_files();
    let failed = |e: &dyn std::error::Error| Failure(format!("pd-proxy: {e}"));
    runtime(config.server.workers).map_err(|e| failed(&e))?.block_on(async {
        let app = App::build(&config).await.map_err(|e| failed(&e))?;
        let signals = Signals::install().map_err(|e| failed(&e))?;
        announce(&app, &config);
        app::serve_until_signal(app, signals).await;
        Ok(())
    })
}

fn check(args: &ServeArgs) -> Result<(), Failure> {
    let loaded = Config::load(args, &config::process_env()).map_err(|e| Failure(e.to_string()))?;
    print!("{}", report::render(&loaded));
    pd_proxy::profile::refuse_early(&loaded.config).map_err(|e| Failure(format!("pd-proxy: {e}")))
}

/// Prints the report in any case; a prompt that can't be known is a failure to scripts.
fn keys(args: &KeysArgs) -> Result<(), Failure> {
    let loaded = Config::load(&args.configuration(), &config::process_env());
    let loaded = loaded.map_err(|e| Failure(e.to_string()))?;
    let failed = |e: &dyn std::error::Error| Failure(format!("pd-proxy: {e}"));
    let report = runtime(1).map_err(|e| failed(&e))?.block_on(keys::run(args, &loaded));
    let report = report.map_err(|e| failed(&e))?;
    print!("{report}");
    if report.exact() { Ok(()) } else { Err(Failure("the prompt's tokens can't be known here".to_owned())) }
}

fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    raise_open_files();
    let report = pd_proxy::trial::run(args).map_err(|e| Failure(format!("pd-proxy: {e}")))?;
    print!("{report}");
    Ok(())
}

/// One thread needs no scheduler between threads.
fn runtime(workers: usize) -> std::io::Result<Runtime> {
    match workers {
        1 => Builder::new_current_thread().enable_all().build(),
        0 => Builder::new_multi_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}

/// Every stream takes two descriptors; the usual soft limit of 1024 is a trap.
fn raise_open_files() {
    if let Err(e) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!("cannot raise the limit of open files: {e}");
    }
}

fn announce(app: &App, config: &Config) {
    for address in app.addresses() {
        tracing::info!("listening on http://{address}");
    }
    let (prefill, decode) = (config.fleet.prefill.join(" "), config.fleet.decode.join(" "));
    tracing::info!(prefill, decode, policy = config.route.policy.name(), "ready");
}

fn level(level: config::Level) -> tracing::Level {
    level.filter().parse().unwrap_or(tracing::Level::INFO)
}
