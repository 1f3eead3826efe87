//! A prefiller's answer: its token counts, what it hands over, or why it is of no use.

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::Api;
use crate::dialect::usage::Usage;

/// What a prefiller's answer says.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefilled {
    /// What the decoder is given as `kv_transfer_params`: as the prefiller wrote it, or as the dialect makes it up; `None` when
    /// KV travels through a pool.
    pub handoff: Option<Bytes>,
    /// Its token counts.
    pub usage: Usage,
    /// Who made the hand-off, where it says so ([`super::kv_transfer::engine_id`]).
    pub engine_id: Option<u64>,
}

/// Why a prefiller's answer is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// It is not a JSON object.
    #[error("the prefiller's answer is not a JSON object: {0}")]
    NotJson(String),
    /// It is one, with something else than an object or null as hand-off.
    #[error("the prefiller's kv_transfer_params is neither an object nor null")]
    NotAnObject,
    /// The hand-off tells a decoder to fetch, and names nothing: decoders die of it (vLLM 0.32).
    #[error("the prefiller's kv_transfer_params says what to do and names nothing to fetch")]
    Nothing,
    /// It is an error object under a 200.
    #[error("the prefiller's answer is an error object")]
    ErrorObject,
}

/// The object that a prefiller's 200 is, if it is one and no error.
pub(super) fn answer(reply: Bytes) -> Result<Object, BadReply> {
    let reply = Object::scan(reply, ScanLimits::default()).map_err(|e| BadReply::NotJson(e.to_string()))?;
    // Responses carry `"error":null` where all is well.
    if reply.get("error").is_some_and(|e| !e.is_null()) {
        return Err(BadReply::ErrorObject);
    }
    Ok(reply)
}

/// Whether a prefiller's answer shows that it ended before its one token's length did, by a stop string or because the engine gave it up:
/// vLLM keeps no KV of those. A forced call says `stop` or `tool_calls` where it was the length; responses say nothing of use.
pub(super) fn ended_by_itself(api: Api, reply: &Object) -> bool {
    let is = |holder: &Object, key: &str, words: &[&[u8]]| {
        holder.get(key).is_some_and(|value| words.contains(&value.raw()))
    };
    match api {
        Api::Messages => is(reply, "stop_reason", &[b"\"end_turn\"", b"\"stop_sequence\"", b"null"]),
        Api::Responses => false,
        Api::Chat | Api::Completions | Api::Generate => {
            let choice = reply.get("choices").and_then(|choices| choices.first_element()?.object().ok());
            choice.is_some_and(|choice| {
                let stopped = choice.get("stop_reason").is_some_and(|reason| !reason.is_null());
                stopped || is(&choice, "finish_reason", &[b"\"abort\""])
            })
        }
    }
}
