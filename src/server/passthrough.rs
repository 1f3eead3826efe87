//! Requests that one engine alone answers: embeddings, tokenising, versions.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use http::request::Parts as Head;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode, header};
use tokio::time::Instant;

use crate::auth::Caller;
use crate::codec::json::Parts;
use crate::error::{Error, Kind};
use crate::fleet::{InstanceId, Need, Outcome, Pace, Reservation, Role};
use crate::relay::failure::{self, FailureKind};
use crate::relay::idle_timeout::IdleTimeout;
use crate::relay::progress::Waiting;
use crate::relay::refusals::{doubts, is_busy, retry_after};
use crate::relay::response_owners::{self, AliasedModel};
use crate::relay::{Relay, answer, traced};
use crate::server::begun::BegunBody;
use crate::server::every_engine::{FleetQuery, named_fleet};
use crate::server::fleets::{ChosenFleet, ModelAlias, ServedFleet};
use crate::server::passthrough_accounting::PassthroughAccount;
use crate::server::passthrough_body::PassthroughBody;
use crate::server::payload::Payload;
use crate::server::plain_path::is_plain;
use crate::server::refusal_votes::RefusalVotes;
use crate::server::response_lookup::ResponseSearch;
use crate::server::stream_end::StreamEnd;
use crate::server::table::{self, Passage, Stored};
use crate::server::{Gateway, alias_answer, auth, body, csrf, headers, openai, reply};
use crate::trace::Scope;
use crate::upstream::{Leg, Written};
use crate::util::rng;

/// A request on its way to one engine.
struct EngineRequest {
    method: Method,
    target: PathAndQuery,
    headers: HeaderMap,
    body: Parts,
    tokens: u64,
    /// The model that it asks for, as engines know it.
    model: Option<String>,
    /// Engine that keeps the response that it is about.
    keeper: Option<InstanceId>,
    /// Asking twice does no harm.
    repeatable: bool,
    /// Its engine generates, for a time that does not follow from the prompt's length.
    generates: bool,
    until: Instant,
    trace: Option<Arc<Scope>>,
}

impl EngineRequest {
    /// The request on the engine of `reservation`, compared with others there if it can move to
    /// another engine: those that generate with their own kind, the others with prompts.
    fn waiting_on<'a>(&self, reservation: &'a Reservation, is_moved: bool) -> Waiting<'a> {
        let may_move = self.repeatable && self.keeper.is_none();
        let pace = if self.generates { Pace::Alone } else { Pace::Prompt };
        Waiting { is_moved, ..Waiting::on(reservation.instance(), may_move.then_some(pace), self.tokens) }
    }
}

/// One engine's turn at a request.
struct Attempt {
    reservation: Reservation,
    /// The engine before it did nothing with the request.
    is_moved: bool,
}

/// Reason why one engine did not answer.
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

    /// An engine refused, and another one is to confirm that.
    fn unconfirmed() -> Failure {
        Failure { reason: Some("refused"), ..Failure::nobody() }
    }

    /// The engine of `reservation` failed like this. `safe`: asking twice does no harm.
    fn of(failure: &failure::Failure, reservation: &Reservation, safe: bool) -> Failure {
        let (kind, public) = match (failure.busy(), failure.why, reservation.instance().role()) {
            (true, ..) => (Kind::Overloaded, "all engines that were asked are busy"),
            (_, FailureKind::Timeout, Role::Prefill) => {
                (Kind::PrefillTimeout, "the engine did not answer in time")
            }
            (_, FailureKind::Timeout, _) => (Kind::DecodeTimeout, "the engine did not answer in time"),
            _ => (Kind::EngineFailed, "no engine answered"),
        };
        let again = match failure.why {
            FailureKind::Timeout => false,
            // What an engine may have begun is not begun a second time.
            FailureKind::Connect | FailureKind::Broken | FailureKind::Stuck => !failure.written || safe,
            _ => true,
        };
        let error = Error::new(kind, public).detail(format!(
            "{}: {}",
            reservation.instance().endpoint(),
            failure.detail
        ));
        Failure { error, again, reason: Some(failure.reason()) }
    }
}

pub(super) type Answer = http::Response<BegunBody>;

