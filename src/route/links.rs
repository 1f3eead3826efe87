//! Seconds that a token's KV takes from each prefiller to each decoder, learned from the times at
//! which first tokens came. Links between racks are slower than those within one, and nobody has to
//! say where engines stand.
//!
//! Engines tell transfer times in sums over all of their peers (vLLM's `nixl/stats.py`,
//! `vllm:nixl_xfer_time_seconds`), so that pairs are seen by their first tokens alone. Such a token
//! comes after the transfer, a step that was under way, and a step of its own; it may also wait for
//! room. Nothing makes it come sooner than its KV: each time is an upper bound. The lowest of the
//! last ones is believed, as congestion control believes the lowest of the last round trips (BBR).
//!
//! Only what is far above the noise counts. llm-d measured equal transfers within and between
//! nodes, and lost by keeping to the near ones (llm-d-router #2315): equal links must decide
//! nothing.

use std::collections::HashMap;

use super::decode::{HANDOFF_S, HANDOFF_TOKEN_S};
use super::job::Seconds;

/// Observations of a pair that are taken together; those of the last two such groups count.
const GROUP: u8 = 8;
/// Observations before anything is believed of a pair.
const SEEN_MIN: u8 = 3;
/// A pair is slow if its tokens take this many times what they take over the best link of its
/// prefiller: less may be contention.
const SLOW: f64 = 2.0;
/// A slow pair of which nothing was seen for this time is tried again: links are mended.
const RETRY_S: Seconds = 300.0;
/// Prefillers of which links are remembered.
const MOST_PRODUCERS: usize = 1_024;
/// Links of a prefiller that are remembered: with all prefillers 20 MB. Of more, those that were
/// seen last.
const MOST_CONSUMERS: usize = 256;

/// Beliefs about the links of a fleet.
#[derive(Debug, Default)]
pub struct Links {
    producers: HashMap<u64, Vec<Pair>>,
}

/// A transfer from a prefiller to a decoder, by the first token after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenTransfer {
    /// Identity of the prefiller.
    pub producer: u64,
    /// Identity of the decoder.
    pub consumer: u64,
    /// Tokens whose KV was transferred.
    pub tokens: u32,
    /// Seconds from the hand-off to the first token.
    pub first_s: Seconds,
    /// Seconds of a step of the decoder, as predicted.
    pub step_s: Seconds,
}

/// A decoder that a prefiller's KV reaches late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowLink {
    /// Identity of the decoder.
    pub consumer: u64,
    /// Seconds by which each token takes longer than over the prefiller's best link.
    pub extra_token_s: Seconds,
}

/// A slow link with both of its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowPair {
    /// Identity of the prefiller.
    pub producer: u64,
    /// The decoder, and how slow the link to it is.
    pub link: SlowLink,
}

/// Observations of a prefiller's link to one decoder.
#[derive(Clone, Copy, Debug)]
struct Pair {
    consumer: u64,
    /// Lowest bound of this group of observations.
    lowest: Bound,
    /// Lowest bound of the group before it.
    before: Bound,
    /// Observations in this group.
    count: u8,
    /// Observations of all groups.
    seen: u8,
    /// Time of the last one.
    last_s: Seconds,
}

/// A bound on the seconds of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    /// Most that a token takes.
    token_s: Seconds,
    /// Part of it that may be the wait for a step that was under way.
    doubt_s: Seconds,
}

impl Bound {
    const NONE: Bound = Bound { token_s: f64::INFINITY, doubt_s: 0.0 };

    fn of(seen: &SeenTransfer) -> Bound {
        let tokens = f64::from(seen.tokens.max(1));
        let moved_s = (seen.first_s - HANDOFF_S - seen.step_s).max(0.0);
        Bound { token_s: moved_s / tokens, doubt_s: seen.step_s / tokens }
    }

    fn min(self, other: Bound) -> Bound {
        if other.token_s < self.token_s { other } else { self }
    }
}

