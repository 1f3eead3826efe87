//! Output text: a pure function of the KV content in the engine's blocks.
//!
//! A [`Fingerprint`] is a running hash over the *characters* of a token sequence, so an answer
//! continued elsewhere from prompt + text so far goes on with the same text, however it is
//! tokenized. Every KV block stores the fingerprint at its end; an engine that reads blocks of
//! another prompt gets another fingerprint, and so answers with another text.

use super::tokens::{self, Piece};

const SEED: u64 = 0x5170_70d3_c0de_2026;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A running hash of KV content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Fingerprint(SEED)
    }
}

impl Fingerprint {
    /// The print after one more value.
    #[must_use]
    pub fn with(self, value: u64) -> Fingerprint {
        Fingerprint(scramble(self.0 ^ value.wrapping_mul(MULTIPLIER)))
    }

    /// The print after one more token.
    #[must_use]
    pub fn token(self, token: u32) -> Fingerprint {
        match tokens::piece(token) {
            Piece::Ascii(bytes, count) => {
                bytes.iter().take(count).fold(self, |print, &b| print.with(u64::from(b) + 1))
            }
            Piece::Point(c) => self.with(u64::from(c) + 1),
            Piece::Silent => self,
            Piece::Mark(_) | Piece::Unknown => self.with((1 << 40) | u64::from(token)),
        }
    }
}

fn scramble(mut x: u64) -> u64 {
    x = x.wrapping_add(MULTIPLIER);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash of a string, for cache salts.
#[must_use]
pub fn string_print(text: &str) -> u64 {
    text.bytes().fold(Fingerprint::default(), |print, b| print.with(u64::from(b))).0
}

/// The print at the end of every block of `tokens`, the last one possibly partial.
#[must_use]
pub fn block_prints(tokens: &[u32], block_tokens: usize) -> Vec<u64> {
    let mut print = Fingerprint::default();
    tokens
        .chunks(block_tokens.max(1))
        .map(|block| {
            print = block.iter().fold(print, |print, &token| print.token(token));
            print.0
        })
        .collect()
}

/// State from which an engine continues that sees `held` where it expects `expected`.
#[must_use]
pub fn continue_from(expected: &[u64], held: &[u64]) -> Fingerprint {
    if expected == held {
        return Fingerprint(expected.last().copied().unwrap_or(SEED));
    }
    held.iter().fold(Fingerprint::default().with(1), |print, &block| print.with(block))
}

/// Pieces an answer is made of; none is longer than one token.
const PIECES: [&str; 40] = [
    " ka",
    "ro",
    "mi",
    " ne",
    "lu",
    " to",
    "ta",
    "ver",
    " sa",
    "na",
    ".",
    " de",
    "li",
    "zu",
    " ba",
    "\u{fc}",
    "ri",
    " mo",
    "ke",
    "\u{4e2d}",
    "\u{6587}",
    " pa",
    "ion",
    "\u{e4}",
    ", ",
    " wi",
    "ste",
    "\u{1f600}",
    "go",
    " fe",
    "lan",
    "\n",
    " yo",
    "ha",
    "\u{df}",
    " th",
    "en",
    " qu",
    "ix",
    "!",
];
/// A code point above this arrives as two tokens, the first without text.
const SPLIT_ABOVE: char = '\u{ffff}';

/// Tells the end of an answer from the choice of its next token.
const END: u64 = 1 << 43;
/// Tells a special token from the choice of a piece.
const SPECIAL: u64 = 1 << 44;

/// Writes one choice, token by token.
#[derive(Clone, Debug)]
pub struct Writer {
    print: Fingerprint,
    queued: Option<u32>,
    special_every: u32,
}

impl Writer {
    /// A writer of choice `choice` (0 is the greedy one) that continues from `print`.
    #[must_use]
    pub fn new(print: Fingerprint, choice: usize) -> Writer {
        let print = if choice == 0 { print } else { print.with((1 << 41) | choice as u64) };
        Writer { print, queued: None, special_every: 0 }
    }

    /// The same writer with a special token among so many tokens on average; 0 = none.
    #[must_use]
    pub fn with_special_tokens(self, special_every: u32) -> Writer {
        Writer { special_every, ..self }
    }

    /// The next output token; there is always one more.
    pub fn next_token(&mut self) -> u32 {
        let token = match self.queued.take() {
            Some(token) => token,
            None => self.choose(),
        };
        self.print = self.print.token(token);
        token
    }

    /// True if the answer ends with what was written, if answers have `mean` tokens on average;
    /// never within a character.
    #[must_use]
    pub fn ends(&self, mean: u32) -> bool {
        mean > 0 && self.queued.is_none() && scramble(self.print.0 ^ END).is_multiple_of(u64::from(mean))
    }

    fn choose(&mut self) -> u32 {
        let every = u64::from(self.special_every);
        if every > 0 && scramble(self.print.0 ^ SPECIAL).is_multiple_of(every) {
            return tokens::NOTE;
        }
        let place = usize::try_from(scramble(self.print.0) % PIECES.len() as u64).unwrap_or(0);
        let text = PIECES.get(place).copied().unwrap_or(" ");
        let encoded = tokens::encode(text);
        let token = encoded.first().copied().unwrap_or(tokens::HELD);
        if text.chars().any(|c| c > SPLIT_ABOVE) {
            self.queued = Some(token);
            return tokens::HELD;
        }
        token
    }
}

/// Cuts an answer at the first stop string and holds back text that may still become one.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    stops: Vec<String>,
    include: bool,
    held: String,
}

