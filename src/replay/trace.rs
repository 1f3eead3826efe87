//! Traces in the format of Mooncake's FAST'25 release: one JSON object per line with `timestamp`
//! (ms), `input_length`, `output_length` and `hash_ids`, one id per [`BLOCK_TOKENS`] tokens, the
//! last for a partial block. Equal ids stand for equal prompts up to the end of their block. An
//! optional `session` says which requests belong together.

use std::sync::Arc;

use crate::util::splitmix::mix;
use serde_json::Value;

/// Tokens of the block of one hash id, by the format.
pub const BLOCK_TOKENS: u32 = 512;

/// Longest prompt and longest output that are believed.
const TOKENS_MAX: u64 = 16 << 20;

/// Latest time stamp that is believed, ms: milliseconds since 1970 are well below.
const TIMESTAMP_MS_MAX: f64 = 1e15;

/// Most requests of a trace: they are all held in memory.
const REQUESTS_MAX: usize = 4 << 20;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// Time at which it came, ms since the trace's start.
    pub timestamp_ms: f64,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of its answer, at least 1.
    pub output_tokens: u32,
    /// The ids as written in the file.
    pub hash_ids: Box<[u64]>,
    /// Chained hashes of the prompt's full blocks.
    pub blocks: Arc<[u64]>,
    /// The session, if the trace has them.
    pub session: Option<u64>,
}

/// Reasons why a trace can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line is not one JSON object.
    #[error("line {line}: {why}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// Text of the parser.
        why: String,
    },
    /// A field is missing or out of range.
    #[error("line {line}, {field}: {why}")]
    Field {
        /// Counted from 1.
        line: usize,
        /// Name of the field.
        field: &'static str,
        /// Expectation of the field.
        why: String,
    },
    /// There is no request in it.
    #[error("the trace has no requests")]
    Empty,
    /// There are too many.
    #[error("the trace has more than {REQUESTS_MAX} requests; cut it with --requests")]
    TooLong,
}

/// Reads a trace, at most its first `limit` requests. Empty lines are skipped.
///
/// # Errors
/// [`TraceError`] names the line and the field.
pub fn parse(text: &str, limit: usize) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests: Vec<TraceRequest> = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (at, line) in lines.take(limit) {
        let line = Line::read(at + 1, line)?;
        let request = line.request()?;
        if requests.last().is_some_and(|before| before.timestamp_ms > request.timestamp_ms) {
            return Err(line.wrong("timestamp", "is earlier than that of the line before"));
        }
        if requests.len() == REQUESTS_MAX {
            return Err(TraceError::TooLong);
        }
        requests.push(request);
    }
    if requests.is_empty() { Err(TraceError::Empty) } else { Ok(requests) }
}

struct Line {
    number: usize,
    object: Value,
}

impl Line {
    fn read(number: usize, text: &str) -> Result<Line, TraceError> {
        let syntax = |why: String| TraceError::Syntax { line: number, why };
        let object: Value = serde_json::from_str(text).map_err(|e| syntax(format!("no JSON: {e}")))?;
        if object.is_object() {
            Ok(Line { number, object })
        } else {
            Err(syntax("no JSON object".to_owned()))
        }
    }

    fn request(&self) -> Result<TraceRequest, TraceError> {
        let timestamp_ms = self.object.get("timestamp").and_then(Value::as_f64);
        let timestamp_ms = timestamp_ms
            .filter(|ms| (0.0..=TIMESTAMP_MS_MAX).contains(ms))
            .ok_or_else(|| self.wrong("timestamp", "expected a number of milliseconds, 0 or more"))?;
        let prompt_tokens = self.tokens("input_length", 1)?;
        let output_tokens = self.tokens("output_length", 0)?.max(1);
        let hash_ids = self.hash_ids()?;
        let full = (prompt_tokens / BLOCK_TOKENS) as usize;
        let Some(ids) = hash_ids.get(..full) else {
            let have = hash_ids.len();
            let why = format!(
                "{have} ids for {prompt_tokens} tokens, which are {full} full blocks of {BLOCK_TOKENS}"
            );
            return Err(self.wrong("hash_ids", why));
        };
        let blocks = ids.iter().map(|id| mix(*id)).collect();
        let session = match self.object.get("session") {
            None | Some(Value::Null) => None,
            Some(id) => {
                Some(id.as_u64().ok_or_else(|| self.wrong("session", "expected a number, 0 or more"))?)
            }
        };
        Ok(TraceRequest { timestamp_ms, prompt_tokens, output_tokens, hash_ids, blocks, session })
    }

