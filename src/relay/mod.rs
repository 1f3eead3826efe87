//! One request from its body to the last byte of its answer.
//!
//! [`Relay::drive`] is the only code that takes a request through its states; everything it calls
//! is either pure (dialect, route) or one exchange (legs). The states, and what ends each:
//!
//! | state | client leaves | leg fails |
//! |---|---|---|
//! | prefill sent | it may finish within a grace time, and is then released; else it is hung up on and aborts | another prefiller |
//! | hand-off here, no decoder has it | [`release::HandoffGuard`] has a decoder fetch it with one token | another decoder, same hand-off |
//! | decode sent, no byte yet | the leg is dropped: the decoder aborts and frees both sides | a fresh prefill, another decoder |
//! | streaming | the stream is dropped, the decoder aborts | [`resume`]: another pair goes on; else an error event, then an unclean end |

pub mod account;
pub mod admit;
pub mod affinity;
mod after_first_poll;
pub mod answer;
pub mod append;
pub mod ask;
mod batch;
pub mod box_in_place;
pub mod budget;
pub mod bypass;
mod called;
mod concurrent_decode;
pub mod decision_log;
mod decode;
mod decode_first;
mod encode;
pub mod engine_protocol;
pub mod failure;
mod first_event;
pub mod forced_tool_calls;
pub mod idle_timeout;
pub mod job;
mod legs;
pub mod lookup;
pub mod media;
mod merged;
pub mod name_check;
mod origin;
mod parts;
pub mod pause;
pub mod places;
pub mod pool_wait;
mod prefill;
mod prefill_report;
pub mod progress;
pub mod recognition;
pub mod refusals;
pub mod release;
pub mod rendezvous;
pub mod request_ids;
pub mod response_owners;
pub mod resume;
pub mod reusable_kv;
pub mod sequence;
pub mod settings;
pub mod shed;
mod shown;
mod single_engine;
mod source;
mod stream;
pub mod token_ids;
pub mod told_owners;
pub mod traced;
mod tries;
pub mod vacancy;
mod whole_answer;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::dialect::batch::Batch;
use crate::dialect::shape::Bypass;
use crate::error::{Error, Kind};
use crate::fleet::{AppendSeat, Fleet, LiveProtocol, Placement, Role};
use crate::obs::Meters;
use crate::prompt::{Exactness, Prompt, Reason};
use crate::tokenization::Prompts;
use crate::upstream::Upstream;
use crate::util::rng;
use crate::util::swap::Live;
use account::Ledger;
use affinity::Affinity;
use answer::Answer;
use append::Alone;
use ask::{Ask, ReceivedRequest};
use budget::Retries;
use concurrent_decode::Early;
use decision_log::DecisionLog;
use decode::HandoffEnd;
use encode::Encodings;
use failure::Failure;
use forced_tool_calls::Forced;
use legs::{DecodeEnd, PrefillEnd};
use lookup::PromptLookup;
use media::MediaLengths;
use name_check::NameCheck;
use origin::avoids_prefiller;
use places::Places;
use refusals::is_of_the_gateway;
use release::{HandoffGuard, ReleaseQueue};
use rendezvous::Rendezvous;
use request_ids::Names;
use response_owners::Kept;
use resume::Room;
use reusable_kv::Offers;
use settings::Settings;
use shed::RoleLimits;
use single_engine::CombinedReservation;
use tries::{Tries, is_final};
pub use vacancy::shutdown;
use vacancy::{ProbeSettings, nobody};

/// Everything a request needs on its way; shared by all of them.
#[derive(Debug)]
pub struct Relay {
    /// Members of the fleet.
    pub fleet: Arc<Fleet>,
    /// The client towards them.
    pub upstream: Upstream,
    /// Protocol of the engines.
    pub speech: Arc<LiveProtocol>,
    /// Limits and deadlines.
    pub settings: Live<Settings>,
    /// Concurrency limits of either role.
    pub role_limits: RoleLimits,
    /// Limit of all of its requests: of several fleets none takes all places of the gateway.
    pub share: Places,
    /// Metrics of requests.
    pub meters: Arc<Meters>,
    /// Place where hand-offs go that lost their request.
    pub releases: ReleaseQueue,
    /// Reads prompts; None = they are known by their size alone.
    pub prompts: Option<Arc<Prompts>>,
    /// Finds out if blocks are named as engines name them.
    pub name_check: NameCheck,
    /// Checks that predictions come true.
    pub affinity: Affinity,
    /// Lengths of images, sounds, films and files.
    pub media: MediaLengths,
    /// Reason why the last requests went where they went.
    pub decision_log: DecisionLog,
    /// Lookup of a prompt's blocks.
    pub finder: Option<lookup::Finder>,
    /// Budget of retries.
    pub budget: Retries,
    /// Room for the token ids of streams that could be continued.
    pub room: Arc<Room>,
    /// KV that decoders keep for the next turns of conversations.
    pub offers: Offers,
    /// Place where decoders that call back find their requests.
    pub rendezvous: Rendezvous,
    /// By which ids engines know the requests of clients that named them.
    pub names: Names,
    /// Place where the responses are that clients may ask for again.
    pub kept: Kept,
    /// Knowledge about prefillers that fail with answers that must call a tool.
    pub forced: Forced,
    /// Questions to an engine that was out of reach.
    pub probe: ProbeSettings,
    /// True if its only engine is somebody else's API: what that refuses for reasons of the
    /// gateway's key or model is no answer to the client.
    pub is_remote: bool,
}