impl Stops {
    /// Stops at any of `stops`; `include` keeps the stop string in the text.
    #[must_use]
    pub fn new(stops: Vec<String>, include: bool) -> Stops {
        Stops { stops, include, held: String::new() }
    }

    /// Takes a piece of text; gives what may be shown now, and the stop string if one is complete.
    pub fn push(&mut self, piece: &str) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (piece.to_owned(), None);
        }
        self.held.push_str(piece);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop).map(|at| (at, stop))).min();
        if let Some((at, stop)) = first {
            let stop = stop.clone();
            let end = if self.include { at + stop.len() } else { at };
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, tail), None)
    }

    /// Text that was held back, at the end of the answer.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .filter(|&at| text.ends_with(stop.get(..at).unwrap_or("")))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(print: Fingerprint, choice: usize, count: usize) -> String {
        let mut writer = Writer::new(print, choice);
        let tokens: Vec<u32> = (0..count).map(|_| writer.next_token()).collect();
        tokens::decode(&tokens)
    }

    fn print_of(text: &str) -> Fingerprint {
        let prints = block_prints(&tokens::encode(text), 4);
        continue_from(&prints, &prints)
    }

    #[test]
    fn text_follows_the_kv_content() {
        let right = block_prints(&tokens::encode("a long enough prompt"), 4);
        let mut wrong = right.clone();
        wrong[0] ^= 1;
        let good = write(continue_from(&right, &right), 0, 20);
        assert_ne!(good, write(continue_from(&right, &wrong), 0, 20));
        assert_ne!(good, write(print_of("a long enough prompT"), 0, 20));
        assert_ne!(good, write(continue_from(&right, &right), 1, 20));
        assert_eq!(good, write(print_of("a long enough prompt"), 0, 20));
    }

    #[test]
    fn an_answer_continued_elsewhere_goes_on() {
        let whole = write(print_of("tell me"), 0, 60);
        let part = write(print_of("tell me"), 0, 23);
        let rest = write(print_of(&format!("tell me{part}")), 0, 60);
        assert!(rest.starts_with(&whole[part.len()..]), "{whole:?} = {part:?} + {rest:?}");
    }

    #[test]
    fn answers_have_more_than_ascii() {
        let text = write(print_of("x"), 0, 400);
        for c in ['\u{fc}', '\u{4e2d}', '\u{1f600}'] {
            assert!(text.contains(c), "{c} in {text}");
        }
    }

    #[test]
    fn a_stop_string_cuts_and_a_possible_one_is_held() {
        let mut stops = Stops::new(vec!["END".into(), "\u{4e2d}x".into()], false);
        assert_eq!(stops.push("go E"), ("go ".into(), None));
        assert_eq!(stops.push("\u{4e2d}"), ("E".into(), None));
        assert_eq!(stops.push("EN"), ("\u{4e2d}".into(), None));
        assert_eq!(stops.push("D and"), (String::new(), Some("END".into())));
        let mut keep = Stops::new(vec!["b".into()], true);
        assert_eq!(keep.push("abc"), ("ab".into(), Some("b".into())));
    }
}
