//! Kinds of value that the tree holds beside numbers and strings: secrets, and names out of a fixed
//! set.

use super::table::{KeyType, KeyValue, MASK};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A key or token; shown as `***` by Debug, Display and Serialize.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// A name that is not in the set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {}", allowed.join(", "))]
pub struct UnknownName {
    /// The names that would have been accepted.
    pub allowed: &'static [&'static str],
}

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key itself, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl KeyType for Option<Secret> {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Secret(self.as_ref().map(Secret::expose))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

/// An enum with one written name per variant, read in any case, with `-` for `_`, and by its
/// aliases too.
macro_rules! named {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal $(| $alias:literal)*,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(try_from = "String", into = "&'static str")]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// The written names, in order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name as written in files.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;
            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text.to_ascii_lowercase().replace('-', "_").as_str() {
                    $($text $(| $alias)* => Ok(Self::$variant),)+
                    _ => Err(UnknownName { allowed: Self::NAMES }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = UnknownName;
            fn try_from(text: String) -> Result<Self, UnknownName> {
                text.parse()
            }
        }

        impl From<$name> for &'static str {
            fn from(value: $name) -> Self {
                value.name()
            }
        }

        impl KeyType for $name {
            fn value(&self) -> KeyValue<'_> {
                KeyValue::Name { name: self.name(), names: Self::NAMES }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// The rule that picks a prefiller and a decoder.
    Policy {
        /// The instance predicted to be done first, in seconds.
        Predicted = "predicted",
        /// The least work, in tokens.
        LeastWork = "least_work",
        /// The fewest requests.
        LeastRequests = "least_requests",
        /// Each in turn.
        RoundRobin = "round_robin",
        /// Any, with equal chance.
        Random = "random",
        /// The less loaded of two drawn at random.
        PowerOfTwo = "power_of_two",
        /// The score of vllm-ascend's example proxy.
        Reference = "reference",
        /// The longest prefix sent there before, unless loads differ much.
        CacheAware = "cache_aware",
        /// The same place for the same session, unless it is overloaded.
        Session = "session",
    }
}

named! {
    /// Protocols by which engines move KV. The name of a `kv_connector` stands for its protocol;
    /// that of vLLM's MultiConnector says nothing of it.
    DialectName {
        /// Detected from the engines: SGLang and vLLM's MooncakeConnector by a question, push or
        /// pull or a pool by their answers.
        Auto = "auto",
        /// NixlConnector, vllm-ascend's MooncakeConnectorV1 and its successors: the prefiller's
        /// answer says what the decoder is told; a pool where it says nothing.
        KvTransfer = "kv_transfer"
            | "nixlconnector"
            | "nixlpullconnector"
            | "mooncakeconnectorv1"
            | "mooncakehybridconnector"
            | "mooncakepullconnector"
            | "mooncakeconnectorv2"
            | "mooncaked2rhconnectorv1",
        /// EmsStoreConnector, AscendStoreConnector alone, UCM, MooncakeStoreConnector: a pool
        /// carries all KV.
        Pool = "pool"
            | "ascendstoreconnector"
            | "mooncakeconnectorstorev1"
            | "mooncakestoreconnector"
            | "emsstoreconnector"
            | "ucmconnector",
        /// vLLM's connector MooncakeConnector.
        Mooncake = "mooncake" | "mooncakeconnector",
        /// vLLM's connector NixlPushConnector.
        NixlPush = "nixl_push" | "nixlpushconnector",
        /// SGLang's prefill and decode servers.
        Sglang = "sglang",
        /// vllm-ascend's MooncakeLayerwiseConnector: the decoder first, which calls back.
        Layerwise = "layerwise" | "mooncakelayerwiseconnector" | "sfaremoted2hconnector",
        /// vLLM's MoRIIOConnector in READ mode.
        Moriio = "moriio" | "moriioconnector",
    }
}

named! {
    /// Schemes of engines of which addresses alone are found.
    Scheme {
        /// In the clear.
        Http = "http",
        /// HTTP over TLS.
        Https = "https",
    }
}

named! {
    /// Moments at which a request is bound to a prefiller.
    Bind {
        /// As soon as its best prefiller is about to be free.
        Late = "late",
        /// At the arrival of the request.
        Arrival = "arrival",
    }
}

named! {
    /// Tokenizers of prompts.
    Tokens {
        /// As the rest of the configuration wants it: nobody while neither a pool nor KV events are
        /// set, else the gateway where the model's files are known and proven, else an engine.
        Auto = "auto",
        /// Nobody: prompts are routed by their size alone.
        Off = "off",
        /// The gateway, with the model's files.
        Local = "local",
        /// An engine, by `/tokenize`.
        Engine = "engine",
    }
}

named! {
    /// Forms in which a chat template takes a message's content.
    ContentFormat {
        /// Found out from the template, as engines do.
        Auto = "auto",
        /// As one string.
        String = "string",
        /// As a list of parts.
        Openai = "openai",
    }
}

named! {
    /// Origins of the way in which blocks are hashed.
    HashScheme {
        /// That of the key preset's connector; vLLM's without one.
        Auto = "auto",
        /// vLLM's own prefix cache; AscendStore and MooncakeStoreConnector use it, too.
        Vllm = "vllm",
        /// Ascend's connector EmsStoreConnector.
        Ems = "ems",
        /// Unified cache management.
        Ucm = "ucm",
        /// LMCache inside the engine.
        Lmcache = "lmcache",
        /// LMCache's multi-process server.
        LmcacheMp = "lmcache_mp",
        /// MooncakeConnectorStoreV1 of vllm-ascend 0.10 and 0.11.
        Ascend011 = "ascend_0_11" | "ascend_0.11",
    }
}

named! {
    /// The digest of a block.
    HashAlgo {
        /// vLLM's is asked; LMCache's is its default.
        Auto = "auto",
        /// SHA-256 of a pickle.
        Sha256 = "sha256",
        /// SHA-256 of canonical CBOR.
        Sha256Cbor = "sha256_cbor",
        /// XXH3-128 of a pickle.
        Xxhash = "xxhash",
        /// XXH3-128 of canonical CBOR.
        XxhashCbor = "xxhash_cbor",
        /// Python's `hash()` (LMCache inside the engine).
        Builtin = "builtin",
        /// BLAKE3 (LMCache's server).
        Blake3 = "blake3",
    }
}

named! {
    /// Ways in which layers share objects of a pool.
    KeyLayout {
        /// One object holds all layers of a rank.
        Whole = "whole",
        /// One object per layer.
        Layers = "layers",
        /// MemCache's layer-wise keys: all layers at known offsets of one object.
        Gva = "gva",
        /// Layer-wise Mooncake of vllm-ascend 0.30.
        Shared = "shared",
    }
}

named! {
    /// Places of a pool's blocks.
    KeyStore {
        /// Mooncake, and any store that takes keys as they are.
        Mooncake = "mooncake",
        /// The store MemCache.
        Memcache = "memcache",
        /// Yuanrong, for which some versions rewrite keys.
        Yuanrong = "yuanrong",
        /// Files below `key.roots`.
        Files = "files",
        /// Objects of an S3 bucket.
        S3 = "s3",
    }
}

named! {
    /// The service that knows the pool's blocks.
    PoolKind {
        /// None is asked.
        Off = "off",
        /// The Mooncake master, by its RPC.
        Mooncake = "mooncake",
        /// The Mooncake master's HTTP port: asking leaves no trace in its eviction order (0.3.12
        /// and later).
        MooncakeHttp = "mooncake_http",
        /// MemCache's meta service.
        Memcache = "memcache",
        /// MemCache's HTTP port.
        MemcacheHttp = "memcache_http",
        /// Files on a share (`key.roots`).
        Ucm = "ucm",
        /// EMS lookup servers, one per engine.
        Ems = "ems",
        /// The controller of LMCache.
        LmcacheController = "lmcache_controller",
        /// The coordinator of LMCache.
        LmcacheCoordinator = "lmcache_coordinator",
    }
}

named! {
    /// Log levels under the names that Python's logging uses.
    Level {
        /// Every detail there is.
        Trace = "trace",
        /// Details for developers.
        Debug = "debug",
        /// One line per request and per change of state.
        Info = "info",
        /// Events that an operator should look at.
        Warning = "warning" | "warn",
        /// Failures of the gateway or its engines.
        Error = "error",
        /// As `error`: there is nothing above it here.
        Critical = "critical",
    }
}

named! {
    /// The form of a log line.
    LogFormat {
        /// Lines for people to read.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

impl Level {
    /// The level's name in a `tracing` filter.
    pub fn filter(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warn",
            Self::Error | Self::Critical => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_never_show() {
        let secret = Secret::new("sk-123");
        let shown = format!("{secret} {secret:?} {}", serde_json::to_string(&secret).unwrap());
        assert_eq!(shown, "*** *** \"***\"");
        assert_eq!(secret.expose(), "sk-123");
    }

    #[test]
    fn names_are_read_in_any_case_and_by_alias() {
        for (text, level) in [("INFO", Level::Info), ("Warn", Level::Warning), ("CRITICAL", Level::Critical)]
        {
            assert_eq!(text.parse(), Ok(level));
        }
        assert_eq!("power-of-two".parse(), Ok(Policy::PowerOfTwo));
        let wrong = "fastest".parse::<Policy>().unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "expected one of predicted, least_work, least_requests, round_robin, random, power_of_two, \
             reference, cache_aware, session"
        );
    }

    #[test]
    fn connectors_names_stand_for_their_dialects() {
        for (connector, dialect) in [
            ("NixlConnector", DialectName::KvTransfer),
            ("NixlPushConnector", DialectName::NixlPush),
            ("MooncakeConnector", DialectName::Mooncake),
            ("MooncakeConnectorV1", DialectName::KvTransfer),
            ("MooncakePullConnector", DialectName::KvTransfer),
            ("MooncakeConnectorV2", DialectName::KvTransfer),
            ("MooncakeD2RHConnectorV1", DialectName::KvTransfer),
            ("MooncakeStoreConnector", DialectName::Pool),
            ("AscendStoreConnector", DialectName::Pool),
            ("MooncakeLayerwiseConnector", DialectName::Layerwise),
            ("MoRIIOConnector", DialectName::Moriio),
        ] {
            assert_eq!(connector.parse(), Ok(dialect), "{connector}");
        }
        assert!("MultiConnector".parse::<DialectName>().is_err(), "it is made of others");
    }

    #[test]
    fn every_name_reads_back_as_itself() {
        for name in Level::NAMES {
            assert_eq!(name.parse::<Level>().unwrap().name(), *name);
        }
        assert_eq!(Level::Critical.filter(), "error");
        assert_eq!(Level::Warning.filter(), "warn");
    }
}
