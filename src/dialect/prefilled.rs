//! A prefiller's answer: what it hands over, what else it says, or why it is of no use.

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::resume::AbortSign;
use crate::dialect::usage::{self, Usage};
use crate::dialect::{Api, PARAMS, fault, kv_transfer};

/// A prefiller's answer, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefilled {
    /// `kv_transfer_params` for the decoder: as the prefiller wrote them, or as the dialect makes
    /// them; `None` when KV travels through a pool.
    pub handoff: Option<Bytes>,
    /// Everything else in the answer.
    pub said: PrefillAnswer,
}

/// Parts of a prefiller's answer beside its hand-off. No decoder needs them: they are read when
/// they are asked for.
#[derive(Clone, Debug)]
pub struct PrefillAnswer(Box<Answer>);

#[derive(Clone, Debug)]
struct Answer {
    api: Api,
    whole: Object,
    from: Origin,
}

/// Source of the name of the engine that made a hand-off.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is in the box of its answer, and nearly always the large one"
)]
pub(super) enum Origin {
    /// Nothing names it.
    Nobody,
    /// The hand-off's members.
    Params(Object),
    /// It was known before, as a hash.
    Known(u64),
}

impl PrefillAnswer {
    /// All of an answer, and what its hand-off is from.
    pub(super) fn by(api: Api, whole: Object, from: Origin) -> PrefillAnswer {
        PrefillAnswer(Box::new(Answer { api, whole, from }))
    }

    /// True if the answer shows that it ended before its one token's length did: engines keep no KV
    /// of those.
    pub fn is_ended_by_itself(&self) -> bool {
        ended_by_itself(self.0.api, &self.0.whole)
    }

    /// True if the engine gave the request up, by the signs that its answer would have.
    pub fn is_given_up(&self, sign: AbortSign) -> bool {
        sign.in_answer(&self.0.whole)
    }

    /// Its token counts.
    pub fn usage(&self) -> Usage {
        usage::of_answer(self.0.api, &self.0.whole)
    }

    /// The ids of its prompt, as it wrote them, if it was asked for them: a list that is not empty.
    pub fn prompt_ids(&self) -> Option<Bytes> {
        let ids = |holder: &Object| {
            let ids = holder.get("prompt_token_ids").filter(|ids| ids.first_element().is_some())?;
            Some(ids.to_bytes())
        };
        match self.0.api {
            Api::Chat => ids(&self.0.whole),
            _ => ids(&self.0.whole.get("choices")?.first_element()?.object().ok()?),
        }
    }

    /// The engine that made the hand-off, if the answer names it ([`kv_transfer::engine_id`]).
    pub fn engine_id(&self) -> Option<u64> {
        match &self.0.from {
            Origin::Nobody => None,
            Origin::Params(params) => kv_transfer::engine_id(params),
            Origin::Known(id) => Some(*id),
        }
    }

    /// The hand-off's members, for who asks more of them; `None` where there are none, or they
    /// can't be looked into.
    pub(super) fn params(&self) -> Option<&Object> {
        match &self.0.from {
            Origin::Params(params) => Some(params),
            Origin::Nobody | Origin::Known(_) => None,
        }
    }
}

/// By what is asked of them.
impl PartialEq for PrefillAnswer {
    fn eq(&self, other: &PrefillAnswer) -> bool {
        self.usage() == other.usage() && self.engine_id() == other.engine_id()
    }
}

/// Reasons why a prefiller's answer is of no use.
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
    /// It has neither a hand-off nor anything of an answer.
    #[error("the prefiller's answer has nothing in it")]
    NoAnswer,
    /// It reports a failure under a 200.
    #[error("the prefiller's answer reports a failure")]
    ErrorObject,
}

/// Reads the object that a prefiller's 200 is. One that reports a failure is an error, and so is
/// one that neither answers nor says anything of a hand-off.
pub(super) fn prefill_answer(api: Api, reply: Bytes) -> Result<Object, BadReply> {
    let reply = answer(api, reply)?;
    if !reply.contains(PARAMS) && !api.is_answer(&reply) {
        return Err(BadReply::NoAnswer);
    }
    Ok(reply)
}

/// Reads the object that an engine's 200 is; one that reports a failure is an error.
pub(super) fn answer(api: Api, reply: Bytes) -> Result<Object, BadReply> {
    let reply = Object::scan(reply, ScanLimits::default()).map_err(|e| BadReply::NotJson(e.to_string()))?;
    if fault::of_object(api, &reply).is_some() {
        return Err(BadReply::ErrorObject);
    }
    Ok(reply)
}

/// True if a prefiller's answer shows that it ended before its one token's length did, by a stop
/// string or because the engine gave it up: vLLM keeps no KV of those. A forced call says `stop` or
/// `tool_calls` where it was the length; responses say nothing of use.
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
