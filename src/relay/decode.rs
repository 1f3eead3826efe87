//! The decode leg: one hand-off, on as many decoders as it takes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Error;
use crate::fleet::{Instance, InstanceId, Need, Reservation, Role};
use crate::relay::account::Ledger;
use crate::relay::after_first_poll::meanwhile;
use crate::relay::ask::Ask;
use crate::relay::failure::Failure;
use crate::relay::legs::{DecodeEnd, DecodeTarget};
use crate::relay::origin::moves_kv;
use crate::relay::release::HandoffGuard;
use crate::relay::vacancy::nobody;
use crate::relay::{Prefilled, Relay, Tries};
use crate::util::rng;

/// End of the decode leg with one hand-off.
pub(super) enum HandoffEnd {
    /// The answer began, or the decoder refused the request.
    Ended(DecodeEnd),
    /// A new hand-off may help.
    Failed(Failure),
}

impl From<Result<DecodeEnd, Failure>> for HandoffEnd {
    fn from(ended: Result<DecodeEnd, Failure>) -> Self {
        match ended {
            Ok(end) => HandoffEnd::Ended(end),
            Err(failure) => HandoffEnd::Failed(failure),
        }
    }
}

/// Outcome of the search for a decoder.
enum FoundDecoder {
    Free(Reservation),
    /// The hand-off is too old to be fetched: a new one is needed.
    Stale,
}

impl Relay {
    /// The decode leg, for as long as the hand-off is fresh.
    pub(super) async fn decode(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        Prefilled { mut guard, mut early, here, mut seat }: Prefilled,
        tries: &mut Tries,
        ledger: &mut Ledger,
    ) -> Result<HandoffEnd, Error> {
        if let Some(both) = here {
            return Ok(Box::pin(self.whole(ask, both, tries, ledger)).await.into());
        }
        // Where engines meet by the request's id, both know it by that of this attempt.
        let ask = &guard.as_ref().map_or_else(|| ask.clone(), |guard| guard.ask().clone());
        let appends = seat.is_some();
        loop {
            let ended = match early.take() {
                Some(early) => {
                    tries.start(early.instance());
                    ledger.leg(early.instance());
                    let leg = Box::pin(early.end());
                    let outcome = meanwhile(leg, || self.prefilled(ask, guard.as_mut(), ledger)).await;
                    self.opened(ask, outcome, guard.as_mut(), ledger)
                }
                None => {
                    let found = match seat.take() {
                        Some(seat) => Ok(FoundDecoder::Free(seat.reservation)),
                        None => self.free_decoder(ask, guard.as_ref(), tries),
                    };
                    if !matches!(found, Ok(FoundDecoder::Free(_))) {
                        self.prefilled(ask, guard.as_mut(), ledger);
                    }
                    let reservation = match found? {
                        FoundDecoder::Free(reservation) => reservation,
                        FoundDecoder::Stale => return Ok(HandoffEnd::Failed(Failure::stale())),
                    };
                    if guard.as_ref().is_some_and(|it| !self.can_read(reservation.instance(), it)) {
                        self.prefilled(ask, guard.as_mut(), ledger);
                        // It computes the prompt itself; the KV is released.
                        guard = None;
                    }
                    tries.start(reservation.instance());
                    ledger.leg(reservation.instance());
                    let leg = DecodeTarget { reservation, is_moved: tries.is_moved };
                    self.decode_once(ask, leg, guard.as_mut(), ledger).await
                }
            };
            let failure = match ended {
                Ok(end) => return Ok(HandoffEnd::Ended(end)),
                Err(failure) => failure,
            };
            tries.is_moved |= failure.is_of_silence();
            if let Some(guard) = guard.as_mut()
                && self.room_for_handoff(ask, &failure, guard, tries).await?
            {
                continue;
            }
            if appends {
                // Another decoder would have to compute all of it.
                return Ok(HandoffEnd::Failed(failure));
            }
            if failure.busy() {
                // Every further try would cost the busy side a prefill as well.
                tries.left = tries.left.min(1);
            }
            if self.kept.is_out_of_reach(ask, &tries.tried) {
                // A 404 of anybody else would be taken for the last word.
                tries.left = 0;
            }
            if failure.written || tries.left == 0 || self.speech.now().dialect.binds_pairs() {
                return Ok(HandoffEnd::Failed(failure));
            }
            if !self.back_off(Role::Decode, &failure, tries.made).await {
                tries.left = 0;
                return Ok(HandoffEnd::Failed(failure));
            }
        }
    }

    /// Reserves a decoder for a hand-off, or for a prompt that it computes itself.
    fn free_decoder(
        &self,
        ask: &Ask,
        guard: Option<&HandoffGuard>,
        tries: &mut Tries,
    ) -> Result<FoundDecoder, Error> {
        if guard.is_some_and(|guard| guard.stale(self.settings.now().lease)) {
            tries.left -= 1;
            return Ok(FoundDecoder::Stale);
        }
        if self.speech.now().dialect.binds_pairs() {
            return Err(nobody(Role::Decode));
        }
        let prefiller = guard.filter(|guard| moves_kv(guard)).map(|guard| guard.prefiller().id());
        self.decoder(ask, tries, prefiller).map(FoundDecoder::Free)
    }

    /// True if `decoder` can read the KV of the hand-off, as far as their releases tell.
    fn can_read(&self, decoder: &Instance, guard: &HandoffGuard) -> bool {
        !moves_kv(guard) || self.fleet.can_exchange(guard.prefiller(), decoder)
    }

    /// A decoder for what `prefiller` has computed, or will.
    pub(super) fn decoder(
        &self,
        ask: &Ask,
        tries: &Tries,
        prefiller: Option<InstanceId>,
    ) -> Result<Reservation, Error> {
        let tokens = ask.shape.prompt_tokens + ask.shape.output_tokens;
        let keeper = self.kept.keeper_for(ask);
        let random = rng::random();
        let (tried, session) = (tries.tried.as_slice(), ask.job.session);
        let lacking = self.fleet.lacking_model(Role::Decode, ask.shape.model.as_deref());
        let with_lacking: SmallVec<[InstanceId; 4]> = match lacking.is_empty() {
            true => SmallVec::new(),
            false => lacking.iter().chain(tried).copied().collect(),
        };
        let tried = if lacking.is_empty() { tried } else { &with_lacking };
        let tried = self.fleet.chosen_last(Role::Decode, tried, &lacking);
        let mut avoided = prefiller.map(|it| self.fleet.avoided_consumers(it)).unwrap_or_default();
        if !avoided.is_empty() {
            avoided.extend_from_slice(tried);
        }
        // Where no other one is there, one that can't read the KV computes the prompt.
        let is_avoided = !avoided.is_empty() && self.fleet.has_other(Role::Decode, &avoided);
        let tried = if is_avoided { &avoided } else { tried };
        let job = Some(&ask.job);
        let need = Need { tokens, tried, random, session, job, producer: prefiller, keeper, under_way: true };
        let reservation = self.fleet.pick(Role::Decode, need);
        reservation.ok_or_else(|| nobody(Role::Decode))
    }
}
