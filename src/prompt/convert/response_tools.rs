//! Tools of a Responses request (vLLM 0.32 and 0.33, `get_function_tools` and
//! `construct_tool_dicts`).

use serde_json::{Map, Value, json};

use super::response_items::flat_name;
use super::{Function, list, object, take_text};
use crate::codec::json::Object;
use crate::prompt::Reason;

/// Tools that engines run themselves, or not at all. Templates do not see them.
const HIDDEN: [&str; 12] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "web_search",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];

/// The tools that a template sees; `None` if the request has none at all.
pub(super) fn tools(body: &Object) -> Result<Option<Vec<Value>>, Reason> {
    let Some(given) = list(body, "tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let mut out = Vec::new();
    for tool in given {
        let mut tool = object(tool)?;
        match take_text(&mut tool, "type")?.as_deref() {
            Some("function") => out.push(function(tool, None)?),
            Some("custom") => out.push(custom(tool)?),
            Some("namespace") => {
                let space = take_text(&mut tool, "name")?.ok_or(Reason::Shape)?;
                let Some(Value::Array(inner)) = tool.shift_remove("tools") else { return Err(Reason::Shape) };
                for tool in inner {
                    let mut tool = object(tool)?;
                    if take_text(&mut tool, "type")?.is_some_and(|kind| kind == "function") {
                        out.push(function(tool, Some(&space))?);
                    }
                }
            }
            Some(kind) if HIDDEN.contains(&kind) => {}
            _ => return Err(Reason::Shape),
        }
    }
    Ok(Some(out))
}

fn function(mut tool: Map<String, Value>, space: Option<&str>) -> Result<Value, Reason> {
    let name = take_text(&mut tool, "name")?.ok_or(Reason::Shape)?;
    let name = space.map_or_else(|| name.clone(), |space| flat_name(space, &name));
    let mut take = |key| tool.shift_remove(key).unwrap_or_default();
    let function = Function {
        name,
        description: take("description"),
        parameters: take("parameters"),
        strict: take("strict"),
        defer_loading: take("defer_loading"),
    };
    Ok(function.into_tool())
}

/// A tool that takes any text is shown as a function of one text.
fn custom(mut tool: Map<String, Value>) -> Result<Value, Reason> {
    let name = take_text(&mut tool, "name")?.ok_or(Reason::Shape)?;
    let description = tool.shift_remove("description").unwrap_or_default();
    let parameters = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
        "required": ["input"],
        "additionalProperties": false,
    });
    Ok(Function { name, description, parameters, ..Function::default() }.into_tool())
}
