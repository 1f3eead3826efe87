//! One engine after another, until one has answered a request that needs no other.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::codec::json::Parts;
use crate::error::{Error, Kind};
use crate::fleet::{InstanceId, Need, Outcome, Pace, Reservation, Role};
use crate::relay::failure::{self, FailureKind};
use crate::relay::progress::Waiting;
use crate::relay::refusals::{doubts, is_busy, is_of_the_gateway, retry_after};
use crate::relay::{Relay, answer, traced};
use crate::server::begun::BegunBody;
use crate::server::passthrough_accounting::PassthroughAccount;
use crate::server::refusal_votes::RefusalVotes;
use crate::trace::Scope;
use crate::upstream::{Leg, Written};
use crate::util::rng;

/// A request on its way to one engine.
pub(super) struct EngineRequest {
    pub(super) method: Method,
    pub(super) target: PathAndQuery,
    pub(super) headers: HeaderMap,
    pub(super) body: Parts,
    pub(super) tokens: u64,
    /// The model that it asks for, as engines know it.
    pub(super) model: Option<String>,
    /// Engine that keeps the response that it is about.
    pub(super) keeper: Option<InstanceId>,
    /// Asking twice does no harm.
    pub(super) repeatable: bool,
    /// Its engine generates, for a time that does not follow from the prompt's length.
    pub(super) generates: bool,
    pub(super) until: Instant,
    pub(super) trace: Option<Arc<Scope>>,
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

    /// Somebody else's API refused the gateway itself: no word for the client.
    fn of_the_gateway(status: StatusCode) -> Failure {
        let error = Error::new(Kind::EngineFailed, "the API that was asked refuses the gateway");
        let error = error.detail(format!("it answers with status {}", status.as_u16()));
        Failure { error, again: false, reason: Some("refused") }
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

/// Asks the engines of one role after the other, until one has answered: first those of a role that
/// has the model, and of one that is not down.
pub(super) async fn try_roles(
    relay: &Arc<Relay>,
    roles: &[Role],
    engine_request: &EngineRequest,
    account: &mut PassthroughAccount,
) -> Result<(Answer, Reservation), Error> {
    let mut last = Failure::nobody();
    let model = engine_request.model.as_deref();
    let mut order: SmallVec<[Role; 2]> = roles.iter().copied().collect();
    order.sort_by_key(|role| (!relay.fleet.may_have_model(*role, model), !relay.fleet.is_open(*role)));
    for role in order {
        match try_role(relay, role, engine_request, account, last).await {
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
    let lacking = relay.fleet.lacking_model(role, engine_request.model.as_deref());
    let mut tried: Vec<InstanceId> = lacking.to_vec();
    let mut refusal_votes = RefusalVotes::default();
    // One request at a time finds out if an engine is back, and asks one alone.
    let trial = match relay.admit_to(role).await {
        Ok(trial) => trial,
        Err(error) if last.reason.is_none() => return Err(Failure { error, ..last }),
        Err(_) => return Err(last),
    };
    for _ in 0..relay.settings.now().attempts {
        let (tokens, keeper) = (engine_request.tokens, engine_request.keeper);
        if keeper.is_some_and(|keeper| tried.contains(&keeper)) {
            break;
        }
        let avoided = relay.fleet.chosen_last(role, &tried, &lacking);
        let need = Need { tokens, tried: avoided, random: rng::random(), keeper, ..Need::default() };
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
                if relay.is_remote && is_of_the_gateway(answer.answer.status()) {
                    return Err(Failure::of_the_gateway(answer.answer.status()));
                }
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
        if trial.is_some() {
            break;
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
            Err(failure) => {
                let mut ended = Failure::of(&failure, &reservation, engine_request.repeatable);
                if failure.busy() {
                    ended.error = relay.as_busy_engines_say(engine.role(), ended.error);
                }
                Err(ended)
            }
        },
    }
}
