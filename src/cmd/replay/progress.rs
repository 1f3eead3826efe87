//! Progress of a long command: one line on standard error that is written over, if that is a
//! terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Between two versions of the line.
const REDRAW: Duration = Duration::from_millis(100);
/// Cells of the bar.
const WIDTH: usize = 32;

/// Counts to a total, from any thread.
#[derive(Debug)]
pub(super) struct Progress {
    total: usize,
    state: Option<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    done: usize,
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    pub(super) fn new(total: usize) -> Progress {
        let state = State { done: 0, started: Instant::now(), drawn: None };
        Progress { total, state: io::stderr().is_terminal().then(|| Mutex::new(state)) }
    }

    /// One more is done.
    pub(super) fn step(&self) {
        let Some(Ok(mut state)) = self.state.as_ref().map(Mutex::lock) else { return };
        state.done += 1;
        let last = state.done == self.total;
        if !last && state.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        state.drawn = Some(Instant::now());
        let text = line(state.done, self.total, state.started.elapsed());
        // A terminal that went away is no reason to stop.
        let _ = write!(io::stderr(), "\r{text}\x1b[K{}", if last { "\r\x1b[K" } else { "" });
    }
}

fn line(done: usize, total: usize, spent: Duration) -> String {
    let share = done as f64 / total.max(1) as f64;
    let filled = (share * WIDTH as f64) as usize;
    let left_s = spent.as_secs_f64() * (1.0 / share.max(1e-9) - 1.0);
    let bar = format!("{}{}", "━".repeat(filled), "╌".repeat(WIDTH - filled.min(WIDTH)));
    format!("{bar} {done}/{total}, {left_s:.0} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_what_is_left() {
        let text = line(8, 32, Duration::from_secs(10));
        assert_eq!(text, format!("{}{} 8/32, 30 s left", "━".repeat(8), "╌".repeat(24)));
        assert!(line(32, 32, Duration::from_secs(10)).ends_with("32/32, 0 s left"));
    }
}
