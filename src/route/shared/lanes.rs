//! Prefillers by the names that all gateways give them, and facts of prompts with these names.

use std::collections::HashMap;
use std::sync::Arc;

use super::message::{HeldTokens, PlaceTerms, PromptFacts};
use crate::route::job::{History, Hit, Job, LaneId, PoolHits};
use crate::route::scheduler::CacheView;
use crate::route::score::Terms;

/// Most prefillers of which one message says what they hold of a prompt: those with most of it.
const MOST_HELD: usize = 16;

/// Lanes by name, and names by lane.
#[derive(Debug, Default)]
pub(super) struct LaneNames {
    lanes: HashMap<u64, LaneId>,
    names: HashMap<LaneId, u64>,
}

/// Tokens that lanes hold of one prompt, as another gateway was told.
#[derive(Debug)]
pub(super) struct ToldElsewhere(pub(super) Vec<(LaneId, u32)>);

impl CacheView for ToldElsewhere {
    fn hbm_tokens(&self, _: &Job, out: &mut [Option<u32>]) {
        for (lane, tokens) in &self.0 {
            if let Some(place) = out.get_mut(usize::from(lane.0)) {
                *place = Some(*tokens);
            }
        }
    }
}

impl LaneNames {
    pub(super) fn open(&mut self, lane: LaneId, name: u64) {
        self.lanes.insert(name, lane);
        self.names.insert(lane, name);
    }

    pub(super) fn close(&mut self, lane: LaneId) {
        if let Some(name) = self.names.remove(&lane) {
            self.lanes.remove(&name);
        }
    }

    pub(super) fn lane(&self, name: u64) -> Option<LaneId> {
        self.lanes.get(&name).copied()
    }

    pub(super) fn name(&self, lane: LaneId) -> Option<u64> {
        self.names.get(&lane).copied()
    }

    /// Those that hold most, of these.
    fn most(mut named: Vec<HeldTokens>) -> Vec<HeldTokens> {
        named.retain(|it| it.tokens > 0);
        named.sort_unstable_by_key(|it| std::cmp::Reverse(it.tokens));
        named.truncate(MOST_HELD);
        named
    }

    fn here(&self, held: &[HeldTokens]) -> Vec<(LaneId, u32)> {
        let mut here: Vec<(LaneId, u32)> =
            held.iter().filter_map(|it| Some((self.lane(it.lane)?, it.tokens))).collect();
        here.sort_unstable_by_key(|(lane, _)| *lane);
        here
    }

    /// Facts that others may know of a prompt whose chain has been made. `told` are the lanes that
    /// told what they hold of it.
    pub(super) fn facts(&self, job: &Job, told: &[Option<u32>]) -> PromptFacts {
        let held = |(lane, tokens)| Some(HeldTokens { lane: self.name(lane)?, tokens });
        let near = job.pool.near.iter().copied().filter_map(held).collect();
        let told = (0u16..).zip(told).filter_map(|(lane, tokens)| held((LaneId(lane), (*tokens)?))).collect();
        PromptFacts {
            prompt_tokens: job.prompt_tokens,
            output_tokens: job.output_tokens,
            block_tokens: job.block_tokens,
            exact: job.exact,
            named: job.named,
            pool_asked: job.pool.asked,
            pool_tokens: job.pool.anywhere_tokens,
            near: Self::most(near),
            told: Self::most(told),
            chain: job.chain().to_vec(),
            chain_tokens: job.chain_tokens(),
            ttft_slo_s: job.ttft_slo_s,
        }
    }

    /// The job of another gateway's request.
    pub(super) fn job(&self, facts: &PromptFacts) -> Arc<Job> {
        Arc::new(Job {
            prompt_tokens: facts.prompt_tokens,
            output_tokens: facts.output_tokens,
            blocks: Arc::default(),
            block_tokens: facts.block_tokens,
            history: Some(History {
                blocks: facts.chain.as_slice().into(),
                block_tokens: facts.chain_tokens.max(1),
            }),
            named: facts.named,
            exact: facts.exact,
            prefix_tokens: 0,
            pool: PoolHits {
                asked: facts.pool_asked,
                anywhere_tokens: facts.pool_tokens,
                near: self.here(&facts.near).into(),
            },
            session: None,
            ttft_slo_s: facts.ttft_slo_s,
        })
    }

    pub(super) fn told(&self, facts: &PromptFacts) -> ToldElsewhere {
        ToldElsewhere(self.here(&facts.told))
    }

    pub(super) fn terms(&self, told: &PlaceTerms) -> Option<Terms> {
        let PlaceTerms { lane, hbm_tokens, near_tokens, any_tokens, wait_s, prefill_s, restore_s } = *told;
        Some(Terms {
            lane: self.lane(lane)?,
            hit: Hit { hbm_tokens, near_tokens, any_tokens },
            told_tokens: None,
            in_flight: false,
            wait_s,
            prefill_s,
            restore_s,
            shared_s: 0.0,
            score_s: wait_s + prefill_s,
        })
    }

    pub(super) fn place_terms(&self, terms: &Terms) -> Option<PlaceTerms> {
        let Hit { hbm_tokens, near_tokens, any_tokens } = terms.hit;
        let Terms { wait_s, prefill_s, restore_s, .. } = *terms;
        let lane = self.name(terms.lane)?;
        Some(PlaceTerms { lane, hbm_tokens, near_tokens, any_tokens, wait_s, prefill_s, restore_s })
    }
}
