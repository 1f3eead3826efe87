//! SGLang's disaggregation: both servers get the client's body at once, each with the same
//! bootstrap server and room; the decoder's answer is the client's.
//!
//! Bodies as in SGLang's own router (`pd_router`, 2026). The prefill server ends by itself after
//! the first token, whatever the body's limits are. Neither can serve a request alone, and what a
//! prefiller has computed can be fetched by the decoder of the same room alone. Of several answers
//! each would go to that room, and all but the first wait there (0.5.18): they are refused.

use serde_json::{Map, Value, json};

use crate::codec::json::{Edit, Object};
use crate::dialect::{Transfer, guard};

/// Route by which a server takes another role (`--enable-pd-role-switch`).
pub const SWITCH_PATH: &str = "/pd_role_switch";

/// Outcome of the order to take another role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switched {
    /// The server has the role.
    Done,
    /// The server refused before it changed anything.
    Unchanged(String),
    /// Nobody knows which role it has: it may need a restart.
    Unknown(String),
}

/// Body of the order to take a role. `further` may have `decode_cuda_graph_memory_gb`, without
/// which a server that has captured no graphs for decoding does not turn to it.
pub fn switch_body(role: &str, further: Map<String, Value>) -> String {
    let mut body = further;
    body.insert("new_role".to_owned(), role.into());
    Value::from(body).to_string()
}

/// Reads the answer: `{"success", "message", "old_role", "new_role", "safe_to_restore"}`, the last
/// one in newer releases, with status 400 for a refusal. A server without the route answers 404.
pub fn read_switch(status: u16, body: &[u8]) -> Switched {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let is = |name: &str| answer.get(name).and_then(Value::as_bool) == Some(true);
    if status == 200 && is("success") {
        return Switched::Done;
    }
    let message = answer.get("message").and_then(Value::as_str).unwrap_or("no reason was told");
    let why = format!("status {status}: {message}");
    if is("safe_to_restore") || matches!(status, 404 | 405) {
        return Switched::Unchanged(why);
    }
    Switched::Unknown(why)
}

/// Edit that both bodies have in common.
fn meet(transfer: &Transfer) -> Edit {
    let (host, port) = transfer.bootstrap.clone().unwrap_or_default();
    guard::edit()
        .set("bootstrap_host", json!(host).to_string().into())
        .set("bootstrap_port", port.to_string().into())
        .set("bootstrap_room", transfer.room().to_string().into())
}

/// The edit for the prefill leg. Nobody reads its text, so that it need not be streamed.
pub(super) fn prefill_edit(body: &Object, transfer: &Transfer) -> Edit {
    let edit = meet(transfer);
    if body.contains("stream") {
        edit.set("stream", b"false".as_slice().into()).drop("stream_options")
    } else {
        edit
    }
}

/// The edit for the decode leg.
pub(super) fn decode_edit(transfer: &Transfer) -> Edit {
    meet(transfer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;

    #[test]
    fn both_servers_are_sent_to_the_same_room() {
        let transfer =
            Transfer { id: 41, bootstrap: Some(("10.0.0.1".to_owned(), 8998)), ..Transfer::default() };
        let sent = r#"{"messages":[],"bootstrap_room":7,"stream":true,"stream_options":{},"max_tokens":9}"#;
        let body = Object::scan(sent.into(), ScanLimits::default()).unwrap();
        let text = |edit: &Edit| String::from_utf8(body.splice(edit).to_bytes().to_vec()).unwrap();
        assert_eq!(
            text(&prefill_edit(&body, &transfer)),
            r#"{"messages":[],"max_tokens":9,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":20,"stream":false}"#
        );
        assert_eq!(
            text(&decode_edit(&transfer)),
            r#"{"messages":[],"stream":true,"stream_options":{},"max_tokens":9,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":20}"#
        );
    }

    /// Answers as SGLang writes them (`srt/disaggregation/role_switch.py`).
    #[test]
    fn role_switch_tells_if_the_server_is_as_it_was() {
        let read = |status: u16, text: &str| read_switch(status, text.as_bytes());
        let done = r#"{"success":true,"message":"ok","old_role":"prefill","new_role":"decode"}"#;
        assert_eq!(read(200, done), Switched::Done);
        let busy = r#"{"success":false,"message":"instance is not idle; drain all requests before switching","old_role":"prefill","new_role":"decode","safe_to_restore":true}"#;
        assert!(matches!(read(400, busy), Switched::Unchanged(why) if why.contains("not idle")));
        let broken = r#"{"success":false,"message":"role switch failed; instance unhealthy, restart required: x","old_role":"prefill","new_role":"decode","safe_to_restore":false}"#;
        assert!(matches!(read(400, broken), Switched::Unknown(why) if why.contains("restart required")));
        assert!(matches!(read(404, r#"{"detail":"Not Found"}"#), Switched::Unchanged(_)));
        assert!(matches!(read(500, "x"), Switched::Unknown(_)));
        let further = serde_json::from_str(r#"{"decode_cuda_graph_memory_gb":2.5,"new_role":"x"}"#).unwrap();
        let body: Value = serde_json::from_str(&switch_body("decode", further)).unwrap();
        assert_eq!(body, json!({"decode_cuda_graph_memory_gb": 2.5, "new_role": "decode"}));
    }
}
