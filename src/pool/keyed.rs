//! A store of keys, asked about prompts: in one exchange if the keys are few, else by samples.
//!
//! A block lies in a store only if those before it were stored, and stores evict the blocks that
//! were used longest ago, which are seldom the leading ones. So the blocks of a very long prompt
//! are asked for at a few places first, and one by one only where presence ends. If a store has
//! lost a block in the middle, that count is too high; it says `sampled`.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::try_join_all;
use smallvec::SmallVec;

use super::store::{KeyStore, Placement, Tier};
use super::{Answer, KvPool, LoadableBy, MAX_HOSTS, Near, PoolError, Presence, Question, Remnant};
use crate::kvhash::keys::KeyBatch;

/// A store as a pool.
#[derive(Debug)]
pub struct Keyed<S> {
    store: S,
}

/// A key that was asked for, and what came back.
struct AnsweredKey {
    /// Index of the key in its batch.
    index: u32,
    placement: Placement,
}

/// The keys of a prompt, block by block in the order of its tokens.
struct Blocks {
    /// Indexes of the keys.
    order: Vec<u32>,
    /// Place where each block's keys end in `order`.
    ends: Vec<usize>,
}

impl<S: KeyStore> Keyed<S> {
    /// Wraps a store.
    pub fn new(store: S) -> Self {
        Self { store }
    }

    async fn ask(&self, keys: &KeyBatch) -> Result<Presence, PoolError> {
        if keys.is_empty() {
            return Ok(Presence { whole: true, ..Presence::default() });
        }
        let most = self.store.batch_keys().max(1);
        if keys.len() <= most {
            let all: Vec<u32> = (0..u32::try_from(keys.len()).unwrap_or(u32::MAX)).collect();
            return Ok(presence(keys, &self.locate(keys, &all).await?, false));
        }
        self.sample(keys, most).await
    }

    /// Narrows down where presence ends, by at most `most` keys at a time.
    async fn sample(&self, keys: &KeyBatch, most: usize) -> Result<Presence, PoolError> {
        let blocks = Blocks::of(keys);
        let mut answered: Vec<AnsweredKey> = Vec::new();
        // Blocks before `low` are taken to be there; the one at `high` is not, or does not exist.
        let (mut low, mut high) = (0, blocks.len());
        while low < high {
            let per_block = keys.len().div_ceil(blocks.len()).max(1);
            let stride = (high - low).div_ceil((most / per_block).max(1));
            // The last of each stride, so that the last of all is among them.
            let places: Vec<usize> =
                (1..).map(|n| low + n * stride - 1).take_while(|at| *at < high).collect();
            let places = if places.is_empty() { vec![high - 1] } else { places };
            let asked: Vec<u32> = places.iter().flat_map(|at| blocks.keys(*at)).copied().collect();
            let found = self.locate(keys, &asked).await?;
            let missing = first_missing(keys, &found);
            answered.extend(found);
            let gap = missing.and_then(|token| places.iter().find(|at| blocks.start(keys, **at) >= token));
            match gap {
                Some(&at) => {
                    low = places.iter().rev().find(|known| **known < at).map_or(low, |known| known + 1);
                    high = at;
                }
                None => low = places.last().map_or(high, |at| at + 1),
            }
        }
        let sampled = answered.len() < keys.len();
        Ok(presence(keys, &answered, sampled))
    }

    /// As many exchanges as it takes, side by side.
    async fn locate(&self, keys: &KeyBatch, indexes: &[u32]) -> Result<Vec<AnsweredKey>, PoolError> {
        let parts = indexes.chunks(self.store.batch_keys().max(1));
        let found = try_join_all(parts.map(|part| self.store.locate(keys, part))).await?;
        let found: Vec<Placement> = found.into_iter().flatten().collect();
        if found.len() != indexes.len() {
            let counts = format!("{} answers to {} keys", found.len(), indexes.len());
            return Err(PoolError::Protocol(counts));
        }
        Ok(indexes.iter().zip(found).map(|(&index, placement)| AnsweredKey { index, placement }).collect())
    }
}

