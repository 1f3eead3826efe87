//! vllm-ascend's MooncakeLayerwiseConnector: the decoder is asked first. When it has blocks for the
//! prompt it calls back and says where they are; a prefiller that is told so writes into them layer
//! by layer.
//!
//! Read in vllm-ascend: `mooncake_layerwise_connector.py` at 016aa37 and
//! `load_balance_proxy_layerwise_server_example.py` at 000bc68; lists of prompts in
//! `layerwise_push/scheduler.py` at 402cf73 and `sfa_pd_rd2h`, the connectors that read `BATCH`.
//! Consequences of that:
//!
//! * The decoder names its requests by the `X-Request-Id` of its leg ([`engine_ids`]), and knows by
//!   the same names that a prefiller is done: both legs need the same id.
//! * It repeats a call whose connection broke, up to three times, and does not look at the status
//!   of the answer.
//! * It waits for its KV without a limit of its own. Hung up on meanwhile, vLLM 0.12 and later
//!   keeps the blocks until the KV has come all the same; so a prefill that has begun had better
//!   end.
//! * A prefiller that fails half-way may have reported some of its ranks; one that takes over would
//!   be counted together with it, and the decoder would begin too early. A decoder's blocks are for
//!   one prefiller.

use bytes::Bytes;
use serde_json::json;

use crate::codec::json::{Edit, Object, ScanLimits};
use crate::dialect::shape::{self, Bypass};
use crate::dialect::{Api, PARAMS, one_token};

/// Place where decoders call back, below the gateway's own address.
pub const PATH: &str = "/v1/metaserver";

/// The member that has the parameters of each prompt of a list, by the name of its request.
const BATCH: &str = "batch_kv_transfer_params";

/// Prompts of one body beyond which it goes to a decoder alone.
const MOST_PROMPTS: usize = 1024;

/// Call of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The request that it is about, of those with this id.
    pub request_id: String,
    /// All that it said: what the prefiller is to be given, unread.
    pub params: Bytes,
}

/// Reasons why a call can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCall {
    /// It is no JSON object.
    #[error("the call is not a JSON object: {0}")]
    NotJson(String),
    /// It does not say which request it is about.
    #[error("`request_id` must be a string that is not empty")]
    RequestId,
    /// It does not ask for a prefill: as a prefiller's parameters it would be taken for something
    /// else.
    #[error("`do_remote_decode` must be true")]
    RemoteDecode,
    /// It asks the prefiller to fetch, of which vLLM's prefillers die.
    #[error("`do_remote_prefill` must not be true")]
    RemotePrefill,
}

/// Reads a decoder's call.
///
/// # Errors
/// [`BadCall`] names the member.
pub fn read_call(body: Bytes) -> Result<Call, BadCall> {
    let call = Object::scan(body, ScanLimits::default()).map_err(|e| BadCall::NotJson(e.to_string()))?;
    let request_id = call.get("request_id").and_then(|id| id.as_str().map(|id| id.into_owned()));
    let request_id = request_id.filter(|id| !id.is_empty()).ok_or(BadCall::RequestId)?;
    let flag = |name: &str| call.get(name).and_then(|value| value.as_bool());
    if flag("do_remote_decode") != Some(true) {
        return Err(BadCall::RemoteDecode);
    }
    if flag("do_remote_prefill") == Some(true) {
        return Err(BadCall::RemotePrefill);
    }
    Ok(Call { request_id, params: call.bytes().clone() })
}

/// Parameters for the decoder: its KV will come, and the address where to ask for it.
pub fn decode_params(callback_url: &str) -> Bytes {
    let params = json!({"do_remote_decode": false, "do_remote_prefill": true, "metaserver": callback_url});
    params.to_string().into()
}

/// The edit for the prefill leg, which is given what the decoder said.
pub(super) fn prefill_edit(api: Api, body: &Object, called: Option<&Bytes>) -> Edit {
    let edit = one_token::edit(api, body);
    match called {
        Some(params) => edit.set(PARAMS, params.clone()),
        None => edit,
    }
}

