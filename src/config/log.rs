//! `[log]`: what is logged.

use super::bounds::share;
use super::table::section;
use super::values::{Level, LogFormat};

section! {
    /// `[log]`: what is logged, and in which form.
    Log = "log" {
        /// The least severe level that is logged.
        level: Level = Level::Info, AtOnce;
        /// One line of text or one JSON object per event.
        format: LogFormat = LogFormat::Text, AfterRestart;
        /// With `log.level = "debug"`, of this share of the requests each step is logged; 0 to 1.
        sample_ratio: f64 = 1.0, AtOnce, share();
    }
}
