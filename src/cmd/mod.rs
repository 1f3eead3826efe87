//! The subcommands of the program, one module for each, and what they share: exit codes, output,
//! the runtime.

mod api_key;
pub mod check;
#[cfg(feature = "sim")]
pub mod demo;
pub mod health;
pub mod init;
pub mod keys;
pub mod keys_report;
pub mod reference;
pub mod replay;
mod serve;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

use crate::app;
use crate::cli::{
    self, CheckArgs, Command, GenerateArgs, Generated, InitArgs, KeysArgs, ReplayArgs, ServeArgs,
};
use crate::config::{self, Config, report};

/// A command that was not carried out, or found something wrong: what to print and the exit code.
struct Failure(String, u8);

/// The gateway would not start, or a command has nothing to print.
const FAILED: u8 = 1;
/// `check`: the configuration is good, and an engine or the pool is away or not what it says.
const DIFFERS: u8 = 3;

/// Runs the subcommand that the arguments name and gives the exit code of the process. The first
/// argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = match cli::parse_from(arguments) {
        Ok(Command::Serve(args)) => serve::run(&args),
        Ok(Command::Check(args)) => run_check(&args),
        Ok(Command::Init(args)) => run_init(&args),
        Ok(Command::Health(args)) => run_health(&args),
        Ok(Command::Keys(args)) => run_keys(&args),
        Ok(Command::ApiKey(command)) => api_key::run(&command),
        Ok(Command::Replay(args)) => run_replay(&args),
        Ok(Command::Generate(args)) => run_generate(&args),
        #[cfg(feature = "sim")]
        Ok(Command::Demo(args)) => demo::run(&args).map_err(failure),
        #[cfg(feature = "sim")]
        Ok(Command::Sim(args)) => demo::run_simulator(&args).map_err(failure),
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

/// Prints what is found in the configuration, at the engines and in the pool, the worst first, and
/// the configuration after that where it is asked for.
fn run_check(args: &CheckArgs) -> Result<(), Failure> {
    let loaded = Config::load(&args.serve, &config::process_env()).map_err(failure)?;
    let runtime = runtime(1).map_err(named)?;
    runtime.block_on(async { app::check_start(&loaded.config) }).map_err(named)?;
    let mut found = check::configuration(&loaded);
    if !args.offline {
        let checked = check::run_all(&loaded, !args.no_store);
        found.append(runtime.block_on(checked).map_err(named)?);
    }
    let shown = if args.show { format!("\n{}", report::render(&loaded)) } else { String::new() };
    say(&format!("{found}{shown}")).map_err(named)?;
    let words = "pd-proxy: engines or the pool are not as the configuration says: see the lines with BAD";
    let differs = || Failure(words.to_owned(), DIFFERS);
    if found.good() { Ok(()) } else { Err(differs()) }
}

/// Prints the configuration or, where it is written, the line that tells the next command.
fn run_init(args: &InitArgs) -> Result<(), Failure> {
    let env = config::process_env();
    let written = runtime(1).map_err(named)?.block_on(init::run(args, &env)).map_err(named)?;
    say(if args.is_printed() { &written.text } else { &written.summary }).map_err(named)
}

/// Says nothing when all is well.
fn run_health(args: &ServeArgs) -> Result<(), Failure> {
    let loaded = Config::load(args, &config::process_env()).map_err(failure)?;
    health::run(&loaded.config).map_err(named)
}

/// Prints the report in any case; a prompt that can't be known is a failure to scripts.
fn run_keys(args: &KeysArgs) -> Result<(), Failure> {
    let loaded = Config::load(&args.configuration(), &config::process_env());
    let loaded = loaded.map_err(failure)?.into_fleet(args.fleet.as_deref()).map_err(named)?;
    let report = runtime(1).map_err(named)?.block_on(keys::run(args, &loaded));
    let report = report.map_err(named)?;
    say(&report.to_string()).map_err(named)?;
    if report.exact() { Ok(()) } else { Err(failure("the prompt's tokens can't be known here")) }
}

fn run_generate(args: &GenerateArgs) -> Result<(), Failure> {
    let text = match args.text().map_err(named)? {
        Some(text) => text,
        None if args.what == Generated::Openapi => reference::openapi().into_bytes(),
        None => reference::markdown(args.page().map_err(named)?).into_bytes(),
    };
    say_bytes(&text).map_err(named)
}

fn run_replay(args: &ReplayArgs) -> Result<(), Failure> {
    let _ = serve::raise_open_files();
    let report = replay::run(args).map_err(named)?;
    say(&report.to_string()).map_err(named)?;
    Ok(())
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

/// One thread needs no scheduler between threads.
fn runtime(workers: usize) -> std::io::Result<Runtime> {
    match workers {
        1 => Builder::new_current_thread().enable_all().build(),
        0 => Builder::new_multi_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}
