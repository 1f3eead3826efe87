//! Requests that one engine alone answers: embeddings, tokenising, versions.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::auth::{Caller, Reservation};
use crate::codec::json::{Object, Parts};
use crate::dialect::{Api, Shape, guard};
use crate::error::{Error, Kind};
use crate::fleet::{InstanceId, Need, Outcome, Role, Seat};
use crate::relay::{answer, pause, traced};
use crate::route::estimate;
use crate::server::{Gateway, auth, body, headers, openai, reply};
use crate::trace::{Scope, Span};
use crate::upstream::{Leg, Reply, ReplyError, Written};

/// The route label of all of these.
const ROUTE: &str = "passthrough";

/// A request on its way to one engine.
struct Errand {
    method: Method,
    target: PathAndQuery,
    headers: HeaderMap,
    body: Parts,
    tokens: u64,
    until: Instant,
    trace: Option<Arc<Scope>>,
}

/// Why one engine did not answer.
struct Failure {
    error: Error,
    /// Another engine may be asked.
    again: bool,
    /// The metric label of a further attempt; None where nobody was asked.
    reason: Option<&'static str>,
}

impl Failure {
    /// Nobody was there to be asked.
    fn nobody() -> Failure {
        Failure { error: Error::new(Kind::EngineFailed, "no engine is available"), again: true, reason: None }
    }
}

type Answer = http::Response<Reply>;

/// Sends the request to a prefiller, or to a decoder when no prefiller answers.
pub(super) async fn to_one(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    serve(&gateway, request, &[Role::Prefill, Role::Decode]).await
}

/// Sends the request to a decoder: it generates, but has no prefill leg (several prompts, scoring by generation).
pub(super) async fn to_decoder(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    serve(&gateway, request, &[Role::Decode]).await
}

async fn serve(gateway: &Gateway, request: Request, roles: &[Role]) -> Response {
    let id = headers::request_id(request.headers().get(headers::REQUEST_ID));
    let caller = auth::caller(gateway, request.extensions());
    let mut span = gateway.span(&request, &id, openai::arrived(&request));
    let scope = span.scope().cloned();
    let (mut response, reason) = match run(gateway, request, roles, (&id, &mut span)).await {
        Ok(response) => {
            let reason = if response.status().is_success() { "ok" } else { "engine" };
            (response, reason)
        }
        Err(e) => {
            tracing::warn!(id, route = ROUTE, reason = e.kind().code(), "{}", e.log_line());
            (reply::error_under(gateway.edge.now().overload_status, None, &e), e.kind().code())
        }
    };
    let status = response.status().as_u16();
    gateway.relay.meters.request(ROUTE, status, reason);
    let key_name = Some(&*caller.name).filter(|_| gateway.callers.checks());
    gateway.relay.meters.of_key(&caller.name, (status, reason), 0, 0);
    let trace_id = scope.and_then(|scope| scope.trace()).map(|trace| trace.to_string());
    tracing::info!(id, route = ROUTE, key_name, status, reason, trace_id, "request");
    ends(&mut span, status, reason);
    auth::tell_limits(&caller, response.headers_mut());
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(headers::REQUEST_ID, id);
    }
    response
}

/// What is known of a request's span when its answer is: it ends with the answer's body, which has taken it, if there is one.
fn ends(span: &mut Span, status: u16, reason: &'static str) {
    span.set("http.response.status_code", status);
    span.set("pd_proxy.reason", reason);
    if status >= 500 { span.fail(reason) } else { span.close() }
}

async fn run(
    gateway: &Gateway,
    request: Request,
    roles: &[Role],
    (id, span): (&str, &mut Span),
) -> Result<Response, Error> {
    let edge = &gateway.edge.now();
    let target = openai::target(&request);
    let until = openai::arrived(&request) + gateway.relay.settings.now().total;
    let (head, body) = request.into_parts();
    let caller = auth::caller(gateway, &head.extensions);
    auth::check_budget(gateway, &caller)?;
    let pass = gateway.gate.enter(&caller, auth::announced(&head.headers)).await?;
    let body = body::read(&head.headers, body, edge.body_bytes, edge.body_time).await?;
    let mut headers = headers::for_engine(&head.headers, id, edge.engine_authorization.as_ref());
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    let trace = span.scope().cloned();
    if let Some(scope) = &trace {
        scope.onto(&mut headers);
    }
    let tokens = estimate::prompt_tokens(body.len());
    let body = if body.is_empty() { None } else { Some(gateway.scan(body)?) };
    let reserved = allow(gateway, &caller, body.as_ref(), roles)?;
    // No engine sees addresses that a client made up, on these routes either.
    let body = body.map(|body| body.splice(&guard::edit())).unwrap_or_default();
    let errand = Errand { method: head.method, target, headers, body, tokens, until, trace };
    let asked = gateway.relay.budget.asked();
    let mut last = Failure::nobody();
    for role in roles {
        match try_role(gateway, *role, &errand, last).await {
            Ok((response, seat)) => {
                let deadline = Box::pin(tokio::time::sleep_until(until));
                // Nobody reads the usage of these answers: what was set aside is the price, of what is no answer nothing.
                if let Some(reserved) = reserved.filter(|_| !response.status().is_success()) {
                    reserved.settle(0, Instant::now());
                }
                let (status, ok) = (response.status(), response.status().is_success());
                ends(span, status.as_u16(), if ok { "ok" } else { "engine" });
                let held = (seat, pass, asked, std::mem::take(span));
                return Ok(response.map(|body| axum::body::Body::new(Held { body, deadline, _held: held })));
            }
            Err(failure) => {
                let again = failure.again;
                last = failure;
                if !again {
                    break;
                }
            }
        }
    }
    if let Some(reserved) = reserved {
        reserved.settle(0, Instant::now());
    }
    Err(last.error)
}

