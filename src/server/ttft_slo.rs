//! Time within which a request's first token is due, as its client and its key say.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

/// Headers by which clients say it, in milliseconds: the one of llm-d's router, and the name that
/// it had there before (`pkg/epp/metadata/consts.go` of `llm-d/llm-d-router`).
const HEADERS: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];

/// The time that counts: the client's, but none that is shorter than its key's, which counts
/// without one.
pub(super) fn of(headers: &HeaderMap, key_ms: Option<u32>) -> Option<Duration> {
    let claimed_ms = HEADERS.iter().find_map(|name| headers.get(*name)).and_then(milliseconds);
    let ms = match claimed_ms {
        Some(claimed_ms) => Some(key_ms.map_or(claimed_ms, |key_ms| claimed_ms.max(key_ms))),
        None => key_ms,
    };
    ms.map(|ms| Duration::from_millis(u64::from(ms)))
}

/// A header's number. What is no number of milliseconds, or too large for one, says nothing: it
/// must not turn into an early time.
fn milliseconds(value: &HeaderValue) -> Option<u32> {
    let ms = value.to_str().ok()?.trim().parse().ok()?;
    (ms > 0).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slo_ms(headers: &[(&'static str, &'static str)], key_ms: Option<u32>) -> Option<u128> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        of(&headers.collect(), key_ms).map(|slo| slo.as_millis())
    }

    #[test]
    fn client_may_wait_longer_than_its_key_and_never_less() {
        let own = |value| [("x-llm-d-slo-ttft-ms", value)];
        assert_eq!([None, Some(900)].map(|key_ms| slo_ms(&[], key_ms)), [None, Some(900)]);
        assert_eq!(["500", "2000"].map(|value| slo_ms(&own(value), Some(900))), [Some(900), Some(2_000)]);
        assert_eq!(slo_ms(&own(" 500 "), None), Some(500));
        assert_eq!(slo_ms(&[("x-slo-ttft-ms", "700")], None), Some(700));
        assert_eq!(slo_ms(&[("x-slo-ttft-ms", "700"), ("x-llm-d-slo-ttft-ms", "500")], None), Some(500));
    }

    /// llm-d's router once took a number that overflows for the earliest time of all (its pull
    /// request 1917).
    #[test]
    fn header_without_a_number_of_milliseconds_says_nothing() {
        for value in ["", "0", "-5", "1.5", "soon", "4294967296", "9223372036854775807"] {
            let header = [("x-llm-d-slo-ttft-ms", value)];
            assert_eq!([None, Some(900)].map(|key_ms| slo_ms(&header, key_ms)), [None, Some(900)], "{value}");
        }
    }
}
