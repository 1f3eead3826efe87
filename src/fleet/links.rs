//! Beliefs about links between prefillers and decoders behind a lock: what reservations on decoders
//! tell of them, and what that means for the choice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fleet::reservation::Reservation;
use crate::fleet::{Fleet, Instance, InstanceId, Need, Role};
use crate::route::DecodeCandidate;
use crate::route::Seconds;
use crate::route::links::{Links, SlowLink, SlowPair, extra_s};

/// Beliefs about all pairs of a fleet.
#[derive(Debug, Default)]
pub(super) struct FleetLinks(Mutex<Links>);

/// Decoders that one prompt's KV reaches late.
#[derive(Debug, Default)]
pub(super) struct LateDecoders {
    prompt_tokens: u32,
    slow: Vec<SlowLink>,
}

/// A link over which KV goes slowly, by the names of its ends.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedSlowLink {
    /// Endpoint of the prefiller.
    pub prefiller: String,
    /// Endpoint of the decoder.
    pub decoder: String,
    /// Seconds by which each token takes longer than over the prefiller's best link.
    pub extra_token_s: Seconds,
}

/// Most slow links that are told: a person reads them.
const MOST_TOLD: usize = 32;

impl FleetLinks {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets an engine that is gone, or whose process was restarted.
    pub(super) fn forget(&self, engine: InstanceId) {
        self.lock().forget(engine.0);
    }
}

impl LateDecoders {
    /// The candidate, with the time by which the KV comes later to it than to others.
    pub(super) fn delay(&self, instance: &Instance, candidate: DecodeCandidate) -> DecodeCandidate {
        let lacks_tokens = self.prompt_tokens.saturating_sub(candidate.held_tokens);
        DecodeCandidate { late_s: extra_s(&self.slow, instance.id().0, lacks_tokens), ..candidate }
    }
}

impl Fleet {
    /// Decoders that the KV of a leg reaches late.
    pub(super) fn late_decoders(&self, need: &Need<'_>) -> LateDecoders {
        let (Some(producer), Some(job)) = (need.producer, need.job) else { return LateDecoders::default() };
        let slow = self.links.lock().slow(self.born.elapsed().as_secs_f64(), producer.0);
        LateDecoders { prompt_tokens: job.prompt_tokens, slow }
    }

    /// The slowest of the links that are believed to be slow, the slowest first.
    pub fn slow_links(&self) -> Vec<NamedSlowLink> {
        let slowest = self.links.lock().slowest(self.born.elapsed().as_secs_f64(), MOST_TOLD);
        let [prefillers, decoders] = [Role::Prefill, Role::Decode].map(|role| self.members(role));
        let name = |members: &[Arc<Instance>], id| {
            members.iter().find(|it| it.id() == InstanceId(id)).map(|it| it.endpoint().to_string())
        };
        let named = |SlowPair { producer, link }| {
            let (prefiller, decoder) = (name(&prefillers, producer)?, name(&decoders, link.consumer)?);
            Some(NamedSlowLink { prefiller, decoder, extra_token_s: link.extra_token_s })
        };
        slowest.into_iter().filter_map(named).collect()
    }

    /// Tells that the first token of a decoder came so long after it was given a hand-off.
    pub fn first_token(&self, reservation: &Reservation, took: Duration) {
        if let Some(seen) = reservation.fetched_within(took) {
            self.links.lock().learn(self.born.elapsed().as_secs_f64(), &seen);
        }
    }
}
