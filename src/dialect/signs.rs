//! Signs by which engines give away their dialect. The module is pure.
//!
//! | asked | answered by | tells |
//! |---|---|---|
//! | `GET /server_info`, in older releases `GET /get_server_info` | SGLang | `disaggregation_mode`, `disaggregation_bootstrap_port` |
//! | `GET /query` on the bootstrap port | vLLM's MooncakeConnector, as prefiller | ids of its ranks |
//! | `GET /version` | vLLM | nothing about connectors: its answers to prefills do (a hand-off that pulls or pushes, or none: a pool) |
//!
//! A layerwise connector can't be told from others before it is used.

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::{Dialect, nixl_push};

/// Path of the question to SGLang's servers.
pub const SERVER_INFO_PATH: &str = "/server_info";
/// Its path in older releases, deprecated since: asked where the other is unknown.
pub const OLD_SERVER_INFO_PATH: &str = "/get_server_info";

/// A prefiller's answers about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// The bootstrap port of an SGLang server that prefills for others.
    pub sglang_port: Option<u16>,
    /// Ranks that a Mooncake bootstrap server named.
    pub mooncake_ranks: Option<usize>,
    /// Version of vLLM, if it is vLLM.
    pub vllm: Option<String>,
}

/// The dialect that was detected, and the sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedDialect {
    /// Dialect of the engines.
    pub dialect: Dialect,
    /// Reason why it must be that, for people.
    pub why: String,
}

impl Signs {
    /// The dialect that follows from the signs; `None` when there was none.
    pub fn verdict(&self) -> Option<DetectedDialect> {
        let told = |dialect, why: String| Some(DetectedDialect { dialect, why });
        if let Some(port) = self.sglang_port {
            return told(
                Dialect::Sglang,
                format!("it is SGLang, prefilling for others, with bootstrap port {port}"),
            );
        }
        if let Some(ranks) = self.mooncake_ranks {
            return told(Dialect::Mooncake, format!("its bootstrap server names {ranks} engine ids"));
        }
        let version = self.vllm.as_ref()?;
        told(
            Dialect::KvTransfer,
            format!("it is vLLM {version}, whose answers tell what else there is to know"),
        )
    }
}

/// The bootstrap port in the answer to [`SERVER_INFO_PATH`], if it is of a server that prefills for
/// others.
pub fn sglang_port(answer: Bytes) -> Option<u16> {
    let answer = Object::scan(answer, ScanLimits::default()).ok()?;
    if answer.get("disaggregation_mode")?.as_str()? != "prefill" {
        return None;
    }
    u16::try_from(answer.get("disaggregation_bootstrap_port")?.as_u64()?).ok()
}

/// The dialect that a prefiller's hand-off belongs to, where the one that is `assumed` leaves that
/// to hand-offs.
pub fn of_handoff(handoff: &Bytes, assumed: Dialect) -> Option<DetectedDialect> {
    let told = |dialect, why: &str| Some(DetectedDialect { dialect, why: why.to_owned() });
    match (nixl_push::standing(handoff), assumed) {
        (Some(_), _) => told(Dialect::NixlPush, "its hand-offs say that it pushes"),
        (None, Dialect::NixlPush) => told(Dialect::KvTransfer, "its hand-offs say no more that it pushes"),
        (None, _) => None,
    }
}

/// True if engines that were taken to speak `assumed` can't be what their signs say. Those of vLLM
/// alone fit every connector of vLLM without a bootstrap server.
pub fn contradicts(told: Dialect, assumed: Dialect) -> bool {
    let of_vllm_alone = !assumed.asks_bootstrap() && assumed != Dialect::Sglang;
    told != assumed && !(told == Dialect::KvTransfer && of_vllm_alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_sign_decides() {
        let vllm = Signs { vllm: Some("0.32.0".to_owned()), ..Signs::default() };
        let dialect = |signs: &Signs| signs.verdict().map(|told| told.dialect);
        assert_eq!(dialect(&Signs::default()), None);
        assert_eq!(dialect(&vllm), Some(Dialect::KvTransfer));
        let mooncake = Signs { mooncake_ranks: Some(2), ..vllm };
        assert_eq!(dialect(&mooncake), Some(Dialect::Mooncake));
        assert_eq!(dialect(&Signs { sglang_port: Some(8998), ..Signs::default() }), Some(Dialect::Sglang));
    }

    #[test]
    fn signs_of_vllm_alone_contradict_a_bootstrap_server_and_sglang() {
        use Dialect::{KvTransfer, Layerwise, Mooncake, NixlPush, Pool, Sglang};
        for assumed in [KvTransfer, Layerwise, NixlPush, Pool] {
            assert!(!contradicts(KvTransfer, assumed) && contradicts(Mooncake, assumed), "{assumed:?}");
        }
        assert!(contradicts(KvTransfer, Mooncake) && contradicts(KvTransfer, Sglang));
        assert!(!contradicts(Mooncake, Mooncake));
    }

    #[test]
    fn hand_offs_tell_when_engines_begin_to_push_and_when_they_end() {
        let push = Bytes::from_static(
            br#"{"transfer_mode":"push","remote_engine_id":"e","remote_host":"h","remote_port":1}"#,
        );
        let pull = Bytes::from_static(br#"{"remote_engine_id":"e","remote_host":"h","remote_port":1}"#);
        let of = |handoff, assumed| of_handoff(handoff, assumed).map(|told| told.dialect);
        assert_eq!(of(&push, Dialect::KvTransfer), Some(Dialect::NixlPush));
        assert_eq!(of(&pull, Dialect::NixlPush), Some(Dialect::KvTransfer));
        assert_eq!(of(&pull, Dialect::KvTransfer), None);
    }

    #[test]
    fn a_server_that_serves_alone_or_decodes_has_no_port_for_us() {
        let port = |mode: &str| {
            sglang_port(
                format!(
                    r#"{{"tp_size":1,"disaggregation_mode":"{mode}","disaggregation_bootstrap_port":8998}}"#
                )
                .into(),
            )
        };
        assert_eq!((port("prefill"), port("decode"), port("null")), (Some(8998), None, None));
        for odd in [
            "",
            "{}",
            r#"{"disaggregation_mode":"prefill"}"#,
            r#"{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":70000}"#,
        ] {
            assert_eq!(sglang_port(odd.into()), None, "{odd}");
        }
    }
}
