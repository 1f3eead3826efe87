//! Readiness of the gateway: whether a request has a chance, and if not, why.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::fleet::Role;
use crate::fleet::health::EngineState;
use crate::server::fleets::ServedFleet;
use crate::server::{Gateway, reply};

/// Answers 200 if a request has a chance, else 503 with the reason. Anybody may ask, so it names no
/// engine. Of several fleets one that is ready is enough: those of the others are refused each by
/// themselves, and would be by any other gateway as well.
pub(super) async fn ready(State(gateway): State<Arc<Gateway>>) -> Response<Body> {
    let (prefill, decode) = gateway.serving();
    let reason = gateway.not_ready();
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut text = json!({
        "ready": reason.is_none(),
        "reason": reason,
        "state": gateway.state().name(),
        "prefill": gateway.role_state(Role::Prefill).name(),
        "decode": gateway.role_state(Role::Decode).name(),
        "prefill_instances": prefill,
        "decode_instances": decode,
    });
    let fleets = gateway.fleets();
    if fleets.single().is_none() {
        text["fleets"] = fleets.iter().map(|fleet| (fleet.name.to_string(), readiness(fleet))).collect();
    }
    reply::json(status, text.to_string())
}

/// Readiness of one fleet of several.
fn readiness(fleet: &ServedFleet) -> Value {
    let reason = fleet.not_ready();
    json!({
        "ready": reason.is_none(),
        "reason": reason,
        "state": fleet.state().name(),
        "prefill_instances": fleet.relay.fleet.serving(Role::Prefill),
        "decode_instances": fleet.relay.fleet.serving(Role::Decode),
    })
}

/// States from the gravest to the best.
const GRAVEST_FIRST: [EngineState; 5] =
    [EngineState::Down, EngineState::Draining, EngineState::Unknown, EngineState::Degraded, EngineState::Up];

impl Gateway {
    /// The reason why no request should come here; `None` if the gateway is ready.
    pub fn not_ready(&self) -> Option<String> {
        if self.leaves() {
            return Some("the gateway is shutting down".to_owned());
        }
        let fleets = self.fleets();
        if let Some(only) = fleets.single() {
            return only.not_ready();
        }
        let reasons: Option<Vec<String>> =
            fleets.iter().map(|fleet| Some(format!("{}: {}", fleet.name, fleet.not_ready()?))).collect();
        reasons.map(|reasons| reasons.join("; "))
    }

    /// State of the gateway: that of its fleet. Of several, `degraded` where they differ.
    pub fn state(&self) -> EngineState {
        if self.leaves() {
            return EngineState::Draining;
        }
        state_of_several(self.fleets().iter().map(|fleet| fleet.state()))
    }

    /// State of a role, likewise.
    pub(super) fn role_state(&self, role: Role) -> EngineState {
        state_of_several(self.fleets().iter().map(|fleet| fleet.relay.fleet.state_counts(role).role()))
    }

    /// True if the gateway takes its leave: connections get no further requests after the one that
    /// they have.
    pub(super) fn leaves(&self) -> bool {
        self.ending.is_cancelled() || self.stop.is_cancelled()
    }
}

/// The state that all have, or else `degraded`.
pub(super) fn state_of_several(mut states: impl Iterator<Item = EngineState>) -> EngineState {
    let first = states.next().unwrap_or(EngineState::Down);
    if states.all(|state| state == first) { first } else { EngineState::Degraded }
}

impl ServedFleet {
    /// The reason why no request for this fleet has a chance; `None` if it is ready.
    pub fn not_ready(&self) -> Option<String> {
        let fleet = &self.relay.fleet;
        let lacking = self.required_roles().iter().filter(|role| !fleet.may_serve(**role));
        let reasons: Vec<String> = lacking.map(|role| self.lack(*role)).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// State of the fleet: that of the role that is worst off, of those that a request needs.
    pub fn state(&self) -> EngineState {
        let roles = self.required_roles().iter();
        let states: Vec<_> = roles.map(|role| self.relay.fleet.state_counts(*role).role()).collect();
        GRAVEST_FIRST.into_iter().find(|state| states.contains(state)).unwrap_or(EngineState::Up)
    }

    /// Roles that a request must have an engine of.
    fn required_roles(&self) -> &'static [Role] {
        let relay = &self.relay;
        let without_prefiller =
            relay.settings.now().skip.without_prefiller && relay.speech.now().dialect.decodes_alone();
        if without_prefiller { &[Role::Decode] } else { &[Role::Prefill, Role::Decode] }
    }

    fn refuse_the_key(&self, role: Role) -> bool {
        let members = self.relay.fleet.members(role);
        members.iter().filter(|it| !it.draining()).all(|it| it.health().refuses_our_key())
    }

    fn lack(&self, role: Role) -> String {
        let counts = self.relay.fleet.state_counts(role);
        let (who, all, down) = (role.who(), counts.serving(), counts.down);
        match counts.role() {
            EngineState::Draining => format!("every {who} is draining"),
            EngineState::Down if all == 0 => match self.asleep.count(role) {
                0 => format!("there is no {who}"),
                1 => format!("there is no {who}: 1 is asleep by order"),
                more => format!("there is no {who}: {more} are asleep by order"),
            },
            EngineState::Down if self.refuse_the_key(role) => {
                format!("every {who} refuses the gateway's key: see engine.api_key, and the log")
            }
            EngineState::Down => format!("every {who} is down ({down} of {all})"),
            _ if down > 0 => format!("no {who} has answered yet ({all} are known, {down} of them down)"),
            _ => format!("no {who} has answered yet ({all} known)"),
        }
    }
}
