//! Derives the names of a prompt's blocks from the configuration and the engines' facts.
//!
//! The configuration wins where the engines say nothing, and the engines fill what it leaves out.
//! If both speak and differ, neither wins: that is an error which names both, because a wrong hash
//! looks like an empty pool.

mod agree;
mod chat_files;
mod files;
mod keys;
mod nearest;
mod scheme;
#[cfg(test)]
mod tests;
mod tokenizer_files;

use crate::config::{Config, KeyStore};
use crate::endpoint::Endpoint;
use crate::kvhash;
use crate::kvhash::keys::{Connector, KeyConfig, KeyProfile, Preset, Refusal};
use crate::kvhash::scheme::Hasher;
use crate::tokenization::{BlockNaming, Facts};

use agree::Known;
pub use agree::{Contradiction, ReportedValue};
pub use files::{FilesError, LocalPrompter, prompter};
pub use scheme::lmcache_chunk_tokens;
pub use tokenizer_files::{LoadedTokenizer, TokenizerForm, load_tokenizer};

/// Facts that one engine publishes, and its name.
#[derive(Clone, Debug)]
pub struct Published {
    /// Endpoint of the engine.
    pub engine: Endpoint,
    /// Facts that it gave.
    pub facts: Facts,
}

/// Reasons why there is no naming.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Neither configured nor published; may come with the next engine.
    #[error("{key} is not set, and no engine has said it ({source_name})")]
    Missing {
        /// The key of the configuration.
        key: &'static str,
        /// Place where engines publish it.
        source_name: &'static str,
    },
    /// Not configured, and engines don't publish it.
    #[error("{key} is not set, and engines don't publish it: {needed_by} needs it")]
    Unset {
        /// Name of the configuration key.
        key: &'static str,
        /// Setting that needs it.
        needed_by: &'static str,
    },
    /// Two that should say the same do not.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// A value that has no meaning.
    #[error("{key} = {value:?}: {why}")]
    Value {
        /// Name of the configuration key.
        key: &'static str,
        /// Value of the key.
        value: String,
        /// Description of a right value.
        why: String,
    },
    /// No engine hashes like this, or nobody outside of it can know.
    #[error("[hash]: {0}")]
    Hash(#[from] kvhash::ProfileError),
    /// The keys would be wrong.
    #[error("key.preset = {preset:?}: {refusal}{}", nearest::hint(refusal))]
    Keys {
        /// Value of `key.preset`.
        preset: String,
        /// Reason of the refusal.
        refusal: Refusal,
    },
}

impl Trouble {
    /// True if the configuration itself is at fault, as far as can be told.
    pub fn is_configured(&self) -> bool {
        matches!(self, Self::Contradiction(contradiction) if contradiction.configured)
    }

    /// True if another engine's word can mend it.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// Derives the naming of blocks from a configuration, as far as `published` agrees with it and
/// fills it.
///
/// # Errors
/// [`Trouble`], whose words name the keys.
pub fn naming(config: &Config, published: &[Published]) -> Result<BlockNaming, Trouble> {
    let known = agree::known(config, published)?;
    let keys = keys::config(config, &known)?;
    let hasher = Hasher::new(&scheme::of(config, &known)?)?;
    let refuse = |refusal| match refusal {
        Refusal::NoRoot => no_root(config),
        refusal => Trouble::Keys { preset: config.key.preset.clone().unwrap_or_default(), refusal },
    };
    let key_config = keys.map(|keys| KeyConfig { hash_bytes: Some(hasher.hash_bytes()), ..keys });
    let keys = key_config.as_ref().map(KeyProfile::new).transpose().map_err(refuse)?;
    if let Some(keys) = &keys {
        fits(config, &known, &hasher, keys)?;
    }
    let engine_hasher = scheme::of_engine(config, &known)?.map(|scheme| Hasher::new(&scheme)).transpose()?;
    let (version, models) = (known.version, known.models);
    Ok(BlockNaming { hasher, engine_hasher, keys, key_config, version, models })
}

/// Keys that begin with a directory, and none is known: which of the two settings it is.
fn no_root(config: &Config) -> Trouble {
    let preset = config.key.preset.as_deref().unwrap_or_default();
    let files = config.key.store == KeyStore::Files;
    let (key, value) = if files { ("key.roots", "") } else { ("key.store", config.key.store.name()) };
    let why = if files {
        format!("the keys of key.preset = {preset:?} begin with a directory of the store: name it")
    } else {
        format!(
            "the keys of key.preset = {preset:?} begin with a directory: set key.store = \"files\" and key.roots, which is not read otherwise"
        )
    };
    Trouble::Value { key, value: value.to_owned(), why }
}

/// Settings of the pool's keys, to compare them with those that are there; `None` when no
/// `key.preset` is set.
///
/// # Errors
/// Fails as [`naming`] does.
pub fn key_config(config: &Config, published: &[Published]) -> Result<Option<KeyConfig>, Trouble> {
    let known = agree::known(config, published)?;
    let hasher = Hasher::new(&scheme::of(config, &known)?)?;
    let keys = keys::config(config, &known)?;
    Ok(keys.map(|keys| KeyConfig { hash_bytes: Some(hasher.hash_bytes()), ..keys }))
}

/// Checks that a pool's keys are made of the hashes, by the release that makes them.
fn fits(config: &Config, known: &Known, hasher: &Hasher, keys: &KeyProfile) -> Result<(), Trouble> {
    let preset = config.key.preset.clone().unwrap_or_default();
    let wrong = |why| Trouble::Value { key: "key.preset", value: preset.clone(), why };
    let (hashed, named) = (hasher.block_tokens().get(), keys.hash_tokens());
    if u32::try_from(hashed) != Ok(named) {
        let why = format!("its keys are made of hashes of {named} tokens, and the engines hash {hashed}");
        return Err(wrong(why));
    }
    // The presets of other connectors are named after their own releases, which engines don't
    // publish.
    let row = Preset::named(&preset).ok().filter(|row| row.connector == Connector::MooncakeStore);
    if let (Some(row), Some(version)) = (row, known.version) {
        let right = Preset::of_version(row.connector, &version.to_string()).ok();
        if let Some(right) = right.filter(|right| right.name != row.name) {
            return Err(wrong(format!(
                "the engines are vLLM {version}, whose keys are those of {}",
                right.name
            )));
        }
    }
    Ok(())
}

/// Refuses a configuration that is wrong whatever the engines say: facts that are missing are
/// assumed to be usual ones.
///
/// # Errors
/// As [`naming`], but for faults that engines' facts could mend.
pub fn refuse_early(config: &Config) -> Result<(), Trouble> {
    naming(config, &[agree::usual(config)]).map(drop)
}
