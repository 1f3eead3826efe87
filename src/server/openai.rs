//! The generating routes: from an HTTP request to a [`ReceivedRequest`], and back.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use bytes::{Buf, Bytes};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Version, header};
use tokio::time::Instant;

use crate::auth::{Caller, Priority};
use crate::codec::json::{Object, ScanLimits};
use crate::dialect::usage::TokenCounts;
use crate::dialect::{Api, Shape, guard, media};
use crate::error::{Error, Kind};
use crate::relay::account::Ledger;
use crate::relay::answer::AnswerBody;
use crate::relay::ask::ReceivedRequest;
use crate::relay::box_in_place::boxed;
use crate::relay::job::session_of;
use crate::relay::request_ids::Name;
use crate::relay::response_owners::{self, AliasedModel};
use crate::relay::{Refusal, Relay, shutdown};
use crate::server::adapter::Adapter;
use crate::server::cut::unless_cut;
use crate::server::every_engine::FleetTarget;
use crate::server::fallback::{Fallback, FleetAnswer};
use crate::server::fleets::{ChosenFleet, ModelAlias, ModelRoute, NamedTarget, RequestTies};
use crate::server::keep_alive::{KeepAlive, mark_stream};
use crate::server::priority::{self, Claimant};
use crate::server::response_lookup::{self, ResponseSearch};
use crate::server::{Arrived, Gateway, alias_answer, auth, body, csrf, fallback, headers, reply, ttft_slo};
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
    (Api::Chat.path(), Route::Of(Api::Chat)),
    (Api::Completions.path(), Route::Of(Api::Completions)),
    (Api::Responses.path(), Route::Of(Api::Responses)),
    (Api::Messages.path(), Route::Of(Api::Messages)),
    (Api::Generate.path(), Route::Of(Api::Generate)),
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
    let ended = pin!(async {
        match prepare(&gateway, route, request, &mut ledger).await {
            Ok(prepared) => drive(&gateway, prepared, ledger).await,
            Err(error) => Err(Box::new(Refusal { error, ledger })),
        }
    });
    let mut response = match unless_cut(&gateway.meters, ended).await {
        Some(Ok(answer)) => answer,
        Some(Err(mut refusal)) => {
            let response = reply::error_under(gateway.edge.now().overload_status, Some(api), &refusal.error);
            refusal.ledger.refused(&refusal.error, response.status());
            response
        }
        // The account knows by itself how it ended.
        None => reply::error_of(Some(api), &shutdown()),
    };
    mark_stream(&mut response);
    auth::tell_limits(&caller, response.headers_mut());
    reply::tell_id(&mut response, Some(api), &id);
    response
}

/// Drives a request to its answer, or to a stream that is kept alive until the answer is there.
async fn drive(
    gateway: &Arc<Gateway>,
    prepared: Prepared,
    ledger: Ledger,
) -> Result<Response<Body>, Box<Refusal>> {
    let Prepared { chosen, request, spare } = prepared;
    let interval = chosen.fleet.access.now().keep_alive;
    let at_once = interval.is_zero() || !request.shape.stream || request.shape.background;
    let keep_alive =
        KeepAlive { interval, api: request.api, overload_status: gateway.edge.now().overload_status };
    if let Some((client, route)) = spare {
        let fallback = Fallback { gateway: gateway.clone(), client: *client, route };
        let pending = Box::pin(fallback.drive(chosen, request, ledger));
        return match at_once {
            true => pending.await.map(into_response),
            false => keep_alive.answer(&gateway.meters, pending).await,
        };
    }
    if at_once {
        return fallback::drive_one(&chosen, request, ledger).await.map(into_response);
    }
    let pending = Box::pin(async move { fallback::drive_one(&chosen, request, ledger).await });
    keep_alive.answer(&gateway.meters, pending).await
}

/// The answer under the client's name for the model.
pub(super) fn into_response(FleetAnswer { answer, alias }: FleetAnswer) -> Response<Body> {
    answer.map(|body| into_body(body, alias.as_ref()))
}

