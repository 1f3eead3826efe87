//! The route table.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{MethodRouter, any, get, post};
use futures_util::FutureExt;
use http::{HeaderValue, Response, StatusCode, Uri, header};

use crate::dialect::Api;
use crate::error::{Error, Kind};
use crate::server::openai::Route;
use crate::server::{
    Gateway, admin, auth, cors, explain, foreign, headers, instances, leftover, members, metaserver, models,
    openai, page, passthrough, reply,
};

/// Answered by one engine alone, a prefiller first.
const ONE_ENGINE: [&str; 17] = [
    "/classify",
    "/detokenize",
    "/load",
    "/pooling",
    "/rerank",
    "/score",
    "/server_info",
    "/tokenize",
    "/tokenizer_info",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/score",
    "/v2/rerank",
    "/version",
];

/// Generating, without a prefill leg: several prompts in one body, or state that a decoder keeps.
const ONE_DECODER: [&str; 4] =
    ["/generative_scoring", "/v1/chat/completions/batch", "/v1/responses/{id}", "/v1/responses/{id}/cancel"];

/// All routes, over `gateway`.
pub fn router(gateway: Arc<Gateway>) -> Router {
    let looking = looking().route_layer(from_fn_with_state(gateway.clone(), where_no_key_is_asked_for));
    closed(probes().merge(serving()).merge(operating(&gateway)).merge(looking), gateway)
}

/// What clients may ask where operators have a listener of their own.
pub fn public_router(gateway: Arc<Gateway>) -> Router {
    closed(probes().merge(serving()), gateway)
}

/// What that listener answers.
pub fn admin_router(gateway: Arc<Gateway>) -> Router {
    closed(probes().merge(operating(&gateway)).merge(looking()), gateway)
}

/// What people look at, in a browser.
fn looking() -> Router<Arc<Gateway>> {
    Router::new()
        .route(page::HTML, get(page::html))
        .route(page::STYLE, get(page::style))
        .route(page::SCRIPT, get(page::script))
        .route(page::JSON, get(page::json))
}

/// On a listener that clients reach: where keys are asked for, there is no reason to show them where to try some. Where none are, the
/// page tells no more than `/instances` beside it.
async fn where_no_key_is_asked_for(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if auth::asks(&gateway) { unknown_url(request).await } else { next.run(request).await }
}

/// What supervisors and load balancers ask, on either listener.
fn probes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/health", get(admin::alive))
        .route("/healthz", get(admin::alive))
        .route("/ping", get(admin::alive).post(admin::alive))
        .route("/readyz", get(admin::ready))
        .route("/healthcheck", get(admin::healthcheck))
}

/// What changes the gateway or its engines, or tells about them.
fn operating(gateway: &Arc<Gateway>) -> Router<Arc<Gateway>> {
    Router::new()
        .route("/reset_prefix_cache", post(admin::reset_prefix_cache))
        .route("/status", get(admin::status))
        .route("/metrics", get(admin::metrics))
        .route("/debug/route", post(explain::dry_run))
        .route("/debug/route/{id}", get(explain::of_request))
        .route("/instances", get(members::list).delete(instances::remove))
        .route("/instances/add", post(instances::add))
        .route("/instances/remove", post(instances::remove))
        .route_layer(from_fn_with_state(gateway.clone(), foreign::kept_out))
}

/// What engines answer.
fn serving() -> Router<Arc<Gateway>> {
    let mut router = Router::new()
        .route(metaserver::PATH, post(metaserver::called))
        .route("/v1/models", get(models::list))
        // Names often have a slash, which not every client writes as %2F.
        .route("/v1/models/{*name}", get(models::one));
    for (path, route) in openai::ROUTES {
        router = router.route(path, generating(route));
    }
    for path in ONE_ENGINE {
        router = router.route(path, any(passthrough::to_one));
    }
    for path in ONE_DECODER {
        router = router.route(path, any(passthrough::to_decoder));
    }
    router
}

/// Whatever else is asked is refused, and everybody passes the door; but before it a browser is told whose pages may ask, since it
/// asks that without their key, and refusals are for those pages to read, too.
fn closed(router: Router<Arc<Gateway>>, gateway: Arc<Gateway>) -> Router {
    let cors = cors::layer(&gateway.edge.now().cors_origins);
    let router = router
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(gateway.clone(), door))
        .with_state(gateway);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

fn generating(route: Route) -> MethodRouter<Arc<Gateway>, Infallible> {
    post(move |state: State<Arc<Gateway>>, request: Request| openai::generate(state, route, request))
}

async fn door(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response<Body> {
    at_the_door(&gateway, request, |request| next.run(request)).await
}

/// What every request passes. Whoever is refused anywhere learns by which id to ask about it, and whether the connection lives.
pub(super) async fn at_the_door<F: Future<Output = Response<Body>>>(
    gateway: &Gateway,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response<Body> {
    let asked = request.headers().get(headers::REQUEST_ID).cloned();
    let api = reply::api_at(request.uri().path());
    let leftover = leftover::of(&mut request);
    let mut response = let_in(gateway, api, request, next).await;
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

/// What clients add to a base URL that ends with `/v1`.
const ASKED: [&str; 6] =
    ["/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses"];

/// Where a path with a slash too many at its end was meant to go, with its query: engines redirect there, and clients follow.
fn without_slash(uri: &Uri) -> Option<HeaderValue> {
    const OTHERS: [&str; 3] = ["/health", "/metrics", "/ping"];
    let path = uri.path().strip_suffix('/')?;
    let asked = path.strip_prefix("/v1").is_some_and(|rest| ASKED.contains(&rest));
    if !asked && !ONE_ENGINE.contains(&path) && !OTHERS.contains(&path) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    HeaderValue::from_str(&format!("{path}{query}")).ok()
}

/// What a client is told of a path that its base URL made wrong.
fn advice(path: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("/v1/v1/") {
        return Some(format!("The client's base URL has /v1 once too often: /v1/{rest} was meant?"));
    }
    ASKED.contains(&path).then(|| format!("The client's base URL lacks /v1: /v1{path} was meant?"))
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
