//! Questions to an engine's `/tokenize` whose answer is the prompt of a generating request (vLLM
//! 0.32 and 0.33, `TokenizeChatRequest` and `TokenizeCompletionRequest` against
//! `ChatCompletionRequest` and `CompletionRequest`).
//!
//! Both endpoints render and tokenise with the same code, but `/tokenize` takes fewer members.
//! Those that it lacks are said by other means where vLLM itself would arrive at the same
//! arguments, and are a [`Reason`] where not.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value as Json;

use crate::codec::json::{Object, Value};
use crate::dialect::Api;
use crate::prompt::{
    Chat, Edition, Editions, EffortMap, MAX_TEXT_BYTES, PromptSource, Reason, Rules, most_tokens,
};

/// Members of a chat that `/tokenize` knows under the same name and with the same default.
const CHAT_MEMBERS: [&str; 4] =
    ["add_generation_prompt", "continue_final_message", "add_special_tokens", "tools"];

/// Ways to get a prompt's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizeRequest {
    /// The request brings them itself.
    Known(Arc<[u32]>),
    /// The body of a `POST /tokenize`.
    Ask(Bytes),
}

/// The question to put for a request, to engines of any release that was compared with and that
/// map no efforts.
///
/// # Errors
/// The [`Reason`] for which the answer would not be the prompt, or might not be.
pub fn tokenize_request(api: Api, body: &Object) -> Result<TokenizeRequest, Reason> {
    tokenize_request_under(api, body, Rules::ANY_EDITION, &EffortMap::new())
}

/// The same to an engine that shares no more than `rules`, with its `--reasoning-effort-map`: what
/// it lacks by others is said by its own means, which are not known.
///
/// # Errors
/// Fails as [`tokenize_request`] does.
pub(super) fn tokenize_request_under(
    api: Api,
    body: &Object,
    rules: Rules,
    efforts: &EffortMap,
) -> Result<TokenizeRequest, Reason> {
    // It takes chats and completions.
    if matches!(api, Api::Responses | Api::Messages) {
        return Err(Reason::Api);
    }
    let source = PromptSource::read(api, body)?;
    match (most_tokens(body)?, &source) {
        (None, _) => {}
        (Some(most), PromptSource::TokenIds(ids)) if ids.len() <= most => {}
        // Nobody knows before the answer if something is cut off.
        (Some(_), _) => return Err(Reason::Truncation),
    }
    if !matches!(source, PromptSource::TokenIds(_)) && body.bytes().len() > MAX_TEXT_BYTES {
        return Err(Reason::TooLong);
    }
    match source {
        PromptSource::TokenIds(ids) => Ok(TokenizeRequest::Known(ids)),
        PromptSource::Text { .. } => completion(body).map(TokenizeRequest::Ask),
        PromptSource::Messages(chat) if !rules.topics.covers(chat.needs()) => Err(Reason::Release),
        PromptSource::Messages(mut chat) => {
            match rules.editions {
                Editions::One(Edition::Of32) => {}
                Editions::One(Edition::Of33) => chat.map_effort(efforts),
                Editions::Both if chat.is_mapped(efforts) => return Err(Reason::Release),
                Editions::Both => {}
            }
            conversation(body, &chat).map(TokenizeRequest::Ask)
        }
    }
}

/// A text in a list of its own is asked for as the text: `/tokenize` takes no lists.
fn completion(body: &Object) -> Result<Bytes, Reason> {
    let prompt = body.get("prompt").ok_or(Reason::Shape)?;
    let text = prompt.first_element().unwrap_or(prompt);
    let mut out = Writer::new(body)?;
    out.member("prompt", text.raw());
    out.same(body, "add_special_tokens");
    Ok(out.end())
}

