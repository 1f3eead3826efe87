//! `[stream]`: how answers are streamed to clients.

use super::bounds::ms;
use super::table::section;

section! {
    /// `[stream]`: how answers are streamed to clients.
    Stream = "stream" {
        /// Interval of comments in an event stream whose answer has not begun, ms; 0 = none, and
        /// the status line waits for the answer.
        keep_alive_ms: u64 = 0, AtOnce, ms(0);
    }
}
