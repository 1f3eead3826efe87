//! One exchange with one engine, and what its outcome means.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::codec::json::{Edit, Object, ScanLimits};
use crate::codec::sse;
use crate::dialect::{Api, kv_transfer, usage};
use crate::error::{Error, Kind};
use crate::fleet::{Role, Seat};
use crate::relay::Relay;
use crate::relay::account::Ledger;
use crate::relay::answer::{Answer, AnswerBody, strip_hop_by_hop};
use crate::relay::ask::Ask;
use crate::relay::release::Duty;
use crate::relay::settings::Settings;
use crate::relay::stream::{Source, Stream};
use crate::upstream::{Leg, Written, collect};

/// An engine's refusal is read up to this size; vLLM echoes long prompts in its 400s.
const REFUSAL_BYTES: usize = 4 << 20;

/// How a prefill leg ended well.
pub(super) enum PrefillEnd {
    /// The prompt is computed.
    Done(Box<Duty>),
    /// The engine refused the request; the client gets that.
    Refused(Response<Bytes>),
}

/// How a decode leg ended well.
pub(super) enum DecodeEnd {
    /// A complete answer, or the engine's refusal.
    Whole(Response<Bytes>),
    /// A stream whose first byte is here.
    Stream { head: http::response::Parts, source: Box<Source> },
}

/// How a leg failed.
#[derive(Debug)]
pub(super) struct Failure {
    why: Why,
    /// The engine may have the whole request, and with it the hand-off.
    pub(super) written: bool,
    detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Connect,
    Broken,
    Timeout,
    Busy,
    Status,
    BadReply,
    Stale,
}

impl Failure {
    /// The hand-off grew older than the prefiller's lease.
    pub(super) fn stale() -> Failure {
        Failure { why: Why::Stale, written: true, detail: String::from("the prefiller's lease is over") }
    }

    fn new(why: Why, written: bool, detail: impl Into<String>) -> Failure {
        Failure { why, written, detail: detail.into() }
    }

    /// The metric label.
    pub(super) fn reason(&self) -> &'static str {
        match self.why {
            Why::Connect => "connect",
            Why::Broken => "broken",
            Why::Timeout => "timeout",
            Why::Busy => "busy",
            Why::Status => "status",
            Why::BadReply => "bad_reply",
            Why::Stale => "stale",
        }
    }

    /// What the client reads when nothing else helped.
    pub(super) fn into_error(self, role: Role) -> Error {
        let (kind, public) = match (role, self.why) {
            (_, Why::Busy) => (Kind::Overloaded, "all engines that were asked are busy"),
            (Role::Prefill, Why::Timeout) => (Kind::PrefillTimeout, "the prefill did not finish in time"),
            (Role::Prefill, Why::BadReply) => (Kind::BadPrefillReply, "the prefill brought no usable answer"),
            (Role::Prefill, _) => (Kind::PrefillFailed, "the prefill failed on every engine that was tried"),
            (Role::Decode, Why::Timeout) => (Kind::DecodeTimeout, "no answer began in time"),
            (Role::Decode, _) => (Kind::DecodeFailed, "the decode failed on every engine that was tried"),
        };
        Error::new(kind, public).detail(self.detail)
    }
}

impl DecodeEnd {
    /// The answer for the client; from here on the ledger lives in its body.
    pub(super) fn into_answer(self, ask: &Ask, mut ledger: Ledger, settings: &Settings) -> Answer {
        match self {
            DecodeEnd::Whole(whole) => {
                let answer = whole.map(AnswerBody::whole);
                ledger.whole(answer.status());
                answer
            }
            DecodeEnd::Stream { head, source } => {
                ledger.streams(head.status);
                let end = ask.arrived + settings.total;
                Response::from_parts(
                    head,
                    AnswerBody::Stream(Box::new(Stream::new(*source, ledger, settings, end))),
                )
            }
        }
    }
}

