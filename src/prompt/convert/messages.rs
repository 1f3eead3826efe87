//! Anthropic's Messages API (vLLM 0.32 and 0.33, `AnthropicServingMessages`).

use serde_json::{Map, Value};

use super::{
    Converted, Function, OpenChoices, Origin, call, image, list, message, object, take_text, text_part,
    tool_result, value, with_same,
};
use crate::codec::json::{Edit, Object, Value as Member, quote};
use crate::prompt::Reason;
use crate::prompt::encoding::dumps_ascii;
use crate::prompt::parts::BILLING_HEADER;
use crate::prompt::source::present;

/// Type of an image without one.
const IMAGE_TYPE: &str = "image/jpeg";

pub(super) fn convert(body: &Object) -> Result<Converted, Reason> {
    let mut out: Vec<Value> = system(body)?.into_iter().collect();
    let mut choices = OpenChoices::default();
    for given in list(body, "messages")?.ok_or(Reason::Shape)? {
        let mut given = object(given)?;
        let role = take_text(&mut given, "role")?.ok_or(Reason::Shape)?;
        let content = given.shift_remove("content").ok_or(Reason::Shape)?;
        match role.as_str() {
            "system" => {
                if let Some(text) = system_text(content)?.filter(|text| !text.is_empty()) {
                    choices.inline_system |= !out.is_empty();
                    out.push(message("system", text));
                }
            }
            "user" | "assistant" => turn(&role, content, &mut out)?,
            _ => return Err(Reason::Shape),
        }
    }
    let mut members = with_same(Edit::new(), body, "chat_template_kwargs");
    choices.thinking_off = thinking_off(body)?;
    if let Some(effort) = effort(body, choices)? {
        members = members.set("reasoning_effort", quote(&effort));
    }
    if tool_choice(body)?.is_some_and(|kind| kind == "none") {
        members = members.set("tool_choice", quote("none"));
    }
    Ok(Converted { messages: out, tools: tools(body)?, members, origin: Origin::Messages(choices) })
}

/// The system message of the member `system`.
fn system(body: &Object) -> Result<Option<Value>, Reason> {
    let text = match value(body, "system")? {
        None => None,
        // The line for billing is left out of a list's texts alone.
        Some(Value::String(text)) => Some(text),
        Some(blocks) => system_text(blocks)?,
    };
    Ok(text.filter(|text| !text.is_empty()).map(|text| message("system", text)))
}

/// The texts of a system message, without those that begin with the line for billing.
fn system_text(content: Value) -> Result<Option<String>, Reason> {
    let blocks = match content {
        Value::String(text) => return Ok(Some(text).filter(|text| !text.starts_with(BILLING_HEADER))),
        Value::Array(blocks) => blocks,
        _ => return Err(Reason::Shape),
    };
    let mut texts = String::new();
    for block in blocks {
        let mut block = object(block)?;
        match kind(&block)? {
            "text" => {
                let text = take_text(&mut block, "text")?.unwrap_or_default();
                if !text.starts_with(BILLING_HEADER) {
                    texts.push_str(&text);
                }
            }
            // They change the list of tools.
            "tool_addition" | "tool_removal" => return Err(Reason::Shape),
            _ => {}
        }
    }
    Ok(Some(texts))
}

fn kind(block: &Map<String, Value>) -> Result<&str, Reason> {
    block.get("type").and_then(Value::as_str).ok_or(Reason::Shape)
}

/// Content of a turn's message, as its blocks make it.
#[derive(Default)]
struct Turn {
    parts: Vec<Value>,
    calls: Vec<Value>,
    reasoning: Option<String>,
}

