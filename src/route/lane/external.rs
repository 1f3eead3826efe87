//! Work that others gave a prefiller.

use crate::route::job::Seconds;

/// Work that others gave a lane, as of one look at it. It is done first, as time passes: nobody
/// knows what they gave it since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExternalWork {
    pub(super) seconds: Seconds,
    /// Time of the look.
    pub(super) seen_s: Seconds,
}

impl ExternalWork {
    /// Part of it that is left.
    pub(super) fn left_s(&self, now: Seconds) -> Seconds {
        (self.until_s() - now).clamp(0.0, self.seconds)
    }

    /// Time that it takes of what has the lane from `since_s` until `now`.
    pub(super) fn taken_s(&self, since_s: Seconds, now: Seconds) -> Seconds {
        (self.until_s().min(now) - since_s.max(self.seen_s)).max(0.0)
    }

    pub(super) fn until_s(&self) -> Seconds {
        self.seen_s + self.seconds
    }
}
