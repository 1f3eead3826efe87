//! The router: the table of routes behind one door.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{MethodFilter, MethodRouter, on};
use futures_util::FutureExt;
use http::{HeaderValue, Method, Response, StatusCode, Uri, Version, header};

use crate::dialect::Api;
use crate::error::{Error, Kind};
use crate::relay::shutdown;
use crate::server::cut::unless_cut;
use crate::server::table::{self, Answer, CONFIGURED, Key, Listener, Row, TABLE};
use crate::server::{
    Gateway, auth, cors, csrf, every_engine, headers, host, openai, openapi, operator_access, passthrough,
    reply, transfer_coding, unread_body,
};

/// All routes, over `gateway`.
pub fn router(gateway: Arc<Gateway>) -> Router {
    let hidden = from_fn_with_state(gateway.clone(), where_no_key_is_asked_for);
    let pages = looking(&gateway).route_layer(hidden);
    let shown = &[Listener::Both, Listener::Clients, Listener::Operators];
    let router = routes_of(&[Listener::Both, Listener::Clients]).merge(operating(&gateway)).merge(pages);
    closed(router.merge(documents(shown)), gateway)
}

/// Routes for clients, where operators have a listener of their own.
pub fn public_router(gateway: Arc<Gateway>) -> Router {
    let shown = &[Listener::Both, Listener::Clients];
    closed(routes_of(shown).merge(documents(shown)), gateway)
}

/// Routes of the operators' listener.
pub fn admin_router(gateway: Arc<Gateway>) -> Router {
    let router = routes_of(&[Listener::Both]).merge(operating(&gateway)).merge(looking(&gateway));
    closed(router.merge(documents(&[Listener::Both, Listener::Operators, Listener::Pages])), gateway)
}

/// The routes of the table for these listeners.
fn routes_of(listeners: &[Listener]) -> Router<Arc<Gateway>> {
    let rows = TABLE.iter().filter(|row| listeners.contains(&row.listener));
    rows.filter_map(|row| Some((row.path, handler(row, row.filter()?)?)))
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
}

/// Handler of a row; `None` for documents, which differ between listeners.
fn handler(row: &'static Row, methods: MethodFilter) -> Option<MethodRouter<Arc<Gateway>>> {
    match row.answer {
        Answer::Gateway(register) => Some(register(methods)),
        Answer::Document(_) => None,
        Answer::Generating(route) => {
            let generated = move |gateway: State<Arc<Gateway>>, request: Request| {
                openai::generate(gateway, route, request)
            };
            Some(on(methods, generated))
        }
        Answer::OneEngine(passage) => {
            let passed = move |State(gateway): State<Arc<Gateway>>, request: Request| async move {
                passthrough::serve(&gateway, row.body, passage, request).await
            };
            Some(on(methods, passed))
        }
        Answer::EveryEngine => Some(on(methods, every_engine::ask)),
    }
}

/// Documents about the routes on these listeners.
fn documents(listeners: &'static [Listener]) -> Router<Arc<Gateway>> {
    let mut router = Router::new();
    for row in TABLE {
        if let (Answer::Document(document), Some(methods)) = (row.answer, row.filter()) {
            let told = move |State(gateway): State<Arc<Gateway>>| async move {
                openapi::answer(&gateway, document, listeners)
            };
            router = router.route(row.path, on(methods, told));
        }
    }
    router
}

/// Routes that change the gateway or its engines, or tell about them.
fn operating(gateway: &Arc<Gateway>) -> Router<Arc<Gateway>> {
    routes_of(&[Listener::Operators])
        .route_layer(from_fn_with_state(gateway.clone(), operator_access::check))
        .route_layer(from_fn_with_state(gateway.clone(), csrf::kept_out))
}

/// Pages for people, in a browser.
fn looking(gateway: &Arc<Gateway>) -> Router<Arc<Gateway>> {
    routes_of(&[Listener::Pages]).route_layer(from_fn_with_state(gateway.clone(), operator_access::check))
}

/// On a listener that clients reach: where keys are asked for, there is no reason to show them
/// where to try some. Where none are, the page tells no more than `/instances` beside it.
async fn where_no_key_is_asked_for(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if auth::asks(&gateway) { unknown_url(request).await } else { next.run(request).await }
}

