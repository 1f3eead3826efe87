//! Configuration that a vLLM engine in development mode (`VLLM_SERVER_DEV_MODE=1`) tells of itself:
//! `GET /server_info?config_format=json`. The module is pure.
//!
//! The members are those of vLLM's `VllmConfig` in 0.32 and 0.33. A member that is missing is not
//! known; others are not read.

use serde::Deserialize;

/// Path of the question.
pub(super) const PATH: &str = "/server_info?config_format=json";
/// Connectors that are read from one list; the others are left out.
const MAX_CONNECTORS: usize = 16;

/// The members that a gateway's configuration depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Description {
    /// Connectors of its `--kv-transfer-config`; those inside of a `MultiConnector` in its place.
    pub(super) connectors: Vec<Connector>,
    /// Sizes of its parallelism.
    pub(super) sizes: Sizes,
}

/// One KV connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connector {
    /// Name of its class.
    pub(super) name: String,
    /// Store that it writes to, where it can be one of several (`backend`).
    pub(super) backend: Option<String>,
    /// Time for which KV is kept for a decoder (`kv_lease_duration`), if it tells one.
    pub(super) lease: Option<ToldLease>,
}

/// Value of `kv_lease_duration`. vLLM takes any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToldLease {
    /// A time, in milliseconds.
    Ms(u64),
    /// A number that is no time, as it was told: KV is gone before a decoder fetches it.
    NoTime(String),
}

/// Sizes of an engine's parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Sizes {
    #[serde(rename = "tensor_parallel_size")]
    pub(super) tensor: Option<u32>,
    #[serde(rename = "pipeline_parallel_size")]
    pub(super) pipeline: Option<u32>,
    #[serde(rename = "prefill_context_parallel_size")]
    pub(super) prefill_context: Option<u32>,
    #[serde(rename = "decode_context_parallel_size")]
    pub(super) decode_context: Option<u32>,
}

#[derive(Deserialize)]
struct Answer {
    vllm_config: Configuration,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    parallel_config: Sizes,
    kv_transfer_config: Option<Transfer>,
}

#[derive(Deserialize)]
struct Transfer {
    kv_connector: Option<String>,
    kv_connector_extra_config: Option<Extra>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Extra {
    connectors: Vec<Transfer>,
    backend: Option<String>,
    kv_lease_duration: Option<f64>,
}

/// The description in an answer, `None` if it is not of vLLM.
pub(super) fn read(answer: &[u8]) -> Option<Description> {
    let Answer { vllm_config } = serde_json::from_slice(answer).ok()?;
    let mut connectors = Vec::new();
    if let Some(transfer) = vllm_config.kv_transfer_config {
        add(transfer, &mut connectors);
    }
    Some(Description { connectors, sizes: vllm_config.parallel_config })
}

/// Adds a connector, or the connectors inside of it.
fn add(transfer: Transfer, connectors: &mut Vec<Connector>) {
    let extra = transfer.kv_connector_extra_config.unwrap_or_default();
    if !extra.connectors.is_empty() {
        return extra.connectors.into_iter().take(MAX_CONNECTORS).for_each(|inner| add(inner, connectors));
    }
    let Some(name) = transfer.kv_connector.filter(|_| connectors.len() < MAX_CONNECTORS) else { return };
    let lease = extra.kv_lease_duration.map(told_lease);
    connectors.push(Connector { name, backend: extra.backend, lease });
}

/// Seconds in whole milliseconds, if they are a time.
fn told_lease(seconds: f64) -> ToldLease {
    let time = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    match u64::try_from(time.as_millis()) {
        Ok(ms) if ms > 0 => ToldLease::Ms(ms),
        _ => ToldLease::NoTime(seconds.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Members of the answer that vLLM 0.32.0 makes of its configuration, most left out.
    const ANSWER: &str = include_str!("../../../tests/captures/vllm-0.32-server-info.json");

    #[test]
    fn connectors_and_sizes_are_read_from_an_engine_of_vllm() {
        let read = read(ANSWER.as_bytes()).unwrap();
        let named: Vec<_> =
            read.connectors.iter().map(|one| (one.name.as_str(), one.lease.clone())).collect();
        let told = Some(ToldLease::Ms(45_000));
        assert_eq!(named, [("NixlConnector", told), ("MooncakeStoreConnector", None)]);
        let Sizes { tensor, pipeline, prefill_context, decode_context } = read.sizes;
        assert_eq!([tensor, pipeline, prefill_context, decode_context], [Some(1); 4]);
    }

    #[test]
    fn an_engine_without_connector_has_none_and_other_servers_say_nothing() {
        let plain = read(br#"{"vllm_config": {"kv_transfer_config": null}}"#).unwrap();
        assert_eq!(plain, Description::default());
        // SGLang's answer at the same path, and vLLM's by default: a text.
        for other in [r#"{"disaggregation_mode": "prefill"}"#, r#"{"vllm_config": "model='m'"}"#, ""] {
            assert_eq!(read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_lease_that_is_no_time_is_kept_as_it_was_told() {
        for odd in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(told_lease(odd), ToldLease::NoTime(odd.to_string()));
        }
        assert_eq!((told_lease(0.5), told_lease(30.0)), (ToldLease::Ms(500), ToldLease::Ms(30_000)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        #[test]
        fn connectors_are_bounded(count in 0usize..100) {
            let inner = vec![r#"{"kv_connector":"N"}"#; count].join(",");
            let answer = format!(
                r#"{{"vllm_config":{{"kv_transfer_config":{{"kv_connector":"MultiConnector","kv_connector_extra_config":{{"connectors":[{inner}]}}}}}}}}"#
            );
            let read = read(answer.as_bytes()).unwrap();
            prop_assert_eq!(read.connectors.len(), if count == 0 { 1 } else { count.min(MAX_CONNECTORS) });
        }
    }
}
