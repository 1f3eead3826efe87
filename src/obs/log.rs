//! The log: one line per event on standard error, written by its own thread.
//!
//! A reader that stops reading (a stuck pipe) must not stop the gateway: past its buffer, lines are
//! dropped.

use std::io::{self, BufWriter, Write};
use std::thread::sleep;
use std::time::Duration;

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

/// Time within which lines are written together. Alone, each would wake the writing thread and cost
/// a write of its own. It bounds how late a line may be.
const GATHERED: Duration = Duration::from_millis(10);
/// Most bytes of one write.
const GATHERED_BYTES: usize = 64 << 10;

/// Writes the collected lines at a flush, which comes when the queue of lines is empty. It then
/// waits for [`GATHERED`], so that more lines collect.
struct BatchWriter<W: Write>(BufWriter<W>);

/// Prefix of the gateway's own targets. Of libraries only warnings are logged: their other lines
/// concern internals, and at `debug` some show what is sent.
const OURS: &str = "pd_proxy";
/// Prefix of libraries whose warnings are not logged: they warn of each failed attempt, which
/// `discovery` logs once, with its remedy.
const THEIRS: &str = "kube_";

/// Starts the log. A second call in one process keeps the first log and returns `None`.
pub fn init(level: Level, json: bool) -> Option<LogGuard> {
    let (to, writer) = tracing_appender::non_blocking(BatchWriter::onto(io::stderr()));
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

impl<W: Write> BatchWriter<W> {
    fn onto(to: W) -> Self {
        BatchWriter(BufWriter::with_capacity(GATHERED_BYTES, to))
    }
}

impl<W: Write> Write for BatchWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.0.buffer().is_empty() {
            return Ok(());
        }
        let written = self.0.flush();
        sleep(GATHERED);
        written
    }
}

impl LogGuard {
    /// The handle that changes the level.
    pub fn threshold(&self) -> Threshold {
        self.threshold.clone()
    }
}

impl Threshold {
    /// Sets the least severe level that is logged.
    pub fn set(&self, level: Level) {
        // It fails only when the log is gone.
        let _ = self.0.reload(LevelFilter::from_level(level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that were written at once, each time.
    #[derive(Default)]
    struct RecordedWrites(Vec<String>);

    impl Write for RecordedWrites {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8_lossy(lines).into_owned());
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_are_there_together_are_written_together() {
        let mut lines = BatchWriter::onto(RecordedWrites::default());
        for batch in [&["one\n", "two\n"][..], &[], &["three\n"]] {
            batch.iter().for_each(|line| lines.write_all(line.as_bytes()).unwrap());
            lines.flush().unwrap();
        }
        assert_eq!(lines.0.get_ref().0, ["one\ntwo\n", "three\n"]);
    }

    #[test]
    fn nothing_is_kept_for_longer_than_there_is_room() {
        let mut lines = BatchWriter::onto(RecordedWrites::default());
        let line = format!("{}\n", "x".repeat(GATHERED_BYTES / 3));
        (0..7).for_each(|_| lines.write_all(line.as_bytes()).unwrap());
        let written = lines.0.get_ref().0.concat();
        assert_eq!(written, line.repeat(6));
        lines.flush().unwrap();
        assert_eq!(lines.0.get_ref().0.concat(), line.repeat(7));
    }
}
