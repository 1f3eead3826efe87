//! Trust in predicted hits: predictions are compared with what prefillers report as cached.
//!
//! A wrong hash seed, a wrong template or a pool that nobody reads makes predictions that never
//! come true, and steering by them costs more than it brings. So predictions are believed until
//! many of them failed without one that came true. Then they are not acted on any more, but still
//! compared, and believed again when they come true.

/// Blocks of slack: engines compute the last token again, and with it its block.
const SLACK_BLOCKS: u64 = 1;
/// So many predicted hits in a row without one that came true end the trust.
const DISTRUST_AFTER: u32 = 20;
/// So many in a row that came true bring it back.
const TRUST_AFTER: u32 = 5;

/// Outcomes of one prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was predicted and nothing was cached.
    Cold,
    /// Nothing was predicted, and something was cached: no prediction came true or failed.
    Unforeseen,
    /// About as much as was predicted, or more.
    Hit,
    /// More than half of it, not all.
    Partial,
    /// Less than half.
    Miss,
    /// The prefiller does not say.
    Silent,
}

/// Reasons why a prediction did not come true, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// It was predicted from the pool, which the prefiller did not or could not read.
    Pool,
    /// It was told by the prefiller itself, or believed from what was sent there: evicted, most
    /// likely.
    Evicted,
    /// The blocks were still being computed when the request came.
    InFlight,
    /// None of the last predictions came true: hashes, keys or template are not the engines'.
    Profile,
}

/// State of the trust in predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    misses: u32,
    hits: u32,
    lost: bool,
}

/// Changes of that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Predictions are not acted on any more.
    Lost,
    /// They are again.
    Regained,
}

impl Verdict {
    /// Of so many predicted and reported tokens.
    pub fn of(predicted: u64, reported: Option<u64>, block_tokens: u64) -> Self {
        let Some(reported) = reported else { return Self::Silent };
        let slack = SLACK_BLOCKS * block_tokens.max(1);
        if predicted == 0 {
            return if reported == 0 { Self::Cold } else { Self::Unforeseen };
        }
        if reported + slack >= predicted {
            Self::Hit
        } else if 2 * reported >= predicted {
            Self::Partial
        } else {
            Self::Miss
        }
    }

    /// A short stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Unforeseen => "unforeseen",
            Self::Hit => "hit",
            Self::Partial => "partial",
            Self::Miss => "miss",
            Self::Silent => "silent",
        }
    }
}

impl MissReason {
    /// A short stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Evicted => "evicted",
            Self::InFlight => "in_flight",
            Self::Profile => "profile",
        }
    }
}

impl Trust {
    /// True if to act on predictions.
    pub fn holds(self) -> bool {
        !self.lost
    }

    /// One more prediction of a hit of at least a block, and what came of it.
    pub fn learn(&mut self, verdict: Verdict) -> Option<Change> {
        match verdict {
            Verdict::Silent | Verdict::Cold | Verdict::Unforeseen => return None,
            Verdict::Hit | Verdict::Partial => {
                self.misses = 0;
                self.hits = self.hits.saturating_add(1);
            }
            Verdict::Miss => {
                self.hits = 0;
                self.misses = self.misses.saturating_add(1);
            }
        }
        if !self.lost && self.misses >= DISTRUST_AFTER {
            self.lost = true;
            return Some(Change::Lost);
        }
        if self.lost && self.hits >= TRUST_AFTER {
            self.lost = false;
            return Some(Change::Regained);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_allow_for_the_block_that_is_computed_again() {
        let of = |predicted, reported| Verdict::of(predicted, reported, 16);
        assert_eq!(of(0, Some(0)), Verdict::Cold);
        assert_eq!(of(0, Some(32)), Verdict::Unforeseen);
        assert_eq!(of(320, Some(304)), Verdict::Hit);
        assert_eq!(of(320, Some(288)), Verdict::Partial);
        assert_eq!(of(320, Some(100)), Verdict::Miss);
        assert_eq!(of(320, None), Verdict::Silent);
    }

    #[test]
    fn trust_ends_when_nothing_comes_true_and_comes_back_when_it_does() {
        let mut trust = Trust::default();
        for _ in 0..DISTRUST_AFTER - 1 {
            assert_eq!(trust.learn(Verdict::Miss), None);
        }
        trust.learn(Verdict::Partial);
        for _ in 0..DISTRUST_AFTER - 1 {
            assert_eq!(trust.learn(Verdict::Miss), None);
            assert_eq!(trust.learn(Verdict::Silent), None);
            assert_eq!(trust.learn(Verdict::Unforeseen), None);
        }
        assert!(trust.holds());
        assert_eq!(trust.learn(Verdict::Miss), Some(Change::Lost));
        assert!(!trust.holds());
        for _ in 0..TRUST_AFTER - 1 {
            assert_eq!(trust.learn(Verdict::Hit), None);
        }
        assert_eq!(trust.learn(Verdict::Hit), Some(Change::Regained));
        assert!(trust.holds());
    }
}
