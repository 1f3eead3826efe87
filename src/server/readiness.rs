//! Readiness of the gateway: whether a request has a chance, and if not, why.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{Response, StatusCode};
use serde_json::json;

use crate::fleet::Role;
use crate::fleet::health::EngineState;
use crate::server::{Gateway, reply};

/// Answers 200 if a request has a chance, else 503 with the reason. Anybody may ask, so it names no
/// engine.
pub(super) async fn ready(State(gateway): State<Arc<Gateway>>) -> Response<Body> {
    let (prefill, decode) = gateway.serving();
    let reason = gateway.not_ready();
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let state = |role| gateway.relay.fleet.state_counts(role).role().name();
    let text = json!({
        "ready": reason.is_none(),
        "reason": reason,
        "state": gateway.state().name(),
        "prefill": state(Role::Prefill),
        "decode": state(Role::Decode),
        "prefill_instances": prefill,
        "decode_instances": decode,
    });
    reply::json(status, text.to_string())
}

impl Gateway {
    /// The reason why no request should come here; `None` if the gateway is ready.
    pub fn not_ready(&self) -> Option<String> {
        if self.leaves() {
            return Some("the gateway is shutting down".to_owned());
        }
        let fleet = &self.relay.fleet;
        let lacking = self.required_roles().iter().filter(|role| !fleet.may_serve(**role));
        let reasons: Vec<String> = lacking.map(|role| self.lack(*role)).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// The model that requests must name, if any.
    pub fn model(&self) -> Option<String> {
        self.edge.now().model.clone()
    }

    /// State of the gateway: that of the role that is worst off, of those that a request needs.
    pub fn state(&self) -> EngineState {
        if self.leaves() {
            return EngineState::Draining;
        }
        let roles = self.required_roles().iter();
        let states: Vec<_> = roles.map(|role| self.relay.fleet.state_counts(*role).role()).collect();
        let gravest = [EngineState::Down, EngineState::Draining, EngineState::Unknown, EngineState::Degraded];
        gravest.into_iter().find(|state| states.contains(state)).unwrap_or(EngineState::Up)
    }

    fn leaves(&self) -> bool {
        self.ending.is_cancelled() || self.stop.is_cancelled()
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
            EngineState::Down if all == 0 => format!("there is no {who}"),
            EngineState::Down if self.refuse_the_key(role) => {
                format!("every {who} refuses the gateway's key: see engine.api_key, and the log")
            }
            EngineState::Down => format!("every {who} is down ({down} of {all})"),
            _ if down > 0 => format!("no {who} has answered yet ({all} are known, {down} of them down)"),
            _ => format!("no {who} has answered yet ({all} known)"),
        }
    }
}
