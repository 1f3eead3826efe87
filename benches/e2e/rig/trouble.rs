//! Faults of answers, and their counts.

use std::collections::BTreeMap;
use std::fmt;

/// Fault of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Trouble {
    /// No connection can be made.
    #[error("no connection")]
    Connect,
    /// A connection that was kept is closed; the request is sent again.
    #[error("a kept connection was closed")]
    Stale,
    /// The connection ends before the answer does.
    #[error("cut before its end")]
    Cut,
    /// The bytes are no HTTP answer.
    #[error("not HTTP")]
    NotHttp,
    /// The status is not 200.
    #[error("status {0}")]
    Status(u16),
    /// The answer has no text.
    #[error("no text in it")]
    Empty,
    /// The stream has an error event.
    #[error("an error event")]
    ErrorEvent,
    /// The stream ends without `[DONE]`.
    #[error("no [DONE]")]
    NoDone,
    /// The stream goes on after `[DONE]`.
    #[error("events after [DONE]")]
    AfterDone,
    /// The stream has fewer events than tokens.
    #[error("fewer events than tokens")]
    Short,
    /// The answer, or a line of it, is too long.
    #[error("too long")]
    TooLong,
    /// The answer did not come in time.
    #[error("not there in time")]
    Late,
}

/// Number of faults of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Troubles(BTreeMap<Trouble, u64>);

impl Troubles {
    /// Counts one more fault.
    pub(crate) fn note(&mut self, trouble: Trouble) {
        self.add(trouble, 1);
    }

    /// Counts `count` more faults.
    pub(crate) fn add(&mut self, trouble: Trouble, count: u64) {
        if count > 0 {
            *self.0.entry(trouble).or_default() += count;
        }
    }

    /// Number of all faults.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds the counts of `other`.
    pub(crate) fn merge(&mut self, other: &Troubles) {
        for (trouble, count) in &other.0 {
            self.add(*trouble, *count);
        }
    }
}

impl fmt::Display for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> =
            self.0.iter().map(|(trouble, count)| format!("{count} × {trouble}")).collect();
        f.write_str(&each.join(", "))
    }
}
