//! Slopes learned from what was observed: recursive least squares with forgetting, in shares of the
//! start values.
//!
//! Robust by three bounds: an observation `SURPRISE` times above or below the prediction is not
//! believed, since the request may have queued behind somebody else's, unless the next one says the
//! same; a slope stays within `RANGE` of its start value; and what was learned long ago is
//! forgotten no further than to the doubt of the beginning, however alike the requests are.

use super::cost::{DecodeCosts, PrefillCosts};
use super::job::Seconds;

/// Largest ratio between observation and prediction that is believed.
const SURPRISE: f64 = 5.0;
/// Range of a slope around its start value. Models and accelerators span two orders of magnitude
/// each way.
const RANGE: f64 = 100.0;
/// Weight of an observation after one more.
const FORGETTING: f64 = 0.99;
/// Doubt of the start values, as a variance of their shares.
const DOUBT: f64 = 4.0;
/// Belief in a split, by the share that the most requests of a step are more than the fewest.
const SPLIT_RANGE: f64 = 2.0;
/// Variance of an observation's share of its prediction.
const NOISE: f64 = 0.04;

/// N slopes, in shares of their start values.
#[derive(Clone, Debug)]
struct Slopes<const N: usize> {
    shares: [f64; N],
    /// Covariance of the shares.
    doubt: [[f64; N]; N],
    /// The last observation was not believed: it was this many times above, or below, the
    /// prediction.
    surprise: f64,
}

/// Learned costs of prefills.
#[derive(Clone, Debug)]
pub struct PrefillLearner {
    start: PrefillCosts,
    slopes: Slopes<5>,
}

/// Learned costs of decode steps.
#[derive(Clone, Debug)]
pub struct DecodeLearner {
    start: DecodeCosts,
    slopes: Slopes<3>,
    /// The fewest and the most requests of a step that was learned from.
    fewest: f64,
    most: f64,
}

/// Costs of decode steps, and what they were learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnedSteps {
    /// The costs as known now.
    pub costs: DecodeCosts,
    /// Belief that the steps have shown what each request adds, from 0 to 1. One number of requests
    /// alone shows it only where it is one. Start values are believed until something is learned.
    pub split_known: f64,
}

/// Work of one prefill.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillWork {
    /// Tokens computed, n − h.
    pub computed_tokens: f64,
    /// n² − h².
    pub squares: f64,
    /// Tokens fetched from the same host.
    pub near_tokens: f64,
    /// Tokens fetched from others.
    pub far_tokens: f64,
    /// Prompts: several that an engine computed together are one observation.
    pub prompts: f64,
}

impl PrefillWork {
    /// With what was computed together with it.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            computed_tokens: self.computed_tokens + other.computed_tokens,
            squares: self.squares + other.squares,
            near_tokens: self.near_tokens + other.near_tokens,
            far_tokens: self.far_tokens + other.far_tokens,
            prompts: self.prompts + other.prompts,
        }
    }
}

impl<const N: usize> Slopes<N> {
    fn new() -> Self {
        let diagonal = |row: usize| std::array::from_fn(|column| if row == column { DOUBT } else { 0.0 });
        Self { shares: [1.0; N], doubt: std::array::from_fn(diagonal), surprise: 1.0 }
    }

    /// `parts` are the seconds that the start values give to each slope; their sum by shares is the
    /// prediction. False if that is not believed.
    fn learn(&mut self, parts: [f64; N], seconds: Seconds) -> bool {
        let predicted: f64 = parts.iter().zip(self.shares).map(|(part, share)| part * share).sum();
        if !(predicted > 0.0 && predicted.is_finite() && seconds >= 0.0 && seconds.is_finite()) {
            return false;
        }
        // Relative errors count, so that short requests teach as much as long ones.
        let seen = seconds / predicted;
        let capped = seen.clamp(1.0 / SURPRISE, SURPRISE);
        let before = std::mem::replace(&mut self.surprise, if capped == seen { 1.0 } else { capped });
        if self.surprise != 1.0 {
            // Twice the same: the model or the accelerator is another, and all slopes are off
            // alike.
            if before == self.surprise {
                self.shares = self.shares.map(|share| (share * capped).clamp(1.0 / RANGE, RANGE));
            }
            return false;
        }
        let parts = parts.map(|part| part / predicted);
        let spread: [f64; N] = std::array::from_fn(|row| dot(&self.doubt[row], &parts));
        let total = FORGETTING * NOISE + dot(&spread, &parts);
        for (share, spread) in self.shares.iter_mut().zip(spread) {
            *share = (*share + spread / total * (seen - 1.0)).clamp(1.0 / RANGE, RANGE);
        }
        for (row, mine) in self.doubt.iter_mut().zip(spread) {
            for (cell, other) in row.iter_mut().zip(spread) {
                *cell = (*cell - mine * other / total) / FORGETTING;
            }
        }
        self.limit_doubt();
        true
    }

