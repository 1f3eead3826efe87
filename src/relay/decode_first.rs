//! Both legs where the decoder is asked first (`dialect::layerwise`): it calls back when it has
//! room, and the prefiller that is then chosen writes into it.
//!
//! | state | client leaves | leg fails |
//! |---|---|---|
//! | decode sent, not called | kept for a grace time in which the call may come, then hung up on | another decoder |
//! | called, prefiller looked for or at work | both go on until the prefill ends, then the decoder is hung up on: its blocks come back only when they have been written | a prefiller that never began: another one, the decoder waits; one that had: a fresh pair; the decoder: the prefiller is hung up on, a fresh pair |
//! | prefilled, no byte yet | the leg is dropped, the decoder aborts | a fresh pair |
//! | streaming | as in the other order | as in the other order |

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dialect::shape::Bypass;
use crate::dialect::{self, Transfer, layerwise};
use crate::error::{Error, Kind};
use crate::fleet::{Choice, Instance, Placement, Reservation, Role};
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::box_in_place::boxed;
use crate::relay::decision_log::OutcomeWriter;
use crate::relay::failure::Failure;
use crate::relay::legs::{DecodeEnd, DecodeSpec, Opening, PrefillEnd, PrefillSpec};
use crate::relay::origin::{self, Origin, PrefillPartners};
use crate::relay::prefill_report::Answered;
use crate::relay::progress::{LOOK, Waiting};
use crate::relay::rendezvous::{Meeting, Watch};
use crate::relay::vacancy::nobody;
use crate::relay::{Relay, Tries};
use crate::upstream::Written;

/// A decoder that answers has its KV, and the prefiller is about to answer: so long it is waited
/// for, for its counts.
const TAIL: Duration = Duration::from_millis(100);

/// Placements that the request has not been told of yet; one attempt has no more.
const NOTES: usize = 64;

type DecodeLeg = Pin<Box<dyn Future<Output = Result<Opening, Failure>> + Send>>;
type PrefillLeg = Pin<Box<dyn Future<Output = (Meeting, Prefilled)> + Send>>;

/// Reason why there is no answer: the side at fault, and how it failed.
type Lost = (Role, Failure);

/// One decoder, and the prefiller that it calls for. Dropped in the middle, both may go on.
struct Pair {
    relay: Arc<Relay>,
    ask: Arc<Ask>,
    decoder: Arc<Instance>,
    /// Of the decode leg.
    written: Written,
    /// `None` when it has ended, as with the prefill.
    decode: Option<DecodeLeg>,
    prefill: Option<PrefillLeg>,
    /// Ends the decode leg with a failure of its own.
    give_up: Option<oneshot::Sender<Failure>>,
    notes: mpsc::Receiver<Note>,
    watch: Watch,
    /// After the prefill, for calls that are repeated.
    meeting: Option<Meeting>,
    /// The prefiller that has written.
    met: Arc<OnceLock<Arc<Instance>>>,
    /// Limits of the decoder, once it should have its KV.
    due: Option<Due>,
}

/// Limits of a decoder that should have its KV, and does not begin.
struct Due {
    /// Time since when it should have it, in ms of the fleet's clock.
    since_ms: u64,
    next_look: Instant,
    end: Instant,
}

