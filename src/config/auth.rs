//! `[auth]`: who may ask.

use serde::{Deserialize, Serialize};

/// `[auth]`: keys of clients.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// The file of keys; None = nobody is asked for one.
    pub keys_file: Option<String>,
    /// Between looks at it, ms.
    pub reload_ms: u64,
    /// True if a key may ask for responses (`/v1/responses/{id}`) of which this gateway does not
    /// know for whom they were made.
    pub unknown_responses: bool,
}

impl Default for Auth {
    fn default() -> Self {
        Self { keys_file: None, reload_ms: 2_000, unknown_responses: false }
    }
}
