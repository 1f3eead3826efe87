//! What is left of a request's body when its answer is there first: most refusals need none of it.
//!
//! Over HTTP/1.1 the next request stands behind that rest. hyper takes as much of it as has arrived already, and hangs up on more without a
//! word of it in the answer. So the rest is read here, within bounds; where it does not end, the answer says that the connection does
//! (RFC 9112 §9.6).

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

/// As much is read of what nobody wants: nearly all bodies are smaller, and a new connection costs a client less than sending more.
const REST_BYTES: u64 = 1 << 20;

/// For so long, in which a body of that size arrives from most clients. Those that send nothing have their answer that much later.
const REST_TIME: Duration = Duration::from_millis(100);

/// What a handler left of a request's body.
#[derive(Default)]
enum Rest {
    /// Nothing, or it still reads.
    #[default]
    None,
    /// This has to be read before the next request can be.
    Unread(Body),
    /// What can't be read: it broke, or the client waits for a word that it should send it (`Expect: 100-continue`), which reading is.
    Lost,
}

/// Where a request's body goes when its handler has dropped it.
pub(super) struct Leftover(Arc<Mutex<Rest>>);

/// Follows the body of `request`; None where no answer could leave anything of it.
pub(super) fn of(request: &mut Request) -> Option<Leftover> {
    if request.version() >= Version::HTTP_2 || request.body().is_end_stream() {
        return None;
    }
    let rest = Arc::default();
    let left = Leftover(Arc::clone(&rest));
    let told_to_send = !request.headers().contains_key(header::EXPECT);
    let body = take(request.body_mut());
    *request.body_mut() = Body::new(Followed { body, rest, told_to_send, state: State::Open });
    Some(left)
}

impl Leftover {
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

/// How far a body was read.
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
