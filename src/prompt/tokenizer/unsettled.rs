//! Characters that releases of Unicode, and the libraries built on them, treat differently.
//!
//! Engines tokenise with libraries of several ages: tokenizers 0.21 to 0.23 splits by the classes
//! of Unicode 16 and composes by those of Unicode 9, Python composes by 13 to 16, and the library
//! in use here splits and composes by 17. A text with one of these characters has no ids that hold
//! for all of them, so it is refused rather than guessed.

use std::ops::RangeInclusive;

use super::TokenizerError;

/// Code points that Unicode 17 assigned, by comparison of each one's pieces in tokenizers 0.23.3.
const NEWER: [RangeInclusive<char>; 47] = [
    '\u{088f}'..='\u{088f}',
    '\u{0c5c}'..='\u{0c5c}',
    '\u{0cdc}'..='\u{0cdc}',
    '\u{1acf}'..='\u{1add}',
    '\u{1ae0}'..='\u{1aeb}',
    '\u{20c1}'..='\u{20c1}',
    '\u{2b96}'..='\u{2b96}',
    '\u{a7ce}'..='\u{a7cf}',
    '\u{a7d2}'..='\u{a7d2}',
    '\u{a7d4}'..='\u{a7d4}',
    '\u{a7f1}'..='\u{a7f1}',
    '\u{fbc3}'..='\u{fbd2}',
    '\u{fd90}'..='\u{fd91}',
    '\u{fdc8}'..='\u{fdce}',
    '\u{10940}'..='\u{10959}',
    '\u{10ec5}'..='\u{10ec7}',
    '\u{10ed0}'..='\u{10ed8}',
    '\u{10efa}'..='\u{10efb}',
    '\u{11b60}'..='\u{11b67}',
    '\u{11db0}'..='\u{11ddb}',
    '\u{11de0}'..='\u{11de9}',
    '\u{16ea0}'..='\u{16eb8}',
    '\u{16ebb}'..='\u{16ed3}',
    '\u{16ff2}'..='\u{16ff6}',
    '\u{187f8}'..='\u{187ff}',
    '\u{18d09}'..='\u{18d1e}',
    '\u{18d80}'..='\u{18df2}',
    '\u{1ccfa}'..='\u{1ccfc}',
    '\u{1ceba}'..='\u{1ced0}',
    '\u{1cee0}'..='\u{1cef0}',
    '\u{1e6c0}'..='\u{1e6de}',
    '\u{1e6e0}'..='\u{1e6f5}',
    '\u{1e6fe}'..='\u{1e6ff}',
    '\u{1f6d8}'..='\u{1f6d8}',
    '\u{1f777}'..='\u{1f77a}',
    '\u{1f8d0}'..='\u{1f8d8}',
    '\u{1fa54}'..='\u{1fa57}',
    '\u{1fa8a}'..='\u{1fa8a}',
    '\u{1fa8e}'..='\u{1fa8e}',
    '\u{1fac8}'..='\u{1fac8}',
    '\u{1facd}'..='\u{1facd}',
    '\u{1faea}'..='\u{1faea}',
    '\u{1faef}'..='\u{1faef}',
    '\u{1fbfa}'..='\u{1fbfa}',
    '\u{2b73a}'..='\u{2b73f}',
    '\u{2cea2}'..='\u{2cead}',
    '\u{323b0}'..='\u{33479}',
];

/// A contraction with a long s. A pattern that ignores case takes it for `'s`, and the library in
/// use here, which splits by known patterns without a regular expression, does not.
const LONG_S: &str = "'\u{17f}";

