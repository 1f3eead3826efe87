//! Messages as mistral-common checks and joins them before they are encoded.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::mistral::{MistralVersion, check_name};
use crate::prompt::Reason;
use crate::prompt::chat::Chat;
use crate::prompt::media::{self, MediaForm};
use crate::prompt::message::conversation;
use crate::prompt::template::ContentFormat;

/// Text between messages that are joined, and between parts of one.
const BETWEEN: &str = "\n\n";
/// Text in an item's place, of Unicode's private use. It is never tokenised.
pub(super) const ITEM: &str = "\u{e000}";
/// Characters of a call's id; vLLM keeps the last of a longer one.
const ID_CHARS: usize = 9;

/// A part of a message.
#[derive(Clone, Debug)]
pub(super) enum Chunk {
    Text(String),
    Thought {
        text: String,
        /// False while the model goes on with it.
        is_closed: bool,
    },
}

impl Chunk {
    fn is_thought(&self) -> bool {
        matches!(self, Self::Thought { .. })
    }
}

/// A call of a tool.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: Value,
}

/// A message as it is encoded.
#[derive(Clone, Debug)]
pub(super) enum Message {
    System(Vec<Chunk>),
    User(String),
    Answer {
        /// One text, or thoughts with texts between them.
        chunks: Vec<Chunk>,
        calls: Vec<Call>,
        /// The model goes on with it.
        is_open: bool,
    },
    Tool {
        id: String,
        text: String,
    },
}

/// A conversation as it is encoded.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// Text of the system's messages, where it is a part of the last message of the user.
    pub(super) instructions: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A message of the client's.
#[derive(Debug)]
struct Given {
    role: Role,
    /// Parts of its content, its reasoning first.
    chunks: Vec<Chunk>,
    /// True if its content counts as one: a text, or a list with parts.
    has_content: bool,
    calls: Vec<Call>,
    call_id: String,
}

impl Conversation {
    pub(super) fn read(version: MistralVersion, mut chat: Chat) -> Result<Self, Reason> {
        // The chat endpoint refuses them, and `/tokenize` does not.
        if chat.has_template_kwargs {
            return Err(Reason::TemplateKwargs);
        }
        if chat.media == MediaForm::Items {
            hide_items(&mut chat.messages);
        }
        let parsed =
            conversation(without_thoughts(&chat.messages), ContentFormat::String, MediaForm::Unknown)?;
        let given = chat.messages.iter().zip(&parsed).map(|(message, parsed)| given(message, parsed));
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let is_answer = given.last().is_some_and(|last| last.role == Role::Assistant);
        if is_answer != chat.continue_final_message || (is_answer && chat.add_generation_prompt) {
            return Err(Reason::Rejected);
        }
        check(&given, version)?;
        let instructions = match version {
            MistralVersion::V3 => instructions(&given),
            _ => None,
        };
        let messages = joined(given, version, chat.continue_final_message);
        Ok(Self { messages, instructions })
    }
}

fn given(message: &Value, parsed: &Map<String, Value>) -> Result<Given, Reason> {
    let role = match parsed.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => return Err(Reason::Rejected),
    };
    let content = content(role, message.get("content"))?;
    let reasoning = parsed.get("reasoning").and_then(Value::as_str);
    if reasoning.is_some() && content.iter().any(Chunk::is_thought) {
        return Err(Reason::Rejected);
    }
    let has_content = reasoning.is_some()
        || match content.as_slice() {
            [Chunk::Text(text)] => !text.is_empty() || message.get("content").is_some_and(Value::is_array),
            chunks => !chunks.is_empty(),
        };
    let reasoning = reasoning.map(|text| Chunk::Thought { text: text.to_owned(), is_closed: true });
    let call_id = match (role, message.get("tool_call_id")) {
        (Role::Tool, Some(Value::String(id))) => short_id(id),
        (Role::Tool, _) => return Err(Reason::Rejected),
        _ => String::new(),
    };
    if let (Role::Tool, Some(name)) = (role, parsed.get("name").and_then(Value::as_str)) {
        check_name(name)?;
    }
    let calls = parsed.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Ok(Given {
        role,
        chunks: reasoning.into_iter().chain(content).collect(),
        has_content,
        calls: calls.iter().map(call).collect::<Result<_, _>>()?,
        call_id,
    })
}

