//! KV that a decoder offers back for the conversation's next turn: vLLM's NixlConnector with
//! `bidirectional_kv_xfer` on both sides. Read in vLLM 0.32.0 (`nixl/pull_scheduler.py`,
//! `pull_worker.py`, `base_worker.py`) and tried there.
//!
//! **What a decoder answers.** A request that came with a hand-off and ended by itself (`length`,
//! or `stop` by a token; not by a stop string, not aborted) leaves all its blocks pinned for
//! `decoder_kv_blocks_ttl` (480 s), without renewal. A whole answer says so in
//! `kv_transfer_params`: the members of a prefiller's hand-off, but `do_remote_decode` true,
//! `do_remote_prefill` false, `remote_num_tokens` the tokens whose KV there is (prompt and answer,
//! as a rule without the last), and `remote_blocks_expiry_time` on the engine's own clock. A
//! streamed answer says the same in its last event from 0.33 on ([`StreamedIds`]). Before, it says
//! nothing, and its blocks stay pinned all the same: nobody can fetch them.
//!
//! **What a prefiller is to get.** The same object in the place of the usual request to keep the
//! KV. It reads `min(remote_num_tokens, prompt) - cached` tokens if these are at least
//! `kv_recompute_threshold` (64), else none; in both cases the decoder hears that it may let go, so
//! an offer is good for one use. Beyond the deadline (5 s before it, by clocks that the engines
//! compare) the read is declined, and by default (`kv_load_failure_policy`) the request fails.
//!
//! **What it does not check.** Neither that the tokens are the same, nor where blocks stand: of the
//! blocks named it reads the *last* ones, as many as it lacks, so that a list which ends behind
//! `min(remote_num_tokens, prompt)` shifts all of them. Clients send history back with reasoning
//! left out or text tokenized anew, and a decoder may list a block for a token that never came. So
//! what is handed on here is cut: whole blocks only, as many as the tokens that both have in
//! common, told by token ids that the decoder itself reported, and fewer than the prompt has, since
//! its last token is computed in any case.

mod streamed;

use bytes::Bytes;

use crate::codec::json::{Edit, Object, ScanLimits, Value};
use crate::dialect::resume::BODY_BYTES;
use crate::dialect::shape::asks_for;
use crate::dialect::{Api, PARAMS};

pub use streamed::StreamedIds;

/// Less is not worth a transfer; also what makes sure that blocks have the size that they are taken
/// to have.
const LEAST_BLOCKS: usize = 4;

/// KV that a decoder keeps of one conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The tokens whose KV it has.
    tokens: Box<[u32]>,
    /// So many of them were the prompt.
    prompt_tokens: usize,
    /// Its blocks, in order; the last may be of no use.
    blocks: Box<[u64]>,
    /// As it said it.
    params: Bytes,
    /// Tokens whose KV there is, by its word.
    held: usize,
}

/// True if a decoder can be asked for the token ids that an offer needs: of one answer to one
/// prompt. In streams a decoder leaves ids out of a chat whose reasoning is hidden.
pub fn may_return(api: Api, body: &Object) -> bool {
    let is = |key: &str| asks_for(body, key);
    let one = |key: &str| body.get(key).is_none_or(|value| value.is_null() || value.as_u64() == Some(1));
    let hides = || body.get("include_reasoning").is_some_and(|value| value.as_bool() != Some(true));
    // The first event of a stream repeats the prompt, and is held until it is complete.
    let whole = !is("stream") || !hides() && body.bytes().len() <= BODY_BYTES;
    matches!(api, Api::Chat | Api::Completions) && whole && !is("echo") && one("n") && one("best_of")
}

/// The edit that has a decoder tell the ids of prompt and answer.
pub fn asking_for_ids(edit: Edit) -> Edit {
    edit.set(IDS, Bytes::from_static(b"true"))
}

/// By this member ids are asked for.
const IDS: &str = "return_token_ids";