/// Characters that are composed, decomposed or ordered in another way, or not at all, by one of
/// Unicode 9 to 17, and scripts of few texts around them.
const COMPOSED: [RangeInclusive<char>; 19] = [
    '\u{07fd}'..='\u{07fd}',
    '\u{0897}'..='\u{089f}',
    '\u{08ca}'..='\u{08d3}',
    '\u{09fe}'..='\u{09fe}',
    '\u{0c3c}'..='\u{0c3c}',
    '\u{0d3b}'..='\u{0d3c}',
    '\u{0eba}'..='\u{0eba}',
    '\u{1715}'..='\u{1715}',
    '\u{1abf}'..='\u{1aff}',
    '\u{1df6}'..='\u{1dff}',
    '\u{32ff}'..='\u{32ff}',
    '\u{a7f1}'..='\u{a7f4}',
    '\u{a82c}'..='\u{a82c}',
    '\u{ab69}'..='\u{ab69}',
    '\u{10500}'..='\u{1cfff}',
    '\u{1e000}'..='\u{1e8ff}',
    '\u{1f16c}'..='\u{1f16c}',
    '\u{1fbf0}'..='\u{1fbf9}',
    '\u{323b0}'..='\u{33479}',
];

/// Bytes that are looked through at once: most texts are ASCII for long stretches.
const STRETCH: usize = 64;

/// First bytes of the characters of [`NEWER`] and of those of [`COMPOSED`], or smaller ones.
const NEWER_LEAD: u8 = 0xe0;
const COMPOSED_LEAD: u8 = 0xdf;

/// Refuses a text whose pieces differ between releases.
pub(super) fn check_classes(text: &str) -> Result<(), TokenizerError> {
    if text.is_ascii() {
        return Ok(());
    }
    if has_one_of(text, NEWER_LEAD, &NEWER) {
        return Err(TokenizerError::new("releases of Unicode classify characters of the text differently"));
    }
    if text.contains(LONG_S) {
        return Err(TokenizerError::new("libraries split an apostrophe before a long s differently"));
    }
    Ok(())
}

/// Refuses a text whose normal form differs between releases.
pub(super) fn check_composition(text: &str) -> Result<(), TokenizerError> {
    if has_one_of(text, COMPOSED_LEAD, &COMPOSED) {
        return Err(TokenizerError::new("releases of Unicode compose characters of the text differently"));
    }
    Ok(())
}

/// True if a character of the text is in `ranges`, all of which begin with the byte `lead` or a
/// larger one.
pub(super) fn has_one_of(text: &str, lead: u8, ranges: &[RangeInclusive<char>]) -> bool {
    let is_in = |char: char| {
        let at = ranges.partition_point(|range| *range.end() < char);
        ranges.get(at).is_some_and(|range| range.contains(&char))
    };
    let char_at = |at: usize| text.get(at..).and_then(|rest| rest.chars().next());
    text.as_bytes().chunks(STRETCH).enumerate().any(|(stretch, bytes)| {
        !bytes.is_ascii()
            && (stretch * STRETCH..)
                .zip(bytes)
                .any(|(at, byte)| *byte >= lead && char_at(at).is_some_and(is_in))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order() {
        for ranges in [&NEWER[..], &COMPOSED] {
            assert!(ranges.iter().all(|range| range.start() <= range.end()));
            assert!(ranges.windows(2).all(|pair| pair[0].end() < pair[1].start()));
        }
        let lead = |char: char| char.to_string().as_bytes()[0];
        assert!(lead(*NEWER[0].start()) >= NEWER_LEAD && lead(*COMPOSED[0].start()) >= COMPOSED_LEAD);
    }

    #[test]
    fn texts_of_settled_characters_pass() {
        let text = "It's Größe, 中文 🦀🫠 ⅷ ſelf e\u{301} ".repeat(9);
        assert!(check_classes(&text).is_ok() && check_composition(&text).is_ok());
        assert!(check_classes("").is_ok() && check_composition("").is_ok());
    }

    #[test]
    fn texts_with_an_unsettled_character_are_refused_wherever_it_is() {
        for before in [0, 1, 61, 62, 63, 64, 200] {
            let text = |unsettled: &str| format!("{}{unsettled}中b", "a".repeat(before));
            for unsettled in ["\u{a7f1}", "\u{33479}", "\u{1faea}", "'ſ"] {
                assert!(check_classes(&text(unsettled)).is_err(), "{before} {unsettled}");
            }
            for unsettled in ["\u{7fd}", "\u{16121}", "\u{a82c}"] {
                assert!(check_composition(&text(unsettled)).is_err(), "{before} {unsettled}");
            }
        }
    }
}