/// The messages with thoughts as texts, which is how the engine's own parser reads them.
fn without_thoughts(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let contents = messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut());
    for part in contents.flatten() {
        if is_of_type(part, "thinking") && part.get("uuid").is_none() {
            *part = json!({ "type": "text", "text": part.get("thinking") });
        }
    }
    messages
}

/// Puts [`ITEM`] in the place of the items of users.
fn hide_items(messages: &mut [Value]) {
    let of_users =
        messages.iter_mut().filter(|message| message.get("role").is_some_and(|role| role == "user"));
    let contents = of_users.filter_map(|message| message.get_mut("content")?.as_array_mut());
    for part in contents.flatten() {
        if part.as_object().and_then(media::kind).is_some() {
            *part = json!({ "type": "text", "text": ITEM });
        }
    }
}

fn is_of_type(part: &Value, name: &str) -> bool {
    part.get("type").is_some_and(|kind| kind == name)
}

/// The parts of a content as the client sent it.
fn content(role: Role, content: Option<&Value>) -> Result<Vec<Chunk>, Reason> {
    match content {
        None | Some(Value::Null) if role == Role::Assistant => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Chunk::Text(text.clone())]),
        Some(Value::Array(parts)) => parts.iter().map(|part| chunk(part).ok_or(Reason::Rejected)).collect(),
        _ => Err(Reason::Rejected),
    }
}

fn chunk(part: &Value) -> Option<Chunk> {
    let text = |key: &str| part.get(key)?.as_str().map(str::to_owned);
    if is_of_type(part, "text") {
        return text("text").map(Chunk::Text);
    }
    if !is_of_type(part, "thinking") {
        return None;
    }
    let is_closed = part.get("closed").map_or(Some(true), Value::as_bool)?;
    Some(Chunk::Thought { text: text("thinking")?, is_closed })
}

fn call(call: &Value) -> Result<Call, Reason> {
    let function = call.get("function").ok_or(Reason::Shape)?;
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let name = text(function, "name").ok_or(Reason::Shape)?;
    check_name(&name)?;
    let id = text(call, "id").ok_or(Reason::Shape)?;
    let arguments = function.get("arguments").cloned().ok_or(Reason::Shape)?;
    Ok(Call { id: short_id(&id), name, arguments })
}

/// The last characters of an id.
fn short_id(id: &str) -> String {
    let over = id.chars().count().saturating_sub(ID_CHARS);
    id.chars().skip(over).collect()
}

/// Refuses what the version's validator refuses.
fn check(given: &[Given], version: MistralVersion) -> Result<(), Reason> {
    let refuse_if = |is_bad: bool| if is_bad { Err(Reason::Rejected) } else { Ok(()) };
    refuse_if(
        given.len() == 1 && given.iter().any(|only| matches!(only.role, Role::Assistant | Role::Tool)),
    )?;
    for (before, after) in given.iter().zip(given.iter().skip(1)) {
        refuse_if(match before.role {
            Role::System | Role::User => after.role == Role::Tool,
            Role::Assistant | Role::Tool => after.role == Role::System,
        })?;
    }
    for message in given {
        refuse_if(message.chunks.iter().any(Chunk::is_thought) && !may_think(message.role, version))?;
        let is_answer = message.role == Role::Assistant;
        let has_calls = !message.calls.is_empty();
        refuse_if(is_answer && version == MistralVersion::V3 && message.has_content == has_calls)?;
        refuse_if(message.role == Role::Tool && !is_good_id(&message.call_id, version))?;
        refuse_if(!message.calls.iter().all(|call| is_good_id(&call.id, version)))?;
    }
    match version {
        MistralVersion::V3 | MistralVersion::V7 => check_counts(given),
        MistralVersion::V11 | MistralVersion::V13 | MistralVersion::V15 => check_ids(given),
    }
}

/// True if thoughts may be in a message of this role.
fn may_think(role: Role, version: MistralVersion) -> bool {
    match role {
        Role::Assistant => version >= MistralVersion::V13,
        Role::System => version == MistralVersion::V13,
        Role::User | Role::Tool => false,
    }
}

fn is_good_id(id: &str, version: MistralVersion) -> bool {
    match version {
        MistralVersion::V13 | MistralVersion::V15 => !id.is_empty() && id != "null",
        _ => id.len() == ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
    }
}

/// Before an answer there are as many results as the answer before it has calls.
fn check_counts(given: &[Given]) -> Result<(), Reason> {
    let mut open: i64 = 0;
    // The first message is not looked at.
    for message in given.iter().skip(1) {
        match message.role {
            Role::Tool => open -= 1,
            Role::Assistant if open != 0 => return Err(Reason::Rejected),
            // Without a list of calls the number stays as it is, which is none.
            Role::Assistant => open = i64::try_from(message.calls.len()).unwrap_or(i64::MAX),
            Role::System | Role::User => {}
        }
    }
    Ok(())
}

