//! vLLM's P2pNcclConnector: the two engines learn each other's addresses from the request's id, and
//! nothing is handed over.
//!
//! Read in vLLM's `p2p_nccl_connector.py` and `p2p_nccl_engine.py` (up to 0.31; gone in 0.32), its
//! proxy `disagg_proxy_p2p_nccl_xpyd.py` and vllm-router, which writes the same id. What follows
//! from it:
//!
//! * The id is `___prefill_addr_{kv}___decode_addr_{kv}_{uuid}` on both legs, where `kv` is
//!   `kv_ip:kv_port` of an engine's first rank. The decoder must be known before the prefill, which
//!   pushes to it (`send_type` PUT, PUT_ASYNC), or keeps the KV for it (GET).
//! * Both engines must make the same names of that id. From vLLM 0.14 on they add a random end to
//!   it unless both are started with `VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1`. A decoder without
//!   the right name waits for ever, and all else on it too. The same where there is no prefill at
//!   all, and for each answer beyond the first (`n`): those are refused here.
//! * So the decoder is asked only when the prefill has ended well. One that failed in doubt may
//!   have pushed a part, which stays in the decoder's buffer until its end: asking for it would
//!   stop the decoder.
//! * What was pushed is freed when a request of that name ends on that very decoder. A client that
//!   leaves between the two has it asked for one token.
//! * In GET the prefiller forgets what is oldest when its buffer is full (`kv_buffer_size`), and
//!   where there is no memory a push brings nothing; the decoder then answers from KV that never
//!   came. No proxy can see that.
//!
//! Addresses are configured; engines' registration by ZeroMQ (`proxy_ip`, `proxy_port`) is not
//! heard.

/// The id of one attempt by two engines with these addresses. A number of ours ends it: the
/// connector reads the last `:digits` in it as a port.
pub fn request_id(prefiller: &str, decoder: &str, id: u128) -> String {
    format!("___prefill_addr_{prefiller}___decode_addr_{decoder}_{id:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::{Object, ScanLimits};
    use crate::dialect::{Api, Bypass, Dialect, Shape};

    /// vLLM's `parse_request_id`: `___decode_addr_(.*):(\d+)` and `___prefill_addr_(.*):(\d+)___`,
    /// both greedy.
    fn read(id: &str, is_prefill: bool) -> Option<(&str, u16)> {
        let (_, rest) = id.split_once(if is_prefill { "___decode_addr_" } else { "___prefill_addr_" })?;
        let rest = if is_prefill { rest } else { &rest[..rest.rfind("___")?] };
        let (host, port) = rest.rsplit_once(':')?;
        let digits = port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len());
        Some((host, port[..digits].parse().ok()?))
    }

    #[test]
    fn each_engine_finds_the_other_in_the_id() {
        let id = request_id("10.0.0.1:21001", "[fd00::2]:22001", 0xabc);
        assert_eq!(
            id,
            "___prefill_addr_10.0.0.1:21001___decode_addr_[fd00::2]:22001_00000000000000000000000000000abc"
        );
        for name in [format!("cmpl-{id}-0"), format!("chatcmpl-{id}")] {
            assert_eq!(read(&name, true), Some(("[fd00::2]", 22001)));
            assert_eq!(read(&name, false), Some(("10.0.0.1", 21001)));
        }
    }

    #[test]
    fn what_would_stop_a_decoder_is_seen() {
        let why = |api, text: &str| {
            let body = Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap();
            Dialect::P2pNccl.bypass(api, &body, &Shape::read(api, &body), false)
        };
        assert_eq!(why(Api::Completions, r#"{"prompt":"a","n":1}"#), None);
        assert_eq!(why(Api::Messages, r#"{"messages":[]}"#), None);
        assert_eq!(why(Api::Chat, r#"{"messages":[],"n":2}"#), Some(Bypass::SeveralChoices));
        assert_eq!(why(Api::Completions, r#"{"prompt":["a","b"]}"#), Some(Bypass::SeveralPrompts));
        for api in [Api::Responses, Api::Generate] {
            assert_eq!(why(api, "{}"), Some(Bypass::UnknownNames));
        }
    }
}
