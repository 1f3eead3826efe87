//! One exchange with one engine, and what its outcome means.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use tokio::time::Instant;

use crate::codec::json::{Edit, Object};
use crate::dialect::returned::asking_for_ids;
use crate::dialect::{self, Api, Dialect, Prefilled, Transfer};
use crate::fleet::{Instance, Outcome, Pace, Reservation};
use crate::relay::Relay;
use crate::relay::account::Ledger;
use crate::relay::after_first_poll::meanwhile;
use crate::relay::answer::{Answer, AnswerBody, Whole, strip_hop_by_hop};
use crate::relay::ask::Ask;
use crate::relay::box_in_place::boxed;
use crate::relay::failure::{Failure, FailureKind, Large};
use crate::relay::first_event::{self, FirstEvent, Opened};
use crate::relay::origin::{self, Origin, PrefillPartners};
use crate::relay::prefill_report::PrefillReport;
use crate::relay::progress::Waiting;
use crate::relay::refusals::{self, AnswerSource, LegReply};
use crate::relay::release::HandoffGuard;
use crate::relay::response_owners;
use crate::relay::reusable_kv::asks_for_ids;
use crate::relay::settings::Settings;
use crate::relay::single_engine::CombinedReservation;
use crate::relay::source::Source;
use crate::relay::stream::{Stream, StreamReaders};
use crate::relay::token_ids::PrefillBody;
use crate::relay::traced;
use crate::relay::whole_answer::{Reading, SizeLimit, finish, read, whole};
use crate::trace::Span;
use crate::upstream::{Reply, Written, collect};
use crate::util::media_type::is_event_stream;

/// Limit for the part of a failure's body that is read, so that its connection can be used again.
const FAILURE_BODY_BYTES: usize = 64 << 10;
const FAILURE_BODY_TIME: Duration = Duration::from_millis(100);

/// Good ends of a prefill leg.
pub(super) enum PrefillEnd {
    /// The prompt is computed.
    Done(Box<HandoffGuard>),
    /// The engine refused the request; the client gets that.
    Refused(Response<Bytes>),
    /// It tells nothing: the decoder that it waited for has failed, or has answered before it.
    InVain,
    /// The engine failed, or refused, perhaps only because one token is no whole call of a tool.
    Cut,
    /// The engine is both prefiller and decoder, and takes the request as a whole: its reservations
    /// in both roles.
    Here(Box<CombinedReservation>),
}

/// Good ends of a decode leg.
pub(super) enum DecodeEnd {
    /// A complete answer, or the engine's refusal.
    Whole(Response<Bytes>),
    /// A stream whose first byte is here.
    Stream { head: http::response::Parts, source: Box<Source> },
}

/// Values that a prefill leg needs beside the request and its reservation.
pub(super) struct PrefillSpec {
    /// Values that both legs of the attempt are told.
    pub(super) transfer: Transfer,
    /// Engines that the leg depends on.
    pub(super) partners: PrefillPartners,
    /// Another prefiller did nothing with the request.
    pub(super) is_moved: bool,
}

/// The reservation for a decode leg, and what came of the request before.
pub(super) struct DecodeTarget {
    pub(super) reservation: Reservation,
    /// Another decoder did nothing with it.
    pub(super) is_moved: bool,
}

/// Values that a decode leg needs beside the request and its reservation.
pub(super) struct DecodeSpec {
    /// The edit of the client's body.
    pub(super) edit: Edit,
    /// Time that it has beyond that of other legs until its answer begins.
    pub(super) extra_time: Duration,
    /// Source of the KV.
    pub(super) origin: Origin,
    /// Another decoder did nothing with the request.
    pub(super) is_moved: bool,
}

/// The reservation on whose engine a leg is sent, and the leg's span.
pub(super) struct LegTarget<'a> {
    pub(super) reservation: &'a Reservation,
    pub(super) span: &'a mut Span,
}

/// A decoder's answer that has begun.
pub(super) struct Opening {
    head: http::response::Parts,
    begun: Begun,
    reservation: Reservation,
    /// Time from the leg's start to the beginning of the answer, where nothing else was waited for
    /// than the decoder.
    took: Option<Duration>,
}

