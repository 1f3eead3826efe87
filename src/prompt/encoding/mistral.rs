//! Chats of Mistral's models: the tokens that mistral-common 1.13 makes of them for the tokenizers
//! of versions 3 to 15, as vLLM 0.32 and 0.33 call it (`vllm/tokenizers/mistral.py`).

use serde_json::{Value, json};

use super::dumps::dumps;
use super::mistral_chat::{Call, Chunk, Conversation, ITEM, Message};
use super::mistral_settings::MistralEfforts;
use crate::prompt::Reason;
use crate::prompt::chat::Chat;
use crate::prompt::media::MediaForm;
use crate::prompt::renderer::{Moment, Piece, Rendered};

/// Versions of the tokenizer, each with a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MistralVersion {
    /// Version 3, in which the system's text is the user's.
    V3,
    /// Version 7, with system messages.
    V7,
    /// Version 11, with calls one by one.
    V11,
    /// Version 13, with thoughts and without ids of calls.
    V13,
    /// Version 15, with settings of the model.
    V15,
}

impl MistralVersion {
    /// The version by its name in `tekken.json`; `None` for one that is not followed here.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "v3" => Self::V3,
            "v7" => Self::V7,
            "v11" => Self::V11,
            "v13" => Self::V13,
            "v15" => Self::V15,
            _ => return None,
        })
    }
}

/// Format of a model's chats, by what its `tekken.json` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MistralFormat {
    version: MistralVersion,
    /// Efforts that the model is told of.
    efforts: Option<MistralEfforts>,
}

impl MistralFormat {
    /// The format of a version, with the member `model_settings_builder`; `None` for what is not
    /// followed here, or what engines don't start with.
    pub fn new(version: MistralVersion, settings: Option<&Value>) -> Option<Self> {
        let settings = settings.filter(|settings| !settings.is_null());
        let efforts = match settings {
            None if version >= MistralVersion::V15 => return None,
            Some(_) if version < MistralVersion::V15 => return None,
            None => None,
            Some(settings) => MistralEfforts::read(settings).ok()?,
        };
        Some(Self { version, efforts })
    }
}

/// The prompt of a chat, up to the users' message with the first item.
pub(super) fn render(format: MistralFormat, chat: Chat, moment: Moment<'_>) -> Result<Rendered, Reason> {
    let MistralFormat { version, efforts } = format;
    let tools = tools(chat.tools.as_deref())?;
    let settings = match efforts {
        Some(efforts) => Some(efforts.settings(chat.kwargs.get("reasoning_effort"))?),
        None => None,
    };
    let has_items = chat.media == MediaForm::Items;
    let Conversation { messages, instructions } = Conversation::read(version, chat)?;
    let is_user = |message: &Message| matches!(message, Message::User(_));
    let (first, last) = (messages.iter().position(is_user), messages.iter().rposition(is_user));
    let tools_at = if version >= MistralVersion::V13 { first } else { last };
    let mut prompt = Prompt { version, pieces: vec![Piece::Special("<s>")] };
    let mut known = None;
    for (at, message) in messages.into_iter().enumerate() {
        if moment.stop.is_told() {
            return Err(Reason::Limit);
        }
        match message {
            Message::User(text) => {
                if has_items && text.contains(ITEM) {
                    known.get_or_insert(prompt.pieces.len());
                }
                if let (Some(tools), true) = (&tools, tools_at == Some(at)) {
                    prompt.framed("[AVAILABLE_TOOLS]", tools.clone(), "[/AVAILABLE_TOOLS]");
                }
                if let (Some(settings), true) = (&settings, tools_at == Some(at)) {
                    prompt.framed("[MODEL_SETTINGS]", settings.clone(), "[/MODEL_SETTINGS]");
                }
                let text = match instructions.as_ref().filter(|_| last == Some(at)) {
                    Some(instructions) => format!("{instructions}\n\n{text}"),
                    None => text,
                };
                prompt.framed("[INST]", text, "[/INST]");
            }
            Message::System(chunks) => {
                prompt.special("[SYSTEM_PROMPT]");
                prompt.chunks(chunks);
                prompt.special("[/SYSTEM_PROMPT]");
            }
            Message::Tool { id, text } => prompt.result(id, text)?,
            Message::Answer { chunks, calls, is_open } => prompt.answer(chunks, &calls, is_open)?,
        }
    }
    let mut pieces = prompt.pieces;
    match known {
        None if has_items => Err(Reason::Media),
        None => Ok(Rendered::Pieces(pieces)),
        Some(count) => {
            let rest = pieces.split_off(count);
            let rest_bytes = rest.iter().map(Piece::len).sum();
            Ok(Rendered::Beginning { pieces, rest_bytes })
        }
    }
}