/// Each result is of a call of the answer before it, and each call has one before the next answer.
fn check_ids(given: &[Given]) -> Result<(), Reason> {
    let (mut expected, mut seen) = (HashSet::new(), HashSet::new());
    for message in given.iter().skip(1) {
        let is_good = match message.role {
            Role::Tool => expected.contains(&message.call_id) && seen.insert(&message.call_id),
            Role::Assistant => {
                let is_answered = expected.len() == seen.len();
                expected.clear();
                seen.clear();
                is_answered && message.calls.iter().all(|call| expected.insert(&call.id))
            }
            Role::System | Role::User => true,
        };
        if !is_good {
            return Err(Reason::Rejected);
        }
    }
    Ok(())
}

/// The parts of a message, or of several, with texts side by side as one.
fn merged<'a>(given: impl IntoIterator<Item = &'a Given>, version: MistralVersion) -> Vec<Chunk> {
    let within = if version >= MistralVersion::V15 { "" } else { BETWEEN };
    let mut chunks: Vec<Chunk> = Vec::new();
    for message in given {
        let mut between = BETWEEN;
        for chunk in &message.chunks {
            match (chunk, chunks.last_mut()) {
                (Chunk::Text(text), _) if text.is_empty() => continue,
                (Chunk::Text(text), Some(Chunk::Text(before))) => {
                    before.push_str(between);
                    before.push_str(text);
                }
                _ => chunks.push(chunk.clone()),
            }
            between = within;
        }
    }
    chunks
}

/// The text of a message, or of several, in which nobody thinks.
fn text<'a>(given: impl IntoIterator<Item = &'a Given>, version: MistralVersion) -> String {
    let texts = merged(given, version).into_iter().filter_map(|chunk| match chunk {
        Chunk::Text(text) => Some(text),
        Chunk::Thought { .. } => None,
    });
    texts.collect()
}

/// All that the system says, for versions that have no messages of it.
fn instructions(given: &[Given]) -> Option<String> {
    let system = given.iter().filter(|message| message.role == Role::System && message.has_content);
    let texts: Vec<String> = system.map(|message| text([message], MistralVersion::V3)).collect();
    let joined = texts.join(BETWEEN);
    (!joined.is_empty()).then_some(joined)
}

/// Messages of one role in a row as one, but for the system's and results.
fn joined(given: Vec<Given>, version: MistralVersion, is_open: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut call_ids: Vec<String> = Vec::new();
    let count = given.len();
    let mut at = 0;
    for group in given.chunk_by(|a, b| a.role == b.role) {
        at += group.len();
        let Some(first) = group.first() else { continue };
        match first.role {
            Role::System if version == MistralVersion::V3 => {}
            Role::System => {
                messages.extend(group.iter().map(|message| Message::System(merged([message], version))));
            }
            Role::User => messages.push(Message::User(text(group, version))),
            Role::Assistant => {
                let calls: Vec<Call> = group.iter().flat_map(|message| message.calls.clone()).collect();
                call_ids.extend(calls.iter().map(|call| call.id.clone()));
                messages.push(Message::Answer {
                    chunks: merged(group, version),
                    calls,
                    is_open: is_open && at == count,
                });
            }
            Role::Tool => {
                messages.extend(results(group, version, &call_ids));
                call_ids.clear();
            }
        }
    }
    if version == MistralVersion::V3 && !matches!(messages.first(), Some(Message::User(_))) {
        messages.insert(0, Message::User(String::new()));
    }
    messages
}

/// Results of tools, in the order of their calls since version 11.
fn results(group: &[Given], version: MistralVersion, call_ids: &[String]) -> Vec<Message> {
    let mut sorted: Vec<&Given> = group.iter().collect();
    if version >= MistralVersion::V11 {
        let order: HashMap<&str, usize> =
            call_ids.iter().enumerate().map(|(at, id)| (id.as_str(), at)).collect();
        sorted.sort_by_key(|message| order.get(message.call_id.as_str()).copied().unwrap_or(usize::MAX));
    }
    let results = sorted.into_iter();
    let read =
        |message: &Given| Message::Tool { id: message.call_id.clone(), text: text([message], version) };
    results.map(read).collect()
}
