//! Token counts in answers, and the one correction that the gateway makes to them.
//!
//! A decoder that received its KV reports as cached what came from the prefiller, or nothing at all
//! (vLLM 0.32 with NIXL: 0; vllm-ascend: prompt minus one), and that it put nothing into a cache.
//! The prefiller's counts tell how much of the prompt was found in a cache, and how much was put
//! into one: they take the place of the decoder's.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};

use crate::codec::json::{Catch, Object, ScanLimits, Value};
use crate::codec::sse;
use crate::dialect::Api;
use crate::dialect::api::UsageNames;
use crate::dialect::member::MemberName;
use crate::dialect::patch::Patch;

/// Token counts of one answer; `None` where the engine did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of prompt tokens.
    pub prompt: Option<u64>,
    /// Prompt tokens found in a cache.
    pub cached: Option<u64>,
    /// Prompt tokens that were computed and put into one.
    pub created: Option<u64>,
    /// Number of generated tokens.
    pub output: Option<u64>,
}

/// A prefiller's counts of caches, for the answer of its decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCounts {
    /// Prompt tokens found in a cache.
    pub cached: u64,
    /// Prompt tokens that were computed and put into one; `None` = it did not say.
    pub created: Option<u64>,
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
            created: holder.and_then(|holder| number(holder, names.created)),
            output: number(&self.usage, names.output),
        }
    }

    /// The text of the answer that tells it, with the counts of caches replaced; the same bytes
    /// where there is none to replace.
    pub fn with_cached(&self, answer: &Bytes, counts: CacheCounts) -> Bytes {
        let names = self.api.usage();
        let mut patch = Patch::default();
        match names.details {
            None => self.replace_beside(&names, counts, &mut patch),
            Some(details) => self.replace_inside(details, &names, counts, &mut patch),
        }
        patch.apply(answer)
    }

    /// The counts in an object of their own, which may be null.
    fn replace_inside(&self, details: &str, names: &UsageNames, counts: CacheCounts, patch: &mut Patch) {
        let Some(value) = self.usage.get(details) else { return };
        let at = self.at + value.range().start;
        if value.is_null() {
            let created = counts.created.map(|created| format!(",\"{}\":{created}", names.created));
            let created = created.unwrap_or_default();
            let text = format!("{{\"{}\":{}{created}}}", names.cached, counts.cached);
            return patch.set(Some(at..at + value.range().len()), text);
        }
        for (name, count) in [(names.cached, Some(counts.cached)), (names.created, counts.created)] {
            let range = self.details.as_ref().and_then(|inner| number_range(inner.get(name)?));
            if let (Some(range), Some(count)) = (range, count) {
                patch.set(Some(at + range.start..at + range.end), count.to_string());
            }
        }
    }

    /// The counts beside that of the prompt's other tokens, which is to make up the same sum with
    /// them.
    fn replace_beside(&self, names: &UsageNames, counts: CacheCounts, patch: &mut Patch) {
        let mut replace = |key: &str, by: u64| {
            let range = self.usage.get(key).and_then(number_range);
            patch.set(range.map(|range| self.at + range.start..self.at + range.end), by.to_string());
        };
        if !self.usage.contains(names.cached) {
            return;
        }
        let CacheCounts { cached, created } = counts;
        let had = |key: &str| number(&self.usage, key).unwrap_or(0);
        let is_told = self.usage.get(names.created).and_then(number_range).is_some();
        let created = created.filter(|_| is_told);
        let Some(prompt) = number(&self.usage, names.prompt) else {
            return replace(names.cached, cached);
        };
        let sum = prompt + had(names.cached) + had(names.created);
        let cached = cached.min(sum);
        let kept = created.unwrap_or_else(|| had(names.created)).min(sum - cached);
        replace(names.cached, cached);
        if created.is_some() {
            replace(names.created, kept);
        }
        replace(names.prompt, sum - cached - kept);
    }
}

fn number(object: &Object, key: &str) -> Option<u64> {
    object.get(key).and_then(|value| value.as_u64())
}

/// The text of an event with its counts of caches replaced, if it tells any usage.
fn with_cached(api: Api, event: &Object, counts: CacheCounts) -> Option<Bytes> {
    ReportedUsage::by(api, event).map(|told| told.with_cached(event.bytes(), counts))
}

