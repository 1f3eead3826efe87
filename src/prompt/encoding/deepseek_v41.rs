//! Chats of DeepSeek V4.1 (`vllm/tokenizers/deepseek_v41.py` and `deepseek_v41_encoding.py` of 0.32
//! and 0.33). It takes the client's messages rather than the parsed ones.

use serde_json::Value;

use super::deepseek::{Turn, declare_tools, is_true, thinks_by_default};
use super::deepseek_turns::{self, Choices, Style};
use super::dsml::Tags;
use crate::prompt::Reason;
use crate::prompt::chat::Chat;
use crate::prompt::media::MediaForm;
use crate::prompt::message::conversation;
use crate::prompt::renderer::Moment;
use crate::prompt::rules::Edition;
use crate::prompt::template::ContentFormat;

const SYSTEM: &str = "<｜System｜>";
/// Text that stands for an image, which 0.33 refuses in a text.
const IMAGE: &str = "<｜deepseek_image｜>";
/// Members of a message that the encoder reads and no client is known to send.
const UNKNOWN_MEMBERS: [&str; 5] = ["content_blocks", "response_format", "tools", "wo_eos", "_image_indices"];

/// The prompt of a chat.
pub(super) fn render(chat: Chat, moment: Moment<'_>) -> Result<String, Reason> {
    let effort = chat.kwargs.get("reasoning_effort");
    let thinks = thinks_by_default(&chat) && effort.is_none_or(|effort| effort != "none");
    let budget = budget(effort)?;
    let choices = Choices { thinks, drops: is_true(&chat, "drop_thinking", true) };
    let mut turns = turns(chat.messages, moment.edition)?;
    declare_tools(&mut turns, chat.tools);
    deepseek_turns::render(turns, &V41 { budget, edition: moment.edition }, choices, moment.stop)
}

/// The effort as a number from 1 to 100.
fn budget(effort: Option<&Value>) -> Result<u64, Reason> {
    match effort {
        None => Ok(75),
        Some(Value::String(name)) => match name.as_str() {
            "low" => Ok(50),
            "none" | "high" | "xhigh" => Ok(75),
            "max" => Ok(100),
            _ => Err(Reason::Rejected),
        },
        Some(number) => number.as_u64().filter(|n| (1..=100).contains(n)).ok_or(Reason::Rejected),
    }
}

fn turns(messages: Vec<Value>, edition: Edition) -> Result<Vec<Turn>, Reason> {
    let parsed = conversation(messages.clone(), ContentFormat::OpenAi, MediaForm::Unknown)?;
    messages
        .iter()
        .zip(&parsed)
        .map(|(message, parsed)| turn(message, Turn::read(parsed)?, edition))
        .collect()
}

/// A turn with the client's own text: billing headers are kept, and parts joined by an empty line.
fn turn(message: &Value, mut turn: Turn, edition: Edition) -> Result<Turn, Reason> {
    if UNKNOWN_MEMBERS.iter().any(|key| message.get(key).is_some_and(|value| !value.is_null())) {
        return Err(Reason::Shape);
    }
    if !matches!(turn.role.as_str(), "system" | "developer" | "user" | "assistant" | "tool") {
        return Err(Reason::Rejected);
    }
    turn.content = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // The engine fails on an empty list.
        Some(Value::Array(parts)) if !parts.is_empty() => {
            let texts = parts.iter().map(|part| {
                let is_text = part.get("type").is_some_and(|kind| kind == "text");
                is_text.then(|| part.get("text")?.as_str()).flatten()
            });
            texts.collect::<Option<Vec<_>>>().ok_or(Reason::Rejected)?.join("\n\n")
        }
        Some(_) => return Err(Reason::Rejected),
    };
    let has_image = turn.content.contains(IMAGE) || turn.reasoning.contains(IMAGE);
    if has_image && edition == Edition::Of33 {
        return Err(Reason::Rejected);
    }
    Ok(turn)
}

struct V41 {
    budget: u64,
    edition: Edition,
}

impl Style for V41 {
    fn tags(&self) -> Tags {
        Tags { calls: " calls", invoke: " invoke", parameter: " parameter" }
    }

    fn opening(&self, first: &Turn, thinks: bool) -> String {
        match thinks {
            true => format!(
                "{SYSTEM}Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                self.budget
            ),
            false if first.is("system") => SYSTEM.to_owned(),
            false => String::new(),
        }
    }

    fn system(&self, at: usize) -> &'static str {
        if at > 0 { SYSTEM } else { "" }
    }

    fn is_answered(&self, system_at: usize, _: Option<&Turn>) -> bool {
        system_at > 0
    }

    /// A system message after the first begins a question, and results of tools alone none in 0.33.
    fn is_question(&self, at: usize, turn: &Turn) -> bool {
        match turn.role.as_str() {
            "user" => self.edition == Edition::Of32 || turn.has_text(),
            "developer" => true,
            "system" => at > 0,
            _ => false,
        }
    }
}
