//! One decoder, and the prefiller that it calls for: both legs of a try.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{AwaitedCall, BegunDecode, Note, Partner, Prefilled};
use crate::dialect::layerwise;
use crate::error::{Error, Kind};
use crate::fleet::{Instance, Reservation, Role};
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::box_in_place::boxed;
use crate::relay::failure::Failure;
use crate::relay::legs::{DecodeEnd, Opening};
use crate::relay::origin::{self, Origin};
use crate::relay::prefill_report::Answered;
use crate::relay::progress::{LOOK, Waiting};
use crate::relay::rendezvous::{Meeting, Watch};
use crate::relay::{Relay, Tries};
use crate::upstream::Written;

/// A decoder that answers has its KV, and the prefiller is about to answer: so long it is waited
/// for, for its counts.
const TAIL: Duration = Duration::from_millis(100);

/// Placements that the request has not been told of yet; one attempt has no more.
const NOTES: usize = 64;

type DecodeLeg = Pin<Box<dyn Future<Output = Result<Opening, Failure>> + Send>>;
type PrefillLeg = Pin<Box<dyn Future<Output = (Meeting, Prefilled)> + Send>>;

/// Reason why a pair gives no answer.
pub(super) struct Lost {
    /// The side at fault.
    pub(super) role: Role,
    pub(super) failure: Failure,
}

/// End of a pair's try.
pub(super) enum PairEnd {
    /// The answer began, or an engine refused the request.
    Ended(DecodeEnd),
    /// There is no answer; another pair may give one.
    Lost(Lost),
}

/// One decoder, and the prefiller that it calls for. Dropped in the middle, both may go on.
pub(super) struct Pair {
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
    /// Another decoder did nothing with the request.
    is_moved: bool,
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

/// Next event of a pair.
enum Event {
    Chosen(Note),
    Prefilled(Meeting, Prefilled),
    Decoded(Result<Opening, Failure>),
    /// The decoder has not begun yet.
    Look,
}

impl Relay {
    /// Begins with a decoder, under an id that is this pair's alone and that nobody can guess.
    pub(super) fn pair(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        reservation: Reservation,
        tries: Tries,
    ) -> Result<Pair, Error> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let ask = Arc::new(ask.under(&id));
        let names = layerwise::engine_ids(ask.api, &id, layerwise::prompts(ask.api, &ask.body));
        let full = || Error::new(Kind::Overloaded, "too many requests wait for a decoder's call");
        let meeting = names.and_then(|names| self.rendezvous.open(names)).ok_or_else(full)?;
        let (watch, decoder, written) = (meeting.watch(), reservation.instance().clone(), Written::default());
        let (give_up, given_up) = oneshot::channel();
        let (tell, notes) = mpsc::channel(NOTES);
        let (met, is_moved) = (Arc::new(OnceLock::new()), tries.is_moved);
        let begun = BegunDecode { reservation, origin: Origin::Called(met.clone()) };
        let decode = boxed(|| self.clone().decode_called(ask.clone(), begun, written.clone(), given_up));
        let partner =
            Partner { decoder: decoder.clone(), written: written.clone(), met: met.clone(), is_moved };
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
            is_moved,
            notes,
            watch,
            meeting: None,
            met,
            due: None,
        })
    }
}

impl Pair {
    /// Until the answer begins, or the pair is lost.
    ///
    /// # Errors
    /// The gateway's own: no prefiller can be had.
    pub(super) async fn run(&mut self, tries: &mut Tries, ledger: &mut Ledger) -> Result<PairEnd, Error> {
        loop {
            match self.next().await {
                Event::Chosen(note) => chosen(note, tries, ledger),
                Event::Prefilled(meeting, ended) => {
                    self.meeting = Some(meeting);
                    match ended {
                        Prefilled::Done(answered) => self.prefilled(answered, ledger),
                        // The decoder's own failure: it comes out as the decode leg's.
                        Prefilled::NotCalled(failure) => self.give_up(failure),
                        Prefilled::Refused(answer) => return Ok(PairEnd::Ended(DecodeEnd::Whole(answer))),
                        Prefilled::Failed(failure) => {
                            return Ok(PairEnd::Lost(Lost { role: Role::Prefill, failure }));
                        }
                        Prefilled::Nobody(nobody) => return Err(nobody),
                    }
                }
                Event::Look => self.look(),
                Event::Decoded(outcome) => {
                    self.wind_up(outcome.is_ok(), tries, ledger).await;
                    let ended = self.relay.opened(&self.ask, outcome, None, ledger);
                    return Ok(match ended {
                        Ok(end) => PairEnd::Ended(end),
                        Err(failure) => PairEnd::Lost(Lost { role: Role::Decode, failure }),
                    });
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
            is_moved: self.is_moved,
            ..Waiting::on(&self.decoder, Some(origin::pace(&self.ask)), shape.prompt_tokens)
        };
        let failure = match is_over {
            true => Some(Failure::late(self.patience())),
            false => self.relay.late(waiting, since_ms),
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