fn conversation(body: &Object, chat: &Chat) -> Result<Bytes, Reason> {
    if chat.has_media() {
        return Err(Reason::Media);
    }
    if constrained(body) {
        return Err(Reason::Constraint);
    }
    let mut out = Writer::new(body)?;
    match chat.renamed_reasoning() {
        Some(messages) => out.value("messages", &Json::Array(messages)),
        None => out.same(body, "messages"),
    }
    for member in CHAT_MEMBERS {
        out.same(body, member);
    }
    let (variables, documents) = chat.variables();
    if documents.is_null() && present(body, "reasoning_effort").is_none() {
        out.same(body, "chat_template_kwargs");
        return Ok(out.end());
    }
    // To the chat endpoint these are variables like the client's own, and win over them.
    let mut variables = variables.clone();
    if !documents.is_null() {
        variables.insert("documents".to_owned(), documents.clone());
    }
    out.value("chat_template_kwargs", &Json::Object(variables));
    Ok(out.end())
}

/// True if the prompt may depend on what may be generated: the renderers of some models write a
/// choice or a format into it.
fn constrained(body: &Object) -> bool {
    let chosen = |choice: Value<'_>| choice.as_str().is_none_or(|name| name != "auto");
    present(body, "response_format").is_some()
        || (present(body, "tools").is_some() && present(body, "tool_choice").is_some_and(chosen))
}

fn present<'a>(body: &'a Object, key: &str) -> Option<Value<'a>> {
    body.get(key).filter(|value| !value.is_null())
}

/// A JSON object under construction, member by member, values as the client spelled them.
struct Writer(Vec<u8>);

impl Writer {
    /// Starts with the model, which may also choose a LoRA adapter.
    fn new(body: &Object) -> Result<Self, Reason> {
        let mut out = Self(vec![b'{']);
        match present(body, "model") {
            Some(model) if model.is_string() => out.member("model", model.raw()),
            Some(_) => return Err(Reason::Shape),
            None => {}
        }
        Ok(out)
    }

    fn member(&mut self, key: &'static str, value: &[u8]) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
        self.0.extend_from_slice(value);
    }

    /// A member of the client's, if it is there.
    fn same(&mut self, body: &Object, key: &'static str) {
        if let Some(value) = body.get(key) {
            self.member(key, value.raw());
        }
    }

    fn value(&mut self, key: &'static str, value: &Json) {
        self.member(key, value.to_string().as_bytes());
    }

