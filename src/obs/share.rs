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
    /// Shows that limits of keys are divided among so many gateways by the store; None if each
    /// goes on with its part.
    pub fn share_budgets(&self, gateways: Option<u32>) {
        self.label.with(|| {
            gauge!(names::SHARE_BUDGETS).set(f64::from(u8::from(gateways.is_some())));
            gateways.iter().for_each(|gateways| gauge!(names::SHARE_GATEWAYS).set(f64::from(*gateways)));
        });
    }

    /// Shows how many gateways of the fleet are heard, this one included.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than the numbers that it has exactly")]
    pub fn share_heard(&self, gateways: usize) {
        self.label.with(|| gauge!(names::SHARE_HEARD).set(gateways as f64));
    }

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
