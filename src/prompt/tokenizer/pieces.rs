//! Cuts texts for a `tokenizer.json` whose pattern its library can't split by, or splits by in
//! another way than a regular expression does.
//!
//! The library has programs of its own for some known patterns, and its reader has no engine for
//! any other. Which of the programs are exact is known from all code points, each in several
//! surroundings, and random texts, compared with the pieces of tokenizers 0.23.3: see
//! `tests/real/tokenizer_forms.sh`.

use fancy_regex::Regex;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pipeline::{PipelinePreTokenizer, PreTokenizer, PreTokenizerScratch, Span};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::utils::Grammar;

use super::TokenizerError;

/// Steps that cut a text one after another, each the pieces of the one before it.
pub(super) struct Cuts(Vec<Step>);

enum Step {
    /// A regular expression; what it does not match is a piece, too, or left out.
    Pattern { regex: Box<Regex>, keeps_gaps: bool },
    /// A step that the library does itself.
    Library(Box<PipelinePreTokenizer>),
}

impl Cuts {
    /// The steps of a file, `None` if the library does all of them right.
    ///
    /// # Errors
    /// A pattern that is no regular expression, or cuts in a way that is not done here.
    pub(super) fn needed(of: &PipelinePreTokenizer) -> Result<Option<Self>, TokenizerError> {
        let steps = match of {
            PipelinePreTokenizer::Sequence(sequence) if sequence.is_deepseek() => return Ok(None),
            PipelinePreTokenizer::Sequence(sequence) => sequence.pre_tokenizers(),
            one => std::slice::from_ref(one),
        };
        if steps.iter().all(is_right) {
            return Ok(None);
        }
        steps.iter().map(Step::new).collect::<Result<_, _>>().map(|steps| Some(Self(steps)))
    }

    /// Puts the pieces of `text` into `out`, in order and within the text.
    ///
    /// # Errors
    /// The text is too long, or the matching took more steps than is sane.
    pub(super) fn cut(&self, text: &str, out: &mut Vec<Span>) -> Result<(), TokenizerError> {
        let end = u32::try_from(text.len()).map_err(|_| TokenizerError::new("a text of 4 GiB"))?;
        out.clear();
        out.push(Span { start: 0, end });
        let mut pieces = Vec::new();
        for step in &self.0 {
            for span in out.drain(..) {
                let piece = text.get(span.range()).unwrap_or_default();
                let from = pieces.len();
                step.cut(piece, &mut pieces)?;
                for inner in pieces.iter_mut().skip(from) {
                    *inner = Span { start: span.start + inner.start, end: span.start + inner.end };
                }
            }
            std::mem::swap(out, &mut pieces);
        }
        Ok(())
    }
}

impl Step {
    fn new(of: &PipelinePreTokenizer) -> Result<Self, TokenizerError> {
        let PipelinePreTokenizer::Split(split) = of else { return Ok(Self::Library(Box::new(of.clone()))) };
        let SplitPattern::Regex(pattern) = &split.pattern else {
            return Ok(Self::Library(Box::new(of.clone())));
        };
        let keeps_gaps = match (split.behavior, split.invert) {
            (SplitDelimiterBehavior::Isolated, false) => true,
            (SplitDelimiterBehavior::Removed, true) => false,
            (behavior, invert) => {
                return Err(TokenizerError(format!(
                    "its pre-tokenizer splits by a regular expression with the behavior {behavior:?} and \
                     invert {invert}, which is not done here"
                )));
            }
        };
        let regex = Regex::new(pattern).map_err(|why| TokenizerError(format!("its pattern: {why}")))?;
        Ok(Self::Pattern { regex: Box::new(regex), keeps_gaps })
    }

    fn cut(&self, piece: &str, out: &mut Vec<Span>) -> Result<(), TokenizerError> {
        let failed = |why: &dyn std::fmt::Display| TokenizerError(why.to_string());
        let (regex, keeps_gaps) = match self {
            Self::Pattern { regex, keeps_gaps } => (regex, *keeps_gaps),
            Self::Library(step) => {
                return step
                    .pre_tokenize(piece, &mut PreTokenizerScratch::default(), out)
                    .map_err(|why| failed(&why));
            }
        };
        let mut behind = 0;
        for found in regex.find_iter(piece) {
            let found = found.map_err(|why| failed(&why))?;
            if keeps_gaps {
                push(behind, found.start(), out);
            }
            push(found.start(), found.end(), out);
            behind = found.end();
        }
        if keeps_gaps {
            push(behind, piece.len(), out);
        }
        Ok(())
    }
}

