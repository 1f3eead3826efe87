//! The `pd-proxy` command: parse, load, build, serve until a signal.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pd_proxy::app::{self, App, Signals, limits};
use pd_proxy::auth::entry::{self as api_key, ApiKeyError};
use pd_proxy::cli::{self, ApiKeyCommand, CheckArgs, Command, GenerateArgs, KeysArgs, ReplayArgs, ServeArgs};
use pd_proxy::cmd::check::here;
use pd_proxy::cmd::{self, reference};
use pd_proxy::config::{self, Config, Env, Loaded, LogFormat, report};
use pd_proxy::control::reload::{Content, Source};
use pd_proxy::obs::log::{self, LogGuard, Threshold};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// A small request allocates a hundred times: this one is quicker at it, and keeps less of what streams have let go.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A command that was not carried out, or found something wrong: what to print and the exit code.
struct Failure(String, u8);

/// The gateway would not start, or a command has nothing to print.
const FAILED: u8 = 1;
/// `check`: the configuration is good, and an engine or the pool is away or not what it says.
const DIFFERS: u8 = 3;

/// What is cut is accounted for in this time; a look-up that hangs, or a disk, is not waited for any longer.
const END_TIME: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let outcome = match cli::parse_from(std::env::args_os()) {
        Ok(Command::Serve(args)) => serve(&args),
        Ok(Command::Check(args)) => check(&args),
        Ok(Command::Health(args)) => health(&args),
        Ok(Command::Keys(args)) => keys(&args),
        Ok(Command::ApiKey(command)) => new_entry(&command),
        Ok(Command::Replay(args)) => replay(&args),
        Ok(Command::Generate(args)) => generate(&args),
        #[cfg(feature = "sim")]
        Ok(Command::Demo(args)) => cmd::demo::run(&args).map_err(failure),
        #[cfg(feature = "sim")]
        Ok(Command::Sim(args)) => cmd::demo::run_simulator(&args).map_err(failure),
        Err(e) => {
            // clap prints help and version through the same door, with code 0.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message, code)) => {
            eprintln!("{message}");
            ExitCode::from(code)
        }
    }
}

fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let env = config::process_env();
    // Before they are read: what changes between the two is seen later.
    let content = Content::of(&Config::files(args, &env));
    let loaded = Config::load(args, &env).map_err(failure)?;
    let log = log::init(level(loaded.config.log.level), loaded.config.log.format == LogFormat::Json);
    let open_files = raise_open_files();
    let runtime = runtime(loaded.config.server.workers).map_err(named)?;
    let threshold = log.as_ref().map(LogGuard::threshold);
    let source = source(args.clone(), env, content, threshold);
    let served = runtime.block_on(run(loaded, source, open_files));
    runtime.shutdown_timeout(END_TIME);
    served
}

/// Starts, and serves until a signal.
async fn run(loaded: Loaded, mut source: Source, open_files: u64) -> Result<(), Failure> {
    // First: starting takes time, in which engines are asked and names looked up, and the system's own way to take a signal is to end
    // the process; for the first one of a container it is to do nothing.
    let mut signals = Signals::install().map_err(named)?;
    source.hangup = Some(signal(SignalKind::hangup()).map_err(named)?);
    let built = tokio::select! {
        built = App::build(&loaded.config) => built,
        () = signals.next() => {
            tracing::info!("stopped before the start was over");
            return Ok(());
        }
    };
    let mut app = built.map_err(named)?;
    announce(&app, &loaded);
    say_if_too_few(open_files, loaded.config.limit.connections);
    app.follow(source, loaded);
    app::serve_until_signal(app, signals).await;
    Ok(())
}

/// Where the configuration is read again while the gateway runs.
fn source(args: ServeArgs, env: Env, content: Content, threshold: Option<Threshold>) -> Source {
    let files = Config::files(&args, &env);
    let load = Arc::new(move || Config::load(&args, &env));
    Source { load, files, content, hangup: None, threshold, every: None }
}

/// Prints the configuration, then what engines and the pool say to it.
fn check(args: &CheckArgs) -> Result<(), Failure> {
    let loaded = Config::load(&args.serve, &config::process_env()).map_err(failure)?;
    say(&report::render(&loaded)).map_err(named)?;
    pd_proxy::profile::refuse_early(&loaded.config).map_err(named)?;
    app::secured(&loaded.config).map_err(named)?;
    limits::check(&loaded.config.auth).map_err(named)?;
    if args.offline {
        return Ok(());
    }
    let found = runtime(1).map_err(named)?.block_on(cmd::check::run(&loaded)).map_err(named)?;
    say(&format!("\n{found}")).map_err(named)?;
    let words = "pd-proxy: engines or the pool are not as the configuration says: see the lines with BAD";
    let differs = || Failure(words.to_owned(), DIFFERS);
    if found.good() { Ok(()) } else { Err(differs()) }
}