    fn tokens(&self, field: &'static str, least: u64) -> Result<u32, TraceError> {
        let value = self.object.get(field).and_then(Value::as_u64);
        value
            .filter(|tokens| (least..=TOKENS_MAX).contains(tokens))
            .and_then(|tokens| u32::try_from(tokens).ok())
            .ok_or_else(|| self.wrong(field, format!("expected a whole number from {least} to {TOKENS_MAX}")))
    }

    fn hash_ids(&self) -> Result<Box<[u64]>, TraceError> {
        let ids = self.object.get("hash_ids").and_then(Value::as_array);
        let ids = ids.and_then(|ids| ids.iter().map(Value::as_u64).collect::<Option<Box<[u64]>>>());
        ids.ok_or_else(|| self.wrong("hash_ids", "expected an array of whole numbers"))
    }

    fn wrong(&self, field: &'static str, why: impl Into<String>) -> TraceError {
        TraceError::Field { line: self.number, field, why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]}"#;

    #[test]
    fn full_blocks_get_hashes_and_the_partial_one_none() {
        let text = format!("{GOOD}\n\n{}", GOOD.replace("[0, 7, 9]", "[0, 8, 9]"));
        let trace = parse(&text, usize::MAX).unwrap();
        assert_eq!(trace.len(), 2);
        assert_eq!((trace[0].prompt_tokens, trace[0].output_tokens), (1100, 5));
        assert_eq!((trace[0].blocks.len(), trace[0].hash_ids.len(), trace[0].session), (2, 3, None));
        assert_eq!(trace[0].blocks[0], trace[1].blocks[0]);
        assert_ne!(trace[0].blocks[1], trace[1].blocks[1]);
    }

    #[test]
    fn a_limit_cuts() {
        let text = format!("{GOOD}\n{GOOD}\nnonsense");
        assert_eq!(parse(&text, 2).unwrap().len(), 2);
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        let second = |from: &str, to: &str| {
            parse(&format!("{GOOD}\n{}", GOOD.replace(from, to)), usize::MAX).unwrap_err().to_string()
        };
        assert_eq!(
            second("\"timestamp\": 0", "\"timestamp\": -1"),
            "line 2, timestamp: expected a number of milliseconds, 0 or more"
        );
        assert!(second("1100", "0").starts_with("line 2, input_length: expected a whole number from 1"));
        assert!(second("5,", "0.5,").starts_with("line 2, output_length: expected"));
        assert_eq!(
            second("[0, 7, 9]", "[0]"),
            "line 2, hash_ids: 1 ids for 1100 tokens, which are 2 full blocks of 512"
        );
        assert_eq!(second("[0, 7, 9]", "[0, \"7\"]"), "line 2, hash_ids: expected an array of whole numbers");
        assert!(second("}", "").starts_with("line 2: no JSON: "));
        let early = format!("{}\n{GOOD}", GOOD.replace("\"timestamp\": 0", "\"timestamp\": 3"));
        let early = parse(&early, usize::MAX).unwrap_err().to_string();
        assert_eq!(early, "line 2, timestamp: is earlier than that of the line before");
        assert_eq!(parse("\n", usize::MAX), Err(TraceError::Empty));
        assert_eq!(parse("[]", 1).unwrap_err().to_string(), "line 1: no JSON object");
    }
}
