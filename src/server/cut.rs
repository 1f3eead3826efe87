//! The end of a shutdown (`Gateway::cut`), for requests that still wait for their answer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::obs::Meters;

/// Waits for `answer`; `None` once the gateway cuts all requests. Its task is woken by that: over
/// HTTP/2 by a [`CutWaker`], over HTTP/1.1 by the connection.
pub(super) fn unless_cut<'a, F: Future>(
    meters: &'a Meters,
    mut answer: Pin<&'a mut F>,
) -> impl Future<Output = Option<F::Output>> + 'a {
    poll_fn(move |cx| match answer.as_mut().poll(cx) {
        Poll::Pending if meters.cuts() => Poll::Ready(None),
        polled => polled.map(Some),
    })
}

/// Wakes the task of an HTTP/2 request when all requests are cut. Over HTTP/1.1 the connection
/// polls its one request itself.
#[derive(Debug)]
pub(super) struct CutWaker {
    cut: CancellationToken,
    /// Made once the task waits.
    waits: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl CutWaker {
    pub(super) fn new(cut: CancellationToken) -> CutWaker {
        CutWaker { cut, waits: None }
    }

    /// Has the task of `cx` woken, which is always polled with the same waker: asked once, since
    /// each question takes a lock that all requests share.
    pub(super) fn wake(&mut self, cx: &mut Context<'_>) {
        if self.waits.is_some() {
            return;
        }
        let waits = self.waits.insert(Box::pin(self.cut.clone().cancelled_owned()));
        if waits.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::Arc;

    use tokio::sync::oneshot;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_for_nothing_else_is_woken_by_the_cut() {
        let (cut, meters) = (CancellationToken::new(), Arc::new(Meters::new()));
        let (begun, begins) = oneshot::channel();
        let (mut waker, of_task) = (CutWaker::new(cut.clone()), meters.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut answer = pin!(pending::<()>());
            let mut answered = pin!(unless_cut(&of_task, answer.as_mut()));
            let mut begun = Some(begun);
            poll_fn(|cx| {
                let polled = answered.as_mut().poll(cx);
                if polled.is_pending() {
                    waker.wake(cx);
                    begun.take().into_iter().for_each(|begun| begun.send(()).unwrap_or_default());
                }
                polled
            })
            .await
        });
        begins.await.unwrap();
        meters.cut_all();
        cut.cancel();
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), None);
    }

    #[tokio::test]
    async fn an_answer_that_is_there_is_not_cut() {
        let meters = Meters::new();
        meters.cut_all();
        assert_eq!(unless_cut(&meters, pin!(async { 1 })).await, Some(1));
    }
}
