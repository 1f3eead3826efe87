//! Declarations of tools in gpt-oss's prompts: JSON schemas as types of TypeScript, as oss-harmony
//! 0.0.11 writes them.

use std::fmt::Write;

use serde_json::Value;

use crate::prompt::Reason;

/// Bytes of declarations that any request may come to, and more for every byte of it: deep schemas
/// are indented on every line.
const BASE_BYTES: usize = 1 << 20;
const PER_BYTE: usize = 4;

/// Most bytes of declarations for a request of so many.
pub(super) fn limit(source_bytes: usize) -> usize {
    BASE_BYTES.saturating_add(PER_BYTE.saturating_mul(source_bytes))
}

/// The section with all tools' declarations.
///
/// # Errors
/// [`Reason::Limit`] for more than `limit_bytes`.
pub(super) fn namespace(tools: &[Value], limit_bytes: usize) -> Result<String, Reason> {
    let mut out = Declarations { out: String::new(), limit_bytes };
    out.push("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for tool in tools {
        let function = tool.get("function").ok_or(Reason::Shape)?;
        let name = text(function, "name").ok_or(Reason::Shape)?;
        for line in text(function, "description").unwrap_or_default().lines() {
            out.line("", line);
        }
        out.push("type ");
        out.push(name);
        match function.get("parameters").filter(|parameters| !parameters.is_null()) {
            None => out.push(" = () => any;\n\n"),
            Some(parameters) => {
                out.push(" = (_: ");
                out.schema(parameters, "")?;
                out.push(") => any;\n\n");
            }
        }
    }
    out.push("} // namespace functions");
    Ok(out.out)
}

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of.get(key)?.as_str()
}

fn list<'a>(of: &'a Value, key: &str) -> Option<&'a [Value]> {
    Some(of.get(key)?.as_array()?.as_slice())
}

/// The default as a comment shows it; one of an enumeration stands without quotes if `bare`.
fn default(schema: &Value, bare: bool) -> Option<String> {
    let default = schema.get("default")?;
    let is_enum = list(schema, "enum").is_some_and(|values| !values.is_empty());
    Some(match default.as_str() {
        Some(text) if !is_enum => format!("default: \"{text}\""),
        Some(text) if bare => format!("default: {text}"),
        _ => format!("default: {default}"),
    })
}

/// Declarations under construction.
struct Declarations {
    out: String,
    limit_bytes: usize,
}

impl Declarations {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// A comment on a line of its own.
    fn line(&mut self, indent: &str, text: &str) {
        // Writing to a string can't fail.
        let _ = writeln!(self.out, "{indent}// {text}");
    }

    fn checked(&self) -> Result<(), Reason> {
        if self.out.len() > self.limit_bytes { Err(Reason::Limit) } else { Ok(()) }
    }

    fn schema(&mut self, schema: &Value, indent: &str) -> Result<(), Reason> {
        self.checked()?;
        if let Some(variants) = list(schema, "oneOf") {
            return self.union(variants, indent);
        }
        let named = list(schema, "type").unwrap_or_default().iter().filter_map(Value::as_str);
        let named: Vec<&str> = named.map(|name| if name == "integer" { "number" } else { name }).collect();
        if !named.is_empty() {
            self.push(&named.join(" | "));
            return Ok(());
        }
        match text(schema, "type") {
            Some("object") => self.object(schema, indent)?,
            Some("string") => {
                let values = list(schema, "enum").unwrap_or_default().iter().filter_map(Value::as_str);
                let values: Vec<String> = values.map(|value| format!("\"{value}\"")).collect();
                self.push(if values.is_empty() { "string" } else { "" });
                self.push(&values.join(" | "));
            }
            Some("number" | "integer") => self.push("number"),
            Some("boolean") => self.push("boolean"),
            Some("array") => match schema.get("items") {
                Some(items) => {
                    self.schema(items, indent)?;
                    self.push("[]");
                }
                None => self.push("Array<any>"),
            },
            _ => self.push("any"),
        }
        Ok(())
    }

