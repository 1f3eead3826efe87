//! The largest id of a vocabulary, for which the library of `tokenizer.json` takes memory before it
//! looks at anything else.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Largest id that is read: 16 times that of the largest known vocabulary.
pub(super) const MAX_ID: u64 = 1 << 22;

/// The largest id of a `vocab`: a map to ids, or a list, whose places are the ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LargestId(pub(super) u64);

impl<'de> Deserialize<'de> for LargestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> Visitor<'de> for VocabVisitor {
    type Value = LargestId;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of tokens to ids, or a list of tokens")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LargestId, A::Error> {
        let mut largest = 0;
        while let Some((_, id)) = map.next_entry::<IgnoredAny, u64>()? {
            largest = largest.max(id);
        }
        Ok(LargestId(largest))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LargestId, A::Error> {
        let mut count: u64 = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(LargestId(count.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_id_is_that_of_either_form() {
        let largest = |text: &str| serde_json::from_str(text).map(|LargestId(id)| id).ok();
        assert_eq!(largest(r#"{"a": 7, "b": 3}"#), Some(7));
        assert_eq!(largest(r#"[["a", -1.5], ["b", 0]]"#), Some(1));
        assert_eq!((largest("{}"), largest("[]")), (Some(0), Some(0)));
        assert_eq!((largest(r#"{"a": -1}"#), largest("7")), (None, None));
    }
}
