//! Waits of tests: for something that must come to be, or for time where they are about time.
//!
//! Nothing else in `tests/it` sleeps (`tidy.rs` checks). That something does not happen is never
//! shown by waiting for a while: a test waits for an event behind it instead, or runs in virtual
//! time.

use std::fmt::{Debug, Display};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

/// Limit for what must come to be: far more than it takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Result of one look: it has come to be, or its state so far.
pub trait Look {
    /// The value when it has come to be.
    type Found;

    /// The value; else the state that was seen instead, for the message of a failed test.
    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).found()
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Debug> Look for Result<T, E> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|state| format!("; instead: {state:#?}"))
    }
}

/// Looks again and again until it has come to be, and gives what was found. Fails the test after
/// [`PATIENCE`].
pub async fn eventually<L: Look>(what: impl Display, look: impl AsyncFnMut() -> L) -> L::Found {
    eventually_within(PATIENCE, what, look).await
}

/// The same with a limit of its own, where the limit is what is tested.
pub async fn eventually_within<L: Look>(
    limit: Duration,
    what: impl Display,
    mut look: impl AsyncFnMut() -> L,
) -> L::Found {
    let end = Instant::now() + limit;
    loop {
        match look().await.found() {
            Ok(found) => return found,
            Err(state) => assert!(Instant::now() < end, "not within {limit:?}: {what}{state}"),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The same for who has no runtime.
pub fn eventually_blocking<L: Look>(what: impl Display, mut look: impl FnMut() -> L) -> L::Found {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        match look().found() {
            Ok(found) => return found,
            Err(state) => assert!(std::time::Instant::now() < end, "not within {PATIENCE:?}: {what}{state}"),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Does `work`, and looks at something again and again meanwhile.
pub async fn watching<T>(work: impl Future<Output = T>, mut look: impl FnMut()) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(Duration::from_millis(1)) => look(),
        }
    }
}

/// Does `work` in virtual time beside real sockets: a millisecond passes when everybody has had the
/// time to do what is to be done.
pub async fn unhurried<T>(work: impl Future<Output = T>) -> T {
    /// Real time that passes while a millisecond does here.
    const BREATH: Duration = Duration::from_micros(300);
    let mut work = pin!(work);
    loop {
        let breath = async {
            // While this runs the clock stands still.
            tokio::task::spawn_blocking(|| std::thread::sleep(BREATH)).await.unwrap();
            tokio::time::advance(Duration::from_millis(1)).await;
        };
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = breath => {}
        }
    }
}

/// Pauses where the pause is what is done to the gateway: a client that writes slowly, or leaves
/// after a while. No test may depend on what happens meanwhile.
pub async fn pace(pause: Duration) {
    sleep(pause).await;
}

/// Lets virtual time pass. Whatever can happen until then has happened afterwards.
///
/// # Panics
/// In real time, where that is not so.
pub async fn pass(time: Duration) {
    pass_until(Instant::now() + time).await;
}

/// Lets virtual time pass up to a moment.
///
/// # Panics
/// In real time.
pub async fn pass_until(moment: Instant) {
    // Panics where the clock runs by itself.
    tokio::time::advance(Duration::ZERO).await;
    sleep_until(moment).await;
}
