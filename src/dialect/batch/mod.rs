//! Several prompts in one completions body: a body for each of them, and one answer made of theirs,
//! as one engine that was given all of them would have written it (vLLM 0.32).

mod events;
mod sum;
#[cfg(test)]
mod tests;
mod whole;

use bytes::Bytes;
use memchr::memchr3;

use crate::codec::json::{Edit, JsonError, Object, Value, quote};
use crate::dialect::{Api, PARAMS};

pub use events::{Merge, Unreadable};
pub use whole::merge;

/// Limit for the bytes that all bodies of one batch repeat beside their prompts; beyond it a batch
/// is not split.
const REPEATED_BYTES: usize = 16 << 20;

/// Prompts that are asked one by one.
#[derive(Debug)]
pub struct Batch {
    prompts: Vec<Bytes>,
    choices: u64,
}

impl Batch {
    /// Splits a body with 2 to `most` prompts: texts, or lists of token ids. `None` for any other,
    /// and for what an engine might refuse as a whole though it would take each part.
    pub fn of(api: Api, body: &Object, most: usize) -> Option<Batch> {
        let list = body.get("prompt").filter(|_| api == Api::Completions)?;
        let count =
            list.array_len_capped(most.saturating_add(1)).filter(|count| (2..=most).contains(count))?;
        let prompts: Vec<Value<'_>> = list.elements().take(count).collect();
        let alike = prompts.iter().all(Value::is_string) || prompts.iter().all(is_token_list);
        let repeated = (body.bytes().len() - list.raw().len()).saturating_mul(count);
        if !alike || prompts.len() != count || repeated > REPEATED_BYTES {
            return None;
        }
        let choices = match body.get("n").filter(|n| !n.is_null()) {
            // Of "2" or 2.0, which engines take for a number, nobody here knows how many answers
            // each prompt gets.
            Some(n) => n.as_u64()?.max(1),
            None => 1,
        };
        Some(Batch { prompts: prompts.iter().map(Value::to_bytes).collect(), choices })
    }

    /// Number of prompts in the batch.
    pub fn prompts(&self) -> usize {
        self.prompts.len()
    }

    /// Number of answers for each prompt.
    pub fn choices(&self) -> u64 {
        self.choices
    }

    /// The body `whole` with the prompt `at` alone.
    ///
    /// # Errors
    /// None for a body that [`Batch::of`] has split.
    pub fn body(&self, whole: &Object, at: usize) -> Result<Object, JsonError> {
        let prompt = match self.prompts.get(at) {
            // vLLM takes an empty text in a list, of which a tokenizer may make its first token,
            // and refuses it by itself.
            Some(text) if &text[..] == br#""""# => Bytes::from_static(br#"[""]"#),
            Some(prompt) => prompt.clone(),
            None => Bytes::from_static(b"null"),
        };
        let body = whole.splice(&Edit::new().set("prompt", prompt)).to_bytes();
        Object::scan(body, whole.limits())
    }
}

/// Numbers, or whatever else is neither text nor list: the engine judges those.
fn is_token_list(value: &Value<'_>) -> bool {
    let inside = value.raw().get(1..).unwrap_or_default();
    value.is_array() && memchr3(b'"', b'[', b'{', inside).is_none()
}

/// The id by which engines know the prompt `at` of the request `id`.
pub fn part_id(id: &str, at: usize) -> String {
    format!("{id}-{at}")
}

/// The `id` of an answer to the prompt `at`, as JSON, as the whole request's would be: engines make
/// it of the request's.
fn whole_id(id: &Value<'_>, at: usize) -> Bytes {
    let text = id.as_str();
    let whole = text.as_deref().and_then(|text| text.strip_suffix(&part_id("", at)));
    whole.map_or_else(|| id.to_bytes(), quote)
}

/// Moves the indices of an answer's choices to where those of the prompt `at` are, and tells
/// whether they are readable.
fn choices_of(
    answer: &Object,
    (at, choices): (usize, u64),
    mut each: impl FnMut(&Object, usize, u64),
) -> bool {
    let Some(list) = answer.get("choices").filter(Value::is_array) else { return false };
    let first = (at as u64).saturating_mul(choices);
    list.elements().all(|choice| {
        let Ok(object) = choice.object() else { return false };
        let Some(index) = object.get("index").and_then(|index| index.as_u64()) else { return false };
        each(&object, choice.range().start, first.saturating_add(index));
        true
    })
}

/// Members that describe one prompt alone, and are null where there are several.
const OF_ONE: [&str; 2] = [PARAMS, "metrics"];
