//! `[route]`: how a place is chosen.

use serde::{Deserialize, Serialize};

use super::values::{Bind, Policy};

/// `[route]`: how a place is chosen, and when.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// The rule that picks a prefiller and a decoder.
    pub policy: Policy,
    /// Moment at which a request is bound to a prefiller; only `predicted` can bind late.
    pub bind: Bind,
    /// A prefiller is about to be free when less than this is left to do, ms.
    pub open_ms: u64,
    /// A prefiller with fewer tokens than this to compute takes more at any rate.
    pub batch_tokens: u64,
    /// Tokens that fit into one prefiller's prefix cache, where it is not listened to.
    pub cache_tokens: u64,
    /// Between looks at the engines' own loads (`GET /metrics`), ms; 0 = none. For several gateways
    /// in front of one fleet.
    pub scrape_ms: u64,
    /// A request whose first token would come later, by prediction, is refused at once, ms; 0 =
    /// none is. Keys of low priority are refused at half of it, those of high priority at twice as
    /// much.
    pub ttft_slo_ms: u64,
    /// A prompt of which no more than so many tokens must be computed goes to a decoder alone; 0 =
    /// none does.
    pub bypass_tokens: u64,
    /// So does one that would wait longer for its prefiller, ms; 0 = none does.
    pub bypass_wait_ms: u64,
    /// So does every one while there is no prefiller.
    pub bypass_without_prefiller: bool,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            bind: Bind::default(),
            open_ms: 50,
            batch_tokens: 2048,
            cache_tokens: 1_000_000,
            scrape_ms: 0,
            ttft_slo_ms: 0,
            bypass_tokens: 0,
            bypass_wait_ms: 0,
            bypass_without_prefiller: false,
        }
    }
}