/// The decoder that a prefill is for, and the way to tell its leg who computed the prompt.
struct Partner {
    decoder: Arc<Instance>,
    met: Arc<OnceLock<Arc<Instance>>>,
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

/// Next event of a pair.
enum Event {
    Chosen(Note),
    Prefilled(Meeting, Prefilled),
    Decoded(Result<Opening, Failure>),
    /// The decoder has not begun yet.
    Look,
}

impl Relay {
    /// Reason why a request has no prefill leg, whatever the loads.
    pub(super) fn must_bypass(&self, ask: &Ask) -> Option<Bypass> {
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
                        Some((role, failure)) if error.kind() == Kind::NoDecoder => failure.into_error(role),
                        _ => error,
                    })?;
            }
            let reservation = self.decoder(ask, &decode, None)?;
            decode.start(reservation.instance());
            ledger.leg(reservation.instance());
            prefill.tried.extend_from_slice(decode.avoided());
            let mut pair = self.pair(ask, reservation, prefill.copy())?;
            let (role, failure) = match pair.run(&mut prefill, ledger).await? {
                Ok(end) => {
                    self.compare_refusals(&ask.id, end.status(), &mut decode);
                    return Ok(end);
                }
                Err(lost) => lost,
            };
            drop(pair);
            let weighed = match role {
                Role::Decode => self.weigh(role, failure, &mut decode),
                _ => Err(failure),
            };
            let failure = match weighed {
                Ok(refusal) => return Ok(DecodeEnd::Whole(refusal)),
                Err(failure) => failure,
            };
            let is_decoder = role == Role::Decode;
            if is_decoder && self.room_after((role, &failure), ask.arrived, &mut decode).await? {
                before = Some((role, failure));
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
            before = Some((role, failure));
        }
    }

    /// Begins with a decoder, under an id that is this pair's alone and that nobody can guess.
    fn pair(self: &Arc<Self>, ask: &Arc<Ask>, reservation: Reservation, tries: Tries) -> Result<Pair, Error> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let ask = Arc::new(ask.under(&id));
        let names = layerwise::engine_ids(ask.api, &id, layerwise::prompts(ask.api, &ask.body));
        let full = || Error::new(Kind::Overloaded, "too many requests wait for a decoder's call");
        let meeting = names.and_then(|names| self.rendezvous.open(names)).ok_or_else(full)?;
        let (watch, decoder, written) = (meeting.watch(), reservation.instance().clone(), Written::default());
        let (give_up, given_up) = oneshot::channel();
        let (tell, notes) = mpsc::channel(NOTES);
        let met = Arc::new(OnceLock::new());
        let begun = BegunDecode { reservation, origin: Origin::Called(met.clone()) };
        let decode = boxed(|| self.clone().decode_called(ask.clone(), begun, written.clone(), given_up));
        let partner = Partner { decoder: decoder.clone(), met: met.clone() };
        let awaited = AwaitedCall { meeting, partner };
        let prefill = boxed(|| self.clone().prefill_called(ask.clone(), awaited, tries, tell));
        Ok(Pair {
            relay: self.clone(),
            ask,
            decoder,
            written,
            decode: Some(decode),
            prefill: Some(prefill),
            give_up: Some(give_up),
            notes,
            watch,
            meeting: None,
            met,
            due: None,
        })
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
        let spec = DecodeSpec { edit, extra_time, origin: origin.clone() };
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
        let limit = self.settings.now().first_byte;
        let Ok(Some(params)) = timeout(limit, meeting.params()).await else {
            return (meeting, Prefilled::NotCalled(Failure::not_called(limit)));
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
        let Partner { decoder, met } = partner;
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
            let partners = PrefillPartners { decoder: Some(decoder.clone()), encoders: ask.encoders.clone() };
            let spec = PrefillSpec { transfer, partners };
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

impl Pair {
    /// Until the answer begins, or the pair is lost.
    async fn run(
        &mut self,
        tries: &mut Tries,
        ledger: &mut Ledger,
    ) -> Result<Result<DecodeEnd, Lost>, Error> {
        loop {
            match self.next().await {
                Event::Chosen(note) => chosen(note, tries, ledger),
                Event::Prefilled(meeting, ended) => {
                    self.meeting = Some(meeting);
                    match ended {
                        Prefilled::Done(answered) => self.prefilled(answered, ledger),
                        // The decoder's own failure: it comes out as the decode leg's.
                        Prefilled::NotCalled(failure) => self.give_up(failure),
                        Prefilled::Refused(answer) => return Ok(Ok(DecodeEnd::Whole(answer))),
                        Prefilled::Failed(failure) => return Ok(Err((Role::Prefill, failure))),
                        Prefilled::Nobody(nobody) => return Err(nobody),
                    }
                }
                Event::Look => self.look(),
                Event::Decoded(outcome) => {
                    self.wind_up(outcome.is_ok(), tries, ledger).await;
                    let ended = self.relay.opened(&self.ask, outcome, None, ledger);
                    return Ok(ended.map_err(|failure| (Role::Decode, failure)));
                }
            }
        }
    }

    async fn next(&mut self) -> Event {
        let look = self.due.as_ref().map(|due| due.next_look);
        tokio::select! {
            biased;
            Some(note) = self.notes.recv() => Event::Chosen(note),
            (meeting, ended) = of(&mut self.prefill) => {
                self.prefill = None;
                Event::Prefilled(meeting, ended)
            }
            outcome = of(&mut self.decode) => {
                self.decode = None;
                Event::Decoded(outcome)
            }
            () = sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => Event::Look,
        }
    }

    fn give_up(&mut self, failure: Failure) {
        if let Some(give_up) = self.give_up.take() {
            // The leg may have ended meanwhile.
            let _ = give_up.send(failure);
        }
    }

    /// Gives the decoder up when its time is over, or when it is left behind by others: what was
    /// written for it may never have arrived.
    fn look(&mut self) {
        let Some(due) = &mut self.due else { return };
        let now = Instant::now();
        due.next_look = due.end.min(now + LOOK);
        let (since_ms, is_over) = (due.since_ms, now >= due.end);
        let shape = &self.ask.shape;
        let waiting = Waiting {
            producer: self.met.get(),
            most_tokens: shape.most_tokens,
            ..Waiting::on(&self.decoder, Some(origin::pace(&self.ask)), shape.prompt_tokens)
        };
        let failure = match is_over {
            true => Some(Failure::late(self.patience())),
            false => self.relay.left_behind(waiting, since_ms),
        };
        if let Some(failure) = failure {
            self.due = None;
            self.give_up(failure);
        }
    }

    /// Time that the decoder has from the end of the prefill on.
    fn patience(&self) -> Duration {
        let settings = self.relay.settings.now();
        if self.ask.shape.stream { settings.first_byte } else { settings.answer }
    }

    fn prefilled(&mut self, answered: Option<Answered>, ledger: &mut Ledger) {
        ledger.leg(&self.decoder);
        ledger.takes(Role::Prefill, None);
        self.relay.answered(&self.ask, answered, ledger);
        let now = Instant::now();
        let end = now + self.patience();
        self.due = Some(Due { since_ms: self.relay.fleet.now_ms(), next_look: end.min(now + LOOK), end });
    }

    /// The decode leg has ended: a prefill that it called for is about to end, too, or is of no
    /// more use.
    async fn wind_up(&mut self, begun: bool, tries: &mut Tries, ledger: &mut Ledger) {
        let Some(mut prefill) = self.prefill.take().filter(|_| begun && self.watch.has_called()) else {
            return;
        };
        let ended = timeout(TAIL, &mut prefill).await;
        while let Ok(note) = self.notes.try_recv() {
            chosen(note, tries, ledger);
        }
        ledger.leg(&self.decoder);
        match ended {
            Ok((_, Prefilled::Done(answered))) => self.prefilled(answered, ledger),
            Ok(_) => {}
            Err(_) => self.relay.releases.finish(Box::pin(async move {
                let _ = prefill.await;
            })),
        }
    }
}

/// A prefiller was chosen for the request.
fn chosen(note: Note, tries: &mut Tries, ledger: &mut Ledger) {
    tries.left = tries.left.saturating_sub(1);
    tries.made += 1;
    tries.tried.push(note.instance.id());
    ledger.leg(&note.instance);
    ledger.placed(&note.choice, note.at, note.outcome_writer);
}

/// A leg's end; never, where it has ended before.
async fn of<T>(leg: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match leg {
        Some(leg) => leg.await,
        None => std::future::pending().await,
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A pair of which one leg has ended has nothing to wait for.
        let (Some(mut decode), Some(mut prefill)) = (self.decode.take(), self.prefill.take()) else {
            return;
        };
        if !self.written.get() {
            return;
        }
        let settings = self.relay.settings.now();
        let prompt_tokens = self.ask.shape.prompt_tokens;
        let mut watch = self.watch.clone();
        self.relay.releases.finish(Box::pin(async move {
            tokio::select! {
                () = watch.called() => {}
                _ = &mut decode => return,
                _ = &mut prefill => return,
                () = sleep(settings.abandon_grace) => return,
            }
            let time = settings.prefill.max(settings.computing(settings.prefill, prompt_tokens));
            let _ = timeout(time, async {
                tokio::select! {
                    _ = &mut prefill => {}
                    outcome = &mut decode => if outcome.is_ok() {
                        let _ = timeout(TAIL, &mut prefill).await;
                    },
                }
            })
            .await;
        }));
    }
}