/// A request that no engine answered. Its account is still open: only who answers the client knows
/// the status.
#[derive(Debug)]
pub struct Refusal {
    /// Error for the client.
    pub error: Error,
    /// To be told the status with [`Ledger::refused`].
    pub ledger: Ledger,
}

/// Result of a prefill for the decode leg.
#[derive(Debug, Default)]
struct Prefilled {
    /// Guard of its KV.
    guard: Option<HandoffGuard>,
    /// The first attempt at the decode leg, where it was sent together with the prefill.
    early: Option<Early>,
    /// Seats on an engine that does both, in its role as prefiller and in that as decoder.
    here: Option<CombinedReservation>,
    /// Seat on the decoder that computes the rest of the prompt itself.
    seat: Option<Box<AppendSeat>>,
}

impl Relay {
    /// Takes a request through both legs. The answer's body goes on by itself; dropping the future,
    /// or the body, at any point leaves nothing behind on the engines that could have been freed.
    ///
    /// # Errors
    /// Ours only: an engine's own refusal (any 4xx) is an answer.
    pub async fn drive(
        self: &Arc<Self>,
        request: ReceivedRequest,
        mut ledger: Ledger,
    ) -> Result<Answer, Box<Refusal>> {
        let settings = self.settings.now();
        if let Err(error) = self.take_share(&mut ledger) {
            return Err(Box::new(Refusal { error, ledger }));
        }
        // Where the decoder is asked first, a prefiller may understand the list.
        if self.must_bypass(&request) == Some(Bypass::SeveralPrompts)
            && let Some(batch) = Batch::of(request.api, &request.body, settings.prompts)
        {
            return Box::pin(self.drive_all(request, batch, ledger)).await;
        }
        let end = request.arrived + settings.total;
        let ended = in_time(end, pin!(self.run(request, &mut ledger))).await;
        match ended {
            Ok((DecodeEnd::Whole(refusal), _)) if self.is_remote && is_of_the_gateway(refusal.status()) => {
                let error = Error::new(Kind::EngineFailed, "the API that was asked refuses the gateway");
                let error = error.detail(format!("it answers with status {}", refusal.status().as_u16()));
                Err(Box::new(Refusal { error, ledger }))
            }
            Ok((end, ask)) => Ok(end.into_answer(self, &ask, ledger)),
            Err(error) => {
                let error = error.of_request(&ledger);
                Err(Box::new(Refusal { error, ledger }))
            }
        }
    }

    /// Both legs of a request with one prompt, or of one of several.
    async fn run(
        self: &Arc<Self>,
        mut request: ReceivedRequest,
        ledger: &mut Ledger,
    ) -> Result<(DecodeEnd, Arc<Ask>), Error> {
        self.can_be_served(&request)?;
        if self.settings.now().resume {
            request.resume = Some(Arc::default());
        }
        ledger.counts(self.budget.asked());
        let (mut ask, found) = self.understand(request).await;
        ledger.understood(&ask.job);
        if let Some(found) = found {
            ledger.found(&found);
        }
        let mut tries = Tries::new(self.settings.now().attempts);
        // Held to the end: the request may be the one that finds out whether a prefiller is back.
        let mut _prefiller = None;
        if self.encodes() {
            let Encodings { refusal, decoder, prefiller } = Box::pin(self.encode(&mut ask)).await?;
            if let Some(refusal) = refusal {
                return Ok((DecodeEnd::Whole(refusal), Arc::new(ask)));
            }
            (tries.passage, _prefiller) = (decoder, prefiller);
        }
        let ask = Arc::new(ask);
        self.both_legs(&ask, tries, ledger).await.map(|end| (end, ask))
    }