    /// Forgetting must not blow up the doubt about slopes of which nothing is heard.
    fn limit_doubt(&mut self) {
        let most = (0..N).map(|at| self.doubt[at][at] / self.cap(at)).fold(0.0, f64::max);
        if most > 1.0 {
            self.doubt.iter_mut().flatten().for_each(|cell| *cell /= most);
        }
    }

    /// A slope that grew is doubted in proportion.
    fn cap(&self, at: usize) -> f64 {
        DOUBT * self.shares[at].max(1.0).powi(2)
    }
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl PrefillLearner {
    /// Nothing is learned yet.
    pub fn new(start: PrefillCosts) -> Self {
        Self { start, slopes: Slopes::new() }
    }

    /// The costs as known now.
    pub fn costs(&self) -> PrefillCosts {
        let [base, token, square, near, far] = self.slopes.shares;
        PrefillCosts {
            base_s: self.start.base_s * base,
            per_token_s: self.start.per_token_s * token,
            per_square_s: self.start.per_square_s * square,
            near_token_s: self.start.near_token_s * near,
            far_token_s: self.start.far_token_s * far,
        }
    }

    /// A prefill took so long, from its start on the engine to its answer.
    pub fn learn(&mut self, work: PrefillWork, seconds: Seconds) {
        let start = &self.start;
        let parts = [
            start.base_s * work.prompts,
            start.per_token_s * work.computed_tokens,
            start.per_square_s * work.squares,
            start.near_token_s * work.near_tokens,
            start.far_token_s * work.far_tokens,
        ];
        self.slopes.learn(parts, seconds);
    }
}

impl DecodeLearner {
    /// Nothing is learned yet.
    pub fn new(start: DecodeCosts) -> Self {
        Self { start, slopes: Slopes::new(), fewest: f64::INFINITY, most: 0.0 }
    }

    /// The costs, and what they were learned from.
    pub fn steps(&self) -> LearnedSteps {
        let split_known = match self.most < self.fewest {
            true => 1.0,
            false => (SPLIT_RANGE * (self.most / self.fewest - 1.0)).max(2.0 - self.fewest).clamp(0.0, 1.0),
        };
        LearnedSteps { costs: self.costs(), split_known }
    }

    /// The costs as known now.
    pub fn costs(&self) -> DecodeCosts {
        let [base, request, token] = self.slopes.shares;
        DecodeCosts {
            base_s: self.start.base_s * base,
            per_request_s: self.start.per_request_s * request,
            per_token_s: self.start.per_token_s * token,
        }
    }