/// Adds the message of a turn, after the results of tools that stand in it.
fn turn(role: &str, content: Value, out: &mut Vec<Value>) -> Result<(), Reason> {
    let blocks = match content {
        Value::String(text) => {
            out.push(message(role, text));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return Err(Reason::Shape),
    };
    let mut turn = Turn::default();
    for block in blocks {
        read_block(role, object(block)?, &mut turn, out)?;
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), Value::from(role));
    if let Some(reasoning) = turn.reasoning {
        message.insert("reasoning".to_owned(), Value::String(reasoning));
    }
    if !turn.calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(turn.calls));
    }
    match only_text(&mut turn.parts) {
        Some(text) => drop(message.insert("content".to_owned(), text)),
        None if turn.parts.is_empty() => {}
        None => drop(message.insert("content".to_owned(), Value::Array(turn.parts))),
    }
    if role != "user" || message.contains_key("content") {
        out.push(Value::Object(message));
    }
    Ok(())
}

/// The text of parts that are one text.
fn only_text(parts: &mut [Value]) -> Option<Value> {
    let [part] = parts else { return None };
    part.get_mut("text").map(Value::take)
}

fn read_block(
    role: &str,
    mut block: Map<String, Value>,
    turn: &mut Turn,
    out: &mut Vec<Value>,
) -> Result<(), Reason> {
    match kind(&block)? {
        "text" => {
            let text = take_text(&mut block, "text")?.filter(|text| !text.is_empty());
            turn.parts.extend(text.map(|text| Value::Object(text_part(text))));
        }
        "image" => {
            let source = block.shift_remove("source").filter(|source| !source.is_null());
            let source = source.map(object).transpose()?.filter(|source| !source.is_empty());
            let url = source.map(image_url).transpose()?;
            turn.parts.extend(url.map(|url| Value::Object(image(url))));
        }
        "thinking" => {
            if let Some(text) = take_text(&mut block, "thinking")? {
                turn.reasoning.get_or_insert_default().push_str(&text);
            }
        }
        "tool_use" => turn.calls.push(tool_use(block)?),
        "tool_result" if role == "user" => results(block, out)?,
        "tool_result" => {
            let text = match block.shift_remove("content") {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text,
                Some(Value::Array(items)) if items.is_empty() => String::new(),
                // Engines print the list as Python does.
                Some(_) => return Err(Reason::Shape),
            };
            turn.parts.push(Value::Object(text_part(format!("Tool result: {text}"))));
        }
        "redacted_thinking" | "tool_reference" => {}
        _ => return Err(Reason::Shape),
    }
    Ok(())
}

/// A call of a tool. Engines make an id of the time for one without.
fn tool_use(mut block: Map<String, Value>) -> Result<Value, Reason> {
    let id = take_text(&mut block, "id")?.filter(|id| !id.is_empty()).ok_or(Reason::Shape)?;
    let name = take_text(&mut block, "name")?.unwrap_or_default();
    let input = match block.shift_remove("input") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(input) => Value::Object(object(input)?),
    };
    Ok(call(id, name, dumps_ascii(&input)?))
}

/// The results of a tool: its text, then its images as a message of the user.
fn results(mut block: Map<String, Value>, out: &mut Vec<Value>) -> Result<(), Reason> {
    let id = Value::String(take_text(&mut block, "tool_use_id")?.unwrap_or_default());
    let (mut texts, mut images, mut references) = (Vec::new(), Vec::new(), Vec::new());
    match block.shift_remove("content") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => texts.push(text),
        Some(Value::Array(items)) => {
            for item in items {
                let mut item = object(item)?;
                match item.get("type").and_then(Value::as_str) {
                    Some("text") => texts.push(result_text(&mut item)?),
                    Some("image") => {
                        let source = item.shift_remove("source").map_or_else(|| Ok(Map::new()), object)?;
                        let url = Some(image_url(source)?).filter(|url| !url.is_empty());
                        images.extend(url.map(|url| Value::Object(image(url))));
                    }
                    Some("tool_reference") => references.extend(reference(&mut item)?),
                    _ => {}
                }
            }
        }
        Some(_) => return Err(Reason::Shape),
    }
    out.push(tool_result(id.clone(), Value::String(texts.join("\n"))));
    if !images.is_empty() {
        out.push(message("user", images));
    }
    if !references.is_empty() {
        out.push(tool_result(id, Value::Array(references)));
    }
    Ok(())
}

