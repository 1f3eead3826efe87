//! `[route]`: how a place is chosen.

use super::bounds::{count, kept_tokens, ms};
use super::table::section;
use super::values::{Bind, Policy};

section! {
    /// `[route]`: how a place is chosen, and when.
    Route = "route" {
        /// The rule that picks a prefiller and a decoder.
        policy: Policy = Policy::Predicted, AfterRestart;
        /// Moment at which a request is bound to a prefiller; only `predicted` can bind late.
        bind: Bind = Bind::Late, AfterRestart;
        /// A prefiller is about to be free when less than this is left to do, ms.
        open_ms: u64 = 50, AfterRestart, ms(1);
        /// A prefiller with fewer tokens than this to compute takes more at any rate.
        batch_tokens: u64 = 2048, AfterRestart, count(0);
        /// Tokens that fit into one engine's prefix cache, where it is not listened to.
        cache_tokens: u64 = 1_000_000, AfterRestart, kept_tokens();
        /// Between looks at the engines' own loads (`GET /metrics`), ms; 0 = none. For several
        /// gateways in front of one fleet.
        scrape_ms: u64 = 0, AfterRestart, ms(0);
        /// A request whose first token would come later, by prediction, is refused at once, ms; 0 =
        /// none is. Keys of low priority are refused at half of it, those of high priority at twice
        /// as much. Those that wait are ordered by it.
        ttft_slo_ms: u64 = 0, AtOnce, ms(0);
        /// A prompt of which no more than so many tokens must be computed goes to a decoder alone;
        /// 0 = none does.
        bypass_tokens: u64 = 0, AtOnce, count(0);
        /// So does one that would wait longer for its prefiller, ms; 0 = none does.
        bypass_wait_ms: u64 = 0, AtOnce, ms(0);
        /// So does every one while there is no prefiller.
        bypass_without_prefiller: bool = false, AtOnce;
        /// A decoder that remembers most of a prompt computes the rest itself, if that is sooner
        /// and none of its streams waits this long for a token, ms; 0 = none does. As a rule 100.
        append_gap_ms: u64 = 0, AtOnce, ms(0);
        /// And if all tokens of its streams together are late by no more than this, ms.
        append_late_ms: u64 = 1_000, AtOnce, ms(0);
        /// Tokens of a prompt that a decoder computes within one step, at most: its
        /// `--max-num-batched-tokens`.
        append_chunk_tokens: u64 = 8_192, AtOnce, count(1);
    }
}
