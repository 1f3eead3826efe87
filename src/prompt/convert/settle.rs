//! Choices of the Messages API that engines make by the model's template (vLLM 0.32 and 0.33,
//! `_detect_merge_inline_system` and `DisabledThinkingEffortResolver`).

use serde_json::{Value, json};

use super::{OpenChoices, Origin, message, scan};
use crate::prompt::chat::Chat;
use crate::prompt::{Context, Prompter, Reason, Rendered};

/// Efforts that a client of the Messages API may ask for.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
/// Effort in place of `none` where that changes nothing.
const LEAST: &str = "low";

impl Prompter {
    /// Makes the choices that are open in a chat.
    ///
    /// # Errors
    /// The [`Reason`] for which the engine's choice is not known.
    pub(in crate::prompt) fn settle(&self, chat: &mut Chat, context: &Context<'_>) -> Result<(), Reason> {
        let Origin::Messages(OpenChoices { inline_system, thinking_off }) = chat.origin else {
            return Ok(());
        };
        let renderer = self.renderer.as_ref().ok_or(Reason::NoTemplate)?;
        if inline_system && renderer.refuses_inline_system().ok_or(Reason::Template)? {
            merge_system(&mut chat.messages);
        }
        if thinking_off && !self.changes_without_thinking(context)? {
            chat.replace_effort(LEAST);
        }
        Ok(())
    }

    /// True if the effort `none` is taken, and makes another prompt than all others.
    fn changes_without_thinking(&self, context: &Context<'_>) -> Result<bool, Reason> {
        let Some(none) = self.probe("none", context)? else { return Ok(false) };
        for effort in EFFORTS {
            if self.probe(effort, context)?.is_some_and(|prompt| prompt == none) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The prompt of a short chat with an effort; `None` if it is refused.
    fn probe(&self, effort: &str, context: &Context<'_>) -> Result<Option<Rendered>, Reason> {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort});
        let mut chat = Chat::read(&scan(body.to_string().into())?)?;
        chat.complete(&self.defaults);
        match self.render(chat, context) {
            Ok(prompt) => Ok(Some(prompt)),
            Err(Reason::Rejected) => Ok(None),
            Err(reason) => Err(reason),
        }
    }
}

/// Makes all system messages one, in front.
fn merge_system(messages: &mut Vec<Value>) {
    let is_system = |message: &Value| message.get("role").is_some_and(|role| role == "system");
    let texts = messages.iter().filter(|message| is_system(message));
    let text: String = texts.filter_map(|message| message.get("content")?.as_str()).collect();
    messages.retain(|message| !is_system(message));
    messages.insert(0, message("system", text));
}
