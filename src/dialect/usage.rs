//! Token counts in answers, and the one correction that the gateway makes to them.
//!
//! A decoder that received its KV reports as cached what came from the prefiller, or nothing at all
//! (vLLM 0.32 with NIXL: 0; vllm-ascend: prompt minus one). What the client wants to know is how
//! much of its prompt was found in a cache, and that is what the prefiller said.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::codec::json::{Catch, Object, ScanLimits, Value};
use crate::codec::sse;
use crate::dialect::Api;
use crate::dialect::api::UsageNames;
use crate::dialect::patch::Patch;

/// Token counts of one answer; `None` where the engine did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of prompt tokens.
    pub prompt: Option<u64>,
    /// Prompt tokens found in a cache.
    pub cached: Option<u64>,
    /// Number of generated tokens.
    pub output: Option<u64>,
}

/// Numbers of tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of its prompt.
    pub prompt: u64,
    /// Tokens that were generated.
    pub output: u64,
}

/// The longest usage of an answer that only passes by, bytes: with all details it has a few
/// hundred.
const PASSING_BYTES: usize = 4 << 10;

/// The counts of an answer that passes by in pieces, of which nothing else is kept.
#[derive(Debug)]
pub struct PassingUsage(Catch);

impl Default for PassingUsage {
    fn default() -> Self {
        PassingUsage(Catch::new("usage", PASSING_BYTES))
    }
}

impl PassingUsage {
    /// The next piece of the answer.
    pub fn push(&mut self, piece: &[u8]) {
        self.0.push(piece);
    }

    /// The counts, as far as they have come by.
    pub fn usage(&self, api: Api) -> Usage {
        let scan = |text| Object::scan(Bytes::copy_from_slice(text), ScanLimits::default()).ok();
        self.0
            .caught()
            .and_then(scan)
            .map(|usage| ReportedUsage::new(api, usage, 0).counts())
            .unwrap_or_default()
    }
}

/// The `usage` that an answer tells, read once for all that is asked of it.
pub struct ReportedUsage {
    api: Api,
    usage: Object,
    /// Place where it is in the answer's text.
    at: usize,
    /// The object in it that has the cached count, where the API has one.
    details: Option<Object>,
}

/// The counts in a whole answer, or in one event of a stream.
pub fn of_answer(api: Api, answer: &Object) -> Usage {
    ReportedUsage::by(api, answer).map(|told| told.counts()).unwrap_or_default()
}

/// Tokens of the prompt that are not in its count: Anthropic's is of those that were neither read
/// from a cache nor put into one.
fn counted_apart(api: Api, usage: &Object) -> u64 {
    let count = |key: &str| number(usage, key).unwrap_or(0);
    match api {
        Api::Messages => count("cache_read_input_tokens") + count("cache_creation_input_tokens"),
        _ => 0,
    }
}

impl ReportedUsage {
    /// The usage at the top of an answer, or where a stream's event wraps the answer (`response` of
    /// the Responses API, `message` of the Messages API).
    pub fn by(api: Api, answer: &Object) -> Option<ReportedUsage> {
        let direct = |holder: &Object, at: usize| {
            let value = holder.get("usage")?;
            Some(ReportedUsage::new(api, value.object().ok()?, at + value.range().start))
        };
        let wrapped = |key| {
            let value = answer.get(key)?;
            direct(&value.object().ok()?, value.range().start)
        };
        direct(answer, 0).or_else(|| ["response", "message"].into_iter().find_map(wrapped))
    }

    fn new(api: Api, usage: Object, at: usize) -> ReportedUsage {
        let details = api.usage().details.and_then(|name| usage.get(name)?.object().ok());
        ReportedUsage { api, usage, at, details }
    }

    /// The counts so far.
    pub fn counts(&self) -> Usage {
        let names = self.api.usage();
        let holder = if names.details.is_some() { self.details.as_ref() } else { Some(&self.usage) };
        let prompt = number(&self.usage, names.prompt);
        Usage {
            prompt: prompt.map(|prompt| prompt + counted_apart(self.api, &self.usage)),
            cached: holder.and_then(|holder| number(holder, names.cached)),
            output: number(&self.usage, names.output),
        }
    }

    /// The text of the answer that tells it, with the cached count replaced; the same bytes where
    /// there is none to replace.
    pub fn with_cached(&self, answer: &Bytes, cached: u64) -> Bytes {
        let names = self.api.usage();
        let mut patch = Patch::default();
        match names.details {
            None => self.replace_beside(&names, cached, &mut patch),
            Some(details) => self.replace_inside(details, names.cached, cached, &mut patch),
        }
        patch.apply(answer)
    }

