//! Metrics of prompts' tokens and of blocks' names. Their series begin when prompts are read.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, gauge, histogram};

use super::{Meters, begun, names};

/// Handles for prompts that are read.
#[derive(Debug)]
pub(super) struct PromptMeter {
    seconds: Histogram,
    exact: Counter,
    /// Hits and misses.
    cache: [Counter; 2],
}

impl PromptMeter {
    fn new() -> PromptMeter {
        for verdict in ["same", "different", "untested", "unknown"] {
            counter!(names::PARITY, "verdict" => verdict).increment(0);
        }
        PromptMeter {
            seconds: histogram!(names::PROMPT_SECONDS),
            exact: begun(counter!(names::PROMPTS, "tokens" => "exact", "reason" => "none")),
            cache: ["hit", "miss"].map(|outcome| begun(counter!(names::PROMPT_CACHE, "outcome" => outcome))),
        }
    }
}

impl Meters {
    fn prompts(&self) -> &PromptMeter {
        self.prompts.get_or_init(|| self.label.with(PromptMeter::new))
    }

    /// Begins the series of prompts, so that a rate sees the first of each.
    pub fn prompts_start(&self) {
        self.prompts();
        self.tokens_proven(false);
    }

    /// Records that a prompt was read in `took`: how its `tokens` are known (`exact`, `prefix`,
    /// `unknown`), and the reason why not all are.
    pub fn prompt(&self, tokens: &'static str, unknown: Option<&'static str>, took: Duration) {
        self.prompts().seconds.record(took);
        match unknown {
            None => self.prompts().exact.increment(1),
            Some(reason) => {
                self.label
                    .with(|| counter!(names::PROMPTS, "tokens" => tokens, "reason" => reason).increment(1));
            }
        }
    }

    /// Sets the hits and misses of the cache of prompt prefixes since the start.
    pub fn prompt_cache(&self, hits: u64, misses: u64) {
        for (counter, count) in self.prompts().cache.iter().zip([hits, misses]) {
            counter.absolute(count);
        }
    }

    /// Counts a comparison of the gateway's tokens with an engine's.
    pub fn parity(&self, verdict: &'static str) {
        self.label.with(|| counter!(names::PARITY, "verdict" => verdict).increment(1));
    }

    /// Shows if tokens computed here are known to be the engines'.
    pub fn tokens_proven(&self, proven: bool) {
        self.label.with(|| gauge!(names::PROVEN).set(f64::from(u8::from(proven))));
    }

    /// Shows if it is known how the engines name KV blocks.
    pub fn block_names_known(&self, known: bool) {
        self.label.with(|| gauge!(names::NAMING).set(f64::from(u8::from(known))));
    }
}
