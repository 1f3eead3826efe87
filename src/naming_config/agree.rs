//! Configuration against facts, and fact against fact.

use std::collections::HashSet;
use std::fmt::Display;

use super::{Published, Trouble, scheme};
use crate::config::{Config, HashAlgo};
use crate::dialect::facts::{CacheFacts, ModelFact};
use crate::endpoint::Endpoint;
use crate::kvhash::VllmVersion;
use crate::kvhash::keys::profile::model_name;
use crate::tokenization::{Facts, Model};

/// A value, and the engine that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedValue {
    /// A key of the configuration, or an engine and where it publishes.
    pub who: String,
    /// Value that was given.
    pub value: String,
}

/// Two that should say the same do not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {} says {}, but {} says {}: they must be the same, or the gateway and the engines hash differently", .one.who, .one.value, .other.who, .other.value)]
pub struct Contradiction {
    /// The fact in question.
    pub what: &'static str,
    /// One of them is the configuration.
    pub configured: bool,
    /// One of them.
    pub one: ReportedValue,
    /// The other value, with its engine.
    pub other: ReportedValue,
}

/// The facts, agreed upon.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) version: Option<VllmVersion>,
    /// An engine's, that is no release known here.
    pub(super) unread_version: Option<String>,
    pub(super) algo: Option<String>,
    pub(super) block_tokens: Option<u32>,
    /// Place where engines publish it, it is not computed.
    pub(super) hash_block_tokens: Option<u32>,
    pub(super) model: Option<String>,
    pub(super) models: Option<Vec<Model>>,
}

/// One fact: what it is called, its key, and where engines publish it.
struct Fact {
    what: &'static str,
    key: &'static str,
    source: &'static str,
}

const VERSION: Fact = Fact { what: "vLLM's release", key: "hash.version", source: "/version" };
const ALGO: Fact = Fact { what: "the hash algorithm", key: "hash.algo", source: "/metrics" };
const BLOCK: Fact = Fact { what: "the block size", key: "hash.block_tokens", source: "/metrics" };
const HASH_BLOCK: Fact = Fact { what: "the hash block size", key: "hash_block_size", source: "/metrics" };
const MODEL: Fact = Fact { what: "the model", key: "key.model", source: "/v1/models" };

/// Everything that is known; an error where two speak differently.
pub(super) fn known(config: &Config, published: &[Published]) -> Result<Known, Trouble> {
    let hash = &config.hash;
    let uses = scheme::uses(config);
    let version = hash.version.as_deref().map(configured_version).transpose()?;
    let algo = (hash.algo != HashAlgo::Auto).then(|| hash.algo.name().to_owned());
    let block = (hash.block_tokens > 0).then(|| hash.block_tokens.to_string());
    let cache = |read: fn(&CacheFacts) -> Option<String>| {
        move |facts: &Facts| facts.cache.as_ref().ok()?.as_ref().and_then(read)
    };
    let asked = |used: bool| if used { published } else { &[] };
    if uses.block {
        ranks_agree(published)?;
    }
    let number = |text: String| text.parse().ok();
    let release = |facts: &Facts| facts.version.as_deref()?.parse().ok();
    let same = VllmVersion::hashes_like;
    let block_tokens = cache(|c| c.block_tokens.map(|b| b.to_string()));
    let hash_block_tokens = cache(|c| c.hash_block_tokens.map(|b| b.to_string()));
    Ok(Known {
        version: VERSION.agreed(version, published, release, |a, b| same(*a, *b))?,
        unread_version: published.iter().find_map(|p| unread(&p.facts)),
        algo: ALGO.agreed(algo, asked(uses.algo), cache(|c| c.hash_algo.clone()), String::eq)?,
        block_tokens: BLOCK.agreed(block, asked(uses.block), block_tokens, String::eq)?.and_then(number),
        hash_block_tokens: HASH_BLOCK
            .agreed(None, asked(uses.algo), hash_block_tokens, String::eq)?
            .and_then(number),
        model: MODEL.agreed(
            config.key.model.clone(),
            asked(uses.model),
            |facts| base(facts)?.root.clone(),
            |a, b| if uses.whole_model { a == b } else { model_name(a) == model_name(b) },
        )?,
        models: (!published.is_empty()).then(|| models(published)),
    })
}

