//! Defaults ← files ← environment ← flags: merged as TOML tables, turned into the tree once, every
//! error named.

use super::error::{ConfigError, ConfigErrors, Invalid, Problem};
use super::named_fleets::Fault;
use super::schema::{Schema, secrets};
use super::table::MASK;
use super::{
    Config, FleetProblem, NamedFleet, duration, model_facts, named_fleets, remote, source, warnings,
};
use crate::cli::ServeArgs;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Environment variables by name.
pub type Env = BTreeMap<String, String>;

/// A valid configuration, and where each of its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The merged tree.
    pub config: Config,
    /// Place where each key was set.
    pub origins: Origins,
    /// Values that are valid and most likely not meant, one line each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Each fleet with a configuration of its own, as one that was loaded for it alone.
    pub fn fleets(&self) -> Vec<LoadedFleet> {
        let alone = |fleet: &NamedFleet| LoadedFleet {
            name: fleet.name.clone(),
            loaded: Loaded {
                config: fleet.config.clone(),
                origins: fleet.origins.clone(),
                warnings: Vec::new(),
            },
        };
        if self.config.fleets.is_empty() {
            return vec![LoadedFleet { name: named_fleets::DEFAULT_NAME.to_owned(), loaded: self.clone() }];
        }
        self.config.fleets.iter().map(alone).collect()
    }

    /// The fleet of this name alone; without one, the only fleet.
    ///
    /// # Errors
    /// There is no such fleet, or several and none is named.
    pub fn into_fleet(self, name: Option<&str>) -> Result<Loaded, FleetChoiceError> {
        let mut fleets = self.fleets();
        let at = match name {
            Some(name) => fleets.iter().position(|fleet| fleet.name == name),
            None => (fleets.len() == 1).then_some(0),
        };
        match at {
            Some(at) => Ok(fleets.swap_remove(at).loaded),
            None => {
                let names = fleets.into_iter().map(|fleet| fleet.name).collect();
                Err(FleetChoiceError { said: name.map(str::to_owned), names })
            }
        }
    }
}

/// A fleet that is not named, or not there.
#[derive(Debug, thiserror::Error)]
#[error("--fleet {}: expected one of {}", .said.as_deref().unwrap_or("is missing"), .names.join(", "))]
pub struct FleetChoiceError {
    said: Option<String>,
    names: Vec<String>,
}

/// A fleet as if it were the only one.
#[derive(Clone, Debug)]
pub struct LoadedFleet {
    /// Name of the fleet.
    pub name: String,
    /// Its configuration, and where each value came from.
    pub loaded: Loaded,
}

/// Place where each key was set, by `section.key`; a key that is not in it has its default.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    keys: BTreeMap<String, Origin>,
    files: BTreeSet<PathBuf>,
}

/// The place that set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built-in default value.
    Default,
    /// A file given by `--config`, or by the variable `PD_PROXY_CONFIG`.
    File(PathBuf),
    /// An environment variable, by its name.
    Env(String),
    /// A flag, with its dashes; several where they set one key together.
    Flag(String),
}

/// One setting before it is judged.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Name, as `section.key`.
    pub(crate) key: String,
    /// Value of the key.
    pub(crate) given: Given,
    /// Place where it came from.
    pub(crate) origin: Origin,
}

/// A value as its source gives it.
#[derive(Debug)]
pub(crate) enum Given {
    /// Bare text, to be read by the kind of the key.
    Text(String),
    /// A typed value.
    Value(toml::Value),
}

/// Entries and faults of the sources. Later entries win over earlier ones.
#[derive(Debug, Default)]
pub(crate) struct CollectedEntries {
    pub(crate) entries: Vec<Entry>,
    pub(crate) errors: Vec<ConfigError>,
    /// Names of fleets that have a section, though perhaps no key.
    pub(crate) fleets: Vec<(String, Origin)>,
}

/// The tree in the making.
struct Merge {
    schema: Schema,
    table: toml::Table,
    /// Trees of the fleets, without what they take from the top level.
    fleets: BTreeMap<String, toml::Table>,
    /// Names that no fleet can have, each told once.
    refused_fleets: BTreeSet<String>,
    origins: Origins,
    errors: Vec<ConfigError>,
}