impl PrefillEnd {
    /// Status of the prefiller's answer, if there is one.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            PrefillEnd::Done(_) => Some(StatusCode::OK),
            PrefillEnd::Refused(answer) => Some(answer.status()),
            PrefillEnd::InVain | PrefillEnd::Cut | PrefillEnd::Here(_) => None,
        }
    }
}

impl DecodeEnd {
    /// Status of the decoder's answer.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            DecodeEnd::Whole(answer) => answer.status(),
            DecodeEnd::Stream { head, .. } => head.status,
        }
    }

    /// The answer for the client; from here on the ledger lives in its body.
    pub(super) fn into_answer(self, relay: &Arc<Relay>, ask: &Arc<Ask>, mut ledger: Ledger) -> Answer {
        match self {
            DecodeEnd::Whole(whole) => {
                ledger.whole(whole.status());
                whole.map(|body| AnswerBody::Whole(Whole::of(body, ledger)))
            }
            DecodeEnd::Stream { head, source } => {
                ledger.streams(head.status);
                let end = ask.arrived + relay.settings.now().total;
                let readers = StreamReaders::of(relay, ask);
                let stream = Stream::new(relay.clone(), *source, ledger, readers, end);
                Response::from_parts(head, AnswerBody::Stream(Box::new(stream)))
            }
        }
    }
}

impl Relay {
    /// One prefill on one prefiller. It owns all that it needs: when the client leaves, it is
    /// finished or hung up on by `release::DetachedPrefill`, because a hang-up at the moment in
    /// which the engine finishes would strand its KV.
    pub(super) async fn prefill_once(
        self: Arc<Self>,
        ask: Arc<Ask>,
        reservation: Reservation,
        spec: PrefillSpec,
        written: Written,
    ) -> Result<PrefillEnd, Failure> {
        let PrefillSpec { transfer, partners, is_moved } = spec;
        let (sent, mut span) = (Instant::now(), traced::prefill(&ask, reservation.instance()));
        let sent_ms = self.fleet.now_ms();
        let (dialect, settings) = (self.speech.now().dialect, self.settings.now());
        let time = settings.computing(settings.prefill, ask.shape.prompt_tokens);
        let outcome = {
            let leg = pin!(async {
                let edit = dialect.prefill_edit(ask.api, &ask.body, &transfer);
                let PrefillBody { edit, only_ids } =
                    self.prefill_with_ids(&ask, reservation.instance(), edit);
                let response = self
                    .exchange(&ask, LegTarget { reservation: &reservation, span: &mut span }, &edit, &written)
                    .await?;
                let limit = SizeLimit { bytes: settings.prefill_reply_bytes, exceeded: Large::PrefillReply };
                let response = whole(response, limit).await?;
                if response.status().is_client_error() {
                    let from = AnswerSource::alone(reservation.instance());
                    return refusals::judge(from, response).map(LegReply::Refused);
                }
                let reply = dialect.read_prefill(ask.api, response.into_body(), &transfer);
                let reply = reply.map_err(|e| Failure::new(FailureKind::BadReply, true, e.to_string()))?;
                if reply.said.is_given_up(ask.shape.given_up) {
                    let detail = "the prefiller gave the request up: it is stopped, paused or asleep";
                    return Err(Failure::new(FailureKind::BadReply, true, detail));
                }
                self.check_computed(reservation.instance(), only_ids, &reply.said)?;
                self.learn_ids(&ask, &reply.said);
                Ok(LegReply::Served(reply))
            });
            let tokens = ask.shape.prompt_tokens.max(reservation.instance().load().work_tokens());
            let engine = reservation.instance();
            let waiting = Waiting { is_moved, ..Waiting::on(engine, Some(Pace::Prompt), tokens) };
            self.within(time, waiting, &written, leg).await
        };
        traced::ended(&mut span, &outcome);
        let Prefilled { handoff, said } = match outcome {
            Ok(LegReply::Served(reply)) => reply,
            Ok(LegReply::Refused(refusal)) => {
                self.fleet.report(reservation.instance(), Outcome::Declined);
                return Ok(PrefillEnd::Refused(refusal));
            }
            Err(failure) => {
                let failure = failure.answered_since(sent_ms);
                return self.prefill_failed(&ask.id, reservation.instance(), &partners, failure);
            }
        };
        for encoder in partners.encoders.iter() {
            self.fleet.handoff_served(encoder, reservation.instance());
        }
        if !self.fleet.compares_releases() && dialect.compares_releases(&said) {
            self.fleet.compare_releases();
        }
        let guard = HandoffGuard::new(ask, handoff, reservation, self.releases.clone());
        let receipt = PrefillReport { relay: self, said, sent, answered: Instant::now(), span };
        Ok(PrefillEnd::Done(Box::new(guard.with(receipt))))
    }