    fn end(mut self) -> Bytes {
        self.0.push(b'}');
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;

    #[track_caller]
    fn asks(api: Api, body: &str, expect: Result<&str, Reason>) {
        let object = Object::scan(Bytes::copy_from_slice(body.as_bytes()), ScanLimits::default()).unwrap();
        let expect = expect.map(|text| TokenizeRequest::Ask(Bytes::copy_from_slice(text.as_bytes())));
        assert_eq!(tokenize_request(api, &object), expect, "{body}");
    }

    const HI: &str = r#""messages":[{"role":"user","content":"Hi"}]"#;

    #[test]
    fn a_completion_is_asked_with_the_clients_own_bytes() {
        let c = Api::Completions;
        asks(c, r#"{ "prompt" : "\u00fc \n", "max_tokens": 3 }"#, Ok(r#"{"prompt":"\u00fc \n"}"#));
        asks(
            c,
            r#"{"prompt":["a"],"add_special_tokens":false,"model":"m","suffix":null}"#,
            Ok(r#"{"model":"m","prompt":"a","add_special_tokens":false}"#),
        );
        asks(c, r#"{"prompt":"x","prompt":"y"}"#, Ok(r#"{"prompt":"y"}"#));
        asks(c, r#"{"prompt":"a","suffix":"b"}"#, Err(Reason::Shape));
        asks(c, r#"{"prompt":"a","model":1}"#, Err(Reason::Shape));
        asks(c, r#"{"prompt":["a","b"]}"#, Err(Reason::Batch));
        asks(c, r#"{"prompt":"a","truncate_prompt_tokens":-1}"#, Err(Reason::Truncation));
        asks(Api::Responses, r#"{"input":"a"}"#, Err(Reason::Api));
    }

    #[test]
    fn token_ids_are_known_and_not_asked_for() {
        for (api, body) in
            [(Api::Completions, r#"{"prompt":[1,2]}"#), (Api::Generate, r#"{"token_ids":[1,2]}"#)]
        {
            let object = Object::scan(Bytes::from_static(body.as_bytes()), ScanLimits::default()).unwrap();
            assert_eq!(tokenize_request(api, &object), Ok(TokenizeRequest::Known([1, 2].into())));
        }
    }

    #[test]
    fn a_chat_keeps_what_tokenize_knows_and_drops_what_does_not_matter() {
        let tools = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;
        asks(
            Api::Chat,
            &format!(
                r#"{{"temperature":0,{tools},"tool_choice":"auto",{HI},"add_generation_prompt":false,
                "chat_template_kwargs":{{"enable_thinking":false}},"model":"m","stream":true,"response_format":null}}"#
            ),
            Ok(&format!(
                r#"{{"model":"m",{HI},"add_generation_prompt":false,{tools},"chat_template_kwargs":{{"enable_thinking":false}}}}"#
            )),
        );
    }

    #[test]
    fn members_unknown_to_tokenize_become_template_variables() {
        let chat = |more: &str| format!("{{{HI}{more}}}");
        let c = Api::Chat;
        asks(
            c,
            &chat(r#","reasoning_effort":"none""#),
            Ok(&chat(r#","chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"none"}"#)),
        );
        asks(
            c,
            &chat(
                r#","reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"high"}"#,
            ),
            Ok(&chat(r#","chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"low"}"#)),
        );
        asks(
            c,
            &chat(r#","documents":[{"text":"a"}]"#),
            Ok(&chat(r#","chat_template_kwargs":{"documents":[{"text":"a"}]}"#)),
        );
    }

    #[test]
    fn an_effort_is_asked_for_as_engines_map_it() {
        let body = format!(r#"{{{HI},"reasoning_effort":"minimal"}}"#);
        let body = Object::scan(Bytes::from(body), ScanLimits::default()).unwrap();
        let efforts = EffortMap::from([("minimal".to_owned(), "none".to_owned())]);
        let asked = |rules| tokenize_request_under(Api::Chat, &body, rules, &efforts);
        let variables = |thinks: bool, effort: &str| {
            let variables = format!(
                r#""chat_template_kwargs":{{"enable_thinking":{thinks},"reasoning_effort":"{effort}"}}"#
            );
            Ok(TokenizeRequest::Ask(format!("{{{HI},{variables}}}").into()))
        };
        assert_eq!(asked(Rules::OF_32), variables(true, "minimal"));
        assert_eq!(asked(Rules::OF_33), variables(false, "none"));
        assert_eq!(asked(Rules::ANY_EDITION), Err(Reason::Release));
        assert_eq!(asked(Rules::EVERY_RELEASE), Err(Reason::Release));
    }

    #[test]
    fn the_older_name_of_reasoning_is_renamed_as_the_chat_endpoint_does() {
        let message = |more: &str| format!(r#"{{"messages":[{{"role":"assistant","content":"a"{more}}}]}}"#);
        let c = Api::Chat;
        asks(c, &message(r#","reasoning_content":"r""#), Ok(&message(r#","reasoning":"r""#)));
        for kept in [r#","reasoning_content":"r","reasoning":"s""#, r#","reasoning_content":null"#] {
            asks(c, &message(kept), Ok(&message(kept)));
        }
    }

    #[test]
    fn requests_that_tokenize_treats_differently_are_not_asked() {
        let c = Api::Chat;
        let tools = r#""tools":[{"function":{"name":"f"}}]"#;
        for (more, reason) in [
            (r#""chat_template":"x""#.to_owned(), Reason::ClientTemplate),
            (r#""chat_template_kwargs":{"chat_template":"x"}"#.to_owned(), Reason::TemplateKwargs),
            (r#""truncate_prompt_tokens":9"#.to_owned(), Reason::Truncation),
            (r#""response_format":{"type":"json_object"}"#.to_owned(), Reason::Constraint),
            (format!(r#"{tools},"tool_choice":"none""#), Reason::Constraint),
            (format!(r#"{tools},"tool_choice":{{"type":"function"}}"#), Reason::Constraint),
            (r#""continue_final_message":true"#.to_owned(), Reason::Shape),
        ] {
            asks(c, &format!("{{{HI},{more}}}"), Err(reason));
        }
        let image =
            r#"{"messages":[{"role":"user","content":["a",{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        asks(c, image, Err(Reason::Media));
        asks(c, r#"{"messages":[{"role":"user","content":"\ud800"}]}"#, Err(Reason::Json));
    }
}
