//! The log: one line per event on standard error, written by its own thread.
//!
//! A reader that stops reading (a stuck pipe) must not stop the gateway: past its buffer, lines are dropped.

use tracing::Level;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::LevelFilter;

/// Keeps the writer alive; dropping it flushes.
#[derive(Debug)]
pub struct LogGuard(#[expect(dead_code, reason = "held for its Drop")] WorkerGuard);

/// Starts the log. A second call in one process keeps the first log and returns `None`.
pub fn init(level: Level, json: bool) -> Option<LogGuard> {
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from_level(level))
        .with_target(false)
        .with_ansi(false)
        .with_writer(writer);
    let started = if json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    started.is_ok().then_some(LogGuard(guard))
}
