//! vLLM's MoRIIOConnector in READ mode (`read_mode`): the decoder reads what the prefiller's answer
//! says, by a name that is given here.
//!
//! Read in vLLM 0.32.0 (`moriio_connector.py`, `moriio_common.py`) and its
//! `moriio_toy_proxy_server.py`:
//!
//! * The prefiller's answer has all that the decoder needs (`remote_host`, `remote_handshake_port`,
//!   `remote_notify_port`, engine id, blocks, ranks, `transfer_id`) and is handed over as it is;
//!   addresses in the request's id, which the example puts there, are another way to say the same,
//!   and registration at the proxy (`proxy_ip`) is not needed.
//! * A decoder takes every request for one whose KV is elsewhere, told so or not, and would compute
//!   nothing of its prompt: none is sent to it without a hand-off.
//! * One read ends the prefiller's keeping, so that a second answer (`n`) would read what may be
//!   another's by then: it is refused here.
//! * The prefiller keeps blocks for `defer_timeout` (60 s), then frees them: `engine.lease_ms`
//!   should be that.
//!
//! WRITE, the connector's default, is not spoken. It wants both legs at once and the decoder's
//! address, ports and sizes in the prefiller's leg; and a decoder whose prefiller fails waits in a
//! state which only the prefiller's word ends.

use bytes::Bytes;
use serde_json::json;

use crate::codec::json::{Edit, Object};
use crate::dialect::prefilled::{BadReply, Prefilled};
use crate::dialect::transfer::Transfer;
use crate::dialect::{Api, PARAMS, kv_transfer, one_token};

/// The edit for the prefill leg.
pub(super) fn prefill_edit(api: Api, body: &Object, transfer: &Transfer) -> Edit {
    let ask = json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null, "remote_block_ids": null,
        "transfer_id": format!("tx-{}", transfer.name()),
    });
    one_token::edit(api, body).set(PARAMS, ask.to_string().into())
}

/// Reads a prefiller's 200.
pub(super) fn read_prefill(api: Api, reply: Bytes) -> Result<Prefilled, BadReply> {
    let prefilled = kv_transfer::read_prefill(api, reply)?;
    // One that does not say that there is KV to fetch makes a decoder wait for ever, as none does.
    match prefilled.said.params().and_then(|params| params.get("do_remote_prefill")?.as_bool()) {
        Some(true) => Ok(prefilled),
        _ => Err(BadReply::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;
    use crate::dialect::{Bypass, Dialect, Shape};

    fn scan(text: &str) -> Object {
        Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
    }

    #[test]
    fn the_prefiller_is_given_a_name_and_its_word_is_handed_over_as_it_is() {
        let transfer = Transfer { id: 10, ..Transfer::default() };
        let body = scan(r#"{"prompt":"x","max_tokens":9}"#);
        let sent = body.splice(&prefill_edit(Api::Completions, &body, &transfer)).to_bytes();
        assert_eq!(
            std::str::from_utf8(&sent).unwrap(),
            r#"{"prompt":"x","stream":false,"max_tokens":1,"min_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-0000000000000000000000000000000a"}}"#
        );
        // As `request_finished` of vLLM 0.32.0 makes it.
        let word = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"10.0.0.1:6301","remote_host":"10.0.0.1","remote_handshake_port":6301,"remote_notify_port":61005,"remote_dp_rank":0,"remote_dp_rank_override":true,"remote_dp_size":1,"remote_dp_size_local":1,"tp_size":8,"transfer_id":"tx-a"}"#;
        let reply = format!(r#"{{"choices":[],"kv_transfer_params":{word}}}"#);
        assert_eq!(read_prefill(Api::Completions, reply.into()).unwrap().handoff.unwrap(), word);
        let odd = r#"{"kv_transfer_params":{"odd":true}}"#;
        for nothing in [r#"{"choices":[{}]}"#, r#"{"kv_transfer_params":null}"#, odd] {
            assert_eq!(read_prefill(Api::Completions, nothing.into()), Err(BadReply::Nothing));
        }
    }

    #[test]
    fn requests_for_several_answers_bypass_the_prefill() {
        let why = |api, text| {
            let body = scan(text);
            Dialect::Moriio.bypass(api, &body, &Shape::read(api, &body), false)
        };
        assert_eq!(why(Api::Completions, r#"{"prompt":"a","n":1,"best_of":null}"#), None);
        assert_eq!(why(Api::Responses, "{}"), None);
        assert_eq!(why(Api::Chat, r#"{"n":2}"#), Some(Bypass::SeveralChoices));
        assert_eq!(why(Api::Generate, r#"{"sampling_params":{"n":2}}"#), Some(Bypass::SeveralChoices));
        assert_eq!(
            why(Api::Completions, r#"{"prompt":"a","prompt_logprobs":1}"#),
            Some(Bypass::PromptScores)
        );
    }
}
