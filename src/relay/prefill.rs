//! The prefill leg: who gets it, how often it is tried, and the decode leg that may begin beside
//! it.

use std::pin::pin;
use std::sync::Arc;

use tokio::time::Instant;

use crate::dialect::Transfer;
use crate::dialect::offers::Offer;
use crate::error::Error;
use crate::fleet::{Choice, Member, Placement, Reservation, Role, RoleOutlook};
use crate::relay::account::Ledger;
use crate::relay::after_first_poll::meanwhile;
use crate::relay::ask::Ask;
use crate::relay::box_in_place::boxed;
use crate::relay::concurrent_decode::{self, Early, Ended};
use crate::relay::failure::Failure;
use crate::relay::legs::{PrefillEnd, PrefillSpec};
use crate::relay::origin::PrefillPartners;
use crate::relay::release::{DetachedPrefill, HandoffGuard};
use crate::relay::reusable_kv::Outcome;
use crate::relay::single_engine::CombinedReservation;
use crate::relay::{Prefilled, Relay, Tries};
use crate::upstream::Written;

/// A place that a request was given, to be written down.
struct Chosen {
    prefiller: Member,
    choice: Choice,
    at: Instant,
}

impl Relay {
    /// Books a prefill that has ended well where another request may wait for its prefiller, and
    /// waits until a pool that carries the KV has the prompt.
    pub(super) async fn after_prefill(
        &self,
        ask: &Arc<Ask>,
        mut guard: HandoffGuard,
        early: Option<Early>,
        ledger: &mut Ledger,
    ) -> Prefilled {
        let may_wait = ask.asked.is_some() && !self.settings.now().pool_wait.is_zero();
        let waits = may_wait && guard.handoff().is_none() && early.is_none();
        if waits || self.fleet.scheduler().waiting() > 0 {
            self.prefilled(ask, Some(&mut guard), ledger);
        }
        if waits {
            self.wait_until_stored(ask).await;
        }
        Prefilled { guard: Some(guard), early, ..Prefilled::default() }
    }

    /// The prefill leg, if it will be served in time and there is room for it.
    pub(super) async fn prefill_in_time(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        decode: &mut Tries,
        ledger: &mut Ledger,
    ) -> Result<Ended, Error> {
        // One that was let in before is never turned away for being tried again, or for going on.
        if ledger.chosen().is_none() && !ledger.is_let_in() {
            self.in_time(ask, ledger)?;
            self.take_place(Role::Prefill, ledger)?;
        }
        let ended = self.prefill(ask, decode, ledger).await;
        // Who is both has not begun.
        if !matches!(&ended, Ok((PrefillEnd::Here(_), _))) {
            ledger.takes(Role::Prefill, None);
        }
        ended
    }

    /// The prefill leg, on as many prefillers as it takes; with it the decode leg, where both are
    /// sent at once.
    async fn prefill(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        decode: &mut Tries,
        ledger: &mut Ledger,
    ) -> Result<Ended, Error> {
        let mut tries = Tries::new(self.settings.now().attempts);
        tries.tried.extend_from_slice(decode.avoided());
        tries.tried.extend_from_slice(&decode.shunned);
        tries.avoid_lacking(self.fleet.lacking_model(Role::Prefill, ask.shape.model.as_deref()));
        let mut may_offer = true;
        loop {
            decode.is_prefill_moved |= tries.is_moved;
            // Always in this order: two requests that have left one line each, and stand in the
            // other's, would wait for each other.
            if decode.passage.is_none() {
                decode.passage = self.vacancy(Role::Decode, ask.arrived).await?;
            }
            self.room_to_prefill(ask, &mut tries).await?;
            let Placement { reservation, choice } = self.place_for_a_decoder(ask, &mut tries, decode).await?;
            let chosen = Chosen { prefiller: reservation.member(), choice, at: Instant::now() };
            tries.start(reservation.instance());
            ledger.leg(reservation.instance());
            if let Some(twin) = self.twin(ask, &reservation, decode) {
                let both = CombinedReservation { prefill: reservation, decode: twin };
                self.chosen(ask, chosen, ledger);
                return Ok((PrefillEnd::Here(Box::new(both)), None));
            }
            let ask = self.known_as(ask);
            let offered = if may_offer { self.offer(&ask) } else { None };
            let takes = offered.is_some();
            may_offer &= !takes;
            let attempt = pin!(self.prefill_and_early(&ask, reservation, offered, decode));
            let ended = meanwhile(attempt, || self.chosen(&ask, chosen, ledger)).await;
            if takes && may_be_of_the_offer(&ended) {
                self.meters.kv_offers(Outcome::Refused.name(), 1);
                tries.forgive();
                continue;
            }
            if self.may_be_of_the_call(&ask, &ended) {
                return Ok((PrefillEnd::Cut, None));
            }
            let failure = match ended {
                Ok(ended) => {
                    if takes {
                        self.meters.kv_offers(Outcome::Used.name(), 1);
                    }
                    if let Some(status) = ended.0.status() {
                        self.compare_refusals(&ask.id, status, &mut tries);
                    }
                    return Ok(ended);
                }
                Err(failure) => failure,
            };
            tries.is_moved |= failure.is_of_silence();
            let failure = match self.weigh(Role::Prefill, failure, &mut tries) {
                Ok(refusal) => return Ok((PrefillEnd::Refused(refusal), None)),
                Err(failure) => failure,
            };
            if self.room_after(Role::Prefill, &failure, ask.arrived, &mut tries).await? {
                continue;
            }
            if tries.left == 0
                || failure.lasting()
                || !self.back_off(Role::Prefill, &failure, tries.made).await
            {
                let refusal = self.conclude(Role::Prefill, failure, &mut tries)?;
                return Ok((PrefillEnd::Refused(refusal), None));
            }
        }
    }

