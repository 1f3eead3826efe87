//! DeepSeek's markup of tool calls, which differs between its models in the names of tags.

use serde_json::{Map, Value};

use super::dumps::dumps;
use crate::prompt::Reason;

/// Special token in the names of all tags.
const DSML: &str = "｜DSML｜";

/// Names of tags, each with the space before it if it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags {
    /// Block of all calls of a message.
    pub(super) calls: &'static str,
    /// A single call.
    pub(super) invoke: &'static str,
    /// A single argument of a call.
    pub(super) parameter: &'static str,
}

/// A call of a tool, as the client sent it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

impl Call {
    /// Reads a call of a parsed conversation.
    pub(super) fn read(call: &Value) -> Result<Self, Reason> {
        let function = call.get("function").ok_or(Reason::Shape)?;
        let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
        let id = text(call, "id").ok_or(Reason::Shape)?;
        // Without an id the engine looks for one in the function.
        if id.is_empty() && function.get("id").is_some() {
            return Err(Reason::Shape);
        }
        let name = text(function, "name").ok_or(Reason::Shape)?;
        let arguments = function.get("arguments").and_then(Value::as_object).ok_or(Reason::Shape)?;
        Ok(Self { id, name, arguments: arguments.clone() })
    }
}

/// Appends the block of all calls.
pub(super) fn write_calls(out: &mut String, calls: &[Call], tags: Tags) -> Result<(), Reason> {
    let Tags { calls: all, invoke, parameter } = tags;
    out.push_str(&format!("\n\n<{DSML}{all}>\n"));
    for (at, call) in calls.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        out.push_str(&format!("<{DSML}{invoke} name=\"{}\">\n", call.name));
        for (at, (key, value)) in call.arguments.iter().enumerate() {
            if at > 0 {
                out.push('\n');
            }
            out.push_str(&format!("<{DSML}{parameter} name=\"{key}\" string=\"{}\">", value.is_string()));
            match value {
                Value::String(text) => out.push_str(text),
                other => out.push_str(&dumps(other)?),
            }
            out.push_str(&format!("</{DSML}{parameter}>"));
        }
        out.push_str(&format!("\n</{DSML}{invoke}>"));
    }
    out.push_str(&format!("\n</{DSML}{all}>"));
    Ok(())
}

/// Appends a text in which `{dsml}`, the names of tags and `{schemas}` stand for themselves; the
/// last for the tools' functions, a line each.
pub(super) fn write_tools(
    out: &mut String,
    instructions: &str,
    tools: &[Value],
    tags: Tags,
) -> Result<(), Reason> {
    let functions = tools.iter().map(|tool| dumps(tool.get("function").unwrap_or(&Value::Null)));
    let schemas = functions.collect::<Result<Vec<_>, _>>()?.join("\n");
    let (before, after) = instructions.split_once("{schemas}").unwrap_or((instructions, ""));
    let named = |text: &str| {
        text.replace("{dsml}", DSML)
            .replace("{calls}", tags.calls)
            .replace("{invoke}", tags.invoke)
            .replace("{parameter}", tags.parameter)
    };
    out.push_str(&named(before));
    out.push_str(&schemas);
    out.push_str(&named(after));
    Ok(())
}
