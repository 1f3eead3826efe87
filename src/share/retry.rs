//! Tries to reach a store: the pauses between them, and what the log has said of it.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{CONNECT_TIME, RETRY_MAX, RETRY_MIN, ShareError};

/// State between two tries.
#[derive(Debug)]
pub(super) struct Retry {
    /// Time until the next try.
    pause: Duration,
    /// The log says that the store is away.
    told: bool,
}

impl Retry {
    /// The state before the first try.
    pub(super) fn new() -> Retry {
        Retry { pause: RETRY_MIN, told: false }
    }

    /// The store was reached: all begins anew.
    pub(super) fn reached(&mut self) {
        *self = Retry::new();
    }

    /// True if the log does not say yet that the store is away; asking means that it does now.
    pub(super) fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// Waits until the next try.
    pub(super) async fn wait(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}

/// The outcome of `work` within [`CONNECT_TIME`].
///
/// # Errors
/// That of the work, or it takes longer.
pub(super) async fn in_time<T>(work: impl Future<Output = Result<T, ShareError>>) -> Result<T, ShareError> {
    timeout(CONNECT_TIME, work).await.map_err(|_| ShareError::Slow(CONNECT_TIME))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut retry = Retry::new();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let began = tokio::time::Instant::now();
            retry.wait().await;
            pauses.push(began.elapsed().as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert!(retry.is_news() && !retry.is_news());
        retry.reached();
        assert_eq!((retry.pause, retry.is_news()), (RETRY_MIN, true));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_takes_too_long_is_given_up() {
        let slow = in_time(std::future::pending::<Result<(), ShareError>>()).await;
        assert!(matches!(slow, Err(ShareError::Slow(CONNECT_TIME))));
        assert!(matches!(in_time(async { Ok(7) }).await, Ok(7)));
    }
}