/// The tools as the model reads them.
fn tools(tools: Option<&[Value]>) -> Result<Option<String>, Reason> {
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let known = tools.iter().map(|tool| {
        let function = tool.get("function").ok_or(Reason::Shape)?;
        let given = |key: &str| function.get(key).filter(|value| !value.is_null()).cloned();
        let name = function.get("name").and_then(Value::as_str).ok_or(Reason::Shape)?;
        check_name(name)?;
        Ok(json!({"type": "function", "function": {
            "name": name,
            "description": given("description").unwrap_or_else(|| Value::from("")),
            "parameters": given("parameters").unwrap_or_else(|| json!({})),
        }}))
    });
    dumps(&Value::Array(known.collect::<Result<_, Reason>>()?)).map(Some)
}

/// Refuses a function's name that the engine refuses.
pub(super) fn check_name(name: &str) -> Result<(), Reason> {
    let is_usual = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
    let is_good = (1..=64).contains(&name.len()) && name.chars().all(is_usual);
    if is_good { Ok(()) } else { Err(Reason::Rejected) }
}

/// The prompt under construction.
struct Prompt {
    version: MistralVersion,
    pieces: Vec<Piece>,
}

impl Prompt {
    fn special(&mut self, token: &'static str) {
        self.pieces.push(Piece::Special(token));
    }

    fn plain(&mut self, text: String) {
        if !text.is_empty() {
            self.pieces.push(Piece::Plain(text));
        }
    }

    fn framed(&mut self, before: &'static str, text: String, after: &'static str) {
        self.special(before);
        self.plain(text);
        self.special(after);
    }

    fn chunks(&mut self, chunks: Vec<Chunk>) {
        for chunk in chunks {
            match chunk {
                Chunk::Text(text) => self.plain(text),
                Chunk::Thought { text, is_closed } => {
                    self.special("[THINK]");
                    self.plain(text);
                    if is_closed {
                        self.special("[/THINK]");
                    }
                }
            }
        }
    }

    fn result(&mut self, id: String, text: String) -> Result<(), Reason> {
        self.special("[TOOL_RESULTS]");
        match self.version {
            MistralVersion::V3 => {
                let result = json!({ "content": parsed(text)?, "call_id": id });
                self.plain(dumps(&result)?);
            }
            MistralVersion::V7 | MistralVersion::V11 => {
                self.plain(id);
                self.special("[TOOL_CONTENT]");
                self.plain(text);
            }
            MistralVersion::V13 | MistralVersion::V15 => self.plain(text),
        }
        self.special("[/TOOL_RESULTS]");
        Ok(())
    }

