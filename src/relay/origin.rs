//! Place where the KV of a leg comes from, and whose fault it is when the leg fails: see
//! [`crate::fleet::health::handoffs`].

use std::sync::{Arc, OnceLock};

use crate::fleet::{FailedHandoff, Instance, Outcome, Pace, Verdict};
use crate::relay::Relay;
use crate::relay::ask::Ask;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::progress::Waiting;
use crate::relay::refusals::is_of_the_engine;
use crate::relay::release::HandoffGuard;

/// The prefiller whose KV a decode leg is to use.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// There is none: the decoder computes the prompt.
    Nowhere,
    /// It has computed the prompt, and handed it over or put it into a pool.
    Known(Arc<Instance>),
    /// It is asked together with the decoder, which has nothing to do before the prompt is
    /// computed: then the time at which it was is known, in ms of the fleet's clock.
    Beside(Arc<Instance>, Arc<OnceLock<u64>>),
    /// It is chosen when the decoder calls, and known once it has written.
    Called(Arc<OnceLock<Arc<Instance>>>),
}

impl Origin {
    /// Of a leg that is to use what the prefiller of this guard has computed.
    pub(super) fn of(guard: Option<&HandoffGuard>) -> Origin {
        match guard.filter(|guard| moves_kv(guard)) {
            Some(guard) => Origin::Known(guard.prefiller().clone()),
            None => Origin::Nowhere,
        }
    }

    /// The leg, as one that waits for its first byte on `engine`.
    pub(super) fn waiting<'a>(&'a self, ask: &Ask, engine: &'a Arc<Instance>) -> Waiting<'a> {
        let own = ask.shape.prompt_tokens;
        // While a prefiller is at work the decoder has nothing to begin with.
        let (producer, computed_ms) = match self {
            Origin::Known(prefiller) => (Some(prefiller), None),
            Origin::Beside(prefiller, computed_ms) => (Some(prefiller), Some(&**computed_ms)),
            Origin::Nowhere | Origin::Called(_) => (None, None),
        };
        let (pace, tokens) = match self {
            // The decoder calls when it has room, and nobody can tell when that should be.
            Origin::Called(_) => (None, own),
            Origin::Beside(prefiller, _) => (Some(pace(ask)), own.max(prefiller.load().work_tokens())),
            Origin::Nowhere | Origin::Known(_) => (Some(pace(ask)), own),
        };
        Waiting {
            producer,
            computed_ms,
            most_tokens: ask.shape.most_tokens,
            ..Waiting::on(engine, pace, tokens)
        }
    }

    /// The prefiller, once it is known.
    pub(super) fn get(&self) -> Option<&Arc<Instance>> {
        match self {
            Origin::Nowhere => None,
            Origin::Known(prefiller) | Origin::Beside(prefiller, _) => Some(prefiller),
            Origin::Called(prefiller) => prefiller.get(),
        }
    }
}

/// True if a decoder reads what the prefiller of this guard has computed: it was handed over, or
/// the prefiller never hands anything over and a pool has it.
pub(super) fn moves_kv(guard: &HandoffGuard) -> bool {
    guard.handoff().is_some() || guard.prefiller().handoffs().given() == 0
}

/// With which decode legs those of a request can be compared.
pub(super) fn pace(ask: &Ask) -> Pace {
    if ask.shape.stream { Pace::Streamed } else { Pace::Whole }
}

impl Relay {
    /// Books the outcome of a decode leg with the fleet, the metrics and the log. A failure that
    /// may be of the hand-off is held against the engine that the evidence speaks against.
    pub(super) fn decoded<T>(
        &self,
        id: &str,
        decoder: &Arc<Instance>,
        origin: &Origin,
        mut outcome: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(producer) = origin.get() else { return self.record_outcome_of(id, decoder, outcome) };
        match &mut outcome {
            Ok(_) => {
                self.fleet.report(decoder, Outcome::Served);
                self.handoff_served(decoder, origin);
                outcome
            }
            Err(failure) if failure.may_be_of_the_handoff() => {
                let (outcome_of_leg, since_ms) = (failure.outcome(), failure.since_ms);
                failure.verdict = Some(self.fleet.handoff_failed(FailedHandoff {
                    producer,
                    consumer: decoder,
                    reporter: decoder,
                    outcome: outcome_of_leg,
                    since_ms,
                }));
                self.note_failure(id, decoder, failure);
                outcome
            }
            Err(_) => self.record_outcome_of(id, decoder, outcome),
        }
    }

    /// Books that a decoder has read the KV that its leg was to use, if any.
    pub(super) fn handoff_served(&self, decoder: &Instance, origin: &Origin) {
        if let Some(producer) = origin.get() {
            producer.handoffs().accept();
            self.fleet.handoff_served(producer, decoder);
        }
    }

    /// Books the failure of a prefill leg whose KV was to go straight to `decoder`, or that used
    /// what `encoders` made: either of the two may be at fault.
    pub(super) fn prefill_failed<T>(
        &self,
        id: &str,
        prefiller: &Arc<Instance>,
        partners: &PrefillPartners,
        mut failure: Failure,
    ) -> Result<T, Failure> {
        if !failure.may_be_of_the_handoff() || partners.is_empty() {
            return self.record_outcome_of(id, prefiller, Err(failure));
        }
        let (outcome, since_ms) = (failure.outcome(), failure.since_ms);
        let encoders = partners.encoders.iter().map(|encoder| (encoder, prefiller));
        let pairs = encoders.chain(partners.decoder.iter().map(|decoder| (prefiller, decoder)));
        for (producer, consumer) in pairs {
            let failed = FailedHandoff { producer, consumer, reporter: prefiller, outcome, since_ms };
            failure.verdict = Some(self.fleet.handoff_failed(failed));
        }
        self.note_failure(id, prefiller, &failure);
        Err(failure)
    }
}

/// Engines that a prefill leg depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefillPartners {
    /// The decoder that it writes to, where the prefill does not end without it.
    pub(super) decoder: Option<Arc<Instance>>,
    /// Encoders whose embeddings it reads.
    pub(super) encoders: Arc<[Arc<Instance>]>,
}

impl PrefillPartners {
    fn is_empty(&self) -> bool {
        self.decoder.is_none() && self.encoders.is_empty()
    }
}

/// True if the prefiller of a failed decode leg is not to be asked again for this request while
/// there is another one: the evidence speaks against it, or does not say that it is the decoder.
/// Nor is it if the decoder refused the request's content: another one must have other KV, so that
/// its refusal can confirm this one.
pub(super) fn avoids_prefiller(failure: &Failure) -> bool {
    if let FailureKind::Refused(status) = failure.why {
        return !is_of_the_engine(status);
    }
    failure.may_be_of_the_handoff() && !matches!(failure.verdict, None | Some(Verdict::Consumer(_)))
}