/// A stream has no pointer before it: each piece would follow that, too.
pub(super) fn into_body(answer: AnswerBody, alias: Option<&ModelAlias>) -> Body {
    match (answer, alias) {
        (answer, Some(alias)) => alias_answer::renamed(answer, alias),
        (AnswerBody::Whole(whole), None) => Body::new(whole),
        (AnswerBody::Stream(stream), None) => Body::new(*stream),
        (AnswerBody::Merged(merged), None) => Body::new(*merged),
    }
}

/// A request that is ready for its engines.
struct Prepared {
    chosen: ChosenFleet,
    request: ReceivedRequest,
    /// The same as its client sent it, where other fleets may take it over.
    spare: Option<(Box<ClientRequest>, Arc<ModelRoute>)>,
}

/// A request as its client sent it.
#[derive(Clone)]
pub(super) struct ClientRequest {
    api: Api,
    head: Parts,
    target: PathAndQuery,
    body: Object,
    shape: Shape,
    /// Its path is that of SageMaker, where a header may name the model.
    by_body: bool,
    /// Class of its key.
    class: Priority,
    /// Time within which its first token is due.
    ttft_slo: Option<Duration>,
    arrived: Instant,
}

impl ClientRequest {
    /// The request with the model's name that engines of its fleet know, and what they make of it.
    ///
    /// # Errors
    /// `InvalidField` where their dialect does not have this API.
    fn fitted(mut self, gateway: &Gateway, chosen: &ChosenFleet) -> Result<ClientRequest, Error> {
        if let Some(alias) = &chosen.alias {
            self.body = gateway.scan(alias_answer::with_model(&self.body, alias))?;
            self.shape.model = Some(alias.model.as_ref().into());
        }
        if priority::is_told(&chosen.fleet) {
            let claimant = Claimant { class: self.class, headers: &self.head.headers };
            self.body = gateway.scan(claimant.grant(&self.body)?)?;
        }
        let relay = &chosen.fleet.relay;
        if let Some(why) = relay.speech.now().dialect.api_refusal(self.api) {
            return Err(Error::new(Kind::InvalidField, why));
        }
        relay.media.estimate(&mut self.shape);
        Ok(self)
    }

