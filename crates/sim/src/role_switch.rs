//! `POST /pd_role_switch` of SGLang: a server that is at rest takes the other role.
//!
//! Preconditions, their order and words, and `safe_to_restore` are those of SGLang's
//! `srt/disaggregation/role_switch.py` (<https://github.com/sgl-project/sglang/pull/28403>). A
//! switch that breaks leaves a server that is neither: it refuses each further one until it is
//! restarted. Not simulated: the memory of CUDA graphs, and the time that a switch takes.

use http::Response;
use serde_json::{Value, json};

use super::fail::ApiFailure;
use super::http::respond;
use super::hub::Hub;
use super::spec::{Connector, Role, RoleSwitch};
use super::sse::Body;

/// Path of the order.
pub const PATH: &str = "/pd_role_switch";

/// Role of a server now.
#[derive(Clone, Copy, Debug)]
pub struct RoleState {
    /// The role that it serves in.
    pub role: Role,
    /// True once a switch has broken.
    pub is_broken: bool,
}

/// Refusal of an order.
struct Refusal {
    message: String,
    /// True if the server is as it was.
    is_safe: bool,
}

fn safe(message: impl Into<String>) -> Refusal {
    Refusal { message: message.into(), is_safe: true }
}

fn unsafe_to_restore(message: &str) -> Refusal {
    Refusal { message: message.to_owned(), is_safe: false }
}

/// SGLang's name of a role (`DisaggregationMode`).
#[must_use]
pub fn name(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both => "null",
    }
}

/// Answers the order.
///
/// # Errors
/// 404 where the release has no such route.
pub fn answer(hub: &Hub, body: &Value) -> Result<Response<Body>, ApiFailure> {
    if hub.spec.connector != Connector::Sglang || hub.spec.role_switch == RoleSwitch::Absent {
        return Err(ApiFailure::detail(404, "Not Found"));
    }
    let wanted = body.get("new_role").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let mut state = hub.role_state();
    let old = name(state.role);
    let (status, message, is_safe) = match switch(hub, &mut state, &wanted, body) {
        Ok(message) => (200, message.to_owned(), false),
        Err(Refusal { message, is_safe }) => (400, message, is_safe),
    };
    let said = json!({
        "success": status == 200, "message": message, "old_role": old, "new_role": wanted, "safe_to_restore": is_safe,
    });
    Ok(respond(status, "application/json", said.to_string().into()))
}

/// Takes the role, and returns the message of that.
fn switch(hub: &Hub, state: &mut RoleState, wanted: &str, body: &Value) -> Result<&'static str, Refusal> {
    if hub.spec.role_switch == RoleSwitch::Disabled {
        return Err(safe("--enable-pd-role-switch is not set on this instance"));
    }
    if state.is_broken {
        return Err(unsafe_to_restore("instance is unhealthy after a failed role switch; restart required"));
    }
    let role = match wanted {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        _ => return Err(safe(format!("invalid new_role='{wanted}'"))),
    };
    if state.role == Role::Both {
        return Err(safe("instance is not running in PD disaggregation mode"));
    }
    if state.role == role {
        return Ok("already in target role");
    }
    let ledger = hub.ledger();
    if ledger.running + ledger.waiting + ledger.pinned_handoffs > 0 {
        return Err(safe("instance is not idle; drain all requests before switching"));
    }
    let graphs_gb = body.get("decode_cuda_graph_memory_gb").and_then(Value::as_f64);
    if role == Role::Decode && graphs_gb.is_some_and(|gb| gb < 0.0) {
        return Err(safe("decode_cuda_graph_memory_gb must be non-negative"));
    }
    // The new role finds nothing of what was computed for the old one.
    hub.with(|core, _| core.reset_cache());
    if hub.spec.role_switch == RoleSwitch::Breaks {
        state.is_broken = true;
        return Err(unsafe_to_restore("role switch failed; instance unhealthy, restart required: scripted"));
    }
    state.role = role;
    Ok("ok")
}
