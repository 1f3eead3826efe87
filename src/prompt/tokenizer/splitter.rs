//! Cuts text into the pieces that are merged by themselves, by the model's regular expression.

use std::ops::RangeInclusive;

use fancy_regex::Regex;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pipeline::{PreTokenizer, PreTokenizerScratch};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::utils::Grammar;

use super::TokenizerError;
use super::panics::catch_panic;
use super::unsettled::has_one_of;

/// Longest pattern that is compiled, bytes; known ones have some hundred.
const MAX_PATTERN_BYTES: usize = 4 << 10;

/// Code points of Chinese script that are no letters, and one among them that is unassigned. Where
/// a pattern tells Chinese characters from others, the library cuts in front of them, and an engine
/// for regular expressions does not behind digits and signs.
const MISTAKEN: [RangeInclusive<char>; 6] = [
    '\u{2e80}'..='\u{2ef3}',
    '\u{2f00}'..='\u{2fd5}',
    '\u{3007}'..='\u{3007}',
    '\u{3021}'..='\u{3029}',
    '\u{3038}'..='\u{303a}',
    '\u{16fe2}'..='\u{16ff1}',
];

/// First byte of the first of them.
const MISTAKEN_LEAD: u8 = 0xe2;

/// A model's pattern.
pub(super) struct Splitter(Kind);

enum Kind {
    /// One of the patterns that the library of `tokenizer.json` splits by without an engine for
    /// regular expressions. `mistaken` is for texts with [`MISTAKEN`], where that matters.
    Native { split: Box<Split>, mistaken: Option<Box<Regex>> },
    /// Any other pattern, by such an engine.
    Regex(Box<Regex>),
}

impl Splitter {
    /// Prepares a pattern.
    ///
    /// # Errors
    /// It is no regular expression, or too long a one.
    pub(super) fn new(pattern: &str) -> Result<Self, TokenizerError> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(TokenizerError(format!("a pattern of more than {MAX_PATTERN_BYTES} bytes")));
        }
        let compiled = || {
            let compiled = Regex::new(pattern).map_err(|why| TokenizerError(format!("its pattern: {why}")));
            compiled.map(Box::new)
        };
        let native = SplitPattern::Regex(pattern.to_owned());
        let native = catch_panic(|| {
            let split = Split::native(native, SplitDelimiterBehavior::Isolated, false);
            split.map_err(|why| TokenizerError(why.to_string()))
        });
        if let Ok(split) = native
            && split.grammar().is_some_and(is_exact)
        {
            let mistaken = pattern.contains(r"\p{Han}").then(compiled).transpose()?;
            return Ok(Self(Kind::Native { split: Box::new(split), mistaken }));
        }
        compiled().map(|regex| Self(Kind::Regex(regex)))
    }

    /// Hands over the pieces of `text` in order. What the pattern does not match is left out, as
    /// tiktoken does.
    ///
    /// # Errors
    /// The matching took more steps than is sane, or what `each` fails with.
    pub(super) fn split(
        &self,
        text: &str,
        each: impl FnMut(&str) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let split = match &self.0 {
            Kind::Regex(regex) => return by_engine(regex, text, each),
            Kind::Native { mistaken: Some(regex), .. } if has_one_of(text, MISTAKEN_LEAD, &MISTAKEN) => {
                return by_engine(regex, text, each);
            }
            Kind::Native { split, .. } => split,
        };
        let spans = catch_panic(|| {
            let mut spans = Vec::new();
            let done = split.pre_tokenize(text, &mut PreTokenizerScratch::default(), &mut spans);
            done.map_err(|why| TokenizerError(why.to_string())).map(|()| spans)
        })?;
        let pieces = spans.iter().filter_map(|span| text.get(span.start as usize..span.end as usize));
        pieces.filter(|piece| !piece.is_empty()).try_for_each(each)
    }
}

fn by_engine(
    regex: &Regex,
    text: &str,
    mut each: impl FnMut(&str) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    for found in regex.find_iter(text) {
        each(found.map_err(|why| TokenizerError(why.to_string()))?.as_str())?;
    }
    Ok(())
}

/// True if the library splits every code point by this pattern as an engine does. By the patterns
/// of o200k and tekken it takes some letters and marks for others, and any number of digits for
/// three.
fn is_exact(grammar: Grammar) -> bool {
    matches!(grammar, Grammar::Kimi | Grammar::Cl100k { digit_cap: 1 | 3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(pattern, true if it is one of the library's own)`.
    const FAMILIES: [(&str, bool); 4] = [
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            true,
        ),
        (super::super::tiktoken_files::KIMI_PATTERN, true),
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            false,
        ),
        (r"\p{L}+|\s+(?!\S)|\s+", false),
    ];

    fn pieces(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        splitter
            .split(text, |piece| {
                pieces.push(piece.to_owned());
                Ok(())
            })
            .unwrap();
        pieces
    }

    #[test]
    fn patterns_of_known_families_need_no_engine() {
        for (pattern, native) in FAMILIES {
            let splitter = Splitter::new(pattern).unwrap();
            assert_eq!(matches!(splitter.0, Kind::Native { .. }), native, "{pattern}");
        }
        assert!(Splitter::new("(").is_err());
        assert!(Splitter::new(&"a".repeat(MAX_PATTERN_BYTES + 1)).is_err());
    }

    #[test]
    fn pieces_are_those_of_the_regular_expression() {
        let text =
            "a \u{2e9a}b It's  1234567 中文字 Ünïcode\u{301}\r\n\n  x=[1,2];\tDON'T ŁÓDŹ 🦀🦀 \u{a0} end   ";
        for (pattern, _) in FAMILIES {
            let regex = Regex::new(pattern).unwrap();
            let expect: Vec<&str> = regex.find_iter(text).map(|found| found.unwrap().as_str()).collect();
            assert_eq!(pieces(&Splitter::new(pattern).unwrap(), text), expect, "{pattern}");
        }
    }
}
