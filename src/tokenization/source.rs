//! Tokenizers of prompts that clients have not tokenised, and the trust in them.

use std::sync::Arc;

use super::engine::EngineTokenizer;
use crate::prompt::{Prompter, Reason};

/// Tokenizers of prompts that the client has not tokenised.
pub enum Source {
    /// The gateway's own.
    Local(Arc<Prompter>),
    /// That of an engine.
    Engine(EngineTokenizer),
    /// The gateway's own where its tokens are proven and the prompt can be read here, else that of
    /// an engine.
    Either {
        /// The gateway's own.
        local: Arc<Prompter>,
        /// That of an engine.
        engine: EngineTokenizer,
    },
}

impl Source {
    /// The gateway's own tokenizer, if there is one.
    pub fn local(&self) -> Option<&Arc<Prompter>> {
        match self {
            Self::Local(local) | Self::Either { local, .. } => Some(local),
            Self::Engine(_) => None,
        }
    }

    /// True if an engine is asked for tokens that are not known here.
    pub fn asks_engines(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::Either { .. })
    }
}

/// True if an engine's `/tokenize` may know the tokens of a prompt that is not known here for this
/// reason. What no engine is asked about, as images, is not among them.
pub(super) fn engine_may_know(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NoTemplate | Reason::Template | Reason::Date | Reason::Tokenizer | Reason::NoTokenizer
    )
}

/// The engines' models that are no adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseModels {
    /// Their names, each once.
    pub names: Vec<String>,
    /// The shortest of their contexts, in tokens.
    pub context_tokens: Option<u64>,
}

/// Trust in tokens that were computed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Trust {
    /// No engine has been compared with yet: prompts count as unknown.
    Unproven,
    /// Every engine that was compared with makes the same tokens.
    Proven,
    /// One makes others: prompts count as unknown until it makes the same, or is gone.
    Refuted,
}
