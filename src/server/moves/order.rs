//! The order to move an engine: read, judged, answered.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::carry_out::Errand;
use super::{Begun, Step, Turn};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::fleet::{Removal, Role};
use crate::server::fleets::ServedFleet;
use crate::server::instances::DRAIN_WAIT;
use crate::server::{Gateway, body, instances, printable, reply};

/// Bytes of an order: names and a few numbers.
const ORDER_BYTES: usize = 64 << 10;

/// Longest time for which an engine drains unless the order says another, ms: nearly all streams
/// end within it, and longer ones are worth a question to the operator.
const DRAIN_MS: u64 = 600_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    instance: String,
    to: String,
    /// Name of a fleet, where there are several.
    fleet: Option<String>,
    /// True if the last engine of a role may leave it.
    #[serde(default)]
    force: bool,
    /// Longest time for which it drains.
    #[serde(default = "drain_ms")]
    wait_ms: u64,
    /// Further members of what the engine is told, where it is told its role.
    #[serde(default)]
    switch: Map<String, Value>,
}

fn drain_ms() -> u64 {
    DRAIN_MS
}

/// Moves an engine, and answers when that has succeeded or failed.
pub(in crate::server) async fn move_engine(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Response<Body> {
    let order = match read(&gateway, request).await {
        Ok(order) => order,
        Err(refused) => return *refused,
    };
    match begin(&gateway, order).await {
        Ok(ended) => answer(&ended),
        Err(error) => reply::error(&error),
    }
}

/// A move that is over.
struct Ended {
    turn: Turn,
    step: Step,
}

async fn read(gateway: &Gateway, request: Request) -> Result<Order, Box<Response<Body>>> {
    let refuse = |e: &Error| Box::new(reply::error(e));
    let (head, body) = request.into_parts();
    if let Some(refusal) = instances::refusal(&head.extensions) {
        return Err(Box::new(refusal));
    }
    if let Some(query) = head.uri.query().filter(|query| !query.is_empty()) {
        let said = printable(query);
        let message =
            format!("`{said}` in the query: fleet, force, wait_ms and the others belong into the body");
        return Err(refuse(&Error::new(Kind::InvalidField, message)));
    }
    let body = body::read(gateway, &head, body, ORDER_BYTES).await.map_err(|e| refuse(&e))?;
    serde_json::from_slice(&body).map_err(|e| {
        let message = format!("expected {{\"instance\":\"host:port\",\"to\":\"prefill\"|\"decode\"}}: {e}");
        refuse(&Error::new(Kind::InvalidJson, message))
    })
}

/// Begins the move, or joins one that is under way, and waits for its end.
async fn begin(gateway: &Arc<Gateway>, order: Order) -> Result<Ended, Error> {
    let turn = turn(&order)?;
    if Duration::from_millis(order.wait_ms) > DRAIN_WAIT {
        let most_ms = DRAIN_WAIT.as_millis();
        let message = format!("{} is more than {most_ms}, the most", order.wait_ms);
        return Err(Error::new(Kind::InvalidField, message).param("wait_ms"));
    }
    let fleet = gateway.fleet_for_operator(order.fleet.as_deref())?;
    if fleet.serves(turn.to, &turn.engine) && !fleet.has(turn.from, &turn.engine) {
        return Ok(Ended { turn, step: Step::Joined });
    }
    let mut was_lost = false;
    let begun = fleet.moves.begin(&turn, |lost| {
        was_lost = lost && !fleet.has(turn.from, &turn.engine);
        start(&fleet, &turn, lost, order.force)
    })?;
    let mut steps = match begun {
        Begun::UnderWay(steps) => steps,
        Begun::New(step) => {
            let steps = step.subscribe();
            let errand = Errand {
                turn: turn.clone(),
                fleet,
                step,
                was_lost,
                drain: Duration::from_millis(order.wait_ms),
                switch: order.switch,
                stop: gateway.stop.clone(),
                cut: gateway.cut.clone(),
            };
            let names = gateway.clone();
            // In a task of its own: a caller that hangs up must not leave it half done.
            drop(gateway.tasks.spawn(async move {
                errand.run().await;
                names.fleets().refresh_names();
            }));
            steps
        }
    };
    let step = steps.wait_for(Step::is_end).await.map(|step| step.clone());
    let step = step.map_err(|_| Error::new(Kind::Internal, "the move could not be carried out"))?;
    Ok(Ended { turn, step })
}

/// The engine and the roles that the order names.
fn turn(order: &Order) -> Result<Turn, Error> {
    let wrong = |e| Error::new(Kind::InvalidField, format!("`{}` {e}", order.instance)).param("instance");
    let engine: Endpoint = order.instance.parse().map_err(wrong)?;
    match order.to.as_str() {
        "prefill" => Ok(Turn { engine, from: Role::Decode, to: Role::Prefill }),
        "decode" => Ok(Turn { engine, from: Role::Prefill, to: Role::Decode }),
        _ => Err(Error::new(Kind::InvalidField, "expected \"prefill\" or \"decode\"").param("to")),
    }
}

/// Takes the engine out of its old role, if it may leave it.
fn start(fleet: &ServedFleet, turn: &Turn, lost: bool, force: bool) -> Result<(), Error> {
    let Turn { engine, from, to } = turn;
    let refuse = |message: String, param| Err(Error::new(Kind::InvalidField, message).param(param));
    if fleet.has(*from, engine) && fleet.has(*to, engine) {
        let message = format!("`{engine}` is in both roles: take it out of one by /instances/remove");
        return refuse(message, "instance");
    }
    if fleet.asleep.is_ordered(engine) {
        let message = format!("`{engine}` is drained by another order (drain_ms): wait for its end");
        return refuse(message, "instance");
    }
    if fleet.asleep.has(*from, engine) {
        return refuse(format!("`{engine}` sleeps or pauses: wake it first"), "instance");
    }
    let members = fleet.relay.fleet.members(*from);
    let own = members.iter().find(|it| it.endpoint() == engine);
    if own.is_some_and(|own| !fleet.relay.fleet.has_other(*from, &[own.id()])) && !force {
        let role = from.name();
        let message = format!(
            "`{engine}` is the last engine for {role} that is not down: without it no request is served; add another one first, or say \
             \"force\": true"
        );
        return refuse(message, "force");
    }
    if fleet.relay.fleet.set_aside(*from, engine) == Removal::Unknown && !lost {
        return refuse(format!("`{engine}` is no engine for {} of this fleet", from.name()), "instance");
    }
    Ok(())
}

fn answer(ended: &Ended) -> Response<Body> {
    let Ended { turn: Turn { engine, from, to }, step } = ended;
    let (from, to) = (from.name(), to.name());
    match step {
        Step::Kept(cause) => {
            let message = format!("`{engine}` serves for {from} again, as before: {cause}");
            reply::error(&Error::new(Kind::EngineFailed, message))
        }
        Step::Lost(cause) => {
            let message = format!(
                "`{engine}` is in neither role now: {cause}; move it again, or add it where it belongs by /instances/add"
            );
            reply::error(&Error::new(Kind::EngineFailed, message))
        }
        _ => {
            let text = json!({ "instance": engine.to_string(), "from": from, "to": to, "step": step.name() });
            reply::json(StatusCode::OK, text.to_string())
        }
    }
}
