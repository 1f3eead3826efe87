//! The parts of a message's content (vLLM 0.32, `_parse_chat_message_content_parts`).

use serde_json::{Map, Value};

use super::Reason;
use super::media::{self, MediaForm};
use super::template::ContentFormat;

/// A system line that changes with every request, which the engine drops for its prefix cache's
/// sake.
pub(super) const BILLING_HEADER: &str = "x-anthropic-billing-header";

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

/// A part as a template may get it.
enum Part {
    /// A text, and members of the client's own.
    Text(String, Map<String, Value>),
    /// An image, sound or film by its kind, and members of the client's own.
    Item(&'static str, Map<String, Value>),
}

/// The content that the template gets: one string, or a list of parts, `{"type": "text", "text":
/// …}` or `{"type": "image"}`. Items are a text of their own in it if `media` says so.
pub(super) fn content(
    parts: Vec<Value>,
    role: &str,
    format: ContentFormat,
    media: MediaForm,
) -> Result<Value, Reason> {
    let mut parts = parts.into_iter().map(|part| read(part, role, media)).collect::<Result<Vec<_>, _>>()?;
    let has_items = parts.iter().any(|part| matches!(part, Part::Item(..)));
    // A tool's result of texts is one text to every template.
    if format == ContentFormat::String || (role == "tool" && !has_items) {
        // As one string, a part without text is left out, with its line break.
        let is_kept = |part: &Part| match part {
            Part::Text(text, _) => format == ContentFormat::OpenAi || !text.is_empty(),
            Part::Item(..) => false,
        };
        parts.retain(is_kept);
        return Ok(Value::String(joined(parts, has_items.then(|| media.text_in_front()))));
    }
    Ok(Value::Array(parts.into_iter().map(|part| wrapped(part, media)).collect()))
}

/// The texts with a line break between two. Engines put what stands for items in front.
fn joined(mut parts: Vec<Part>, in_front: Option<&'static str>) -> String {
    if in_front.is_none()
        && let [Part::Text(text, _)] = parts.as_mut_slice()
    {
        return std::mem::take(text);
    }
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text, _) => Some(text.as_str()),
        Part::Item(..) => None,
    });
    in_front.into_iter().chain(texts).collect::<Vec<_>>().join("\n")
}

fn wrapped(part: Part, media: MediaForm) -> Value {
    let mut out = Map::new();
    let mut text = |text: String, extra| {
        out.insert("type".to_owned(), Value::from("text"));
        out.insert("text".to_owned(), Value::String(text));
        out.extend(extra);
    };
    match (part, media.text_in_place()) {
        (Part::Text(own, extra), _) => text(own, extra),
        (Part::Item(..), Some(other)) => text(other.to_owned(), Map::new()),
        (Part::Item(kind, extra), None) => {
            out.insert("type".to_owned(), Value::from(kind));
            out.extend(extra);
        }
    }
    Value::Object(out)
}

/// True if a part is something other than text.
pub(super) fn is_media(part: &Value) -> bool {
    part.as_object().is_some_and(names_media)
}

fn names_media(part: &Map<String, Value>) -> bool {
    let kind = part.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| MEDIA.contains(&kind)) || part.keys().any(|key| MEDIA.contains(&key.as_str()))
}

/// A part, with the members that the engine passes on beside its own.
fn read(part: Value, role: &str, form: MediaForm) -> Result<Part, Reason> {
    let mut part = match part {
        Value::String(text) => return Ok(Part::Text(text, Map::new())),
        Value::Object(part) => part,
        _ => return Err(Reason::Shape),
    };
    if names_media(&part) {
        let kind = media::kind(&part).filter(|_| form != MediaForm::Unknown).ok_or(Reason::Media)?;
        part.retain(|key, _| !KNOWN_FIELDS.contains(&key.as_str()));
        return Ok(Part::Item(kind, part));
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
    Ok(Part::Text(text, part))
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
