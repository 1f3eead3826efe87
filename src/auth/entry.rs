//! `pd-proxy api-key`: entries for the file of keys. No key ever appears on a command line.

use std::io::{self, Read};

use super::digest::{Digest, KEY_BYTES_MAX, RejectedKey, refuse};
use super::file;

/// Reasons for which no entry can be made.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    /// Standard input can't be read.
    #[error("cannot read the key from standard input: {0}")]
    Input(#[from] io::Error),
    /// The text that was read is no key.
    #[error(transparent)]
    Key(#[from] RejectedKey),
    /// The entry would not be valid.
    #[error("--name: {0}")]
    Entry(#[from] file::FileError),
}

/// A new key of 244 random bits.
pub fn random() -> String {
    format!("sk-{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

/// Reads one key, up to the end of the line.
///
/// # Errors
/// Standard input can't be read, or its text is no valid key.
pub fn read(input: impl Read) -> Result<String, ApiKeyError> {
    let mut text = String::new();
    input.take(KEY_BYTES_MAX as u64 + 3).read_to_string(&mut text)?;
    let key = text.trim_end_matches(['\r', '\n']);
    refuse(key)?;
    Ok(key.to_owned())
}

/// The entry of a key, as TOML; the operator adds its rights.
///
/// # Errors
/// The name is not valid.
pub fn entry(name: &str, key: &str) -> Result<String, ApiKeyError> {
    let text = format!("[[key]]\nname = {name:?}\nsha256 = \"{}\"\n", Digest::of(key.as_bytes()));
    file::parse(&text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_digest_admits_its_key() {
        let key = random();
        assert_eq!((key.len(), refuse(&key)), (67, Ok(())));
        assert_ne!(key, random());
        let text = entry("client-1", &key).unwrap();
        assert!(!text.contains(&key));
        let entries = file::parse(&text).unwrap();
        assert_eq!((entries[0].name.as_str(), entries[0].digest), ("client-1", Digest::of(key.as_bytes())));
        for name in ["", "a b", "a\"\nadmin = true #"] {
            assert!(matches!(entry(name, &key), Err(ApiKeyError::Entry(_))), "{name}");
        }
    }

    #[test]
    fn a_key_is_read_without_the_end_of_its_line() {
        let of = |text: &str| read(text.as_bytes()).ok();
        let key = "sk-0123456789abcdef";
        for ending in ["", "\n", "\r\n"] {
            assert_eq!(of(&format!("{key}{ending}")).as_deref(), Some(key));
        }
        for bad in ["", "short\n", "sk-0123456789 abcdef", &"x".repeat(4_000)] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