impl Relay {
    /// One prefill on one prefiller. It owns all that it needs: when the client leaves, it is finished or hung up on by
    /// `release::Unfinished`, because a hang-up at the moment in which the engine finishes would strand its KV.
    pub(super) async fn prefill_once(
        self: Arc<Self>,
        ask: Arc<Ask>,
        mut seat: Seat,
    ) -> Result<PrefillEnd, Failure> {
        let sent = Instant::now();
        let written = Written::default();
        let edit = kv_transfer::prefill_edit(ask.api, &ask.body);
        let outcome = within(self.settings.prefill, &written, async {
            let response = self.exchange(&ask, &seat, &edit, &written).await?;
            let limit = self.settings.prefill_reply_bytes;
            whole(response, limit, &written).await
        })
        .await;
        let response = self.told(&seat, outcome)?;
        if response.status() != StatusCode::OK {
            return Ok(PrefillEnd::Refused(response));
        }
        let reply = kv_transfer::read_prefill(ask.api, response.into_body())
            .map_err(|e| Failure::new(Why::BadReply, true, format!("{}: {e}", seat.instance().endpoint())));
        let reply = self.told(&seat, reply)?;
        seat.instance().meter().done(sent.elapsed());
        seat.hold();
        Ok(PrefillEnd::Done(Box::new(Duty::new(ask, reply, seat, self.releases.clone()))))
    }

    /// One decode on one decoder, up to the first byte of a stream or the last byte of anything else.
    pub(super) async fn decode_once(
        &self,
        ask: &Arc<Ask>,
        seat: Seat,
        duty: Option<&mut Duty>,
        ledger: &mut Ledger,
    ) -> Result<DecodeEnd, Failure> {
        let sent = Instant::now();
        let written = Written::default();
        let (edit, mut duty) = match duty {
            Some(duty) => (kv_transfer::decode_edit(duty.give(&written)), Some(duty)),
            None => (kv_transfer::decode_edit(None), None),
        };
        let limit = if ask.shape.stream { self.settings.first_byte } else { self.settings.answer };
        let outcome = within(limit, &written, async {
            let response = self.exchange(ask, &seat, &edit, &written).await?;
            first_piece(response, ask.api, &self.settings, &written).await
        })
        .await;
        if let Some(duty) = &mut duty {
            match &outcome {
                Ok((head, _)) if fetched_or_told(head.status) => duty.used(),
                Err(failure) if !failure.written => {}
                _ => duty.lost(),
            }
        }
        let (head, piece) = self.told(&seat, outcome)?;
        seat.instance().meter().done(sent.elapsed());
        match piece {
            Piece::Whole(body) => Ok(DecodeEnd::Whole(finish_whole(ask.api, head, body, ledger))),
            Piece::First(first, rest) => {
                let source = Source { first, rest, seat, api: ask.api, sse: is_sse(&head.headers) };
                Ok(DecodeEnd::Stream { head, source: Box::new(source) })
            }
        }
    }

    /// Sends one leg; answers with a 5xx are failures.
    async fn exchange(
        &self,
        ask: &Ask,
        seat: &Seat,
        edit: &Edit,
        written: &Written,
    ) -> Result<Response<Incoming>, Failure> {
        let leg = Leg {
            instance: seat.instance(),
            method: Method::POST,
            target: &ask.target,
            headers: ask.headers.clone(),
            body: ask.body.splice(edit),
        };
        let name = seat.instance().endpoint();
        let response = self.upstream.send(leg, written).await.map_err(|e| {
            let why = if e.connect { Why::Connect } else { Why::Broken };
            Failure::new(why, written.get(), format!("{name}: {}", e.causes()))
        })?;
        match response.status() {
            StatusCode::SERVICE_UNAVAILABLE => Err(Failure::new(Why::Busy, true, format!("{name}: 503"))),
            s if s.is_success() || s.is_client_error() => Ok(response),
            s => Err(Failure::new(Why::Status, true, format!("{name}: status {}", s.as_u16()))),
        }
    }