impl Pair {
    fn new(consumer: u64) -> Pair {
        Pair { consumer, lowest: Bound::NONE, before: Bound::NONE, count: 0, seen: 0, last_s: 0.0 }
    }

    fn learn(&mut self, now: Seconds, bound: Bound) {
        if self.count == GROUP {
            (self.before, self.lowest, self.count) = (self.lowest, Bound::NONE, 0);
        }
        self.lowest = self.lowest.min(bound);
        self.count += 1;
        self.seen = self.seen.saturating_add(1);
        self.last_s = now;
    }

    /// Bound that is believed; `None` if too little was seen.
    fn bound(&self) -> Option<Bound> {
        (self.seen >= SEEN_MIN).then(|| self.lowest.min(self.before))
    }
}

impl Links {
    /// Takes over an observation.
    pub fn learn(&mut self, now: Seconds, seen: &SeenTransfer) {
        let usable = seen.first_s.is_finite() && seen.step_s.is_finite() && seen.tokens > 0;
        let known = self.producers.contains_key(&seen.producer);
        if !usable || (!known && self.producers.len() >= MOST_PRODUCERS) {
            return;
        }
        let pairs = self.producers.entry(seen.producer).or_default();
        let at = match pairs.binary_search_by_key(&seen.consumer, |pair| pair.consumer) {
            Ok(at) => at,
            Err(at) => {
                pairs.insert(at, Pair::new(seen.consumer));
                at
            }
        };
        pairs[at].learn(now, Bound::of(seen));
        if pairs.len() > MOST_CONSUMERS {
            let oldest = (0..pairs.len()).min_by(|a, b| pairs[*a].last_s.total_cmp(&pairs[*b].last_s));
            oldest.map(|at| pairs.remove(at));
        }
    }

    /// Decoders that this prefiller's KV reaches late, ordered by identity.
    #[must_use]
    pub fn slow(&self, now: Seconds, producer: u64) -> Vec<SlowLink> {
        let pairs = self.producers.get(&producer).map_or(&[][..], Vec::as_slice);
        let best_s = pairs.iter().filter_map(Pair::bound).map(|it| it.token_s).fold(f64::INFINITY, f64::min);
        let noise_s = SLOW * best_s.max(HANDOFF_TOKEN_S);
        let recent = pairs.iter().filter(|pair| now - pair.last_s < RETRY_S);
        let slow = recent.filter_map(|pair| {
            let bound = pair.bound().filter(|it| it.token_s - it.doubt_s > noise_s)?;
            Some(SlowLink { consumer: pair.consumer, extra_token_s: bound.token_s - bound.doubt_s - best_s })
        });
        slow.collect()
    }

    /// The slowest of all slow links, at most so many, the slowest first.
    #[must_use]
    pub fn slowest(&self, now: Seconds, most: usize) -> Vec<SlowPair> {
        let pairs_of = |producer: &u64| {
            let producer = *producer;
            self.slow(now, producer).into_iter().map(move |link| SlowPair { producer, link })
        };
        let mut all: Vec<SlowPair> = self.producers.keys().flat_map(pairs_of).collect();
        let ends = |pair: &SlowPair| (pair.producer, pair.link.consumer);
        all.sort_by(|a, b| {
            b.link.extra_token_s.total_cmp(&a.link.extra_token_s).then_with(|| ends(a).cmp(&ends(b)))
        });
        all.truncate(most);
        all
    }

    /// Forgets an engine that is gone, or whose process is another.
    pub fn forget(&mut self, engine: u64) {
        self.producers.remove(&engine);
        for pairs in self.producers.values_mut() {
            pairs.retain(|pair| pair.consumer != engine);
        }
    }
}

/// Seconds by which so many tokens reach a decoder later than over the best link; `slow` is ordered
/// by identity.
#[must_use]
pub fn extra_s(slow: &[SlowLink], consumer: u64, tokens: u32) -> Seconds {
    let found = slow.binary_search_by_key(&consumer, |link| link.consumer);
    found.map_or(0.0, |at| slow[at].extra_token_s * f64::from(tokens))
}

#[cfg(test)]
mod tests;
