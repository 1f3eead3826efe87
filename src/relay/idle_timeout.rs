//! Longest time that an engine may be silent, and its answer last.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::{Error, Kind};

/// Time without a piece after which an engine that does not answer probes either is given up. An
/// API server that computes something else for a while answers neither.
pub const AWAY: Duration = Duration::from_secs(15);

/// After the last event the engine has this time to end its body, so that its connection can be
/// used again. It does so with the next packet; one that does not holds no client and no place.
pub const BODY_END: Duration = Duration::from_millis(250);

/// Message for what is still open when a fleet that has left gets no more time.
pub(super) const CUT: &str = "the model is not served here any more";

/// Error for a stream that has lasted too long.
pub(super) fn too_long() -> Error {
    Error::new(Kind::DecodeTimeout, "the answer took longer than the total time limit")
}

/// One timer serves the whole stream: it is set again when it fires, not at every piece.
#[derive(Debug)]
pub struct IdleTimeout {
    timer: Pin<Box<Sleep>>,
    /// Task that the timer wakes. It is asked again only by others, and when it has fired: a stream
    /// is polled three times for a piece.
    waiter: Option<Waker>,
    gap: Duration,
    last: Instant,
    end: Instant,
}

impl IdleTimeout {
    /// From now on, `gap` between two pieces at most, and until `end`.
    pub fn new(gap: Duration, end: Instant) -> IdleTimeout {
        let last = Instant::now();
        IdleTimeout {
            timer: Box::pin(sleep_until((last + gap.min(AWAY)).min(end))),
            waiter: None,
            gap,
            last,
            end,
        }
    }

    /// A piece has come.
    pub fn heard(&mut self) {
        self.last = Instant::now();
    }

    /// Time at which the last piece came.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// Another decoder begins.
    pub fn begins(&mut self) {
        self.heard();
        self.set((self.last + self.gap.min(AWAY)).min(self.end));
    }

    /// Time at which the stream must be over.
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Ready when the engine has been silent for too long, or the stream has lasted too long, or
    /// its fleet is cut. `is_away` tells if the engine leaves probes unanswered: then the time is
    /// shorter.
    pub fn poll_too_long(
        &mut self,
        cx: &mut Context<'_>,
        is_away: impl Fn() -> bool,
        is_cut: impl Fn() -> bool,
    ) -> Poll<Error> {
        while self.poll_timer(cx).is_ready() {
            let now = Instant::now();
            if now >= self.end {
                return Poll::Ready(too_long());
            }
            if is_cut() {
                return Poll::Ready(Error::new(Kind::DecodeTimeout, CUT));
            }
            let until = self.last + self.gap;
            if now >= until {
                return Poll::Ready(Error::new(Kind::DecodeTimeout, "the decoder fell silent"));
            }
            if now >= self.last + AWAY && is_away() {
                let message = "the decoder fell silent, and does not answer probes";
                return Poll::Ready(Error::new(Kind::DecodeTimeout, message));
            }
            self.set(until.min(self.end).min(now.max(self.last) + AWAY));
        }
        Poll::Pending
    }

    /// The stream is over but for a pause.
    pub fn pause(&mut self, pause: Duration) {
        self.set(Instant::now() + pause);
    }