/// An answer as the client is to read it: engines' addresses are none of its business, nor are ids
/// that it did not ask for. What is hidden is null, as engines write it that have nothing to say.
/// `None` = as it is. `asked`: the decoder was asked for ids.
pub fn hidden(body: &Object, answer: &Object, asked: bool) -> Option<Object> {
    let wants_ids = asks_for(body, IDS);
    let mut spans: Vec<std::ops::Range<usize>> = Vec::new();
    let mut hide = |object: &Object, at: usize, key: &str| {
        let value = object.get(key).filter(|value| !value.is_null());
        spans.extend(value.map(|value| at + value.range().start..at + value.range().end));
    };
    hide(answer, 0, PARAMS);
    if asked && !wants_ids {
        hide(answer, 0, "prompt_token_ids");
        let choices = answer.get("choices");
        for choice in choices.iter().flat_map(Value::elements) {
            if let Ok(object) = choice.object() {
                let at = choice.range().start;
                hide(&object, at, "token_ids");
                hide(&object, at, "prompt_token_ids");
            }
        }
    }
    if spans.is_empty() {
        return None;
    }
    spans.sort_by_key(|span| span.start);
    let text = answer.bytes();
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        out.extend_from_slice(text.get(at..span.start).unwrap_or_default());
        out.extend_from_slice(b"null");
        at = span.end;
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    Object::scan(out.into(), answer.limits()).ok()
}

impl Returned {
    /// Reads the offer in a whole answer. `None` if there is none, or none that could be told from
    /// other KV: blocks of several kinds, or spread over engines' ranks.
    pub fn read(answer: &Object) -> Option<Returned> {
        let params = answer.get(PARAMS).filter(Value::is_object)?.object().ok()?;
        let mut choices = answer.get("choices")?.elements();
        let (choice, None) = (choices.next()?.object().ok()?, choices.next()) else { return None };
        let prompt = answer.get("prompt_token_ids").filter(|ids| !ids.is_null());
        let prompt = list(prompt.or_else(|| choice.get("prompt_token_ids"))?)?;
        Returned::of(&params, prompt, list(choice.get("token_ids")?)?)
    }

    /// The offer that `params` are, for KV of this prompt and answer.
    fn of(told: &Object, prompt: Vec<u32>, generated: Vec<u32>) -> Option<Returned> {
        let yes = |key: &str| told.get(key).and_then(|value| value.as_bool()) == Some(true);
        let whole =
            |key: &str| told.get(key).is_none_or(|value| value.is_null() || value.as_u64() == Some(1));
        if !yes("do_remote_decode") || yes("do_remote_prefill") || !whole("dcp_size") || !whole("pp_size") {
            return None;
        }
        let [blocks] =
            <[Box<[u64]>; 1]>::try_from(list::<Box<[u64]>>(told.get("remote_block_ids")?)?).ok()?;
        let held = usize::try_from(told.get("remote_num_tokens")?.as_u64()?).ok()?;
        let (prompt_tokens, mut tokens) = (prompt.len(), prompt);
        tokens.extend(generated);
        tokens.truncate(held);
        Some(Returned { tokens: tokens.into(), prompt_tokens, blocks, params: told.bytes().clone(), held })
    }

    /// The tokens whose KV there is.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The prompt among them.
    pub fn prompt(&self) -> &[u32] {
        self.tokens.get(..self.prompt_tokens).unwrap_or(&self.tokens)
    }

    /// Leading whole blocks of `prompt` that are kept; none where blocks can't be of this size.
    pub fn blocks_of(&self, prompt: &[u32], block_tokens: usize) -> usize {
        let expected = self.tokens.len().div_ceil(block_tokens.max(1));
        // One more was taken for a token that did not come.
        if !(expected..=expected + 1).contains(&self.blocks.len()) || block_tokens == 0 {
            return 0;
        }
        let needed = prompt.split_last().map_or(prompt, |(_, rest)| rest);
        let common = self.tokens.iter().zip(needed).take_while(|(ours, theirs)| ours == theirs).count();
        let blocks = common / block_tokens;
        if blocks < LEAST_BLOCKS { 0 } else { blocks }
    }

    /// Parameters by which a prefiller reads the first `blocks` blocks.
    pub fn offer(&self, blocks: usize, block_tokens: usize) -> Option<Bytes> {
        let ids = serde_json::to_vec(&[self.blocks.get(..blocks)?]).ok()?;
        let tokens = blocks.checked_mul(block_tokens)?.to_string();
        let edit = Edit::new().set("remote_block_ids", ids.into()).set("remote_num_tokens", tokens.into());
        let params = Object::scan(self.params.clone(), ScanLimits::default()).ok()?;
        Some(params.splice(&edit).to_bytes())
    }
}

fn list<T: serde::de::DeserializeOwned>(value: Value<'_>) -> Option<Vec<T>> {
    serde_json::from_slice(value.raw()).ok()
}

/// A hash of who keeps it.
pub fn engine_id(returned: &Returned) -> Option<u64> {
    let params = Object::scan(returned.params.clone(), ScanLimits::default()).ok()?;
    super::kv_transfer::engine_id(&params)
}

#[cfg(test)]
mod tests;