    /// The request as the relay of its fleet gets it.
    ///
    /// # Errors
    /// `InvalidField` for an API that somebody else's service does not have.
    fn received(
        self,
        gateway: &Gateway,
        chosen: &ChosenFleet,
        ledger: &mut Ledger,
    ) -> Result<ReceivedRequest, Error> {
        let ClientRequest { api, head, target, body, shape, by_body, ttft_slo, arrived, .. } = self;
        let fleet = &chosen.fleet;
        let id = ledger.id().to_owned();
        let is_named = head.headers.contains_key(headers::REQUEST_ID);
        let name = is_named.then(|| Arc::new(known_as(&fleet.relay, &id)));
        ledger.is_called(name.clone());
        let own_id = name.as_ref().map_or(&*id, |name| name.id());
        let trace = ledger.scope().cloned();
        let access = fleet.access.now();
        let (via, authorization) = (gateway.via.line(head.version), access.authorization.as_ref());
        let (mut headers, target) = match &fleet.remote {
            None => (headers::for_engine(&head.headers, own_id, via, authorization), target),
            Some(remote) => {
                let lacking = || Error::new(Kind::InvalidField, "only engines have this route");
                let target = remote.target(api).ok_or_else(lacking)?;
                (headers::for_remote(&head.headers, own_id, via, authorization), target)
            }
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        priority::remove_claim(fleet, &mut headers);
        if fleet.remote.is_none() {
            if by_body && let Some(adapter) = Adapter::of(&head.headers)? {
                adapter.onto(&mut headers, chosen.alias.as_ref().map(|alias| &*alias.model));
            }
            if let Some(scope) = &trace {
                scope.onto(&mut headers);
            }
        }
        let http2 = head.version == Version::HTTP_2;
        Ok(ReceivedRequest {
            api,
            id,
            name,
            target,
            headers,
            body,
            alias: chosen.alias.clone().map(|alias| AliasedModel { name: alias.name, model: alias.model }),
            shape,
            resume: None,
            encodings: None,
            http2,
            arrived,
            ttft_slo,
            trace,
        })
    }

    /// The model's name, as the client says it.
    pub(super) fn model(&self) -> Arc<str> {
        self.shape.model.as_deref().unwrap_or_default().into()
    }

    /// The same for another fleet, which takes the request over.
    ///
    /// # Errors
    /// `InvalidField` where that fleet can't serve it.
    pub(super) fn for_fleet(
        &self,
        gateway: &Gateway,
        chosen: &ChosenFleet,
        ledger: &mut Ledger,
    ) -> Result<ReceivedRequest, Error> {
        if chosen.fleet.remote.is_some() && self.shape.background {
            let message = "an answer in the background can't be asked for again elsewhere";
            return Err(Error::new(Kind::InvalidField, message));
        }
        self.clone().fitted(gateway, chosen)?.received(gateway, chosen, ledger)
    }
}

/// From the request to what is to be driven: read, let in, scanned, checked.
async fn prepare(
    gateway: &Gateway,
    route: Route,
    request: Request<Body>,
    ledger: &mut Ledger,
) -> Result<Prepared, Error> {
    let arrived = arrived(&request);
    let FleetTarget { target, fleet: fleet_named } = FleetTarget::read(gateway, target(&request))?;
    let (head, body) = request.into_parts();
    let caller = auth::caller(gateway, &head.extensions);
    let span = Span::since(ledger.scope(), "receive", arrived);
    let body = span.of(read_body(gateway, &caller, &head, body).await, |e| e.kind().code())?;
    let span = Span::begin(ledger.scope(), "admission", trace::Kind::Internal);
    // Looked at first: what is charged for a place is the prompt's tokens, and data has few.
    let mut body = gateway.scan(body)?;
    let tokens = media::body_tokens(&body);
    ledger.admitted(span.of(gateway.gate.enter(&caller, tokens).await, |e| e.kind().code())?);
    let by_body = matches!(route, Route::ByBody);
    if by_body && let Some(adapter) = Adapter::of(&head.headers)? {
        body = gateway.scan(adapter.within(&body))?;
    }
    let api = route.api(&body);
    ledger.is_about(api);
    let body = response_lookup::without_chosen_id(gateway, api, body)?;
    let shape = Shape::read(api, &body);
    ledger.asks(shape.model.as_deref());
    let before = response_owners::before(api, &body).map(Cow::into_owned);
    if let Some(before) = &before {
        // Few requests have it, and all would be larger by it.
        boxed(|| response_lookup::learn_from_others(gateway, before)).await;
    }
    let ties = || RequestTies { session: session_of(&head.headers, &body), response: before.as_deref() };
    let named = NamedTarget { model: shape.model.as_deref(), fleet: fleet_named.as_deref() };
    let chosen = gateway.find_fleet(&caller, named, ties).await?;
    let (fleet, relay) = (&chosen.fleet, &chosen.fleet.relay);
    ledger.is_of_fleet(&relay.meters);
    if chosen.unserved {
        gateway.meters.fell_back(&fleet.name, fallback::NO_ENGINE);
        ledger.falls_back(&relay.meters, None, fallback::NO_ENGINE);
    }
    let class = caller.grants.priority;
    let ttft_slo = ttft_slo::of(&head.headers, caller.grants.ttft_slo_ms);
    let client = ClientRequest { api, head, target, body, shape, by_body, class, ttft_slo, arrived };
    // What a response goes on from is nowhere else.
    let route = chosen.route.as_ref().filter(|route| before.is_none() && route.has_fallback());
    let spare = route.map(|route| (Box::new(client.clone()), route.clone()));
    let client = client.fitted(gateway, &chosen)?;
    let expected = TokenCounts { prompt: client.shape.prompt_tokens, output: client.shape.output_tokens };
    let reserved = auth::reserve(gateway, &caller, client.body.bytes().len(), expected)?;
    ledger.reserved(reserved, &client.shape);
    if let Some(before) = before {
        let search = ResponseSearch { gateway, caller: &caller, client: &client.head.headers };
        search.keeper_before(fleet, &before).await?;
    }
    let request = client.received(gateway, &chosen, ledger)?;
    Ok(Prepared { chosen, request, spare })
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
