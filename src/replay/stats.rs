//! Quantiles, means, and how far the mean of a few runs may be off.

/// The value of rank ⌈q n⌉ among `sorted`: the least that is not below a share `q` of them. 0 of
/// nothing.
#[must_use]
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied().unwrap_or(0.0)
}

/// A mean over runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Half of the width of its 95 % confidence interval; none of a single run.
    pub plus_minus: Option<f64>,
}

/// 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, the normal
/// distribution's serves.
const STUDENT: [f64; 29] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
];
const NORMAL: f64 = 1.960;

impl Estimate {
    /// The mean of independent runs.
    #[must_use]
    pub fn of(values: &[f64]) -> Estimate {
        let n = values.len() as f64;
        if values.is_empty() {
            return Estimate::default();
        }
        let mean = values.iter().sum::<f64>() / n;
        if values.len() == 1 {
            return Estimate { mean, plus_minus: None };
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let student = STUDENT.get(values.len() - 2).copied().unwrap_or(NORMAL);
        Estimate { mean, plus_minus: Some(student * (variance / n).sqrt()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_the_least_value_that_enough_are_not_above(
            mut values in proptest::collection::vec(-1e6f64..1e6, 1..200), q in 0.0f64..=1.0,
        ) {
            values.sort_by(f64::total_cmp);
            let quantile = quantile(&values, q);
            let not_above = |limit: f64| values.iter().filter(|value| **value <= limit).count() as f64;
            let least = values.iter().copied().find(|value| not_above(*value) >= q * values.len() as f64);
            prop_assert_eq!(Some(quantile), least);
        }
    }

    #[test]
    fn few_runs_say_less() {
        assert_eq!(Estimate::of(&[]), Estimate::default());
        assert_eq!(Estimate::of(&[3.0]), Estimate { mean: 3.0, plus_minus: None });
        let two = Estimate::of(&[1.0, 3.0]);
        assert_eq!(two.mean, 2.0);
        // The standard error is 1, so what is left is Student's factor.
        assert!((two.plus_minus.unwrap() - 12.706).abs() < 1e-9);
        let many = Estimate::of(&[1.0, 3.0].repeat(50));
        assert!(many.plus_minus.unwrap() < 0.21);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