/// One prefiller's parameters for all of a request's prompts, in their order: those of the only one
/// as they are; of several, the first one's, and beside them all of them by name.
pub fn prefill_params(calls: &[Call]) -> Option<Bytes> {
    let (first, rest) = calls.split_first()?;
    if rest.is_empty() {
        return Some(first.params.clone());
    }
    let mut all = Vec::with_capacity(calls.iter().map(|call| call.params.len() + 64).sum());
    for (place, call) in calls.iter().enumerate() {
        all.push(if place == 0 { b'{' } else { b',' });
        all.extend_from_slice(serde_json::Value::from(call.request_id.as_str()).to_string().as_bytes());
        all.push(b':');
        all.extend_from_slice(&call.params);
    }
    all.push(b'}');
    let first = Object::scan(first.params.clone(), ScanLimits::default()).ok()?;
    Some(first.splice(&Edit::new().set(BATCH, Bytes::from(all))).to_bytes())
}

/// Names that a decoder gives to the requests that it makes of a body under `X-Request-Id: id`, one
/// for each prompt. `None` where the naming is not known.
pub fn engine_ids(api: Api, id: &str, prompts: usize) -> Option<Vec<String>> {
    match api {
        Api::Chat | Api::Messages => Some(vec![format!("chatcmpl-{id}")]),
        Api::Completions => Some((0..prompts.max(1)).map(|place| format!("cmpl-{id}-{place}")).collect()),
        Api::Responses | Api::Generate => None,
    }
}

/// Number of prompts in a body.
pub fn prompts(api: Api, body: &Object) -> usize {
    let list = body.get("prompt").filter(|_| shape::several_prompts(api, body));
    list.and_then(|list| list.array_len_capped(MOST_PROMPTS + 1)).unwrap_or(1)
}

