//! The prefill-first dialect of `kv_transfer_params`: vLLM's NIXL connectors, vllm-ascend's MooncakeConnectorV1, and
//! (with no hand-off in the answer) the connectors that move KV through a pool: EmsStoreConnector, AscendStore, UCM.
//!
//! Bodies as in vllm-ascend's `load_balance_proxy_server_example.py` (August 2026), checked against vLLM 0.32.0.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, Value};
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
    read(api, reply).map(|(prefilled, _)| prefilled)
}

/// The same, and the hand-off's members for who asks more of them; `None` where there are none, or they can't be looked into.
pub(super) fn read(api: Api, reply: Bytes) -> Result<(Prefilled, Option<Object>), BadReply> {
    let reply = answer(reply)?;
    let mut prefilled = Prefilled { handoff: None, usage: usage::of_answer(api, &reply), engine_id: None };
    let Some(value) = reply.get(PARAMS).filter(|value| !value.is_null()) else {
        return Ok((prefilled, None));
    };
    if !value.is_object() {
        return Err(BadReply::NotAnObject);
    }
    // An empty object hands nothing over, as in the reference; one that can't be looked into is the engines' affair.
    let params = value.object().ok();
    if params.as_ref().is_none_or(|params| params.members().next().is_some()) {
        prefilled.handoff = Some(value.to_bytes());
    }
    if let Some(params) = &params {
        if names_nothing(params) {
            return Err(BadReply::Nothing);
        }
        prefilled.engine_id = engine_id(params);
    }
    Ok((prefilled, params))
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
