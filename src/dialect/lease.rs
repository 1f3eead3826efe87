//! Time for which a prefiller keeps the KV of a hand-off, where the hand-off tells it.
//!
//! vllm-ascend's Mooncake connectors put `kv_lease_duration` into it: seconds, at least 6, 480 by
//! default (`kv_p2p/mooncake/heartbeat.py`). A decoder renews the lease as long as the request
//! waits there. vLLM's NIXL connectors tell nothing with the hand-offs of prefillers: their
//! `remote_blocks_expiry_time` is null, and for the offers of decoders it is on the clock of the
//! engine's process.

use std::time::Duration;

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};

/// The shortest lease that engines accept.
pub const LEAST_LEASE: Duration = Duration::from_secs(6);
/// A longer one is not believed, s: a day.
const MOST_LEASE_S: f64 = 86_400.0;

/// The lease that a hand-off tells; `None` if it tells none. A number that engines accept for no
/// lease tells nothing of how long KV stays. What counts then is `engine.lease_ms`, as for engines
/// that tell nothing: the number itself would have each hand-off released at once, or never.
pub fn told_lease(handoff: &Bytes) -> Option<Duration> {
    let members = Object::scan(handoff.clone(), ScanLimits::default()).ok()?;
    let seconds: f64 = serde_json::from_slice(members.get("kv_lease_duration")?.raw()).ok()?;
    (LEAST_LEASE.as_secs_f64()..=MOST_LEASE_S).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_in_seconds_and_nonsense_is_none() {
        let told = |text: &'static str| told_lease(&Bytes::from_static(text.as_bytes()));
        let handoff = r#"{"do_remote_prefill":true,"kv_lease_version":1,"kv_lease_duration":480}"#;
        assert_eq!(told(handoff), Some(Duration::from_secs(480)));
        assert_eq!(told(r#"{"kv_lease_duration":7.5}"#), Some(Duration::from_millis(7_500)));
        for none in [
            r#"{"remote_blocks_expiry_time":62110.4}"#,
            r#"{"kv_lease_duration":null}"#,
            r#"{"kv_lease_duration":"480"}"#,
            r#"{"kv_lease_duration":0}"#,
            r#"{"kv_lease_duration":-480}"#,
            r#"{"kv_lease_duration":1e300}"#,
            "null",
        ] {
            assert_eq!(told(none), None, "{none}");
        }
    }
}
