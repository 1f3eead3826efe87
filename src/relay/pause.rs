//! Pauses between attempts.

use std::time::Duration;

/// The pause after the `made`-th attempt: `base · 2^(made-1)`, at most `max`, times a factor
/// between 0.5 and 1.5 drawn from `random`, so that requests that failed together don't come back
/// together.
pub fn jittered(base: Duration, max: Duration, made: u32, random: u64) -> Duration {
    let doubled = base.saturating_mul(1u32 << made.saturating_sub(1).min(20)).min(max);
    doubled.mul_f64(0.5 + (random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_jitter_by_half() {
        let ms = Duration::from_millis;
        let pause = |made, random| jittered(ms(10), ms(50), made, random);
        assert_eq!(pause(1, 0), ms(5));
        assert!(pause(1, u64::MAX) > ms(14) && pause(1, u64::MAX) <= ms(15));
        assert_eq!(pause(3, 0), ms(20));
        assert_eq!(pause(40, 0), ms(25), "10 doubled for ever is 50 at most, halved by jitter");
        assert_eq!(jittered(Duration::ZERO, ms(50), 5, u64::MAX), Duration::ZERO);
    }
}
