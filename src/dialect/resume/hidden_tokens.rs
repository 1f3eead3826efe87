//! Tokens of a continued chat that an event does not show.
//!
//! vLLM's parsers of reasoning and of tools decide if a chat's special tokens are text: from 0.32
//! on many set `skip_special_tokens` false, whatever the request says, and read some of those
//! tokens themselves. A completion has no parser. So the continuation of a chat leaves special
//! tokens out, and asks for log probabilities, which name the text of each token, special or not.
//! A token that has text there and none in the event is one that only the chat's parser could
//! place.

use super::event::Part;

/// Members that make a completion tell the text of each of its tokens. The text is left out of the
/// client's events with the probabilities.
pub(super) const MEMBERS: [(&str, &[u8]); 3] =
    [("skip_special_tokens", b"true"), ("logprobs", b"0"), ("return_tokens_as_token_ids", b"false")];

/// True if this choice of a completion has a token that `text` does not show. The token that ends
/// an answer is shown by nobody.
pub(super) fn exist(choice: &Part, text: &str) -> bool {
    let told = choice.part("logprobs").and_then(|told| told.numbers::<String>("tokens"));
    let Some(mut tokens) = told else {
        // Of one token with text that text is all.
        return choice
            .numbers::<u32>("token_ids")
            .is_some_and(|ids| ids.len() > usize::from(!text.is_empty()));
    };
    if choice.given("finish_reason").is_some_and(|reason| reason.raw() == b"\"stop\"") {
        tokens.pop();
    }
    let mut rest = text;
    !tokens.iter().all(|token| is_shown(token.trim(), &mut rest))
}

/// Looks for a token in the rest of a text, which then begins after it. The bytes of a character
/// that is not complete have no text, or that of a replacement in older releases.
fn is_shown(token: &str, rest: &mut &str) -> bool {
    if token.is_empty() || token.contains(char::REPLACEMENT_CHARACTER) {
        return true;
    }
    let after = rest.find(token).and_then(|at| rest.get(at + token.len()..));
    if let Some(after) = after {
        *rest = after;
    }
    after.is_some()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::dialect::resume::event::Event;

    fn hides(text: &str, tokens: Value, finish: Value) -> bool {
        let count = tokens.as_array().map_or(1, Vec::len);
        let told = if tokens.is_null() { tokens } else { json!({ "tokens": tokens, "text_offset": [0] }) };
        let ids = vec![5; count];
        let choice =
            json!({"index": 0, "text": text, "logprobs": told, "finish_reason": finish, "token_ids": ids});
        let event = json!({ "choices": [choice] }).to_string();
        let event = Event::read(Bytes::from(event)).unwrap();
        exist(event.choice.as_ref().unwrap(), text)
    }

    /// The events were made by vLLM's own detokenizer and log probabilities (0.32.0 and 0.33.0).
    #[test]
    fn recorded_events_hide_a_token_where_one_was_special() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/vllm-token-texts.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let answers = text.lines().map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap());
        let (mut events, mut special) = (0, 0);
        for event in answers.flatten() {
            let (text, is_special) = (event[0].as_str().unwrap(), event[4].as_bool().unwrap());
            assert_eq!(hides(text, event[1].clone(), event[3].clone()), is_special, "{event}");
            (events, special) = (events + 1, special + usize::from(is_special));
        }
        assert!(events > 400 && special > 25, "{events} events, {special} special tokens");
    }

    #[test]
    fn special_tokens_that_are_left_out_show_in_the_log_probabilities() {
        let null = Value::Null;
        assert!(!hides(" word", json!([" word"]), null.clone()));
        assert!(hides("", json!(["</think>"]), null.clone()));
        assert!(hides("\u{4e2d}", json!(["</think>", "\u{4e2d}"]), null.clone()), "beside one with text");
        assert!(hides(" a", json!([" a", "<box>"]), json!("length")));
        assert!(!hides("", json!(["<|im_end|>"]), json!("stop")), "the end itself");
        assert!(hides("", json!(["<box>", "<|im_end|>"]), json!("stop")));
    }

    #[test]
    fn a_character_in_several_tokens_is_no_hidden_one() {
        let null = Value::Null;
        for part in ["", "\u{fffd}", " \u{fffd}", "\n"] {
            assert!(!hides("", json!([part]), null.clone()), "{part:?}");
        }
        assert!(!hides("\u{1f600}", json!(["\u{1f600}"]), null.clone()));
        assert!(!hides(" \u{e9}a", json!(["\u{fffd}", "\u{fffd}", "a"]), null.clone()));
        assert!(!hides("a a b", json!(["a", " a", " b"]), null.clone()));
        assert!(hides("a b", json!(["a", "a", " b"]), null), "once is not twice");
    }

    #[test]
    fn tokens_without_a_text_of_their_own_are_hidden_unless_the_event_has_only_one() {
        assert!(!hides("x", Value::Null, Value::Null));
        assert!(hides("", Value::Null, Value::Null));
    }
}
