//! Settings that Mistral's models of version 15 are told of in their prompts, as mistral-common
//! 1.13 builds them (`model_settings_builder.py`).

use serde_json::{Map, Value};

use crate::prompt::Reason;

/// Efforts that mistral-common knows.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Efforts of one model: those that requests may ask for, and the one for requests that don't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MistralEfforts {
    /// For each of [`EFFORTS`], true if the model has it.
    has: [bool; EFFORTS.len()],
    default: &'static str,
}

/// A `model_settings_builder` of another form than those that are followed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownSettings;

impl MistralEfforts {
    /// Reads a `model_settings_builder`; `None` is a model that knows no effort.
    ///
    /// # Errors
    /// The object is of another form.
    pub(super) fn read(settings: &Value) -> Result<Option<Self>, UnknownSettings> {
        let settings = settings.as_object().ok_or(UnknownSettings)?;
        // Engines pass no format of the response on, so a schema is never among the settings.
        let is_known = |name: &String| ["reasoning_effort", "json_schema"].contains(&name.as_str());
        if !settings.keys().all(is_known) {
            return Err(UnknownSettings);
        }
        match settings.get("reasoning_effort") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(efforts)) => Self::of_builder(efforts).map(Some).ok_or(UnknownSettings),
            Some(_) => Err(UnknownSettings),
        }
    }

    fn of_builder(builder: &Map<String, Value>) -> Option<Self> {
        let may_be = |name: &str, value: Value| builder.get(name).is_none_or(|given| *given == value);
        let known = ["accepts_none", "default", "type", "values"];
        let is_known = builder.keys().all(|name| known.contains(&name.as_str()));
        if !is_known || !may_be("type", Value::from("enum")) || !may_be("accepts_none", Value::Bool(true)) {
            return None;
        }
        let place = |name: &Value| EFFORTS.iter().position(|effort| name == effort);
        let mut has = [false; EFFORTS.len()];
        for name in builder.get("values")?.as_array()? {
            let effort = has.get_mut(place(name)?)?;
            if std::mem::replace(effort, true) {
                return None;
            }
        }
        let default = place(builder.get("default")?)?;
        has.get(default).filter(|has| **has)?;
        Some(Self { has, default: EFFORTS.get(default)? })
    }

    /// The settings with an effort, as the model reads them.
    ///
    /// # Errors
    /// [`Reason::Rejected`] for an effort that the model does not have.
    pub(super) fn settings(self, asked: Option<&Value>) -> Result<String, Reason> {
        let effort = match asked {
            None => self.default,
            Some(asked) => {
                let mut efforts = EFFORTS.iter().zip(self.has);
                let found = efforts.find(|(effort, has)| *has && asked == *effort);
                found.map(|(effort, _)| *effort).ok_or(Reason::Rejected)?
            }
        };
        Ok(format!("{{\"reasoning_effort\": \"{effort}\"}}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(efforts: Value) -> Result<Option<MistralEfforts>, UnknownSettings> {
        MistralEfforts::read(&json!({ "reasoning_effort": efforts }))
    }

    #[test]
    fn settings_have_the_effort_that_was_asked_for_or_the_default() {
        let efforts = read(
            json!({"type": "enum", "accepts_none": true, "default": "none", "values": ["none", "high"]}),
        );
        let efforts = efforts.unwrap().unwrap();
        let settings = |asked: Value| efforts.settings(Some(&asked));
        assert_eq!(efforts.settings(None).as_deref(), Ok(r#"{"reasoning_effort": "none"}"#));
        assert_eq!(settings(json!("high")).as_deref(), Ok(r#"{"reasoning_effort": "high"}"#));
        assert_eq!(settings(json!("low")), Err(Reason::Rejected));
        assert_eq!(settings(json!(1)), Err(Reason::Rejected));
    }

    #[test]
    fn settings_of_another_form_are_not_known() {
        assert_eq!(MistralEfforts::read(&json!({ "json_schema": {} })), Ok(None));
        assert_eq!(read(Value::Null), Ok(None));
        for other in [
            json!({"default": "low", "values": ["high"]}),
            json!({"default": "high", "values": ["high", "high"]}),
            json!({"default": "high", "values": ["high", "higher"]}),
            json!({"default": "high", "values": ["high"], "accepts_none": false}),
            json!({"default": "high", "values": ["high"], "type": "json_schema"}),
            json!({"default": "high", "values": ["high"], "rounds": 1}),
            json!({"values": ["high"]}),
        ] {
            assert_eq!(read(other.clone()), Err(UnknownSettings), "{other}");
        }
        assert_eq!(MistralEfforts::read(&json!({ "temperature": {} })), Err(UnknownSettings));
    }
}
