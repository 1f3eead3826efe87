//! Report in a prefiller's answer beside its hand-off: for the fleet, the metrics, the predictions.
//! No decoder needs any of it, so the decoder is asked first.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::dialect::PrefillAnswer;
use crate::dialect::usage::Usage;
use crate::fleet::{HitTokens, Instance, Outcome, Pace, Reservation, Role, Sign};
use crate::relay::Relay;
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::release::HandoffGuard;
use crate::route::Reported;
use crate::trace::Span;

/// A prefill that ended well, to be booked once.
#[derive(Debug)]
pub(super) struct PrefillReport {
    pub(super) relay: Arc<Relay>,
    pub(super) said: PrefillAnswer,
    /// Time at which the leg was sent, and when its answer was here.
    pub(super) sent: Instant,
    pub(super) answered: Instant,
    /// Span of the leg.
    pub(super) span: Span,
}

/// Facts for the request's account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) at: Instant,
    /// The prefiller's token counts.
    pub(super) usage: Usage,
    /// The engine's report about its caches.
    reported: Reported,
}

impl PrefillReport {
    /// The prefiller has served, and its compute is free: its KV is still ours, on this
    /// reservation.
    pub(super) fn book(
        mut self,
        ask: &Ask,
        handoff: Option<&Bytes>,
        reservation: &mut Reservation,
    ) -> Answered {
        let (relay, usage) = (&self.relay, self.said.usage());
        relay.fleet.report(reservation.instance(), Outcome::Served);
        reservation.instance().meter().done(self.took());
        reservation.instance().paces().observe(Pace::Prompt, self.took());
        self.span.set_if("gen_ai.usage.input_tokens", usage.prompt);
        self.span.set_if("pd_proxy.cached_tokens", usage.cached);
        if let Some(id) = self.said.engine_id() {
            relay.fleet.seen(reservation.instance(), Sign::Engine(id));
        }
        if let Some(handoff) = handoff {
            relay.heed(handoff);
        }
        let dialect = relay.speech.now().dialect;
        match handoff {
            Some(_) => reservation.instance().handoffs().give(),
            None if dialect.hands_over() && !self.said.is_ended_by_itself() => {
                relay.miss_handoff(reservation.instance())
            }
            None => {}
        }
        if reservation.rank().is_none()
            && let Some(peer) = handoff.and_then(|handoff| dialect.peer_of(handoff))
        {
            reservation.instance().know(Arc::new(peer));
        }
        self.span.ended(self.answered);
        let estimate_tokens = relay.media.learn(ask, usage.prompt);
        let reported = Reported { estimate_tokens, ..relay.affinity.reported(usage) };
        reservation.hold(self.answered, reported);
        Answered { at: self.answered, usage, reported }
    }

    fn took(&self) -> Duration {
        self.answered.duration_since(self.sent)
    }
}

impl Relay {
    /// Counts a prompt that its prefiller did not hand over. Where KV may travel through a pool,
    /// that is as it should be if all do so.
    fn miss_handoff(&self, prefiller: &Instance) {
        prefiller.meter().handed_nothing();
        let now_ms = self.fleet.now_ms();
        if !prefiller.handoffs().miss(now_ms) {
            return;
        }
        let members = self.fleet.members(Role::Prefill);
        let others_do = members.iter().any(|it| it.id() != prefiller.id() && it.handoffs().given() > 0);
        if others_do || !self.speech.now().open {
            prefiller.handoffs().warned(now_ms);
            tracing::warn!(
                engine = %prefiller.endpoint(),
                role = prefiller.role().name(),
                prompts = prefiller.handoffs().missing(),
                others_do,
                "hands over nothing of what it computes, so that decoders compute it again: is --kv-transfer-config set there?"
            );
        }
    }

    /// Books what its prefiller's answer says beside the hand-off, unless that was done. To be
    /// called when nobody waits for it any more.
    pub(super) fn prefilled(&self, ask: &Ask, guard: Option<&mut HandoffGuard>, ledger: &mut Ledger) {
        self.answered(ask, guard.and_then(HandoffGuard::book), ledger);
    }

    /// Hands the facts of a prefiller's answer to the request's account, once.
    pub(super) fn answered(&self, ask: &Ask, answered: Option<Answered>, ledger: &mut Ledger) {
        if let Some(answered) = answered {
            self.compare(ask, ledger, answered);
            ledger.prefilled(answered.usage);
        }
    }

    /// Compares the prefiller's cache hits with the predicted ones.
    fn compare(&self, ask: &Ask, ledger: &Ledger, Answered { at, usage, reported }: Answered) {
        self.decision_log.prefilled(&ask.id, usage.cached);
        let predicted =
            ledger.chosen().map(|chosen| self.affinity.prefilled(&ask.job, &chosen.terms, reported));
        if let Some(hits) = ledger.hits() {
            hits.add(HitTokens {
                prompt: usage.prompt.unwrap_or(u64::from(ask.job.prompt_tokens)),
                predicted: predicted.unwrap_or(0),
                cached: usage.cached.unwrap_or(0),
            });
        }
        self.prompt_stored(ask, ledger, reported);
        if let Some(ratio) = ledger.prefill_ratio(at) {
            self.meters.prefill_ratio(ratio);
        }
    }
}
