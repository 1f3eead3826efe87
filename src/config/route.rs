//! `[route]`: how a place is chosen.

use serde::{Deserialize, Serialize};

use super::values::{Bind, Policy};

/// `[route]`: how a place is chosen, and when.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// The rule that picks a prefiller and a decoder.
    pub policy: Policy,
    /// When a request is bound to a prefiller; only `predicted` can bind late.
    pub bind: Bind,
    /// A prefiller is about to be free when less than this is left to do, ms.
    pub open_ms: u64,
    /// A prefiller with fewer tokens than this to compute takes more at any rate.
    pub batch_tokens: u64,
    /// Tokens that fit into one prefiller's prefix cache, where it is not listened to.
    pub cache_tokens: u64,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            bind: Bind::default(),
            open_ms: 50,
            batch_tokens: 2048,
            cache_tokens: 1_000_000,
        }
    }
}
