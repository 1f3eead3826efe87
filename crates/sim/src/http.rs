//! Connections and requests: HTTP/1.1 over a [`Wire`], the scripted faults, the routes.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use super::fail::ApiFailure;
use super::faults::{ConnectionEnd, FaultKind};
use super::r#gen::ReceivedHandoff;
use super::handoff::Handoff;
use super::hub::{Hub, ObservedRequest, Phase};
use super::meet;
use super::socket::Socket;
use super::sse::{Body, EVENTS_BEFORE_FAULT, StreamFault, StreamTwist};
use super::wire::{Control, Plan, Wire};
use super::{api, control, extras};

/// Bytes a request body may have.
const BODY_BYTES: usize = 64 << 20;
/// Connections at a time; more are left in the kernel's queue.
const CONNECTIONS: usize = 16_384;

/// A request that has been read.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Method, path, headers.
    pub parts: http::request::Parts,
    /// Body of the request.
    pub body: Bytes,
    /// A fault that strikes inside the answer.
    pub twist: Option<StreamTwist>,
    /// Replaces the value of `kv_transfer_params` in the answer.
    pub bad_handoff: Option<Bytes>,
}

impl ReceivedRequest {
    /// A header's text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Accepts and serves until the engine is killed, or drained and idle.
pub async fn serve(hub: Arc<Hub>) {
    let mut connections = JoinSet::new();
    let mut status = hub.status.subscribe();
    loop {
        if status.borrow_and_update().phase != Phase::Up {
            break;
        }
        tokio::select! {
            _ = status.changed() => {}
            Some(_) = connections.join_next() => {}
            accepted = hub.gate.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((socket, closings)) => { connections.spawn(connection(hub.clone(), socket, closings)); }
                // Out of descriptors, or a peer that was gone before it was accepted: let others
                // finish first.
                Err(_) => tokio::task::yield_now().await,
            },
        }
    }
    while connections.join_next().await.is_some() {}
    hub.enter(Phase::Killed);
}

async fn connection(hub: Arc<Hub>, socket: Socket, closings: u64) {
    let control = Arc::new(Control::default());
    let mut status = hub.status.subscribe();
    if hub.faults.take_at_accept() {
        control.end(ConnectionEnd::Reset);
        drop(Wire::new(socket, control));
        return;
    }
    socket.hurry();
    let service = service_fn(|request| answer(hub.clone(), control.clone(), request));
    let wire = TokioIo::new(Wire::new(socket, control.clone()));
    let mut serving = pin!(http1::Builder::new().serve_connection(wire, service));
    loop {
        let now = *status.borrow_and_update();
        if now.phase == Phase::Killed || now.closings > closings {
            control.end(ConnectionEnd::Reset);
            return;
        }
        if now.phase == Phase::Draining {
            serving.as_mut().graceful_shutdown();
        }
        tokio::select! {
            biased;
            () = control.ended() => return,
            _ = status.changed() => {}
            // An error is the client's hang-up; the engine has nobody to tell.
            _ = &mut serving => return,
        }
    }
}

async fn answer(
    hub: Arc<Hub>,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    control.plan(Plan::Free);
    let (parts, body) = request.into_parts();
    let request_id = parts.headers.get("x-request-id").cloned();
    let mut response = match Limited::new(body, BODY_BYTES).collect().await {
        Err(_) => respond_fail(&ApiFailure::detail(413, "Request Entity Too Large")),
        Ok(body) => {
            let mut asked = ReceivedRequest { parts, body: body.to_bytes(), twist: None, bad_handoff: None };
            remember(&hub, &asked);
            match strike(&hub, &control, &mut asked).await {
                Some(response) => response,
                None => route(&hub, asked).await.unwrap_or_else(|fail| respond_fail(&fail)),
            }
        }
    };
    let headers = response.headers_mut();
    headers.entry(header::SERVER).or_insert(HeaderValue::from_static("uvicorn"));
    if let Some(id) = request_id {
        headers.insert("x-request-id", id);
    }
    Ok(response)
}

fn remember(hub: &Hub, asked: &ReceivedRequest) {
    let path = asked.parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if path.starts_with("/sim/") || hub.spec.seen_requests == 0 {
        return;
    }
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let headers = asked.parts.headers.iter();
    hub.remember(ObservedRequest {
        method: asked.parts.method.to_string(),
        path: path.to_owned(),
        headers: headers.filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect(),
        body: asked.body.clone(),
    });
}

/// Answer of vLLM's middleware while it scales, and for ever on a retired rank.
const SCALES: &[u8] = br#"{"error":"The model is currently scaling. Please try again later."}"#;
const SCALING: &[u8] = br#"{"is_scaling_elastic_ep":true}"#;

