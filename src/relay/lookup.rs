//! Asking the pool about a prompt, before it is routed.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use crate::intake::{Naming, Prompts};
use crate::kvhash::BlockHash;
use crate::kvhash::keys::batch::MAX_BATCH_KEYS;
use crate::kvhash::keys::{Ask as Keys, KeyBatch, KeyProfile, PromptBlocks};
use crate::obs::Meters;
use crate::pool::{Gate, Inquiry, Lookup, PoolError, Question};
use crate::prompt::{Prompt, Reason};
use crate::relay::ask::Ask;

/// Work that takes a millisecond and more, in tokens to be hashed: it is done beside the runtime.
const ASIDE_TOKENS: usize = 64 << 10;
/// Writing a key takes as long as hashing so many tokens.
const KEY_TOKENS: usize = 9;

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
        let inquiry = match self.inquiry(ask, prompt) {
            Ok(inquiry) => inquiry,
            Err(reason) => {
                self.meters.pool_unasked(reason.name());
                return None;
            }
        };
        let lookup = self.gate.ask(inquiry).await;
        self.meters.pool(self.gate.name(), lookup.verdict.name(), began.elapsed());
        Some(lookup)
    }

    /// What is to be asked, not yet formed: that takes time, and the gate knows whether it is worth it.
    fn inquiry(&self, ask: &Ask, prompt: &Prompt) -> Result<Inquiry, Reason> {
        let naming = self.prompts.naming().ok_or(Reason::Unnamed)?;
        let text = |key| ask.body.get(key).and_then(|value| value.as_str().map(Cow::into_owned));
        let (model, salt) = (ask.shape.model.clone(), text("cache_salt"));
        naming.check(model.as_deref())?;
        let tokens = prompt.tokens.clone();
        let keys = naming.keys.as_ref().map_or(0, |profile| keys_of(profile, tokens.len()));
        if keys > MAX_BATCH_KEYS {
            return Err(Reason::TooLong);
        }
        let aside = tokens.len().saturating_add(keys.saturating_mul(KEY_TOKENS)) > ASIDE_TOKENS;
        let context = [model.clone(), salt.clone()];
        let named = tokens.clone();
        let form = move || {
            let salt = salt.as_deref();
            let hashes: Arc<[BlockHash]> = naming
                .hashes(&named, model.as_deref(), salt)
                .map_err(|reason| PoolError::Refused(reason.name().to_owned()))?
                .into();
            let keys = Arc::new(keys_with(&naming, &hashes, (named.len(), salt))?);
            Ok(Question { tokens: named, hashes, keys })
        };
        Ok(Inquiry { tokens, context, aside, form: Box::new(form) })
    }
}

/// The keys of a prompt of `tokens` tokens, whose blocks have these hashes; none for a pool without keys.
fn keys_with(
    naming: &Naming,
    hashes: &[BlockHash],
    (tokens, salt): (usize, Option<&str>),
) -> Result<KeyBatch, PoolError> {
    let mut keys = KeyBatch::default();
    if let Some(profile) = &naming.keys {
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let blocks = PromptBlocks { salt: salt.unwrap_or(""), ..PromptBlocks::new(hashes, prompt_tokens) };
        // More bytes than any batch takes, or a hash that is not the profile's, which the start has ruled out.
        let written = profile.keys_of_prompt(&blocks, Keys::Needed, &mut keys);
        written.map_err(|error| PoolError::TooLarge(error.to_string()))?;
    }
    Ok(keys)
}

/// About how many keys a prompt of `tokens` tokens has.
fn keys_of(profile: &KeyProfile, tokens: usize) -> usize {
    let blocks = tokens.checked_div(profile.block_tokens() as usize).unwrap_or(0);
    blocks.saturating_mul(profile.keys_per_block())
}
