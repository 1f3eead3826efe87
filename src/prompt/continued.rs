//! `continue_final_message`: the rendering ends where the last message's text does (transformers 5,
//! `render_jinja_template`).

use serde_json::{Map, Value};

use super::python::{rstrip, strip_both};

/// Mark that transformers appends to the final message to find it again.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the final message's (last) text; the text as it was, or `None` if there is
/// none.
pub(super) fn tag_final_message(messages: &mut [Map<String, Value>]) -> Option<String> {
    let text = match messages.last_mut()?.get_mut("content")? {
        Value::String(text) => text,
        Value::Array(parts) => match parts.iter_mut().rev().find_map(|part| part.get_mut("text"))? {
            Value::String(text) => text,
            _ => return None,
        },
        _ => return None,
    };
    let wanted = text.clone();
    text.push_str(TAG);
    Some(wanted)
}

/// Cuts the rendering at the mark; `None` when the template dropped it or the message.
pub(super) fn cut_at_tag(mut rendered: String, wanted: &str) -> Option<String> {
    let at = rendered.rfind(TAG.trim_end())?;
    if !rendered.contains(strip_both(wanted)) {
        return None;
    }
    let spaced = rendered.get(at..)?.starts_with(TAG);
    rendered.truncate(at);
    // Without its space the template has trimmed the message, so its own trailing space goes too.
    let len = if spaced { at } else { rstrip(&rendered).len() };
    rendered.truncate(len);
    Some(rendered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn continues(wanted: &str, render: impl Fn(&str) -> String, expect: Option<&str>) {
        let mut message = Map::new();
        message.insert("content".into(), wanted.into());
        let mut messages = [message];
        assert_eq!(tag_final_message(&mut messages).as_deref(), Some(wanted));
        let rendered = render(messages[0]["content"].as_str().unwrap());
        assert_eq!(cut_at_tag(rendered, wanted).as_deref(), expect);
    }

    #[test]
    fn the_rendering_ends_with_the_message() {
        continues("a ", |text| format!("<{text}>"), Some("<a "));
        continues("a ", |text| format!("<{}>", text.trim()), Some("<a"));
        continues("", |text| format!("< {}>", text.trim()), Some("<"));
        continues("a", |_| "<a>".to_owned(), None);
        continues("ab", |text| format!("<{}>", &text[1..]), None);
    }
}