impl<S: KeyStore> KvPool for Keyed<S> {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn lookup<'a>(&'a self, question: &'a Question) -> Answer<'a, Presence> {
        Box::pin(self.ask(&question.keys))
    }
}

impl Blocks {
    fn of(keys: &KeyBatch) -> Self {
        let mut order: Vec<u32> = (0..u32::try_from(keys.len()).unwrap_or(u32::MAX)).collect();
        order.sort_by_key(|index| start(keys, *index));
        let mut ends = Vec::new();
        for (at, pair) in order.windows(2).enumerate() {
            if let [one, next] = pair
                && start(keys, *one) != start(keys, *next)
            {
                ends.push(at + 1);
            }
        }
        ends.push(order.len());
        Self { order, ends }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn keys(&self, block: usize) -> &[u32] {
        let end = self.ends.get(block).copied().unwrap_or(0);
        let begin = block.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.order.get(begin..end).unwrap_or_default()
    }

    fn start(&self, keys: &KeyBatch, block: usize) -> u32 {
        self.keys(block).first().map_or(u32::MAX, |index| start(keys, *index))
    }
}

fn start(keys: &KeyBatch, index: u32) -> u32 {
    keys.start_tokens(index as usize).unwrap_or(u32::MAX)
}

/// The token at which the first block starts that lacks one of the keys asked for.
fn first_missing(keys: &KeyBatch, answered: &[AnsweredKey]) -> Option<u32> {
    answered.iter().filter(|key| !key.placement.present).map(|key| start(keys, key.index)).min()
}

/// Presence that follows from the answers; keys that were not asked for count as present.
fn presence(keys: &KeyBatch, answered: &[AnsweredKey], sampled: bool) -> Presence {
    let missing = first_missing(keys, answered);
    let hit_tokens = keys.hit_before(missing);
    let mut near: SmallVec<[Near; 4]> = hosts(answered)
        .into_iter()
        .map(|host| on_host(keys, answered, host, hit_tokens))
        .filter(|near| near.tokens > 0)
        .collect();
    near.sort_by(|a, b| b.tokens.cmp(&a.tokens).then_with(|| a.host.cmp(&b.host)));
    let remnant = if hit_tokens == 0 { remnant(keys, answered) } else { Remnant::Nothing };
    Presence { hit_tokens, reach: LoadableBy::All, near, sampled, whole: missing.is_none(), remnant }
}

/// Rest of a prompt whose first block is not there, as far as was asked.
fn remnant(keys: &KeyBatch, answered: &[AnsweredKey]) -> Remnant {
    let starts = |present| {
        let of = answered.iter().filter(move |key| key.placement.present == present);
        of.map(|key| start(keys, key.index)).collect::<HashSet<u32>>()
    };
    let there = starts(true);
    if there.is_empty() {
        Remnant::Nothing
    } else if there.is_subset(&starts(false)) {
        Remnant::Keys
    } else {
        Remnant::Blocks
    }
}

/// The first few hosts that have anything.
fn hosts(answered: &[AnsweredKey]) -> SmallVec<[Arc<str>; 4]> {
    let mut hosts: SmallVec<[Arc<str>; 4]> = SmallVec::new();
    for place in answered.iter().flat_map(|key| &key.placement.places) {
        if !hosts.contains(&place.host) {
            hosts.push(place.host.clone());
            if hosts.len() == MAX_HOSTS {
                break;
            }
        }
    }
    hosts
}

/// The leading blocks whose keys all have a replica on `host`.
fn on_host(keys: &KeyBatch, answered: &[AnsweredKey], host: Arc<str>, hit_tokens: u32) -> Near {
    let mut missing = hit_tokens;
    let mut tier = Tier::Hbm;
    for AnsweredKey { index, placement } in answered {
        let start = start(keys, *index);
        if start >= missing {
            continue;
        }
        // The fastest replica is the one that is read.
        match placement.places.iter().filter(|place| place.host == host).map(|place| place.tier).min() {
            Some(fastest) => tier = tier.max(fastest),
            None => missing = start,
        }
    }
    Near { host, tier, tokens: keys.hit_before(Some(missing)) }
}

#[cfg(test)]
mod tests;
