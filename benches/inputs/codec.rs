//! Request bodies and events for the benches.

use bytes::Bytes;
use pd_proxy::codec::json::Edit;

/// A chat request of about `len_bytes`: turns of English prose with an escape every line.
pub(crate) fn chat(len_bytes: usize) -> Bytes {
    let turn = r#"{"role":"user","content":"#.to_owned()
        + "\""
        + &r#"Consider the following passage, and tell me what the \"author\" means by it.\n"#.repeat(12)
        + "\"}";
    let turns = vec![turn.as_str(); (len_bytes / turn.len()).max(1)].join(", ");
    let head =
        r#"{"model":"some/model","stream":true,"stream_options":{"include_usage":true},"max_tokens":512"#;
    Bytes::from(format!("{head},\"messages\":[{turns}],\"temperature\":0.7,\"user\":\"someone\"}}"))
}

/// A completion request of about `len_bytes` of token ids.
pub(crate) fn token_ids(len_bytes: usize) -> Bytes {
    let ids = (0..len_bytes / 6).map(|id| (10_000 + id % 90_000).to_string()).collect::<Vec<_>>().join(",");
    Bytes::from(format!("{{\"model\":\"some/model\",\"prompt\":[{ids}],\"max_tokens\":512}}"))
}

/// Edit of a body that goes to a prefiller.
pub(crate) fn prefill_edit() -> Edit {
    let one = || Bytes::from_static(b"1");
    let edit = Edit::dropping(&["stream_options", "max_completion_tokens"], &["bootstrap_"]);
    let edit =
        edit.set("stream", Bytes::from_static(b"false")).set("max_tokens", one()).set("min_tokens", one());
    edit.set(
        "kv_transfer_params",
        Bytes::from_static(br#"{"do_remote_decode":true,"do_remote_prefill":false}"#),
    )
}

/// An event of a stream, about as long as those of vLLM.
pub(crate) fn event() -> String {
    format!(
        "data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(150)
    )
}
