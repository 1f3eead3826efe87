//! One direction of a machine's network or bus: transfers one after the other, each at full speed.

use super::Seconds;

/// A link, by the time from which it is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    free_s: Seconds,
}

impl Link {
    /// Queues a transfer of this many seconds, and returns the time of its end.
    pub fn send(&mut self, now: Seconds, takes: Seconds) -> Seconds {
        self.free_s = self.free_s.max(now) + takes;
        self.free_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_queue_behind_each_other() {
        let mut link = Link::default();
        assert_eq!([link.send(1.0, 2.0), link.send(1.5, 1.0), link.send(9.0, 1.0)], [3.0, 4.0, 10.0]);
    }
}