/// The process's variables that the configuration reads, and those that look like them; bytes that
/// are no UTF-8 are replaced.
pub fn process_env() -> Env {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os()
        .map(|(name, text)| (lossy(name), lossy(text)))
        .filter(|(name, _)| source::is_ours(name) || name.starts_with(source::COMMON_PREFIX))
        .collect()
}

impl Config {
    /// The files that [`Config::load`] reads, in their order: those of the variable
    /// `PD_PROXY_CONFIG`, then those of `--config`.
    pub fn files(args: &ServeArgs, env: &Env) -> Vec<PathBuf> {
        source::files(&args.config, env)
    }

    /// Merges defaults, what `env` says for want of anything else, the files in their order, the
    /// rest of `env` and flags, and validates the result.
    pub fn load(args: &ServeArgs, env: &Env) -> Result<Loaded, ConfigErrors> {
        let schema = Schema::of_defaults();
        let mut found = CollectedEntries::default();
        source::defaults(env, &mut found);
        for path in Config::files(args, env) {
            source::file(&path, &schema, &mut found);
        }
        source::environment(env, &mut found);
        args.overlay(&mut found);
        args.follow_pool(&mut found);

        let mut merge = Merge {
            schema,
            table: toml::Table::new(),
            fleets: BTreeMap::new(),
            refused_fleets: BTreeSet::new(),
            origins: Origins::default(),
            errors: found.errors,
        };
        for (name, origin) in found.fleets {
            merge.begin_fleet(&name, &origin);
        }
        for entry in found.entries {
            merge.put(entry);
        }
        merge.finish(env)
    }
}

impl Merge {
    /// Makes the tree of a fleet, unless it has one or can have none.
    fn begin_fleet(&mut self, name: &str, origin: &Origin) {
        match named_fleets::name_fault(name) {
            None => drop(self.fleets.entry(name.to_owned()).or_default()),
            Some(problem) if self.refused_fleets.insert(name.to_owned()) => {
                self.errors.push(ConfigError { origin: origin.clone(), problem });
            }
            Some(_) => {}
        }
    }

    /// Puts one entry in its place, or says why it has none.
    fn put(&mut self, entry: Entry) {
        let Entry { key, given, origin } = entry;
        let in_fleet =
            named_fleets::split_key(&key).map(|(fleet, inner)| (fleet.to_owned(), inner.to_owned()));
        if let Some((fleet, inner)) = &in_fleet {
            self.begin_fleet(fleet, &origin);
            if self.refused_fleets.contains(fleet) {
                return;
            }
            if let Some(problem) = named_fleets::shared_fault(&key, inner) {
                return self.errors.push(ConfigError { origin, problem });
            }
        }
        let inner = in_fleet.as_ref().map_or(key.as_str(), |(_, inner)| inner);
        let (Some(kind), Some((section, name))) = (self.schema.kind(&key), inner.rsplit_once('.')) else {
            let problem = if self.schema.is_section(&key) {
                Problem::NotASection { section: key }
            } else {
                removed::key(inner).unwrap_or_else(|| {
                    let nearest = named_fleets::meant_fleet(&key, &given);
                    let nearest = nearest.or_else(|| self.schema.nearest_to(&key));
                    Problem::UnknownKey { nearest, key }
                })
            };
            return self.errors.push(ConfigError { origin, problem });
        };
        let value = match given {
            Given::Text(text) => kind.read(&text),
            Given::Value(value) => value,
        };
        let value = match in_ms(&key, value) {
            Ok(value) => value,
            Err(problem) => return self.errors.push(ConfigError { origin, problem }),
        };
        if let Some(problem) = removed::value(inner, &value) {
            return self.errors.push(ConfigError { origin, problem });
        }
        // Serde stops at its first error; trying each leaf alone finds them all, with their origin.
        if let Err(expected) = try_leaf(section, name, &value) {
            let shown = if secrets().iter().any(|(secret, _)| *secret == inner) {
                MASK.to_owned()
            } else {
                value.to_string()
            };
            let problem = Problem::WrongType { key, value: shown, expected };
            return self.errors.push(ConfigError { origin, problem });
        }
        let mut table = Some(match &in_fleet {
            Some((fleet, _)) => self.fleets.entry(fleet.clone()).or_default(),
            None => &mut self.table,
        });
        for part in section.split('.') {
            let inner = table.map(|table| table.entry(part).or_insert_with(|| toml::Table::new().into()));
            table = inner.and_then(toml::Value::as_table_mut);
        }
        if let Some(table) = table {
            table.insert(name.to_owned(), value);
        }
        if let Origin::File(path) = &origin {
            self.origins.files.insert(path.clone());
        }
        self.origins.keys.insert(key, origin);
    }

