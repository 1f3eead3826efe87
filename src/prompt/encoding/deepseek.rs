//! Parts that DeepSeek's chats of several models share: turns, and results merged into them.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::dsml::Call;
use crate::prompt::Reason;
use crate::prompt::chat::Chat;

pub(super) const BOS: &str = "<｜begin▁of▁sentence｜>";
pub(super) const EOS: &str = "<｜end▁of▁sentence｜>";
pub(super) const USER: &str = "<｜User｜>";
pub(super) const ASSISTANT: &str = "<｜Assistant｜>";
pub(super) const REMINDER: &str = "<｜latest_reminder｜>";
pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";

/// Separator of the blocks of a turn, and of the parts of a content.
const BLOCKS: &str = "\n\n";

/// A message's content after those that follow it were merged into it.
#[derive(Clone, Debug)]
pub(super) enum Block {
    /// Text of the user.
    Text(String),
    /// Result of a tool's call.
    Result {
        /// Id of the call; `None` where the client gave null.
        id: Option<String>,
        /// Text of the result.
        text: String,
    },
}

/// A message of the conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    pub(super) role: String,
    /// Text of all roles but the user's, whose text is in the blocks.
    pub(super) content: String,
    /// Of a user's turn, which results of tools are, too.
    pub(super) blocks: Vec<Block>,
    /// Functions that this message declares.
    pub(super) tools: Vec<Value>,
    pub(super) calls: Vec<Call>,
    pub(super) reasoning: String,
    pub(super) task: Option<String>,
    pub(super) result_of: Option<String>,
}

impl Turn {
    /// A system message without a text.
    pub(super) fn empty_system() -> Self {
        Self { role: "system".to_owned(), ..Self::default() }
    }

    /// Reads a message of a parsed conversation; parts of its text are joined by an empty line.
    pub(super) fn read(message: &Map<String, Value>) -> Result<Self, Reason> {
        let text = |key: &str| message.get(key).and_then(Value::as_str).map(str::to_owned);
        let calls =
            message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Ok(Self {
            role: text("role").ok_or(Reason::Shape)?,
            content: joined(message.get("content").unwrap_or(&Value::Null))?,
            calls: calls.iter().map(Call::read).collect::<Result<_, _>>()?,
            reasoning: text("reasoning").unwrap_or_default(),
            task: text("task"),
            // Without the member it is the empty id.
            result_of: match message.get("tool_call_id") {
                Some(Value::Null) => None,
                _ => Some(text("tool_call_id").unwrap_or_default()),
            },
            ..Self::default()
        })
    }

    pub(super) fn is(&self, role: &str) -> bool {
        self.role == role
    }

    /// True for a user's turn that has more than results of tools.
    pub(super) fn has_text(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, Block::Text(_)))
    }
}

fn joined(content: &Value) -> Result<String, Reason> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str));
            Ok(texts.collect::<Option<Vec<_>>>().ok_or(Reason::Shape)?.join(BLOCKS))
        }
        _ => Err(Reason::Shape),
    }
}

/// Declares the chat's tools in the first system message, or in a new one in front.
pub(super) fn declare_tools(turns: &mut Vec<Turn>, tools: Option<Vec<Value>>) {
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else { return };
    match turns.iter_mut().find(|turn| turn.is("system")) {
        Some(system) => system.tools = tools,
        None => turns.insert(0, Turn { tools, ..Turn::empty_system() }),
    }
}