    /// The count in an object of its own, which may be null.
    fn replace_inside(&self, details: &str, name: &str, cached: u64, patch: &mut Patch) {
        let Some(value) = self.usage.get(details) else { return };
        let at = self.at + value.range().start;
        if value.is_null() {
            patch.set(Some(at..at + value.range().len()), format!("{{\"{name}\":{cached}}}"));
        } else if let Some(range) = self.details.as_ref().and_then(|inner| number_range(inner.get(name)?)) {
            patch.set(Some(at + range.start..at + range.end), cached.to_string());
        }
    }

    /// The count beside that of the prompt's other tokens, which is to make up the same sum with
    /// it.
    fn replace_beside(&self, names: &UsageNames, cached: u64, patch: &mut Patch) {
        let mut replace = |key: &str, by: u64| {
            let range = self.usage.get(key).and_then(number_range);
            patch.set(range.map(|range| self.at + range.start..self.at + range.end), by.to_string());
        };
        if !self.usage.contains(names.cached) {
            return;
        }
        let before = number(&self.usage, names.cached).unwrap_or(0);
        let sum = number(&self.usage, names.prompt).map(|prompt| prompt + before);
        replace(names.cached, sum.map_or(cached, |sum| cached.min(sum)));
        if let Some(sum) = sum {
            replace(names.prompt, sum.saturating_sub(cached));
        }
    }
}

fn number(object: &Object, key: &str) -> Option<u64> {
    object.get(key).and_then(|value| value.as_u64())
}

/// The text of an event with its cached count replaced, if it tells any usage.
fn with_cached(api: Api, event: &Object, cached: u64) -> Option<Bytes> {
    ReportedUsage::by(api, event).map(|told| told.with_cached(event.bytes(), cached))
}

/// True if an event of a stream may carry usage: one search for bytes that no JSON string can hold,
/// because a quote inside a string is always escaped.
pub fn may_carry_usage(frames: &[u8]) -> bool {
    static MEMBER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"\"usage\":"));
    MEMBER.find_iter(frames).any(|at| {
        let value = frames[at + MEMBER.needle().len()..].iter().find(|b| !b.is_ascii_whitespace());
        value == Some(&b'{')
    })
}

/// The usage that `frames` tell, each count by the last event that has it.
pub fn of_frames(api: Api, frames: &Bytes) -> Option<Usage> {
    sse::frames(frames)
        .filter(|f| may_carry_usage(f.whole()))
        .filter_map(|f| Object::scan(Bytes::copy_from_slice(&f.data()), ScanLimits::default()).ok())
        .map(|event| of_event(api, &event))
        .filter(|usage| *usage != Usage::default())
        .reduce(|before, usage| Usage {
            prompt: usage.prompt.or(before.prompt),
            cached: usage.cached.or(before.cached),
            output: usage.output.or(before.output),
        })
}

/// Counts in one event. A message that begins (`message_start`) has an output of 0, or of the token
/// that comes with it: nobody has counted what will follow, nor will, if the client leaves before
/// its end.
fn of_event(api: Api, event: &Object) -> Usage {
    let usage = of_answer(api, event);
    let begins = api == Api::Messages && event.contains("message");
    Usage { output: usage.output.filter(|_| !begins), ..usage }
}

/// Whole frames of a stream with the cached count replaced in each event that has one.
pub fn frames_with_cached(api: Api, frames: Bytes, cached: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(frames.len() + 16);
    for frame in sse::frames(&frames) {
        let whole = frame.whole();
        let data = frame.data_range().filter(|_| may_carry_usage(whole));
        let patched = data.and_then(|data| {
            let event = frames.slice_ref(&whole[data.clone()]);
            let event = Object::scan(event, ScanLimits::default()).ok()?;
            Some((with_cached(api, &event, cached)?, data))
        });
        match patched {
            Some((patched, data)) => {
                out.extend_from_slice(&whole[..data.start]);
                out.extend_from_slice(&patched);
                out.extend_from_slice(&whole[data.end..]);
            }
            None => out.extend_from_slice(whole),
        }
    }
    out.freeze()
}