    /// A place on a prefiller, once a decoder could take what it computes. Decoders may have gone
    /// while the request stood in the prefillers' line, so that they are looked at again: a prefill
    /// for nobody is work for nothing, and KV that nobody fetches.
    async fn place_for_a_decoder(
        &self,
        ask: &Ask,
        tries: &mut Tries,
        decode: &mut Tries,
    ) -> Result<Placement, Error> {
        loop {
            if decode.passage.is_none() {
                tries.passage = tries.passage.take().filter(|_| self.fleet.is_open(Role::Decode));
                decode.passage = self.vacancy(Role::Decode, ask.arrived).await?;
            }
            let placed = self.place(ask, tries).await?;
            let open = self.fleet.is_open(Role::Decode)
                || decode.passage.is_some()
                || self.fleet.outlook(Role::Decode) == RoleOutlook::Leaving;
            if open {
                return Ok(placed);
            }
        }
    }

    /// Writes down where the request went, and why.
    fn chosen(&self, ask: &Ask, Chosen { prefiller, choice, at }: Chosen, ledger: &mut Ledger) {
        let outcome_writer = self.decision_log.placed(&ask.id, &ask.job, prefiller, &choice);
        ledger.placed(&choice, at, outcome_writer);
        // The decode leg is going to ask for it.
        ask.plan();
    }

    /// The request as the engines of one attempt know it. Where they meet by its id, two that have
    /// the same id, by a client's will or as attempts at one, would be taken for each other.
    fn known_as(&self, ask: &Arc<Ask>) -> Arc<Ask> {
        match self.speech.now().dialect.meets_by_request_id() {
            true => Arc::new(ask.under(&uuid::Uuid::new_v4().to_string())),
            false => ask.clone(),
        }
    }

    /// One prefill on one prefiller, and the decode leg beside it, if there is to be one.
    async fn prefill_and_early(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        reservation: Reservation,
        offer: Option<Offer>,
        decode: &mut Tries,
    ) -> Result<Ended, Failure> {
        let transfer = match self.transfer(&reservation).await {
            Ok(transfer) => Transfer { offer: offer.map(|offer| offer.params), ..transfer },
            Err(failure) => return self.record_outcome(ask, &reservation, Err(failure)),
        };
        let dialect = self.speech.now().dialect;
        let early = self.early(ask, &reservation, &transfer, decode);
        if early.is_none() && dialect.binds_pairs() {
            // It would compute, and wait for nobody.
            return Ok((PrefillEnd::InVain, None));
        }
        let other = early.as_ref().and_then(Early::waited_for);
        let written = Written::default();
        let settings = self.settings.now();
        // A decoder that met a prefill which never came to its end keeps its blocks for ever (vLLM
        // 0.32).
        let grace = match early.as_ref().is_some_and(Early::needs_its_prefill) {
            true => settings.computing(settings.prefill, ask.shape.prompt_tokens),
            false => settings.abandon_grace,
        };
        let decoder = early.as_ref().and_then(Early::partner);
        let partners = PrefillPartners { decoder, encoders: ask.encoders() };
        let spec = PrefillSpec { transfer, partners, is_moved: decode.is_prefill_moved };
        let prefill = boxed(|| self.clone().prefill_once(ask.clone(), reservation, spec, written.clone()));
        let legs = boxed(|| concurrent_decode::beside(prefill, written.clone(), early));
        let ended = DetachedPrefill::new(legs, written, grace, self.releases.clone()).await;
        if ended.is_err() {
            // Which of the two waited for the other in vain, nobody knows: another pair is to have
            // no part of this one.
            decode.tried.extend(other);
        }
        ended
    }
}

/// True if an attempt that came with an offer may have ended so because of it: the engine had it,
/// and did not do what it was asked for.
fn may_be_of_the_offer(ended: &Result<Ended, Failure>) -> bool {
    match ended {
        Ok((PrefillEnd::Refused(_), _)) => true,
        Ok(_) => false,
        Err(failure) => failure.written && !failure.busy(),
    }
}
