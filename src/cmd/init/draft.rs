//! Settings of a new configuration, drawn from what engines and a pool said. The module is pure.

use std::path::PathBuf;

use super::described::{Connector, Description, ToldLease};
use crate::config::report::quoted;
use crate::fleet::Role;
use crate::tokenization::Facts;

/// Facts that were found out, and keys that were given on the command line.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Engines that answered, in the order in which they are configured.
    pub(super) engines: Vec<FoundEngine>,
    /// Keys that a flag, a file or a variable set, each with its value in TOML.
    pub(super) given: Vec<GivenKey>,
    /// A pool is given.
    pub(super) has_pool: bool,
    /// The directory of the model's files, if engines named one that is here.
    pub(super) model_dir: Option<PathBuf>,
    /// Outcome of the trial of hash seeds.
    pub(super) seed: SeedTrial,
}

/// A key that was set by the operator.
#[derive(Debug)]
pub(super) struct GivenKey {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) origin: String,
    /// It stays where it was given.
    pub(super) is_secret: bool,
}

/// An engine that answered.
#[derive(Debug)]
pub(super) struct FoundEngine {
    pub(super) role: Role,
    pub(super) facts: Facts,
    /// Name of the dialect that follows from its signs; prefillers alone have one.
    pub(super) dialect: Option<&'static str>,
    /// Its own description, of engines in development mode.
    pub(super) description: Option<Description>,
}

/// Outcome of storing prompts and looking them up under the names that each seed gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SeedTrial {
    /// There is no pool, the seed is given, or no prompt could be stored.
    #[default]
    NotMade,
    /// The prompt was found; `None` = by an unset seed.
    Found(Option<&'static str>),
    /// It was found by none of them.
    NoneFits,
}

/// One key of the new configuration.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: &'static str,
    /// Value in TOML.
    pub(super) value: String,
    pub(super) state: State,
    /// Reason for the value, or the question.
    pub(super) why: String,
}

/// Standing of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is set.
    Set,
    /// It is left to the gateway, which asks the engines at each start: a comment.
    Asked,
    /// It could not be found out: a comment with an example.
    Question,
}

/// All settings, each key once: a value that the operator gave goes before one that was found out.
pub(super) fn draw(findings: &Findings) -> Vec<Setting> {
    let mut settings: Vec<Setting> = findings
        .given
        .iter()
        .map(|given| match given.is_secret {
            false => set(given.key, given.value.clone(), format!("Given by {}.", given.origin)),
            true => {
                asked(given.key, given.value.clone(), format!("Given by {}: keep it there.", given.origin))
            }
        })
        .collect();
    let drawn = [dialect, lease, model, tokens, hashes, seed, sizes, pool];
    for setting in drawn.into_iter().flat_map(|of_section| of_section(findings)) {
        if settings.iter().all(|one| one.key != setting.key) {
            settings.push(setting);
        }
    }
    settings
}

fn set(key: &'static str, value: String, why: String) -> Setting {
    Setting { key, value, state: State::Set, why }
}

fn asked(key: &'static str, value: String, why: String) -> Setting {
    Setting { key, value, state: State::Asked, why }
}

fn question(key: &'static str, value: &str, why: &str) -> Setting {
    Setting { key, value: value.to_owned(), state: State::Question, why: why.to_owned() }
}

impl Findings {
    fn prefillers(&self) -> impl Iterator<Item = &FoundEngine> {
        self.engines.iter().filter(|engine| engine.role == Role::Prefill)
    }

    /// Connectors that the prefillers tell of.
    fn connectors(&self) -> impl Iterator<Item = &Connector> {
        let told = self.prefillers().filter_map(|engine| engine.description.as_ref());
        told.flat_map(|told| &told.connectors)
    }
}

/// The value that all engines which know one agree on; `Err` has two that differ.
fn agreed<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, [T; 2]> {
    let Some(first) = values.next() else { return Ok(None) };
    match values.find(|other| *other != first) {
        Some(other) => Err([first, other]),
        None => Ok(Some(first)),
    }
}

/// Parts of the names of connectors that only a description shows, each with its dialect.
const UNSEEN: [(&str, &str); 2] = [("Layerwise", "layerwise"), ("MoRIIO", "moriio")];

