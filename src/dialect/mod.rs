//! How prefiller and decoder are told about each other. Pure: bytes and values in, bytes and values out.
//!
//! A [`Dialect`] decides what both legs' bodies look like, in which order they are sent, and what the prefiller's answer
//! means; the [`Api`] (which of OpenAI's, Anthropic's or vLLM's request shapes) is orthogonal to it.

use bytes::Bytes;

use crate::codec::json::{Edit, Object};

pub mod api;
pub mod engine_load;
pub mod facts;
pub mod guard;
pub mod kv_transfer;
pub mod layerwise;
pub mod mooncake;
mod one_token;
pub mod prefilled;
pub mod resume;
pub mod shape;
pub mod transfer;
pub mod usage;

pub use api::Api;
pub use prefilled::{BadReply, Prefilled};
pub use shape::{Bypass, Shape};
pub use transfer::{Peer, Transfer};

/// The member of a body by which engines are told about each other.
const PARAMS: &str = "kv_transfer_params";

/// How the engines of a fleet move KV from a prefiller to a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The prefiller's answer says what the decoder is told (`kv_transfer_params`): vLLM's NIXL connectors, vllm-ascend's
    /// MooncakeConnectorV1. An answer that says nothing leaves the KV to a pool.
    #[default]
    KvTransfer,
    /// A pool alone carries the KV (EmsStoreConnector, AscendStore, UCM, MooncakeStoreConnector): nothing is handed over.
    Pool,
    /// vLLM's MooncakeConnector: both legs are told a name for the transfer, the decoder also where the prefiller's
    /// bootstrap server is.
    Mooncake,
    /// vllm-ascend's MooncakeLayerwiseConnector: the decoder is asked first, and calls back for a prefill into its blocks.
    Layerwise,
}

/// Which leg is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegOrder {
    /// The decoder needs what the prefiller answers, or must not wait for a prefill that may fail.
    PrefillFirst,
    /// The prefiller needs what the decoder says when it calls back.
    DecodeFirst,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Dialect; 4] = [Dialect::KvTransfer, Dialect::Pool, Dialect::Mooncake, Dialect::Layerwise];

    /// As configured, logged and shown.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::KvTransfer => "kv_transfer",
            Dialect::Pool => "pool",
            Dialect::Mooncake => "mooncake",
            Dialect::Layerwise => "layerwise",
        }
    }

    /// Which leg is sent first.
    pub fn order(self) -> LegOrder {
        match self {
            Dialect::KvTransfer | Dialect::Pool | Dialect::Mooncake => LegOrder::PrefillFirst,
            Dialect::Layerwise => LegOrder::DecodeFirst,
        }
    }

    /// Whether a prefiller's bootstrap server must be asked who the prefiller is before anything is sent to it.
    pub fn asks_bootstrap(self) -> bool {
        self == Dialect::Mooncake
    }

    /// The edit for the prefill leg: one token, not streamed, and what makes the prefiller keep the KV.
    pub fn prefill_edit(self, api: Api, body: &Object, transfer: &Transfer) -> Edit {
        match self {
            Dialect::KvTransfer => kv_transfer::prefill_edit(api, body),
            Dialect::Pool => one_token::edit(api, body),
            Dialect::Mooncake => mooncake::prefill_edit(api, body, transfer),
            Dialect::Layerwise => layerwise::prefill_edit(api, body, transfer.called.as_ref()),
        }
    }

    /// Reads a prefiller's 200.
    ///
    /// # Errors
    /// [`BadReply`] when it can't be understood; the leg is then tried elsewhere.
    pub fn read_prefill(self, api: Api, reply: Bytes, transfer: &Transfer) -> Result<Prefilled, BadReply> {
        match self {
            Dialect::KvTransfer => kv_transfer::read_prefill(api, reply),
            Dialect::Pool | Dialect::Layerwise => {
                let reply = prefilled::answer(reply)?;
                Ok(Prefilled { handoff: None, usage: usage::of_answer(api, &reply) })
            }
            Dialect::Mooncake => mooncake::read_prefill(api, reply, transfer),
        }
    }
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
    one_token::edit(api, body).set(PARAMS, handoff.clone())
}
