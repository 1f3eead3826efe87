//! A prompt's tokens, as far as they are known.

use std::sync::Arc;

use super::Reason;

/// Trust in [`Prompt::tokens`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// They are the engine's, to the last one.
    Exact,
    /// They are the engine's first ones. Those after them are not known.
    Prefix {
        /// Reason why the rest is not known.
        reason: Reason,
        /// Bytes of the prompt's text after them, in which an item counts for next to nothing.
        rest_bytes: usize,
    },
    /// They are not known, and empty: route by load.
    Inexact(Reason),
}

/// A request's prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Token ids: all, the first ones, or none.
    pub tokens: Arc<[u32]>,
    /// Exactness of the tokens.
    pub exactness: Exactness,
}

impl Prompt {
    pub(super) fn exact(tokens: Arc<[u32]>) -> Self {
        Self { tokens, exactness: Exactness::Exact }
    }

    pub(super) fn unknown(reason: Reason) -> Self {
        Self { tokens: Arc::default(), exactness: Exactness::Inexact(reason) }
    }

    /// True if the tokens are all that there are.
    pub fn is_exact(&self) -> bool {
        self.exactness == Exactness::Exact
    }

    /// Reason why not all tokens are known; `None` if they are.
    pub fn reason(&self) -> Option<Reason> {
        self.exactness.reason()
    }
}

impl Exactness {
    /// The value of the metric label `tokens`: `exact`, `prefix` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Exactness::Exact => "exact",
            Exactness::Prefix { .. } => "prefix",
            Exactness::Inexact(_) => "unknown",
        }
    }

    /// Reason why not all tokens are known; `None` if they are.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Exactness::Exact => None,
            Exactness::Prefix { reason, .. } | Exactness::Inexact(reason) => Some(reason),
        }
    }
}
