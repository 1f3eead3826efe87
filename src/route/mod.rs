//! Which instance serves a leg: pure functions over a snapshot of the loads.
//!
//! No clock, no randomness, no I/O: the caller hands in the loads, a turn counter and a random number, so that every
//! decision can be replayed. Every policy answers through [`choose`].

pub mod estimate;

/// How an instance is chosen for a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The instance with the least work, in tokens; ties rotate.
    #[default]
    LeastWork,
    /// One after the other.
    RoundRobin,
    /// Any, with equal chances.
    Random,
    /// Two at random, the less loaded of them.
    PowerOfTwo,
}

/// The load of one instance that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Tokens that the gateway committed to it and has not seen finished.
    pub work_tokens: u64,
    /// Tokens of KV that it holds for a decoder which has not begun to answer.
    pub held_tokens: u64,
    /// How willingly it is taken.
    pub standing: Standing,
}

/// How willingly an instance is taken: the best standing there is counts, loads decide among its holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing speaks against it.
    #[default]
    Good,
    /// It failed a moment ago.
    Resting,
    /// This very request failed on it.
    Tried,
}

/// What makes two decisions over the same loads differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dice {
    /// Counts the decisions of this role: rotates ties and drives round robin.
    pub turn: u64,
    /// A random number.
    pub random: u64,
}

/// Held KV weighs this much of the same number of tokens still to be computed. It is the figure of vllm-ascend's
/// `load_balance_proxy_server_example.py`, which adds 0.3 of the KV score to the active tokens.
const HELD_WEIGHT: f64 = 0.3;

impl Candidate {
    fn work(&self) -> f64 {
        self.work_tokens as f64 + HELD_WEIGHT * self.held_tokens as f64
    }
}

/// The position of the chosen candidate, `None` when there is none.
///
/// Those of a worse standing are chosen only when there are no others: a leg that has nowhere else to go is better tried
/// than refused.
pub fn choose(policy: Policy, candidates: &[Candidate], dice: Dice) -> Option<usize> {
    let best = candidates.iter().map(|c| c.standing).min()?;
    let usable = |i: &usize| candidates[*i].standing == best;
    let count = (0..candidates.len()).filter(usable).count() as u64;
    let nth = |n: u64| (0..candidates.len()).filter(usable).nth((n % count) as usize);
    match policy {
        Policy::RoundRobin => nth(dice.turn),
        Policy::Random => nth(dice.random),
        Policy::PowerOfTwo => {
            let first = nth(dice.random)?;
            // The second is drawn among the others, so that two instances are always compared.
            let step = if count > 1 { 1 + (dice.random >> 32) % (count - 1) } else { 0 };
            let second = nth(dice.random % count + step)?;
            Some(if candidates[second].work() < candidates[first].work() { second } else { first })
        }
        Policy::LeastWork => {
            let least = (0..candidates.len())
                .filter(usable)
                .map(|i| candidates[i].work())
                .fold(f64::INFINITY, f64::min);
            let tied = |i: &usize| usable(i) && candidates[*i].work() <= least;
            let ties = (0..candidates.len()).filter(tied).count() as u64;
            (0..candidates.len()).filter(tied).nth((dice.turn % ties.max(1)) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(work: &[u64]) -> Vec<Candidate> {
        work.iter().map(|&work_tokens| Candidate { work_tokens, ..Candidate::default() }).collect()
    }

    fn pick(policy: Policy, work: &[u64], turn: u64, random: u64) -> Option<usize> {
        choose(policy, &loads(work), Dice { turn, random })
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        for p in [Policy::LeastWork, Policy::RoundRobin, Policy::Random, Policy::PowerOfTwo] {
            assert_eq!(pick(p, &[], 7, 7), None);
            assert_eq!(pick(p, &[9], 7, u64::MAX), Some(0));
        }
    }

    #[test]
    fn least_work_rotates_only_ties() {
        let turns: Vec<_> = (0..4).map(|t| pick(Policy::LeastWork, &[5, 1, 9, 1], t, 0).unwrap()).collect();
        assert_eq!(turns, [1, 3, 1, 3]);
    }

    #[test]
    fn held_kv_counts_less_than_work() {
        let held = Candidate { held_tokens: 100, ..Candidate::default() };
        let busy = Candidate { work_tokens: 100, ..Candidate::default() };
        let free = Candidate { work_tokens: 29, ..Candidate::default() };
        assert_eq!(choose(Policy::LeastWork, &[busy, held], Dice::default()), Some(1));
        assert_eq!(choose(Policy::LeastWork, &[free, held], Dice::default()), Some(0));
    }

    #[test]
    fn round_robin_visits_all_in_order() {
        let turns: Vec<_> = (0..5).map(|t| pick(Policy::RoundRobin, &[9, 0, 5], t, 0).unwrap()).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1]);
    }

    #[test]
    fn power_of_two_compares_two_different_ones() {
        for random in 0..64u64 {
            let spread = random | (random.wrapping_mul(0x9e37_79b9) << 32);
            assert_eq!(pick(Policy::PowerOfTwo, &[7, 3], 0, spread), Some(1), "random {spread}");
        }
    }

    #[test]
    fn the_best_standing_counts_before_any_load() {
        let all = [Policy::LeastWork, Policy::RoundRobin, Policy::Random, Policy::PowerOfTwo];
        let chosen = |standings: [Standing; 2], policy| {
            let mut c = loads(&[0, 50]);
            c.iter_mut().zip(standings).for_each(|(c, s)| c.standing = s);
            choose(policy, &c, Dice::default())
        };
        for p in all {
            assert_eq!(chosen([Standing::Resting, Standing::Good], p), Some(1), "{p:?}");
            assert_eq!(chosen([Standing::Tried, Standing::Resting], p), Some(1), "{p:?}");
        }
        assert_eq!(chosen([Standing::Tried, Standing::Tried], Policy::LeastWork), Some(0));
    }
}