fn dialect(findings: &Findings) -> Vec<Setting> {
    const KEY: &str = "dialect.name";
    for (part, dialect) in UNSEEN {
        if let Some(connector) = findings.connectors().find(|one| one.name.contains(part)) {
            let why = format!("The prefillers have {}, which no other answer shows.", connector.name);
            return vec![set(KEY, quoted(dialect), why)];
        }
    }
    let told = match agreed(findings.prefillers().filter_map(|engine| engine.dialect)) {
        Ok(told) => told,
        Err([one, other]) => {
            let why = format!(
                "Do all prefillers have one connector? Some speak {one}, others {other}: a fleet has one dialect."
            );
            return vec![question(KEY, &quoted(one), &why)];
        }
    };
    let Some(told) = told else {
        return vec![question(KEY, &quoted("auto"), "Which connector have the prefillers? They do not say.")];
    };
    let connectors: Vec<&str> = findings.connectors().map(|one| one.name.as_str()).collect();
    match (told, connectors.is_empty()) {
        (_, false) => {
            vec![asked(KEY, quoted(told), format!("The prefillers have {}.", connectors.join(" and ")))]
        }
        // All connectors of vLLM without a bootstrap server look like this one.
        ("kv_transfer", true) => {
            let why = "Which connector have the prefillers? vLLM does not say. \"auto\" is right for NIXL and for pools; run init \
                       again with --layerwise if it is layerwise, and set \"moriio\" if it is MoRIIOConnector, which end by \
                       requests of others. A MooncakeConnector needs dialect.bootstrap_port, where that is not 8998.";
            vec![question(KEY, &quoted("auto"), why)]
        }
        (_, true) => vec![asked(KEY, quoted(told), "By the prefillers' signs.".to_owned())],
    }
}

/// The time for which prefillers keep KV: the shortest that is told.
fn lease(findings: &Findings) -> Vec<Setting> {
    const KEY: &str = "engine.lease_ms";
    let mut leases_ms = Vec::new();
    for connector in findings.connectors() {
        match &connector.lease {
            None => {}
            Some(ToldLease::Ms(ms)) => leases_ms.push(*ms),
            Some(ToldLease::NoTime(value)) => {
                let why = format!(
                    "How long is KV kept for decoders? kv_lease_duration of a prefiller's {} is {value}, so that it is gone \
                     before one fetches it: start it with seconds above 0, as 30, and set that here.",
                    connector.name
                );
                return vec![question(KEY, "30_000", &why)];
            }
        }
    }
    if let Some(lease_ms) = leases_ms.into_iter().min() {
        return vec![set(KEY, lease_ms.to_string(), "The prefillers' kv_lease_duration.".to_owned())];
    }
    // Of SGLang's engines, and of connectors that are told without one, it is not asked for.
    let is_open = |engine: &FoundEngine| engine.description.is_none() && engine.dialect != Some("sglang");
    if !findings.prefillers().any(is_open) {
        return Vec::new();
    }
    let why = "Were prefillers started with another kv_lease_duration (in kv_connector_extra_config) than 30 seconds?";
    vec![question(KEY, "30_000", why)]
}

fn model(findings: &Findings) -> Vec<Setting> {
    const KEY: &str = "fleet.model";
    let base = |engine: &FoundEngine| {
        engine.facts.models.iter().find(|model| model.parent.is_none()).map(|model| model.id.clone())
    };
    match agreed(findings.engines.iter().filter_map(base)) {
        Ok(Some(name)) => {
            let why = "Set it to refuse requests for other names here; unset, the engines refuse them.";
            vec![asked(KEY, quoted(&name), why.to_owned())]
        }
        Ok(None) => vec![question(KEY, &quoted("name"), "Which model is served? No engine lists one.")],
        Err([one, other]) => {
            let why = format!(
                "Why do engines serve {one:?} and {other:?}? A request names one model for both of its engines."
            );
            vec![question(KEY, &quoted(&one), &why)]
        }
    }
}

fn tokens(findings: &Findings) -> Vec<Setting> {
    const KEY: &str = "prompt.model_path";
    if let Some(dir) = &findings.model_dir {
        let why = "The engines were started with this directory, and its tokenizer is here.";
        return vec![set(KEY, quoted(&dir.to_string_lossy()), why.to_owned())];
    }
    let root = |engine: &FoundEngine| engine.facts.models.iter().find_map(|model| model.root.clone());
    let root = findings.engines.iter().find_map(root).unwrap_or_else(|| "/models/name".to_owned());
    let why = "Is there a directory with the model's tokenizer files on this machine? With it prompts are tokenised here; \
               without it an engine is asked about each prompt, if a pool or KV events need tokens.";
    vec![question(KEY, &quoted(&root), why)]
}

fn hashes(findings: &Findings) -> Vec<Setting> {
    let mut settings = Vec::new();
    let cache = |engine: &FoundEngine| engine.facts.cache.clone().ok().flatten();
    let all = || findings.prefillers().filter_map(cache);
    match agreed(all().filter_map(|cache| cache.block_tokens)) {
        Ok(Some(tokens)) => {
            let why = "The prefillers' --block-size.".to_owned();
            settings.push(asked("hash.block_tokens", tokens.to_string(), why));
        }
        Ok(None) => {
            let why = "What is the prefillers' --block-size? Their /metrics do not tell.";
            settings.push(question("hash.block_tokens", "16", why));
        }
        Err([one, other]) => {
            let why = format!(
                "Why have prefillers blocks of {one} and of {other} tokens? Start all with one --block-size."
            );
            settings.push(question("hash.block_tokens", &one.to_string(), &why));
        }
    }
    if let Ok(Some(algo)) = agreed(all().filter_map(|cache| cache.hash_algo)) {
        settings.push(asked("hash.algo", quoted(&algo), "The prefillers' hash of blocks.".to_owned()));
    }
    if let Ok(Some(version)) = agreed(findings.prefillers().filter_map(|engine| engine.facts.version.clone()))
    {
        settings.push(asked("hash.version", quoted(&version), "The prefillers' release.".to_owned()));
    }
    settings
}

