//! What the two legs of one attempt have in common before either is sent.

use std::sync::Arc;

use bytes::Bytes;

/// One attempt to move a prompt's KV from a prefiller to a decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Names the transfer where the gateway has to; new for each attempt, so that legs of two attempts never meet.
    pub id: String,
    /// Who the prefiller is for decoders; `None` where its answer says so.
    pub peer: Option<Arc<Peer>>,
    /// The data-parallel rank that is asked to prefill; `None` = the engine's own choice, or there is but one.
    pub rank: Option<u16>,
    /// What a decoder that was asked first wants the prefiller to be told.
    pub called: Option<Bytes>,
}

/// A prefiller as decoders know it, learned once for as long as its process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The engine's own id, one for each data-parallel rank, in their order; new with each start.
    pub engine_ids: Vec<String>,
    /// The bootstrap server that decoders ask, as `host:port`.
    pub bootstrap: String,
}
