//! Values that the two legs of one attempt share before either is sent.

use std::sync::Arc;

use bytes::Bytes;

/// One attempt to move a prompt's KV from a prefiller to a decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Names the transfer where the gateway has to; new for each attempt, so that legs of two
    /// attempts never meet.
    pub id: u128,
    /// Identity of the prefiller for decoders, as far as it is known.
    pub peer: Option<Arc<Peer>>,
    /// Place where the prefiller's bootstrap server listens, for dialects that have one.
    pub bootstrap: Option<(String, u16)>,
    /// The data-parallel rank that is asked to prefill; `None` = the engine's own choice, or there
    /// is but one.
    pub rank: Option<u16>,
    /// A decoder's offer of KV from an earlier turn.
    pub offer: Option<Bytes>,
    /// Parameters for the prefiller from a decoder that was asked first.
    pub called: Option<Bytes>,
}

/// A prefiller as decoders know it, learned once for as long as its process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Answer of a bootstrap server.
    Bootstrapped {
        /// The engine's own id, one for each data-parallel rank, in their order; new with each
        /// start.
        engine_ids: Vec<String>,
        /// The server itself, as `host:port`.
        address: String,
    },
    /// `kv_transfer_params` with all that is the same in each of the prefiller's answers.
    Standing(Bytes),
}

impl Transfer {
    /// The name as text: 32 hexadecimal digits.
    pub fn name(&self) -> String {
        format!("{:032x}", self.id)
    }

    /// The name as a number that any JSON reader takes for a signed integer.
    pub fn room(&self) -> u64 {
        (self.id as u64) >> 1
    }
}

impl Peer {
    /// Data-parallel ranks among which the gateway must choose, 1 where it need not.
    pub fn ranks(&self) -> usize {
        match self {
            Peer::Bootstrapped { engine_ids, .. } => engine_ids.len(),
            Peer::Standing(_) => 1,
        }
    }
}
