//! The members of a chat request that decide on its prompt (vLLM 0.32 and 0.33,
//! `ChatCompletionRequest`).

use serde_json::{Map, Value};

use super::convert::Origin;
use super::jinja::OWN_VARIABLES;
use super::media::MediaForm;
use super::rules::EffortMap;
use super::source::{flag, present};
use super::topics::{Topic, Topics};
use super::{Reason, json};
use crate::codec::json::{self as client, Object};

/// A conversation and what the template is told about it; the messages are still the client's.
#[derive(Clone, Debug)]
pub struct Chat {
    pub(super) messages: Vec<Value>,
    /// As pydantic dumps them: `type`, `function {name, description, parameters, strict?,
    /// defer_loading?}`.
    pub(super) tools: Option<Vec<Value>>,
    /// A flag of the engine decides if the template gets the tools.
    pub(super) may_lack_tools: bool,
    /// Variables of the template beyond the standard ones.
    pub(super) kwargs: Map<String, Value>,
    /// True if the client brings `chat_template_kwargs`, even empty ones.
    pub(super) has_template_kwargs: bool,
    pub(super) documents: Value,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) add_special_tokens: bool,
    effort: Option<Effort>,
    /// Parts of it that not all releases read alike.
    pub(super) topics: Topics,
    /// Form in which images and the like reach the template.
    pub(super) media: MediaForm,
    /// Size of the conversation's text, from which the rendering's limits follow.
    pub(super) source_bytes: usize,
    /// Request that it was made of.
    pub(super) origin: Origin,
}

/// The client's `reasoning_effort`, and what becomes of the template's variables without it.
#[derive(Clone, Debug)]
struct Effort {
    asked: String,
    /// The client does not say whether to think.
    decides_thinking: bool,
    /// The variable of the same name that the client brings.
    own: Option<Value>,
}

/// `chat_template_kwargs` that are arguments of transformers' `apply_chat_template` rather than
/// variables, or collide with what the renderer passes itself.
const RESERVED_KWARGS: [&str; 15] = [
    "chat_template",
    "conversation",
    "conversations",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "self",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
];

/// Place where an answer's reasoning stands in a message, and where older clients put it.
pub(super) const REASONING: &str = "reasoning";
pub(super) const OLDER_REASONING: &str = "reasoning_content";

/// Values that `reasoning_effort` may have.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

impl Chat {
    pub(super) fn read(body: &Object) -> Result<Self, Reason> {
        if present(body, "chat_template").is_some() {
            return Err(Reason::ClientTemplate);
        }
        let messages = present(body, "messages").ok_or(Reason::Shape)?;
        let source_bytes = body.bytes().len();
        let Value::Array(messages) = json::parse(messages.raw())? else { return Err(Reason::Shape) };
        Self::assemble(body, messages, tools(body)?, source_bytes)
    }

    /// The chat of these messages and tools, and the other members of `body`.
    pub(super) fn assemble(
        body: &Object,
        messages: Vec<Value>,
        tools: Option<Vec<Value>>,
        source_bytes: usize,
    ) -> Result<Self, Reason> {
        let topics = Topics::of(body, &messages, tools.as_deref().unwrap_or_default());
        let tools =
            tools.map(|tools| tools.into_iter().map(tool).collect::<Result<Vec<_>, _>>()).transpose()?;
        // The engine's --exclude-tools-when-tool-choice-none decides whether the template then sees
        // the tools. Any other choice bounds what is generated and leaves the prompt as it is.
        let may_lack_tools =
            tools.is_some() && present(body, "tool_choice").is_some_and(|choice| is_none(&choice));
        let (kwargs, effort) = kwargs(body)?;
        let chat = Self {
            messages,
            tools,
            may_lack_tools,
            topics,
            kwargs,
            has_template_kwargs: present(body, "chat_template_kwargs").is_some(),
            effort,
            documents: documents(body)?,
            add_generation_prompt: flag(body, "add_generation_prompt", true)?,
            continue_final_message: flag(body, "continue_final_message", false)?,
            add_special_tokens: flag(body, "add_special_tokens", false)?,
            media: MediaForm::Unknown,
            source_bytes,
            origin: Origin::Chat,
        };
        if chat.messages.is_empty() || (chat.continue_final_message && chat.add_generation_prompt) {
            return Err(Reason::Shape);
        }
        Ok(chat)
    }

