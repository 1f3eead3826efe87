//! Both legs where the decoder is asked first (`dialect::layerwise`): it calls back when it has
//! room, and the prefiller that is then chosen writes into it.
//!
//! | state | client leaves | leg fails |
//! |---|---|---|
//! | decode sent, not called | kept for a grace time in which the call may come, then hung up on | another decoder |
//! | called, prefiller looked for or at work | both go on until the prefill ends, then the decoder is hung up on: its blocks come back only when they have been written | a prefiller that never began: another one, the decoder waits; one that had: a fresh pair; the decoder: the prefiller is hung up on, a fresh pair |
//! | prefilled, no byte yet | the leg is dropped, the decoder aborts | a fresh pair |
//! | streaming | as in the other order | as in the other order |

mod pair;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::pair::{Lost, PairEnd};
use crate::dialect::shape::Bypass;
use crate::dialect::{self, Transfer, layerwise};
use crate::error::{Error, Kind};
use crate::fleet::{Choice, Instance, Placement, Reservation, Role};
use crate::relay::account::Ledger;
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::relay::decision_log::OutcomeWriter;
use crate::relay::failure::Failure;
use crate::relay::legs::{DecodeEnd, DecodeSpec, Opening, PrefillEnd, PrefillSpec};
use crate::relay::origin::{Origin, PrefillPartners};
use crate::relay::prefill_report::Answered;
use crate::relay::rendezvous::Meeting;
use crate::relay::vacancy::nobody;
use crate::relay::{Relay, Tries};
use crate::upstream::Written;

/// The decoder that a prefill is for, and the way to tell its leg who computed the prompt.
pub(super) struct Partner {
    pub(super) decoder: Arc<Instance>,
    /// Of its leg.
    pub(super) written: Written,
    met: Arc<OnceLock<Arc<Instance>>>,
    /// Another decoder did nothing with the request.
    pub(super) is_moved: bool,
}

/// A reserved decoder, and the way to tell its leg who computed the prompt.
struct BegunDecode {
    reservation: Reservation,
    origin: Origin,
}

/// A decoder's call that is awaited.
struct AwaitedCall {
    meeting: Meeting,
    partner: Partner,
}

/// A decoder's call, with what it wants to be sent.
struct DecoderCall {
    params: Bytes,
    partner: Partner,
}

/// A prefiller was chosen.
struct Note {
    instance: Arc<Instance>,
    choice: Choice,
    at: Instant,
    outcome_writer: OutcomeWriter,
}

/// Ways in which the decoder's call ended.
enum Prefilled {
    /// The KV is where the decoder wants it.
    Done(Option<Answered>),
    /// The prefiller refused the request; the client gets that.
    Refused(Response<Bytes>),
    /// It failed, and may have written.
    Failed(Failure),
    /// There is no prefiller.
    Nobody(Error),
    /// The call did not come.
    NotCalled(Failure),
}

impl Relay {
    /// Reason why a request has no prefill leg, whatever the loads.
    pub(super) fn must_bypass(&self, ask: &ReceivedRequest) -> Option<Bypass> {
        let speech = self.speech.now();
        speech.dialect.bypass(ask.api, &ask.body, &ask.shape, speech.batch)
    }