fn result_text(item: &mut Map<String, Value>) -> Result<String, Reason> {
    match item.shift_remove("text") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Reason::Shape),
    }
}

/// The name of a tool that a result refers to.
fn reference(item: &mut Map<String, Value>) -> Result<Option<Value>, Reason> {
    let named = |name: Option<String>| name.filter(|name| !name.is_empty());
    let (tool, own) = (take_text(item, "tool_name")?, take_text(item, "name")?);
    Ok(named(tool).or(named(own)).map(|name| {
        let mut part = Map::new();
        part.insert("type".to_owned(), Value::from("tool_reference"));
        part.insert("name".to_owned(), Value::String(name));
        Value::Object(part)
    }))
}

/// The address of an image, which may be the image itself.
fn image_url(mut source: Map<String, Value>) -> Result<String, Reason> {
    let mut text = |key, default: &str| match source.shift_remove(key) {
        None => Ok(default.to_owned()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Reason::Shape),
    };
    if text("type", "base64")? == "url" {
        return text("url", "");
    }
    Ok(format!("data:{};base64,{}", text("media_type", IMAGE_TYPE)?, text("data", "")?))
}

/// True if the client wants no thinking.
fn thinking_off(body: &Object) -> Result<bool, Reason> {
    let Some(thinking) = present(body, "thinking") else { return Ok(false) };
    let thinking = thinking.object().map_err(|_| Reason::Shape)?;
    Ok(thinking.get("type").is_some_and(|kind| kind.as_str().is_some_and(|kind| kind == "disabled")))
}

/// The effort that the chat asks for: that of `output_config`, unless thinking is off.
fn effort(body: &Object, choices: OpenChoices) -> Result<Option<String>, Reason> {
    if choices.thinking_off {
        return Ok(Some("none".to_owned()));
    }
    let Some(config) = present(body, "output_config") else { return Ok(None) };
    let config = config.object().map_err(|_| Reason::Shape)?;
    let Some(effort) = present(&config, "effort") else { return Ok(None) };
    let known = |effort: &str| matches!(effort, "low" | "medium" | "high" | "xhigh" | "max");
    let effort = effort.as_str().filter(|effort| known(effort)).ok_or(Reason::Shape)?;
    Ok(Some(effort.into_owned()))
}

fn tool_choice(body: &Object) -> Result<Option<String>, Reason> {
    let Some(choice) = present(body, "tool_choice") else { return Ok(None) };
    let choice = choice.object().map_err(|_| Reason::Shape)?;
    Ok(choice.get("type").and_then(|kind: Member<'_>| kind.as_str()).map(|kind| kind.into_owned()))
}

fn tools(body: &Object) -> Result<Option<Vec<Value>>, Reason> {
    let Some(tools) = list(body, "tools")? else { return Ok(None) };
    tools.into_iter().map(tool).collect::<Result<_, _>>().map(Some)
}

fn tool(tool: Value) -> Result<Value, Reason> {
    let mut tool = object(tool)?;
    let name = take_text(&mut tool, "name")?.ok_or(Reason::Shape)?;
    // A tool of Anthropic's own has none, and is refused.
    let mut schema = object(tool.shift_remove("input_schema").ok_or(Reason::Shape)?)?;
    schema.entry("type").or_insert_with(|| Value::from("object"));
    let mut take = |key| tool.shift_remove(key).unwrap_or_default();
    let function = Function {
        name,
        description: take("description"),
        parameters: Value::Object(schema),
        strict: take("strict"),
        defer_loading: take("defer_loading"),
    };
    Ok(function.into_tool())
}
