//! A client over HTTP/2 must keep taking its answer, too.
//!
//! It may be well on its connection and never open the window of one stream. Then the body of that
//! answer is not polled, so that every clock in it stands still, while a decoder works for it. What
//! hyper runs for a stream is therefore watched: a piece that the client has not made room for in
//! time ends it, and with it the engine's work.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::server::cut::CutWaker;

tokio::task_local! {
    /// Since when a piece of the answer of this task waits for the client; None while there is
    /// none.
    static WAITING: Cell<Option<Instant>>;
}

/// The work for one stream, for as long as its client is patiently served.
pub(super) type Served<F, G> = TaskLocalFuture<Cell<Option<Instant>>, Patient<F, G>>;

/// `task`, which is dropped when a piece of its answer waits for longer than `limit`, and polled
/// once more by `cut`. `held` is kept as long as it.
pub(super) fn served<F: Future, G: Unpin>(task: F, limit: Duration, cut: CutWaker, held: G) -> Served<F, G> {
    let task = Box::pin(task);
    WAITING.scope(Cell::new(None), Patient { task, limit, timer: None, cut, _held: held })
}

/// Makes the pieces of an answer known to the task that [`served`] watches; elsewhere it stays as
/// it is. Until the first is asked for, the answer as a whole waits for the client.
pub(super) fn watched(response: Response<Body>) -> Response<Body> {
    match WAITING.try_with(|waiting| waiting.set(Some(Instant::now()))) {
        Ok(()) => response.map(|body| Body::new(Watched(body))),
        Err(_) => response,
    }
}

/// Wrapper that [`served`] makes.
pub(super) struct Patient<F, G> {
    task: Pin<Box<F>>,
    limit: Duration,
    /// Made for the first piece that has to wait; most streams never have one.
    timer: Option<Pin<Box<Sleep>>>,
    cut: CutWaker,
    _held: G,
}

impl<F: Future, G: Unpin> Future for Patient<F, G> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.task.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        self.cut.wake(cx);
        let Some(since) = WAITING.try_with(Cell::get).ok().flatten() else { return Poll::Pending };
        let until = since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }
}

/// An answer that says when a piece of it has gone out of its hands.
struct Watched(Body);

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.0).poll_frame(cx);
        let piece = matches!(polled, Poll::Ready(Some(Ok(_))));
        // Whoever polls an answer elsewhere has clocks of its own.
        let _ = WAITING.try_with(|waiting| waiting.set(piece.then(Instant::now)));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn uncut() -> CutWaker {
        CutWaker::new(CancellationToken::new())
    }

    /// Takes a piece of an answer every so often.
    async fn take(pieces: usize, pause: Duration) {
        let piece = || Ok::<_, std::io::Error>(Bytes::from_static(b"x"));
        let stream = futures_util::stream::iter((0..pieces).map(move |_| piece()));
        let mut body = watched(Response::new(Body::from_stream(stream))).into_body();
        while body.frame().await.is_some() {
            tokio::time::sleep(pause).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_served_and_one_that_takes_nothing_is_not() {
        let (limit, start) = (Duration::from_secs(10), Instant::now());
        served(take(5, Duration::from_secs(8)), limit, uncut(), ()).await;
        assert_eq!(start.elapsed().as_secs(), 40);
        let start = Instant::now();
        served(take(5, Duration::from_secs(3600)), limit, uncut(), ()).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_even_take_the_first_piece_is_not_served() {
        let never_polled = async {
            let _answer = watched(Response::new(Body::from("x")));
            tokio::time::sleep(Duration::from_secs(3600)).await;
        };
        let start = Instant::now();
        served(never_polled, Duration::from_secs(10), uncut(), ()).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_an_engine_does_not_time_out_the_client() {
        let start = Instant::now();
        served(tokio::time::sleep(Duration::from_secs(3600)), Duration::from_secs(10), uncut(), ()).await;
        assert_eq!(start.elapsed().as_secs(), 3600);
    }
}
