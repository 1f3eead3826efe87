//! Asking the pool about a prompt, before it is routed.

use std::sync::Arc;
use std::time::Instant;

use crate::intake::{Naming, Prompts};
use crate::kvhash::keys::{Ask as Keys, KeyBatch, PromptBlocks};
use crate::obs::Meters;
use crate::pool::{Gate, Lookup, Question};
use crate::prompt::{Prompt, Reason};
use crate::relay::ask::Ask;

/// Prompts above this take a millisecond and more to hash, in tokens: they are worked on beside the runtime.
const ASIDE_TOKENS: usize = 64 << 10;

/// What the gateway asks about prompts, and whom.
#[derive(Debug)]
pub struct Pool {
    /// Knows how blocks are named.
    pub prompts: Arc<Prompts>,
    /// The pool.
    pub gate: Gate,
    /// Metrics.
    pub meters: Arc<Meters>,
}

impl Pool {
    /// What the pool has of a request's prompt; `None` when its blocks can't be named.
    pub async fn look_up(&self, ask: &Ask, prompt: &Prompt) -> Option<Lookup> {
        let began = Instant::now();
        let question = match self.question(ask, prompt).await {
            Ok(question) => question,
            Err(reason) => {
                self.meters.pool_unasked(reason.name());
                return None;
            }
        };
        let lookup = self.gate.ask(Arc::new(question)).await;
        self.meters.pool(self.gate.name(), lookup.verdict.name(), began.elapsed());
        Some(lookup)
    }

    async fn question(&self, ask: &Ask, prompt: &Prompt) -> Result<Question, Reason> {
        let naming = self.prompts.naming().ok_or(Reason::Unnamed)?;
        let tokens = prompt.tokens.clone();
        let text = |key| ask.body.get(key).and_then(|value| value.as_str().map(std::borrow::Cow::into_owned));
        let (model, salt) = (ask.shape.model.clone(), text("cache_salt"));
        let form = move || question(&naming, tokens, model.as_deref(), salt.as_deref());
        if prompt.tokens.len() <= ASIDE_TOKENS {
            return form();
        }
        tokio::task::spawn_blocking(form).await.unwrap_or(Err(Reason::Limit))
    }
}

/// Hashes and keys of a prompt.
fn question(
    naming: &Naming,
    tokens: Arc<[u32]>,
    model: Option<&str>,
    salt: Option<&str>,
) -> Result<Question, Reason> {
    let hashes = naming.hashes(&tokens, model, salt)?;
    let mut keys = KeyBatch::default();
    if let Some(profile) = &naming.keys {
        let prompt_tokens = u32::try_from(tokens.len()).map_err(|_| Reason::TooLong)?;
        let salt = salt.unwrap_or("");
        let blocks = PromptBlocks { salt, ..PromptBlocks::new(&hashes, prompt_tokens) };
        // More keys than any batch takes, or a hash that is not the profile's, which the start has ruled out.
        profile.keys_of_prompt(&blocks, Keys::Needed, &mut keys).map_err(|_| Reason::TooLong)?;
    }
    Ok(Question { tokens, hashes: hashes.into(), keys: Arc::new(keys) })
}
