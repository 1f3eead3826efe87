//! Text to ids as tiktoken does it: special tokens first, then the pattern's pieces, each merged
//! by rank.

use std::borrow::Cow;
use std::collections::BTreeMap;

use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::super::python::is_space;
use super::super::special::AddedToken;
use super::merge::Merger;
use super::ranks::Ranks;
use super::special_tokens::SpecialTokens;
use super::splitter::Splitter;
use super::unsettled::{check_classes, check_composition};
use super::{Tokenize, TokenizerError};

/// Longest piece that is merged, bytes: a word, a number, a run of spaces. A text with a longer one
/// is not tokenised here; its merging would take some hundred megabytes.
const MAX_PIECE_BYTES: usize = 1 << 20;

/// Parts of a [`RankTokenizer`].
pub(super) struct RankParts {
    /// Ids of texts that are no special tokens, each without `offset`.
    pub(super) ranks: Ranks,
    /// Number that is added to each rank.
    pub(super) offset: u32,
    /// Regular expression that cuts texts into pieces.
    pub(super) pattern: String,
    /// Special tokens with their ids.
    pub(super) special: BTreeMap<String, u32>,
    /// Treatment of texts beyond that.
    pub(super) rules: TextRules,
}

/// Treatment of texts that differs between models.
#[derive(Clone, Debug, Default)]
pub(super) struct TextRules {
    /// True if a special token in a text is taken for one.
    pub(super) finds_special: bool,
    /// True if texts are normalised to NFC before anything else.
    pub(super) nfc: bool,
    /// Id in front of a whole prompt, where special tokens are added.
    pub(super) begin: Option<u32>,
    /// Limits at which long texts are cut.
    pub(super) cuts: Option<LongTexts>,
}

/// Limits at which a model's own code cuts long texts before tiktoken sees them. Both count
/// characters from the last of `parted_by`.
#[derive(Clone, Debug)]
pub(super) struct LongTexts {
    /// Special tokens at which the library around that code has parted the text already.
    pub(super) parted_by: BTreeMap<String, u32>,
    /// Most characters of one cut.
    pub(super) chars: usize,
    /// Most characters in a row that are all white space, or all none.
    pub(super) run_chars: usize,
}

/// A tokenizer by ranks.
pub struct RankTokenizer {
    ranks: Ranks,
    offset: u32,
    splitter: Splitter,
    special: BTreeMap<String, u32>,
    finder: SpecialTokens,
    rules: TextRules,
    /// Finds those of [`LongTexts::parted_by`].
    parting: SpecialTokens,
}

/// Ids under way: where they go, and buffers.
struct Output<'a> {
    out: &'a mut Vec<u32>,
    merger: Merger,
}

impl RankTokenizer {
    /// Puts a tokenizer together.
    ///
    /// # Errors
    /// The pattern can't be compiled, or ids do not fit.
    pub(super) fn new(parts: RankParts) -> Result<Self, TokenizerError> {
        let RankParts { ranks, offset, pattern, special, rules } = parts;
        if ranks.last().checked_add(offset).is_none() {
            return Err(TokenizerError::new("its ids are larger than 32 bits"));
        }
        let parting = rules.cuts.as_ref().map(|cuts| SpecialTokens::new(&cuts.parted_by)).unwrap_or_default();
        let finds = if rules.finds_special { SpecialTokens::new(&special) } else { SpecialTokens::default() };
        Ok(Self { splitter: Splitter::new(&pattern)?, ranks, offset, special, finder: finds, rules, parting })
    }

    /// Number of tokens that are no special ones.
    pub fn base_tokens(&self) -> usize {
        self.ranks.len()
    }

    fn normalized<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, TokenizerError> {
        check_classes(text)?;
        if !self.rules.nfc {
            return Ok(Cow::Borrowed(text));
        }
        check_composition(text)?;
        Ok(if is_nfc(text) { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect()) })
    }

    /// Encodes a text with its special tokens: first those that part it, then between them.
    fn whole(&self, text: &str, output: &mut Output<'_>) -> Result<(), TokenizerError> {
        let mut from = 0;
        while let Some(token) = self.parting.find(text, from) {
            self.stretch(text.get(from..token.start).unwrap_or_default(), true, output)?;
            output.out.push(token.id);
            from = token.end;
        }
        self.stretch(text.get(from..).unwrap_or_default(), true, output)
    }

    /// Encodes what is between two tokens that part a text, cut where it is long.
    fn stretch(&self, text: &str, finds: bool, output: &mut Output<'_>) -> Result<(), TokenizerError> {
        let Some(cuts) = &self.rules.cuts else { return self.cut(text, finds, output) };
        let mut rest = text;
        while !rest.is_empty() {
            let (mut window, more) = rest.split_at(cuts.window(rest));
            while !window.is_empty() {
                let (first, behind) = window.split_at(cuts.run(window));
                self.cut(first, finds, output)?;
                window = behind;
            }
            rest = more;
        }
        Ok(())
    }

    /// Encodes one cut: special tokens if they count, and ordinary text.
    fn cut(&self, text: &str, finds: bool, output: &mut Output<'_>) -> Result<(), TokenizerError> {
        let mut from = 0;
        while let Some(token) = finds.then(|| self.finder.find(text, from)).flatten() {
            self.ordinary(text.get(from..token.start).unwrap_or_default(), output)?;
            output.out.push(token.id);
            from = token.end;
        }
        self.ordinary(text.get(from..).unwrap_or_default(), output)
    }

    fn ordinary(&self, text: &str, output: &mut Output<'_>) -> Result<(), TokenizerError> {
        self.splitter.split(text, |piece| {
            if piece.len() > MAX_PIECE_BYTES {
                return Err(TokenizerError::new("the text has a word or run of more than 1 MiB"));
            }
            output.merger.encode(&self.ranks, piece.as_bytes(), self.offset, output.out);
            Ok(())
        })
    }
}

impl LongTexts {
    /// Length in bytes of the first [`chars`](Self::chars) characters.
    fn window(&self, text: &str) -> usize {
        // Most texts are shorter, and need no count.
        if text.len() <= self.chars {
            return text.len();
        }
        text.char_indices().nth(self.chars).map_or(text.len(), |(at, _)| at)
    }

    /// Length in bytes up to the first character that makes a run too long.
    fn run(&self, text: &str) -> usize {
        if text.len() <= self.run_chars {
            return text.len();
        }
        let (mut length, mut was_space) = (0, None);
        for (at, char) in text.char_indices() {
            let space = is_space(char);
            length = if was_space == Some(space) { length + 1 } else { 1 };
            was_space = Some(space);
            if length > self.run_chars {
                return at;
            }
        }
        text.len()
    }
}

impl Tokenize for RankTokenizer {
    fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        out.extend(self.rules.begin.filter(|_| add_special_tokens));
        out.reserve(text.len() / 4);
        self.whole(&self.normalized(text)?, &mut Output { out, merger: Merger::default() })
    }

    fn encode_plain_into(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let text = self.normalized(text)?;
        self.stretch(&text, false, &mut Output { out, merger: Merger::default() })
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        self.special.get(token).copied()
    }

    /// Tokens that part long texts cut them for the cache, too; others do where nothing is cut.
    fn added_tokens(&self) -> Vec<AddedToken> {
        if !self.rules.finds_special || self.rules.nfc {
            return Vec::new();
        }
        let parts =
            |token: &str| self.rules.cuts.as_ref().is_none_or(|cuts| cuts.parted_by.contains_key(token));
        let tokens = self.special.keys();
        tokens.map(|token| AddedToken { content: token.clone(), cuts: parts(token) }).collect()
    }
}
