//! Queries of operators' orders: pairs by their names, and times.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::server::instances::DRAIN_WAIT;
use crate::server::printable;

/// Pairs of a query that have one name, and the query without them.
pub(super) struct NamedPairs<'a> {
    pub(super) named: Vec<&'a str>,
    pub(super) rest: String,
}

impl NamedPairs<'_> {
    pub(super) fn of<'a>(query: &'a str, name: &str) -> NamedPairs<'a> {
        let has_name = |pair: &&str| {
            let key = pair.split_once('=').map_or(*pair, |(key, _)| key);
            percent_decode_str(key).eq(name.bytes())
        };
        let (named, rest): (Vec<&str>, Vec<&str>) =
            query.split('&').filter(|pair| !pair.is_empty()).partition(has_name);
        NamedPairs { named, rest: rest.join("&") }
    }
}

/// The value of a pair of a query, decoded; nothing where it has none.
pub(super) fn value_of(pair: &str) -> String {
    let value = pair.split_once('=').map_or("", |(_, value)| value);
    percent_decode_str(value).decode_utf8_lossy().into_owned()
}

/// The time in a pair of a query, for which somebody waits until engines have drained.
///
/// # Errors
/// It is no number of milliseconds, or more than [`DRAIN_WAIT`].
pub(super) fn drain_wait(pair: &str) -> Result<Duration, String> {
    let value = value_of(pair);
    // Rust's numbers may have a plus sign before them.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit()).then_some(value);
    let limit = digits.and_then(|digits| digits.parse().ok()).map(Duration::from_millis);
    let most_ms = DRAIN_WAIT.as_millis();
    let wrong = || format!("`{}`: expected a number of milliseconds from 0 to {most_ms}", printable(pair));
    limit.filter(|limit| *limit <= DRAIN_WAIT).ok_or_else(wrong)
}
