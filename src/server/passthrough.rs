//! Requests that one engine alone answers: embeddings, tokenising, versions.

use std::pin::pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use http::request::Parts as Head;
use http::uri::PathAndQuery;
use http::{HeaderMap, header};
use tokio::time::Instant;

use crate::auth::Caller;
use crate::error::{Error, Kind};
use crate::fleet::{InstanceId, Reservation, Role};
use crate::relay::box_in_place::boxed;
use crate::relay::idle_timeout::IdleTimeout;
use crate::relay::response_owners::{self, AliasedModel};
use crate::relay::shutdown;
use crate::server::cut::unless_cut;
use crate::server::every_engine::FleetTarget;
use crate::server::fallback::{self, FleetChange, Hops, NO_ENGINE};
use crate::server::fleets::{ChosenFleet, ModelAlias, ModelRoute, ServedFleet};
use crate::server::one_engine::{Answer, EngineRequest, try_roles};
use crate::server::passthrough_accounting::PassthroughAccount;
use crate::server::passthrough_body::PassthroughBody;
use crate::server::payload::Payload;
use crate::server::plain_path::is_plain;
use crate::server::priority::{self, Claimant};
use crate::server::response_lookup::{self, KeptResponse, ResponseSearch};
use crate::server::stream_end::StreamEnd;
use crate::server::table::{self, Passage, Stored};
use crate::server::{Gateway, alias_answer, auth, body, csrf, headers, openai, reply};

/// Has one engine answer the request, as `passage` says, and passes its answer on.
pub(super) async fn serve(
    gateway: &Gateway,
    kind: table::Body,
    passage: Passage,
    request: Request,
) -> Response {
    let id = headers::request_id(request.headers().get(headers::REQUEST_ID));
    let caller = auth::caller(gateway, request.extensions());
    let (arrived, api) = (openai::arrived(&request), reply::api_at(request.uri().path()));
    let stream_api = reply::stream_api_at(request.uri().path());
    let mut account = PassthroughAccount::open(gateway.meters.clone(), id.clone(), arrived, caller.clone());
    account.traced(gateway.span(&request, &id, arrived));
    let routed = RoutedRequest { kind, passage, request, arrived };
    let answered = unless_cut(&gateway.meters, pin!(run(gateway, routed, &mut account))).await;
    let mut response = match answered.unwrap_or_else(|| Err(shutdown())) {
        Ok(FleetAnswer { answer, reservation, chosen, until }) => {
            account.answers(answer.status());
            let end = StreamEnd::of(answer.headers(), stream_api);
            answer.map(|body| {
                let ChosenFleet { fleet, alias, .. } = chosen;
                let silence = IdleTimeout::new(fleet.relay.settings.now().gap, until);
                let passed = PassthroughBody::new(body, silence, fleet.relay.clone(), account, reservation);
                let body = axum::body::Body::new(passed.with_end(end));
                match alias {
                    Some(alias) => alias_answer::renamed_stream(body, &alias),
                    None => body,
                }
            })
        }
        Err(e) => {
            let response = reply::error_under(gateway.edge.now().overload_status, api, &e);
            account.refused(&e, response.status());
            // What is left to its caller is told below.
            drop(account);
            response
        }
    };
    auth::tell_limits(&caller, response.headers_mut());
    reply::tell_id(&mut response, api, &id);
    response
}

/// A request, and what the table of routes says of it.
struct RoutedRequest {
    kind: table::Body,
    passage: Passage,
    request: Request,
    arrived: Instant,
}

/// An answer, and the fleet whose engine gave it.
struct FleetAnswer {
    answer: Answer,
    reservation: Reservation,
    chosen: ChosenFleet,
    /// Time at which the answer must be over.
    until: Instant,
}

/// A request on its way to a fleet, as its client sent it.
struct ClientRequest {
    head: Head,
    target: PathAndQuery,
    payload: Payload,
    passage: Passage,
    arrived: Instant,
}

