//! Records that must be written and that nobody waits for: they are written while an engine works.

use std::future::poll_fn;
use std::pin::Pin;

/// Drives the future `leg`. As soon as it waits for its engine, or has ended without that, `work`
/// is done. A leg that is dropped before it is polled leaves it undone.
pub(super) fn meanwhile<F: Future + Unpin>(
    mut leg: F,
    work: impl FnOnce() + Unpin,
) -> impl Future<Output = F::Output> {
    let mut work = Some(work);
    poll_fn(move |cx| {
        let end = Pin::new(&mut leg).poll(cx);
        if let Some(work) = work.take() {
            work();
        }
        end
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn work_runs_once_and_after_the_legs_first_poll() {
        let mut done = Vec::new();
        let leg = Box::pin(async {
            let mut polled = false;
            poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(7) } else { Poll::Pending })
                .await
        });
        let mut both = Box::pin(meanwhile(leg, || done.push("work")));
        let mut nobody = Context::from_waker(Waker::noop());
        assert_eq!(both.as_mut().poll(&mut nobody), Poll::Pending);
        assert_eq!(both.as_mut().poll(&mut nobody), Poll::Ready(7));
        drop(both);
        assert_eq!(done, ["work"]);
    }

    #[test]
    fn a_leg_that_ends_at_once_leaves_it_not_undone() {
        let (mut done, mut nobody) = (0, Context::from_waker(Waker::noop()));
        let polled = Box::pin(meanwhile(ready(7), || done += 1)).as_mut().poll(&mut nobody);
        assert_eq!((polled, done), (Poll::Ready(7), 1));
        drop(meanwhile(Box::pin(pending::<()>()), || done += 1));
        assert_eq!(done, 1);
    }
}
