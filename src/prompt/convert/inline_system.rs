//! Templates that refuse system messages after others, as vLLM 0.32 and 0.33 find them
//! (`_detect_merge_inline_system`): they render a short chat with Jinja2 alone, to which
//! transformers' own functions, tags and variables are not known.

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::json;

use crate::prompt::allowance::{ALLOWANCE, Allowance, Stop};
use crate::prompt::jinja::{environment, with_generation_tags};
use crate::prompt::kept::with_paid_variables;
use crate::prompt::pyvalue::from_json;

/// Functions that transformers adds.
const ADDED: [&str; 2] = ["raise_exception", "strftime_now"];
/// Steps that the short chat may take. The longest known template takes some thousand.
const FUEL: u64 = 200_000;

/// True if an engine takes the template for one that refuses them; `None` if that is not known.
pub(in crate::prompt) fn refuses_inline_system(source: &str) -> Option<bool> {
    let text = with_generation_tags(source);
    // The tags of training are no syntax of Jinja2's own.
    if text != source {
        return Some(true);
    }
    let mut env = environment();
    ADDED.iter().for_each(|name| env.remove_global(name));
    env.set_fuel(Some(FUEL));
    match render(&env, &text) {
        Ok(_) => Some(false),
        Err(error) => is_template_error(&error).then_some(true),
    }
}

fn render(env: &Environment<'_>, text: &str) -> Result<String, Error> {
    let turn = |role: &str| json!({"role": role, "content": "t"});
    let allowance = Allowance::new(FUEL, text.len(), Stop::default());
    let messages = from_json(json!([turn("system"), turn("user"), turn("system"), turn("user")]), &allowance);
    let variables = [
        ("messages", messages),
        ("add_generation_prompt", Value::from(false)),
        (ALLOWANCE, Value::from_dyn_object(allowance.clone())),
    ];
    env.render_str(&with_paid_variables(text)?, Value::from_pairs(variables))
}

/// True for what Jinja2 has an error of its own for. With another one the engine does not start.
fn is_template_error(error: &Error) -> bool {
    let of_undefined = || error.detail().is_some_and(|detail| detail.contains("undefined"));
    match error.kind() {
        ErrorKind::UnknownFunction | ErrorKind::UndefinedError => true,
        ErrorKind::InvalidOperation => {
            error.detail().is_some_and(|detail| detail.starts_with("tried to use")) && of_undefined()
        }
        _ => false,
    }
}
