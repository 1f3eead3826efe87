//! Event streams that open before their answer is there (`stream.keep_alive_ms`): comments tell
//! balancers, which cut what is silent for a minute, and clients that the request is still being
//! worked on.
//!
//! The price: once the stream is open its status is 200 whatever happens. A refusal or a
//! failure is then an error event, without `Retry-After` or `x-pd-error`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::dialect::{Api, refusal_event};
use crate::error::{Error, Kind};
use crate::obs::Meters;
use crate::relay::answer::AnswerBody;
use crate::relay::{Refusal, shutdown};
use crate::server::fallback::FleetAnswer;
use crate::server::openai::{into_body, into_response};
use crate::server::reply;
use crate::util::media_type::is_event_stream;

/// The comment (WHATWG HTML §9.2.6 recommends one every 15 s or so). Every SSE parser skips it.
const COMMENT: &[u8] = b": keep-alive\n\n";

/// A request on its way to an answer.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<FleetAnswer, Box<Refusal>>> + Send>>;

/// Settings by which a streamed request is kept alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    /// Time until the stream opens, and between two comments.
    pub(super) interval: Duration,
    /// The API, whose error events clients know.
    pub(super) api: Api,
    /// The status under which a refusal for want of room is counted.
    pub(super) overload_status: StatusCode,
}

/// The body of a stream that opened before its answer.
struct Early {
    keep_alive: KeepAlive,
    meters: Arc<Meters>,
    state: State,
}

enum State {
    Waiting { pending: Pending, pause: Pin<Box<Sleep>> },
    Answering(Body),
    Done,
}

impl KeepAlive {
    /// Waits one interval for the answer, then opens the stream.
    ///
    /// # Errors
    /// The refusal of a request that is refused within the interval.
    pub(super) async fn answer(
        self,
        meters: &Arc<Meters>,
        mut pending: Pending,
    ) -> Result<Response<Body>, Box<Refusal>> {
        match timeout(self.interval, &mut pending).await {
            Ok(ended) => ended.map(into_response),
            Err(_) => Ok(self.open(meters.clone(), pending)),
        }
    }

    /// Opens the stream, with a first comment.
    fn open(self, meters: Arc<Meters>, pending: Pending) -> Response<Body> {
        let state = State::Waiting { pending, pause: Box::pin(sleep(Duration::ZERO)) };
        let mut response = Response::new(Body::new(Early { keep_alive: self, meters, state }));
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    /// Continues the opened stream with an answer that arrived after it: a body, or one last event.
    fn continue_with(self, ended: Result<FleetAnswer, Box<Refusal>>) -> Result<Body, String> {
        match ended {
            Ok(FleetAnswer { answer, alias }) => {
                let status = answer.status();
                match answer.into_body() {
                    AnswerBody::Whole(whole) => Err(self.event_of(status, whole.bytes())),
                    stream => Ok(into_body(stream, alias.as_ref())),
                }
            }
            Err(mut refusal) => {
                let response = reply::error_under(self.overload_status, Some(self.api), &refusal.error);
                refusal.ledger.refused(&refusal.error, response.status());
                Err(self.api.error_event(&refusal.error, 0))
            }
        }
    }

    /// An engine's whole answer as an event: its refusal in its own words, anything else as our
    /// error.
    fn event_of(self, status: StatusCode, body: &Bytes) -> String {
        let refusal = (!status.is_success()).then(|| refusal_event::of(self.api, status.as_u16(), body));
        refusal.flatten().unwrap_or_else(|| {
            let text = format!("an engine answered with status {} instead of a stream", status.as_u16());
            self.api.error_event(&Error::new(Kind::EngineFailed, text), 0)
        })
    }
}

impl http_body::Body for Early {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Waiting { pending, pause } => match pending.as_mut().poll(cx) {
                    Poll::Ready(ended) => match this.keep_alive.continue_with(ended) {
                        Ok(body) => this.state = State::Answering(body),
                        Err(event) => {
                            this.state = State::Done;
                            return Poll::Ready(Some(Ok(Frame::data(event.into()))));
                        }
                    },
                    // The account went with the request, and knows by itself how it ended.
                    Poll::Pending if this.meters.cuts() => {
                        this.state = State::Done;
                        let event = this.keep_alive.api.error_event(&shutdown(), 0);
                        return Poll::Ready(Some(Ok(Frame::data(event.into()))));
                    }
                    Poll::Pending => {
                        if pause.as_mut().poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                        pause.as_mut().reset(Instant::now() + this.keep_alive.interval);
                        return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
                    }
                },
                State::Answering(body) => return Pin::new(body).poll_frame(cx),
                State::Done => return Poll::Ready(None),
            }
        }
    }
}

/// Tells caches and proxies in front (nginx, and what follows it) to pass events on as they come.
pub(super) fn mark_stream(response: &mut Response<Body>) {
    if is_event_stream(response.headers()) {
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    }
}
