//! The SHA-256 of a key. The key itself is never kept.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// Least bytes of a key: shorter ones can be guessed.
pub const KEY_BYTES_MIN: usize = 16;

/// Most bytes of a key: a limit for hashing.
pub const KEY_BYTES_MAX: usize = 1024;

/// SHA-256 of a key's bytes, as sent in the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// Not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits, as `pd-proxy api-key` prints them")]
pub struct InvalidDigest;

/// Reasons for which a text can't be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedKey {
    /// It could be guessed.
    #[error(
        "a key of less than {KEY_BYTES_MIN} characters can be guessed; `pd-proxy api-key new` makes a good one"
    )]
    Short,
    /// The text is longer than [`KEY_BYTES_MAX`].
    #[error("a key of more than {KEY_BYTES_MAX} characters is no key")]
    Long,
    /// A character of it can't be sent in a header.
    #[error("a key is made of visible ASCII characters, without spaces")]
    Characters,
}

impl Digest {
    /// Of a key.
    pub fn of(key: &[u8]) -> Digest {
        Digest(Sha256::digest(key).into())
    }

    /// The bytes of the hash.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The one with these bytes; None of another number of them.
    pub fn of_bytes(bytes: &[u8]) -> Option<Digest> {
        bytes.try_into().ok().map(Digest)
    }
}

/// Checks that a text is fit to be a key.
///
/// # Errors
/// [`RejectedKey`], which does not repeat the key.
pub fn refuse(key: &str) -> Result<(), RejectedKey> {
    match key.len() {
        0..KEY_BYTES_MIN => Err(RejectedKey::Short),
        _ if key.len() > KEY_BYTES_MAX => Err(RejectedKey::Long),
        _ if !key.bytes().all(|byte| byte.is_ascii_graphic()) => Err(RejectedKey::Characters),
        _ => Ok(()),
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Shows enough to tell two digests apart; a whole digest is not logged.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.0;
        write!(f, "Digest({a:02x}{b:02x}…)")
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Digest, InvalidDigest> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(InvalidDigest);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low).ok_or(InvalidDigest)?;
        }
        Ok(Digest(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From FIPS 180-4's example.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_reads_back_as_it_was_written() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(Digest::of(b"abc")));
        assert_eq!(ABC.to_uppercase().parse(), Ok(Digest::of(b"abc")));
        assert_eq!(format!("{:?}", Digest::of(b"abc")), "Digest(ba78…)");
        for wrong in ["", "ba", &ABC[1..], &format!("{ABC}0"), &ABC.replace('b', "x"), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<Digest>(), Err(InvalidDigest), "{wrong:?}");
        }
    }

    #[test]
    fn keys_that_can_be_guessed_or_not_be_sent_are_refused() {
        assert_eq!(refuse(&"k".repeat(16)), Ok(()));
        assert_eq!(refuse(&"k".repeat(15)), Err(RejectedKey::Short));
        assert_eq!(refuse(&"k".repeat(1025)), Err(RejectedKey::Long));
        assert_eq!(refuse("sixteen letters and"), Err(RejectedKey::Characters));
    }
}