/// Refuses everything else, and leads every request through the door. Before it a browser is told
/// whose pages may ask, since it asks that without their key, and refusals are for those pages to
/// read, too.
fn closed(router: Router<Arc<Gateway>>, gateway: Arc<Gateway>) -> Router {
    let cors = cors::layer(&gateway.edge.now().cors_origins);
    let router = router
        .fallback(elsewhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(gateway.clone(), door))
        .with_state(gateway);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

async fn door(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response<Body> {
    at_the_door(&gateway, request, |request| next.run(request)).await
}

/// Checks that every request passes. A refused client learns by which id to ask about it, and if
/// the connection lives.
pub(super) async fn at_the_door<F: Future<Output = Response<Body>>>(
    gateway: &Gateway,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response<Body> {
    let asked = request.headers().get(headers::REQUEST_ID).cloned();
    let api = reply::api_at(request.uri().path());
    let leftover = unread_body::of(&mut request);
    // Over HTTP/2 the end of a connection is said by GOAWAY.
    let told_to_leave = request.version() < Version::HTTP_2;
    let mut response = {
        let answer = pin!(let_in(gateway, api, request, next));
        let answered = unless_cut(&gateway.meters, answer).await;
        answered.unwrap_or_else(|| reply::error_of(api, &shutdown()))
    };
    if told_to_leave && gateway.leaves() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(leftover) = leftover {
        leftover.settle(&mut response).await;
    }
    let refused = response.status().is_client_error() || response.status().is_server_error();
    if refused && !response.headers().contains_key(headers::REQUEST_ID) {
        reply::tell_id(&mut response, api, &headers::request_id(asked.as_ref()));
    }
    response
}

/// The limit on its head, the question who asks, and the net under our own bugs.
async fn let_in<F: Future<Output = Response<Body>>>(
    gateway: &Gateway,
    api: Option<Api>,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response<Body> {
    let (lines, bytes) = (request.headers().len(), headers::size_bytes(request.headers()));
    let (max_lines, max_bytes) = {
        let edge = gateway.edge.now();
        (edge.headers, edge.header_bytes)
    };
    if lines > max_lines || bytes > max_bytes {
        let message = format!(
            "the request has {lines} headers in {bytes} bytes; the limits are {max_lines} (limit.headers) and \
             {max_bytes} bytes (limit.header_bytes)"
        );
        return reply::error_of(api, &Error::new(Kind::HeadersTooLarge, message));
    }
    if let Err(wrong) = host::check(&request).and_then(|()| transfer_coding::check(request.headers())) {
        return reply::error_of(api, &wrong);
    }
    if gateway.via.passed(request.headers()) {
        let message = "this request comes from the gateway that it was sent to: one of its engines has the gateway's own \
                       address, or leads back to it; take that engine out of the fleet";
        return reply::error_of(api, &Error::new(Kind::Loop, message));
    }
    if let Err(unknown) = auth::identify(gateway, &mut request) {
        return reply::error_of(api, &unknown);
    }
    match AssertUnwindSafe(next(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!("a request handler panicked");
            let message = "the gateway failed; this is a bug of the gateway";
            reply::error_of(api, &Error::new(Kind::Internal, message))
        }
    }
}

/// Methods of paths of which nothing is known; the others are about the connection and not for
/// engines.
const CONFIGURED_METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Route of engines for a websocket, over which clients speak.
const REALTIME: &str = "/v1/realtime";
/// Paths that clients add to a base URL that ends with `/v1`.
const ASKED: [&str; 6] =
    ["/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses"];

/// Place where a path with a slash too many at its end was meant to go, with its query: engines
/// redirect there, and clients follow.
fn without_slash(uri: &Uri) -> Option<HeaderValue> {
    let path = uri.path().strip_suffix('/')?;
    let row = table::row_at(path).filter(|row| row.path == path)?;
    if row.listener == Listener::Operators && row.key == Key::Admin {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    HeaderValue::from_str(&format!("{path}{query}")).ok()
}

/// Advice about a path that a wrong base URL made.
fn advice(path: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("/v1/v1/") {
        return Some(format!("The client's base URL has /v1 once too often: /v1/{rest} was meant?"));
    }
    if path == REALTIME {
        return Some("No websockets are relayed: ask an engine itself.".to_owned());
    }
    ASKED.contains(&path).then(|| format!("The client's base URL lacks /v1: /v1{path} was meant?"))
}

/// Handles a path that is not in the table: one of `server.passthrough`, or unknown.
async fn elsewhere(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    if !gateway.edge.now().passes_on(request.uri().path()) {
        return unknown_url(request).await;
    }
    if CONFIGURED_METHODS.contains(request.method()) {
        return passthrough::serve(&gateway, table::Body::Any, CONFIGURED, request).await;
    }
    let mut refusal = wrong_method(request).await;
    refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD,POST,PUT,PATCH,DELETE"));
    refusal
}

async fn unknown_url(request: Request) -> Response<Body> {
    if let Some(meant) = without_slash(request.uri()) {
        let mut response = reply::empty(StatusCode::TEMPORARY_REDIRECT);
        response.headers_mut().insert(header::LOCATION, meant);
        return response;
    }
    let path = request.uri().path();
    let advice = advice(path).map(|advice| format!(" {advice}")).unwrap_or_default();
    let message = format!("Unknown request URL: {} {path}.{advice}", request.method());
    reply::error(&Error::new(Kind::UnknownUrl, message))
}

async fn wrong_method(request: Request) -> Response<Body> {
    let message = format!("{} is not allowed on {}.", request.method(), request.uri().path());
    reply::error(&Error::new(Kind::MethodNotAllowed, message))
}