/// Applies the scripted faults; an answer if one of them gives it.
async fn strike(hub: &Arc<Hub>, control: &Control, asked: &mut ReceivedRequest) -> Option<Response<Body>> {
    let path = asked.parts.uri.path();
    for what in hub.faults.take(asked.parts.method.as_str(), path, &asked.body) {
        match what {
            FaultKind::Refuse | FaultKind::ResetAtAccept => {}
            FaultKind::Retired if path == "/health" => {}
            FaultKind::Retired if path == "/is_scaling_elastic_ep" => {
                return Some(respond(200, "application/json", Bytes::from_static(SCALING)));
            }
            FaultKind::Retired => return Some(scripted(503, Some(Bytes::from_static(SCALES)))),
            FaultKind::Delay(time) => tokio::time::sleep(time).await,
            FaultKind::ResetBeforeHead => {
                control.end(ConnectionEnd::Reset);
                std::future::pending::<()>().await;
            }
            FaultKind::StallBeforeHead => std::future::pending::<()>().await,
            FaultKind::Status(status, body) => {
                if !body.as_deref().is_some_and(is_of_validation) {
                    give_back(hub, status, asked);
                }
                return Some(scripted(status, body));
            }
            FaultKind::Full { requests, status } => {
                let ledger = hub.ledger();
                if ledger.running + ledger.waiting >= requests {
                    give_back(hub, status, asked);
                    let mut refusal = scripted(status, None);
                    if status == 429 {
                        refusal.headers_mut().insert(header::SERVER, HeaderValue::from_static("nginx"));
                    }
                    return Some(refusal);
                }
            }
            FaultKind::RateLimit(seconds) => {
                let mut refusal = scripted(429, None);
                refusal.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                return Some(refusal);
            }
            FaultKind::Events(body) => return Some(respond(200, "text/event-stream; charset=utf-8", body)),
            FaultKind::CutAfterBytes { bytes, how } => control.plan(Plan::Cut(bytes, how)),
            FaultKind::StallAfterBytes(bytes) => control.plan(Plan::Stall(bytes)),
            FaultKind::DribbleBytes(bytes) => control.plan(Plan::Dribble(bytes)),
            FaultKind::CloseWithoutDone => {
                asked.twist = Some(StreamFault::Truncate.after(EVENTS_BEFORE_FAULT))
            }
            FaultKind::ErrorEvent => asked.twist = Some(StreamFault::Error.after(EVENTS_BEFORE_FAULT)),
            FaultKind::EndAfterEvents(events) => asked.twist = Some(StreamFault::Truncate.after(events)),
            FaultKind::HollowAfterEvents(events) => asked.twist = Some(StreamFault::Hollow.after(events)),
            FaultKind::RecomputeAfterEvents(events) => {
                asked.twist = Some(StreamFault::Recompute.after(events))
            }
            FaultKind::BadHandoff(raw) => asked.bad_handoff = Some(raw),
        }
    }
    None
}

/// True if an error is vLLM's word on a body that none of its handlers has seen (0.32: `type` is
/// the status' own phrase).
fn is_of_validation(body: &[u8]) -> bool {
    memchr::memmem::find(body, br#""type":"Bad Request""#).is_some()
}

/// vLLM's handlers give the hand-off of a request back that they do not let in (400, 404, 422,
/// 503). What a middleware, or something in front of the engine, turns away they never see.
fn give_back(hub: &Arc<Hub>, status: u16, asked: &ReceivedRequest) {
    let api = api::of_path(asked.parts.uri.path());
    let body = serde_json::from_slice::<serde_json::Value>(&asked.body).ok();
    let Some((api, body)) = api.zip(body).filter(|_| matches!(status, 400 | 404 | 422 | 503)) else { return };
    let handoff = Handoff::parse(&body).and_then(|handoff| meet::read(hub, api, asked, &body, handoff));
    if let Ok(handoff) = handoff {
        drop(ReceivedHandoff::of(hub, &handoff));
    }
}

fn scripted(status: u16, body: Option<Bytes>) -> Response<Body> {
    match body {
        Some(body) => respond(status, "application/json", body),
        None => respond_fail(&ApiFailure::of_status(status)),
    }
}

async fn route(hub: &Arc<Hub>, asked: ReceivedRequest) -> Result<Response<Body>, ApiFailure> {
    let path = asked.parts.uri.path().to_owned();
    if let Some(key) = hub.spec.api_key.as_ref().filter(|_| path.starts_with("/v1")) {
        let bearer = asked.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if bearer != Some(key.as_str()) {
            return Err(ApiFailure::unauthorized());
        }
    }
    if path.starts_with("/sim/") {
        return control::answer(hub, &asked);
    }
    let allowed = extras::allowed(&path).ok_or_else(|| ApiFailure::detail(404, "Not Found"))?;
    if asked.parts.method != allowed {
        let mut response = respond_fail(&ApiFailure::detail(405, "Method Not Allowed"));
        if let Ok(value) = HeaderValue::from_str(allowed.as_str()) {
            response.headers_mut().insert(header::ALLOW, value);
        }
        return Ok(response);
    }
    if hub.with(|core, _| core.is_dead()) {
        return if path == "/health" { Ok(respond(503, "", Bytes::new())) } else { Err(ApiFailure::dead()) };
    }
    if allowed == Method::GET {
        return Ok(extras::get(hub, &path));
    }
    match api::of_path(&path) {
        Some(api) => api::generate(hub, api, asked).await,
        None => extras::post(hub, &path, &asked),
    }
}

/// A whole answer.
#[must_use]
pub fn respond(status: u16, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Some(body).filter(|body| !body.is_empty())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if !kind.is_empty() {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    response
}

/// A whole JSON answer.
#[must_use]
pub fn respond_json(body: &serde_json::Value) -> Response<Body> {
    respond(200, "application/json", body.to_string().into())
}

/// An error answer.
#[must_use]
pub fn respond_fail(fail: &ApiFailure) -> Response<Body> {
    let mut response = respond(fail.status, "application/json", fail.body.clone());
    if fail.fatal {
        // The connection ends with this answer, so that the death does not overtake it.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Seconds since 1970, as `created` wants them.
#[must_use]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// 16 random hexadecimal digits.
#[must_use]
pub fn short_id() -> String {
    let mut id = uuid::Uuid::new_v4().simple().to_string();
    id.truncate(16);
    id
}
