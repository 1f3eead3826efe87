//! vLLM's NixlPushConnector: the prefiller writes into the decoder's memory, so that the decoder
//! had better be there first.
//!
//! Facts of vLLM 0.32.0. The decoder needs of the prefiller only what is the same in all its
//! answers; the two requests find each other by their `X-Request-Id` and must be of the same kind.
//! The first answer of a prefiller is waited for, and teaches that; from then on both legs are sent
//! at once. A decoder whose prefill never comes waits for `push_registration_timeout` (480 s); hung
//! up on meanwhile it keeps the blocks until the KV has come (vLLM issue 46283), so that a prefill
//! that has begun had better end. One without `remote_request_id` dies.
//!
//! Engines name responses themselves (`resp_`, and something random), whatever the header says: two
//! of them would never find each other. Nor would several answers, each of which the decoder has
//! another name for (`0_cmpl-…`). A decoder answers both alone.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, ScanLimits};

/// A standing hand-off made of one prefiller's answer; `None` when the answer is not of this
/// connector.
pub(super) fn standing(handoff: &Bytes) -> Option<Bytes> {
    // Most hand-offs are of others, and looked at once for each request.
    memchr::memmem::find(handoff, b"\"push\"")?;
    let handoff = Object::scan(handoff.clone(), ScanLimits::default()).ok()?;
    let text = |key: &str| handoff.get(key).is_some_and(|value| value.is_string());
    let pushes = handoff.get("transfer_mode")?.as_str()? == "push";
    if !pushes || !text("remote_engine_id") || !text("remote_host") || handoff.get("remote_port").is_none() {
        return None;
    }
    let edit = Edit::new()
        .drop("remote_num_tokens")
        .drop("remote_prefill_cached_tokens")
        .drop("remote_blocks_expiry_time")
        .set("remote_request_id", Bytes::from_static(b"\"\""))
        .set("remote_block_ids", Bytes::from_static(b"[]"));
    Some(handoff.splice(&edit).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_params_keep_what_all_answers_share() {
        let answer = br#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"cmpl-a-0-11223344","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":40,"transfer_mode":"push","remote_prefill_cached_tokens":0}"#;
        let standing = standing(&Bytes::from_static(answer)).unwrap();
        assert_eq!(
            std::str::from_utf8(&standing).unwrap(),
            r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"transfer_mode":"push","remote_request_id":"","remote_block_ids":[]}"#
        );
    }

    #[test]
    fn pull_mode_or_missing_address_gives_no_standing_params() {
        for said in [
            r#"{"transfer_mode":"pull","remote_engine_id":"e","remote_host":"h","remote_port":1}"#,
            r#"{"remote_engine_id":"e","remote_host":"h","remote_port":1}"#,
            r#"{"transfer_mode":"push","remote_host":"h","remote_port":1}"#,
            r#"{"transfer_mode":"push","remote_engine_id":"e","remote_port":1}"#,
            "[]",
        ] {
            assert_eq!(standing(&Bytes::from_static(said.as_bytes())), None, "{said}");
        }
    }
}
