//! `[auth]`: who may ask.

use super::bounds::within;
use super::table::{Rule, section};

/// Shortest and longest pause between looks at the file of keys, ms: often enough that a key that
/// is taken back is soon gone.
const MIN_RELOAD_MS: u64 = 100;
const MAX_RELOAD_MS: u64 = 5_000;

section! {
    /// `[auth]`: keys of clients.
    Auth = "auth" {
        /// The file of keys; None = nobody is asked for one.
        keys_file: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// Between looks at it, ms.
        reload_ms: u64 = 2_000, AfterRestart, within(MIN_RELOAD_MS, MAX_RELOAD_MS);
        /// True if a key may ask for responses (`/v1/responses/{id}`) of which this gateway does
        /// not know for whom they were made.
        unknown_responses: bool = false, AtOnce;
    }
}
