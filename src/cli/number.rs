//! Numbers on the command line.

/// A text that is no number in the range asked for.
#[derive(Debug, thiserror::Error)]
#[error("expected a number {0}")]
pub(super) struct NoSuchNumber(&'static str);

pub(super) fn positive(text: &str) -> Result<f64, NoSuchNumber> {
    number(text).filter(|number| *number > 0.0).ok_or(NoSuchNumber("above 0"))
}

pub(super) fn not_negative(text: &str) -> Result<f64, NoSuchNumber> {
    number(text).filter(|number| *number >= 0.0).ok_or(NoSuchNumber("of 0 or more"))
}

pub(super) fn percent(text: &str) -> Result<f64, NoSuchNumber> {
    number(text).filter(|number| (0.0..=100.0).contains(number)).ok_or(NoSuchNumber("from 0 to 100"))
}

/// A load or a factor in virtual time: times stay numbers that can be added up.
pub(super) fn factor(text: &str) -> Result<f64, NoSuchNumber> {
    number(text).filter(|number| (0.001..=1000.0).contains(number)).ok_or(NoSuchNumber("from 0.001 to 1000"))
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}