/// An engine's answer, unread, with the reservation on which it was given.
pub(super) struct EngineAnswer {
    /// Head, and the body that has begun.
    pub(super) answer: Answer,
    /// Place at the engine.
    pub(super) reservation: Reservation,
    /// True if it is a refusal that may be the engine's own trouble.
    pub(super) is_doubtful: bool,
}

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
    let mut account = PassthroughAccount::open(gateway.meters.clone(), id.clone(), arrived, caller.clone());
    account.traced(gateway.span(&request, &id, arrived));
    let routed = RoutedRequest { kind, passage, request, arrived };
    let mut response = match run(gateway, routed, &mut account).await {
        Ok(FleetAnswer { answer, reservation, chosen, until }) => {
            account.answers(answer.status());
            let end = StreamEnd::of(answer.headers());
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

async fn run(
    gateway: &Gateway,
    RoutedRequest { kind, passage, request, arrived }: RoutedRequest,
    account: &mut PassthroughAccount,
) -> Result<FleetAnswer, Error> {
    let (target, fleet) = without_fleet(gateway, openai::target(&request));
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
    let mut payload = Payload::read(gateway, kind, &head.headers, body)?;
    account.admitted(gateway.gate.enter(&caller, payload.tokens()).await?);
    let search = ResponseSearch { gateway, caller: &caller, client: &head.headers };
    let stored = stored_response(passage.stored, target.path(), &payload);
    let kept = match &stored {
        Some(id) if passage.stored == Stored::InPath => Some(search.keeper_anywhere(id).await?),
        _ => None,
    };
    let chosen = match &kept {
        Some(kept) if !payload.names_model() => {
            let alias = stored.as_deref().and_then(|id| kept.fleet.relay.kept.alias(id));
            let alias = alias.map(|AliasedModel { name, model }| ModelAlias { name, model });
            ChosenFleet { alias, ..ChosenFleet::known(kept.fleet.clone()) }
        }
        _ => payload.choose_fleet(gateway, &caller, fleet.as_deref())?,
    };
    let (fleet, relay) = (&chosen.fleet, &chosen.fleet.relay);
    account.is_of_fleet(&relay.meters);
    check_generates(fleet, &passage)?;
    if let Some(alias) = chosen.alias.as_ref().filter(|_| payload.names_model()) {
        payload = payload.with_model(gateway, alias)?;
    }
    if let Some((reserved, expected)) = payload.allow(gateway, &caller, &passage)? {
        account.reserved(reserved, expected);
    }
    let headers = engine_headers(gateway, fleet, &head, account);
    let keeper = match (&kept, &stored) {
        (Some(kept), _) => kept.keeper,
        (None, Some(id)) => ResponseSearch { client: &headers, ..search }.keeper(fleet, id).await?,
        (None, None) => None,
    };
    let until = arrived + relay.settings.now().total;
    // Nobody else has what the keeper has: a prefiller's 404 would be taken for the last word.
    let roles = if keeper.is_some() { &[Role::Decode] } else { passage.roles };
    let engine_request = EngineRequest {
        repeatable: passage.repeatable || head.method.is_safe(),
        generates: passage.generates,
        method: head.method,
        target,
        headers,
        tokens: payload.tokens(),
        model: payload.model(),
        body: payload.into_parts(),
        keeper,
        until,
        trace: account.scope().cloned(),
    };
    account.counts(relay.budget.asked());
    let (answer, reservation) = try_roles(relay, roles, &engine_request, account).await?;
    Ok(FleetAnswer { answer, reservation, chosen, until })
}

/// Path and query without the fleet that it names, and its name, where there are several fleets.
fn without_fleet(gateway: &Gateway, target: PathAndQuery) -> (PathAndQuery, Option<String>) {
    let query = target.query().filter(|_| gateway.fleets().single().is_none());
    let Some(FleetQuery { fleet: Some(fleet), rest }) = query.map(named_fleet) else { return (target, None) };
    let text = if rest.is_empty() { target.path().to_owned() } else { format!("{}?{rest}", target.path()) };
    (text.parse().unwrap_or(target), Some(fleet))
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

/// Asks the engines of one role after the other, until one has answered.
async fn try_roles(
    relay: &Arc<Relay>,
    roles: &[Role],
    engine_request: &EngineRequest,
    account: &mut PassthroughAccount,
) -> Result<(Answer, Reservation), Error> {
    let mut last = Failure::nobody();
    for role in roles {
        match try_role(relay, *role, engine_request, account, last).await {
            Ok(answered) => return Ok(answered),
            Err(failure) => {
                let again = failure.again;
                last = failure;
                if !again {
                    break;
                }
            }
        }
    }
    Err(last.error)
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
    let mut headers = headers::for_engine(&head.headers, id, via, authorization);
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    if let Some(scope) = account.scope() {
        scope.onto(&mut headers);
    }
    headers
}

/// Asks the engines of one role. `last` is what came of those asked before: whoever is asked after
/// them is a retry. What one alone has nobody else is asked for, whose 404 would be taken for the
/// last word.
async fn try_role(
    relay: &Arc<Relay>,
    role: Role,
    engine_request: &EngineRequest,
    account: &mut PassthroughAccount,
    mut last: Failure,
) -> Result<(Answer, Reservation), Failure> {
    let mut tried: Vec<InstanceId> =
        relay.fleet.lacking_model(role, engine_request.model.as_deref()).to_vec();
    let mut refusal_votes = RefusalVotes::default();
    for _ in 0..relay.settings.now().attempts {
        let (tokens, keeper) = (engine_request.tokens, engine_request.keeper);
        if keeper.is_some_and(|keeper| tried.contains(&keeper)) {
            break;
        }
        let need = Need { tokens, tried: &tried, random: rng::random(), keeper, ..Need::default() };
        let Some(reservation) = relay.fleet.pick(role, need) else {
            break;
        };
        if let Some(reason) = last.reason {
            if !relay.budget.allows() {
                relay.meters.retry_denied(role.name());
                last.again = false;
                break;
            }
            relay.meters.retry(role.name(), reason);
        }
        tried.push(reservation.instance().id());
        account.leg(reservation.instance());
        let is_moved = last.reason == Some(FailureKind::Stuck.name());
        let attempt = Attempt { reservation, is_moved };
        match once(relay, engine_request, account.id(), attempt).await {
            Ok(answer) => {
                let alone = keeper.is_some() || !relay.fleet.has_other(role, &tried);
                match refusal_votes.weigh(relay, account.id(), answer, alone) {
                    Some(EngineAnswer { answer, reservation, .. }) => {
                        return Ok((cleaned(answer), reservation));
                    }
                    None => last = Failure::unconfirmed(),
                }
            }
            Err(failure) if failure.again => last = failure,
            Err(failure) => return Err(failure),
        }
    }
    let standing = refusal_votes.conclude(relay).filter(|_| last.error.kind() != Kind::Overloaded);
    standing.map(|it| (cleaned(it.answer), it.reservation)).ok_or(last)
}

/// The answer without what concerns the engine's connection alone. Where an engine is, is nobody's
/// business: no redirect of its own leads to it.
fn cleaned(mut answer: Answer) -> Answer {
    answer::strip_hop_by_hop(answer.headers_mut());
    answer
}

async fn once(
    relay: &Arc<Relay>,
    engine_request: &EngineRequest,
    id: &str,
    Attempt { reservation, is_moved }: Attempt,
) -> Result<EngineAnswer, Failure> {
    let EngineRequest { trace, method, target, .. } = engine_request;
    let mut span = traced::client(trace.as_ref(), reservation.instance(), "errand", method, target.path());
    let mut leg = Leg {
        instance: reservation.instance(),
        method: method.clone(),
        target,
        headers: Cow::Borrowed(&engine_request.headers),
        body: engine_request.body.clone(),
    };
    span.onto(&mut leg.headers);
    let written = Written::default();
    let failed = |why, detail: String| Err(failure::Failure::new(why, written.get(), detail));
    let settings = relay.settings.now();
    let time = settings.computing(settings.answer, engine_request.tokens);
    let answered = async {
        let response = relay.send(leg, &engine_request.headers, &written).await?;
        match response.status() {
            // vLLM answers 501 for what a model can't do: the same everywhere, and for the client
            // to read.
            StatusCode::NOT_IMPLEMENTED => {}
            status if is_busy(status) => {
                let spare = retry_after(response.headers());
                let detail = format!("status {}", status.as_u16());
                return failed(FailureKind::Busy(status), detail)
                    .map_err(|busy| failure::Failure { spare, ..busy });
            }
            status if status.is_server_error() => {
                return failed(FailureKind::Status, format!("status {}", status.as_u16()));
            }
            _ => {}
        }
        let (head, body) = response.into_parts();
        match BegunBody::begin(body).await {
            Ok(body) => Ok(http::Response::from_parts(head, body)),
            Err(e) => failed(FailureKind::Broken, e.to_string()),
        }
    };
    let limit = time.min(engine_request.until.saturating_duration_since(Instant::now()));
    let waiting = engine_request.waiting_on(&reservation, is_moved);
    let sent = Instant::now();
    let outcome = relay.within(limit, waiting, &written, pin!(answered)).await;
    match &outcome {
        Ok(response) => {
            if engine_request.generates && response.status().is_success() {
                reservation.instance().paces().observe(Pace::Alone, sent.elapsed());
            }
            traced::answered(&mut span, response.status());
        }
        Err(failure) => span.fail(failure.reason()),
    }
    span.close();
    judge_outcome(relay, engine_request, id, outcome, reservation)
}

/// Books what came of a request on one engine, and tells if a refusal may be that engine's own
/// trouble.
fn judge_outcome(
    relay: &Relay,
    engine_request: &EngineRequest,
    id: &str,
    outcome: Result<Answer, failure::Failure>,
    reservation: Reservation,
) -> Result<EngineAnswer, Failure> {
    let engine = reservation.instance();
    let refused = match &outcome {
        Ok(answer) => Some(answer.status()).filter(StatusCode::is_client_error),
        Err(failure) => failure.turned_away_with().filter(StatusCode::is_client_error),
    };
    if let Some(status) = refused {
        engine.meter().refused(status.as_u16());
    }
    match (outcome, refused) {
        (Ok(answer), Some(status)) => {
            let is_doubtful = doubts(status, engine);
            relay.fleet.report(engine, if is_doubtful { Outcome::Refused } else { Outcome::Declined });
            Ok(EngineAnswer { answer, reservation, is_doubtful })
        }
        (outcome, _) => match relay.record_outcome_of(id, engine, outcome) {
            Ok(answer) => Ok(EngineAnswer { answer, reservation, is_doubtful: false }),
            Err(failure) => Err(Failure::of(&failure, &reservation, engine_request.repeatable)),
        },
    }
}