fn seed(findings: &Findings) -> Vec<Setting> {
    const KEY: &str = "hash.seed";
    match &findings.seed {
        SeedTrial::Found(Some(seed)) => {
            let why = "A prompt that a prefiller stored was found in the pool under the names that this PYTHONHASHSEED gives.";
            vec![set(KEY, quoted(seed), why.to_owned())]
        }
        SeedTrial::Found(None) => {
            let why = "A prompt that a prefiller stored was found in the pool without a PYTHONHASHSEED: leave it unset.";
            vec![asked(KEY, quoted("0"), why.to_owned())]
        }
        SeedTrial::NoneFits => {
            let why = "What is PYTHONHASHSEED in the environment of the engines? A prompt that a prefiller stored was not found \
                       in the pool under the names of an unset one, nor of 0.";
            vec![question(KEY, &quoted("0"), why)]
        }
        SeedTrial::NotMade if findings.has_pool => {
            let why = "What is PYTHONHASHSEED in the environment of the engines? All need the same, or none has one.";
            vec![question(KEY, &quoted("0"), why)]
        }
        SeedTrial::NotMade => Vec::new(),
    }
}

/// Sizes of the prefillers' parallelism, which the keys of a pool contain.
fn sizes(findings: &Findings) -> Vec<Setting> {
    let told = || findings.prefillers().filter_map(|engine| engine.description.as_ref());
    let sizes = match agreed(told().map(|told| told.sizes)) {
        Ok(Some(sizes)) => sizes,
        Ok(None) if findings.has_pool => {
            let why = "What is the prefillers' --tensor-parallel-size? Unset, it is taken to be 1.";
            return vec![question("key.tp", "1", why)];
        }
        Ok(None) => return Vec::new(),
        Err(_) => {
            let why = "Which prefillers fill the pool? They differ in the sizes of their parallelism.";
            return vec![question("key.tp", "1", why)];
        }
    };
    [
        ("key.tp", sizes.tensor, "The prefillers' --tensor-parallel-size."),
        ("key.pp", sizes.pipeline, "The prefillers' --pipeline-parallel-size."),
        ("key.pcp", sizes.prefill_context, "The prefillers' --prefill-context-parallel-size."),
        ("key.dcp", sizes.decode_context, "The prefillers' --decode-context-parallel-size."),
    ]
    .into_iter()
    .filter_map(|(key, size, why)| Some(set(key, size.filter(|size| *size > 1)?.to_string(), why.to_owned())))
    .collect()
}

/// The pool, if none is given.
fn pool(findings: &Findings) -> Vec<Setting> {
    const KEY: &str = "pool.kind";
    if findings.has_pool {
        return Vec::new();
    }
    if let Some((one, form)) = findings.connectors().find_map(|one| Some((one, pool_form(one)?))) {
        let why = format!(
            "Where is the pool of the prefillers' {}? Run init again with --pool {}: it sets this and the keys that follow.",
            one.name, form.url
        );
        return vec![question(KEY, &quoted(form.kind), &why)];
    }
    let described = findings.prefillers().all(|engine| engine.description.is_some());
    if described && findings.connectors().next().is_some() {
        return Vec::new();
    }
    let why = "Do the engines share a pool? Run init again with its --pool URL: mooncake://HOST:50051?admin=9003, \
               memcache://, ems://, ucm:///DIR or lmcache://. Without one, prompts go where their beginning was last.";
    vec![question(KEY, &quoted("mooncake"), why)]
}

/// A kind of pool, and an example of its URL.
struct PoolForm {
    kind: &'static str,
    url: &'static str,
}

/// The pool that a connector writes to; `None` if it writes to none.
fn pool_form(connector: &Connector) -> Option<PoolForm> {
    let backend = connector.backend.as_deref().unwrap_or_default();
    let form = |kind, url| Some(PoolForm { kind, url });
    match connector.name.as_str() {
        "AscendStoreConnector" if backend.eq_ignore_ascii_case("memcache") => {
            form("memcache", "memcache://HOST:5000")
        }
        "MooncakeStoreConnector" | "MooncakeConnectorStoreV1" | "AscendStoreConnector" => {
            form("mooncake", "mooncake://HOST:50051?admin=9003")
        }
        "EmsStoreConnector" => form("ems", "ems://HOST:60687"),
        "UCMConnector" => form("ucm", "ucm:///DIR"),
        "LMCacheMPConnector" => form("lmcache_coordinator", "lmcache+mp://HOST:9300"),
        name if name.starts_with("LMCache") => form("lmcache_controller", "lmcache://HOST:9000"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
