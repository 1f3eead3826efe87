//! Place where settings come from besides flags: files and the environment. Both yield entries and
//! problems, never a tree.

use super::error::{ConfigError, Problem};
use super::load::{CollectedEntries, Entry, Env, Given, Origin};
use super::named_fleets;
use super::schema::{Schema, secrets};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest file that is read, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Prefix of the variables that set a key; `__` also stands between section and key.
pub(super) const PREFIX: &str = "PD_PROXY__";
/// Prefix of all variables of the gateway, also of those that nothing reads.
pub(super) const COMMON_PREFIX: &str = "PD_PROXY_";
/// The variable that names files, with commas between several: every command reads them, also one
/// whose flags nobody can change, as an image's health check.
pub(super) const FILES: &str = "PD_PROXY_CONFIG";
/// The variable with the host to listen at where nothing else says one: an image knows better than
/// the default, and files know better than the image.
pub(super) const DEFAULT_HOST: &str = "PD_PROXY_DEFAULT_HOST";

/// Reader of a file's sections.
struct Reader<'a> {
    schema: &'a Schema,
    origin: Origin,
}

/// Reads one TOML file.
pub(crate) fn file(path: &Path, schema: &Schema, found: &mut CollectedEntries) {
    let reader = Reader { schema, origin: Origin::File(path.to_owned()) };
    match read(path).and_then(|text| parse(&text)) {
        Err(problem) => found.errors.push(ConfigError { origin: reader.origin, problem }),
        Ok(sections) => {
            for (section, value) in sections {
                reader.section(section, value, found);
            }
        }
    }
}

/// The files to read, in their order: those that a variable names, then those that are `given`.
pub(crate) fn files(given: &[PathBuf], env: &Env) -> Vec<PathBuf> {
    let named = said(env, FILES).unwrap_or_default().split(',').map(str::trim);
    named.filter(|path| !path.is_empty()).map(PathBuf::from).chain(given.iter().cloned()).collect()
}

/// Picks the variable that is weaker than any file.
pub(crate) fn defaults(env: &Env, found: &mut CollectedEntries) {
    let host = said(env, DEFAULT_HOST);
    found.entries.extend(host.map(|text| entry("server.host".to_owned(), DEFAULT_HOST, text)));
}

/// Picks the variables that set a key.
pub(crate) fn environment(env: &Env, found: &mut CollectedEntries) {
    for (key, name) in secrets() {
        found.entries.extend(said(env, name).map(|text| entry(key.to_owned(), name, text)));
    }
    for (name, text) in env.iter().filter(|(_, text)| !text.is_empty()) {
        if let Some(key) = name.strip_prefix(PREFIX) {
            found.entries.push(entry(key.to_ascii_lowercase().replace("__", "."), name, text));
        }
    }
}

/// True if a variable is one that is read here.
pub(crate) fn is_ours(name: &str) -> bool {
    let other = [FILES, DEFAULT_HOST].contains(&name);
    other || name.starts_with(PREFIX) || secrets().iter().any(|(_, variable)| *variable == name)
}

/// Value of a variable. An empty one counts as not set, as it does in most shells' `${X:-…}`.
fn said<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.get(name).map(String::as_str).filter(|text| !text.is_empty())
}

fn entry(key: String, name: &str, text: &str) -> Entry {
    Entry { key, given: Given::Text(text.to_owned()), origin: Origin::Env(name.to_owned()) }
}

impl Reader<'_> {
    /// Finds the keys of a section, and of sections in it.
    fn section(&self, section: String, value: toml::Value, found: &mut CollectedEntries) {
        match value {
            toml::Value::Table(keys) => {
                let name = named_fleets::fleet_name(&section);
                found.fleets.extend(name.map(|name| (name.to_owned(), self.origin.clone())));
                for (key, value) in keys {
                    let key = format!("{section}.{key}");
                    if value.is_table() && self.schema.is_section(&key) {
                        self.section(key, value, found);
                    } else {
                        found.entries.push(Entry {
                            key,
                            given: Given::Value(value),
                            origin: self.origin.clone(),
                        });
                    }
                }
            }
            _ => {
                let problem = if self.schema.is_section(&section) {
                    Problem::NotASection { section }
                } else {
                    Problem::UnknownKey { nearest: self.schema.nearest_to(&section), key: section }
                };
                found.errors.push(ConfigError { origin: self.origin.clone(), problem });
            }
        }
    }
}

fn read(path: &Path) -> Result<String, Problem> {
    let mut text = String::new();
    let file = File::open(path).map_err(Problem::Unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(Problem::Unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(Problem::TooLong { limit_bytes: MAX_FILE_BYTES });
    }
    Ok(text)
}

fn parse(text: &str) -> Result<toml::Table, Problem> {
    text.parse::<toml::Table>().map_err(|error| {
        // The parser's Display quotes the line, which may hold a secret; its message does not.
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        Problem::Syntax {
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            message: error.message().lines().collect::<Vec<_>>().join(", "),
        }
    })
}
