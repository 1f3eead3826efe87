//! Asks engines if their chat endpoint takes a prompt's token ids, for `prompt.send_ids`.
//!
//! Each process of a release that may is sent one chat of one token whose messages are many tokens
//! and whose ids are few: the prompt tokens that it reports tell which of the two it read. An
//! engine that takes ids is sent them from then on, until its process may be another one
//! ([`Instance::reads_chat_ids`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::json;
use tokio::time::Instant;

use crate::fleet::{AskedProcess, Fleet, Instance, InstanceId, LiveProtocol, Role};
use crate::tokenization::facts::may_take_chat_ids;
use crate::tokenization::{AskError, Asker};

/// Pause between looks at the fleet for processes that were not asked yet.
const LOOK: Duration = Duration::from_secs(1);
/// Engines that are asked at a time.
const AT_ONCE: usize = 32;
/// Ids of the question. Every vocabulary has them.
const IDS: [u32; 3] = [1, 2, 3];
/// Messages of the question, of many more tokens than [`IDS`] in every vocabulary.
const TEXT: &str =
    "The quick brown fox jumps over the lazy dog, and then it runs through the old forest to the river.";
/// Statuses by which an engine judges the question.
const JUDGEMENTS: [u16; 2] = [400, 422];

/// Asks the engines of a fleet.
#[derive(Debug)]
pub struct ChatIdsChecker {
    /// Engines that are asked.
    pub fleet: Arc<Fleet>,
    /// Protocol of the engines, some of which take no ids.
    pub protocol: Arc<LiveProtocol>,
    /// The client for questions, with its limits.
    pub asker: Asker,
    /// Pause between two questions to an engine that did not answer.
    pub pause: Duration,
}

/// Conclusion from an engine's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Reads,
    Ignores,
    Nothing,
}

impl ChatIdsChecker {
    /// Looks for engines to ask for ever.
    pub async fn run(self) {
        let mut asked_at = HashMap::new();
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tick.tick().await;
            self.look(&mut asked_at).await;
        }
    }

    /// Asks all that are to be asked now.
    async fn look(&self, asked_at: &mut HashMap<InstanceId, Instant>) {
        let dialect = self.protocol.now().dialect;
        if !dialect.takes_token_ids() || !dialect.decodes_alone() {
            return;
        }
        let members = [Role::Prefill, Role::Decode].map(|role| self.fleet.members(role).to_vec());
        let now = Instant::now();
        let due = |it: &Arc<Instance>| {
            let rests = asked_at.get(&it.id()).is_some_and(|at| now.duration_since(*at) < self.pause);
            let may_take = it.release().is_some_and(|release| may_take_chat_ids(&release));
            it.unasked_for_chat_ids().filter(|_| may_take && !rests).map(|asked| (it.clone(), asked))
        };
        let due: Vec<(Arc<Instance>, AskedProcess)> = members.iter().flatten().filter_map(due).collect();
        asked_at.retain(|id, _| members.iter().flatten().any(|it| it.id() == *id));
        asked_at.extend(due.iter().map(|(it, _)| (it.id(), now)));
        let asking = due.iter().map(|(instance, asked)| self.ask(instance, *asked));
        stream::iter(asking).for_each_concurrent(AT_ONCE, |asking| asking).await;
    }

    async fn ask(&self, instance: &Instance, asked: AskedProcess) {
        let model = instance.models().first().cloned();
        let answer = self.asker.count_of_chat(instance.endpoint(), question(model.as_deref())).await;
        let (engine, role) = (instance.endpoint(), instance.role().name());
        match finding(&answer) {
            Finding::Reads => {
                tracing::info!(%engine, role, "takes the token ids of chats");
                instance.record_chat_ids(asked, true);
            }
            Finding::Ignores => {
                tracing::info!(%engine, role, ?answer, "takes no token ids of chats: it is sent their text");
                instance.record_chat_ids(asked, false);
            }
            Finding::Nothing => {
                tracing::debug!(%engine, role, ?answer, "does not tell yet if it takes token ids of chats");
            }
        }
    }
}

fn finding(answer: &Result<u64, AskError>) -> Finding {
    match answer {
        Ok(prompt_tokens) if *prompt_tokens == IDS.len() as u64 => Finding::Reads,
        Ok(_) => Finding::Ignores,
        Err(AskError::Refused(status)) if JUDGEMENTS.contains(status) => Finding::Ignores,
        Err(_) => Finding::Nothing,
    }
}

/// A chat of one token, whose ids are not those of its messages.
fn question(model: Option<&str>) -> Bytes {
    let mut body = json!({
        "messages": [{"role": "user", "content": TEXT}], "max_tokens": 1,
        "kv_transfer_params": {"prompt_token_ids": IDS},
    });
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_prompt_tokens_tells_what_was_read() {
        for (answer, found) in [
            (Ok(3), Finding::Reads),
            (Ok(29), Finding::Ignores),
            (Ok(0), Finding::Ignores),
            (Err(AskError::Refused(400)), Finding::Ignores),
            (Err(AskError::Refused(404)), Finding::Nothing),
            (Err(AskError::Refused(503)), Finding::Nothing),
            (Err(AskError::BadAnswer), Finding::Nothing),
            (Err(AskError::Unreachable("away".to_owned())), Finding::Nothing),
        ] {
            assert_eq!(finding(&answer), found, "{answer:?}");
        }
    }

    #[test]
    fn question_has_messages_of_more_tokens_than_ids() {
        let body: serde_json::Value = serde_json::from_slice(&question(Some("m\"x"))).unwrap();
        assert_eq!(body["model"], "m\"x");
        assert_eq!(body["kv_transfer_params"]["prompt_token_ids"].as_array().unwrap().len(), IDS.len());
        assert!(TEXT.split(' ').count() > 4 * IDS.len());
        let body: serde_json::Value = serde_json::from_slice(&question(None)).unwrap();
        assert!(body.get("model").is_none());
    }
}
