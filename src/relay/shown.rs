//! Checks that a client has been shown all the text of its answer's tokens. An engine's tokenizer
//! is asked, which holds nothing back.

use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use serde_json::{Value, json};

use crate::codec::json::{Edit, Object, ScanLimits};
use crate::dialect::resume::Proof;
use crate::fleet::{InstanceId, Need, Role};
use crate::relay::Relay;
use crate::relay::ask::ReceivedRequest;
use crate::upstream::{Written, collect};
use crate::util::rng;

/// An engine that lives answers within milliseconds; the client waits for it in the middle of its
/// answer. One of each role is asked.
const PATIENCE: Duration = Duration::from_secs(1);
/// Room for the text of a few tokens.
const ANSWER_BYTES: usize = 64 << 10;

/// State of a stream's text at its client, before a continuation.
pub(super) enum ShownText {
    /// The client has all of it.
    All,
    /// A part may be held back.
    Held,
    /// No engine answered.
    Unknown,
}

impl Relay {
    /// Asks an engine other than `tried`, if there is one, about the continuation `ask`.
    pub(super) async fn shows(&self, ask: &ReceivedRequest, proof: &Proof, tried: InstanceId) -> ShownText {
        // Prefillers tokenise alike.
        for role in [Role::Decode, Role::Prefill] {
            let need = Need { tokens: 0, tried: &[tried], random: rng::random(), ..Need::default() };
            let Some(reservation) = self.fleet.pick(role, need) else { continue };
            let Some(question) = question(ask, &proof.ids) else { return ShownText::Unknown };
            let text = async {
                let answer =
                    self.upstream.send(question.leg(&reservation, &Edit::new()), &Written::default()).await;
                text(collect(answer.ok()?.into_body(), ANSWER_BYTES).await.ok()?)
            };
            if let Ok(Some(text)) = tokio::time::timeout(PATIENCE, text).await {
                return if proof.holds(&text) { ShownText::All } else { ShownText::Held };
            }
        }
        ShownText::Unknown
    }
}

/// As vLLM's `/detokenize` has it (0.5 to 0.32).
fn question(ask: &ReceivedRequest, ids: &[u32]) -> Option<ReceivedRequest> {
    let mut body = json!({ "tokens": ids });
    if let Some(model) = &ask.shape.model {
        body["model"] = model.as_str().into();
    }
    let body = Object::scan(body.to_string().into(), ScanLimits::default()).ok()?;
    Some(ask.instead(PathAndQuery::from_static("/detokenize"), body))
}

fn text(answer: Bytes) -> Option<String> {
    let answer: Value = serde_json::from_slice(&answer).ok()?;
    answer.get("prompt")?.as_str().map(str::to_owned)
}
