//! Lists of models of several fleets as one, and names that are aliases.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::server::fleets::{ModelAlias, ServedFleet};

/// Member of an entry that names the fleet.
const FLEET: &str = "fleet";

/// The most entries of all fleets together.
const MAX_MODELS: usize = 65_536;

/// A list in the making, each name once.
#[derive(Debug, Default)]
pub(super) struct ModelList {
    entries: Vec<Value>,
    names: HashSet<String>,
}

impl ModelList {
    /// Adds the list of a fleet's engine, the fleet's configured model and its aliases; of these,
    /// the names by which requests come to this fleet.
    pub(super) fn add(
        &mut self,
        fleet: &ServedFleet,
        list: Option<&Bytes>,
        aliases: &[ModelAlias],
        is_of_fleet: impl Fn(&str) -> bool,
    ) {
        let mut entries = list.and_then(|list| entries_of(list)).unwrap_or_default();
        if let Some(model) = fleet.access.now().model.as_deref().filter(|_| entries.is_empty()) {
            entries.push(json!({ "id": model, "object": "model", "created": 0, "owned_by": "pd-proxy" }));
        }
        entries.extend(alias_entries(&entries, aliases));
        for mut entry in entries {
            let Some(name) = name_of(&entry).map(str::to_owned) else { continue };
            if self.entries.len() < MAX_MODELS && is_of_fleet(&name) && self.names.insert(name) {
                entry[FLEET] = Value::from(&*fleet.name);
                self.entries.push(entry);
            }
        }
    }

    /// True if no fleet lists anything.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The text of the list.
    pub(super) fn to_bytes(&self) -> Bytes {
        json!({ "object": "list", "data": self.entries }).to_string().into()
    }
}

/// A list with entries for the aliases of what it has.
pub(super) fn with_aliases(list: Bytes, aliases: &[ModelAlias]) -> Bytes {
    let Ok(mut whole) = serde_json::from_slice::<Value>(&list) else { return list };
    let Some(entries) = whole.get_mut("data").and_then(Value::as_array_mut) else { return list };
    entries.extend(alias_entries(entries, aliases));
    whole.to_string().into()
}

/// Entries for aliases: those of the models that they lead to, under another name.
fn alias_entries(entries: &[Value], aliases: &[ModelAlias]) -> Vec<Value> {
    let named = |name: &str| entries.iter().find(|entry| name_of(entry) == Some(name));
    aliases
        .iter()
        .filter(|alias| named(&alias.name).is_none())
        .filter_map(|alias| {
            let mut entry = named(&alias.model)?.clone();
            entry["id"] = Value::from(&*alias.name);
            entry["parent"] = Value::from(&*alias.model);
            Some(entry)
        })
        .collect()
}

fn entries_of(list: &[u8]) -> Option<Vec<Value>> {
    let mut list: Value = serde_json::from_slice(list).ok()?;
    match list.get_mut("data").map(Value::take) {
        Some(Value::Array(entries)) => Some(entries.into_iter().filter(Value::is_object).collect()),
        _ => None,
    }
}

fn name_of(entry: &Value) -> Option<&str> {
    entry.get("id").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_is_listed_beside_the_model_that_it_leads_to() {
        let list = Bytes::from_static(br#"{"object":"list","data":[{"id":"qwen","max_model_len":8}]}"#);
        let alias = |name: &str, model: &str| ModelAlias { name: name.into(), model: model.into() };
        let aliases = [alias("gpt-4o", "qwen"), alias("other", "missing"), alias("qwen", "qwen")];
        let text = with_aliases(list, &aliases);
        let expected = json!({"object": "list", "data": [
            {"id": "qwen", "max_model_len": 8},
            {"id": "gpt-4o", "max_model_len": 8, "parent": "qwen"},
        ]});
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn text_that_is_no_list_is_passed_on() {
        for text in ["", "[]", r#"{"data":{}}"#] {
            let bytes = Bytes::copy_from_slice(text.as_bytes());
            assert_eq!(with_aliases(bytes.clone(), &[]), bytes);
        }
    }
}
