//! The blocks that many different prompts go on from: a system prompt, a tool list. Work on them is
//! done for others, too.
//!
//! The popularity of a block is the number of prompts that branched off at it or behind it, of
//! which each counts less the longer ago it was. A conversation that grows at its end branches off
//! nowhere: its blocks are its own.

use std::collections::VecDeque;

use super::chains::{Chains, Node, NodeId, Step};
use super::job::{Job, Seconds};
use smallvec::SmallVec;

/// After this time a branch counts half.
const HALF_LIFE_S: Seconds = 300.0;
/// Most blocks that are remembered; beyond it the prompts that came longest ago are forgotten:
/// eight bytes each, and a node for each branch.
const MAX_BLOCKS: usize = 1 << 20;
/// Ends of prompts that are looked at for each new prompt, to forget some: this is done under the
/// scheduler's lock.
const FORGOTTEN_AT_ONCE: usize = 64;
/// Stretches of equal popularity that are told apart in one prompt; the rest of it counts as
/// private.
const MAX_STRETCHES: usize = 8;
/// Leading blocks of a prompt that are looked at: what is shared stands at the front.
const MAX_DEPTH: usize = 1024;

/// Branches of all blocks.
#[derive(Debug, Default)]
pub struct Popularity {
    chains: Chains<Count>,
    /// Ends of prompts, those that have not been looked at for longest first.
    ends: VecDeque<PromptEnd>,
    /// Counts the prompts.
    clock: u64,
}

/// A node at which a prompt ended, in the line of those to be forgotten.
#[derive(Debug)]
struct PromptEnd {
    node: NodeId,
    /// The [`Popularity::clock`] of the last prompt that was known to end there.
    used: u64,
}

/// Of all blocks of a node: what branches off at one of them branches off behind the others.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    branches: f32,
    as_of_s: f32,
    /// The [`Popularity::clock`] of the last prompt that ended at the node.
    used: u64,
    /// The node has a place among the ends, and is not forgotten before its turn.
    ends: bool,
}

