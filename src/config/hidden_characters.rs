//! Characters that are not shown themselves and change how the text around them is shown.

/// True for characters that the standard library holds not printable: control characters, which a
/// terminal obeys; those of format, which can't be seen, or have the rest of a line shown in
/// another order; separators other than the space; and those that are not assigned. Marks that are
/// shown on the letter before them are printable.
pub(crate) fn is_hidden(c: char) -> bool {
    let on_a_letter = String::from_iter(['a', c]);
    c.is_control() || on_a_letter.escape_debug().skip(1).take(2).eq(['\\', 'u'])
}

/// True for those that are not shown either, and without which emoji and words of some scripts are
/// others.
pub(crate) fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_shown_are_hidden_and_letters_are_not() {
        let hidden = "\0\n\t\u{7f}\u{85}\u{a0}\u{ad}\u{61c}\u{200b}\u{200d}\u{2028}\u{202e}\u{2066}\u{3000}\u{feff}\u{e0041}";
        let shown: String = hidden.chars().filter(|c| !is_hidden(*c)).collect();
        assert!(shown.is_empty(), "{shown:?}");
        let letters = "Qwen-3 \"ü\" 'e\u{301}' \\ 模型 \u{939}\u{93f}\u{902} \u{1f600}";
        let hidden: String = letters.chars().filter(|c| is_hidden(*c)).collect();
        assert!(hidden.is_empty(), "{hidden:?}");
    }
}