    /// Books the outcome of a leg with the fleet and the metrics.
    fn told<T>(&self, seat: &Seat, outcome: Result<T, Failure>) -> Result<T, Failure> {
        self.fleet.report(seat.instance(), outcome.is_ok());
        if let Err(failure) = &outcome {
            seat.instance().meter().failed(failure.reason());
            tracing::warn!(
                leg = seat.instance().role().name(),
                reason = failure.reason(),
                "{}",
                failure.detail
            );
        }
        outcome
    }
}

/// What of an answer is here.
enum Piece {
    Whole(Bytes),
    First(Bytes, Incoming),
}

async fn within<T>(
    limit: Duration,
    written: &Written,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::new(Why::Timeout, written.get(), format!("no answer within {limit:?}"))),
    }
}

async fn whole(
    response: Response<Incoming>,
    limit: usize,
    written: &Written,
) -> Result<Response<Bytes>, Failure> {
    let (head, body) = response.into_parts();
    let limit = if head.status.is_success() { limit } else { REFUSAL_BYTES };
    let body = collect(body, limit).await.map_err(|e| Failure::new(Why::Broken, written.get(), e))?;
    Ok(passed_on(head, body))
}

/// Whether a decoder that answers so has fetched the KV or told the prefiller to let go: vLLM 0.32 does the latter for
/// requests that its API rejects (400, 404, 422), not for those that a middleware turns away before.
fn fetched_or_told(status: StatusCode) -> bool {
    status.is_success()
        || matches!(
            status,
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
        )
}

/// Waits for the first byte of a stream, or for all of anything else.
async fn first_piece(
    response: Response<Incoming>,
    api: Api,
    settings: &Settings,
    written: &Written,
) -> Result<(http::response::Parts, Piece), Failure> {
    if !response.status().is_success() || !is_sse(response.headers()) {
        let (head, body) = whole(response, settings.answer_bytes, written).await?.into_parts();
        return Ok((head, Piece::Whole(body)));
    }
    let (mut head, mut body) = response.into_parts();
    strip_hop_by_hop(&mut head.headers);
    let broken = |detail: String| Failure::new(Why::Broken, true, detail);
    loop {
        let frame =
            body.frame().await.ok_or_else(|| broken("the stream ended before its first byte".into()))?;
        let frame = frame.map_err(|e| broken(e.to_string()))?;
        match frame.into_data() {
            Ok(first) if first.is_empty() => {}
            Ok(first) if failed_at_once(api, &first) => {
                return Err(broken("the stream began with an error".into()));
            }
            Ok(first) => return Ok((head, Piece::First(first, body))),
            Err(_) => {}
        }
    }
}

/// Whether a stream's first event says that the engine itself failed; the client need not see that.
fn failed_at_once(api: Api, first: &Bytes) -> bool {
    if !first.starts_with(b"data: {\"error\"") || !api.ends_with_done() {
        return false;
    }
    let data = sse::frames(first).next().map(|f| Bytes::copy_from_slice(&f.data()));
    let code = data
        .and_then(|d| Object::scan(d, ScanLimits::default()).ok())
        .and_then(|o| o.get("error")?.object().ok()?.get("code")?.as_u64());
    code.is_some_and(|c| c >= 500)
}

fn finish_whole(api: Api, head: http::response::Parts, body: Bytes, ledger: &mut Ledger) -> Response<Bytes> {
    if !head.status.is_success() {
        return Response::from_parts(head, body);
    }
    let body = match ledger.cached_tokens() {
        Some(cached) => usage::with_cached(api, body, cached),
        None => body,
    };
    if let Ok(object) = Object::scan(body.clone(), ScanLimits::default()) {
        ledger.decoded(usage::of_answer(api, &object));
    }
    Response::from_parts(head, body)
}

fn passed_on(mut head: http::response::Parts, body: Bytes) -> Response<Bytes> {
    strip_hop_by_hop(&mut head.headers);
    Response::from_parts(head, body)
}

fn is_sse(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.starts_with(b"text/event-stream")
}