/// The leading part of one prompt that others share: up to which token, and how popular it is.
pub type SharedPrefixes = SmallVec<[(u32, f64); 2]>;

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
    pub fn note(&mut self, job: &Job, now: Seconds) -> SharedPrefixes {
        self.forget_some();
        let depth = job.chain().len().min(MAX_DEPTH);
        let mut known: SmallVec<[Step; 8]> = self.chains.along(&job.chain()[..depth]).collect();
        if let Some(last) = known.last_mut() {
            let whole = last.node;
            last.node = self.chains.cut(whole, last.blocks);
            if let Some(head) = self.chains.get_mut(last.node).filter(|_| last.node != whole) {
                head.value.ends = false;
            }
        }
        let known_blocks: usize = known.iter().map(|step| step.blocks).sum();
        let has_children = |last: &Step| self.chains.get(last.node).is_some_and(Node::has_children);
        let branches = known_blocks < depth && known.last().is_some_and(has_children);
        let end = self.chains.reach(job.chain(), depth);
        self.note_end(end);
        self.shared_prefixes(&known, job.chain_tokens(), branches.then_some(now), now)
    }

    /// A prompt ends at a node.
    fn note_end(&mut self, end: NodeId) {
        self.clock += 1;
        let Some(node) = self.chains.get_mut(end) else { return };
        node.value.used = self.clock;
        if !std::mem::replace(&mut node.value.ends, true) {
            self.ends.push_back(PromptEnd { node: end, used: self.clock });
        }
    }

    /// Forgets prompts while there are too many, a few at a time.
    fn forget_some(&mut self) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            if self.chains.blocks() <= MAX_BLOCKS {
                return;
            }
            let Some(end) = self.ends.pop_front() else { return };
            let Some(node) = self.chains.get_mut(end.node) else { continue };
            if node.value.used > end.used {
                self.ends.push_back(PromptEnd { used: node.value.used, ..end });
                continue;
            }
            node.value.ends = false;
            self.chains.drop_unused(end.node, |count| !count.ends);
        }
    }

    /// The popularity of known blocks, after one more branch behind all of them where there is one.
    fn shared_prefixes(
        &mut self,
        known: &[Step],
        block_tokens: u32,
        branch: Option<Seconds>,
        now: Seconds,
    ) -> SharedPrefixes {
        let mut shared_prefixes = SharedPrefixes::new();
        let mut shared = true;
        let mut upto = 0usize;
        for step in known {
            let Some(node) = self.chains.get_mut(step.node) else { break };
            if let Some(now) = branch {
                node.value.branch(now);
            }
            upto += step.blocks;
            let popular = node.value.at(now).round();
            let end = u32::try_from(upto).unwrap_or(u32::MAX).saturating_mul(block_tokens);
            let same = shared_prefixes.last().is_some_and(|(_, before)| (before - popular).abs() < 0.5);
            let room = shared_prefixes.len() < MAX_STRETCHES;
            shared = shared && popular >= 1.0 && (same || room);
            match shared_prefixes.last_mut() {
                Some((upto, _)) if shared && same => *upto = end,
                _ if shared => shared_prefixes.push((end, popular)),
                _ if branch.is_none() => break,
                _ => {}
            }
        }
        shared_prefixes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

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

    #[test]
    fn popular_beginning_is_kept_when_much_else_is_forgotten() {
        let mut popularity = Popularity::default();
        let prompt = |own: u64| -> Vec<u64> { (1..=500u64).map(|at| (own << 32) + at).collect() };
        let mut most_blocks = 0;
        for turn in 1..6_000u64 {
            note(&mut popularity, &prompt(turn), 0.0);
            if turn % 50 == 0 {
                note(&mut popularity, &[1, 2, turn << 40], 0.0);
            }
            most_blocks = most_blocks.max(popularity.chains.blocks());
        }
        assert_eq!(note(&mut popularity, &[1, 2], 0.0)[..], [(20, 118.0)]);
        assert!(most_blocks < MAX_BLOCKS + 1_000, "{most_blocks}");
        assert!(popularity.ends.len() < MAX_BLOCKS / 400, "{}", popularity.ends.len());
    }

    /// The same, block by block: when it branched off, and whether some prompt goes on behind it.
    #[derive(Default)]
    struct Naive(HashMap<u64, (Vec<Seconds>, bool)>);

    impl Naive {
        fn note(&mut self, blocks: &[u64], now: Seconds) -> Vec<f64> {
            let known = blocks.iter().take_while(|block| self.0.contains_key(block)).count();
            let branches = known < blocks.len() && known > 0 && self.0[&blocks[known - 1]].1;
            for (at, block) in blocks.iter().enumerate() {
                let entry = self.0.entry(*block).or_default();
                entry.1 |= at + 1 < blocks.len();
                if branches && at < known {
                    entry.0.push(now);
                }
            }
            let weight = |at: &Seconds| (-(now - at) / HALF_LIFE_S).exp2();
            blocks[..known].iter().map(|block| self.0[block].0.iter().map(weight).sum()).collect()
        }
    }

    proptest! {
        #[test]
        fn equals_a_naive_count(
            prompts in proptest::collection::vec((proptest::collection::vec(0u64..3, 1..7), 0.0..50.0f64), 1..40),
        ) {
            let (mut popularity, mut naive, mut now) = (Popularity::default(), Naive::default(), 0.0);
            for (prompt, pause_s) in prompts {
                now += pause_s;
                let blocks: Vec<u64> = (1..=prompt.len()).map(|n| prompt[..n].iter().fold(7, |hash, it| hash * 31 + it)).collect();
                let expected = naive.note(&blocks, now);
                let told = note(&mut popularity, &blocks, now);
                // Far from where rounding turns.
                prop_assume!(expected.iter().all(|it| (it.fract() - 0.5).abs() > 1e-3));
                let told_of = |at: usize| told.iter().find(|(end, _)| (at as u32) < end / 10).map_or(0.0, |(_, popular)| *popular);
                for (at, popular) in expected.iter().enumerate() {
                    prop_assert_eq!(told_of(at), popular.round(), "block {}", at);
                }
            }
        }
    }
}
