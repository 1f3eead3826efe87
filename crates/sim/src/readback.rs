//! A prefiller that reads what a decoder keeps of an earlier turn: vLLM's NIXL pull connector, by
//! its source and as tried.
//!
//! It asks for what it lacks of `min(offered, prompt)` tokens, if that is enough, and takes the
//! *last* blocks of the list, as many as it lacks; whether they are the right ones is for whoever
//! made the list.

use std::sync::Arc;

use super::fail::ApiFailure;
use super::handoff::Source;
use super::hub::Hub;
use super::ledger::Release;
use super::side;

/// Fewer tokens are computed (`kv_recompute_threshold`).
const THRESHOLD_TOKENS: usize = 64;

/// Reads what is worth it into the prefix cache; so many tokens.
pub(super) async fn fetch(
    hub: &Arc<Hub>,
    source: &Source,
    offered: usize,
    prompt: &[u32],
    salt: u64,
) -> Result<usize, ApiFailure> {
    let block_tokens = hub.spec.block_tokens.max(1);
    let keys = hub.with(|core, _| core.keys(prompt, salt));
    let cached = hub.with(|core, _| core.cached(&keys));
    let end = offered.min(prompt.len());
    let lacking = end.saturating_sub(cached * block_tokens);
    if lacking == 0 || lacking < THRESHOLD_TOKENS {
        // A notice that never comes is made up for by the decoder's clock.
        drop(side::release(hub.gate.net(), source, Release::Read).await);
        return Ok(0);
    }
    if !hub.spec.bidirectional {
        // The scheduler waits for blocks that nobody was told to read.
        std::future::pending::<()>().await;
    }
    let blocks = end.div_ceil(block_tokens) - cached;
    let first = source.block_ids.len().checked_sub(blocks);
    let Some(ids) = first.and_then(|first| source.block_ids.get(first..)) else {
        hub.die("assert num_decode_blocks <= len(prefill_group)");
        return Err(ApiFailure::dead());
    };
    match side::kept(hub.gate.net(), source).await {
        Ok(Some(_)) => {}
        // Expired, or another engine: the load fails, and with it the request.
        Ok(None) | Err(_) => return Err(ApiFailure::internal()),
    }
    let contents = side::pull(hub.kv_reader(), source, ids).await.map_err(|_| ApiFailure::internal())?;
    let whole = end / block_tokens - cached;
    let (keys, contents) = (keys.get(cached..cached + whole), contents.get(..whole));
    let (Some(keys), Some(contents)) = (keys, contents) else { return Ok(0) };
    let adopted = hub.with(|core, _| core.adopt(keys, contents));
    Ok(if adopted { whole * block_tokens } else { 0 })
}
