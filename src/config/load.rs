//! Defaults ← files ← environment ← flags: merged as TOML tables, turned into the tree once, every
//! error named.

use super::error::{ConfigError, ConfigErrors, Problem};
use super::schema::{Schema, secrets};
use super::table::MASK;
use super::{Config, duration, model_facts, source, warnings};
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
}

/// The tree in the making.
struct Merge {
    schema: Schema,
    table: toml::Table,
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

        let mut merge =
            Merge { schema, table: toml::Table::new(), origins: Origins::default(), errors: found.errors };
        for entry in found.entries {
            merge.put(entry);
        }
        merge.finish(env)
    }
}

impl Merge {
    /// Puts one entry in its place, or says why it has none.
    fn put(&mut self, entry: Entry) {
        let Entry { key, given, origin } = entry;
        let (Some(kind), Some((section, name))) = (self.schema.kind(&key), key.rsplit_once('.')) else {
            let problem = if self.schema.is_section(&key) {
                Problem::NotASection { section: key }
            } else {
                removed::key(&key)
                    .unwrap_or_else(|| Problem::UnknownKey { nearest: self.schema.nearest(&key), key })
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
        if let Some(problem) = removed::value(&key, &value) {
            return self.errors.push(ConfigError { origin, problem });
        }
        // Serde stops at its first error; trying each leaf alone finds them all, with their origin.
        if let Err(expected) = try_leaf(section, name, &value) {
            let shown = if secrets().iter().any(|(secret, _)| *secret == key) {
                MASK.to_owned()
            } else {
                value.to_string()
            };
            let problem = Problem::WrongType { key, value: shown, expected };
            return self.errors.push(ConfigError { origin, problem });
        }
        let mut table = Some(&mut self.table);
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
        let Self { table, mut origins, mut errors, .. } = self;
        match Config::deserialize(toml::Value::Table(table)) {
            Ok(mut config) => {
                // The default engines are for who says nothing; who has them looked for has said
                // where they are.
                let [prefill, decode] = config.discovery.looks_for();
                let unsaid = |key| *origins.of(key) == Origin::Default;
                if prefill && unsaid("fleet.prefill") {
                    config.fleet.prefill.clear();
                }
                if decode && unsaid("fleet.decode") {
                    config.fleet.decode.clear();
                }
                let conflicts = model_facts::fill(&mut config, &mut origins);
                let invalid = config.validate();
                errors.extend(
                    invalid
                        .into_iter()
                        .map(|(key, problem)| ConfigError { origin: origins.of(key).clone(), problem }),
                );
                if !errors.is_empty() {
                    return Err(ConfigErrors(errors));
                }
                let mut warnings = warnings::find(&config, &origins, env);
                warnings.extend(conflicts);
                Ok(Loaded { config, origins, warnings })
            }
            // Each leaf was tried before, so this is not reached; it is still an answer.
            Err(error) => {
                let message = error.message().to_owned();
                errors.push(ConfigError { origin: Origin::Default, problem: Problem::Misfit { message } });
                Err(ConfigErrors(errors))
            }
        }
    }
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
