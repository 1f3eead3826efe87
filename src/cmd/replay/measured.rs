//! Measurements of real load: each stream as its reader saw it, and all of them together.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::codec::sse;
use crate::replay::stats::quantile;

/// Measurements of one stream. Times are in seconds since the request was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StreamMeasurement {
    pub(super) asked_tokens: u32,
    pub(super) first_s: Option<f64>,
    pub(super) last_s: f64,
    pub(super) worst_gap_s: f64,
    /// Events that carried text; an event may carry several tokens.
    pub(super) events: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: Option<u64>,
    pub(super) failure: Option<String>,
}

/// All streams of a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    seen: Vec<StreamMeasurement>,
    /// Requests that were sent later than the trace says, since too many were under way.
    pub(super) late: usize,
    /// From the first request until the last answer.
    pub(super) seconds: f64,
}

impl StreamMeasurement {
    /// Takes whole frames that came at `now_s`.
    pub(super) fn frames(&mut self, frames: &[u8], now_s: f64) -> Result<(), String> {
        for frame in sse::frames(frames) {
            let data = frame.data();
            let Ok(event) = serde_json::from_slice::<Value>(&data) else { continue };
            if event.get("error").is_some_and(|error| !error.is_null()) {
                return Err("an error event".to_owned());
            }
            if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
                self.prompt_tokens = count("/prompt_tokens").unwrap_or(0);
                self.cached_tokens = count("/prompt_tokens_details/cached_tokens").unwrap_or(0);
                self.output_tokens = count("/completion_tokens");
            }
            let text = event.pointer("/choices/0/text").and_then(Value::as_str);
            if text.is_some_and(|text| !text.is_empty()) {
                self.text(now_s);
            }
        }
        Ok(())
    }

    fn text(&mut self, now_s: f64) {
        self.events += 1;
        match self.first_s {
            None => self.first_s = Some(now_s),
            Some(_) => self.worst_gap_s = self.worst_gap_s.max(now_s - self.last_s),
        }
        self.last_s = now_s;
    }

    /// Mean seconds per token after the first.
    fn tpot_s(&self) -> Option<f64> {
        let tokens = self.output_tokens.unwrap_or(self.events);
        let first_s = self.first_s.filter(|_| tokens > 1)?;
        Some((self.last_s - first_s) / (tokens - 1) as f64)
    }
}

impl Load {
    pub(super) fn add(&mut self, seen: StreamMeasurement) {
        self.seen.push(seen);
    }

    fn complete(&self) -> impl Iterator<Item = &StreamMeasurement> {
        self.seen.iter().filter(|seen| seen.failure.is_none())
    }

    fn sorted(&self, measure: impl Fn(&StreamMeasurement) -> Option<f64>) -> Vec<f64> {
        let mut values: Vec<f64> = self.complete().filter_map(measure).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn failures(&self) -> BTreeMap<&str, usize> {
        let mut failures = BTreeMap::new();
        for why in self.seen.iter().filter_map(|seen| seen.failure.as_deref()) {
            *failures.entry(why).or_default() += 1;
        }
        failures
    }
}

/// Quantiles that are shown.
const SHOWN: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// Renders the report of a load.
pub(super) fn report(load: &Load, as_json: bool) -> String {
    let measures = [
        ("ttft_s", load.sorted(|seen| seen.first_s)),
        ("tpot_s", load.sorted(StreamMeasurement::tpot_s)),
        ("worst_gap_s", load.sorted(|seen| seen.first_s.map(|_| seen.worst_gap_s))),
    ];
    let sum = |count: fn(&StreamMeasurement) -> u64| load.complete().map(count).sum::<u64>();
    let (prompt, cached) = (sum(|seen| seen.prompt_tokens), sum(|seen| seen.cached_tokens));
    let (asked, got) =
        (sum(|seen| u64::from(seen.asked_tokens)), sum(|seen| seen.output_tokens.unwrap_or(seen.events)));
    let hits = cached as f64 / prompt.max(1) as f64;
    let (sent, complete) = (load.seen.len(), load.complete().count());
    if as_json {
        let mut object = json!({
            "sent": sent, "complete": complete, "late": load.late, "failures": load.failures(),
            "seconds": load.seconds, "prompt_tokens": prompt, "hit_share": hits,
            "output_tokens_asked": asked, "output_tokens": got,
        });
        for (name, values) in &measures {
            object[*name] = SHOWN.iter().map(|(title, q)| (*title, quantile(values, *q))).collect();
        }
        return format!("{object}\n");
    }
    let mut text = format!(
        "{complete} of {sent} requests complete in {:.1} s, {} of them sent late; {prompt} prompt tokens, {:.1} % \
         cached; {got} of {asked} output tokens\n\n| ms | p50 | p90 | p99 |\n|---|--:|--:|--:|\n",
        load.seconds,
        load.late,
        100.0 * hits,
    );
    for (title, (_, values)) in ["TTFT", "TPOT", "worst gap"].iter().zip(&measures) {
        let [p50, p90, p99] = SHOWN.map(|(_, q)| 1e3 * quantile(values, q));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {title} | {p50:.1} | {p90:.1} | {p99:.1} |");
    }
    for (why, count) in load.failures() {
        let _ = writeln!(text, "\nfailed, {why}: {count}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_event_by_event() {
        let mut seen = StreamMeasurement::default();
        let event =
            |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}],\"usage\":null}}\n\n");
        seen.frames(event("").as_bytes(), 0.5).unwrap();
        assert_eq!(seen.first_s, None, "no text yet");
        seen.frames(format!("{}{}", event("a"), event("b")).as_bytes(), 1.0).unwrap();
        seen.frames(event("c").as_bytes(), 1.6).unwrap();
        let usage =
            r#"{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}"#;
        seen.frames(
            format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n").as_bytes(),
            2.0,
        )
        .unwrap();
        assert_eq!((seen.first_s, seen.last_s, seen.events), (Some(1.0), 1.6, 3));
        assert_eq!((seen.prompt_tokens, seen.cached_tokens, seen.output_tokens), (9, 8, Some(4)));
        assert!((seen.worst_gap_s - 0.6).abs() < 1e-9);
        assert!((seen.tpot_s().unwrap() - 0.2).abs() < 1e-9);
        assert!(seen.frames(b"data: {\"error\":{\"message\":\"x\"}}\n\n", 3.0).is_err());
    }

    #[test]
    fn a_report_counts_what_failed() {
        let mut load = Load { late: 1, seconds: 2.0, ..Load::default() };
        load.add(StreamMeasurement {
            first_s: Some(0.25),
            last_s: 1.0,
            events: 3,
            prompt_tokens: 10,
            cached_tokens: 5,
            ..StreamMeasurement::default()
        });
        load.add(StreamMeasurement {
            failure: Some("status 503".to_owned()),
            ..StreamMeasurement::default()
        });
        let text = report(&load, false);
        assert!(text.starts_with(
            "1 of 2 requests complete in 2.0 s, 1 of them sent late; 10 prompt tokens, 50.0 % cached"
        ));
        assert!(
            text.contains("| TTFT | 250.0 | 250.0 | 250.0 |") && text.contains("failed, status 503: 1"),
            "{text}"
        );
        let value: Value = serde_json::from_str(&report(&load, true)).unwrap();
        assert_eq!(
            (value["ttft_s"]["p90"].as_f64(), value["failures"]["status 503"].as_u64()),
            (Some(0.25), Some(1))
        );
    }
}