/// True if an event of a stream may carry usage: the name is there, with an object behind it.
pub fn may_carry_usage(frames: &[u8]) -> bool {
    static MEMBER: LazyLock<MemberName> = LazyLock::new(|| MemberName::new("\"usage\""));
    MEMBER.find_value(frames, 0, |value| value.starts_with(b"{")).is_some()
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
            created: usage.created.or(before.created),
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

/// Whole frames of a stream with the counts of caches replaced in each event that has some.
pub fn frames_with_cached(api: Api, frames: Bytes, counts: CacheCounts) -> Bytes {
    let mut out = BytesMut::with_capacity(frames.len() + 16);
    for frame in sse::frames(&frames) {
        let whole = frame.whole();
        let data = frame.data_range().filter(|_| may_carry_usage(whole));
        let patched = data.and_then(|data| {
            let event = frames.slice_ref(&whole[data.clone()]);
            let event = Object::scan(event, ScanLimits::default()).ok()?;
            Some((with_cached(api, &event, counts)?, data))
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

    /// Of a prefiller that does not say what it put into a cache.
    const CACHED: CacheCounts = CacheCounts { cached: 96, created: None };

    fn patched(api: Api, text: &'static str) -> String {
        let answer = Object::scan(Bytes::from_static(text.as_bytes()), ScanLimits::default()).unwrap();
        let text = with_cached(api, &answer, CACHED).unwrap_or(answer.bytes().clone());
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
        assert_eq!(with_cached(Api::Chat, &answer, CACHED).unwrap(), inner(96));
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
            assert_eq!(with_cached(Api::Messages, &answer, CACHED).unwrap(), messages(told.0, told.1));
            assert_eq!(of_answer(Api::Messages, &answer).prompt, Some(said.0 + said.1));
        }
        let uncounted = r#"{"usage":{"input_tokens":16,"output_tokens":1}}"#;
        assert_eq!(patched(Api::Messages, uncounted), uncounted);
    }

    /// As vLLM 0.32 answers a prompt that no cache had: the decoder has put nothing into one.
    #[test]
    fn tokens_put_into_a_cache_are_the_prefillers() {
        let cold = CacheCounts { cached: 0, created: Some(96) };
        let told = |api, text: &str| {
            let answer = Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap();
            let told = with_cached(api, &answer, cold).unwrap();
            let counts = of_answer(api, &Object::scan(told.clone(), ScanLimits::default()).unwrap());
            (String::from_utf8(told.to_vec()).unwrap(), counts)
        };
        let chat = |created| {
            format!(
                r#"{{"usage":{{"prompt_tokens":101,"prompt_tokens_details":{{"cached_tokens":0,"created_cache_tokens":{created}}}}}}}"#
            )
        };
        for before in ["0", "null"] {
            let (text, counts) = told(Api::Chat, &chat(before));
            assert_eq!((text, counts.created, counts.prompt), (chat("96"), Some(96), Some(101)));
        }
        let null = r#"{"usage":{"prompt_tokens_details":null}}"#;
        let filled = r#"{"usage":{"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":96}}}"#;
        assert_eq!(told(Api::Completions, null).0, filled);
        let response = |created| {
            format!(
                r#"{{"usage":{{"input_tokens":101,"input_tokens_details":{{"cached_tokens":0,"cache_write_tokens":{created}}}}}}}"#
            )
        };
        assert_eq!(told(Api::Responses, &response(0)).0, response(96));
        let message = |input, created| {
            format!(
                r#"{{"usage":{{"input_tokens":{input},"output_tokens":6,"cache_creation_input_tokens":{created},"cache_read_input_tokens":0}}}}"#
            )
        };
        let (text, counts) = told(Api::Messages, &message(101, 0));
        assert_eq!((text, counts.prompt), (message(5, 96), Some(101)));
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
        let got = frames_with_cached(Api::Chat, frames.clone(), CacheCounts { cached: 8, created: None });
        assert_eq!(got, talk.replace("{\"cached_tokens\":1}", "{\"cached_tokens\":8}"));
        assert!(!may_carry_usage(talk.split("\n\n").next().unwrap().as_bytes()));
        assert_eq!(
            of_frames(Api::Chat, &frames),
            Some(Usage { prompt: Some(9), cached: Some(1), output: Some(4), ..Usage::default() })
        );
    }
}