/// The fleet that was chosen for a request, and what it failed with.
struct FirstFailure {
    fleet: Arc<ServedFleet>,
    error: Error,
}

/// Payload as one fleet takes it, and the engine that keeps what it is about.
struct FittedPayload {
    payload: Payload,
    keeper: Option<InstanceId>,
}

/// Place of the stored response that a request is about.
#[derive(Default)]
struct StoredPlace {
    /// Id of the response, if the request names one.
    id: Option<String>,
    /// Fleet and engine that keep it, of an id in the path.
    kept: Option<KeptResponse>,
}

async fn run(
    gateway: &Gateway,
    RoutedRequest { kind, passage, request, arrived }: RoutedRequest,
    account: &mut PassthroughAccount,
) -> Result<FleetAnswer, Error> {
    let FleetTarget { target, fleet: named } = FleetTarget::read(gateway, openai::target(&request))?;
    let (head, body) = request.into_parts();
    if !is_plain(target.path()) {
        let message = "the path has dot segments or encoded slashes, which no route of an engine has";
        return Err(Error::new(Kind::UnknownUrl, message));
    }
    if let Some(fleet) = gateway.fleets().single() {
        check_generates(fleet, &passage)?;
    }
    let caller = auth::caller(gateway, &head.extensions);
    check(gateway, &caller, &head)?;
    let body = body::read(gateway, &head, body, gateway.edge.now().body_bytes).await?;
    let payload = Payload::read(gateway, kind, &head.headers, body)?;
    account.admitted(gateway.gate.enter(&caller, payload.tokens()).await?);
    let id = stored_response(passage.stored, target.path(), &payload);
    if let Some(id) = &id {
        boxed(|| response_lookup::learn_from_others(gateway, id)).await;
    }
    let search = ResponseSearch { gateway, caller: &caller, client: &head.headers };
    let kept = match &id {
        Some(id) if passage.stored == Stored::InPath => Some(search.keeper_anywhere(id).await?),
        _ => None,
    };
    let stored = StoredPlace { id, kept };
    let chosen = match (&stored.kept, &stored.id) {
        (Some(kept), Some(id)) if !payload.names_model() => {
            check_keeper(gateway, &kept.fleet, named.as_deref())?;
            let alias = kept.fleet.relay.kept.alias(id);
            let alias = alias.map(|AliasedModel { name, model }| ModelAlias { name, model });
            ChosenFleet { alias, ..ChosenFleet::known(kept.fleet.clone()) }
        }
        _ => payload.find_fleet(gateway, &caller, named.as_deref()).await?,
    };
    let request = ClientRequest { head, target, payload, passage, arrived };
    request.ask_chosen(gateway, chosen, stored, account).await
}

impl ClientRequest {
    /// Asks the fleet that was chosen, and where it fails those that take over.
    async fn ask_chosen(
        &self,
        gateway: &Gateway,
        chosen: ChosenFleet,
        stored: StoredPlace,
        account: &mut PassthroughAccount,
    ) -> Result<FleetAnswer, Error> {
        account.is_of_fleet(&chosen.fleet.relay.meters);
        if chosen.unserved {
            gateway.meters.fell_back(&chosen.fleet.name, NO_ENGINE);
            account.falls_back(None, NO_ENGINE);
        }
        let payload = self.payload_for(gateway, &chosen)?;
        let caller = auth::caller(gateway, &self.head.extensions);
        if let Some((reserved, expected)) = payload.allow(gateway, &caller, &self.passage)? {
            account.reserved(reserved, expected);
        }
        let search = ResponseSearch { gateway, caller: &caller, client: &self.head.headers };
        let keeper = match (&stored.kept, &stored.id) {
            (Some(kept), _) => kept.keeper,
            (None, Some(id)) => {
                let headers = engine_headers(gateway, &chosen.fleet, &self.head, account);
                ResponseSearch { client: &headers, ..search }.keeper(&chosen.fleet, id).await?
            }
            (None, None) => None,
        };
        // What is stored is nowhere else, and what may have begun is not begun again.
        let route = chosen.route.clone().filter(|_| stored.id.is_none() && self.is_repeatable());
        let route = route.filter(|route| route.has_fallback());
        let first = chosen.fleet.clone();
        let error = match self.ask(gateway, chosen, FittedPayload { payload, keeper }, account).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match route {
            Some(route) => {
                let first = FirstFailure { fleet: first, error };
                Box::pin(self.fall_back(gateway, &route, first, account)).await
            }
            None => Err(error),
        }
    }

