//! Times at which a thread got no processor for a while.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

use crate::common::time::pace;

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_millis(10);
/// A look that is later than this is a stall: an exchange has some ten turns, and the shortest
/// limit is a second.
const LATE: Duration = Duration::from_millis(60);

/// Stalls of one thread, by their ends.
#[derive(Debug, Default)]
pub struct Stalls(RefCell<Vec<Instant>>);

impl Stalls {
    /// Looks at the clock for ever.
    pub async fn watch(&self) {
        loop {
            let began = Instant::now();
            pace(LOOK).await;
            if began.elapsed() > LOOK + LATE {
                self.0.borrow_mut().push(Instant::now());
            }
        }
    }

    /// True if there was one since then.
    pub fn since(&self, then: Instant) -> bool {
        self.0.borrow().last().is_some_and(|end| *end >= then)
    }
}
