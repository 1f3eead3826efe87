//! The releases of vLLM that read a chat as it is read here. Most chats consist of parts that are
//! the same in all, and the comparison with an engine shows whether they are. But `/tokenize` is
//! not asked with `reasoning_content` and `reasoning_effort`, which the chat endpoint turns into
//! something else before. And no fixed request can have all that was changed at some time.
//!
//! Compared are `ChatCompletionRequest` and `_parse_chat_message_content` of 0.22, 0.24, 0.28, 0.32
//! and 0.33; and 0.11, 0.13, 0.18 and 0.20, which treat reasoning in three other ways.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::topics::{Topic, Topics};

/// `--reasoning-effort-map` of the engines: what their template is told in place of an effort.
pub type EffortMap = BTreeMap<String, String>;

/// Releases between which the same chat becomes another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Edition {
    /// 0.32 and all before it.
    Of32,
    /// 0.33: an effort may be mapped ([`EffortMap`]), and a template that walks over the messages
    /// by way of a namespace is seen to take parts of a content.
    Of33,
}

/// Editions that engines are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Editions {
    /// All of this one.
    One(Edition),
    /// Some of each, or it is not known.
    Both,
}

/// The rules followed here that engines share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Topics that they read as it is done here.
    pub topics: Topics,
    /// Editions whose texts are theirs.
    pub editions: Editions,
}

impl Rules {
    /// Nothing is in doubt but the edition.
    pub const ANY_EDITION: Rules = Rules { topics: Topics::ALL, editions: Editions::Both };
    /// Those of 0.32.
    pub const OF_32: Rules = Rules { topics: Topics::ALL, editions: Editions::One(Edition::Of32) };
    /// Those of 0.33, the newest release that was compared with.
    pub const OF_33: Rules = Rules { topics: Topics::ALL, editions: Editions::One(Edition::Of33) };
    /// Those of 0.22 to 0.31: what they make of earlier reasoning, of `reasoning_effort` and of
    /// documents.
    pub const SINCE_22: Rules = Rules {
        topics: Topics::NONE
            .with(Topic::Reasoning)
            .with(Topic::OlderReasoning)
            .with(Topic::Effort)
            .with(Topic::Documents),
        editions: Editions::One(Edition::Of32),
    };
    /// Those that all releases share.
    pub const EVERY_RELEASE: Rules = Rules { topics: Topics::NONE, editions: Editions::Both };

    /// Those that both have.
    #[must_use]
    pub fn shared_with(self, other: Rules) -> Self {
        let editions = if self.editions == other.editions { self.editions } else { Editions::Both };
        Self { topics: self.topics.shared_with(other.topics), editions }
    }
}

/// The rules that all engines share, as far as is known at the moment.
#[derive(Debug)]
pub struct SharedRules(AtomicU64);

/// Place of the editions above the topics.
const EDITIONS_AT: u32 = 32;

impl SharedRules {
    /// These, until more is known.
    pub fn new(rules: Rules) -> Self {
        Self(AtomicU64::new(packed(rules)))
    }

    /// These from now on.
    pub fn set(&self, rules: Rules) {
        self.0.store(packed(rules), Ordering::Relaxed);
    }

    /// The rules at this moment.
    pub fn now(&self) -> Rules {
        let bits = self.0.load(Ordering::Relaxed);
        let editions = match bits >> EDITIONS_AT {
            0 => Editions::One(Edition::Of32),
            1 => Editions::One(Edition::Of33),
            _ => Editions::Both,
        };
        Rules { topics: Topics::from_bits(bits as u32), editions }
    }
}

fn packed(rules: Rules) -> u64 {
    let editions = match rules.editions {
        Editions::One(edition) => edition as u64,
        Editions::Both => 2,
    };
    u64::from(rules.topics.bits()) | editions << EDITIONS_AT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_kept_as_they_were_set() {
        let shared = SharedRules::new(Rules::ANY_EDITION);
        for rules in [Rules::ANY_EDITION, Rules::OF_32, Rules::OF_33, Rules::SINCE_22, Rules::EVERY_RELEASE] {
            shared.set(rules);
            assert_eq!(shared.now(), rules);
        }
    }

    #[test]
    fn engines_of_two_editions_share_what_is_the_same_in_both() {
        assert_eq!(Rules::OF_32.shared_with(Rules::OF_33), Rules::ANY_EDITION);
        assert_eq!(Rules::OF_33.shared_with(Rules::OF_33), Rules::OF_33);
        assert_eq!(Rules::OF_32.shared_with(Rules::SINCE_22), Rules::SINCE_22);
        let oldest = Rules::OF_33.shared_with(Rules::SINCE_22);
        assert_eq!(oldest, Rules { editions: Editions::Both, ..Rules::SINCE_22 });
    }
}
