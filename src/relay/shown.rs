//! Checks that a client has been shown all the text of its answer's tokens, by an engine's
//! tokenizer, which holds nothing back. Asks its renderer if the rest shows special tokens.

use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use serde_json::{Value, json};

use crate::codec::json::{Edit, Object, ScanLimits};
use crate::dialect::resume::{Proof, special_tokens};
use crate::fleet::{InstanceId, Need, Role};
use crate::relay::Relay;
use crate::relay::ask::ReceivedRequest;
use crate::upstream::{Written, collect};
use crate::util::rng;

/// An engine that lives answers within milliseconds; the client waits for it in the middle of its
/// answer. One of each role is asked.
const PATIENCE: Duration = Duration::from_secs(1);
/// Room for the text of a few tokens, or the ids of a short chat.
const ANSWER_BYTES: usize = 64 << 10;
/// Route of vLLM 0.32 and later that tells what a chat is generated from, behind
/// `--enable-scale-out`.
const RENDER: &str = "/v1/chat/completions/render";

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
    /// Asks an engine other than `tried`, if there is one, about the continuation of `ask`.
    pub(super) async fn shows(&self, ask: &ReceivedRequest, proof: &Proof, tried: InstanceId) -> ShownText {
        let Some(question) = detokenizing(ask, &proof.ids) else { return ShownText::Unknown };
        // Prefillers tokenise alike.
        for role in [Role::Decode, Role::Prefill] {
            if let Some(text) = self.ask_one(role, &question, tried).await.and_then(text) {
                return if proof.holds(&text) { ShownText::All } else { ShownText::Held };
            }
        }
        ShownText::Unknown
    }

    /// Asks a decoder other than `tried`, if there is one, for the value of `skip_special_tokens`
    /// that holds for the chat `ask`. `None`: it does not tell. Prefillers may have other parsers.
    pub(super) async fn skips_special_tokens(
        &self,
        ask: &ReceivedRequest,
        tried: InstanceId,
    ) -> Option<bool> {
        let body = Object::scan(special_tokens::question(&ask.body), ScanLimits::default()).ok()?;
        let question = ask.instead(PathAndQuery::from_static(RENDER), body);
        special_tokens::told(self.ask_one(Role::Decode, &question, tried).await?)
    }

    /// The answer of one engine; `None` where it has none in time.
    async fn ask_one(&self, role: Role, question: &ReceivedRequest, tried: InstanceId) -> Option<Bytes> {
        let need = Need { tokens: 0, tried: &[tried], random: rng::random(), ..Need::default() };
        let reservation = self.fleet.pick(role, need)?;
        let answer = async {
            let answer =
                self.upstream.send(question.leg(&reservation, &Edit::new()), &Written::default()).await;
            collect(answer.ok()?.into_body(), ANSWER_BYTES).await.ok()
        };
        tokio::time::timeout(PATIENCE, answer).await.ok()?
    }
}

/// As vLLM's `/detokenize` has it (0.5 to 0.32).
fn detokenizing(ask: &ReceivedRequest, ids: &[u32]) -> Option<ReceivedRequest> {
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