    /// One decode on one decoder, up to the first event of a stream or the last byte of anything
    /// else.
    pub(super) async fn decode_once(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        DecodeTarget { reservation, is_moved }: DecodeTarget,
        mut guard: Option<&mut HandoffGuard>,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Failure> {
        let written = Written::default();
        let handoff = guard.as_mut().and_then(|d| d.give(&written));
        let edit = match dialect::decode_edit(handoff) {
            edit if handoff.is_some() && asks_for_ids(ask, reservation.instance()) => asking_for_ids(edit),
            edit => edit,
        };
        // Without a prefill leg it computes the prompt, too.
        let prompt_tokens = if guard.is_none() { ask.shape.prompt_tokens } else { 0 };
        let extra_time = self.settings.now().computing(Duration::ZERO, prompt_tokens);
        let spec = DecodeSpec { edit, extra_time, origin: Origin::of(guard.as_deref()), is_moved };
        let leg = boxed(|| self.clone().decode_leg(ask.clone(), reservation, spec, written));
        let outcome = meanwhile(leg, || self.prefilled(ask, guard.as_deref_mut(), ledger)).await;
        self.opened(ask, outcome, guard, ledger)
    }

    /// Turns a decoder's answer that has begun, or failed to, into the end of its leg.
    pub(super) fn opened(
        &self,
        ask: &Ask,
        outcome: Result<Opening, Failure>,
        guard: Option<&mut HandoffGuard>,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Failure> {
        if let Some(guard) = guard {
            settle(guard, &outcome, self.speech.now().dialect);
        }
        let Opening { head, begun, mut reservation, took } = outcome?;
        ask.ids.forget();
        if !matches!(begun, Begun::Refusal { .. }) {
            reservation.begin_answer();
        }
        match begun {
            Begun::Refusal { body, .. } => Ok(DecodeEnd::Whole(Response::from_parts(head, body))),
            Begun::Answer(answer) => {
                let (keeper, owner) = (reservation.instance().id(), ledger.key_name());
                self.kept.learn(ask, response_owners::Beginning::Whole(&answer), keeper, owner);
                let body = finish(ask.api, &self.take_back(ask, &reservation, *answer), ledger);
                took.and_then(|took| ledger.pace_of_whole(took))
                    .iter()
                    .for_each(|pace| reservation.observe(*pace));
                self.remember(&mut reservation, ledger);
                Ok(DecodeEnd::Whole(Response::from_parts(head, body)))
            }
            Begun::Stream(Opened { first, framer, rest }) => {
                reservation.begin_steps();
                let (keeper, owner) = (reservation.instance().id(), ledger.key_name());
                self.kept.learn(ask, response_owners::Beginning::Events(&first), keeper, owner);
                let (api, http2, given_up) = (ask.api, ask.http2, ask.shape.given_up);
                let source = Source { first, framer, rest, reservation, api, http2, given_up };
                Ok(DecodeEnd::Stream { head, source: Box::new(source) })
            }
        }
    }

    /// One decode leg, until its answer begins.
    pub(super) async fn decode_leg(
        self: Arc<Self>,
        ask: Arc<Ask>,
        reservation: Reservation,
        spec: DecodeSpec,
        written: Written,
    ) -> Result<Opening, Failure> {
        let DecodeSpec { edit, extra_time, origin, is_moved } = spec;
        let (sent, mut span) = (Instant::now(), traced::decode(&ask, reservation.instance()));
        let edit = match ask.plan() {
            Some(plan) if plan.exact.is_ok() => edit.set("return_token_ids", Bytes::from_static(b"true")),
            _ => edit,
        };
        let edit = self.decode_with_ids(&ask, reservation.instance(), edit);
        let settings = self.settings.now();
        let limit = if ask.shape.stream { settings.first_byte } else { settings.answer };
        let outcome = {
            let leg = pin!(async {
                let response = self
                    .exchange(&ask, LegTarget { reservation: &reservation, span: &mut span }, &edit, &written)
                    .await?;
                let from = AnswerSource { engine: reservation.instance(), producer: origin.get() };
                begin(response, &ask, from, &settings).await
            });
            // The request's own limit runs beside it.
            let waiting = Waiting { is_moved, ..origin.waiting(&ask, reservation.instance()) };
            self.within(limit.saturating_add(extra_time), waiting, &written, leg).await
        };
        traced::ended(&mut span, &outcome);
        let (head, begun) = match outcome {
            Ok((head, begun @ Begun::Refusal { .. })) => {
                self.fleet.report(reservation.instance(), Outcome::Declined);
                (head, begun)
            }
            Ok((head, begun @ Begun::Stream(_))) if reservation.instance().health().breaks_streams() => {
                self.handoff_served(reservation.instance(), &origin);
                (head, begun)
            }
            outcome => self.decoded(&ask.id, reservation.instance(), &origin, outcome)?,
        };
        let took = matches!(origin, Origin::Known(_)).then(|| sent.elapsed());
        if let Some(took) = took.filter(|_| matches!(begun, Begun::Stream(_))) {
            self.fleet.first_token(&reservation, took);
        }
        reservation.instance().meter().done(sent.elapsed());
        reservation.instance().paces().observe(origin::pace(&ask), sent.elapsed());
        Ok(Opening { head, begun, reservation, took })
    }

    /// Sends one leg, whose span its engine is told; answers with a 5xx are failures.
    pub(super) async fn exchange(
        &self,
        ask: &Ask,
        target: LegTarget<'_>,
        edit: &Edit,
        written: &Written,
    ) -> Result<Response<Reply>, Failure> {
        let LegTarget { reservation, span } = target;
        let mut leg = ask.leg(reservation, edit);
        span.onto(&mut leg.headers);
        let response = self.send(leg, &ask.headers, written).await?;
        let status = response.status();
        traced::answered(span, status);
        if status.is_client_error() {
            reservation.instance().meter().refused(status.as_u16());
        }
        let busy = refusals::is_busy(status);
        if status.is_success() || status.is_client_error() && !busy {
            return Ok(response);
        }
        let spare = busy.then(|| refusals::retry_after(response.headers())).flatten();
        let by_proxy = busy && refusals::is_of_a_proxy(response.headers());
        // Read to its end, or the connection is lost: under overload, of all times.
        let _ =
            tokio::time::timeout(FAILURE_BODY_TIME, collect(response.into_body(), FAILURE_BODY_BYTES)).await;
        let why = if busy { FailureKind::Busy(status) } else { FailureKind::Status };
        Err(Failure { spare, by_proxy, ..Failure::new(why, true, format!("status {}", status.as_u16())) })
    }

    /// Books the outcome of a leg with the fleet, the metrics and the log.
    pub(super) fn record_outcome<T>(
        &self,
        ask: &Ask,
        reservation: &Reservation,
        outcome: Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.record_outcome_of(&ask.id, reservation.instance(), outcome)
    }

    /// The same, of an instance whose reservation is gone, for the request that is known by this
    /// id.
    pub fn record_outcome_of<T>(
        &self,
        id: &str,
        instance: &Arc<Instance>,
        outcome: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Err(failure) = &outcome else {
            self.fleet.report(instance, Outcome::Served);
            return outcome;
        };
        self.fleet.report_because(instance, failure.outcome(), &failure.detail);
        self.note_failure(id, instance, failure);
        outcome
    }

    /// Writes down how a leg failed.
    pub(super) fn note_failure(&self, id: &str, instance: &Instance, failure: &Failure) {
        if !failure.busy() {
            // It may be another process by now.
            instance.forget_peer();
        }
        if matches!(failure.why, FailureKind::Connect | FailureKind::Broken) {
            self.fleet.doubt_process(instance);
        }
        if matches!(failure.why, FailureKind::Refused(_)) {
            // Whose fault it is another engine tells.
            let (engine, role) = (instance.endpoint(), instance.role().name());
            tracing::debug!(id, %engine, role, "refused with {}", failure.detail);
            return;
        }
        instance.meter().failed(failure.reason());
        tracing::warn!(
            id,
            engine = %instance.endpoint(),
            role = instance.role().name(),
            reason = failure.reason(),
            "{}",
            failure.detail
        );
    }
}

/// Settles the hand-off that the decoder was given, by the outcome of its leg. If a request was
/// turned away, the prefiller may have been told or not: failures before vLLM's handlers tell
/// nobody, and neither do errors of requests that they have accepted.
fn settle(guard: &mut HandoffGuard, outcome: &Result<Opening, Failure>, dialect: Dialect) {
    let engine_knows = |status| refusals::fetched_or_told(dialect, status);
    match outcome {
        Ok(Opening { begun: Begun::Refusal { accepted: true, .. }, .. }) => guard.refused(),
        Ok(opening) if engine_knows(opening.head.status) => guard.used(),
        Ok(_) => guard.refused(),
        Err(failure) if failure.accepted => guard.refused(),
        Err(failure) if failure.turned_away_with().is_some_and(engine_knows) => guard.used(),
        Err(failure) if failure.turned_away() => guard.refused(),
        Err(failure) if failure.answered() => guard.used(),
        Err(failure) if failure.written => guard.lost(),
        Err(_) => {}
    }
}

/// The part of a decoder's answer that is here.
enum Begun {
    /// A refusal with 4xx; `accepted` if it came under a 200.
    Refusal { body: Bytes, accepted: bool },
    /// A complete answer.
    Answer(Box<Object>),
    /// A stream, up to and including its first event.
    Stream(Opened),
}

/// Waits for the first event of a stream, or for all of anything else. From here on the answer is
/// this decoder's.
async fn begin(
    response: Response<Reply>,
    ask: &Ask,
    from: AnswerSource<'_>,
    settings: &Settings,
) -> Result<(http::response::Parts, Begun), Failure> {
    if response.status().is_success() && is_event_stream(response.headers()) {
        let (mut head, body) = response.into_parts();
        let frame_bytes = ask.frame_bytes(settings.frame_bytes);
        return match first_event::event(body, ask, frame_bytes).await? {
            FirstEvent::Answer(opened) => {
                strip_hop_by_hop(&mut head.headers);
                Ok((head, Begun::Stream(opened)))
            }
            FirstEvent::Refusal(refusal) => {
                head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                refusals::judge_late(from, head, refusal).map(|answer| refused(answer, true))
            }
        };
    }
    let answer = whole(response, SizeLimit { bytes: settings.answer_bytes, exceeded: Large::Answer }).await?;
    if !answer.status().is_success() {
        return refusals::judge(from, answer).map(|answer| refused(answer, false));
    }
    let (mut head, body) = answer.into_parts();
    // A response in the background may be answered at once and whole, streamed or not.
    if ask.shape.stream && ask.api != Api::Responses {
        return Err(Failure::new(
            FailureKind::BadReply,
            true,
            "a stream was asked for, and something else came",
        ));
    }
    let answer = match read(ask.api, body)? {
        Reading::Answer(answer) => answer,
        Reading::Refusal(refusal) => {
            return refusals::judge_late(from, head, refusal).map(|answer| refused(answer, true));
        }
    };
    if ask.shape.given_up.in_answer(&answer) {
        return Err(Failure::given_up());
    }
    strip_hop_by_hop(&mut head.headers);
    Ok((head, Begun::Answer(answer)))
}

/// A decoder's refusal, which stands; `accepted` if it came under a 200.
fn refused(answer: Response<Bytes>, accepted: bool) -> (http::response::Parts, Begun) {
    let (head, body) = answer.into_parts();
    (head, Begun::Refusal { body, accepted })
}
