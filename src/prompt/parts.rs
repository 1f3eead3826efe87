//! The parts of a message's content (vLLM 0.32, `_parse_chat_message_content_parts`).

use serde_json::{Map, Value};

use super::Reason;
use super::template::ContentFormat;

/// A system line that changes with every request, which the engine drops for its prefix cache's
/// sake.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Members of a text part that the template does not get to see.
const KNOWN_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];
/// Members and types that say that a part is not text.
const MEDIA: [&str; 12] = [
    "audio_embeds",
    "audio_url",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
    "prompt_embeds",
    "video_embeds",
    "video_url",
];

/// The content that the template gets: one string, or a list of `{"type": "text", "text": …}`.
pub(super) fn content(parts: Vec<Value>, role: &str, format: ContentFormat) -> Result<Value, Reason> {
    let mut parts = parts.into_iter().map(|part| text_part(part, role)).collect::<Result<Vec<_>, _>>()?;
    // A tool's result is text to every template.
    if format == ContentFormat::String || role == "tool" {
        // As one string, a part without text is left out, with its line break.
        parts.retain(|(text, _)| format == ContentFormat::OpenAi || !text.is_empty());
        if let [(_, _)] = parts.as_slice() {
            let only = parts.pop().map(|(text, _)| text);
            return Ok(Value::String(only.unwrap_or_default()));
        }
        let texts: Vec<&str> = parts.iter().map(|(text, _)| text.as_str()).collect();
        return Ok(Value::String(texts.join("\n")));
    }
    let wrapped = parts.into_iter().map(|(text, extra)| {
        let mut part = Map::new();
        part.insert("type".to_owned(), Value::from("text"));
        part.insert("text".to_owned(), Value::String(text));
        part.extend(extra);
        Value::Object(part)
    });
    Ok(Value::Array(wrapped.collect()))
}

/// True if a part is something other than text.
pub(super) fn is_media(part: &Value) -> bool {
    part.as_object().is_some_and(names_media)
}

fn names_media(part: &Map<String, Value>) -> bool {
    let kind = part.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| MEDIA.contains(&kind)) || part.keys().any(|key| MEDIA.contains(&key.as_str()))
}

/// A part's text, and the members that the engine passes on beside it.
fn text_part(part: Value, role: &str) -> Result<(String, Map<String, Value>), Reason> {
    let mut part = match part {
        Value::String(text) => return Ok((text, Map::new())),
        Value::Object(part) => part,
        _ => return Err(Reason::Shape),
    };
    if names_media(&part) {
        return Err(Reason::Media);
    }
    let kind = part.get("type").and_then(Value::as_str);
    let key = match kind {
        Some("text") => "text",
        Some("refusal") if role == "assistant" => "refusal",
        _ => return Err(Reason::Shape),
    };
    let Some(Value::String(text)) = part.shift_remove(key) else { return Err(Reason::Shape) };
    if part.contains_key("uuid") {
        return Err(Reason::Shape);
    }
    part.retain(|key, _| !KNOWN_FIELDS.contains(&key.as_str()));
    Ok((text, part))
}

/// True if a text, or a part's text, begins with the line that the engine drops.
pub(super) fn has_billing_header(part: &Value) -> bool {
    let text = part.as_str().or_else(|| part.get("text")?.as_str());
    text.is_some_and(|text| text.starts_with(BILLING_HEADER))
}

pub(super) fn strip_billing_header(parts: Vec<Value>) -> Vec<Value> {
    parts.into_iter().filter_map(without_header).collect()
}

/// `None` when the header was all there was.
fn without_header(mut part: Value) -> Option<Value> {
    let text = match &mut part {
        Value::String(text) => text,
        Value::Object(members) if members.get("type").is_some_and(|kind| kind == "text") => {
            match members.get_mut("text") {
                Some(Value::String(text)) => text,
                _ => return Some(part),
            }
        }
        _ => return Some(part),
    };
    if text.starts_with(BILLING_HEADER) {
        let rest = text.split_once('\n').map(|(_, rest)| rest.to_owned()).filter(|rest| !rest.is_empty())?;
        *text = rest;
    }
    Some(part)
}
