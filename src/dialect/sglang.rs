//! SGLang's disaggregation: both servers get the client's body at once, each with the same
//! bootstrap server and room; the decoder's answer is the client's.
//!
//! Bodies as in SGLang's own router (`pd_router`, 2026). The prefill server ends by itself after
//! the first token, whatever the body's limits are. Neither can serve a request alone, and what a
//! prefiller has computed can be fetched by the decoder of the same room alone. Of several answers
//! each would go to that room, and all but the first wait there (0.5.18): they are refused.

use serde_json::json;

use crate::codec::json::{Edit, Object};
use crate::dialect::{Transfer, guard};

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
}