    /// Reads the prompt and finds out what exists of it already: all that routing wants to know.
    pub async fn understand(&self, mut request: ReceivedRequest) -> (Ask, Option<PromptLookup>) {
        request.ttft_slo = request.ttft_slo.or_else(|| self.settings.now().ttft_slo());
        let prompt = self.read_prompt(&mut request).await;
        let mut found = match (&self.finder, &prompt) {
            (Some(finder), Some(prompt)) => {
                let span = traced::step(&request, "lookup");
                let found = finder.look_up(&request, prompt).await;
                traced::found(span, found.as_ref());
                found
            }
            _ => None,
        };
        let whole = prompt.as_ref().filter(|prompt| prompt.is_exact());
        let tokens = whole.map(|prompt| &prompt.tokens);
        let block_tokens = self.prompts.as_ref().and_then(|prompts| prompts.engine_block_tokens());
        let known = prompt.as_ref().map(|prompt| job::KnownTokens { prompt, block_tokens });
        let job = Arc::new(job::of(&request, known, found.as_ref(), &self.fleet));
        found.iter().for_each(|found| self.names_hit(found));
        let asked = found.as_mut().and_then(|found| found.asked.take());
        let turn = tokens.and_then(|tokens| self.turn(&request, tokens));
        let ids = self.ids_of(&request, whole);
        (Ask { received: request, job, asked, turn, ids }, found)
    }

    /// Replaces the estimate of the prompt's length by its tokens, if they can be known. Takes no
    /// longer than reading the text, or `prompt.budget_ms` where an engine is asked.
    async fn read_prompt(&self, ask: &mut ReceivedRequest) -> Option<Prompt> {
        let prompts = self.prompts.as_ref().filter(|_| ask.shape.bypass.is_none())?;
        let (began, mut span) = (Instant::now(), traced::step(ask, "tokenise"));
        let engine = self.fleet.any(Role::Prefill, rng::random()).map(|engine| engine.endpoint().clone());
        let prompt = prompts.prompt(ask.api, &ask.body, engine).await;
        match prompt.exactness {
            Exactness::Exact => ask.shape.prompt_tokens = prompt.tokens.len() as u64,
            Exactness::Prefix { rest_bytes, .. } => ask.shape.estimate_after(prompt.tokens.len(), rest_bytes),
            Exactness::Inexact(_) => {}
        }
        let unknown = prompt.reason().map(Reason::name);
        span.set("pd_proxy.tokens_unknown", unknown.unwrap_or("no"));
        span.close();
        self.meters.prompt(prompt.exactness.name(), unknown, began.elapsed());
        (!prompt.tokens.is_empty()).then_some(prompt)
    }

