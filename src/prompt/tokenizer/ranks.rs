//! Ranks of byte sequences: the vocabulary of a byte-pair encoding, in the order of its merges.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use foldhash::fast::RandomState;

use super::TokenizerError;

/// Most tokens that are read; the largest vocabularies known have a quarter of it.
pub const MAX_RANKS: usize = 1 << 20;

/// Longest token that is read, bytes; the longest known are some hundred spaces.
pub const MAX_TOKEN_BYTES: usize = 4 << 10;

/// Token ids by the bytes that they stand for. Every single byte has one, so every text has a
/// tokenisation.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    by_bytes: HashMap<Box<[u8]>, u32, RandomState>,
}

impl Ranks {
    /// Reads the lines of a rank file: the bytes in base64, a space, the rank.
    ///
    /// # Errors
    /// The line that has another form or repeats another one, a byte without a rank, or a limit.
    pub(super) fn parse(file: &[u8]) -> Result<Self, TokenizerError> {
        let mut ranks = Builder::default();
        for (at, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let (token, rank) = parse_line(line).map_err(|why| in_line(at, &why))?;
            ranks.add(token, rank).map_err(|why| in_line(at, &why))?;
        }
        ranks.complete()
    }

    /// Takes the tokens in the order of their ranks, each in base64.
    ///
    /// # Errors
    /// The token that is no base64 or repeats another one, a byte without a rank, or a limit.
    pub(super) fn in_order<'a>(tokens: impl Iterator<Item = &'a str>) -> Result<Self, TokenizerError> {
        let mut ranks = Builder::default();
        for (rank, token) in tokens.enumerate() {
            let of = |why: String| TokenizerError(format!("the token of rank {rank}: {why}"));
            let bytes = decode(token.as_bytes()).map_err(of)?;
            ranks.add(bytes, u32::try_from(rank).unwrap_or(u32::MAX)).map_err(of)?;
        }
        ranks.complete()
    }

    /// The rank of these bytes, `None` if they are no token.
    pub(super) fn get(&self, bytes: &[u8]) -> Option<u32> {
        self.by_bytes.get(bytes).copied()
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.by_bytes.len()
    }

    /// The largest rank.
    pub(super) fn last(&self) -> u32 {
        self.by_bytes.values().copied().max().unwrap_or(0)
    }
}

/// Ranks under construction.
#[derive(Default)]
struct Builder {
    ranks: Ranks,
    seen: std::collections::HashSet<u32, RandomState>,
}

impl Builder {
    fn add(&mut self, token: Vec<u8>, rank: u32) -> Result<(), String> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(format!("a token of {} bytes; they have 1 to {MAX_TOKEN_BYTES}", token.len()));
        }
        if self.ranks.len() >= MAX_RANKS {
            return Err(format!("more than {MAX_RANKS} tokens"));
        }
        if !self.seen.insert(rank) {
            return Err(format!("the rank {rank} occurs twice"));
        }
        match self.ranks.by_bytes.insert(token.into(), rank) {
            Some(before) => Err(format!("its token has the rank {before}, too")),
            None => Ok(()),
        }
    }

    fn complete(self) -> Result<Ranks, TokenizerError> {
        let missing = (0..=u8::MAX).find(|byte| self.ranks.get(&[*byte]).is_none());
        match missing {
            Some(byte) => Err(TokenizerError(format!("no token stands for the byte {byte:#04x} alone"))),
            None => Ok(self.ranks),
        }
    }
}

fn in_line(at: usize, why: &str) -> TokenizerError {
    TokenizerError(format!("line {}: {why}", at + 1))
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, u32), String> {
    let form = || "expected a token in base64, a space and its rank".to_owned();
    let space = memchr::memchr(b' ', line).ok_or_else(form)?;
    let (token, rank) = line.split_at(space);
    let rank = std::str::from_utf8(rank).map_err(|_| form())?.trim();
    let rank: u32 = rank.parse().map_err(|_| format!("{rank:?} is no rank"))?;
    Ok((decode(token)?, rank))
}

fn decode(token: &[u8]) -> Result<Vec<u8>, String> {
    // Before the work of decoding.
    if token.len() > MAX_TOKEN_BYTES * 2 {
        return Err(format!("a token of more than {MAX_TOKEN_BYTES} bytes"));
    }
    STANDARD.decode(token).map_err(|why| format!("a token that is no base64: {why}"))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A rank file of the 256 bytes, and of these tokens after them.
    pub(in super::super) fn file(tokens: &[&str]) -> String {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let all = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec()));
        all.enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
    }

    #[test]
    fn rank_file_that_is_damaged_names_its_line() {
        let good = file(&["ab"]);
        assert_eq!(Ranks::parse(good.as_bytes()).unwrap().get(b"ab"), Some(256));
        for (more, says) in [
            ("YWM=", "line 258: expected a token in base64, a space and its rank"),
            ("YWM= x", "line 258: \"x\" is no rank"),
            ("YWM= -1", "line 258: \"-1\" is no rank"),
            ("Y!M= 257", "line 258: a token that is no base64"),
            ("YWM= 256", "line 258: the rank 256 occurs twice"),
            ("YWI= 257", "line 258: its token has the rank 256, too"),
            (" 257", "line 258: a token of 0 bytes"),
        ] {
            let error = Ranks::parse(format!("{good}{more}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{more}: {error}");
        }
        let long = format!("{good}{} 257\n", STANDARD.encode([b'a'; MAX_TOKEN_BYTES + 1]));
        assert!(Ranks::parse(long.as_bytes()).unwrap_err().to_string().contains("4097 bytes"));
        let error = Ranks::parse(b"YQ== 0\r\n").unwrap_err().to_string();
        assert!(error.contains("no token stands for the byte 0x00"), "{error}");
    }

    proptest! {
        #[test]
        fn rank_file_of_any_bytes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Ranks::parse(&bytes);
            let text = [file(&[]).as_bytes(), &bytes].concat();
            if let Ok(ranks) = Ranks::parse(&text) {
                prop_assert!(ranks.len() >= 256);
            }
        }
    }
}