/// The span of a count: a number, or a null where the engine had nothing to say.
fn number_range(value: Value<'_>) -> Option<Range<usize>> {
    (value.as_u64().is_some() || value.is_null()).then(|| value.range())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(api: Api, text: &'static str) -> String {
        let answer = Object::scan(Bytes::from_static(text.as_bytes()), ScanLimits::default()).unwrap();
        let text = with_cached(api, &answer, 96).unwrap_or(answer.bytes().clone());
        String::from_utf8(text.to_vec()).unwrap()
    }

    #[test]
    fn only_the_cached_count_changes() {
        let chat = r#"{"id":"x", "usage":{"prompt_tokens":101,"prompt_tokens_details":{"cached_tokens":0,"m":null}} }"#;
        assert_eq!(
            patched(Api::Chat, chat),
            r#"{"id":"x", "usage":{"prompt_tokens":101,"prompt_tokens_details":{"cached_tokens":96,"m":null}} }"#
        );
        let responses = r#"{"type":"response.completed","response":{"usage":{"input_tokens_details":{"cached_tokens":16}}}}"#;
        assert_eq!(
            patched(Api::Responses, responses),
            r#"{"type":"response.completed","response":{"usage":{"input_tokens_details":{"cached_tokens":96}}}}"#
        );
    }

    #[test]
    fn usage_is_where_it_is_an_object() {
        let inner = |cached| {
            format!(
                r#"{{"usage":null,"response":{{}},"message":{{"usage":{{"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}}}"#
            )
        };
        let answer = Object::scan(inner(1).into(), ScanLimits::default()).unwrap();
        assert_eq!(of_answer(Api::Chat, &answer).cached, Some(1));
        assert_eq!(with_cached(Api::Chat, &answer, 96).unwrap(), inner(96));
    }

    /// Anthropic's `input_tokens` are those that no cache had: with the others they are the prompt.
    #[test]
    fn a_message_counts_each_token_of_its_prompt_once() {
        let messages = |input, read| {
            format!(
                r#"{{"usage":{{"input_tokens":{input},"cache_read_input_tokens":{read},"output_tokens":1}}}}"#
            )
        };
        for (said, told) in
            [((1000, 0), (904, 96)), ((1, 999), (904, 96)), ((904, 96), (904, 96)), ((10, 6), (0, 16))]
        {
            let answer = Object::scan(messages(said.0, said.1).into(), ScanLimits::default()).unwrap();
            assert_eq!(with_cached(Api::Messages, &answer, 96).unwrap(), messages(told.0, told.1));
            assert_eq!(of_answer(Api::Messages, &answer).prompt, Some(said.0 + said.1));
        }
        let uncounted = r#"{"usage":{"input_tokens":16,"output_tokens":1}}"#;
        assert_eq!(patched(Api::Messages, uncounted), uncounted);
    }

    /// As vLLM 0.32 begins a message.
    #[test]
    fn the_output_of_a_message_is_counted_at_its_end_alone() {
        let start =
            r#"data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}"#;
        let delta = r#"data: {"type":"message_delta","usage":{"output_tokens":7}}"#;
        let told = |events: String| of_frames(Api::Messages, &events.into()).unwrap();
        let begun = Usage { prompt: Some(9), ..Usage::default() };
        assert_eq!(told(format!("{start}\n\n")), begun);
        assert_eq!(told(format!("{start}\n\n{delta}\n\n")), Usage { output: Some(7), ..begun });
    }

    #[test]
    fn details_that_are_null_are_filled_and_absent_ones_stay_absent() {
        assert_eq!(
            patched(Api::Chat, r#"{"usage":{"prompt_tokens_details":null}}"#),
            r#"{"usage":{"prompt_tokens_details":{"cached_tokens":96}}}"#
        );
        for text in [r#"{"usage":{"prompt_tokens":5}}"#, r#"{"usage":null}"#, "{}"] {
            assert_eq!(patched(Api::Chat, text), text);
        }
    }

    #[test]
    fn the_usage_of_what_passes_by_is_that_of_the_whole_answer() {
        let text = br#"{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"prompt_logprobs":null}"#;
        let mut passing = PassingUsage::default();
        text.chunks(5).for_each(|piece| passing.push(piece));
        let whole = Object::scan(Bytes::from_static(text), ScanLimits::default()).unwrap();
        assert_eq!(passing.usage(Api::Chat), of_answer(Api::Chat, &whole));
        assert_eq!(passing.usage(Api::Chat).output, Some(3));
        assert_eq!(PassingUsage::default().usage(Api::Chat), Usage::default());
    }

    #[test]
    fn text_that_talks_about_usage_is_left_alone() {
        let talk = concat!(
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\\\"prompt_tokens_details\\\":{\\\"cached_tokens\\\":1}}\"}}]}\n\n",
            ": keep-alive\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n",
            "data: [DONE]\n\n"
        );
        let frames = Bytes::from_static(talk.as_bytes());
        let got = frames_with_cached(Api::Chat, frames.clone(), 8);
        assert_eq!(got, talk.replace("{\"cached_tokens\":1}", "{\"cached_tokens\":8}"));
        assert!(!may_carry_usage(talk.split("\n\n").next().unwrap().as_bytes()));
        assert_eq!(
            of_frames(Api::Chat, &frames),
            Some(Usage { prompt: Some(9), cached: Some(1), output: Some(4) })
        );
    }
}