/// Whether the caller may ask this; sets aside what it is expected to take of its tokens per minute.
fn allow(
    gateway: &Gateway,
    caller: &Caller,
    body: Option<&Object>,
    roles: &[Role],
) -> Result<Option<Reservation>, Error> {
    let Some(body) = body else { return Ok(None) };
    let mut shape = Shape::read(Api::Chat, body);
    auth::check_model(caller, shape.model.as_deref())?;
    if roles.contains(&Role::Prefill) {
        // These only read.
        shape.output_tokens = 0;
    }
    auth::reserve(gateway, caller, &shape)
}

/// Asks the engines of one role. `last` is what came of those asked before: whoever is asked after them is a retry.
async fn try_role(
    gateway: &Gateway,
    role: Role,
    errand: &Errand,
    mut last: Failure,
) -> Result<(Answer, Seat), Failure> {
    let mut tried: Vec<InstanceId> = Vec::new();
    for _ in 0..gateway.relay.settings.now().attempts {
        let need = Need { tokens: errand.tokens, tried: &tried, random: pause::random(), session: None };
        let Some(seat) = gateway.relay.fleet.pick(role, need) else {
            break;
        };
        if let Some(reason) = last.reason {
            if !gateway.relay.budget.allows() {
                gateway.relay.meters.retry_denied(role.name());
                return Err(Failure { again: false, ..last });
            }
            gateway.relay.meters.retry(role.name(), reason);
        }
        tried.push(seat.instance().id());
        match once(gateway, errand, &seat).await {
            Ok(mut response) => {
                answer::strip_hop_by_hop(response.headers_mut());
                return Ok((response, seat));
            }
            Err(failure) if failure.again => last = failure,
            Err(failure) => return Err(failure),
        }
    }
    Err(last)
}

async fn once(gateway: &Gateway, errand: &Errand, seat: &Seat) -> Result<Answer, Failure> {
    let mut span = traced::client(
        errand.trace.as_ref(),
        seat.instance(),
        ("errand", &errand.method, errand.target.path()),
    );
    let mut leg = Leg {
        instance: seat.instance(),
        method: errand.method.clone(),
        target: &errand.target,
        headers: Cow::Borrowed(&errand.headers),
        body: errand.body.clone(),
    };
    span.onto(&mut leg.headers);
    let name = seat.instance().endpoint();
    let failed = |kind, again, reason, detail: String| {
        let public = if kind == Kind::Overloaded {
            "all engines that were asked are busy"
        } else {
            "no engine answered"
        };
        Err(Failure {
            error: Error::new(kind, public).detail(format!("{name}: {detail}")),
            again,
            reason: Some(reason),
        })
    };
    let written = Written::default();
    let sent = gateway.relay.upstream.send(leg, &written);
    let outcome = match tokio::time::timeout_at(errand.until, sent).await {
        Ok(Ok(response)) if response.status() < StatusCode::INTERNAL_SERVER_ERROR => Ok(response),
        // vLLM answers 501 for what a model can't do: the same everywhere, and for the client to read.
        Ok(Ok(response)) if response.status() == StatusCode::NOT_IMPLEMENTED => Ok(response),
        Ok(Ok(response)) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
            failed(Kind::Overloaded, true, "busy", "status 503".into())
        }
        Ok(Ok(response)) => {
            failed(Kind::EngineFailed, true, "status", format!("status {}", response.status().as_u16()))
        }
        // What an engine may have begun is not begun a second time, unless asking twice does no harm.
        Ok(Err(e)) => {
            let reason = if e.connect { "connect" } else { "broken" };
            failed(Kind::EngineFailed, !written.get() || errand.method.is_safe(), reason, e.causes())
        }
        Err(_) => failed(Kind::EngineFailed, false, "timeout", "no answer in time".into()),
    };
    match &outcome {
        Ok(response) => traced::answered(&mut span, response.status()),
        Err(failure) => span.fail(failure.reason.unwrap_or("failed")),
    }
    span.close();
    let told = match &outcome {
        Ok(_) => Outcome::Served,
        Err(f) if f.error.kind() == Kind::Overloaded => Outcome::Busy,
        Err(_) => Outcome::Failed,
    };
    gateway.relay.fleet.report(seat.instance(), told);
    outcome
}

/// An engine's answer on its way to the client, with what it holds: its seat and its pass. It is cut at the deadline.
struct Held<K> {
    body: Reply,
    deadline: Pin<Box<tokio::time::Sleep>>,
    _held: K,
}

/// Why an answer was cut.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error(transparent)]
    Engine(#[from] ReplyError),
    #[error("the answer did not end in time")]
    Late,
}

impl<K: Unpin> Body for Held<K> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|f| f.map_err(Cut::from)));
        }
        self.deadline.as_mut().poll(cx).map(|()| Some(Err(Cut::Late)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