    async fn both_legs(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        mut decode: Tries,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Error> {
        // A stream that goes on has its place, and so has a part of a request.
        if !ledger.is_let_in() {
            self.has_decoder().await?;
            self.take_place(Role::Decode, ledger)?;
        }
        let _awaits = self.fleet.pending_decodes().one();
        let mut cut = false;
        let mut vacant: Option<&'static str> = None;
        let mut before: Option<Failure> = None;
        loop {
            ledger.tries_anew();
            // KV that nobody can fetch would be stranded. One that drains will do for what is under
            // way.
            if self.fleet.members(Role::Decode).is_empty() {
                return Err(nobody(Role::Decode));
            }
            let known = if cut { Some(forced_tool_calls::NAME) } else { vacant };
            let alone = self.alone(ask, known, &decode);
            ledger.goes_alone(alone.as_ref());
            if alone.is_none() && self.speech.now().dialect.calls_back() {
                return Box::pin(self.decoder_first(ask, decode, ledger)).await;
            }
            let prefilled = match alone {
                Some(Alone { seat, .. }) => Prefilled { seat, ..Prefilled::default() },
                None => match self.prefill_in_time(ask, &mut decode, ledger).await {
                    // The last prefiller left while it was waited for, or another request tries it.
                    Err(error) if error.kind() == Kind::NoPrefiller => {
                        vacant = self.bypass_when_vacant(ask);
                        vacant.ok_or(error)?;
                        continue;
                    }
                    // No decoder could take a fresh hand-off: how the last one failed says more.
                    Err(error) if error.kind() == Kind::NoDecoder => {
                        return Err(before.map_or(error, |failure| self.error_of(Role::Decode, failure)));
                    }
                    Err(error) => return Err(error),
                    Ok((PrefillEnd::Done(guard), early)) => {
                        self.after_prefill(ask, *guard, early, ledger).await
                    }
                    Ok((PrefillEnd::Refused(answer), _)) => return Ok(DecodeEnd::Whole(answer)),
                    Ok((PrefillEnd::InVain, early)) => Prefilled { early, ..Prefilled::default() },
                    Ok((PrefillEnd::Cut, _)) => {
                        cut = true;
                        continue;
                    }
                    Ok((PrefillEnd::Here(both), _)) => {
                        self.meters.bypassed("both_roles");
                        Prefilled { here: Some(*both), ..Prefilled::default() }
                    }
                },
            };
            let failure = match self.decode(ask, prefilled, &mut decode, ledger).await? {
                HandoffEnd::Ended(end) => {
                    self.compare_refusals(&ask.id, end.status(), &mut decode);
                    if cut {
                        self.learn_forced(&end);
                    }
                    return Ok(end);
                }
                HandoffEnd::Failed(failure) => failure,
            };
            let failure = match self.weigh(Role::Decode, failure, &mut decode) {
                Ok(refusal) => return Ok(DecodeEnd::Whole(refusal)),
                Err(failure) => failure,
            };
            if !self.tries_again(ask, &failure, &mut decode).await? {
                return self.conclude(Role::Decode, failure, &mut decode).map(DecodeEnd::Whole);
            }
            decode.suspects.extend(ledger.prefiller().filter(|_| failure.may_be_of_the_handoff()));
            decode.shunned.extend(ledger.prefiller().filter(|_| avoids_prefiller(&failure)));
            before = Some(failure);
        }
    }

    /// Waits until both legs may be tried again after a decode leg that failed. False if they are
    /// not to be.
    async fn tries_again(&self, ask: &Ask, failure: &Failure, decode: &mut Tries) -> Result<bool, Error> {
        if self.room_after(Role::Decode, failure, ask.arrived, decode).await? {
            return Ok(true);
        }
        let over = decode.left == 0 || is_final(ask, failure) || self.has_tried_in_vain(decode);
        Ok(!over && self.back_off(Role::Decode, failure, decode.made).await)
    }

    /// Refuses what one engine alone must answer where none can.
    fn can_be_served(&self, ask: &ReceivedRequest) -> Result<(), Error> {
        match self.must_bypass(ask).filter(|_| !self.speech.now().dialect.decodes_alone()) {
            None => Ok(()),
            Some(reason) => {
                let (member, message) = reason.refusal();
                Err(Error::new(Kind::InvalidField, message).param(member))
            }
        }
    }

    /// Reason why a request has no prefill leg, if so.
    fn bypass(&self, ask: &Ask) -> Option<&'static str> {
        if !self.speech.now().dialect.decodes_alone() {
            return None;
        }
        let must = self.must_bypass(ask).map(Bypass::name);
        let must = must.or_else(|| self.fails_forced(ask).then_some(forced_tool_calls::NAME));
        must.or_else(|| self.settings.now().skip.reason(ask, &self.fleet).map(bypass::Reason::name))
    }

    /// The same where no prefiller was found: one that comes back, and is tried by another request,
    /// is not waited for.
    fn bypass_when_vacant(&self, ask: &Ask) -> Option<&'static str> {
        let is_unpaired = self.speech.now().dialect.decodes_alone() && self.fleet.is_unpaired();
        is_unpaired.then(|| bypass::Reason::OtherRelease.name()).or_else(|| self.bypass(ask))
    }

    /// Waits until the place that is best for the request is about to be free.
    async fn place(&self, ask: &Ask, tries: &Tries) -> Result<Placement, Error> {
        let span = traced::step(ask, "decide");
        let placed = self.wait_for_place(ask, tries).await;
        traced::decided(span, &placed);
        placed
    }

    async fn wait_for_place(&self, ask: &Ask, tries: &Tries) -> Result<Placement, Error> {
        let began = Instant::now();
        let mut placed = self.place_on_one(ask, tries).await?;
        placed.choice.waited = began.elapsed();
        self.meters.waited(placed.choice.waited);
        Ok(placed)
    }
}

/// Runs `work` until `end`. An error of its own is preferred to the time-out.
async fn in_time<T>(
    end: Instant,
    work: Pin<&mut impl Future<Output = Result<T, Error>>>,
) -> Result<T, Unfinished> {
    match timeout_at(end, work).await {
        Ok(ended) => ended.map_err(Unfinished::Failed),
        Err(_) => Err(Unfinished::TimedOut),
    }
}

/// Reason why work within a time limit gave nothing.
enum Unfinished {
    TimedOut,
    Failed(Error),
}

impl Unfinished {
    /// The error of the request that `ledger` is kept for.
    fn of_request(self, ledger: &Ledger) -> Error {
        match self {
            Unfinished::Failed(error) => error,
            Unfinished::TimedOut => Error::new(
                ledger.timeout_kind(),
                "the request took longer than the gateway's total time limit",
            ),
        }
    }
}
