//! Rows made false in one place.

use serde_json::Value;

/// The value of a member that is changed.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    First,
    Last,
}

/// Changes one text, number or flag within; false when there is none.
pub(super) fn falsify(value: &mut Value, at: At) -> bool {
    match value {
        Value::Null => return false,
        Value::Bool(flag) => *flag = !*flag,
        Value::Number(number) => *value = other_number(number),
        Value::String(text) => {
            let other = if text.pop() == Some('0') { '1' } else { '0' };
            text.push(other);
        }
        Value::Array(items) => return one_of(items.iter_mut(), at),
        Value::Object(members) => return one_of(members.values_mut(), at),
    }
    true
}

fn one_of<'a>(mut values: impl DoubleEndedIterator<Item = &'a mut Value>, at: At) -> bool {
    match at {
        At::First => values.any(|value| falsify(value, at)),
        At::Last => values.rev().any(|value| falsify(value, at)),
    }
}

/// Its neighbour towards zero, which has the same type; 1 for zero.
fn other_number(number: &serde_json::Number) -> Value {
    match (number.as_u64(), number.as_i64()) {
        (Some(0), _) => 1.into(),
        (Some(number), _) => (number - 1).into(),
        (None, Some(number)) => (number + 1).into(),
        (None, None) => panic!("{number} is no integer"),
    }
}
