//! Characters that are not shown themselves and change how the text around them is shown.

/// True for control characters and those of Unicode's property `Bidi_Control`: a terminal obeys the
/// former, and the latter have the rest of a line shown in another order.
pub(crate) fn is_hidden(c: char) -> bool {
    let is_of_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_of_direction
}