    fn finish(self, env: &Env) -> Result<Loaded, ConfigErrors> {
        let Self { table, fleets, mut origins, mut errors, .. } = self;
        let mut conflicts = Vec::new();
        let mut named = Vec::new();
        let known: Vec<String> = fleets.keys().cloned().collect();
        let mut unknown = Vec::new();
        for (name, own) in fleets {
            let own_keys = origins.own_keys(&name);
            if let Some(origin) = origins.without_engines(&name, &own_keys).filter(|_| known.len() > 1) {
                unknown.push((name, origin));
                continue;
            }
            let mut origins = origins.of_fleet(&name);
            let mut top = table.clone();
            remote::without_other_key(&mut top, &own);
            if remote::is_remote(&own) {
                top = remote::taken_from_top(&top);
                origins.keys.retain(|key, _| remote::is_taken(key) || own_keys.contains(key));
            }
            match settled(named_fleets::merged(&top, &own), &mut origins, true, &mut conflicts) {
                Ok((config, fault)) => {
                    let origin = fault.as_ref().map(|(key, _)| origins.of(key).clone());
                    let fault = fault.map(|(key, problem)| Fault { fleet: Some(name.clone()), key, problem });
                    let faults = origin.zip(fault);
                    errors.extend(
                        faults.map(|(origin, fault)| ConfigError { origin, problem: fault.into_problem() }),
                    );
                    named.push(NamedFleet { name, config, origins, own_keys });
                }
                Err(error) => errors.push(*error),
            }
        }
        let mut config = match settled(table, &mut origins, !named.is_empty(), &mut conflicts) {
            Ok((config, fault)) => {
                let fault = fault.filter(|_| named.is_empty());
                let error =
                    |(key, problem): Invalid| ConfigError { origin: origins.of(key).clone(), problem };
                errors.extend(fault.map(error));
                config
            }
            Err(error) => {
                errors.push(*error);
                return Err(ConfigErrors(errors));
            }
        };
        config.fleets = named;
        errors.extend(unknown.into_iter().map(|(fleet, origin)| {
            let known: Vec<&str> = config.fleets.iter().map(|it| it.name.as_str()).collect();
            ConfigError {
                origin,
                problem: FleetProblem::NoSuchFleet { fleet, known: known.join(", ") }.into(),
            }
        }));
        let faults = config.misplaced(&origins).into_iter().chain(config.faults());
        let faults: Vec<ConfigError> = faults
            .map(|fault| {
                let fleet = config.fleets.iter().find(|it| Some(&it.name) == fault.fleet.as_ref());
                let origin = fleet.map_or(&origins, |fleet| &fleet.origins).of(fault.key).clone();
                ConfigError { origin, problem: fault.into_problem() }
            })
            .collect();
        errors.extend(faults);
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let mut warnings = warnings::find(&config, &origins, env);
        warnings.extend(conflicts);
        Ok(Loaded { config, origins, warnings })
    }
}

