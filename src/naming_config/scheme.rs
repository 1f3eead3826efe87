//! `[hash]` → the way to hash.

use super::Trouble;
use super::agree::Known;
use crate::codec::pyhash::StrHash;
use crate::config::{Config, HashAlgo, HashScheme, Key};
use crate::kvhash::keys::{Connector, Preset};
use crate::kvhash::lmcache::{CHUNK_TOKENS, EngineAlgo, EngineProfile, Release, ServerAlgo};
use crate::kvhash::scheme::Scheme;
use crate::kvhash::ucm::{Generation, Layout, UcmProfile};
use crate::kvhash::version::BlockShape;
use crate::kvhash::{Algo, HashProfile, Seed, VllmVersion};

/// From this Python 3.y on, strings hash by SipHash-1-3 instead of 2-4.
const SIPHASH13_MINOR: u32 = 11;

/// The facts that a configuration needs of the engines. Those that it does not use can't contradict
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    /// vLLM's block hash.
    pub(super) algo: bool,
    /// The engine's setting `--block-size`.
    pub(super) block: bool,
    /// The engine's setting `--model`.
    pub(super) model: bool,
    /// All of it, not just the last path component.
    pub(super) whole_model: bool,
}

pub(super) fn uses(config: &Config) -> Uses {
    let scheme = named(config);
    let ucm = scheme == HashScheme::Ucm;
    let template = config.key.template.as_deref().unwrap_or("");
    Uses {
        algo: is_vllm(scheme) || config.events.listen,
        block: !is_lmcache(config),
        model: config.key.preset.is_some() || ucm,
        whole_model: (ucm && is_old_ucm(config)) || is_lmcache(config) || template.contains("model"),
    }
}

fn is_old_ucm(config: &Config) -> bool {
    config.hash.release.as_deref().is_some_and(|release| matches!(release, "0.2" | "0.3" | "0.4"))
}

/// True if the chunks and digests are LMCache's, not the engine's.
pub(super) fn is_lmcache(config: &Config) -> bool {
    matches!(named(config), HashScheme::Lmcache | HashScheme::LmcacheMp)
}

/// LMCache's chunks, in tokens, if it is LMCache that hashes.
#[must_use]
pub fn lmcache_chunk_tokens(config: &Config) -> Option<usize> {
    is_lmcache(config).then(|| chunk_tokens(config))
}

/// The scheme that is configured, or that of the preset's connector.
fn named(config: &Config) -> HashScheme {
    let preset = config.key.preset.as_deref().and_then(|name| Preset::named(name).ok());
    match (config.hash.scheme, preset.map(|preset| preset.connector)) {
        (HashScheme::Auto, Some(Connector::AscendStoreV1)) => HashScheme::Ascend011,
        (HashScheme::Auto, Some(Connector::Ucm)) => HashScheme::Ucm,
        (HashScheme::Auto, Some(Connector::LmcacheEngine)) => HashScheme::Lmcache,
        (HashScheme::Auto, Some(Connector::LmcacheMp)) => HashScheme::LmcacheMp,
        (HashScheme::Auto, Some(Connector::AscendStore | Connector::MooncakeStore) | None) => {
            HashScheme::Vllm
        }
        (scheme, _) => scheme,
    }
}

pub(super) fn of(config: &Config, known: &Known) -> Result<Scheme, Trouble> {
    let block_tokens = || Known::need(&known.block_tokens, "hash.block_tokens").map(|tokens| tokens as usize);
    Ok(match named(config) {
        HashScheme::Ems => Scheme::Ems { block_tokens: block_tokens()? },
        HashScheme::Ascend011 => Scheme::Ascend011 { block_tokens: block_tokens()? },
        HashScheme::Ucm => Scheme::Ucm(ucm(config, known)?),
        HashScheme::Lmcache => Scheme::LmcacheEngine(lmcache(config, known)?),
        HashScheme::LmcacheMp => Scheme::LmcacheServer {
            algo: match config.hash.algo {
                HashAlgo::Auto | HashAlgo::Blake3 => ServerAlgo::Blake3,
                HashAlgo::Sha256Cbor => {
                    ServerAlgo::Sha256Cbor { version: version(known)?, seed: seed(config) }
                }
                other => {
                    return Err(wrong_algo(
                        other,
                        "blake3, sha256_cbor (its builtin hashes differ by process)",
                    ));
                }
            },
            chunk_tokens: chunk_tokens(config),
        },
        HashScheme::Vllm | HashScheme::Auto => Scheme::Vllm(vllm(config, known)?),
    })
}

/// Scheme by which the engines hash for their own cache, where `[hash]` is another scheme of a pool
/// and their events are listened to.
pub(super) fn of_engine(config: &Config, known: &Known) -> Result<Option<Scheme>, Trouble> {
    if !config.events.listen || is_vllm(named(config)) {
        return Ok(None);
    }
    if is_lmcache(config) {
        let why = "[hash] is of LMCache's chunks: how the engines hash for their own events can't be told beside it";
        return Err(wrong("events.listen", "true".to_owned(), why));
    }
    Ok(Some(Scheme::Vllm(vllm(config, known)?)))
}

fn is_vllm(scheme: HashScheme) -> bool {
    matches!(scheme, HashScheme::Vllm | HashScheme::Auto)
}

