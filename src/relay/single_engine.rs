//! Engines that are prefiller and decoder: a request stays as a whole on the one that is the best
//! prefiller. What it has computed need not travel.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::fleet::{Reservation, Role};
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::failure::Failure;
use crate::relay::legs::{DecodeEnd, DecodeTarget};
use crate::relay::{Relay, Tries};
use crate::route::Reported;

/// Reservations on an engine that takes a request as a whole, one in each of its roles.
#[derive(Debug)]
pub(super) struct CombinedReservation {
    pub(super) prefill: Reservation,
    pub(super) decode: Reservation,
}

impl Relay {
    /// The same engine as decoder, if it is one, does not rest, and was not tried.
    pub(super) fn twin(&self, ask: &Ask, prefill: &Reservation, decode: &Tries) -> Option<Reservation> {
        // A rank of the one role need not be that of the other.
        if !self.speech.now().dialect.decodes_alone() || prefill.rank().is_some() {
            return None;
        }
        let tokens = ask.shape.prompt_tokens + ask.shape.output_tokens;
        let twin = self.fleet.twin(prefill.instance(), tokens)?;
        let usable = !twin.instance().health().resting(self.fleet.now_ms());
        (usable && !decode.tried.contains(&twin.instance().id())).then_some(twin)
    }

    /// Both legs in one. Its failure is one of both roles.
    pub(super) async fn whole(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        both: CombinedReservation,
        tries: &mut Tries,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Failure> {
        let CombinedReservation { prefill, decode: reservation } = both;
        let engine = prefill.instance().clone();
        tries.start(reservation.instance());
        ledger.leg(reservation.instance());
        let computing_s = ledger.chosen().map_or(0.0, |chosen| chosen.terms.prefill_s);
        let computing = Duration::try_from_secs_f64(computing_s).unwrap_or_default();
        let mut prefill = Some(prefill);
        let ended = {
            let target = DecodeTarget { reservation, is_moved: tries.is_moved };
            let mut leg = pin!(self.decode_once(ask, target, None, ledger));
            let early = match ask.shape.stream {
                true => Ok(leg.as_mut().await),
                // When its prompt is computed, nobody tells; and the time of the whole answer is
                // not to be taken for it.
                false => timeout(computing, leg.as_mut()).await,
            };
            match early {
                Ok(ended) => ended,
                Err(_) => {
                    prefill.take().into_iter().for_each(Reservation::computed_unseen);
                    leg.await
                }
            }
        };
        ledger.takes(Role::Prefill, None);
        match (&ended, prefill) {
            (Ok(_), Some(mut prefill)) if ask.shape.stream => {
                prefill.hold(Instant::now(), Reported::default());
            }
            (Ok(_), prefill) => prefill.into_iter().for_each(Reservation::computed_unseen),
            (Err(failure), _) => {
                tries.is_moved |= failure.is_of_silence();
                self.fleet.report(&engine, failure.outcome());
                tries.shunned.push(engine.id());
            }
        }
        ended
    }
}
