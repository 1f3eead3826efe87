//! The client's view of an answer, compared with the truth.

use serde_json::{Value, json};

use super::plan::{Api, Cell};
use crate::common::client::{Raw, data_of_events};

/// The client's view of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The whole answer, with the right words.
    Whole,
    /// The same, though a decoder broke off in the middle of it.
    Continued,
    /// An engine's 4xx, unchanged.
    Refused(u16),
    /// Our error, before any byte of an answer.
    Error(u16, String),
    /// A beginning of the answer, then our error event with this code, then an unclean end.
    ErrorEvent(String),
    /// A beginning, then the engine's own error event and its end.
    EngineEvent,
    /// The client left.
    Left,
    /// Something that no client may see.
    Lie(String),
}

impl Seen {
    pub fn name(&self) -> String {
        match self {
            Seen::Whole => "whole".into(),
            Seen::Continued => "continued".into(),
            Seen::Refused(status) => format!("engine's {status}"),
            Seen::Error(status, code) => format!("{status} {code}"),
            Seen::ErrorEvent(code) => format!("event {code}"),
            Seen::EngineEvent => "engine's event".into(),
            Seen::Left => "left".into(),
            Seen::Lie(what) => format!("LIE: {what}"),
        }
    }

    /// Classifies `answer`, where the right words are `words` and an engine's refusal is `refusal`.
    pub fn of(cell: &Cell, answer: &Raw, words: &str, refusal: &str) -> Seen {
        look(cell, answer, words, refusal).unwrap_or_else(Seen::Lie)
    }
}

fn check(holds: bool, what: &str, answer: &Raw) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what}: {} {}", answer.head, answer.text())) }
}

fn look(cell: &Cell, answer: &Raw, words: &str, refusal: &str) -> Result<Seen, String> {
    let text = answer.text();
    check(answer.status != 0 && !text.is_empty(), "nothing", answer)?;
    check(!text.contains("127.0.0.1"), "an engine's address", answer)?;
    if answer.status != 200 {
        check(answer.complete, "an incomplete error", answer)?;
        let Some(ours) = answer.header("x-pd-error") else {
            check(text == refusal, "a refusal that was changed", answer)?;
            return Ok(Seen::Refused(answer.status));
        };
        check(json_of(&text)?["error"]["code"] == *ours, "an error without its code", answer)?;
        return Ok(Seen::Error(answer.status, ours.to_owned()));
    }
    let sse = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    check(sse == cell.stream, "the other form", answer)?;
    if cell.stream {
        return stream(cell, answer, words);
    }
    check(answer.complete && text_of(&json_of(&text)?) == words, "another answer", answer)?;
    Ok(Seen::Whole)
}

fn json_of(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| format!("{e}: {text}"))
}

/// The generated text of an answer or of one event of it.
fn text_of(value: &Value) -> &str {
    const PLACES: [&str; 7] = [
        "/choices/0/message/content",
        "/choices/0/delta/content",
        "/choices/0/text",
        "/content/0/text",
        "/output/0/content/0/text",
        "/delta/text",
        "/delta",
    ];
    match value["type"].as_str() {
        Some(kind) if kind.contains('.') && kind != "response.output_text.delta" => "",
        _ => PLACES.iter().find_map(|place| value.pointer(place)?.as_str()).unwrap_or(""),
    }
}

/// The words of a whole answer.
pub fn words_of(answer: &Raw) -> String {
    text_of(&answer.json()).to_owned()
}

fn is_end(event: &Value) -> bool {
    const ENDS: [&str; 3] = ["response.completed", "response.incomplete", "message_stop"];
    event == "[DONE]" || event["type"].as_str().is_some_and(|kind| ENDS.contains(&kind))
}

/// The code of an error event.
fn error_of(api: Api, event: &Value) -> Option<Value> {
    match api {
        Api::Responses => (event["type"] == "error").then(|| event["code"].clone()),
        _ => event.get("error").filter(|error| !error.is_null()).map(|error| error["code"].clone()),
    }
}

fn stream(cell: &Cell, answer: &Raw, words: &str) -> Result<Seen, String> {
    let text = answer.text();
    check(text.ends_with("\n\n"), "a part of an event", answer)?;
    let events: Vec<Value> = data_of_events(&text)
        .map(|data| if data == "[DONE]" { Ok(json!("[DONE]")) } else { json_of(data) })
        .collect::<Result<_, _>>()?;
    let errors: Vec<Value> = events.iter().filter_map(|event| error_of(cell.api, event)).collect();
    let ends = events.iter().filter(|event| is_end(event)).count();
    let said: String = events.iter().map(text_of).collect();
    let ids: std::collections::HashSet<&str> =
        events.iter().filter_map(|event| event["id"].as_str()).collect();
    check(ids.len() <= 1, "several ids", answer)?;
    check(!said.is_empty() || !errors.is_empty(), "200 and empty", answer)?;
    match errors.as_slice() {
        [] => {
            check(ends == 1 && events.last().is_some_and(is_end), "no end, or several", answer)?;
            check(answer.complete, "an unclean end of a whole stream", answer)?;
            check(said == words, &format!("said {said:?}, not {words:?}"), answer)?;
            Ok(Seen::Whole)
        }
        [code] => {
            check(words.starts_with(&said), "words that are none of the answer's", answer)?;
            match code.as_str() {
                Some(code) => {
                    let last = events.last().is_some_and(|event| error_of(cell.api, event).is_some());
                    check(ends == 0 && last && !answer.complete, "a broken stream that ends well", answer)?;
                    Ok(Seen::ErrorEvent(code.to_owned()))
                }
                None => {
                    check(ends <= 1 && answer.complete, "the engine's error and no end", answer)?;
                    Ok(Seen::EngineEvent)
                }
            }
        }
        _ => Err(format!("several error events: {text}")),
    }
}
