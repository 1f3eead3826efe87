//! The end of HTTP/2 connections without requests, and of all connections at a shutdown.
//!
//! Over HTTP/1.1 an idle connection waits for a head, which has a time limit. Over HTTP/2 nothing
//! is waited for: a client that only answers pings would keep its place of `limit.connections` for
//! ever.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The open requests of one HTTP/2 connection, and since when there are none.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    born: Instant,
    open: AtomicUsize,
    /// Time at which the last request ended, ms after `born`.
    ended_ms: AtomicU64,
}

/// An open request, until dropped.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Inner>);

impl Activity {
    /// The activity of a connection that begins now.
    pub(super) fn new() -> Activity {
        Activity(Arc::new(Inner {
            born: Instant::now(),
            open: AtomicUsize::new(0),
            ended_ms: AtomicU64::new(0),
        }))
    }

    /// Counts a request as open.
    pub(super) fn open(&self) -> OpenRequest {
        self.0.open.fetch_add(1, Ordering::AcqRel);
        OpenRequest(self.0.clone())
    }

    /// Ends when no request was open for `limit`.
    async fn idle(self, limit: Duration) {
        loop {
            let now = Instant::now();
            let since = match self.0.open.load(Ordering::Acquire) {
                0 => self.0.born + Duration::from_millis(self.0.ended_ms.load(Ordering::Acquire)),
                _ => now,
            };
            if since + limit <= now {
                return;
            }
            sleep_until(since + limit).await;
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let ended_ms = u64::try_from(self.0.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.ended_ms.store(ended_ms, Ordering::Release);
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Moment at which a connection is told to take no more requests.
#[derive(Debug)]
pub(super) struct End {
    /// Once this is cancelled.
    pub(super) stop: CancellationToken,
    /// Cancelled when open requests are to end.
    pub(super) cut: CancellationToken,
    /// Once it was idle for so long, over HTTP/2.
    pub(super) idle: Option<(Activity, Duration)>,
}

impl End {
    async fn comes(self) {
        let idle = async {
            match self.idle {
                Some((activity, limit)) => activity.idle(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = idle => {}
        }
    }
}

/// Serves a connection to its end; from `end` on it only finishes what is open, and when that is
/// cut it asks each of its requests once more, which end by themselves then. All are on the side,
/// since a task would else keep room for them twice.
pub(super) fn until_end<C: GracefulConnection>(connection: C, end: End) -> impl Future<Output = ()> {
    let mut connection: Pin<Box<C>> = Box::pin(connection);
    let cut = end.cut.clone();
    let mut end: Option<Pin<Box<_>>> = Some(Box::pin(end.comes()));
    let mut cuts: Option<Pin<Box<_>>> = None;
    poll_fn(move |cx| {
        // A connection that ends badly is the client's affair; its requests have been accounted
        // for.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready()) {
            end = None;
            cuts = Some(Box::pin(cut.clone().cancelled_owned()));
            connection.as_mut().graceful_shutdown();
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
        }
        if cuts.as_mut().is_some_and(|cuts| cuts.as_mut().poll(cx).is_ready()) {
            cuts = None;
            return connection.as_mut().poll(cx).map(drop);
        }
        Poll::Pending
    })
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_idle_after_the_limit() {
        let start = Instant::now();
        Activity::new().idle(LIMIT).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_request_keeps_it_and_its_end_begins_the_time_anew() {
        let (activity, start) = (Activity::new(), Instant::now());
        let (one, other) = (activity.open(), activity.open());
        let requests = async {
            sleep(Duration::from_secs(25)).await;
            drop(one);
            sleep(Duration::from_secs(7)).await;
            drop(other);
        };
        tokio::join!(activity.clone().idle(LIMIT), requests);
        assert_eq!(start.elapsed().as_secs(), 42);
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_idle_limit_only_a_stop_ends_it() {
        let stop = CancellationToken::new();
        let end = End { stop: stop.clone(), cut: CancellationToken::new(), idle: None };
        let mut comes = Box::pin(end.comes());
        assert!(timeout(100 * LIMIT, comes.as_mut()).await.is_err());
        stop.cancel();
        comes.await;
    }
}
