//! What the configuration and the engines together say about the blocks of a prompt.
//!
//! The configuration wins where the engines say nothing, the engines fill what it leaves out, and where both speak and
//! differ nobody wins: that is an error which names both, because a wrong hash looks like an empty pool.

mod agree;
mod keys;
mod scheme;
#[cfg(test)]
mod tests;

use crate::config::Config;
use crate::dialect::facts::Facts;
use crate::kvhash::keys::{KeyProfile, Refusal};
use crate::kvhash::scheme::Hasher;
use crate::kvhash::{self, VllmVersion};

pub use agree::{Contradiction, Said};

/// What one engine publishes, and its name.
#[derive(Clone, Debug)]
pub struct Published {
    /// `host:port`.
    pub engine: String,
    /// What it said.
    pub facts: Facts,
}

/// How the blocks of a prompt are named.
#[derive(Debug)]
pub struct Profile {
    /// Tokens → block hashes.
    pub hasher: Hasher,
    /// Block hashes → keys of the pool; None when no pool is configured.
    pub keys: Option<KeyProfile>,
    /// The engines' release, where it matters.
    pub version: Option<VllmVersion>,
    /// Models by the names that requests carry.
    pub models: Vec<Model>,
}

/// A model, or an adapter, by the name that requests carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name.
    pub name: String,
    /// The adapter's path, for LoRA.
    pub adapter_path: Option<String>,
}

/// Why there is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Neither configured nor published; may come with the next engine.
    #[error("{key} is not set, and no engine says it ({source_name})")]
    Missing {
        /// The key of the configuration.
        key: &'static str,
        /// Where engines publish it.
        source_name: &'static str,
    },
    /// Two that should say the same do not.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// A value that has no meaning.
    #[error("{key} = {value:?}: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        why: String,
    },
    /// No engine hashes like this, or nobody outside of it can know.
    #[error("[hash]: {0}")]
    Hash(#[from] kvhash::ProfileError),
    /// The keys would be wrong.
    #[error("[key] {preset}: {refusal}")]
    Keys {
        /// `key.preset`.
        preset: String,
        /// The reason.
        refusal: Refusal,
    },
}

impl Trouble {
    /// Whether another engine's word can mend it.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

impl Profile {
    /// The profile of a configuration, as far as `published` agrees with it and fills it.
    ///
    /// # Errors
    /// [`Trouble`], whose words name the keys.
    pub fn new(config: &Config, published: &[Published]) -> Result<Self, Trouble> {
        let known = agree::known(config, published)?;
        let keys = keys::config(config, &known)?;
        let scheme = scheme::of(config, &known)?;
        let hasher = Hasher::new(&scheme)?;
        let refuse = |refusal| Trouble::Keys { preset: config.key.preset.clone().unwrap_or_default(), refusal };
        let keys = keys.map(|keys| KeyProfile::new(&keys).map_err(refuse)).transpose()?;
        Ok(Self { hasher, keys, version: known.version, models: known.models })
    }

    /// What is wrong with a configuration whatever the engines say: what is missing is taken to be something usual.
    ///
    /// # Errors
    /// As [`Profile::new`], but for [`Trouble::Missing`].
    pub fn refuse_early(config: &Config) -> Result<(), Trouble> {
        match Self::new(config, &[agree::usual()]) {
            // The usual is ours, not theirs.
            Ok(_) | Err(Trouble::Contradiction(_) | Trouble::Missing { .. }) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}