/// Says nothing when all is well.
fn health(args: &ServeArgs) -> Result<(), Failure> {
    let loaded = Config::load(args, &config::process_env()).map_err(failure)?;
    cmd::health::run(&loaded.config).map_err(named)
}

/// An error as it is.
fn failure(error: impl std::fmt::Display) -> Failure {
    Failure(error.to_string(), FAILED)
}

/// An error that does not say whose it is.
fn named(error: impl std::fmt::Display) -> Failure {
    Failure(format!("pd-proxy: {error}"), FAILED)
}

/// Prints a text; whoever reads it may stop in the middle, as `head` does.
fn say(text: &str) -> std::io::Result<()> {
    say_bytes(text.as_bytes())
}

fn say_bytes(text: &[u8]) -> std::io::Result<()> {
    match write_out(text) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}

fn write_out(text: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush())
}

/// Prints the report in any case; a prompt that can't be known is a failure to scripts.
fn keys(args: &KeysArgs) -> Result<(), Failure> {
    let loaded = Config::load(&args.configuration(), &config::process_env());
    let loaded = loaded.map_err(failure)?;
    let report = runtime(1).map_err(named)?.block_on(cmd::keys::run(args, &loaded));
    let report = report.map_err(named)?;
    say(&report.to_string()).map_err(named)?;
    if report.exact() { Ok(()) } else { Err(failure("the prompt's tokens can't be known here")) }
}

/// The entry goes to standard output, to be appended to the file; a new key to standard error, to be seen once.
fn new_entry(command: &ApiKeyCommand) -> Result<(), Failure> {
    let (entry, key) = made(command).map_err(named)?;
    // Unlike a report it is of no use to anybody when it was not taken, and neither is the key.
    write_out(entry.as_bytes()).map_err(|e| named(format!("the entry can't be written: {e}")))?;
    if let Some(key) = key {
        eprintln!("the key, which is not kept anywhere: {key}");
    }
    Ok(())
}

/// The entry, and the key if it is a new one.
fn made(command: &ApiKeyCommand) -> Result<(String, Option<String>), ApiKeyError> {
    Ok(match command {
        ApiKeyCommand::New(args) => {
            let key = api_key::random();
            (api_key::entry(&args.name, &key)?, Some(key))
        }
        ApiKeyCommand::Hash(args) => {
            let key = api_key::read(std::io::stdin().lock())?;
            (api_key::entry(&args.name, &key)?, None)
        }
    })
}

fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    let text = args.text().map_err(named)?.unwrap_or_else(|| reference::markdown().into_bytes());
    say_bytes(&text).map_err(named)
}

fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let _ = raise_open_files();
    let report = cmd::replay::run(args).map_err(named)?;
    say(&report.to_string()).map_err(named)?;
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
fn raise_open_files() -> u64 {
    rlimit::increase_nofile_limit(u64::MAX).unwrap_or_else(|e| {
        tracing::warn!("cannot raise the limit of open files: {e}");
        u64::MAX
    })
}

/// Beyond the system's limit clients are refused by nobody: their connections are not accepted, or engines not reached.
fn say_if_too_few(open_files: u64, connections: usize) {
    let needed = here::files_needed(connections);
    if open_files < needed {
        tracing::warn!(
            open_files,
            needed,
            "limit.connections = {connections} needs more open files than the hard limit allows: raise it (ulimit -Hn, \
             LimitNOFILE), or serve at most {} streams",
            here::streams_of(open_files)
        );
    }
}

fn announce(app: &App, loaded: &Loaded) {
    let config = &loaded.config;
    app.open_routes().iter().for_each(|warning| tracing::warn!("{warning}"));
    for address in app.addresses() {
        tracing::info!("listening on {}://{address}", app.scheme());
    }
    for address in app.admin_addresses() {
        tracing::info!("listening for operators on {}://{address}", app.scheme());
    }
    let (prefill, decode) = (config.fleet.prefill.join(" "), config.fleet.decode.join(" "));
    if config.engine.api_key.is_some() && config.auth.keys_file.is_none() {
        let from = loaded.origins.of("engine.api_key");
        tracing::info!(
            "engines are sent engine.api_key ({from}) in place of what clients bring as Authorization"
        );
    }
    let policy = config.route.policy.name();
    if prefill.is_empty() || decode.is_empty() {
        // Discovery, or an operator, brings the others.
        tracing::info!(
            prefill,
            decode,
            policy,
            "started, and not ready before there are engines of both sides"
        );
    } else {
        tracing::info!(prefill, decode, policy, "ready");
    }
}

fn level(level: config::Level) -> tracing::Level {
    level.filter().parse().unwrap_or(tracing::Level::INFO)
}
