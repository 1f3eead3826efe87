//! An engine's answer whose body has begun: a body that breaks before its first piece is a failure
//! that can still be told by a status.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::upstream::{Reply, ReplyError};

/// An answer's body, of which the first piece is here.
#[derive(Debug)]
pub(super) struct BegunBody {
    first: Option<Bytes>,
    rest: Reply,
}

impl BegunBody {
    /// Waits for the first piece of `body`, or its end.
    ///
    /// # Errors
    /// [`ReplyError`] where it breaks before.
    pub(super) async fn begin(mut body: Reply) -> Result<BegunBody, ReplyError> {
        let first = match body.frame().await {
            Some(frame) => frame?.into_data().ok(),
            None => None,
        };
        Ok(BegunBody { first, rest: body })
    }
}

impl Body for BegunBody {
    type Data = Bytes;
    type Error = ReplyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReplyError>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, first_bytes) = (self.rest.size_hint(), self.first.as_ref().map_or(0, Bytes::len) as u64);
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower() + first_bytes);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + first_bytes);
        }
        hint
    }
}