/// Reason why a decoder must compute this request's prompt itself, `general` being why with any
/// engines. `batch`: prefillers understand lists of prompts.
pub fn bypass(api: Api, body: &Object, general: Option<Bypass>, batch: bool) -> Option<Bypass> {
    let read_as_list = batch && general == Some(Bypass::SeveralPrompts) && prompts(api, body) <= MOST_PROMPTS;
    let general = if read_as_list { shape::bypass(api, body, false) } else { general };
    general.or_else(|| match engine_ids(api, "", 1) {
        None => Some(Bypass::UnknownNames),
        Some(_) => shape::several_answers(api, body).then_some(Bypass::SeveralChoices),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Object {
        Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
    }

    fn call(id: &str, port: u16) -> Call {
        read_call(format!(r#"{{"request_id":"{id}","do_remote_decode":true,"remote_port":{port}}}"#).into())
            .unwrap()
    }

    #[test]
    fn decoder_params_are_passed_on_unchanged() {
        // All members that the connector writes (016aa37).
        let said = r#"{"token_ids": [], "request_id": "chatcmpl-x", "do_remote_prefill": false, "do_remote_decode": true,
            "remote_block_ids": [[3, 1]], "remote_block_size": [128], "remote_engine_id": "e", "remote_host": "10.0.0.2",
            "remote_port": 20001, "remote_tp_size": 4, "remote_pcp_size": 1, "remote_dcp_size": 1, "remote_cached_tokens": 128}"#;
        let call = read_call(said.into()).unwrap();
        assert_eq!((call.request_id.as_str(), &call.params[..]), ("chatcmpl-x", said.as_bytes()));
        let body =
            scan(r#"{"messages":[],"stream":true,"stream_options":{},"max_completion_tokens":9,"n":1}"#);
        let params = prefill_params(&[call]).unwrap();
        let sent = body.splice(&prefill_edit(Api::Chat, &body, Some(&params))).to_bytes();
        let rest = r#"{"messages":[],"stream":false,"max_tokens":1,"min_tokens":1,"max_completion_tokens":1,"n":1,"kv_transfer_params":"#;
        assert_eq!(std::str::from_utf8(&sent).unwrap(), format!("{rest}{said}}}"));
    }

    #[test]
    fn a_call_that_can_not_be_understood_names_the_member() {
        for (said, why) in [
            (r#"{"do_remote_decode":true}"#, BadCall::RequestId),
            (r#"{"request_id":7,"do_remote_decode":true}"#, BadCall::RequestId),
            (r#"{"request_id":"","do_remote_decode":true}"#, BadCall::RequestId),
            (r#"{"request_id":"x"}"#, BadCall::RemoteDecode),
            (r#"{"request_id":"x","do_remote_decode":1}"#, BadCall::RemoteDecode),
            (
                r#"{"request_id":"x","do_remote_decode":true,"do_remote_prefill":true}"#,
                BadCall::RemotePrefill,
            ),
        ] {
            assert_eq!(read_call(said.into()), Err(why), "{said}");
        }
        for said in ["", "[]", "null", "{"] {
            assert!(matches!(read_call(said.into()), Err(BadCall::NotJson(_))), "{said}");
        }
    }

    #[test]
    fn decoders_are_told_where_to_call() {
        assert_eq!(
            decode_params("http://10.0.0.9:8000/v1/metaserver"),
            r#"{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":"http://10.0.0.9:8000/v1/metaserver"}"#
        );
    }

    #[test]
    fn requests_are_named_as_engines_name_them() {
        assert_eq!(engine_ids(Api::Chat, "a", 1).unwrap(), ["chatcmpl-a"]);
        assert_eq!(engine_ids(Api::Messages, "a", 1).unwrap(), ["chatcmpl-a"]);
        assert_eq!(engine_ids(Api::Completions, "a", 1).unwrap(), ["cmpl-a-0"]);
        assert_eq!(engine_ids(Api::Completions, "a", 3).unwrap(), ["cmpl-a-0", "cmpl-a-1", "cmpl-a-2"]);
        assert_eq!(engine_ids(Api::Responses, "a", 1), None);
    }

    #[test]
    fn several_prompts_share_one_prefill() {
        let params = prefill_params(&[call("cmpl-a-0", 1), call("cmpl-a-1", 2)]).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&params).unwrap();
        let one =
            |id: &str, port: u16| json!({"request_id": id, "do_remote_decode": true, "remote_port": port});
        let mut all = one("cmpl-a-0", 1);
        all[BATCH] = json!({"cmpl-a-0": one("cmpl-a-0", 1), "cmpl-a-1": one("cmpl-a-1", 2)});
        assert_eq!(said, all);
        assert_eq!(prefill_params(&[]), None);
    }

    #[test]
    fn requests_that_prefillers_cannot_take_go_to_the_decoder() {
        let bypass = |api, text: &str, batch| {
            let body = scan(text);
            bypass(api, &body, shape::bypass(api, &body, true), batch)
        };
        let list = r#"{"prompt":["a","b"]}"#;
        assert_eq!(bypass(Api::Completions, list, false), Some(Bypass::SeveralPrompts));
        assert_eq!(bypass(Api::Completions, list, true), None);
        assert_eq!(prompts(Api::Completions, &scan(list)), 2);
        assert_eq!(prompts(Api::Completions, &scan(r#"{"prompt":[1,2,3]}"#)), 1);
        assert_eq!(prompts(Api::Completions, &scan(r#"{"prompt":["a"]}"#)), 1);
        let many = format!(r#"{{"prompt":[{}"x"]}}"#, r#""x","#.repeat(MOST_PROMPTS));
        assert_eq!(bypass(Api::Completions, &many, true), Some(Bypass::SeveralPrompts));
        let scores = r#"{"prompt":["a","b"],"prompt_logprobs":1}"#;
        assert_eq!(bypass(Api::Completions, scores, true), Some(Bypass::PromptScores));
        assert_eq!(bypass(Api::Chat, r#"{"messages":[],"n":2}"#, true), Some(Bypass::SeveralChoices));
        assert_eq!(bypass(Api::Completions, r#"{"best_of":3}"#, true), Some(Bypass::SeveralChoices));
        assert_eq!(bypass(Api::Chat, r#"{"messages":[],"n":1}"#, true), None);
        assert_eq!(bypass(Api::Responses, r#"{"input":"x"}"#, true), Some(Bypass::UnknownNames));
    }
}
