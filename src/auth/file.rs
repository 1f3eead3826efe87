//! The file of keys: TOML, one `[[key]]` for each. Errors name the entry and the member, and never
//! repeat a value: it may be a key in the wrong place.
//!
//! ```toml
//! [[key]]
//! name = "search-team"
//! sha256 = "…"                  # of the key, in hexadecimal
//! models = ["qwen3"]            # which it may name; all, when left out
//! tokens_per_minute = 200_000   # prompt and output; unlimited, when left out
//! requests_inflight = 32        # at once; unlimited, when left out
//! priority = "normal"           # low, normal or high
//! admin = false                 # may change the fleet and look inside
//! ```

use std::collections::HashSet;

use toml::{Table, Value};

use super::{Digest, Grants, Priority};

/// Most keys in a file, and so most values of a metric's label `key`.
pub const ENTRIES_MAX: usize = 4096;

/// Limit for the length of a name, in bytes.
const NAME_BYTES: usize = 64;

/// Most tokens per minute, and requests at once, that can be granted.
const GRANT_MAX: u64 = 1 << 48;

/// Entry of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the key in logs and metrics.
    pub name: String,
    /// SHA-256 of the key.
    pub digest: Digest,
    /// Rights and budget of the key.
    pub grants: Grants,
}

/// Faults of a file of keys.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    /// The file is not valid TOML.
    #[error("line {line} is not TOML")]
    Syntax {
        /// Line number, from 1.
        line: usize,
    },
    /// The file has no entry, so all clients would be refused.
    #[error("there is no [[key]] in it")]
    Empty,
    /// The file has a top-level member other than `key`.
    #[error("only [[key]] may stand in it")]
    Stranger,
    /// The file has more than [`ENTRIES_MAX`] keys.
    #[error("it has more than {ENTRIES_MAX} keys")]
    TooMany,
    /// An entry that can't be used.
    #[error("key {number}: {what}")]
    Entry {
        /// Entry number, from 1.
        number: usize,
        /// The fault of that entry.
        what: EntryError,
    },
}

/// Faults of one entry.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum EntryError {
    /// The entry has the key itself, which any reader of the file could use.
    #[error(
        "it has the key itself; write sha256 in place of it (`pd-proxy api-key hash` reads a key and prints it)"
    )]
    Plain,
    /// The entry has an unknown member.
    #[error(
        "it has a member other than name, sha256, models, tokens_per_minute, requests_inflight, priority, ttft_slo_ms, admin"
    )]
    Unknown,
    /// A member that is missing or of the wrong kind.
    #[error("{0} must be {1}")]
    Expected(&'static str, &'static str),
    /// Two entries have the same name or digest.
    #[error("its {0} is that of an earlier one")]
    Twice(&'static str),
}

