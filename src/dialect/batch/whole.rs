//! Answers that are not streamed, one per prompt, as one.

use bytes::Bytes;

use super::{OF_ONE, choices_of, sum, whole_id};
use crate::codec::json::{Object, Value};
use crate::dialect::patch::Patch;

/// One answer of these, which are in the order of the prompts, each with so many choices. `None`
/// where one can't be read.
pub fn merge(answers: &[Object], choices: u64) -> Option<Bytes> {
    let first = answers.first()?;
    let mut list = vec![b'['];
    for (at, answer) in answers.iter().enumerate() {
        let readable = choices_of(answer, (at, choices), |choice, _, index| {
            let mut patch = Patch::default();
            patch.set(choice.get("index").map(|index| index.range()), index.to_string());
            if list.len() > 1 {
                list.push(b',');
            }
            list.extend_from_slice(&patch.apply(choice.bytes()));
        });
        readable.then_some(())?;
    }
    list.push(b']');
    let span = |key: &str| first.get(key).map(|value| value.range());
    let mut patch = Patch::default();
    patch.set(span("choices"), list);
    patch.set(span("id"), first.get("id").map(|id| whole_id(&id, 0)).unwrap_or_default());
    let usages: Vec<Object> =
        answers.iter().filter_map(|answer| answer.get("usage")?.object().ok()).collect();
    patch.set(span("usage").filter(|_| !usages.is_empty()), sum::sum(&usages).unwrap_or_default());
    for key in OF_ONE {
        patch.set(first.get(key).as_ref().map(Value::range), "null");
    }
    Some(patch.apply(first.bytes()))
}
