//! Facts of a body that routing needs. They are read from the top-level members, and from what the
//! scan has noted of media; nothing is parsed deeper.

use std::borrow::Cow;

use crate::codec::json::{Object, Value};
use crate::dialect::Api;
use crate::dialect::media::{media, text_tokens};
use crate::dialect::resume::AbortSign;
use crate::route::estimate::{self, KINDS, MediaEstimate};

/// The facts of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The client wants server-sent events.
    pub stream: bool,
    /// The model that it names.
    pub model: Option<String>,
    /// Prompt length, estimated from the size of the body and the number of media in it.
    pub prompt_tokens: u64,
    /// Of this, what is text.
    pub text_tokens: u64,
    /// Images, sounds, films and files in the prompt.
    pub media: MediaEstimate,
    /// Expected length of the answer.
    pub output_tokens: u64,
    /// The longest answer that the client wants, if it says.
    pub most_tokens: Option<u64>,
    /// Answers that it wants to each of its prompts.
    pub answers: u64,
    /// Prompts that it has.
    pub prompts: u64,
    /// The most tokens that engines are to put into one event of a stream (`stream_interval`, vLLM
    /// 0.32); 1 where nothing is said.
    pub event_tokens: u64,
    /// Reason why this request must not be prefilled elsewhere, if so.
    pub bypass: Option<Bypass>,
    /// The response goes on when its client is gone, who asks for it again by its id.
    pub background: bool,
    /// The sign in an answer by which its engine gave it up.
    pub given_up: AbortSign,
}

/// Reasons why a request goes to a decoder alone, which then computes the prompt itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bypass {
    /// Several prompts in one body that are not asked one by one ([`super::batch`]). A prefiller's
    /// answer carries the hand-off of the first one only (vLLM 0.32); with it the decoder would
    /// read the wrong KV for the others, or die when one of them is longer.
    SeveralPrompts,
    /// A search over several answers (`use_beam_search`): engines ask themselves for each next
    /// token, without a hand-off (vLLM 0.32), so that what a prefiller kept would be fetched by
    /// nobody.
    Beam,
    /// The prompt, or one more, comes as embeddings (`prompt_embeds`).
    Embeddings,
    /// The client wants the scores of the prompt's own tokens, which only the engine that answers
    /// can compute.
    PromptScores,
    /// It goes on from a stored response, which no prefiller knows.
    StoredResponse,
    /// The engine calls tools by itself (code interpreter, search, MCP) and goes on with what they
    /// say. Each of its turns would fetch the first one's KV again, which is another's by then
    /// (vLLM 0.32: the parameters stay for all turns).
    EngineTools,
    /// The engine is to cut the prompt to the room that the answer leaves in the context
    /// (`truncate_prompt_tokens` -1, `truncation` of responses). A prefiller, whose answer is one
    /// token, has more room: its KV would be that of other tokens.
    Truncation,
    /// Several answers to one prompt. Each would fetch the KV, or want a prefill of its own
    /// (decoder first), and what a prefiller keeps it keeps until the first one has it.
    SeveralChoices,
    /// It is not known what engines will call the request, by which they are to find each other
    /// (decoder first, and NIXL's push).
    UnknownNames,
}

impl Bypass {
    /// The value of the metric label `reason`.
    pub fn name(self) -> &'static str {
        match self {
            Bypass::SeveralPrompts => "several_prompts",
            Bypass::Beam => "beam",
            Bypass::Embeddings => "embeddings",
            Bypass::PromptScores => "prompt_scores",
            Bypass::StoredResponse => "stored_response",
            Bypass::EngineTools => "engine_tools",
            Bypass::Truncation => "truncation",
            Bypass::SeveralChoices => "several_choices",
            Bypass::UnknownNames => "unknown_names",
        }
    }

    /// Text for a client where no decoder can answer alone, and the member that it is about.
    pub fn refusal(self) -> (&'static str, &'static str) {
        match self {
            Bypass::SeveralPrompts => (
                "prompt",
                "these engines can't answer several prompts at once, and the gateway can't ask them one by one: there are \
                 more than limit.prompts, or they are neither all texts nor all lists of tokens",
            ),
            Bypass::Beam => {
                ("use_beam_search", "these engines have no beam search across prefiller and decoder")
            }
            Bypass::Embeddings => {
                ("prompt_embeds", "these engines take no embeddings across prefiller and decoder")
            }
            Bypass::PromptScores => {
                ("logprobs", "these engines can't score the prompt's own tokens across prefiller and decoder")
            }
            Bypass::StoredResponse => {
                ("previous_response_id", "these engines keep no responses across prefiller and decoder")
            }
            Bypass::EngineTools => {
                ("tools", "these engines can't call tools by themselves across prefiller and decoder")
            }
            Bypass::Truncation => (
                "truncate_prompt_tokens",
                "these engines can't cut a prompt to what fits across prefiller and decoder; a number of tokens they can",
            ),
            Bypass::SeveralChoices => ("n", "these engines give one answer across prefiller and decoder"),
            Bypass::UnknownNames => (
                "model",
                "these engines can't tell each other of such a request across prefiller and decoder",
            ),
        }
    }
}