    /// A token took so long among so many requests with so many tokens of context.
    pub fn learn(&mut self, requests: f64, context_tokens: f64, seconds: Seconds) {
        let start = &self.start;
        let parts = [start.base_s, start.per_request_s * requests, start.per_token_s * context_tokens];
        if self.slopes.learn(parts, seconds) {
            (self.fewest, self.most) = (self.fewest.min(requests), self.most.max(requests));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeatable number in 0..1.
    fn noise_of(turn: u64) -> f64 {
        (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn works() -> impl Iterator<Item = (PrefillWork, (f64, f64))> {
        (0..).map(|turn| {
            let n = 200.0 + 30_000.0 * noise_of(turn).powi(3);
            let h = n * (noise_of(turn + 7_000) * 1.4 - 0.4).max(0.0);
            let far_tokens = if turn % 3 == 0 { h } else { 0.0 };
            let near_tokens = if turn % 3 == 1 { h } else { 0.0 };
            (
                PrefillWork {
                    computed_tokens: n - h,
                    squares: n * n - h * h,
                    near_tokens,
                    far_tokens,
                    prompts: 1.0,
                },
                (n, h),
            )
        })
    }

    fn truth(costs: &PrefillCosts, work: PrefillWork) -> f64 {
        costs.base_s
            + costs.per_token_s * work.computed_tokens
            + costs.per_square_s * work.squares
            + costs.near_token_s * work.near_tokens
            + costs.far_token_s * work.far_tokens
    }

    /// The mean error of predictions after so many observations, each off by up to `noise`.
    fn error_after(turns: usize, factor: f64, noise: f64) -> f64 {
        let start = PrefillCosts::default();
        let real = PrefillCosts {
            base_s: start.base_s * factor,
            per_token_s: start.per_token_s * factor,
            per_square_s: start.per_square_s * factor / 2.0,
            near_token_s: start.near_token_s * factor * 2.0,
            far_token_s: start.far_token_s * factor,
        };
        let mut learner = PrefillLearner::new(start);
        for (turn, (work, _)) in works().take(turns).enumerate() {
            let off = 1.0 + noise * (2.0 * noise_of(turn as u64 + 99) - 1.0);
            learner.learn(work, truth(&real, work) * off);
        }
        let learned = learner.costs();
        let errors = works()
            .skip(turns)
            .take(200)
            .map(|(work, _)| (truth(&learned, work) / truth(&real, work) - 1.0).abs());
        errors.sum::<f64>() / 200.0
    }

    #[test]
    fn start_values_that_are_wrong_are_left_behind() {
        for factor in [1.0 / 30.0, 1.0 / 3.0, 1.0, 3.0, 30.0] {
            let error = error_after(60, factor, 0.0);
            assert!(error < 0.1, "factor {factor}: {error}");
            let noisy = error_after(300, factor, 0.3);
            assert!(noisy < 0.15, "factor {factor}, noisy: {noisy}");
        }
    }

    #[test]
    fn requests_that_are_all_alike_do_no_harm() {
        let mut learner = PrefillLearner::new(PrefillCosts::default());
        let work =
            PrefillWork { computed_tokens: 1000.0, squares: 1e6, prompts: 1.0, ..PrefillWork::default() };
        for turn in 0..100_000u64 {
            learner.learn(work, 0.3 * (0.8 + 0.4 * noise_of(turn)));
        }
        let costs = learner.costs();
        assert!((truth(&costs, work) / 0.3 - 1.0).abs() < 0.15);
        assert!(learner.slopes.doubt.iter().flatten().all(|cell| cell.is_finite()));
        let other =
            PrefillWork { computed_tokens: 4000.0, squares: 1.6e7, prompts: 1.0, ..PrefillWork::default() };
        assert!((0.3..5.0).contains(&truth(&costs, other)), "{}", truth(&costs, other));
    }

    #[test]
    fn one_wild_observation_moves_little() {
        let mut learner = PrefillLearner::new(PrefillCosts::default());
        let start = PrefillCosts::default();
        for (work, _) in works().take(100) {
            learner.learn(work, truth(&start, work));
        }
        let (work, _) = works().next().unwrap();
        let before = truth(&learner.costs(), work);
        learner.learn(work, 3600.0);
        assert!((truth(&learner.costs(), work) - before).abs() < 1e-12);
        learner.learn(work, f64::NAN);
        learner.learn(PrefillWork { computed_tokens: f64::INFINITY, ..work }, 1.0);
        assert!(truth(&learner.costs(), work).is_finite());
    }

    #[test]
    fn decode_slopes_are_learned_too() {
        let real = DecodeCosts { base_s: 0.008, per_request_s: 4e-4, per_token_s: 2e-8 };
        let mut learner = DecodeLearner::new(DecodeCosts::default());
        for turn in 0..200 {
            let (requests, tokens) = (1.0 + 200.0 * noise_of(turn), 400_000.0 * noise_of(turn + 5_000));
            learner.learn(requests, tokens, real.step(requests, tokens));
        }
        let learned = learner.costs();
        for (requests, tokens) in [(1.0, 2e3), (50.0, 2e5), (200.0, 4e5)] {
            let share = learned.step(requests, tokens) / real.step(requests, tokens);
            assert!((share - 1.0).abs() < 0.1, "{requests} {tokens}: {share}");
        }
    }

    #[test]
    fn a_split_is_known_once_numbers_of_requests_have_differed_or_one_was_alone() {
        let known_after = |all: &[f64]| {
            let mut learner = DecodeLearner::new(DecodeCosts::default());
            all.iter().for_each(|requests| learner.learn(*requests, requests * 1e3, 0.03));
            learner.steps().split_known
        };
        assert_eq!(known_after(&[]), 1.0, "start values are as good as any");
        assert_eq!(known_after(&[20.0; 50]), 0.0);
        assert!((known_after(&[20.0, 25.0]) - 0.5).abs() < 1e-9);
        // The order is of no matter, nor are those that came since.
        assert_eq!(known_after(&[20.0, 30.0]), 1.0);
        assert_eq!(known_after(&[30.0, 20.0, 25.0, 25.0]), 1.0);
        assert_eq!((known_after(&[1.0]), known_after(&[4.0])), (1.0, 0.0));
    }
}
