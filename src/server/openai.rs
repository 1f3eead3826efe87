//! The generating routes: from an HTTP request to a [`ReceivedRequest`], and back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use bytes::{Buf, Bytes};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, Version, header};
use tokio::time::Instant;

use crate::auth::Caller;
use crate::codec::json::{Object, ScanLimits};
use crate::dialect::usage::TokenCounts;
use crate::dialect::{Api, Shape, guard, media};
use crate::error::{Error, Kind};
use crate::relay::account::Ledger;
use crate::relay::answer::AnswerBody;
use crate::relay::ask::ReceivedRequest;
use crate::relay::box_in_place::boxed;
use crate::relay::request_ids::Name;
use crate::relay::response_owners;
use crate::relay::{Refusal, Relay};
use crate::server::adapter::Adapter;
use crate::server::fleets::{ChosenFleet, ServedFleet};
use crate::server::keep_alive::{KeepAlive, mark_stream};
use crate::server::response_lookup::{self, ResponseSearch};
use crate::server::{Arrived, Gateway, alias_answer, auth, body, csrf, headers, reply};
use crate::trace::{self, Span};

/// U+FEFF in UTF-8, which is no JSON.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// The API that a generating route speaks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// The path says it.
    Of(Api),
    /// `/invocations` (SageMaker): the body does.
    ByBody,
}

impl Route {
    /// The API of a request with this body.
    fn api(self, body: &Object) -> Api {
        match self {
            Route::Of(api) => api,
            Route::ByBody if body.contains("messages") => Api::Chat,
            Route::ByBody => Api::Completions,
        }
    }
}

/// Place where they are.
pub(super) const ROUTES: [(&str, Route); 6] = [
    ("/v1/chat/completions", Route::Of(Api::Chat)),
    ("/v1/completions", Route::Of(Api::Completions)),
    ("/v1/responses", Route::Of(Api::Responses)),
    ("/v1/messages", Route::Of(Api::Messages)),
    ("/inference/v1/generate", Route::Of(Api::Generate)),
    ("/invocations", Route::ByBody),
];

impl Route {
    /// That at this path.
    pub(super) fn at(path: &str) -> Option<Route> {
        ROUTES.iter().find(|(at, _)| *at == path).map(|(_, route)| *route)
    }
}

/// Serves one generating request.
pub(super) async fn generate(
    State(gateway): State<Arc<Gateway>>,
    route: Route,
    request: Request<Body>,
) -> Response<Body> {
    let arrived = arrived(&request);
    let id = headers::request_id(request.headers().get(headers::REQUEST_ID));
    let api = match route {
        Route::Of(api) => api,
        Route::ByBody => Api::Completions,
    };
    let mut ledger = Ledger::open(gateway.meters.clone(), api, id.clone(), arrived);
    ledger.traced(gateway.span(&request, &id, arrived));
    let caller = auth::caller(&gateway, request.extensions());
    ledger.called_by(caller.clone());
    let ended = match prepare(&gateway, route, request, &mut ledger).await {
        Ok(prepared) => drive(&gateway, prepared, ledger).await,
        Err(error) => Err(Box::new(Refusal { error, ledger })),
    };
    let mut response = match ended {
        Ok(answer) => answer,
        Err(mut refusal) => {
            let response = reply::error_under(gateway.edge.now().overload_status, Some(api), &refusal.error);
            refusal.ledger.refused(&refusal.error, response.status());
            response
        }
    };
    mark_stream(&mut response);
    auth::tell_limits(&caller, response.headers_mut());
    reply::tell_id(&mut response, Some(api), &id);
    response
}

/// Drives a request to its answer, or to a stream that is kept alive until the answer is there.
async fn drive(
    gateway: &Gateway,
    prepared: Prepared,
    ledger: Ledger,
) -> Result<Response<Body>, Box<Refusal>> {
    let Prepared { chosen: ChosenFleet { fleet, alias }, request } = prepared;
    let (relay, interval) = (&fleet.relay, fleet.access.now().keep_alive);
    if interval.is_zero() || !request.shape.stream || request.shape.background {
        // A large future, which would else be moved with each of the router's layers.
        let answer = boxed(|| relay.drive(request, ledger)).await?;
        return Ok(match alias {
            None => answer.map(into_body),
            Some(alias) => answer.map(|body| alias_answer::renamed(body, &alias)),
        });
    }
    let (api, overload_status, relay) = (request.api, gateway.edge.now().overload_status, relay.clone());
    let pending = Box::pin(async move { relay.drive(request, ledger).await });
    let answer = KeepAlive { interval, api, overload_status }.answer(pending).await?;
    Ok(match alias {
        None => answer,
        Some(alias) => answer.map(|body| alias_answer::renamed_stream(body, &alias)),
    })
}

/// A stream has no pointer before it: each piece would follow that, too.
pub(super) fn into_body(answer: AnswerBody) -> Body {
    match answer {
        AnswerBody::Whole(whole) => Body::new(whole),
        AnswerBody::Stream(stream) => Body::new(*stream),
        AnswerBody::Merged(merged) => Body::new(*merged),
    }
}

/// A request that is ready for its engines.
struct Prepared {
    chosen: ChosenFleet,
    request: ReceivedRequest,
}