impl Shape {
    /// Reads the facts; wrong types are left to the engine, which answers them with its own 400.
    pub fn read(api: Api, body: &Object) -> Shape {
        let number = |key: &str| body.get(key).and_then(|v| v.as_u64());
        let most_tokens = number("max_completion_tokens").or_else(|| number(api.max_tokens_member()));
        let bypass = bypass(api, body, true);
        let prompts = if bypass == Some(Bypass::SeveralPrompts) { prompts(body) } else { 1 };
        let packs = matches!(api, Api::Chat | Api::Completions);
        let (text_tokens, media) = (text_tokens(body), media(body));
        Shape {
            stream: body.get("stream").and_then(|v| v.as_bool()).unwrap_or(false),
            model: body.get("model").and_then(|v| v.as_str().map(Cow::into_owned)),
            prompt_tokens: text_tokens + media.tokens(),
            text_tokens,
            media,
            output_tokens: estimate::output_tokens(most_tokens).saturating_mul(prompts),
            most_tokens,
            answers: number("n").unwrap_or(1).max(1),
            prompts,
            event_tokens: number("stream_interval").filter(|_| packs).unwrap_or(1).max(1),
            bypass,
            background: api == Api::Responses && asks_for(body, "background"),
            given_up: AbortSign::of(api, body),
        }
    }

    /// Estimates the prompt's length anew where its first `tokens` are known and `rest_bytes` of
    /// its text come after them, beside the media.
    pub fn estimate_after(&mut self, tokens: usize, rest_bytes: usize) {
        self.text_tokens = tokens as u64 + estimate::prompt_tokens(rest_bytes);
        self.prompt_tokens = self.text_tokens + self.media.tokens();
    }

    /// Estimates the prompt's length anew, with so many tokens for a medium of each kind.
    pub fn estimate_media(&mut self, each: [u32; KINDS]) {
        self.media.each = each;
        self.prompt_tokens = self.text_tokens + self.media.tokens();
    }
}

/// Types of tools that vLLM calls where it has a tool server (0.32); all others are the client's to
/// call.
const ENGINE_TOOLS: [&str; 4] = ["code_interpreter", "container", "mcp", "web_search_preview"];

/// Reason why no prefiller can do the prompt; `lists`: lists of prompts are a reason.
pub(super) fn bypass(api: Api, body: &Object, lists: bool) -> Option<Bypass> {
    let given = |key: &str| body.get(key).is_some_and(|v| !v.is_null());
    let asks_for = |key: &str| asks_for(body, key);
    let generates_text = matches!(api, Api::Chat | Api::Completions);
    if api == Api::Completions && given("prompt_embeds") {
        Some(Bypass::Embeddings)
    } else if lists && several_prompts(api, body) {
        Some(Bypass::SeveralPrompts)
    } else if generates_text && asks_for("use_beam_search") {
        Some(Bypass::Beam)
    } else if scores_prompt(api, body) {
        Some(Bypass::PromptScores)
    } else if api == Api::Responses && given("previous_response_id") {
        Some(Bypass::StoredResponse)
    } else if api == Api::Responses && has_engine_tools(body) {
        Some(Bypass::EngineTools)
    } else if cuts_to_fit(api, body) {
        Some(Bypass::Truncation)
    } else {
        None
    }
}