/// A tree as a configuration, with what follows from its values: engines that nobody named, and
/// facts of the model; beside it the fault of a file with a key. `several`: no default engines, as
/// each fleet names its own.
fn settled(
    table: toml::Table,
    origins: &mut Origins,
    several: bool,
    conflicts: &mut Vec<String>,
) -> Result<(Config, Option<Invalid>), Box<ConfigError>> {
    // Each leaf was tried before, so that no error is reached; it is still an answer.
    let mut config = Config::deserialize(toml::Value::Table(table)).map_err(|error| {
        let message = error.message().to_owned();
        Box::new(ConfigError { origin: Origin::Default, problem: Problem::Misfit { message } })
    })?;
    // The default engines are for who says nothing; who has them looked for has said where they
    // are.
    let [prefill, decode] = config.discovery.looks_for();
    let unsaid = |key| *origins.of(key) == Origin::Default;
    if (prefill || several) && unsaid("fleet.prefill") {
        config.fleet.prefill.clear();
    }
    if (decode || several) && unsaid("fleet.decode") {
        config.fleet.decode.clear();
    }
    conflicts.extend(model_facts::fill(&mut config, origins));
    config.settle_remote();
    let fault = config.fill_key(origins);
    Ok((config, fault))
}

/// The value of a key in milliseconds, of a time with a unit as well; other keys' as it is.
fn in_ms(key: &str, value: toml::Value) -> Result<toml::Value, Problem> {
    match value {
        toml::Value::String(text) if key.ends_with("_ms") => {
            duration::value(&text).ok_or_else(|| Problem::NotATime { key: key.to_owned(), text })
        }
        other => Ok(other),
    }
}

/// Checks that a tree can hold this value; the error says what it expects there.
fn try_leaf(section: &str, name: &str, value: &toml::Value) -> Result<(), String> {
    let mut tree = toml::Table::from_iter([(name.to_owned(), value.clone())]);
    for part in section.rsplit('.') {
        tree = toml::Table::from_iter([(part.to_owned(), toml::Value::Table(tree))]);
    }
    Config::deserialize(toml::Value::Table(tree)).map(drop).map_err(|error| {
        let message = error.message();
        let expected = message.rsplit_once("expected ").map_or(message, |(_, expected)| expected);
        in_words(expected.lines().next().unwrap_or(expected).trim()).to_owned()
    })
}

/// Serde's names of Rust types in words.
fn in_words(expected: &str) -> &str {
    match expected {
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "f64" => "a number",
        "a sequence" => "a list of strings",
        other => other,
    }
}

impl Origins {
    /// Place where a key was set.
    pub fn of(&self, key: &str) -> &Origin {
        self.keys.get(key).unwrap_or(&Origin::Default)
    }

    /// Those of a fleet: what is set in it, and at the top level.
    fn of_fleet(&self, name: &str) -> Origins {
        let mut keys = self.keys.clone();
        for (key, origin) in &self.keys {
            if let Some((_, inner)) = named_fleets::split_key(key).filter(|(fleet, _)| *fleet == name) {
                keys.insert(inner.to_owned(), origin.clone());
            }
        }
        keys.retain(|key, _| named_fleets::split_key(key).is_none());
        Origins { keys, files: self.files.clone() }
    }

    /// Keys inside the fleet of this name that are set there.
    fn own_keys(&self, name: &str) -> Vec<String> {
        let inner = |key: &String| {
            let (fleet, inner) = named_fleets::split_key(key)?;
            (fleet == name).then(|| inner.to_owned())
        };
        self.keys.keys().filter_map(inner).collect()
    }

    /// Place where a key of a fleet was set that no file names and that has no engines: its name is
    /// a mistake.
    fn without_engines(&self, name: &str, own_keys: &[String]) -> Option<Origin> {
        let names_engines =
            |key: &String| ["fleet.", "discovery."].iter().any(|section| key.starts_with(section));
        let origins = own_keys.iter().map(|key| self.of(&format!("fleets.{name}.{key}")));
        let is_file = |origin: &&Origin| matches!(origin, Origin::File(_));
        let is_mistake = !own_keys.iter().any(names_engines) && !origins.clone().any(|it| is_file(&it));
        origins.into_iter().next().filter(|_| is_mistake).cloned()
    }

    /// A key that nothing set has been filled from this file, which is not followed.
    pub(super) fn filled(&mut self, key: &str, file: &Path) {
        self.keys.insert(key.to_owned(), Origin::File(file.to_owned()));
    }

    /// The files that set anything, whether or not another place has the last word on it.
    pub fn files(&self) -> &BTreeSet<PathBuf> {
        &self.files
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

mod removed;
#[cfg(test)]
mod tests;
