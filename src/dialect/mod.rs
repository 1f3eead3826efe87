//! Protocols by which prefiller and decoder learn about each other. Pure: bytes and values in,
//! bytes and values out.
//!
//! A [`Dialect`] decides how both legs' bodies look, in which order they are sent, and how the
//! prefiller's answer is read. The [`Api`] (the request shape of OpenAI, Anthropic or vLLM) is
//! orthogonal to it.

use bytes::Bytes;

use crate::codec::json::{Edit, Object};

pub mod api;
pub mod batch;
pub mod encode;
pub mod engine_load;
pub mod event_members;
pub mod event_sources;
pub mod facts;
pub mod fault;
pub mod finish;
pub mod guard;
pub mod kv_transfer;
pub mod layerwise;
pub mod lease;
pub mod media;
pub mod member;
pub mod mooncake;
mod moriio;
mod nixl_push;
pub mod offers;
mod one_token;
mod patch;
pub mod prefilled;
pub mod priority;
pub mod refusal_event;
pub mod resume;
pub mod returned;
pub mod sglang;
pub mod shape;
pub mod signs;
pub mod streamed_handoff;
pub mod token_ids;
pub mod transfer;
pub mod usage;

pub use api::Api;
use prefilled::Origin;
pub use prefilled::{BadReply, PrefillAnswer, Prefilled};
pub use shape::{Bypass, Shape};
pub use transfer::{Peer, Transfer};

/// The member of a body by which engines are told about each other.
const PARAMS: &str = "kv_transfer_params";