    /// Asks the fleets that take over, one after another. The error is that of the first, unless
    /// another one is overloaded.
    async fn fall_back(
        &self,
        gateway: &Gateway,
        route: &Arc<ModelRoute>,
        first: FirstFailure,
        account: &mut PassthroughAccount,
    ) -> Result<FleetAnswer, Error> {
        let FirstFailure { fleet: first, mut error } = first;
        let said = self.payload.model().unwrap_or_default();
        let (mut from, mut latest) = (first.clone(), error.clone());
        let mut hops = Hops::default();
        for next in route.after(&first, said.into()) {
            let Some(reason) = fallback::reason(&latest) else { break };
            let Ok(payload) = self.payload_for(gateway, &next) else { continue };
            if next.fleet.remote.as_ref().is_some_and(|it| it.target_of(self.target.path()).is_none()) {
                continue;
            }
            hops.add(&from, reason);
            let to = next.fleet.clone();
            fallback::note(&FleetChange { id: account.id(), from: &from, to: &to, reason }, &latest);
            account.falls_back(Some(&from.name), reason);
            account.is_of_fleet(&to.relay.meters);
            match self.ask(gateway, next, FittedPayload { payload, keeper: None }, account).await {
                Ok(mut answer) => {
                    hops.name_in(answer.answer.headers_mut(), &to);
                    return Ok(answer);
                }
                Err(other) => {
                    error = error.or(&other);
                    latest = other;
                }
            }
            from = to;
        }
        Err(error.routed(&hops.to(&from)))
    }

    fn is_repeatable(&self) -> bool {
        self.passage.repeatable || self.head.method.is_safe()
    }

    /// The payload as engines of a fleet take it.
    fn payload_for(&self, gateway: &Gateway, chosen: &ChosenFleet) -> Result<Payload, Error> {
        check_generates(&chosen.fleet, &self.passage)?;
        let payload = match chosen.alias.as_ref().filter(|_| self.payload.names_model()) {
            Some(alias) => self.payload.clone().with_model(gateway, alias)?,
            None => self.payload.clone(),
        };
        let caller = auth::caller(gateway, &self.head.extensions);
        let claimant = Claimant { class: caller.grants.priority, headers: &self.head.headers };
        match payload {
            Payload::Json(body) if priority::is_told(&chosen.fleet) => {
                let body = match self.passage.generates || claimant.claims(&body) {
                    true => gateway.scan(claimant.grant(&body)?)?,
                    false => body,
                };
                Ok(Payload::Json(body))
            }
            payload => Ok(payload),
        }
    }

