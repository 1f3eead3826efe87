//! Time for which legs on an engine take until their first byte, for comparison with those of its
//! peers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fleet::{Fleet, Instance};

/// Legs that can be compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A prompt, or an item, to its last byte.
    Prompt,
    /// A streamed answer, to its first event.
    Streamed,
    /// An answer that is not streamed, to its last byte.
    Whole,
    /// An answer that an engine generates alone (several chats in one body, what is said in a
    /// sound), to its first byte.
    Alone,
    /// A decoder that is asked first, until it calls for its prefill.
    Call,
}

/// Times of one engine's legs.
#[derive(Debug, Default)]
pub struct Paces([Times; 5]);

/// Times of legs of one kind, in microseconds; 0 = none was seen.
#[derive(Debug, Default)]
struct Times {
    /// Mean, of the last legs above all.
    mean: AtomicU64,
    /// Longest, which fades as others come.
    longest: AtomicU64,
}

/// The weight of one leg in the mean.
const STEP: u64 = 8;
/// With each leg the longest time fades by this part: it lasts for some hundred legs.
const FADING: u64 = 128;

impl Paces {
    /// A leg took so long.
    pub fn observe(&self, pace: Pace, took: Duration) {
        let Some(Times { mean, longest }) = self.0.get(pace as usize) else { return };
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let longest_us = longest.load(Ordering::Relaxed);
        longest.store(took_us.max(longest_us - longest_us / FADING), Ordering::Relaxed);
        let before_us = mean.load(Ordering::Relaxed);
        // Two that write at once lose one of many observations.
        let mean_us = match before_us {
            0 => took_us,
            _ => before_us - before_us / STEP + took_us / STEP,
        };
        mean.store(mean_us, Ordering::Relaxed);
    }

    /// The mean; zero where none was seen.
    pub fn mean(&self, pace: Pace) -> Duration {
        Duration::from_micros(self.0.get(pace as usize).map_or(0, |it| it.mean.load(Ordering::Relaxed)))
    }

    /// The longest time; zero where none was seen.
    pub fn longest(&self, pace: Pace) -> Duration {
        Duration::from_micros(self.0.get(pace as usize).map_or(0, |it| it.longest.load(Ordering::Relaxed)))
    }
}

impl Fleet {
    /// The longest mean time of other engines of the role.
    pub fn pace_of_peers(&self, instance: &Instance, pace: Pace) -> Duration {
        let members = self.members(instance.role());
        let peers = members.iter().filter(|it| it.id() != instance.id());
        peers.map(|it| it.paces().mean(pace)).max().unwrap_or_default()
    }

    /// The longest time of any engine of the role, `instance` included.
    pub fn longest_pace(&self, instance: &Instance, pace: Pace) -> Duration {
        let members = self.members(instance.role());
        let longest = members.iter().map(|it| it.paces().longest(pace)).max().unwrap_or_default();
        longest.max(instance.paces().longest(pace))
    }

    /// True if another engine of the role has begun an answer since then.
    pub fn peers_serve_since(&self, instance: &Instance, since_ms: u64) -> bool {
        let members = self.members(instance.role());
        members.iter().any(|it| it.id() != instance.id() && it.health().served_ms() > since_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{Outcome, Role};
    use crate::route::Policy;

    #[test]
    fn means_follow_what_is_seen_and_peers_are_compared_by_kind() {
        let fleet = Fleet::new(Policy::LeastWork);
        for port in [1, 2, 3] {
            fleet.add(Role::Decode, Endpoint::new("e", port));
        }
        let members = fleet.members(Role::Decode);
        let ms = Duration::from_millis;
        assert_eq!(fleet.pace_of_peers(&members[0], Pace::Streamed), Duration::ZERO);
        members[1].paces().observe(Pace::Streamed, ms(80));
        members[2].paces().observe(Pace::Streamed, ms(40));
        members[2].paces().observe(Pace::Whole, ms(4_000));
        assert_eq!(fleet.pace_of_peers(&members[0], Pace::Streamed), ms(80));
        (0..100).for_each(|_| members[1].paces().observe(Pace::Streamed, ms(10)));
        assert!(members[1].paces().mean(Pace::Streamed) < ms(12));
        members[1].paces().observe(Pace::Whole, ms(9_000));
        (0..100).for_each(|_| members[2].paces().observe(Pace::Whole, ms(10)));
        let longest = fleet.longest_pace(&members[0], Pace::Whole);
        assert_eq!(longest, ms(9_000));
        (0..1_000).for_each(|_| members[1].paces().observe(Pace::Whole, ms(10)));
        assert!(fleet.longest_pace(&members[0], Pace::Whole) < ms(2_000), "it fades");
        assert!(!fleet.peers_serve_since(&members[0], 0));
        fleet.report(&members[0], Outcome::Served);
        assert!(!fleet.peers_serve_since(&members[0], 0), "its own service is none of theirs");
        fleet.report(&members[1], Outcome::Served);
        assert!(fleet.peers_serve_since(&members[0], 0));
    }
}
