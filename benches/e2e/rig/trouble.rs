//! What can be wrong with an answer.

use std::collections::BTreeMap;
use std::fmt;

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Trouble {
    /// Nobody listens.
    #[error("no connection")]
    Connect,
    /// A connection that was kept is closed; the request is sent again.
    #[error("a kept connection was closed")]
    Stale,
    /// The connection ends before the answer does.
    #[error("cut before its end")]
    Cut,
    /// Bytes that are no answer.
    #[error("not HTTP")]
    NotHttp,
    /// Not 200.
    #[error("status {0}")]
    Status(u16),
    /// Nothing generated.
    #[error("no text in it")]
    Empty,
    /// An error event in a stream.
    #[error("an error event")]
    ErrorEvent,
    /// A stream that ends without `[DONE]`.
    #[error("no [DONE]")]
    NoDone,
    /// Something after `[DONE]`.
    #[error("events after [DONE]")]
    AfterDone,
    /// Fewer events than tokens.
    #[error("fewer events than tokens")]
    Short,
    /// Longer than it can be.
    #[error("too long")]
    TooLong,
    /// It did not come in time.
    #[error("not there in time")]
    Late,
}

/// How often what was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Troubles(BTreeMap<Trouble, u64>);

impl Troubles {
    /// One more.
    pub(crate) fn note(&mut self, trouble: Trouble) {
        self.add(trouble, 1);
    }

    /// So many more.
    pub(crate) fn add(&mut self, trouble: Trouble, count: u64) {
        if count > 0 {
            *self.0.entry(trouble).or_default() += count;
        }
    }

    /// All of them.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Both.
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