fn vllm(config: &Config, known: &Known) -> Result<HashProfile, Trouble> {
    let name = Known::need(&known.algo, "hash.algo")?;
    let version = version(known)?;
    let algo = Algo::from_name(&name).ok_or_else(|| match config.hash.algo {
        HashAlgo::Auto => Trouble::Value {
            key: "hash.algo",
            value: name,
            why: "an engine says so, and it is not known here".to_owned(),
        },
        other => wrong_algo(other, "sha256, sha256_cbor, xxhash or xxhash_cbor"),
    })?;
    let block = match known.hash_block_tokens {
        Some(published) => published,
        None => scheduler_block_tokens(&config.key, known)?,
    };
    Ok(HashProfile { version, algo, seed: seed(config), block_tokens: block as usize, lookahead_tokens: 0 })
}

/// Tokens of a block as the scheduler of engines with one KV-cache group counts them, which hashes
/// such blocks.
pub(super) fn scheduler_block_tokens(key: &Key, known: &Known) -> Result<u32, Trouble> {
    let block_size_tokens = Known::need(&known.block_tokens, "hash.block_tokens")?;
    let shape = BlockShape { block_size_tokens, dcp: key.dcp, pcp: key.pcp };
    Ok(version(known)?.hash_block_tokens(shape)?)
}

fn ucm(config: &Config, known: &Known) -> Result<UcmProfile, Trouble> {
    let hash = &config.hash;
    let unset = Trouble::Unset { key: "hash.release", needed_by: "UCM" };
    let release = hash.release.clone().ok_or(unset)?;
    let generation = match release.as_str() {
        "0.2" | "0.3" | "0.4" => Generation::V0_4,
        "0.7" | "0.7.0" => Generation::V0_7,
        "0.8" | "0.8.0" => Generation::V0_8,
        "0.8.1" => Generation::V0_8_1,
        _ => {
            return Err(wrong(
                "hash.release",
                release,
                "expected a UCM release that is known: 0.2 to 0.4, 0.7, 0.8, 0.8.1",
            ));
        }
    };
    let speculative = hash.speculation.as_deref().map(speculation).transpose()?;
    let layout =
        hash.layout_digest.as_deref().map(|digest| Layout { dcp: config.key.dcp, digest: digest.into() });
    Ok(UcmProfile {
        generation,
        version: version(known)?,
        model: Known::need(&known.model, "key.model")?.into(),
        dtype: config.key.dtype.as_str().into(),
        tp: ucm_ranks(&config.key)?,
        mla: config.key.mla,
        block_tokens: Known::need(&known.block_tokens, "hash.block_tokens")? as usize,
        speculative,
        sfa_c8: hash.sfa_c8,
        li_c8: hash.li_c8,
        layout,
    })
}

/// The ranks in UCM's namespace. If ranks have heads of their own, those that divide a prompt among
/// them count as one.
fn ucm_ranks(key: &Key) -> Result<u32, Trouble> {
    match key.tp.checked_rem(key.dcp) {
        _ if key.mla => Ok(key.tp),
        Some(0) => Ok(key.tp / key.dcp),
        _ => {
            let why = format!(
                "key.tp is {}: set one that divides it, UCM's ids have their quotient in them",
                key.tp
            );
            Err(wrong("key.dcp", key.dcp.to_string(), &why))
        }
    }
}

fn lmcache(config: &Config, known: &Known) -> Result<EngineProfile, Trouble> {
    let release = match config.hash.release.as_deref() {
        Some(text) if text == "0.3" || text.starts_with("0.3.") => Release::V0_3,
        _ => Release::V0_4,
    };
    let algo = match config.hash.algo {
        HashAlgo::Auto | HashAlgo::Builtin => EngineAlgo::Builtin(match config.key.python_minor {
            0 => return Err(Trouble::Unset { key: "key.python_minor", needed_by: "LMCache's builtin hash" }),
            minor if minor < SIPHASH13_MINOR => StrHash::Sip24,
            _ => StrHash::Sip13,
        }),
        HashAlgo::Sha256 => EngineAlgo::Sha256,
        HashAlgo::Sha256Cbor => EngineAlgo::Sha256Cbor,
        other => return Err(wrong_algo(other, "builtin, sha256 or sha256_cbor")),
    };
    Ok(EngineProfile {
        release,
        algo,
        version: version(known)?,
        seed: seed(config),
        chunk_tokens: chunk_tokens(config),
        partial_chunk: config.hash.partial_chunk,
    })
}

fn version(known: &Known) -> Result<VllmVersion, Trouble> {
    known.need_version()
}

fn seed(config: &Config) -> Seed {
    config.hash.seed.as_deref().map_or(Seed::Unset, |text| Seed::Text(text.into()))
}

fn chunk_tokens(config: &Config) -> usize {
    match config.hash.block_tokens {
        0 => CHUNK_TOKENS,
        tokens => tokens as usize,
    }
}

/// Reads a setting, as `method:tokens`.
fn speculation(text: &str) -> Result<(Box<str>, u32), Trouble> {
    let parts = text.rsplit_once(':').and_then(|(method, tokens)| Some((method, tokens.parse().ok()?)));
    match parts {
        Some((method, tokens)) if !method.is_empty() => Ok((method.into(), tokens)),
        _ => Err(wrong("hash.speculation", text.to_owned(), "expected method:tokens, as in mtp:2")),
    }
}

fn wrong(key: &'static str, value: String, why: &str) -> Trouble {
    Trouble::Value { key, value, why: why.to_owned() }
}

fn wrong_algo(algo: HashAlgo, right: &str) -> Trouble {
    wrong("hash.algo", algo.name().to_owned(), &format!("this scheme has {right}"))
}
