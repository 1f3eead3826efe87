//! Members of events that are found by their name alone: nearly all events of a stream have nothing
//! in them that the gateway reads, and are not parsed. The module is pure.

use memchr::memmem::Finder;

/// The end of a member's name, with the quote behind it. As part of an answer's text that would be
/// escaped.
#[derive(Debug)]
pub struct MemberName(Finder<'static>);

impl MemberName {
    /// `name`: all of the name's quoted text, or its end.
    pub fn new(name: &'static str) -> MemberName {
        MemberName(Finder::new(name))
    }

    /// Offset of the first value that is not null from `from` on, and for which `is` is true of the
    /// text that begins with it.
    pub fn find_value(&self, events: &[u8], from: usize, is: impl Fn(&[u8]) -> bool) -> Option<usize> {
        let mut rest = events.get(from..)?;
        while let Some(at) = self.0.find(rest) {
            rest = &rest[at + self.0.needle().len()..];
            if let Some(value) = value_after(rest).filter(|value| is(value)) {
                return Some(events.len() - value.len());
            }
        }
        None
    }
}

/// The text that begins with a member's value, where `rest` begins behind the quote that ends its
/// name; `None` if it is null, or if no member ended there.
pub(super) fn value_after(rest: &[u8]) -> Option<&[u8]> {
    // As engines write it in nearly all events.
    if rest.starts_with(b":null") {
        return None;
    }
    let value = skip_space(rest).strip_prefix(b":").map(skip_space);
    value.filter(|value| !value.starts_with(b"null"))
}

/// Skips white space, and the beginning of the next line of data.
fn skip_space(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii_start();
    text.strip_prefix(b"data:").map_or(text, <[u8]>::trim_ascii_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_any_spelling() {
        let name = MemberName::new("\"a\"");
        for (text, value) in [
            ("{\"a\":1}", Some("1}")),
            ("{\"a\" : 1}", Some("1}")),
            ("{\"a\":\r\ndata: 1}", Some("1}")),
            ("{\"a\":null,\"b\":{\"a\": null},\"a\":{}}", Some("{}}")),
            ("{\"a\":null}", None),
            ("{\"b\":\"a\"}", None),
            ("{\"b\":\"\\\"a\\\":1\"}", None),
            ("{\"a\"", None),
            ("", None),
        ] {
            assert_eq!(name.find_value(text.as_bytes(), 0, |_| true).map(|at| &text[at..]), value, "{text}");
        }
    }

    #[test]
    fn only_wanted_values_behind_the_offset_are_found() {
        let (name, text) = (MemberName::new("_a\""), b"{\"x_a\":1,\"y_a\":2}");
        assert_eq!(name.find_value(text, 0, |_| true), Some(7));
        assert_eq!(name.find_value(text, 0, |value| value.starts_with(b"2")), Some(15));
        assert_eq!(name.find_value(text, 7, |_| true), Some(15));
        assert_eq!(name.find_value(text, 99, |_| true), None);
    }
}
