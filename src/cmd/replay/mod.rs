//! `pd-proxy replay`: a trace through simulated engines in virtual time.

mod progress;
mod ratio;
mod report;
mod verdict;
mod virtual_time;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::cli::ReplayArgs;
use crate::replay::{RunError, TraceError, TraceRequest, trace};

/// Largest trace that is read: the conversation trace has 3 MB for an hour.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Reasons for which a trace can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        source: io::Error,
    },
    /// The file is no trace.
    #[error("{}, {source}", path.display())]
    Trace {
        /// Path of the file.
        path: PathBuf,
        /// Place and cause of the error.
        source: TraceError,
    },
    /// There is no such policy.
    #[error("--policy {name}: no such policy; there are {known}")]
    Policy {
        /// Name that was asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// Think times were given to an open loop.
    #[error("--think-ms: nobody thinks in an open loop; add --loop closed")]
    Think,
    /// The only prefiller is to die.
    #[error("--dead: the only prefiller dies, and nobody is left to serve: use --prefillers 2 or more")]
    NobodyLeft,
    /// One of the splits has a single prefiller, which is to die.
    #[error("--dead: --ratio also tries a single prefiller, which dies: leave one of them out")]
    NobodyLeftOfSplit,
    /// A plot of capacities was asked for, of which there is one number for each policy.
    #[error("--plot: there is no curve of --capacity; add --ratio N")]
    NoCurve,
    /// The plot can't be written.
    #[error("--plot {}: {source}", path.display())]
    Plot {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        source: io::Error,
    },
    /// A policy did not serve everybody.
    #[error("{policy} at load {load}: {source}")]
    Run {
        /// Name of the policy.
        policy: &'static str,
        /// The load, or what was searched for.
        load: String,
        /// Cause, and how far the run had come.
        source: RunError,
    },
}

/// Replays a trace and returns what to print: tables, or JSON.
///
/// # Errors
/// [`TrialError`] names the obstacle.
pub fn run(args: &ReplayArgs) -> Result<String, TrialError> {
    virtual_time::run(args, &read(args)?)
}

fn write_plot(path: &Path, svg: &str) -> Result<(), TrialError> {
    fs::write(path, svg).map_err(|source| TrialError::Plot { path: path.to_owned(), source })
}

fn read(args: &ReplayArgs) -> Result<Vec<TraceRequest>, TrialError> {
    let path = || args.trace.clone();
    let file = fs::File::open(&args.trace).map_err(|source| TrialError::File { path: path(), source })?;
    let mut text = String::new();
    let mut bounded = file.take(TRACE_BYTES_MAX + 1);
    bounded.read_to_string(&mut text).map_err(|source| TrialError::File { path: path(), source })?;
    if text.len() as u64 > TRACE_BYTES_MAX {
        let source = io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 GiB");
        return Err(TrialError::File { path: path(), source });
    }
    let limit = args.requests.map_or(usize::MAX, |requests| requests as usize);
    trace::parse(&text, limit).map_err(|source| TrialError::Trace { path: path(), source })
}
