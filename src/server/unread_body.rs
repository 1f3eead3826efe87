//! The unread rest of a request's body when its answer is there first: most refusals need none of
//! it.
//!
//! Over HTTP/1.1 the next request stands after that rest. hyper takes as much of it as has arrived
//! already, and hangs up on more without a word of it in the answer. So the rest is read here,
//! within bounds. Where it does not end, the answer says that the connection does (RFC 9112 §9.6),
//! and bytes after that answer are read where it closes (`stall/parting.rs`).

use std::mem::take;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::{HeaderValue, Response, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::timeout;

/// As much is read of what nobody wants: nearly all bodies are smaller, and a new connection costs
/// a client less than sending more.
const REST_BYTES: u64 = 1 << 20;

/// For so long, in which a body of that size arrives from most clients. Those that send nothing
/// have their answer that much later.
const REST_TIME: Duration = Duration::from_millis(100);

/// Rest of a request's body after its handler.
#[derive(Default)]
enum Rest {
    /// Nothing, or it still reads.
    #[default]
    None,
    /// This has to be read before the next request can be.
    Unread(Body),
    /// A rest that can't be read: it broke, or the client waits for a word that it should send it
    /// (`Expect: 100-continue`), which reading is.
    Lost,
}

/// Place where a request's body goes when its handler has dropped it.
pub(super) struct UnreadRequestBody(Arc<Mutex<Rest>>);

/// Follows the body of `request`; None where no answer could leave anything of it.
pub(super) fn of(request: &mut Request) -> Option<UnreadRequestBody> {
    if request.version() >= Version::HTTP_2 || request.body().is_end_stream() {
        return None;
    }
    let rest = Arc::default();
    let left = UnreadRequestBody(Arc::clone(&rest));
    let told_to_send = !request.headers().contains_key(header::EXPECT);
    let body = take(request.body_mut());
    *request.body_mut() = Body::new(Followed { body, rest, told_to_send, state: State::Open });
    Some(left)
}

impl UnreadRequestBody {
    /// Reads what is left, or says in the answer that the connection is closed.
    pub(super) async fn settle(self, response: &mut Response<Body>) {
        let rest = take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = match rest {
            Rest::None => true,
            Rest::Lost => false,
            // It is closed already.
            Rest::Unread(_) if response.headers().contains_key(header::CONNECTION) => true,
            // On the side: almost no request comes here, and all would set room aside for it.
            Rest::Unread(body) => Box::pin(ends_soon(body)).await,
        };
        if !ended {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Reads a body to its end and keeps nothing of it; `false` where that is too far off.
async fn ends_soon(mut body: Body) -> bool {
    if body.size_hint().lower() > REST_BYTES {
        return false;
    }
    let reading = async {
        let mut read_bytes = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            read_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            if read_bytes > REST_BYTES {
                return false;
            }
        }
        true
    };
    timeout(REST_TIME, reading).await.unwrap_or(false)
}

/// State of reading a body.
#[derive(PartialEq, Eq)]
enum State {
    Open,
    Ended,
    Broken,
}

/// A body that is given back when it is dropped before its end.
struct Followed {
    body: Body,
    rest: Arc<Mutex<Rest>>,
    /// The client sends it unasked, or has been asked.
    told_to_send: bool,
    state: State,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.told_to_send = true;
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.state = State::Ended,
            Poll::Ready(Some(Err(_))) => self.state = State::Broken,
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if self.state == State::Ended || self.body.is_end_stream() {
            return;
        }
        let lost = self.state == State::Broken || !self.told_to_send;
        let rest = if lost { Rest::Lost } else { Rest::Unread(take(&mut self.body)) };
        *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A body of so many pieces, each a while after the one before.
    fn pieces(count: usize, bytes: usize, pause: Duration) -> Body {
        let piece = move |left: usize| async move {
            sleep(pause).await;
            left.checked_sub(1).map(|left| (Ok::<_, Infallible>(Bytes::from(vec![0; bytes])), left))
        };
        Body::from_stream(stream::unfold(count, piece))
    }

    /// A request that is refused, after as many pieces of its body were read: whether its answer
    /// closes the connection, and after how long.
    async fn refused(mut request: Request, read: usize) -> (bool, Duration) {
        let (start, left) = (Instant::now(), of(&mut request).unwrap());
        for _ in 0..read {
            request.body_mut().frame().await;
        }
        drop(request);
        let mut response = Response::new(Body::empty());
        left.settle(&mut response).await;
        (response.headers().get(header::CONNECTION).is_some_and(|said| said == "close"), start.elapsed())
    }

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn short_unread_body_is_drained_and_longer_one_is_not() {
        for (name, body, read, told) in [
            ("it ends", pieces(3, 1_000, 20 * MS), 0, (false, 80 * MS)),
            ("it was read", pieces(3, 1_000, 20 * MS), 4, (false, 80 * MS)),
            ("a part of it was", pieces(5, 1_000, 20 * MS), 3, (false, 120 * MS)),
            ("it comes slowly", pieces(3, 1_000, 60 * MS), 0, (true, REST_TIME)),
            ("it never comes", pieces(1, 1_000, Duration::MAX), 0, (true, REST_TIME)),
            ("just as much as may be", pieces(16, 1 << 16, Duration::ZERO), 0, (false, Duration::ZERO)),
            ("a byte more", pieces(1, (1 << 20) + 1, Duration::ZERO), 0, (true, Duration::ZERO)),
            ("all that is announced", Body::from(vec![0; (1 << 20) + 1]), 0, (true, Duration::ZERO)),
        ] {
            let (closes, took) = refused(Request::new(body), read).await;
            // The clock of tokio's timers has steps of a millisecond.
            let close_to = took >= told.1 && took < told.1 + 10 * MS;
            assert!(closes == told.0 && close_to, "{name}: {closes} after {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_was_not_asked_for_is_not() {
        let expecting = |body| {
            let mut request = Request::new(body);
            request.headers_mut().insert(header::EXPECT, HeaderValue::from_static("100-continue"));
            request
        };
        let never = Body::from_stream(stream::poll_fn(|_| -> Poll<Option<Result<Bytes, Infallible>>> {
            panic!("this tells the client to send it")
        }));
        assert_eq!(refused(expecting(never), 0).await, (true, Duration::ZERO));
        let (closes, _) = refused(expecting(pieces(2, 1_000, 20 * MS)), 1).await;
        assert!(!closes, "it was asked for");
    }

    #[test]
    fn bodies_that_are_not_there_and_those_of_http2_are_not_followed() {
        assert!(of(&mut Request::new(Body::empty())).is_none());
        let mut request = Request::new(Body::from("x"));
        *request.version_mut() = Version::HTTP_2;
        assert!(of(&mut request).is_none());
    }
}