    /// Ready at the pause's end.
    pub fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waits = self.waiter.as_ref().is_some_and(|waiter| waiter.will_wake(cx.waker()));
        if waits && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        // A task that has used up its budget is told to wait without the timer being looked at, and
        // asked again at once.
        let looked_at = has_budget_remaining();
        let fired = self.timer.as_mut().poll(cx);
        self.waiter = (fired.is_pending() && looked_at).then(|| cx.waker().clone());
        fired
    }

    fn set(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.waiter = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::coop::consume_budget;
    use tokio::time::{sleep, timeout};

    use super::*;

    const GAP: Duration = Duration::from_secs(10);

    async fn too_long(silence: &mut IdleTimeout) -> Error {
        poll_fn(|cx| silence.poll_too_long(cx, || false, || false)).await
    }

    #[tokio::test(start_paused = true)]
    async fn each_piece_gives_the_next_one_all_the_time_until_the_end() {
        let start = Instant::now();
        let mut silence = IdleTimeout::new(GAP, start + Duration::from_secs(35));
        for _ in 0..3 {
            let early = timeout(Duration::from_secs(9), too_long(&mut silence)).await;
            assert!(early.is_err(), "{early:?}");
            silence.heard();
        }
        assert!(too_long(&mut silence).await.to_string().contains("total"), "27 s and 10 are more than 35");
        assert_eq!(start.elapsed().as_secs(), 35);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_noticed_when_it_is_there_and_a_pause_ends() {
        let start = Instant::now();
        let mut silence = IdleTimeout::new(GAP, start + 9 * GAP);
        assert!(too_long(&mut silence).await.to_string().contains("silent"));
        assert_eq!(start.elapsed(), GAP);
        sleep(GAP).await;
        silence.begins();
        assert!(too_long(&mut silence).await.to_string().contains("silent"));
        assert_eq!(start.elapsed(), 3 * GAP);
        silence.pause(GAP / 2);
        poll_fn(|cx| silence.poll_timer(cx)).await;
        assert_eq!(start.elapsed(), 3 * GAP + GAP / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_leaves_probes_unanswered_has_less_time() {
        let start = Instant::now();
        let mut silence = IdleTimeout::new(Duration::from_secs(300), start + Duration::from_secs(900));
        let error = poll_fn(|cx| silence.poll_too_long(cx, || true, || false)).await;
        assert!(error.to_string().contains("probes"), "{error}");
        assert_eq!(start.elapsed(), AWAY);
        silence.begins();
        assert!(too_long(&mut silence).await.to_string().contains("silent"));
        assert_eq!(start.elapsed(), AWAY + Duration::from_secs(300));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_of_a_fleet_that_is_cut_ends_though_pieces_come() {
        let start = Instant::now();
        let mut silence = IdleTimeout::new(Duration::from_secs(300), start + Duration::from_secs(900));
        let is_cut = || start.elapsed() >= Duration::from_secs(40);
        loop {
            let ended = poll_fn(|cx| silence.poll_too_long(cx, || false, is_cut));
            match timeout(Duration::from_secs(7), ended).await {
                Ok(error) => break assert!(error.to_string().contains(CUT), "{error}"),
                Err(_) => silence.heard(),
            }
        }
        assert!(start.elapsed() <= Duration::from_secs(40) + AWAY, "{:?}", start.elapsed());
    }

    /// As one that has read of a hundred streams before it looks at the last one's clock.
    #[tokio::test(start_paused = true)]
    async fn a_task_without_budget_is_woken_too() {
        let mut silence = IdleTimeout::new(GAP, Instant::now() + 9 * GAP);
        let mut first = true;
        let error = poll_fn(|cx| {
            if std::mem::take(&mut first) {
                while has_budget_remaining() {
                    let _ = std::pin::pin!(consume_budget()).poll(cx);
                }
            }
            silence.poll_too_long(cx, || false, || false)
        });
        let error = timeout(2 * GAP, error).await.expect("it is woken");
        assert!(error.to_string().contains("silent"));
    }

    /// A timer that is polled by one task and then by another wakes the other.
    #[tokio::test(start_paused = true)]
    async fn another_task_is_woken_too() {
        let mut silence = IdleTimeout::new(GAP, Instant::now() + 9 * GAP);
        let mut noop = Context::from_waker(Waker::noop());
        assert!(silence.poll_too_long(&mut noop, || false, || false).is_pending());
        let woken = timeout(2 * GAP, too_long(&mut silence)).await;
        assert!(woken.unwrap().to_string().contains("silent"));
    }
}
