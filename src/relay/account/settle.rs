//! Settlement of an account, when it is dropped: metrics, one line in the log, the request's span;
//! a part's goes to the whole.

use std::time::Duration;

use tracing::Level;

use super::{CLIENT_GONE, End, Ledger};
use crate::error::Kind;
use crate::obs::failed_request;
use crate::relay::decision_log::End as Ended;
use crate::relay::parts::{Part, Sum};
use crate::relay::traced::{self, RequestEnd};

/// Target by which the access line is filtered, wherever the code stands.
const ACCESS_LOG: &str = "pd_proxy::relay::account";

impl Ledger {
    pub(super) fn ended(&self, status: u16, reason: &'static str) -> Ended {
        let output_tokens = self.tokens().unwrap_or(0);
        Ended { status, reason, took: self.arrived.elapsed(), output_tokens }
    }

    /// Tells who wants to know how the request ended.
    fn tell(&self) {
        let Some(outcome_writer) = &self.outcome_writer else { return };
        outcome_writer.ends(match self.request_scope.is_part() {
            true => self.ended(0, Ended::PART),
            false => self.ended(self.end.status, self.end.reason),
        });
    }

    /// Takes over what its parts came to.
    fn gather(&mut self) -> Sum {
        let Some(sum) = self.request_scope.sum() else {
            let alone =
                Part { prefiller: self.prefiller.clone(), decoder: self.decoder.clone(), ..Part::default() };
            return Sum::of(alone);
        };
        (self.prompt, self.cached, self.output) = (sum.prompt, sum.cached, sum.output);
        self.resumed = sum.resumed;
        sum
    }

    /// Its own counts, for the whole's account.
    fn as_part(&mut self) -> Part {
        Part {
            prompt: self.prompt,
            cached: self.cached,
            output: self.tokens(),
            resumed: self.resumed,
            prefiller: self.prefiller.take(),
            decoder: self.decoder.take(),
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end = End { status: 500, reason: Kind::Internal.code() };
        }
        self.end = self.end.reported(&self.meters);
        self.tell();
        if self.request_scope.is_part() {
            let part = self.as_part();
            self.request_scope.add(part);
            return;
        }
        let (sum, sample) = (self.gather(), self.sample());
        let output = self.tokens().unwrap_or(0);
        self.meters.request(self.api.name(), self.end.status, self.end.reason);
        self.meters.sample(self.api, sample);
        self.meters.tokens(self.prompt.unwrap_or(0), self.cached.unwrap_or(0), output);
        let taken = self.took();
        self.due.settle(&self.meters, self.end, taken);
        let (prefiller, decoder) = (sum.prefiller_names(), sum.decoder_names());
        let waited_ms = self.chosen().map(|chosen| rounded_ms(chosen.waited));
        // A level is fixed where a line is written.
        macro_rules! access_line {
            ($level:expr) => {
        tracing::event!(
            target: ACCESS_LOG,
            $level,
            id = %self.id,
            route = self.api.name(),
            fleet = self.meters.label().name(),
            fallback_from = self.fallback.as_ref().and_then(|(from, _)| from.as_deref()),
            fallback_reason = self.fallback.as_ref().map(|(_, reason)| *reason),
            key_name = self.due.key_name(),
            status = self.end.status,
            reason = self.end.reason,
            prompts = self.request_scope.is_whole().then_some(sum.parts),
            prefiller,
            decoder,
            prompt_tokens = self.prompt,
            exact_tokens = self.exact,
            cached_tokens = self.cached,
            predicted_cached_tokens = self.predicted_cached(),
            bypass = self.alone.map(|alone| alone.reason),
            pooled_tokens = self.pooled.map(|(tokens, _)| tokens),
            pooled_by = self.pooled.map(|(_, hit_source)| hit_source.name()),
            held_tokens = self.held,
            output_tokens = (output > 0).then_some(output),
            resumed = (self.resumed > 0).then_some(self.resumed),
            waited_ms = waited_ms.filter(|ms| *ms > 0.0),
            ttft_ms = sample.ttft.map(rounded_ms),
            total_ms = rounded_ms(sample.total),
            trace_id = self.span.scope().and_then(|scope| scope.trace()).map(|trace| trace.to_string()),
            "request"
        )
            };
        }
        if failed_request(Some(self.end.status), self.end.reason) {
            access_line!(Level::WARN);
        } else {
            access_line!(Level::INFO);
        }
        let status = Some(self.end.status).filter(|status| *status != CLIENT_GONE);
        let end = RequestEnd {
            status,
            reason: self.end.reason,
            prompt: self.prompt,
            cached: self.cached,
            output: Some(output),
            prefiller: prefiller.as_deref(),
            decoder: decoder.as_deref(),
            stream: self.stream.map(|pace| (pace.first, pace.events, sample.gap_max)),
        };
        traced::settled(&mut self.span, &end);
    }
}

/// In ms, to the microsecond: more digits would be noise in a line that people read.
pub fn rounded_ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_places_at_most() {
        let said = |ns| rounded_ms(Duration::from_nanos(ns)).to_string();
        assert_eq!(
            (said(22_473_999), said(156_033_982), said(999)),
            ("22.473".into(), "156.033".into(), "0".into())
        );
    }
}
