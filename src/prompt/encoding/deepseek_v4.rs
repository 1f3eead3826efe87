//! Chats of DeepSeek V4 (`vllm/tokenizers/deepseek_v4_encoding.py`, the same in 0.32 and 0.33).

use serde_json::Value;

use super::deepseek::{Turn, declare_tools, is_true, thinks_by_default};
use super::deepseek_turns::{self, Choices, Style};
use super::dsml::Tags;
use crate::prompt::Reason;
use crate::prompt::chat::Chat;
use crate::prompt::media::MediaForm;
use crate::prompt::message::conversation;
use crate::prompt::renderer::Moment;
use crate::prompt::template::ContentFormat;

/// Parts of the model's format, from its encoding.
const HIGH: &str = include_str!("texts/deepseek_v4_high.txt");
const MAX: &str = include_str!("texts/deepseek_v4_max.txt");

/// Efforts that the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    Low,
    High,
    Max,
}

/// The prompt of a chat.
pub(super) fn render(chat: Chat, moment: Moment<'_>) -> Result<String, Reason> {
    let mut thinks = thinks_by_default(&chat);
    let effort = match chat.kwargs.get("reasoning_effort").and_then(Value::as_str) {
        Some("none") => {
            thinks = false;
            Effort::Low
        }
        Some("max") => Effort::Max,
        Some("low" | "minimal" | "medium") => Effort::Low,
        _ => Effort::High,
    };
    let choices = Choices { thinks, drops: is_true(&chat, "drop_thinking", true) };
    let messages = conversation(chat.messages, ContentFormat::OpenAi, MediaForm::Unknown)?;
    let mut turns = messages.iter().map(Turn::read).collect::<Result<Vec<_>, _>>()?;
    declare_tools(&mut turns, chat.tools);
    deepseek_turns::render(turns, &V4 { effort }, choices, moment.stop)
}

struct V4 {
    effort: Effort,
}

impl Style for V4 {
    fn tags(&self) -> Tags {
        Tags { calls: "tool_calls", invoke: "invoke", parameter: "parameter" }
    }

    fn opening(&self, _: &Turn, thinks: bool) -> String {
        match self.effort {
            Effort::High if thinks => HIGH.to_owned(),
            Effort::Max if thinks => MAX.to_owned(),
            _ => String::new(),
        }
    }

    fn system(&self, _: usize) -> &'static str {
        ""
    }

    fn is_answered(&self, _: usize, next: Option<&Turn>) -> bool {
        next.is_none_or(|next| next.is("assistant"))
    }

    fn is_question(&self, _: usize, turn: &Turn) -> bool {
        turn.is("user") || turn.is("developer")
    }
}