/// Appends a piece unless it is empty. A text is shorter than 4 GiB, so the places fit.
fn push(start: usize, end: usize, out: &mut Vec<Span>) {
    if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end))
        && start < end
    {
        out.push(Span { start, end });
    }
}

/// True if the library cuts by this step as a regular expression would.
fn is_right(step: &PipelinePreTokenizer) -> bool {
    match step {
        PipelinePreTokenizer::Split(split) => {
            matches!(split.pattern, SplitPattern::String(_)) || is_known(split)
        }
        _ => true,
    }
}

fn is_known(split: &Split) -> bool {
    let known = split.grammar().is_some_and(|grammar| {
        matches!(
            grammar,
            Grammar::Gpt2 | Grammar::Cl100k { digit_cap: 1 | 3 } | Grammar::O200k | Grammar::Tekken
        )
    });
    known && split.behavior == SplitDelimiterBehavior::Isolated && !split.invert
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
    const REST: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn split(pattern: &str, behavior: SplitDelimiterBehavior, invert: bool) -> PipelinePreTokenizer {
        let split = Split::native(SplitPattern::Regex(pattern.to_owned()), behavior, invert);
        PipelinePreTokenizer::Split(split.unwrap())
    }

    fn isolated(pattern: &str) -> PipelinePreTokenizer {
        split(pattern, SplitDelimiterBehavior::Isolated, false)
    }

    fn pieces<'a>(of: &PipelinePreTokenizer, text: &'a str) -> Vec<&'a str> {
        let mut spans = Vec::new();
        Cuts::needed(of).unwrap().unwrap().cut(text, &mut spans).unwrap();
        spans.into_iter().map(|span| &text[span.range()]).collect()
    }

    #[test]
    fn cuts_are_needed_where_the_library_is_not_exact() {
        let needs =
            |digits: &str| Cuts::needed(&isolated(&format!("{WORDS}{digits}{REST}"))).unwrap().is_some();
        assert!(!needs(r"\p{N}") && !needs(r"\p{N}{1,3}"));
        // Digits by twos, or all of them, are cut by threes there.
        assert!(needs(r"\p{N}{1,2}") && needs(r"\p{N}+"));
        assert!(needs(r"\d"), "a pattern that it does not know");
        assert!(Cuts::needed(&PipelinePreTokenizer::None).unwrap().is_none());
    }

    #[test]
    fn pieces_are_those_of_the_pattern() {
        let by_twos = isolated(&format!("{WORDS}{}{REST}", r"\p{N}{1,2}"));
        assert_eq!(pieces(&by_twos, "It's 12345 é!"), ["It", "'s", " ", "12", "34", "5", " é", "!"]);
        let marks = format!("{}{}", WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+"), r"\p{N}") + REST;
        assert_eq!(pieces(&isolated(&marks), "e\u{301}e\u{301} 1"), ["e\u{301}e\u{301}", " ", "1"]);
    }

    #[test]
    fn gaps_are_pieces_unless_they_are_removed() {
        assert_eq!(pieces(&isolated("[ab]+"), "1ab2"), ["1", "ab", "2"]);
        assert_eq!(pieces(&split("[ab]+", SplitDelimiterBehavior::Removed, true), "1ab2b"), ["ab", "b"]);
        let merged = split("[ab]+", SplitDelimiterBehavior::MergedWithNext, false);
        assert!(Cuts::needed(&merged).err().unwrap().to_string().contains("MergedWithNext"));
    }

    #[test]
    fn steps_cut_the_pieces_of_those_before_them() {
        use tokenizers::pre_tokenizers::sequence::PipelineSequence;
        let steps = [r"\d{1,3}", "[ab]+"].map(isolated);
        let sequence = PipelinePreTokenizer::Sequence(PipelineSequence::new(steps.into()));
        assert_eq!(pieces(&sequence, "cab12345c"), ["c", "ab", "123", "45", "c"]);
        assert_eq!(pieces(&sequence, ""), [""; 0]);
    }
}
