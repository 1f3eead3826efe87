//! Output of `pd-proxy keys`: a prompt's tokens, block hashes and pool keys, for people and as
//! JSON. The module is pure.

use std::fmt;
use std::num::NonZeroUsize;

use serde_json::{Value, json};
use thiserror::Error;

use crate::kvhash::BlockHash;
use crate::kvhash::keys::{Ask, KeyBatch, KeyError, KeyProfile, PromptBlocks};
use crate::prompt::{Exactness, Reason};

/// Ids of the text's first line.
const SHOWN_TOKENS: usize = 8;

/// A prompt and its hashes.
#[derive(Clone, Copy, Debug)]
pub struct Hashed<'a> {
    /// Exactness of the tokens. If they are not the engine's, the rest is not looked at.
    pub exactness: Exactness,
    /// Token ids of the prompt.
    pub tokens: &'a [u32],
    /// Hashes of its blocks, in order; a partial last one counts where the scheme stores such.
    pub hashes: &'a [BlockHash],
    /// Tokens per hash.
    pub block_tokens: NonZeroUsize,
}

/// Spelling of the keys.
#[derive(Clone, Copy, Debug)]
pub struct Spelling<'a> {
    /// The pool's profile.
    pub profile: &'a KeyProfile,
    /// The request's `cache_salt`, or empty.
    pub salt: &'a str,
    /// The request's tags as [`tags`](crate::kvhash::keys::lmcache::tags) makes them, or empty.
    pub tags: &'a str,
}

/// A prompt, block by block. Displays as text of several lines, see [`json`](Self::json) for the
/// other form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    exactness: Exactness,
    /// Empty when inexact.
    tokens: Vec<u32>,
    block_tokens: NonZeroUsize,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    start_token: usize,
    /// One behind its last token.
    end_token: usize,
    hash: BlockHash,
    /// Of all groups and ranks whose block begins in this one.
    keys: Vec<String>,
}

/// Reasons for which a listing has no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListingError {
    /// Hashes of one size and keys of another.
    #[error("hashes are of {hashed} tokens each, the keys are made of hashes of {named}")]
    BlockTokens {
        /// Tokens per hash.
        hashed: usize,
        /// Tokens per hash, as the profile has it.
        named: u32,
    },
    /// More tokens than keys can count.
    #[error("a prompt of {0} tokens is too long for keys")]
    TooLong(usize),
    /// No key for a hash.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Listing {
    /// Lists a prompt, with its keys if there is a spelling for them.
    ///
    /// # Errors
    /// [`ListingError`] when hashes and spelling don't belong together, or there are more keys than
    /// a batch takes.
    pub fn new(prompt: &Hashed<'_>, spelling: Option<&Spelling<'_>>) -> Result<Self, ListingError> {
        let Hashed { exactness, tokens, hashes, block_tokens } = *prompt;
        let mut listing = Self { exactness, tokens: Vec::new(), block_tokens, blocks: Vec::new() };
        if matches!(exactness, Exactness::Inexact(_)) {
            return Ok(listing);
        }
        listing.tokens = tokens.to_vec();
        let block = |(index, hash): (usize, &BlockHash)| {
            let start_token = index.saturating_mul(block_tokens.get());
            let end_token = tokens.len().min(start_token.saturating_add(block_tokens.get()));
            Block { start_token, end_token, hash: *hash, keys: Vec::new() }
        };
        listing.blocks = hashes.iter().enumerate().map(block).collect();
        if let Some(spelling) = spelling {
            let keys = keys(prompt, spelling)?;
            listing.spread(&keys);
        }
        Ok(listing)
    }

    /// True if the tokens are the engine's.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.exactness == Exactness::Exact
    }

    /// As JSON: `exact`, `reason` (the name of a [`Reason`] for which not
    /// all tokens are known, or null), `tokens` (all, the first ones, or none), `block_tokens`, and
    /// `blocks`, each with `index`, `start_token`, `end_token` (one behind the last), `hash` (hex),
    /// `event` (the number in vLLM's KV events; of other schemes just the last 8 bytes) and `keys`.
    #[must_use]
    pub fn json(&self) -> Value {
        let block = |(index, block): (usize, &Block)| {
            json!({
                "index": index,
                "start_token": block.start_token,
                "end_token": block.end_token,
                "hash": block.hash.to_string(),
                "event": block.hash.event_u64(),
                "keys": block.keys,
            })
        };
        json!({
            "exact": self.exact(),
            "reason": self.reason(),
            "tokens": self.tokens,
            "block_tokens": self.block_tokens.get(),
            "blocks": self.blocks.iter().enumerate().map(block).collect::<Vec<_>>(),
        })
    }

    fn reason(&self) -> Option<&'static str> {
        self.exactness.reason().map(Reason::name)
    }

    /// Gives each key to the block where it starts.
    fn spread(&mut self, keys: &KeyBatch) {
        for (index, key) in keys.iter().enumerate() {
            let start = keys.start_tokens(index).and_then(|start| usize::try_from(start).ok());
            let block = start.and_then(|start| self.blocks.get_mut(start / self.block_tokens));
            if let Some(block) = block {
                block.keys.push(key.to_owned());
            }
        }
    }
}

/// Every key of a prompt.
fn keys(prompt: &Hashed<'_>, spelling: &Spelling<'_>) -> Result<KeyBatch, ListingError> {
    let (hashed, named) = (prompt.block_tokens.get(), spelling.profile.hash_tokens());
    if usize::try_from(named) != Ok(hashed) {
        return Err(ListingError::BlockTokens { hashed, named });
    }
    // A partial block that has a hash has a key too: for the profile it is a whole one.
    let covered = prompt.tokens.len().max(prompt.hashes.len().saturating_mul(hashed));
    let prompt_tokens = u32::try_from(covered).map_err(|_| ListingError::TooLong(prompt.tokens.len()))?;
    let blocks =
        PromptBlocks { hashes: prompt.hashes, prompt_tokens, salt: spelling.salt, tags: spelling.tags };
    let mut keys = KeyBatch::default();
    spelling.profile.keys_of_prompt(&blocks, Ask::Every, &mut keys)?;
    Ok(keys)
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.exactness, self.reason()) {
            (Exactness::Inexact(_), Some(reason)) => return writeln!(f, "tokens unknown: {reason}"),
            (_, Some(reason)) => {
                writeln!(f, "tokens after the first {} unknown: {reason}", self.tokens.len())?;
                write!(f, "first tokens {}:", self.tokens.len())?;
            }
            (_, None) => write!(f, "tokens {}:", self.tokens.len())?,
        }
        for token in self.tokens.iter().take(SHOWN_TOKENS) {
            write!(f, " {token}")?;
        }
        writeln!(f, "{}", if self.tokens.len() > SHOWN_TOKENS { " …" } else { "" })?;
        let width = |last: Option<usize>| last.unwrap_or(0).to_string().len();
        let index_width = width(self.blocks.len().checked_sub(1));
        let token_width = width(self.blocks.last().map(|block| block.end_token));
        for (index, block) in self.blocks.iter().enumerate() {
            let Block { start_token, end_token, hash, keys } = block;
            let event = hash.event_u64();
            writeln!(
                f,
                "block {index:>index_width$}  tokens {start_token:>token_width$}..{end_token:<token_width$}  \
                 hash {hash}  event {event}",
            )?;
            for key in keys {
                writeln!(f, "    {key}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