/// Makes results of tools, and users' messages in a row, one turn of the user. One that asks for a
/// task takes no more text.
pub(super) fn merge(turns: Vec<Turn>) -> Vec<Turn> {
    let mut merged: Vec<Turn> = Vec::with_capacity(turns.len());
    for mut turn in turns {
        let last = merged.last_mut().filter(|last| last.is("user"));
        match (turn.role.as_str(), last) {
            ("tool", last) => {
                let block = Block::Result { id: turn.result_of.take(), text: turn.content };
                match last {
                    Some(last) => last.blocks.push(block),
                    None => {
                        let user = Turn { role: "user".to_owned(), blocks: vec![block], ..Turn::default() };
                        merged.push(user);
                    }
                }
            }
            ("user", Some(last)) if last.task.is_none() => last.blocks.push(Block::Text(turn.content)),
            ("user", _) => {
                turn.blocks = vec![Block::Text(std::mem::take(&mut turn.content))];
                merged.push(turn);
            }
            _ => merged.push(turn),
        }
    }
    merged
}

/// Puts the results of each turn in the order of the calls before it; unknown ids come first.
pub(super) fn sort_results(turns: &mut [Turn]) {
    let mut order: HashMap<String, usize> = HashMap::new();
    for turn in turns {
        if turn.is("assistant") && !turn.calls.is_empty() {
            let named = turn.calls.iter().enumerate().filter(|(_, call)| !call.id.is_empty());
            order = named.map(|(at, call)| (call.id.clone(), at)).collect();
        } else if turn.is("user") && !order.is_empty() {
            let is_result = |block: &Block| matches!(block, Block::Result { .. });
            let mut results: Vec<Block> = turn.blocks.iter().filter(|b| is_result(b)).cloned().collect();
            results.sort_by_key(|block| match block {
                Block::Result { id: Some(id), .. } => order.get(id).copied().unwrap_or(0),
                _ => 0,
            });
            let places = turn.blocks.iter_mut().filter(|block| is_result(block));
            places.zip(results).for_each(|(place, result)| *place = result);
        }
    }
}

/// Leaves out earlier reasoning, and messages before `last_user` that are neither the user's, the
/// system's nor an answer.
pub(super) fn drop_thinking(turns: &mut Vec<Turn>, last_user: Option<usize>) {
    let Some(last_user) = last_user else { return };
    let mut at = 0;
    turns.retain_mut(|turn| {
        let is_earlier = at < last_user;
        at += 1;
        match turn.role.as_str() {
            "user" | "system" | "tool" | "latest_reminder" | "direct_search_results" => true,
            _ if !is_earlier => true,
            "assistant" => {
                turn.reasoning.clear();
                true
            }
            _ => false,
        }
    });
}

/// Appends the blocks of a user's turn.
pub(super) fn write_blocks(out: &mut String, blocks: &[Block]) {
    for (at, block) in blocks.iter().enumerate() {
        if at > 0 {
            out.push_str(BLOCKS);
        }
        match block {
            Block::Text(text) => out.push_str(text),
            Block::Result { text, .. } => {
                out.push_str("<tool_result>");
                out.push_str(text);
                out.push_str("</tool_result>");
            }
        }
    }
}

/// The token of a task.
///
/// # Errors
/// [`Reason::Rejected`] for a task that the engine does not know.
pub(super) fn task_token(task: &str) -> Result<&'static str, Reason> {
    Ok(match task {
        "action" => "<｜action｜>",
        "query" => "<｜query｜>",
        "authority" => "<｜authority｜>",
        "domain" => "<｜domain｜>",
        "title" => "<｜title｜>",
        "read_url" => "<｜read_url｜>",
        _ => return Err(Reason::Rejected),
    })
}

/// A variable of the chat, or its default, as a condition of Python.
pub(super) fn is_true(chat: &Chat, key: &str, default: bool) -> bool {
    match chat.kwargs.get(key) {
        None => default,
        Some(Value::Null) => false,
        Some(Value::Bool(bool)) => *bool,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(members)) => !members.is_empty(),
    }
}

/// True if the model thinks unless the client says that it does not.
pub(super) fn thinks_by_default(chat: &Chat) -> bool {
    let said = ["thinking", "enable_thinking"];
    let is_silent = said.iter().all(|key| !chat.kwargs.contains_key(*key));
    is_silent || said.iter().any(|key| is_true(chat, key, false))
}
