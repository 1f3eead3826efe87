//! Which blocks many different prompts go on from: a system prompt, a tool list. Work on them is done for others, too.
//!
//! The popularity of a block is the number of prompts that branched off at it or behind it, of which each counts less the
//! longer ago it was. A conversation that grows at its end branches off nowhere: its blocks are its own.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::job::{Job, Seconds};
use super::resident::Spread;
use smallvec::SmallVec;

/// After this time a branch counts half.
const HALF_LIFE_S: Seconds = 300.0;
/// Most blocks that are remembered; beyond it all are forgotten and the count begins anew: sixteen bytes and a bit each.
const MAX_BLOCKS: usize = 1 << 20;
/// Stretches of equal popularity that are told apart in one prompt; the rest of it counts as private.
const MAX_STRETCHES: usize = 8;
/// Leading blocks of a prompt that are looked at: what is shared stands at the front.
const MAX_DEPTH: usize = 1024;

/// Branches of all blocks.
#[derive(Debug, Default)]
pub struct Popularity {
    blocks: HashMap<u64, Count, BuildHasherDefault<Spread>>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    branches: f32,
    as_of_s: f32,
    /// Some prompt goes on behind it.
    parent: bool,
}

/// The leading part of one prompt that others share: up to which token, and how popular it is.
pub type Stretches = SmallVec<[(u32, f64); 2]>;

impl Count {
    fn at(self, now: Seconds) -> f64 {
        let age = (now - f64::from(self.as_of_s)).max(0.0);
        f64::from(self.branches) * (-age / HALF_LIFE_S).exp2()
    }

    #[expect(clippy::cast_possible_truncation, reason = "counts and seconds need no more")]
    fn branch(&mut self, now: Seconds) {
        self.branches = (self.at(now) + 1.0) as f32;
        self.as_of_s = now as f32;
    }
}

impl Popularity {
    /// Takes note of a prompt and tells how popular its beginning is.
    pub fn note(&mut self, job: &Job, now: Seconds) -> Stretches {
        if self.blocks.len() > MAX_BLOCKS {
            self.blocks.clear();
        }
        let blocks = job.blocks.get(..MAX_DEPTH).unwrap_or(&job.blocks);
        let known = blocks.iter().take_while(|block| self.blocks.contains_key(block)).count();
        let goes_on = known < blocks.len();
        let last = known.checked_sub(1).and_then(|at| self.blocks.get_mut(&blocks[at])).filter(|_| goes_on);
        let branches = last.is_some_and(|last| std::mem::replace(&mut last.parent, true));
        for (at, block) in blocks.iter().enumerate().skip(known) {
            #[expect(clippy::cast_possible_truncation, reason = "seconds need no more")]
            let fresh = Count { branches: 0.0, as_of_s: now as f32, parent: at + 1 < blocks.len() };
            self.blocks.insert(*block, fresh);
        }
        self.stretches(
            blocks.get(..known).unwrap_or_default(),
            job.block_tokens,
            branches.then_some(now),
            now,
        )
    }

    /// The popularity of known blocks, after one more branch behind all of them where there is one.
    fn stretches(
        &mut self,
        known: &[u64],
        block_tokens: u32,
        branch: Option<Seconds>,
        now: Seconds,
    ) -> Stretches {
        let mut stretches = Stretches::new();
        let mut shared = true;
        for (at, block) in known.iter().enumerate() {
            let Some(count) = self.blocks.get_mut(block) else { break };
            if let Some(now) = branch {
                count.branch(now);
            }
            let popular = count.at(now).round();
            let end = u32::try_from(at + 1).unwrap_or(u32::MAX).saturating_mul(block_tokens);
            let same = stretches.last().is_some_and(|(_, before)| (before - popular).abs() < 0.5);
            let room = stretches.len() < MAX_STRETCHES;
            shared = shared && popular >= 1.0 && (same || room);
            match stretches.last_mut() {
                Some((upto, _)) if shared && same => *upto = end,
                _ if shared => stretches.push((end, popular)),
                _ if branch.is_none() => break,
                _ => {}
            }
        }
        stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(popularity: &mut Popularity, blocks: &[u64], now: Seconds) -> Vec<(u32, f64)> {
        let job = Job { blocks: blocks.into(), block_tokens: 10, ..Job::default() };
        popularity.note(&job, now).to_vec()
    }

    #[test]
    fn a_shared_beginning_is_popular_and_the_rest_is_not() {
        let mut popularity = Popularity::default();
        assert_eq!(note(&mut popularity, &[1, 2, 3], 0.0), []);
        assert_eq!(note(&mut popularity, &[1, 2, 4], 0.0), [(20, 1.0)]);
        assert_eq!(note(&mut popularity, &[1, 2, 5], 0.0), [(20, 2.0)]);
        assert_eq!(note(&mut popularity, &[1, 6], 0.0), [(10, 3.0)]);
        assert_eq!(note(&mut popularity, &[1, 2, 3], 0.0), [(10, 3.0), (20, 2.0)]);
    }

    #[test]
    fn a_conversation_that_grows_is_its_own() {
        let mut popularity = Popularity::default();
        for length in 2..20u64 {
            let prompt: Vec<u64> = (0..length).collect();
            assert_eq!(note(&mut popularity, &prompt, 0.0), []);
        }
    }

    #[test]
    fn popularity_fades() {
        let mut popularity = Popularity::default();
        (2..10).for_each(|own| {
            note(&mut popularity, &[1, own], 0.0);
        });
        assert_eq!(note(&mut popularity, &[1], 0.0), [(10, 7.0)]);
        assert_eq!(note(&mut popularity, &[1], HALF_LIFE_S), [(10, 4.0)]);
        assert_eq!(note(&mut popularity, &[1], 10.0 * HALF_LIFE_S), []);
    }
}