/// True if the prompt's own tokens are to be scored. With `echo` vLLM scores as many candidates of
/// them as are wanted of the answer's: `logprobs` says how many in completions; in chats
/// `top_logprobs` does, which is 0 where it is absent, and 0 scores, too.
fn scores_prompt(api: Api, body: &Object) -> bool {
    let given = |holder: &Object, key: &str| holder.get(key).is_some_and(|v| !v.is_null());
    match api {
        Api::Chat => {
            let counts = body.get("top_logprobs").is_none_or(|v| !v.is_null());
            given(body, "prompt_logprobs") || (counts && asks_for(body, "echo"))
        }
        Api::Completions => {
            given(body, "prompt_logprobs") || (given(body, "logprobs") && asks_for(body, "echo"))
        }
        Api::Generate => {
            let params = body.get("sampling_params").and_then(|params| params.object().ok());
            params.is_some_and(|params| given(&params, "prompt_logprobs"))
        }
        Api::Responses | Api::Messages => false,
    }
}

/// True if an engine does more for a request than to answer it: it calls tools by itself, or goes
/// on when nobody listens. Begun a second time, all that is done twice.
pub fn acts(api: Api, body: &Object) -> bool {
    api == Api::Responses && (asks_for(body, "background") || has_engine_tools(body))
}

/// True if a response may use tools that its engine calls by itself.
fn has_engine_tools(body: &Object) -> bool {
    let kind = |tool: Value<'_>| tool.object().ok()?.get("type")?.as_str().map(Cow::into_owned);
    let mut tools = body.get("tools").into_iter().flat_map(|tools| tools.elements());
    tools.any(|tool| kind(tool).is_some_and(|kind| ENGINE_TOOLS.contains(&kind.as_str())))
}

/// True if more than one answer is asked for. What is no number is the engine's to refuse.
pub(super) fn several_answers(api: Api, body: &Object) -> bool {
    let several =
        |holder: &Object, key| holder.get(key).is_some_and(|n| !n.is_null() && n.as_u64() != Some(1));
    let sampling = || body.get("sampling_params").filter(|_| api == Api::Generate)?.object().ok();
    ["n", "best_of"].iter().any(|key| several(body, key))
        || sampling().is_some_and(|params| several(&params, "n"))
}

/// True if the answer must be a call of a tool: of any (`required`, Anthropic's `any`), or of one
/// that is named.
pub fn forces_a_call(api: Api, body: &Object) -> bool {
    let Some(choice) = body.get("tool_choice") else { return false };
    let kind = || choice.object().ok()?.get("type")?.as_str().map(Cow::into_owned);
    match api {
        Api::Chat | Api::Responses => choice.is_object() || choice.as_str().as_deref() == Some("required"),
        Api::Messages => matches!(kind().as_deref(), Some("any" | "tool")),
        Api::Completions | Api::Generate => false,
    }
}

/// True if a body asks for what this member switches on: engines take 1 or "yes" for true, too.
pub(super) fn asks_for(body: &Object, key: &str) -> bool {
    body.get(key).is_some_and(|value| !value.is_null() && value.as_bool() != Some(false))
}

/// True if the engine is to cut the prompt by limits of its own, and not to a number of tokens that
/// the client names.
fn cuts_to_fit(api: Api, body: &Object) -> bool {
    match api {
        Api::Chat | Api::Completions => {
            body.get("truncate_prompt_tokens").is_some_and(|most| !most.is_null() && most.as_u64().is_none())
        }
        // vLLM asks whether it is "disabled", which null is not.
        Api::Responses => {
            body.get("truncation").is_some_and(|how| how.as_str().as_deref() != Some("disabled"))
        }
        Api::Messages | Api::Generate => false,
    }
}

/// True if a completions body holds more than one prompt: a list of texts or of token lists with at
/// least two entries. A list of numbers is one prompt.
pub(super) fn several_prompts(api: Api, body: &Object) -> bool {
    let Some(prompt) = body.get("prompt").filter(|_| api == Api::Completions) else {
        return false;
    };
    let one_prompt_each = |first: Value<'_>| first.is_string() || first.is_array();
    prompt.first_element().is_some_and(one_prompt_each) && prompt.array_len_capped(2) == Some(2)
}