/// Reads a file.
///
/// # Errors
/// [`FileError`] names the first fault.
pub fn parse(text: &str) -> Result<Vec<Entry>, FileError> {
    let mut top: Table = text.parse().map_err(|e: toml::de::Error| {
        let at = e.span().map_or(0, |span| span.start).min(text.len());
        FileError::Syntax { line: 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count() }
    })?;
    let keys = match top.remove("key") {
        Some(Value::Array(keys)) if top.is_empty() => keys,
        None if top.is_empty() => return Err(FileError::Empty),
        _ => return Err(FileError::Stranger),
    };
    match keys.len() {
        0 => return Err(FileError::Empty),
        count if count > ENTRIES_MAX => return Err(FileError::TooMany),
        _ => {}
    }
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let mut entries = Vec::with_capacity(keys.len());
    for (key, number) in keys.into_iter().zip(1..) {
        let wrong = |what| FileError::Entry { number, what };
        let entry = read(key).map_err(wrong)?;
        if !names.insert(entry.name.clone()) {
            return Err(wrong(EntryError::Twice("name")));
        }
        if !digests.insert(entry.digest) {
            return Err(wrong(EntryError::Twice("sha256")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn read(key: Value) -> Result<Entry, EntryError> {
    let Value::Table(members) = key else { return Err(EntryError::Unknown) };
    let (mut name, mut digest, mut grants) = (None, None, Grants::default());
    for (member, value) in members {
        match member.as_str() {
            "name" => name = Some(is_name(&value)?),
            "sha256" => digest = Some(is_digest(&value)?),
            "models" => grants.models = Some(is_models(value)?),
            "tokens_per_minute" => {
                grants.tokens_per_minute = Some(is_count("tokens_per_minute", &value)?);
            }
            "requests_inflight" => {
                let count = is_count("requests_inflight", &value)?;
                grants.requests_inflight = Some(usize::try_from(count).unwrap_or(usize::MAX));
            }
            "priority" => grants.priority = is_priority(&value)?,
            "ttft_slo_ms" => {
                let count = is_count("ttft_slo_ms", &value)?;
                grants.ttft_slo_ms = Some(u32::try_from(count).unwrap_or(u32::MAX));
            }
            "admin" => {
                grants.admin = value.as_bool().ok_or(EntryError::Expected("admin", "true or false"))?
            }
            "key" | "api_key" | "secret" | "token" => return Err(EntryError::Plain),
            _ => return Err(EntryError::Unknown),
        }
    }
    let name = name.ok_or(NAME_EXPECTED)?;
    let digest = digest.ok_or(DIGEST_EXPECTED)?;
    Ok(Entry { name, digest, grants })
}

const NAME_EXPECTED: EntryError =
    EntryError::Expected("name", "1 to 64 letters, digits and -_. (it stands in logs and metrics)");
const DIGEST_EXPECTED: EntryError =
    EntryError::Expected("sha256", "64 hexadecimal digits, as `pd-proxy api-key` prints them");

fn is_name(value: &Value) -> Result<String, EntryError> {
    let sane = |name: &&str| {
        (1..=NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    value.as_str().filter(sane).map(str::to_owned).ok_or(NAME_EXPECTED)
}

fn is_digest(value: &Value) -> Result<Digest, EntryError> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or(DIGEST_EXPECTED)
}

fn is_models(value: Value) -> Result<Vec<String>, EntryError> {
    let wrong = EntryError::Expected("models", "a list of names");
    let Value::Array(models) = value else { return Err(wrong) };
    let name = |model: Value| match model {
        Value::String(name) if !name.is_empty() => Ok(name),
        _ => Err(wrong),
    };
    models.into_iter().map(name).collect()
}

fn is_count(member: &'static str, value: &Value) -> Result<u64, EntryError> {
    let count = value.as_integer().and_then(|count| u64::try_from(count).ok());
    count
        .filter(|count| (1..=GRANT_MAX).contains(count))
        .ok_or(EntryError::Expected(member, "a whole number of at least 1; leave it out for no limit"))
}

fn is_priority(value: &Value) -> Result<Priority, EntryError> {
    let named = |name: &str| Priority::ALL.into_iter().find(|priority| priority.name() == name);
    value.as_str().and_then(named).ok_or(EntryError::Expected("priority", "low, normal or high"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn key(members: &str) -> String {
        format!("[[key]]\nname = \"a\"\nsha256 = \"{SHA}\"\n{members}\n")
    }

    #[test]
    fn an_entry_is_read_whole() {
        let text = key(
            "models = [\"m\"]\ntokens_per_minute = 1_000\nrequests_inflight = 2\npriority = \"high\"\nttft_slo_ms = 700\nadmin = true",
        );
        let grants = Grants {
            models: Some(vec!["m".into()]),
            tokens_per_minute: Some(1_000),
            requests_inflight: Some(2),
            priority: Priority::High,
            ttft_slo_ms: Some(700),
            admin: true,
        };
        let digest = Digest::of(b"abc");
        assert_eq!(parse(&text), Ok(vec![Entry { name: "a".into(), digest, grants }]));
        assert_eq!(parse(&key("")).unwrap()[0].grants, Grants::default());
    }

    #[test]
    fn errors_name_the_fault_and_repeat_no_value() {
        let secret = "sk-secret-that-nobody-may-read";
        let other = SHA.replace('b', "c");
        for (text, said) in [
            (String::new(), "there is no [[key]] in it".to_owned()),
            ("[[keys]]\n".to_owned(), "only [[key]] may stand in it".to_owned()),
            (format!("a = 1\nb = {secret}\n"), "line 2 is not TOML".to_owned()),
            (key(&format!("key = \"{secret}\"")), format!("key 1: {}", EntryError::Plain)),
            (key(&format!("tokens = \"{secret}\"")), format!("key 1: {}", EntryError::Unknown)),
            (format!("[[key]]\nname = \"{secret} \"\n"), format!("key 1: {NAME_EXPECTED}")),
            (format!("[[key]]\nname = \"a\"\nsha256 = \"{secret}\"\n"), format!("key 1: {DIGEST_EXPECTED}")),
            ("[[key]]\nname = \"a\"\n".to_owned(), format!("key 1: {DIGEST_EXPECTED}")),
            (key("priority = \"urgent\""), "key 1: priority must be low, normal or high".to_owned()),
            (key("models = \"m\""), "key 1: models must be a list of names".to_owned()),
            (key("admin = 1"), "key 1: admin must be true or false".to_owned()),
            (
                key("requests_inflight = 0"),
                "key 1: requests_inflight must be a whole number of at least 1; leave it out for no limit"
                    .to_owned(),
            ),
            (key("") + &key(""), "key 2: its name is that of an earlier one".to_owned()),
            (
                key("") + &key("").replace("\"a\"", "\"b\""),
                "key 2: its sha256 is that of an earlier one".to_owned(),
            ),
            (
                key("") + &key("admin = \"x\"").replace(SHA, &other),
                "key 2: admin must be true or false".to_owned(),
            ),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert_eq!(error, said, "{text}");
            assert!(!error.contains(secret), "{error}");
        }
    }

    #[test]
    fn a_file_has_an_end() {
        let entry = |n: usize| format!("[[key]]\nname = \"n{n}\"\nsha256 = \"{n:064x}\"\n");
        let text: String = (0..ENTRIES_MAX).map(entry).collect();
        assert_eq!(parse(&text).map(|entries| entries.len()), Ok(ENTRIES_MAX));
        assert_eq!(parse(&(text + &entry(ENTRIES_MAX))), Err(FileError::TooMany));
    }
}