    /// Topics that an engine must read as it is done here for its prompt to be this one.
    pub fn needs(&self) -> Topics {
        self.topics
    }

    /// True if engines that map efforts tell their template another one than those that don't.
    pub fn is_mapped(&self, map: &EffortMap) -> bool {
        self.mapped(map).is_some()
    }

    fn mapped(&self, map: &EffortMap) -> Option<String> {
        let asked = &self.effort.as_ref()?.asked;
        map.get(asked).filter(|to| *to != asked).cloned()
    }

    /// Tells the template what the map has in place of the effort that was asked for.
    pub fn map_effort(&mut self, map: &EffortMap) {
        if let Some(to) = self.mapped(map) {
            self.replace_effort(&to);
        }
    }

    /// Tells the template this effort in place of the one that was asked for.
    pub(super) fn replace_effort(&mut self, to: &str) {
        let Some(effort) = &mut self.effort else { return };
        to.clone_into(&mut effort.asked);
        if effort.decides_thinking {
            self.kwargs.insert("enable_thinking".to_owned(), Value::Bool(to != "none"));
        }
        // "auto" counts as not given, and leaves the client's own.
        let told = if to == "auto" { effort.own.clone() } else { Some(Value::from(to)) };
        match told {
            Some(told) => drop(self.kwargs.insert("reasoning_effort".to_owned(), told)),
            None => drop(self.kwargs.shift_remove("reasoning_effort")),
        }
    }

    /// The request's `reasoning_effort`, mapped if it was.
    pub(super) fn asked_effort(&self) -> Option<&str> {
        self.effort.as_ref().map(|effort| effort.asked.as_str())
    }

    /// True if an earlier answer calls tools.
    pub(super) fn has_calls(&self) -> bool {
        let mut calls = self.messages.iter().filter_map(|message| message.get("tool_calls"));
        calls.any(|calls| !calls.is_null())
    }

    /// True if a message brings an image, audio, video, a file or embeddings.
    pub fn has_media(&self) -> bool {
        self.topics.covers(Topics::NONE.with(Topic::Media))
    }

    /// The same chat for a template that gets the tools.
    pub(super) fn with_tools(&self) -> Self {
        Self { may_lack_tools: false, ..self.clone() }
    }

    /// The same chat for a template that gets no tools.
    pub(super) fn without_tools(&self) -> Self {
        Self { tools: None, may_lack_tools: false, ..self.clone() }
    }

    /// The same chat with images and the like in this form.
    pub(super) fn with_media(&self, media: MediaForm) -> Self {
        Self { media, ..self.clone() }
    }

    /// True if the template gets tools.
    pub(super) fn has_tools(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| !tools.is_empty())
    }

    /// Puts the members of every object of the tools in the order of their names.
    pub(super) fn sort_tools(&mut self) {
        self.tools.iter_mut().flatten().for_each(Value::sort_all_objects);
    }

    /// Adds variables that the request does not set.
    pub(super) fn complete(&mut self, defaults: &Map<String, Value>) {
        for (name, value) in defaults {
            if !self.kwargs.contains_key(name) && !value.is_null() {
                self.kwargs.insert(name.clone(), value.clone());
            }
        }
    }

    /// The template's variables as the chat endpoint completes them from `reasoning_effort`, and
    /// the documents.
    pub fn variables(&self) -> (&Map<String, Value>, &Value) {
        (&self.kwargs, &self.documents)
    }

    /// The messages with every `reasoning_content` under its newer name, `reasoning`; `None` when
    /// there is nothing to rename. The engine looks at the newer name alone after the chat endpoint
    /// has renamed the other.
    pub fn renamed_reasoning(&self) -> Option<Vec<Value>> {
        let given = |message: &Value, key: &str| message.get(key).is_some_and(|value| !value.is_null());
        let older = |message: &Value| given(message, OLDER_REASONING) && !given(message, REASONING);
        if !self.messages.iter().any(older) {
            return None;
        }
        let mut messages = self.messages.clone();
        for message in messages.iter_mut().filter(|message| older(message)) {
            if let Value::Object(members) = message {
                let text = members.shift_remove(OLDER_REASONING).unwrap_or_default();
                members.insert(REASONING.to_owned(), text);
            }
        }
        Some(messages)
    }
}