    fn answer(&mut self, chunks: Vec<Chunk>, calls: &[Call], is_open: bool) -> Result<(), Reason> {
        let is_either = chunks.is_empty() != calls.is_empty();
        if chunks.is_empty() && calls.is_empty() || !is_either && self.version == MistralVersion::V3 {
            return Err(Reason::Rejected);
        }
        match <[Chunk; 1]>::try_from(chunks) {
            // Spaces at the end go where the answer is text alone.
            Ok([Chunk::Text(text)]) => self.plain(text.trim_end_matches(' ').to_owned()),
            Ok(chunks) => self.chunks(chunks.into()),
            Err(chunks) => self.chunks(chunks),
        }
        match self.version {
            _ if calls.is_empty() => {}
            MistralVersion::V3 | MistralVersion::V7 => {
                let calls = calls
                    .iter()
                    .map(|call| json!({ "name": call.name, "arguments": call.arguments, "id": call.id }));
                self.special("[TOOL_CALLS]");
                self.plain(dumps(&Value::Array(calls.collect()))?);
            }
            MistralVersion::V11 | MistralVersion::V13 | MistralVersion::V15 => {
                for call in calls {
                    self.special("[TOOL_CALLS]");
                    self.plain(call.name.clone());
                    if self.version == MistralVersion::V11 {
                        self.special("[CALL_ID]");
                        self.plain(call.id.clone());
                    }
                    self.special("[ARGS]");
                    self.plain(dumps(&call.arguments)?);
                }
            }
        }
        if !is_open {
            self.special("</s>");
        }
        Ok(())
    }
}

/// A result as JSON where it is JSON to Python, else as a text.
fn parsed(text: String) -> Result<Value, Reason> {
    if text.is_empty() {
        return Ok(json!({}));
    }
    if let Ok(value) = crate::prompt::json::parse(text.as_bytes()) {
        return Ok(value);
    }
    // Python also reads numbers that are none, halves of surrogate pairs, and deeper values.
    let is_json_here = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    let may_be_json = ["NaN", "Infinity", "\\u"].iter().any(|mark| text.contains(mark));
    let is_deep = text.matches(['[', '{']).count() > 100;
    if is_json_here || may_be_json || is_deep { Err(Reason::Json) } else { Ok(Value::String(text)) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::codec::json::{Object, ScanLimits};
    use crate::dialect::Api;
    use crate::prompt::{Edition, PromptSource, Stop};

    fn rendered(version: MistralVersion, messages: &Value) -> Result<Rendered, Reason> {
        let body = Bytes::from(json!({ "messages": messages }).to_string());
        let body = Object::scan(body, ScanLimits::default()).unwrap();
        let PromptSource::Messages(chat) = PromptSource::read(Api::Chat, &body).unwrap() else {
            panic!("a chat")
        };
        let chat = if chat.has_media() { chat.with_media(MediaForm::Items) } else { *chat };
        let moment = Moment { edition: Edition::Of33, today: None, stop: &Stop::default() };
        render(MistralFormat::new(version, None).unwrap(), chat, moment)
    }

    #[test]
    fn a_chat_is_known_up_to_the_users_messages_with_its_first_image() {
        let system = json!({"role": "system", "content": "Be brief."});
        let said = json!({"role": "assistant", "content": "Yes?"});
        let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
        let looks = json!({"role": "user", "content": [{"type": "text", "text": "Look:"}, image]});
        let asks = json!({"role": "user", "content": "Hear."});
        for version in [MistralVersion::V3, MistralVersion::V7, MistralVersion::V11, MistralVersion::V13] {
            let early = json!([system, asks, said]);
            // Two messages of the user's in a row are one.
            let whole = json!([system, asks, said, asks, looks, said, looks]);
            let Ok(Rendered::Beginning { pieces, rest_bytes }) = rendered(version, &whole) else {
                panic!("{version:?}: a beginning")
            };
            assert!(rest_bytes > "Hear.\n\nLook:Yes?Look:".len());
            let mut open = early.as_array().unwrap().clone();
            open.push(asks.clone());
            let Ok(Rendered::Pieces(without)) = rendered(version, &Value::Array(open)) else {
                panic!("{version:?}: a chat without images")
            };
            assert_eq!(pieces[..], without[..pieces.len()], "{version:?}");
            assert_eq!(without[pieces.len()], Piece::Special("[INST]"), "{version:?}: all before it");
        }
    }

    #[test]
    fn images_of_others_than_users_are_not_looked_past() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
        let shows = json!({"role": "assistant", "content": [{"type": "text", "text": "See:"}, image]});
        let asks = json!({"role": "user", "content": "Hear."});
        let chat = json!([asks, shows, asks]);
        assert_eq!(rendered(MistralVersion::V13, &chat), Err(Reason::Media));
    }
}
