//! A decoder's answer as it comes: its events, and the reservation that lasts as long as they do.

use bytes::Bytes;

use crate::codec::sse::Framer;
use crate::dialect::Api;
use crate::dialect::resume::AbortSign;
use crate::fleet::Reservation;
use crate::upstream::Reply;

/// Result of a decode leg, to be streamed.
pub(super) struct Source {
    /// Whole events, the first with data among them.
    pub(super) first: Bytes,
    pub(super) framer: Framer,
    pub(super) rest: Reply,
    pub(super) reservation: Reservation,
    pub(super) api: Api,
    pub(super) http2: bool,
    /// Sign by which the decoder gives the answer up.
    pub(super) given_up: AbortSign,
}

/// The decoder that writes a stream.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) reservation: Reservation,
    pub(super) rest: Reply,
    pub(super) framer: Framer,
    /// Its second piece is here.
    goes_on: bool,
}

impl Live {
    pub(super) fn new(rest: Reply, framer: Framer, reservation: Reservation) -> Live {
        Live { rest, framer, reservation, goes_on: false }
    }

    /// A piece is here. With the second one the connection is told that more of them will come: not
    /// with the first, which somebody waits for.
    pub(super) fn came(&mut self) {
        if !std::mem::replace(&mut self.goes_on, true) {
            self.rest.in_small_pieces();
        }
    }
}
