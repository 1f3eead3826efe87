//! vLLM's MooncakeConnector (not the store): the gateway names each transfer, and tells the decoder
//! which engine has the KV and where its bootstrap server is.
//!
//! Bodies as in vLLM 0.32's `mooncake_connector_proxy.py` and vllm-router 0.1.17. A prefiller keeps
//! the KV for `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT` (480 s); a decoder waits as long for a prefill
//! that never comes, so that it is asked only after the prefill has ended well. Each of several
//! answers would ask for the transfer, which is over with the first: a decoder makes them alone.

use bytes::Bytes;
use serde_json::json;

use crate::codec::json::{Edit, Object, ScanLimits};
use crate::dialect::prefilled::Origin;
use crate::dialect::transfer::{Peer, Transfer};
use crate::dialect::{Api, BadReply, PARAMS, PrefillAnswer, Prefilled, kv_transfer, one_token, prefilled};

/// Most data-parallel ranks behind one bootstrap server.
const MOST_RANKS: usize = 1024;

/// Path of the question to a bootstrap server.
pub const QUERY_PATH: &str = "/query";

/// The edit for the prefill leg.
pub(super) fn prefill_edit(api: Api, body: &Object, transfer: &Transfer) -> Edit {
    let ask = json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer.name()});
    one_token::edit(api, body).set(PARAMS, ask.to_string().into())
}

/// A prefiller's answer says nothing of the transfer: the hand-off is made of what is known before.
pub(super) fn read_prefill(api: Api, reply: Bytes, transfer: &Transfer) -> Result<Prefilled, BadReply> {
    let reply = prefilled::prefill_answer(api, reply)?;
    let Some(Peer::Bootstrapped { engine_ids, address }) = transfer.peer.as_deref() else {
        return Err(BadReply::Nothing);
    };
    let engine_id = engine_ids.get(usize::from(transfer.rank.unwrap_or(0))).ok_or(BadReply::Nothing)?;
    let params = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "transfer_id": transfer.name(),
        "remote_engine_id": engine_id, "remote_bootstrap_addr": format!("http://{address}"),
    });
    // Of an answer that ended by itself it keeps nothing.
    let kept = !prefilled::ended_by_itself(api, &reply);
    Ok(Prefilled {
        handoff: kept.then(|| params.to_string().into()),
        said: PrefillAnswer::by(api, reply, Origin::Known(kv_transfer::engine_hash(engine_id))),
    })
}

/// Reads what a bootstrap server answers: `{"0":{"engine_id":"…",…},…}`, keyed by data-parallel
/// rank. `None` when it is anything else, or a rank is missing.
pub fn read_query(answer: Bytes, address: String) -> Option<Peer> {
    let answer = Object::scan(answer, ScanLimits::default()).ok()?;
    let count = answer.members().count();
    if count == 0 || count > MOST_RANKS {
        return None;
    }
    let engine_id = |rank: usize| {
        let entry = answer.get(&rank.to_string())?.object().ok()?;
        entry.get("engine_id")?.as_str().map(|id| id.into_owned())
    };
    let engine_ids = (0..count).map(engine_id).collect::<Option<Vec<_>>>()?;
    Some(Peer::Bootstrapped { engine_ids, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let said = r#"{"0":{"engine_id":"e-0","worker_addr":{"0":{"0":"tcp://10.0.0.1:7"}}},"1":{"engine_id":"e-1"}}"#;
        read_query(Bytes::from_static(said.as_bytes()), "10.0.0.1:8998".to_owned()).unwrap()
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn both_legs_are_told_the_same_name_and_the_decoder_where_to_ask() {
        let transfer = Transfer { id: 1, peer: Some(peer().into()), rank: Some(1), ..Transfer::default() };
        let body = Object::scan(r#"{"prompt":"x","max_tokens":9}"#.into(), ScanLimits::default()).unwrap();
        let sent = body.splice(&prefill_edit(Api::Completions, &body, &transfer)).to_bytes();
        assert_eq!(
            text(&sent),
            r#"{"prompt":"x","stream":false,"max_tokens":1,"min_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"00000000000000000000000000000001"}}"#
        );
        let reply = Bytes::from_static(br#"{"choices":[],"kv_transfer_params":null}"#);
        let handoff = read_prefill(Api::Completions, reply, &transfer).unwrap().handoff.unwrap();
        let said: serde_json::Value = serde_json::from_slice(&handoff).unwrap();
        assert_eq!(
            said,
            json!({"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": transfer.name(),
                "remote_engine_id": "e-1", "remote_bootstrap_addr": "http://10.0.0.1:8998"})
        );
    }

    #[test]
    fn of_an_answer_that_ended_by_itself_nothing_is_kept() {
        let transfer = Transfer { id: 1, peer: Some(peer().into()), ..Transfer::default() };
        let kept = |api, reply: &'static str| {
            read_prefill(api, Bytes::from_static(reply.as_bytes()), &transfer).unwrap().handoff.is_some()
        };
        assert!(kept(Api::Completions, r#"{"choices":[{"finish_reason":"length","stop_reason":null}]}"#));
        assert!(kept(Api::Chat, r#"{"choices":[{"finish_reason":"stop"}]}"#), "a forced call");
        assert!(kept(Api::Messages, r#"{"content":[],"stop_reason":"max_tokens"}"#));
        assert!(kept(Api::Messages, r#"{"content":[],"stop_reason":"tool_use"}"#));
        assert!(!kept(Api::Completions, r#"{"choices":[{"finish_reason":"abort"}]}"#));
        assert!(!kept(Api::Chat, r#"{"choices":[{"finish_reason":"stop","stop_reason":"."}]}"#));
        assert!(!kept(Api::Messages, r#"{"content":[],"stop_reason":"end_turn"}"#));
    }

    #[test]
    fn an_engine_that_nobody_knows_is_handed_to_nobody() {
        let reply = || Bytes::from_static(br#"{"choices":[{}]}"#);
        let unknown = Transfer::default();
        assert_eq!(read_prefill(Api::Chat, reply(), &unknown), Err(BadReply::Nothing));
        let beyond = Transfer { peer: Some(peer().into()), rank: Some(2), ..Transfer::default() };
        assert_eq!(read_prefill(Api::Chat, reply(), &beyond), Err(BadReply::Nothing));
    }

    #[test]
    fn answers_that_are_no_bootstrap_servers_are_none() {
        for said in ["", "[]", "{}", r#"{"1":{"engine_id":"e"}}"#, r#"{"0":{"engine_id":7}}"#, r#"{"0":"e"}"#]
        {
            assert_eq!(read_query(said.into(), String::new()), None, "{said}");
        }
    }
}
