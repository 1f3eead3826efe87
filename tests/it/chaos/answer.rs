//! The answer to a client, and its comparison with the truth.

use serde_json::{Value, json};

use super::plan::{Api, Request};
use crate::common::client::data_of_events;

/// The answer to a client that stayed to the end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Our own error code, where the answer is our error.
    pub ours: Option<String>,
    pub sse: bool,
    pub body: String,
    /// The connection ended as it should.
    pub clean: bool,
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Messages => "/v1/messages",
            Api::Responses => "/v1/responses",
        }
    }
}

impl Request {
    pub fn body(&self) -> String {
        let prompt =
            format!("{:?} has {} words{}", self.api, self.words, " word".repeat(self.words as usize));
        let said = json!([{"role": "user", "content": prompt}]);
        let (tokens, stream) = (self.tokens, self.stream);
        let body = match self.api {
            Api::Chat | Api::Messages => json!({"messages": said, "max_tokens": tokens, "stream": stream}),
            Api::Completions => json!({"prompt": prompt, "max_tokens": tokens, "stream": stream}),
            Api::Responses => json!({"input": prompt, "max_output_tokens": tokens, "stream": stream}),
        };
        body.to_string()
    }
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
    PLACES.iter().find_map(|place| value.pointer(place)?.as_str()).unwrap_or("")
}

/// Events as data, `[DONE]` as a string.
fn events(body: &str) -> Vec<Value> {
    let value = |data: &str| match data {
        "[DONE]" => json!("[DONE]"),
        data => serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")),
    };
    data_of_events(body).map(value).collect()
}

/// An error as the API has it. What an engine writes in the way of another API is none: clients do
/// not look for it.
fn is_error(api: Api, event: &Value) -> bool {
    match api {
        Api::Chat | Api::Completions => event.get("error").is_some_and(|error| !error.is_null()),
        Api::Messages => event["type"] == "error",
        Api::Responses => event["type"] == "error" || event["type"] == "response.failed",
    }
}

fn is_end(event: &Value) -> bool {
    const ENDS: [&str; 3] = ["response.completed", "response.incomplete", "message_stop"];
    event == "[DONE]" || event["type"].as_str().is_some_and(|kind| ENDS.contains(&kind))
}

impl Answer {
    /// The text of a whole answer.
    pub fn text(&self) -> String {
        match self.sse {
            true => events(&self.body).iter().filter(|e| !is_end(e)).map(events_text).collect(),
            false => text_of(&serde_json::from_str(&self.body).unwrap()).to_owned(),
        }
    }

    /// Panics unless it is a complete answer with the `right` text, or says that it is none.
    pub fn assert_honest(&self, api: Api, right: &str) {
        assert_ne!(self.ours.as_deref(), Some("internal"), "a bug of ours: {self:?}");
        assert!(!self.body.is_empty(), "nothing at all: {self:?}");
        if self.status != 200 {
            assert!(self.clean, "{self:?}");
            let error: Value = serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"));
            // vLLM's 401 has a text for an error.
            let says_why = error["error"].is_object() || error["error"].is_string();
            assert!(says_why || error["detail"].is_string(), "{self:?}");
        } else if self.sse {
            self.assert_honest_stream(api, right);
        } else {
            assert!(self.clean, "{self:?}");
            assert_eq!(self.text(), right, "{self:?}");
        }
    }

    fn assert_honest_stream(&self, api: Api, right: &str) {
        let events = events(&self.body);
        let errors = events.iter().filter(|event| is_error(api, event)).count();
        let ends = events.iter().filter(|event| is_end(event)).count();
        let text = self.text();
        assert!(events.iter().any(|event| event != "[DONE]"), "empty: {self:?}");
        if errors == 0 {
            assert_eq!((ends, self.clean, text.as_str()), (1, true, right), "{self:?}");
            assert!(events.last().is_some_and(is_end), "something after the end: {self:?}");
            return;
        }
        assert_eq!(errors, 1, "{self:?}");
        assert!(right.starts_with(&text), "{text:?} is not how {right:?} begins: {self:?}");
        // vLLM ends a stream with `[DONE]` also behind its own error event.
        let after = events.iter().skip_while(|event| !is_error(api, event)).skip(1);
        assert!(after.clone().all(|event| event == "[DONE]") && after.count() <= 1, "{self:?}");
    }
}

/// The text of one event, without those that repeat all of it.
fn events_text(event: &Value) -> &str {
    match event["type"].as_str() {
        None | Some("content_block_delta" | "response.output_text.delta") => text_of(event),
        Some(_) => "",
    }
}
