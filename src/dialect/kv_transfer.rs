//! The prefill-first dialect of `kv_transfer_params`: vLLM's NIXL connectors, vllm-ascend's
//! MooncakeConnectorV1, and (with no hand-off in the answer) the connectors that move KV through a
//! pool: EmsStoreConnector, AscendStore, UCM.
//!
//! Bodies as in vllm-ascend's `load_balance_proxy_server_example.py` (August 2026), checked against
//! vLLM 0.32.0.
//!
//! A hand-off is for one answer. Of several (`n`) each fetches by itself, and a prefiller lets go
//! of the blocks when the first has done so (vLLM 0.32): the others would read what may be another
//! prompt's by then, and nobody would notice. A decoder makes them alone.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, Value};
use crate::dialect::prefilled::{BadReply, Origin, PrefillAnswer, Prefilled, prefill_answer};
use crate::dialect::{Api, PARAMS, one_token};

/// Order to a prefiller: keep the KV of this prompt for a decoder that is not known yet.
const ASK: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The edit for the prefill leg: one token, not streamed, one choice, and the request to keep the
/// KV; with an `offer` ([`super::returned`]), to read a part of it before.
pub fn prefill_edit(api: Api, body: &Object, offer: Option<&Bytes>) -> Edit {
    let ask = offer.cloned().unwrap_or(Bytes::from_static(ASK));
    one_token::edit(api, body).set(PARAMS, ask)
}

/// Reads a prefiller's 200.
///
/// # Errors
/// [`BadReply`] when it can't be understood; the leg is then tried elsewhere.
pub fn read_prefill(api: Api, reply: Bytes) -> Result<Prefilled, BadReply> {
    let reply = prefill_answer(api, reply)?;
    let Some(value) = reply.get(PARAMS).filter(|value| !value.is_null()) else {
        return Ok(Prefilled { handoff: None, said: PrefillAnswer::by(api, reply, Origin::Nobody) });
    };
    if !value.is_object() {
        return Err(BadReply::NotAnObject);
    }
    let whole = value.to_bytes();
    let (handoff, from) = match value.object() {
        // An empty object hands nothing over, as in the reference.
        Ok(params) if params.members().next().is_none() => (None, Origin::Params(params)),
        Ok(params) if names_nothing(&params) => return Err(BadReply::Nothing),
        Ok(params) => (Some(whole), Origin::Params(params)),
        // One that can't be looked into is the engines' affair.
        Err(_) => (Some(whole), Origin::Nobody),
    };
    Ok(Prefilled { handoff, said: PrefillAnswer::by(api, reply, from) })
}

/// True if a hand-off says that there is something to fetch, but neither where nor what. All else
/// in it is the engines' affair.
fn names_nothing(handoff: &Object) -> bool {
    let fetches = handoff.get("do_remote_prefill").is_some_and(|v| v.raw() == b"true");
    let names = |(key, value): (std::borrow::Cow<'_, str>, Value<'_>)| {
        !matches!(key.as_ref(), "do_remote_prefill" | "do_remote_decode") && !value.is_null()
    };
    fetches && !handoff.members().any(names)
}

/// True if a hand-off is one of vLLM's NIXL connectors, whose engines compare their releases:
/// MooncakeConnectorV1 of vllm-ascend writes other members for parallel sizes.
pub(super) fn is_of_nixl(handoff: &Object) -> bool {
    handoff.contains("tp_size") && handoff.contains("remote_request_id")
}

/// A hash of the name of the engine that made a hand-off (`remote_engine_id`: a uuid, new with each
/// start of the engine). The ranks of one engine, which add `_dp0`, `_dp1`, …, have the same.
pub fn engine_id(handoff: &Object) -> Option<u64> {
    Some(engine_hash(&handoff.get("remote_engine_id")?.as_str()?))
}

/// The same of the name itself.
pub(super) fn engine_hash(name: &str) -> u64 {
    let whole = name.rsplit_once("_dp").filter(|(_, rank)| rank.bytes().all(|digit| digit.is_ascii_digit()));
    xxhash_rust::xxh3::xxh3_64(whole.map_or(name, |(whole, _)| whole).as_bytes())
}

#[cfg(test)]
mod tests;