/// An engine that says what most do where the configuration says nothing, for looking at one
/// without any engine.
pub(super) fn usual(config: &Config) -> Published {
    let Config { hash, key, .. } = config;
    // Groups are cut out of blocks of the engines' size.
    let group = key.groups.first().and_then(|text| text.split(':').next()?.trim().parse().ok());
    let cache = CacheFacts {
        block_tokens: (hash.block_tokens == 0).then(|| group.unwrap_or(128)),
        hash_algo: (hash.algo == HashAlgo::Auto).then(|| "sha256".to_owned()),
        ..CacheFacts::default()
    };
    let model = ModelFact {
        id: "model".to_owned(),
        root: key.model.is_none().then(|| "model".to_owned()),
        parent: None,
        max_model_len: None,
    };
    let version = hash.version.is_none().then(|| "0.32.0".to_owned());
    let facts = Facts { version, models: vec![model], cache: Ok(Some(cache)), gaps: Vec::new() };
    Published { engine: Endpoint::new("any", 0), facts }
}

impl Fact {
    /// The one value that the configuration and all engines have, if any of them has one.
    fn agreed<T: Display>(
        &self,
        ours: Option<T>,
        published: &[Published],
        read: impl Fn(&Facts) -> Option<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<Option<T>, Contradiction> {
        let configured = ours.is_some();
        let ours = ours.map(|value| (format!("the configuration ({})", self.key), value));
        let theirs = published
            .iter()
            .filter_map(|p| Some((format!("engine {} ({})", p.engine, self.source), read(&p.facts)?)));
        let mut all = ours.into_iter().chain(theirs);
        let Some((who, value)) = all.next() else { return Ok(None) };
        match all.find(|(_, other)| !same(other, &value)) {
            None => Ok(Some(value)),
            Some((other_who, other)) => Err(Contradiction {
                what: self.what,
                configured,
                one: ReportedValue { who, value: value.to_string() },
                other: ReportedValue { who: other_who, value: other.to_string() },
            }),
        }
    }
}

impl Known {
    /// The engines' release.
    pub(super) fn need_version(&self) -> Result<VllmVersion, Trouble> {
        match (&self.unread_version, self.version) {
            (Some(text), None) => Err(Trouble::Value {
                key: "hash.version",
                value: text.clone(),
                why: "an engine says so, and it is no release known here: set the one that it hashes like"
                    .to_owned(),
            }),
            _ => Self::need(&self.version, VERSION.key),
        }
    }

    /// A fact that there must be.
    pub(super) fn need<T: Clone>(value: &Option<T>, key: &'static str) -> Result<T, Trouble> {
        let facts = [VERSION, ALGO, BLOCK, MODEL];
        let source_name = facts.iter().find(|fact| fact.key == key).map_or("", |fact| fact.source);
        value.clone().ok_or(Trouble::Missing { key, source_name })
    }
}

/// A release that can't be read, such as that of a build from source.
fn unread(facts: &Facts) -> Option<String> {
    facts.version.as_ref().filter(|text| text.parse::<VllmVersion>().is_err()).cloned()
}

/// The ranks of one engine, which it alone can compare.
fn ranks_agree(published: &[Published]) -> Result<(), Contradiction> {
    let differing = published.iter().find_map(|p| Some((p, p.facts.cache.as_ref().err()?)));
    let Some((engine, ranks)) = differing else { return Ok(()) };
    let rank = |which: &str, value: &Option<String>| ReportedValue {
        who: format!("{which} rank of engine {} (/metrics)", engine.engine),
        value: value.clone().unwrap_or_else(|| "nothing".to_owned()),
    };
    let [one, other] = &ranks.values;
    Err(Contradiction {
        what: ranks.label,
        configured: false,
        one: rank("one", one),
        other: rank("another", other),
    })
}

fn configured_version(text: &str) -> Result<VllmVersion, Trouble> {
    text.parse().map_err(|why: crate::kvhash::ProfileError| Trouble::Value {
        key: "hash.version",
        value: text.to_owned(),
        why: why.to_string(),
    })
}

/// The model itself: no adapter.
fn base(facts: &Facts) -> Option<&ModelFact> {
    facts.models.iter().find(|model| model.parent.is_none())
}

/// Names of all engines, each once. An adapter that two engines hold at different paths counts as
/// the first says: on these versions the path is hashed, so its prompts miss on the other.
fn models(published: &[Published]) -> Vec<Model> {
    let mut models: Vec<Model> = Vec::new();
    let mut names: HashSet<&str> = HashSet::new();
    for fact in published.iter().flat_map(|p| &p.facts.models) {
        if names.insert(&fact.id) {
            let adapter_path = fact.parent.is_some().then(|| fact.root.clone().unwrap_or_default());
            models.push(Model { name: fact.id.clone(), adapter_path });
        }
    }
    models
}