/// Ways in which the engines of a fleet move KV from a prefiller to a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The prefiller's answer says what the decoder is told (`kv_transfer_params`): vLLM's NIXL
    /// connectors, vllm-ascend's MooncakeConnectorV1. An answer that says nothing leaves the KV to
    /// a pool.
    #[default]
    KvTransfer,
    /// A pool alone carries the KV (EmsStoreConnector, AscendStore, UCM, MooncakeStoreConnector):
    /// nothing is handed over.
    Pool,
    /// vLLM's MooncakeConnector: both legs are told a name for the transfer, the decoder also where
    /// the prefiller's bootstrap server is.
    Mooncake,
    /// vLLM's NixlPushConnector: both legs at once, as soon as the prefiller is known.
    NixlPush,
    /// SGLang: both legs at once, with a bootstrap server and a room.
    Sglang,
    /// vllm-ascend's MooncakeLayerwiseConnector: the decoder is asked first, and calls back for a
    /// prefill into its blocks.
    Layerwise,
    /// vLLM's MoRIIOConnector, READ: as `kv_transfer`, with a name given here, and never without a
    /// hand-off.
    Moriio,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Dialect; 7] = [
        Dialect::KvTransfer,
        Dialect::Pool,
        Dialect::Mooncake,
        Dialect::NixlPush,
        Dialect::Sglang,
        Dialect::Layerwise,
        Dialect::Moriio,
    ];

    /// As configured, logged and shown.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::KvTransfer => "kv_transfer",
            Dialect::Pool => "pool",
            Dialect::Mooncake => "mooncake",
            Dialect::NixlPush => "nixl_push",
            Dialect::Sglang => "sglang",
            Dialect::Layerwise => "layerwise",
            Dialect::Moriio => "moriio",
        }
    }

    /// True if the decoder is asked first, and calls back.
    pub fn calls_back(self) -> bool {
        self == Dialect::Layerwise
    }

    /// True if engines know each other's requests by nothing but their id.
    pub fn meets_by_request_id(self) -> bool {
        self == Dialect::NixlPush
    }

    /// True if engines compare their releases before KV goes from one to the other; `said`: what a
    /// prefiller answered.
    pub fn compares_releases(self, said: &PrefillAnswer) -> bool {
        match self {
            Dialect::NixlPush => true,
            Dialect::KvTransfer => said.params().is_some_and(kv_transfer::is_of_nixl),
            _ => false,
        }
    }

    /// True if a decoder can compute a prompt itself, and so serve a request alone.
    pub fn decodes_alone(self) -> bool {
        !matches!(self, Dialect::Sglang | Dialect::Moriio)
    }

    /// True if what a prefiller has computed is for the decoder of the same pair alone.
    pub fn binds_pairs(self) -> bool {
        self == Dialect::Sglang
    }

    /// True if engines may read each other's addresses in a request's id (MoRIIO, as its example
    /// proxy writes them): no client may choose it then.
    pub fn reads_request_ids(self) -> bool {
        self == Dialect::Moriio
    }

    /// Text for the client of a request that a decoder would have to answer alone, where decoders
    /// compute no prompt.
    pub fn lone_decoder_refusal(self) -> String {
        format!(
            "these engines can't answer this route: their decoders compute no prompt (dialect.name = \"{}\"), and no prefiller can do it \
             for them here",
            self.name()
        )
    }

    /// Text for the client of an API that engines of this dialect can't serve from two sides;
    /// `None` where they can. SGLang (0.5.23) drops the bootstrap fields of these bodies, and has
    /// no token API of this name.
    pub fn api_refusal(self, api: Api) -> Option<&'static str> {
        match (self, api) {
            (Dialect::Sglang, Api::Responses | Api::Messages | Api::Generate) => Some(
                "SGLang serves this route only where prefill and decode are not apart: use /v1/chat/completions or /v1/completions",
            ),
            _ => None,
        }
    }

    /// True if both are sent to a room at the prefiller's bootstrap server.
    pub fn has_rooms(self) -> bool {
        self == Dialect::Sglang
    }

    /// Reason why a request can't be prefilled elsewhere, `shape` being what was read from its
    /// body. `lists`: prefillers read lists of prompts (decoder first).
    pub fn bypass(self, api: Api, body: &Object, shape: &Shape, lists: bool) -> Option<Bypass> {
        let several = || shape::several_answers(api, body).then_some(Bypass::SeveralChoices);
        match self {
            Dialect::Layerwise => layerwise::bypass(api, body, shape.bypass, lists),
            // Their engines, too, know a request by the name that they make of its id.
            Dialect::NixlPush => layerwise::bypass(api, body, shape.bypass, false),
            Dialect::KvTransfer | Dialect::Moriio | Dialect::Mooncake => shape.bypass.or_else(several),
            Dialect::Sglang => shape.bypass.filter(same_limits).or_else(several),
            // A pool's blocks are found by their tokens, in each turn anew.
            Dialect::Pool => shape.bypass.filter(|why| same_limits(why) && *why != Bypass::EngineTools),
        }
    }

    /// True if a decoder that turns a request away tells its prefiller to let go of the blocks.
    /// vllm-ascend and vLLM before 0.32 don't for `kv_transfer`, with which blocks that may be gone
    /// can be fetched all the same: they are read by their numbers. Nor does one that is pushed to,
    /// whose prefiller waits for it. With the others a decoder would wait for minutes for what is
    /// gone.
    pub fn tells_of_refusals(self) -> bool {
        !matches!(self, Dialect::KvTransfer | Dialect::NixlPush)
    }

    /// True if its engines take a prompt's token ids in place of its text as vLLM's do. Of SGLang's
    /// nobody has compared the answers.
    pub fn takes_token_ids(self) -> bool {
        self != Dialect::Sglang
    }

    /// True if no decoder reads a prefiller's KV before that has answered, so that an answer which
    /// shows that it computed something else is looked at in time. A pool's blocks are found by
    /// what they are of.
    pub fn decodes_after_prefill(self) -> bool {
        !matches!(self, Dialect::NixlPush | Dialect::Sglang | Dialect::Layerwise)
    }

    /// True if a decoder may offer its KV back, and a prefiller take it.
    pub fn takes_back(self) -> bool {
        self == Dialect::KvTransfer
    }

    /// True if a prefiller's answer says what a decoder is to fetch, so that one that says nothing
    /// has kept nothing.
    pub fn hands_over(self) -> bool {
        matches!(self, Dialect::KvTransfer | Dialect::NixlPush | Dialect::Moriio)
    }

    /// True if a prefiller's bootstrap server must be asked who the prefiller is before anything is
    /// sent to it.
    pub fn asks_bootstrap(self) -> bool {
        self == Dialect::Mooncake
    }

    /// The edit for the prefill leg: one token, not streamed, and what makes the prefiller keep the
    /// KV.
    pub fn prefill_edit(self, api: Api, body: &Object, transfer: &Transfer) -> Edit {
        match self {
            Dialect::KvTransfer => kv_transfer::prefill_edit(api, body, transfer.offer.as_ref()),
            Dialect::Pool => one_token::edit(api, body),
            Dialect::Moriio => moriio::prefill_edit(api, body, transfer),
            Dialect::Mooncake => mooncake::prefill_edit(api, body, transfer),
            Dialect::NixlPush => kv_transfer::prefill_edit(api, body, None),
            Dialect::Sglang => sglang::prefill_edit(body, transfer),
            Dialect::Layerwise => layerwise::prefill_edit(api, body, transfer.called.as_ref()),
        }
    }

    /// The edit for a decode leg that is sent together with the prefill; `None` where it must wait
    /// for the prefiller's answer.
    pub fn early_decode_edit(self, transfer: &Transfer) -> Option<Edit> {
        match (self, transfer.peer.as_deref()) {
            (Dialect::Sglang, _) => Some(sglang::decode_edit(transfer)),
            (Dialect::NixlPush, Some(Peer::Standing(params))) => Some(decode_edit(Some(params))),
            _ => None,
        }
    }

    /// Facts in a prefiller's hand-off that hold for all of its hand-offs.
    pub fn peer_of(self, handoff: &Bytes) -> Option<Peer> {
        match self {
            Dialect::NixlPush => nixl_push::standing(handoff).map(Peer::Standing),
            _ => None,
        }
    }

    /// Reads a prefiller's 200.
    ///
    /// # Errors
    /// [`BadReply`] when it can't be understood; the leg is then tried elsewhere.
    pub fn read_prefill(self, api: Api, reply: Bytes, transfer: &Transfer) -> Result<Prefilled, BadReply> {
        match self {
            Dialect::KvTransfer | Dialect::NixlPush => kv_transfer::read_prefill(api, reply),
            Dialect::Pool | Dialect::Sglang | Dialect::Layerwise => {
                let reply = prefilled::prefill_answer(api, reply)?;
                Ok(Prefilled { handoff: None, said: PrefillAnswer::by(api, reply, Origin::Nobody) })
            }
            Dialect::Mooncake => mooncake::read_prefill(api, reply, transfer),
            Dialect::Moriio => moriio::read_prefill(api, reply),
        }
    }
}

/// The edit for the decode leg: the client's body and the hand-off, which is left out when there is
/// none.
pub fn decode_edit(handoff: Option<&Bytes>) -> Edit {
    match handoff {
        Some(params) => guard::edit().set(PARAMS, params.clone()),
        None => guard::edit(),
    }
}

/// The edit for a decode leg whose only purpose is that the prefiller's KV is fetched, and so
/// freed. `salt`: of what may have been freed before, so that it is another's by now; the decoder
/// keeps what it fetches in its cache, and is to find it for nobody (`cache_salt`, vLLM since 0.9).
pub fn release_edit(api: Api, body: &Object, handoff: &Bytes, salt: Option<u64>) -> Edit {
    let edit = one_token::edit(api, body).set(PARAMS, handoff.clone());
    match salt {
        Some(salt) => edit.set("cache_salt", format!("\"{salt:016x}\"").into()),
        None => edit,
    }
}

/// True if that rules a request out where both engines have the same limits, or find a prompt's
/// blocks by its tokens.
fn same_limits(why: &Bypass) -> bool {
    *why != Bypass::Truncation
}