    /// Both legs, on as many pairs as it takes.
    pub(super) async fn decoder_first(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        decode: Tries,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Error> {
        if ledger.chosen().is_none() && !ledger.is_let_in() {
            self.in_time(ask, ledger)?;
            self.take_place(Role::Prefill, ledger)?;
        }
        let ended = self.pairs(ask, decode, ledger).await;
        ledger.takes(Role::Prefill, None);
        ended
    }

    async fn pairs(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        mut decode: Tries,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Error> {
        let mut prefill = Tries::new(self.settings.now().attempts);
        let mut before: Option<Lost> = None;
        loop {
            ledger.tries_anew();
            // A decoder would wait for nothing.
            if self.fleet.serving(Role::Prefill) == 0 && !self.members_come(Role::Prefill).await {
                return Err(nobody(Role::Prefill));
            }
            if decode.passage.is_none() {
                decode.passage =
                    self.vacancy(Role::Decode, ask.arrived).await.map_err(|error| match before {
                        Some(lost) if error.kind() == Kind::NoDecoder => {
                            self.error_of(lost.role, lost.failure)
                        }
                        _ => error,
                    })?;
            }
            let reservation = self.decoder(ask, &decode, None)?;
            decode.start(reservation.instance());
            ledger.leg(reservation.instance());
            prefill.tried.extend_from_slice(decode.avoided());
            prefill.avoid_lacking(self.fleet.lacking_model(Role::Prefill, ask.shape.model.as_deref()));
            let mut pair = self.pair(ask, reservation, prefill.copy())?;
            let Lost { role, failure } = match pair.run(&mut prefill, ledger).await? {
                PairEnd::Ended(end) => {
                    self.compare_refusals(&ask.id, end.status(), &mut decode);
                    return Ok(end);
                }
                PairEnd::Lost(lost) => lost,
            };
            drop(pair);
            prefill.is_moved |= failure.is_of_silence();
            let weighed = match role {
                Role::Decode => self.weigh(role, failure, &mut decode),
                _ => Err(failure),
            };
            let failure = match weighed {
                Ok(refusal) => return Ok(DecodeEnd::Whole(refusal)),
                Err(failure) => failure,
            };
            let is_decoder = role == Role::Decode;
            if is_decoder && self.room_after(role, &failure, ask.arrived, &mut decode).await? {
                before = Some(Lost { role, failure });
                continue;
            }
            decode.left = if failure.busy() { decode.left.min(1) } else { decode.left };
            let over = decode.left == 0 || prefill.left == 0 || failure.lasting();
            let over = over || self.has_tried_in_vain(&decode);
            if over || !self.back_off(role, &failure, decode.made).await {
                return self.conclude(role, failure, &mut decode).map(DecodeEnd::Whole);
            }
            let of_the_prefill = role == Role::Decode && failure.may_be_of_the_handoff();
            decode.suspects.extend(ledger.prefiller().filter(|_| of_the_prefill));
            before = Some(Lost { role, failure });
        }
    }

    /// The decode leg, for as long as nobody gives it up.
    async fn decode_called(
        self: Arc<Self>,
        ask: Arc<Ask>,
        BegunDecode { reservation, origin }: BegunDecode,
        written: Written,
        given_up: oneshot::Receiver<Failure>,
    ) -> Result<Opening, Failure> {
        let edit = dialect::decode_edit(Some(&layerwise::decode_params(&self.speech.now().callback_url)));
        // How long it may take is known when the prefill has ended; a pair that lost its request
        // may take longer than one that has it.
        let extra_time = self.settings.now().total.saturating_mul(2);
        let spec = DecodeSpec { edit, extra_time, origin: origin.clone(), is_moved: false };
        let decoder = reservation.instance().clone();
        tokio::select! {
            biased;
            Ok(failure) = given_up => self.decoded(&ask.id, &decoder, &origin, Err(failure)),
            outcome = self.clone().decode_leg(ask.clone(), reservation, spec, written) => outcome,
        }
    }

    /// Waits until the decoder calls, and has a prefiller do what it asks for.
    async fn prefill_called(
        self: Arc<Self>,
        ask: Arc<Ask>,
        AwaitedCall { meeting, partner }: AwaitedCall,
        tries: Tries,
        tell: mpsc::Sender<Note>,
    ) -> (Meeting, Prefilled) {
        let params = match self.called(&ask, &meeting, &partner).await {
            Ok(params) => params,
            Err(failure) => return (meeting, Prefilled::NotCalled(failure)),
        };
        let ended = self.prefill_for(&ask, DecoderCall { params, partner }, tries, &tell).await;
        meeting.tell(matches!(ended, Prefilled::Done(_)));
        (meeting, ended)
    }

    /// The prefill leg. One that never began is tried elsewhere; one that did may have written into
    /// the decoder's blocks, and may have told it so.
    async fn prefill_for(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        DecoderCall { params, partner }: DecoderCall,
        mut tries: Tries,
        tell: &mpsc::Sender<Note>,
    ) -> Prefilled {
        let Partner { decoder, met, .. } = partner;
        tries.tried.extend(self.fleet.avoided_producers(decoder.id()));
        loop {
            let Placement { reservation, choice } = match self.place(ask, &tries).await {
                Ok(placed) => placed,
                Err(nobody) => return Prefilled::Nobody(nobody),
            };
            tries.start(reservation.instance());
            let (instance, at) = (reservation.instance().clone(), Instant::now());
            let outcome_writer = self.decision_log.placed(&ask.id, &ask.job, reservation.member(), &choice);
            // The request may be gone.
            let _ = tell.try_send(Note { instance, choice, at, outcome_writer });
            let transfer = Transfer { called: Some(params.clone()), ..Transfer::default() };
            let prefiller = reservation.instance().clone();
            let partners = PrefillPartners { decoder: Some(decoder.clone()), encoders: ask.encoders() };
            // The decoder has room by now. Whose fault it is if nothing comes the evidence tells.
            let spec = PrefillSpec { transfer, partners, is_moved: tries.is_moved };
            let leg = self.clone().prefill_once(ask.clone(), reservation, spec, Written::default());
            let failure = match leg.await {
                // It wrote what it computed: its blocks are its own again.
                Ok(PrefillEnd::Done(mut guard)) => {
                    // The first prefiller that has written; there is no other one for this decoder.
                    let _ = met.set(prefiller);
                    self.compare_refusals(&ask.id, StatusCode::OK, &mut tries);
                    return Prefilled::Done(guard.book());
                }
                Ok(PrefillEnd::Refused(answer)) => {
                    self.compare_refusals(&ask.id, answer.status(), &mut tries);
                    return Prefilled::Refused(answer);
                }
                // Of legs that are sent together, and of engines that do both: not here.
                Ok(PrefillEnd::InVain | PrefillEnd::Cut | PrefillEnd::Here(_)) => {
                    Failure::unprepared("it waited for no decoder")
                }
                Err(failure) => failure,
            };
            let failure = match self.weigh(Role::Prefill, failure, &mut tries) {
                Ok(refusal) => return Prefilled::Refused(refusal),
                Err(failure) => failure,
            };
            let began = failure.written && !failure.turned_away();
            if began
                || failure.lasting()
                || tries.left == 0
                || !self.back_off(Role::Prefill, &failure, tries.made).await
            {
                return match tries.refusals.is_some() {
                    true => match self.conclude(Role::Prefill, failure, &mut tries) {
                        Ok(refusal) => Prefilled::Refused(refusal),
                        Err(error) => Prefilled::Nobody(error),
                    },
                    false => Prefilled::Failed(failure),
                };
            }
        }
    }
}
