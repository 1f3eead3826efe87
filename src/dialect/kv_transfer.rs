//! The prefill-first dialect of `kv_transfer_params`: vLLM's NIXL connectors, vllm-ascend's MooncakeConnectorV1, and
//! (with no hand-off in the answer) the connectors that move KV through a pool: EmsStoreConnector, AscendStore, UCM.
//!
//! Bodies as in vllm-ascend's `load_balance_proxy_server_example.py` (August 2026), checked against vLLM 0.32.0.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, ScanLimits, Value};
use crate::dialect::prefilled::{BadReply, Prefilled, answer};
use crate::dialect::{Api, PARAMS, one_token, usage};

/// What a prefiller is asked: keep the KV of this prompt for a decoder that is not known yet.
const ASK: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The edit for the prefill leg: one token, not streamed, one choice, and the request to keep the KV; with an `offer`
/// ([`super::returned`]), to read a part of it before.
pub fn prefill_edit(api: Api, body: &Object, offer: Option<&Bytes>) -> Edit {
    let ask = offer.cloned().unwrap_or(Bytes::from_static(ASK));
    one_token::edit(api, body).set(PARAMS, ask)
}

/// Reads a prefiller's 200.
///
/// # Errors
/// [`BadReply`] when it can't be understood; the leg is then tried elsewhere.
pub fn read_prefill(api: Api, reply: Bytes) -> Result<Prefilled, BadReply> {
    let reply = answer(reply)?;
    let handoff = match reply.get(PARAMS) {
        None => None,
        Some(v) if v.is_null() => None,
        Some(v) if !v.is_object() => return Err(BadReply::NotAnObject),
        // An empty object hands nothing over, as in the reference.
        Some(v) if v.object().is_ok_and(|o| o.members().next().is_none()) => None,
        Some(v) if v.object().is_ok_and(|o| names_nothing(&o)) => return Err(BadReply::Nothing),
        Some(v) => Some(reply.bytes().slice(v.range())),
    };
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
