//! The counts of several answers as those of one.

use bytes::Bytes;

use crate::codec::json::{Object, Value};
use crate::dialect::patch::Patch;

/// The `usage` of all, spelled as the first one is: each number is the sum of the numbers in its
/// place.
pub(super) fn sum(usages: &[Object]) -> Option<Bytes> {
    let first = usages.first()?;
    let mut patch = Patch::default();
    for (key, value) in first.members() {
        let all: Vec<Value<'_>> = usages.iter().filter_map(|usage| usage.get(&key)).collect();
        if let Some(sum) = sum_values(&all) {
            patch.set(Some(value.range()), sum);
        }
    }
    Some(patch.apply(first.bytes()))
}

fn sum_values(values: &[Value<'_>]) -> Option<Bytes> {
    let details: Vec<Object> = values.iter().filter_map(|value| value.object().ok()).collect();
    let numbers = values.iter().filter_map(|value| value.as_u64());
    match sum(&details) {
        Some(details) => Some(details),
        None => numbers.reduce(u64::saturating_add).map(|sum| sum.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;

    fn summed(texts: &[&'static str]) -> String {
        let scan = |text: &&'static str| Object::scan((*text).into(), ScanLimits::default()).unwrap();
        let all: Vec<Object> = texts.iter().map(scan).collect();
        String::from_utf8(sum(&all).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn numbers_are_added_where_they_stand() {
        let one =
            r#"{"prompt_tokens":3, "total_tokens":5,"details":{"cached_tokens":2,"other":null},"x":null}"#;
        let two = r#"{"prompt_tokens":4, "total_tokens":9,"details":{"cached_tokens":1,"other":7},"x":null}"#;
        assert_eq!(
            summed(&[one, two, two]),
            r#"{"prompt_tokens":11, "total_tokens":23,"details":{"cached_tokens":4,"other":14},"x":null}"#
        );
        assert_eq!(summed(&[one]), one);
    }

    #[test]
    fn missing_count_is_added_as_zero() {
        let null = r#"{"prompt_tokens":3,"details":null}"#;
        let told = r#"{"details":{"cached_tokens":2},"prompt_tokens":4}"#;
        assert_eq!(summed(&[null, told]), r#"{"prompt_tokens":7,"details":{"cached_tokens":2}}"#);
        assert_eq!(summed(&[null, null]), r#"{"prompt_tokens":6,"details":null}"#);
    }
}
