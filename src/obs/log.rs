//! The log: one line per event on standard error, written by its own thread.
//!
//! A reader that stops reading (a stuck pipe) must not stop the gateway: past its buffer, lines are dropped.

use tracing::Level;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// Keeps the writer alive; dropping it flushes.
#[derive(Debug)]
pub struct LogGuard {
    #[expect(dead_code, reason = "held for its Drop")]
    writer: WorkerGuard,
    threshold: Threshold,
}

/// The least severe level that is logged; can be changed at any time.
#[derive(Clone, Debug)]
pub struct Threshold(reload::Handle<LevelFilter, Registry>);

/// What we say. Libraries are heard where they warn: what else they tell is of their own affairs, and at `debug` some show what is sent.
const OURS: &str = "pd_proxy";
/// Of these not even warnings: they tell of each failed attempt, which `discovery` says once, with what mends it.
const THEIRS: &str = "kube_";

/// Starts the log. A second call in one process keeps the first log and returns `None`.
pub fn init(level: Level, json: bool) -> Option<LogGuard> {
    let (to, writer) = tracing_appender::non_blocking(std::io::stderr());
    let lines = fmt::layer().with_target(false).with_ansi(false).with_writer(to);
    let lines = if json { lines.json().flatten_event(true).boxed() } else { lines.boxed() };
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    let heard = filter_fn(|event| {
        let (target, warns) = (event.target(), *event.level() <= Level::WARN);
        target.starts_with(OURS) || warns && !target.starts_with(THEIRS)
    });
    let started = tracing_subscriber::registry().with(filter).with(lines.with_filter(heard)).try_init();
    started.is_ok().then_some(LogGuard { writer, threshold: Threshold(handle) })
}

impl LogGuard {
    /// To change the level with.
    pub fn threshold(&self) -> Threshold {
        self.threshold.clone()
    }
}

impl Threshold {
    /// Logs `level` and what is more severe from now on.
    pub fn set(&self, level: Level) {
        // It fails only when the log is gone, and then nobody reads it.
        let _ = self.0.reload(LevelFilter::from_level(level));
    }
}