/// The headers of a client's request as engines of its fleet get them.
fn engine_headers(gateway: &Gateway, fleet: &ServedFleet, head: &Parts, known_as: &str) -> HeaderMap {
    let access = fleet.access.now();
    let (via, authorization) = (gateway.via.line(head.version), access.authorization.as_ref());
    let mut headers = headers::for_engine(&head.headers, known_as, via, authorization);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

/// From the request to what is to be driven: read, let in, scanned, checked.
async fn prepare(
    gateway: &Gateway,
    route: Route,
    request: Request<Body>,
    ledger: &mut Ledger,
) -> Result<Prepared, Error> {
    let (arrived, target) = (arrived(&request), target(&request));
    let (head, body) = request.into_parts();
    let caller = auth::caller(gateway, &head.extensions);
    let span = Span::since(ledger.scope(), "receive", arrived);
    let body = span.of(read_body(gateway, &caller, &head, body).await, |e| e.kind().code())?;
    let span = Span::begin(ledger.scope(), "admission", trace::Kind::Internal);
    // Looked at first: what is charged for a place is the prompt's tokens, and data has few.
    let mut body = gateway.scan(body)?;
    let tokens = media::body_tokens(&body);
    ledger.admitted(span.of(gateway.gate.enter(&caller, tokens).await, |e| e.kind().code())?);
    let adapter = match route {
        Route::Of(_) => None,
        Route::ByBody => Adapter::of(&head.headers)?,
    };
    if let Some(adapter) = &adapter {
        body = gateway.scan(adapter.within(&body))?;
    }
    let api = route.api(&body);
    ledger.is_about(api);
    let mut body = response_lookup::without_chosen_id(gateway, api, body)?;
    let mut shape = Shape::read(api, &body);
    ledger.asks(shape.model.as_deref());
    let chosen = gateway.choose_fleet(&caller, shape.model.as_deref())?;
    let (fleet, relay) = (&chosen.fleet, &chosen.fleet.relay);
    ledger.is_of_fleet(&relay.meters);
    if let Some(alias) = &chosen.alias {
        body = gateway.scan(alias_answer::with_model(&body, alias))?;
        shape.model = Some(alias.model.as_ref().into());
    }
    let dialect = relay.speech.now().dialect;
    if let Some(why) = dialect.api_refusal(api) {
        return Err(Error::new(Kind::InvalidField, why));
    }
    relay.media.estimate(&mut shape);
    let expected = TokenCounts { prompt: shape.prompt_tokens, output: shape.output_tokens };
    ledger.reserved(auth::reserve(gateway, &caller, body.bytes().len(), expected)?, &shape);
    if let Some(before) = response_owners::before(api, &body) {
        let search = ResponseSearch { gateway, caller: &caller, client: &head.headers };
        search.keeper_before(fleet, &before).await?;
    }
    let id = ledger.id().to_owned();
    let name = head.headers.contains_key(headers::REQUEST_ID).then(|| Arc::new(known_as(relay, &id)));
    ledger.is_called(name.clone());
    let own_id = name.as_ref().map_or(&*id, |name| name.id());
    let trace = ledger.scope().cloned();
    let mut headers = engine_headers(gateway, fleet, &head, own_id);
    if let Some(adapter) = &adapter {
        adapter.onto(&mut headers, chosen.alias.as_ref().map(|alias| &*alias.model));
    }
    if let Some(scope) = &trace {
        scope.onto(&mut headers);
    }
    let http2 = head.version == Version::HTTP_2;
    let request = ReceivedRequest {
        api,
        id,
        name,
        target,
        headers,
        body,
        shape,
        resume: None,
        encodings: None,
        http2,
        arrived,
        trace,
    };
    Ok(Prepared { chosen, request })
}

/// The name by which engines know a request whose client chose this id.
fn known_as(relay: &Relay, id: &str) -> Name {
    match relay.speech.now().dialect.reads_request_ids() {
        true => Name::unchosen(),
        false => relay.names.take(id),
    }
}

/// A request's body; none is read of one that is turned away in any case.
async fn read_body(gateway: &Gateway, caller: &Caller, head: &Parts, body: Body) -> Result<Bytes, Error> {
    check(gateway, caller, head)?;
    body::read(gateway, head, body, gateway.edge.now().body_bytes).await
}

/// Turns a request away of which no body need be read: it would be refused with any.
fn check(gateway: &Gateway, caller: &Caller, head: &Parts) -> Result<(), Error> {
    csrf::check(gateway, &head.uri, &head.headers)?;
    auth::check_budget(gateway, caller, &head.headers)?;
    gateway.gate.check(caller)
}

impl Gateway {
    /// A body that may be edited and sent on. The mark that some editors and shells write before
    /// UTF-8 is left out, as engines do.
    pub(super) fn scan(&self, mut body: Bytes) -> Result<Object, Error> {
        if body.starts_with(MARK) {
            body.advance(MARK.len());
        }
        let edge = self.edge.now();
        let limits = ScanLimits { depth: edge.json_depth, members: edge.json_members };
        let body = Object::scan(body, limits)
            .map_err(|e| Error::new(Kind::InvalidJson, format!("the request body can't be used: {e}")))?;
        guard::check_arguments(&body).map_err(|e| Error::new(Kind::InvalidField, e.to_string()))?;
        Ok(body)
    }
}

pub(super) fn arrived(request: &Request<Body>) -> Instant {
    request.extensions().get::<Arrived>().map_or_else(Instant::now, |a| a.0)
}

/// Path and query, in memory of their own: as they came, they hold on to the connection's read
/// buffer.
pub(super) fn target(request: &Request<Body>) -> PathAndQuery {
    let target = request.uri().path_and_query().map(|target| target.as_str().to_owned());
    target.and_then(|target| target.try_into().ok()).unwrap_or_else(|| PathAndQuery::from_static("/"))
}
