//! The request that continues an answer.

use bytes::Bytes;

use crate::codec::json::Object;
use crate::dialect::Api;
use crate::dialect::resume::hidden_tokens;
use crate::dialect::resume::plan::KEPT;

/// vLLM's limit for a completion that sets none.
const COMPLETION_TOKENS: u64 = 16;

/// Rest of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remainder {
    /// So many tokens.
    Tokens(u64),
    /// As much as fits into the model's context.
    Context,
}

/// Rest of an answer of which `generated` tokens exist.
pub(super) fn left(api: Api, body: &Object, generated: u64) -> Remainder {
    let number = |key: &str| body.get(key).filter(|v| !v.is_null()).and_then(|v| v.as_u64());
    let most = match api {
        Api::Chat => number("max_completion_tokens").or_else(|| number("max_tokens")),
        // Its default holds where the member is absent; null asks for all that fits.
        _ if body.contains("max_tokens") => number("max_tokens"),
        _ => Some(COMPLETION_TOKENS),
    };
    most.map_or(Remainder::Context, |most| Remainder::Tokens(most.saturating_sub(generated)))
}

/// A body for `/v1/completions` that goes on from `prompt` and `generated`, of a request with this
/// `body`.
pub(super) fn continuation(
    api: Api,
    body: &Object,
    prompt: &[u32],
    generated: &[u32],
    left: Remainder,
) -> Bytes {
    let mut out = Vec::with_capacity(512 + 7 * (prompt.len() + generated.len()));
    out.extend_from_slice(b"{\"prompt\":[");
    for (i, id) in prompt.iter().chain(generated).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(id.to_string().as_bytes());
    }
    out.push(b']');
    let mut member = |key: &str, value: &[u8]| {
        out.extend_from_slice(format!(",\"{key}\":").as_bytes());
        out.extend_from_slice(value);
    };
    let stated = if api == Api::Chat { &hidden_tokens::MEMBERS[..] } else { &[] };
    for key in KEPT.into_iter().filter(|key| stated.iter().all(|(stated, _)| stated != key)) {
        if let Some(value) = body.get(key).filter(|value| !value.is_null()) {
            member(key, value.raw());
        }
    }
    stated.iter().for_each(|(key, value)| member(key, value));
    match left {
        Remainder::Tokens(tokens) => member("max_tokens", tokens.to_string().as_bytes()),
        Remainder::Context => member("max_tokens", b"null"),
    }
    if let Some(least) = body.get("min_tokens").and_then(|v| v.as_u64()) {
        let least = least.saturating_sub(generated.len() as u64);
        member("min_tokens", least.to_string().as_bytes());
    }
    out.push(b'}');
    out.into()
}
