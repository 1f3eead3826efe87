//! The log of this thread's gateways: an event to wait for where nothing else
//! shows that they have looked.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Lines, as long as it lives.
pub struct Log {
    lines: Lines,
    _collecting: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects what is logged on this thread from now on.
    pub fn collect() -> Log {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
        Log { lines, _collecting: tracing::subscriber::set_default(subscriber) }
    }

    /// Number of lines that contain the text.
    pub fn count(&self, text: &str) -> usize {
        let lines = self.lines.0.lock().unwrap();
        String::from_utf8_lossy(&lines).lines().filter(|line| line.contains(text)).count()
    }
}

impl Log {
    /// The first line that contains the text.
    pub fn find(&self, text: &str) -> Option<String> {
        let lines = self.lines.0.lock().unwrap();
        String::from_utf8_lossy(&lines).lines().find(|line| line.contains(text)).map(str::to_owned)
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}
