//! Metrics of a fleet that gateways share.

use metrics::{counter, gauge};

use super::{Meters, names};

/// Counts of requests since the start, by who chose their prefiller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placements {
    /// The leader, for this gateway.
    pub leader: u64,
    /// This gateway, for its own requests.
    pub here: u64,
    /// This gateway, since the leader gave no sign in time; they count as `here`, too.
    pub lapsed: u64,
    /// This gateway, for others.
    pub for_others: u64,
}

impl Meters {
    /// Shows the standing of the gateway among others: 1 for the word that holds, 0 for the others.
    pub fn share(&self, words: &[&'static str], holds: &'static str, placements: Placements) {
        self.label.with(|| {
            for word in words {
                let shown = f64::from(u8::from(*word == holds));
                gauge!(names::SHARE_STANDING, "standing" => *word).set(shown);
            }
            let Placements { leader, here, lapsed, for_others } = placements;
            let counts = [("leader", leader), ("here", here), ("lapsed", lapsed), ("for_others", for_others)];
            for (by, count) in counts {
                counter!(names::SHARE_PLACEMENTS, "by" => by).absolute(count);
            }
        });
    }
}