/// Number of prompts in a body with several.
fn prompts(body: &Object) -> u64 {
    body.get("prompt").map_or(1, |prompt| prompt.elements().count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;
    use crate::dialect::Dialect;

    fn read(api: Api, text: &str) -> Shape {
        Shape::read(api, &Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap())
    }

    #[test]
    fn several_prompts_are_seen_and_one_is_not() {
        let bypass =
            |prompt: &str| read(Api::Completions, &format!(r#"{{"prompt":{prompt}}}"#)).bypass.is_some();
        assert!(bypass(r#"["a","b"]"#) && bypass("[[1,2],[3]]"));
        assert!(
            !bypass(r#""a""#)
                && !bypass("[1,2,3]")
                && !bypass(r#"["a"]"#)
                && !bypass("[[1,2]]")
                && !bypass("[]")
        );
        assert!(read(Api::Chat, r#"{"prompt":["a","b"]}"#).bypass.is_none());
        let expected = |prompt: &str| {
            read(Api::Completions, &format!(r#"{{"prompt":{prompt},"max_tokens":7}}"#)).output_tokens
        };
        assert_eq!((expected(r#"["a","b","c"]"#), expected(r#"["a"]"#), expected("[1,2]")), (21, 7, 7));
    }

    #[test]
    fn requests_for_one_engine_are_recognised() {
        let bypass = |api, text| read(api, text).bypass;
        assert_eq!(
            bypass(Api::Completions, r#"{"prompt":"a","prompt_embeds":["x"]}"#),
            Some(Bypass::Embeddings)
        );
        assert_eq!(bypass(Api::Completions, r#"{"prompt":"a","prompt_embeds":null}"#), None);
        assert_eq!(bypass(Api::Chat, r#"{"use_beam_search":true,"n":2}"#), Some(Bypass::Beam));
        assert_eq!(bypass(Api::Completions, r#"{"use_beam_search":false}"#), None);
        assert_eq!(bypass(Api::Chat, r#"{"prompt_logprobs":0}"#), Some(Bypass::PromptScores));
        assert_eq!(bypass(Api::Completions, r#"{"echo":true,"logprobs":1}"#), Some(Bypass::PromptScores));
        assert_eq!(bypass(Api::Completions, r#"{"echo":true,"logprobs":null}"#), None);
        assert_eq!(bypass(Api::Responses, r#"{"previous_response_id":"r"}"#), Some(Bypass::StoredResponse));
        assert_eq!(bypass(Api::Chat, r#"{"previous_response_id":"r"}"#), None);
        let tools = r#"{"tools":[{"type":"function"},{"type":"code_interpreter"}]}"#;
        assert_eq!(bypass(Api::Responses, tools), Some(Bypass::EngineTools));
        assert_eq!(bypass(Api::Chat, tools), None);
        assert_eq!(bypass(Api::Responses, r#"{"tools":[{"type":"custom"},{"type":"local_shell"}]}"#), None);
        let scores = r#"{"sampling_params":{"prompt_logprobs":0}}"#;
        assert_eq!(bypass(Api::Generate, scores), Some(Bypass::PromptScores));
        assert_eq!(bypass(Api::Generate, r#"{"sampling_params":{"prompt_logprobs":null}}"#), None);
        // Engines take these for true (pydantic's lax mode).
        assert_eq!(bypass(Api::Chat, r#"{"use_beam_search":1}"#), Some(Bypass::Beam));
        assert_eq!(bypass(Api::Completions, r#"{"echo":"yes","logprobs":1}"#), Some(Bypass::PromptScores));
        assert_eq!(bypass(Api::Completions, r#"{"echo":null,"logprobs":1}"#), None);
    }

    /// The number of scored candidates has another name in chats, and 0 for its default.
    #[test]
    fn an_echo_scores_the_prompt_of_a_chat_without_being_asked_to() {
        let scores = |api, text: &str| read(api, text).bypass == Some(Bypass::PromptScores);
        for text in [
            r#"{"echo":true}"#,
            r#"{"echo":1,"logprobs":false}"#,
            r#"{"echo":true,"logprobs":null}"#,
            r#"{"echo":true,"top_logprobs":0}"#,
            r#"{"echo":true,"logprobs":true,"top_logprobs":5}"#,
            r#"{"echo":true,"top_logprobs":null,"prompt_logprobs":0}"#,
        ] {
            assert!(scores(Api::Chat, text), "{text}");
        }
        for text in [
            r#"{"echo":false}"#,
            r#"{"echo":null,"top_logprobs":5}"#,
            r#"{"logprobs":true,"top_logprobs":5}"#,
            r#"{"echo":true,"logprobs":true,"top_logprobs":null}"#,
        ] {
            assert!(!scores(Api::Chat, text), "{text}");
        }
        assert!(!scores(Api::Completions, r#"{"echo":true,"top_logprobs":5}"#));
        assert!(!scores(Api::Completions, r#"{"echo":true}"#));
    }

    #[test]
    fn non_repeatable_requests_are_recognised() {
        let acts =
            |api, text: &'static str| acts(api, &Object::scan(text.into(), ScanLimits::default()).unwrap());
        for text in [
            r#"{"background":true}"#,
            r#"{"tools":[{"type":"function"},{"type":"mcp"}]}"#,
            r#"{"previous_response_id":"r","tools":[{"type":"code_interpreter"}]}"#,
        ] {
            assert!(acts(Api::Responses, text) && !acts(Api::Chat, text), "{text}");
        }
        for text in ["{}", r#"{"background":false,"tools":[{"type":"function"}],"store":true}"#] {
            assert!(!acts(Api::Responses, text), "{text}");
        }
    }

    #[test]
    fn answers_that_must_be_calls_are_known() {
        let forces = |api, text: &'static str| {
            forces_a_call(api, &Object::scan(text.into(), ScanLimits::default()).unwrap())
        };
        let named = r#"{"tool_choice":{"type":"function","function":{"name":"f"}}}"#;
        let required = r#"{"tool_choice":"required"}"#;
        for api in [Api::Chat, Api::Responses] {
            assert!(forces(api, named) && forces(api, required));
            for free in
                [r#"{"tool_choice":"auto"}"#, r#"{"tool_choice":"none"}"#, r#"{"tool_choice":null}"#, "{}"]
            {
                assert!(!forces(api, free), "{free}");
            }
        }
        for (choice, is) in [("any", true), ("tool", true), ("auto", false), ("none", false)] {
            let text = format!(r#"{{"tool_choice":{{"type":"{choice}"}}}}"#);
            let body = Object::scan(text.into(), ScanLimits::default()).unwrap();
            assert_eq!(forces_a_call(Api::Messages, &body), is, "{choice}");
        }
        assert!(!forces(Api::Completions, required));
    }

    #[test]
    fn truncation_by_the_engine_is_recognised() {
        let cut = |api, text: &str| read(api, text).bypass.map(Bypass::name) == Some("truncation");
        for api in [Api::Chat, Api::Completions] {
            assert!(cut(api, r#"{"prompt":"a","truncate_prompt_tokens":-1}"#));
            assert!(cut(api, r#"{"prompt":"a","truncate_prompt_tokens":"-1"}"#));
            for same in ["9", "null"] {
                let text = format!(r#"{{"prompt":"a","truncate_prompt_tokens":{same},"truncation":"auto"}}"#);
                assert!(!cut(api, &text), "{text}");
            }
        }
        // vLLM looks whether it is "disabled", which is what it takes where the member is absent.
        assert!(
            cut(Api::Responses, r#"{"truncation":"auto"}"#) && cut(Api::Responses, r#"{"truncation":null}"#)
        );
        assert!(!cut(Api::Responses, r#"{"truncation":"disabled"}"#) && !cut(Api::Responses, "{}"));
        let body = Object::scan(r#"{"truncate_prompt_tokens":-1}"#.into(), ScanLimits::default()).unwrap();
        let shape = Shape::read(Api::Chat, &body);
        let of = |dialect: Dialect| dialect.bypass(Api::Chat, &body, &shape, false);
        assert_eq!((of(Dialect::Moriio), of(Dialect::Sglang)), (Some(Bypass::Truncation), None));
    }

    #[test]
    fn the_last_of_two_duplicates_counts_as_in_python() {
        let s =
            read(Api::Chat, r#"{"stream":true,"stream":false,"model":"a","mod\u0065l":"b","max_tokens":7}"#);
        assert_eq!((s.stream, s.model.as_deref(), s.output_tokens), (false, Some("b"), 7));
    }

    #[test]
    fn wrong_types_are_left_to_the_engine() {
        let s = read(Api::Chat, r#"{"stream":"yes","model":7,"max_tokens":-4}"#);
        assert_eq!((s.stream, s.model, s.output_tokens), (false, None, 256));
    }
}
