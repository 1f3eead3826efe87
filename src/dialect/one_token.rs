//! Edits of a body whose engine is to compute the prompt and one token, and to answer at once. They
//! are the same in every dialect.

use bytes::Bytes;

use crate::codec::json::{Edit, Object};
use crate::dialect::{Api, guard};

const ONE: Bytes = Bytes::from_static(b"1");
const FALSE: Bytes = Bytes::from_static(b"false");

/// One token, not streamed, one choice; `min_tokens` too, since an engine drops the KV of an answer
/// that ends by itself.
pub(super) fn edit(api: Api, body: &Object) -> Edit {
    let edit = guard::edit().drop("stream_options").set("stream", FALSE);
    let edit = match api {
        Api::Chat | Api::Completions => {
            let edit = edit.set("max_tokens", ONE).set("min_tokens", ONE).drop("best_of");
            if body.contains("max_completion_tokens") { edit.set("max_completion_tokens", ONE) } else { edit }
        }
        Api::Messages if thinks(body) => edit.set("max_tokens", ONE).drop("thinking"),
        Api::Messages => edit.set("max_tokens", ONE),
        // A response that is stored, or computed in the background, would outlive the leg.
        Api::Responses => edit.set("max_output_tokens", ONE).set("store", FALSE).drop("background"),
        Api::Generate => return generate(body, edit),
    };
    if body.contains("n") { edit.set("n", ONE) } else { edit }
}

/// True if it has a budget of tokens to think, which must be smaller than `max_tokens` (vLLM 0.32,
/// unless `kv_transfer_params` tell that this is a prefill). It changes nothing in the prompt, as
/// `disabled` does.
fn thinks(body: &Object) -> bool {
    let kind = || body.get("thinking")?.object().ok()?.get("type")?.as_str().map(|kind| kind == "enabled");
    kind() == Some(true)
}

/// `/inference/v1/generate` keeps its limits one level deeper.
fn generate(body: &Object, edit: Edit) -> Edit {
    let limits = Edit::new().set("max_tokens", ONE).set("min_tokens", ONE).set("n", ONE);
    let spliced = match body.get("sampling_params").and_then(|v| v.object().ok()) {
        Some(params) => params.splice(&limits).to_bytes(),
        None => Bytes::from_static(br#"{"max_tokens":1,"min_tokens":1,"n":1}"#),
    };
    edit.set("sampling_params", spliced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;

    #[test]
    fn a_budget_to_think_is_not_larger_than_one_token() {
        let sent = |thinking: &str| {
            let text = format!(r#"{{"messages":[],"thinking":{thinking},"max_tokens":9}}"#);
            let body = Object::scan(text.into(), ScanLimits::default()).unwrap();
            String::from_utf8(body.splice(&edit(Api::Messages, &body)).to_bytes().to_vec()).unwrap()
        };
        let enabled = sent(r#"{"type":"enabled","budget_tokens":2048}"#);
        assert_eq!(enabled, r#"{"messages":[],"stream":false,"max_tokens":1}"#);
        assert!(sent(r#"{"type":"disabled"}"#).contains("disabled"), "it changes the prompt");
    }
}
