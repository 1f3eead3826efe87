//! The prefill-first dialect of `kv_transfer_params`: vLLM's NIXL connectors, vllm-ascend's MooncakeConnectorV1, and
//! (with no hand-off in the answer) the connectors that move KV through a pool: EmsStoreConnector, AscendStore, UCM.
//!
//! Bodies as in vllm-ascend's `load_balance_proxy_server_example.py` (August 2026), checked against vLLM 0.32.0.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, ScanLimits, Value};
use crate::dialect::usage::{self, Usage};
use crate::dialect::{Api, guard};

/// What a prefiller is asked: keep the KV of this prompt for a decoder that is not known yet.
const ASK: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

const PARAMS: &str = "kv_transfer_params";
const ONE: Bytes = Bytes::from_static(b"1");
const FALSE: Bytes = Bytes::from_static(b"false");

/// What a prefiller's answer says.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefilled {
    /// The hand-off, exactly as the prefiller wrote it; `None` when KV travels through a pool.
    pub handoff: Option<Bytes>,
    /// Its token counts.
    pub usage: Usage,
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

/// The edit for the prefill leg: one token, not streamed, one choice, and the request to keep the KV.
pub fn prefill_edit(api: Api, body: &Object) -> Edit {
    one_token(api, body).set(PARAMS, Bytes::from_static(ASK))
}

/// The edit for the decode leg: the client's body and the hand-off, which is left out when there is none.
pub fn decode_edit(handoff: Option<&Bytes>) -> Edit {
    match handoff {
        Some(params) => guard::edit().set(PARAMS, params.clone()),
        None => guard::edit(),
    }
}

/// The edit for a decode leg whose only purpose is that the prefiller's KV is fetched, and so freed.
pub fn release_edit(api: Api, body: &Object, handoff: &Bytes) -> Edit {
    one_token(api, body).set(PARAMS, handoff.clone())
}

/// What a leg is sent that is to compute the prompt and one token, and to answer at once.
fn one_token(api: Api, body: &Object) -> Edit {
    let edit = guard::edit().drop("stream_options").set("stream", FALSE);
    let edit = match api {
        Api::Chat | Api::Completions => {
            let edit = edit.set("max_tokens", ONE).set("min_tokens", ONE).drop("best_of");
            if body.contains("max_completion_tokens") { edit.set("max_completion_tokens", ONE) } else { edit }
        }
        Api::Messages => edit.set("max_tokens", ONE),
        // A response that is stored, or computed in the background, would outlive the leg.
        Api::Responses => edit.set("max_output_tokens", ONE).set("store", FALSE).drop("background"),
        Api::Generate => return generate(body, edit),
    };
    if body.contains("n") { edit.set("n", ONE) } else { edit }
}

/// `/inference/v1/generate` keeps its limits one level deeper.
fn generate(body: &Object, edit: Edit) -> Edit {
    let limits = Edit::new().set("max_tokens", ONE).set("min_tokens", ONE).set("n", ONE);
    let spliced = match body.get("sampling_params").and_then(|v| v.object().ok()) {
        Some(params) => params.splice(&limits).to_bytes(),
        None => Bytes::from_static(br#"{"max_tokens":1,"min_tokens":1,"n":1}"#),
    };
    edit.set("sampling_params", spliced)
}

/// Reads a prefiller's 200.
///
/// # Errors
/// [`BadReply`] when it can't be understood; the leg is then tried elsewhere.
pub fn read_prefill(api: Api, reply: Bytes) -> Result<Prefilled, BadReply> {
    let reply = Object::scan(reply, ScanLimits::default()).map_err(|e| BadReply::NotJson(e.to_string()))?;
    let handoff = match reply.get(PARAMS) {
        None => None,
        Some(v) if v.is_null() => None,
        Some(v) if !v.is_object() => return Err(BadReply::NotAnObject),
        // An empty object hands nothing over, as in the reference.
        Some(v) if v.object().is_ok_and(|o| o.members().next().is_none()) => None,
        Some(v) if v.object().is_ok_and(|o| names_nothing(&o)) => return Err(BadReply::Nothing),
        Some(v) => Some(reply.bytes().slice(v.range())),
    };
    // Responses carry `"error":null` where all is well.
    if reply.get("error").is_some_and(|e| !e.is_null()) {
        return Err(BadReply::ErrorObject);
    }
    Ok(Prefilled { handoff, usage: usage::of_answer(api, &reply) })
}

/// Whether a hand-off says that there is something to fetch, but neither where nor what. All else in it is the engines' affair.
fn names_nothing(handoff: &Object) -> bool {
    let fetches = handoff.get("do_remote_prefill").is_some_and(|v| v.raw() == b"true");
    let names = |(key, value): (std::borrow::Cow<'_, str>, Value<'_>)| {
        !matches!(key.as_ref(), "do_remote_prefill" | "do_remote_decode") && !value.is_null()
    };
    fetches && !handoff.members().any(names)
}

/// A hash of the name of the engine that made a hand-off (`remote_engine_id`: a uuid, new with each start of the engine).
/// The ranks of one engine, which add `_dp0`, `_dp1`, …, have the same.
pub fn engine_id(handoff: &[u8]) -> Option<u64> {
    let handoff = Object::scan(Bytes::copy_from_slice(handoff), ScanLimits::default()).ok()?;
    let id = handoff.get("remote_engine_id")?.as_str()?;
    let whole = id.rsplit_once("_dp").filter(|(_, rank)| rank.bytes().all(|digit| digit.is_ascii_digit()));
    Some(xxhash_rust::xxh3::xxh3_64(whole.map_or(&*id, |(whole, _)| whole).as_bytes()))
}

#[cfg(test)]
mod tests;
