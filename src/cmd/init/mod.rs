//! `pd-proxy init` asks the engines that the command line names what they are, and writes a
//! commented configuration for them.
//!
//! Keys that the gateway asks the engines for at each start are left to it, with today's answer as
//! a comment. A key that it needs, and that nobody tells, is a question. Before it is written, the
//! configuration is judged as that of a gateway.

mod ask;
mod described;
mod draft;
mod text;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::{InitArgs, ServeArgs};
use crate::cmd::check::CheckError;
use crate::config::{Config, ConfigErrors, Env, Loaded};
use draft::{Setting, State};

/// A new configuration.
#[derive(Debug)]
pub struct Written {
    /// The whole file.
    pub text: String,
    /// The line for people: the file, and the next command.
    pub summary: String,
}

/// Reasons for which there is no new configuration.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Flags, files or variables that can't be used.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Several fleets at once.
    #[error(
        "init writes the configuration of one fleet, and [fleets] has {0}: name the engines of one by flags"
    )]
    Fleets(usize),
    /// The clients for the questions could not be made.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// No engine answered.
    #[error("no engine answered, so nothing is written:\n{}", .0.join("\n"))]
    Away(Vec<String>),
    /// The file is there already.
    #[error("--output {}: it exists, and is left as it is: name another file, or print by --dry-run", .0.display())]
    Exists(PathBuf),
    /// The file could not be written.
    #[error("--output {}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        why: std::io::Error,
    },
}

/// Asks the engines, and writes what follows unless the arguments say that it is only printed.
///
/// # Errors
/// [`InitError`] names the flag at fault, or the engines that are away. No file is left behind.
pub async fn run(args: &InitArgs, env: &Env) -> Result<Written, InitError> {
    if !args.is_printed() && args.output.exists() {
        return Err(InitError::Exists(args.output.clone()));
    }
    let loaded = Config::load(&args.serve, env)?;
    match loaded.config.fleets.len() {
        0 => {}
        several => return Err(InitError::Fleets(several)),
    }
    let mut asked = ask::all(&loaded).await?;
    if asked.findings.engines.is_empty() {
        return Err(InitError::Away(asked.lines));
    }
    let known = with(&args.serve, &draft::draw(&asked.findings), env)?;
    if !args.no_store {
        asked.findings.seed = asked.try_seeds(&known).await?;
    }
    let drawn = draft::draw(&asked.findings);
    let file = args.named_file().to_string_lossy();
    let head = text::Head { engines: &asked.lines, file: &file };
    let text = text::render(&head, &drawn, &sections(&loaded.config));
    if !args.is_printed() {
        write(&args.output, &text)?;
    }
    Ok(Written { summary: summary(args, &drawn), text })
}

/// The configuration with what was drawn beside what was given.
fn with(serve: &ServeArgs, drawn: &[Setting], env: &Env) -> Result<Loaded, ConfigErrors> {
    let sets = drawn.iter().filter(|one| one.state == State::Set);
    let sets = sets.map(|one| format!("{}={}", one.key, one.value));
    let mut serve = serve.clone();
    serve.set.splice(0..0, sets);
    Config::load(&serve, env)
}

/// Names of the sections in the order of the reference.
fn sections(config: &Config) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for row in config.rows() {
        let Some((section, _)) = row.name.rsplit_once('.') else { continue };
        if names.last() != Some(&section) {
            names.push(section);
        }
    }
    names
}

/// Writes a file that is not there yet.
fn write(path: &Path, text: &str) -> Result<(), InitError> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|why| match why.kind() {
        std::io::ErrorKind::AlreadyExists => InitError::Exists(path.to_owned()),
        _ => InitError::File { path: path.to_owned(), why },
    })
}

fn summary(args: &InitArgs, drawn: &[Setting]) -> String {
    let count = |state: State| drawn.iter().filter(|one| one.state == state).count();
    let (set, questions) = (count(State::Set), count(State::Question));
    let path = args.output.display();
    format!(
        "{path}: keys set: {set}, questions left: {questions} (lines with QUESTION). Next: pd-proxy check --config {path}\n"
    )
}
