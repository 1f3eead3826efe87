//! A request body in pieces: the spliced client's body, sent without being joined.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::codec::json::Parts;
use crate::upstream::Written;

/// Slices of the client's body and the added members between them.
#[derive(Debug)]
pub struct LegBody {
    /// On the heap: a connection has room for 32 requests in its queue for as long as it lives, and uses one.
    parts: Box<<Parts as IntoIterator>::IntoIter>,
    left_bytes: u64,
    written: Written,
}

impl LegBody {
    /// Of a request that has none.
    pub fn empty() -> LegBody {
        LegBody { parts: Box::new(Parts::default().into_iter()), left_bytes: 0, written: Written::default() }
    }

    /// A body that marks `written` when its last piece is taken.
    pub fn new(parts: Parts, written: Written) -> LegBody {
        let left_bytes = parts.len_bytes() as u64;
        if left_bytes == 0 {
            written.set();
        }
        LegBody { parts: Box::new(parts.into_iter()), left_bytes, written }
    }
}

impl Body for LegBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.parts.find(|p| !p.is_empty());
        if let Some(part) = &next {
            self.left_bytes = self.left_bytes.saturating_sub(part.len() as u64);
            if self.left_bytes == 0 {
                self.written.set();
            }
        }
        Poll::Ready(next.map(|p| Ok(Frame::data(p))))
    }

    fn is_end_stream(&self) -> bool {
        self.left_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_small_while_it_waits() {
        assert!(size_of::<LegBody>() <= 32, "{} bytes, 32 times for each connection", size_of::<LegBody>());
    }
}