/// The client's variables; those of the request itself win over them, and null or `"auto"` count as
/// not given.
fn kwargs(body: &Object) -> Result<(Map<String, Value>, Option<Effort>), Reason> {
    let mut kwargs = match present(body, "chat_template_kwargs") {
        None => Map::new(),
        Some(value) => match json::parse(value.raw())? {
            Value::Object(members) => members,
            _ => return Err(Reason::Shape),
        },
    };
    if kwargs.keys().any(|key| RESERVED_KWARGS.contains(&key.as_str()) || key.starts_with(OWN_VARIABLES)) {
        return Err(Reason::TemplateKwargs);
    }
    let decides_thinking = !kwargs.contains_key("enable_thinking");
    kwargs.retain(|_, value| !(value.is_null() || value == "auto"));
    kwargs.shift_remove("add_generation_prompt");
    kwargs.shift_remove("continue_final_message");
    let Some(effort) = present(body, "reasoning_effort") else { return Ok((kwargs, None)) };
    let known = effort.as_str().filter(|effort| EFFORTS.contains(&effort.as_ref()));
    let asked = known.ok_or(Reason::Shape)?.into_owned();
    if decides_thinking {
        kwargs.insert("enable_thinking".to_owned(), Value::Bool(asked != "none"));
    }
    let own = kwargs.insert("reasoning_effort".to_owned(), Value::String(asked.clone()));
    Ok((kwargs, Some(Effort { asked, decides_thinking, own })))
}

fn is_none(choice: &client::Value<'_>) -> bool {
    choice.as_str().is_some_and(|name| name == "none")
}

/// A list of string-to-string maps, or null.
fn documents(body: &Object) -> Result<Value, Reason> {
    let Some(documents) = present(body, "documents") else { return Ok(Value::Null) };
    let documents = json::parse(documents.raw())?;
    let strings = |document: &Value| document.as_object().is_some_and(|d| d.values().all(Value::is_string));
    match &documents {
        Value::Array(items) if items.iter().all(strings) => Ok(documents),
        _ => Err(Reason::Shape),
    }
}

/// As the client spelled them.
fn tools(body: &Object) -> Result<Option<Vec<Value>>, Reason> {
    let Some(tools) = present(body, "tools") else { return Ok(None) };
    match json::parse(tools.raw())? {
        Value::Array(tools) if !tools.is_empty() => Ok(Some(tools)),
        _ => Err(Reason::Shape),
    }
}

/// `ChatCompletionToolsParam.model_dump()`: known members in the order of the class, `null` where
/// absent.
fn tool(tool: Value) -> Result<Value, Reason> {
    let Value::Object(mut tool) = tool else { return Err(Reason::Shape) };
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(Reason::Shape);
    }
    let Some(Value::Object(mut function)) = tool.shift_remove("function") else { return Err(Reason::Shape) };
    let defer = optional(&mut tool, "defer_loading", Value::is_boolean)?;
    let mut out = Map::new();
    let name = function.shift_remove("name").filter(Value::is_string).ok_or(Reason::Shape)?;
    out.insert("name".to_owned(), name);
    out.insert("description".to_owned(), optional(&mut function, "description", Value::is_string)?);
    out.insert("parameters".to_owned(), optional(&mut function, "parameters", Value::is_object)?);
    let strict = optional(&mut function, "strict", Value::is_boolean)?;
    let own_defer = optional(&mut function, "defer_loading", Value::is_boolean)?;
    let inner_defer = if own_defer.is_null() { defer.clone() } else { own_defer };
    insert_present(&mut out, "strict", strict);
    insert_present(&mut out, "defer_loading", inner_defer);
    let mut whole = Map::new();
    whole.insert("type".to_owned(), Value::from("function"));
    whole.insert("function".to_owned(), Value::Object(out));
    insert_present(&mut whole, "defer_loading", defer);
    Ok(Value::Object(whole))
}

/// A member that is absent, null or of the right type.
fn optional(from: &mut Map<String, Value>, key: &str, right: fn(&Value) -> bool) -> Result<Value, Reason> {
    match from.shift_remove(key) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(value) if right(&value) => Ok(value),
        Some(_) => Err(Reason::Shape),
    }
}

fn insert_present(into: &mut Map<String, Value>, key: &str, value: Value) {
    if !value.is_null() {
        into.insert(key.to_owned(), value);
    }
}