    /// A schema, and that it may be null if it says so and its type does not.
    fn nullable(&mut self, schema: &Value, indent: &str) -> Result<(), Reason> {
        let from = self.out.len();
        self.schema(schema, indent)?;
        let is_nullable = schema.get("nullable").and_then(Value::as_bool).unwrap_or(false);
        if is_nullable && !self.out.get(from..).is_some_and(|written| written.contains("null")) {
            self.push(" | null");
        }
        Ok(())
    }

    /// Alternatives, each on a line.
    fn union(&mut self, variants: &[Value], indent: &str) -> Result<(), Reason> {
        for variant in variants {
            self.push("\n");
            self.push(indent);
            self.push(" | ");
            self.nullable(variant, &format!("{indent}   "))?;
            let description = text(variant, "description").map(str::to_owned);
            self.trailing(description.into_iter().chain(default(variant, false)).collect());
        }
        Ok(())
    }

    fn trailing(&mut self, comments: Vec<String>) {
        if !comments.is_empty() {
            self.push(" // ");
            self.push(&comments.join(" "));
        }
    }

    fn object(&mut self, schema: &Value, indent: &str) -> Result<(), Reason> {
        if let Some(description) = text(schema, "description") {
            self.line(indent, description);
        }
        self.push("{\n");
        let required: Vec<&str> =
            list(schema, "required").unwrap_or_default().iter().filter_map(Value::as_str).collect();
        let required: std::collections::HashSet<&str> = required.into_iter().collect();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let mark = if required.contains(name.as_str()) { "" } else { "?" };
            self.property(&format!("{name}{mark}"), property, indent)?;
        }
        self.push(indent);
        self.push("}");
        Ok(())
    }

    fn property(&mut self, name: &str, property: &Value, indent: &str) -> Result<(), Reason> {
        if let Some(title) = text(property, "title") {
            self.line(indent, title);
            self.push(indent);
            self.push("//\n");
        }
        let has_union = property.get("oneOf").is_some();
        if let (Some(description), false) = (text(property, "description"), has_union) {
            self.line(indent, description);
        }
        let examples = list(property, "examples").unwrap_or_default();
        if !examples.is_empty() {
            self.line(indent, "Examples:");
        }
        for example in examples.iter().filter_map(Value::as_str) {
            self.line(indent, &format!("- \"{example}\""));
        }
        if let Some(variants) = list(property, "oneOf") {
            return self.alternatives(name, property, variants, indent);
        }
        self.push(indent);
        self.push(name);
        self.push(": ");
        self.nullable(property, &format!("{indent}    "))?;
        self.push(",");
        if let (Some(default), false) = (default(property, true), has_union) {
            self.trailing(vec![default]);
        }
        self.push("\n");
        Ok(())
    }

    /// A property of one of several types. Its description stands above unless the first type has
    /// the same.
    fn alternatives(
        &mut self,
        name: &str,
        property: &Value,
        variants: &[Value],
        indent: &str,
    ) -> Result<(), Reason> {
        let own = text(property, "description");
        let first = variants.first().and_then(|variant| text(variant, "description"));
        let is_above = own.is_some() && own != first;
        if let (Some(description), true) = (own, is_above) {
            self.line(indent, description);
        }
        if let Some(default) = default(property, true) {
            self.line(indent, &default);
        }
        self.push(indent);
        self.push(name);
        self.push(":\n");
        for (at, variant) in variants.iter().enumerate() {
            self.push(indent);
            self.push(" | ");
            self.nullable(variant, &format!("{indent}   "))?;
            let description = text(variant, "description").filter(|text| Some(*text) != own);
            let description = description.filter(|_| at > 0 || !is_above).map(str::to_owned);
            self.trailing(description.into_iter().chain(default(variant, true)).collect());
            self.push("\n");
        }
        self.push(indent);
        self.push(",\n");
        Ok(())
    }
}