    /// Asks engines of one fleet.
    async fn ask(
        &self,
        gateway: &Gateway,
        chosen: ChosenFleet,
        FittedPayload { payload, keeper }: FittedPayload,
        account: &mut PassthroughAccount,
    ) -> Result<FleetAnswer, Error> {
        let relay = &chosen.fleet.relay;
        let until = self.arrived + relay.settings.now().total;
        let remote = chosen.fleet.remote.as_ref();
        let target = match remote {
            Some(remote) => remote.target_of(self.target.path()).ok_or_else(only_engines)?,
            None => self.target.clone(),
        };
        // Nobody else has what the keeper has: a prefiller's 404 would be taken for the last word.
        let roles = if keeper.is_some() { &[Role::Decode] } else { self.passage.roles };
        let engine_request = EngineRequest {
            repeatable: self.is_repeatable(),
            generates: self.passage.generates,
            method: self.head.method.clone(),
            target,
            headers: engine_headers(gateway, &chosen.fleet, &self.head, account),
            tokens: payload.tokens(),
            model: payload.model(),
            body: payload.into_parts(),
            keeper,
            until,
            trace: account.scope().cloned().filter(|_| remote.is_none()),
        };
        account.counts(relay.budget.asked());
        let asked = try_roles(relay, roles, &engine_request, account).await;
        let Some(_) = &chosen.route else {
            let (answer, reservation) = asked?;
            return Ok(FleetAnswer { answer, reservation, chosen, until });
        };
        let (mut answer, reservation) = asked.map_err(|error| error.routed(&chosen.fleet.name))?;
        fallback::name_route(answer.headers_mut(), &chosen.fleet.name);
        Ok(FleetAnswer { answer, reservation, chosen, until })
    }
}

/// Refuses a request about a stored response whose query names another fleet than `keeper`.
fn check_keeper(gateway: &Gateway, keeper: &Arc<ServedFleet>, named: Option<&str>) -> Result<(), Error> {
    let Some(named) = named else { return Ok(()) };
    if Arc::ptr_eq(&gateway.fleet_for_operator(Some(named))?, keeper) {
        return Ok(());
    }
    let message = format!("the response is of the fleet `{}`: leave ?fleet= out", keeper.name);
    Err(Error::new(Kind::InvalidField, message).param("fleet"))
}

/// The refusal of a route that only engines have, where no fleet with engines serves the model.
fn only_engines() -> Error {
    Error::new(Kind::NoPrefiller, "no engine serves this model now").param("model")
}

/// Turns a request away that would be refused with any body.
fn check(gateway: &Gateway, caller: &Caller, head: &Head) -> Result<(), Error> {
    if !head.method.is_safe() {
        csrf::check(gateway, &head.uri, &head.headers)?;
    }
    auth::check_budget(gateway, caller, &head.headers)?;
    gateway.gate.check(caller)
}

/// The stored response that a request names.
fn stored_response(stored: Stored, path: &str, payload: &Payload) -> Option<String> {
    match stored {
        Stored::InPath => response_owners::id_in(path).map(str::to_owned),
        Stored::InBody => payload.goes_on_from(),
        Stored::Nowhere => None,
    }
}

/// Refuses what one engine must generate alone where its fleet's dialect has none that can.
fn check_generates(fleet: &ServedFleet, passage: &Passage) -> Result<(), Error> {
    let dialect = fleet.relay.speech.now().dialect;
    if passage.generates && !dialect.decodes_alone() {
        return Err(Error::new(Kind::InvalidField, dialect.lone_decoder_refusal()));
    }
    Ok(())
}

/// The headers for an engine. Where engines read a request's id as more than a name, they get one
/// that no client chose.
fn engine_headers(
    gateway: &Gateway,
    fleet: &ServedFleet,
    head: &Head,
    account: &PassthroughAccount,
) -> HeaderMap {
    let access = fleet.access.now();
    let dialect = fleet.relay.speech.now().dialect;
    let own = dialect.reads_request_ids().then(|| uuid::Uuid::new_v4().to_string());
    let id = own.as_deref().unwrap_or(account.id());
    let (via, authorization) = (gateway.via.line(head.version), access.authorization.as_ref());
    let mut headers = match fleet.remote {
        Some(_) => headers::for_remote(&head.headers, id, via, authorization),
        None => headers::for_engine(&head.headers, id, via, authorization),
    };
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    priority::remove_claim(fleet, &mut headers);
    if let Some(scope) = account.scope().filter(|_| fleet.remote.is_none()) {
        scope.onto(&mut headers);
    }
    headers
}
