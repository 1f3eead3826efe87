//! The steps of a request as lines of the log, at level debug: for operators without a collector,
//! or who want to see them at once.

use std::fmt::{self, Write};

use tracing::Level;

use super::record::{Attribute, Record, Value};

/// True if a request's steps are to be logged. `ratio` (0 to 1) is the share of requests, and
/// `random` must be uniform.
pub fn wanted(ratio: f64, random: fn() -> u64) -> bool {
    // 53 bits are what a float has.
    tracing::enabled!(Level::DEBUG) && ((random() >> 11) as f64) < ratio * (1u64 << 53) as f64
}

/// Writes one line. `begin_ns` is the time when the request arrived, by the same clock.
pub(super) fn write(id: &str, begin_ns: u64, record: &Record) {
    // In whole us: more digits than that are noise.
    let ms = |ns: u64| (ns / 1_000) as f64 / 1e3;
    let at_ms = ms(record.start_ns.saturating_sub(begin_ns));
    let took_ms = ms(record.end_ns.saturating_sub(record.start_ns));
    let (step, error) = (record.name.as_ref(), record.error.as_deref());
    tracing::debug!(id, step, at_ms, took_ms, error, facts = %Facts(record), "step");
}

/// Facts of a step: `name=value`, a blank between two.
struct Facts<'a>(&'a Record);

impl fmt::Display for Facts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The line already shows these.
        let said = ["error.type", "pd_proxy.request_id"];
        let facts = self.0.attributes.iter().filter(|fact| !said.contains(&fact.key));
        for (at, Attribute { key, value }) in facts.enumerate() {
            if at > 0 {
                f.write_char(' ')?;
            }
            let name = key.strip_prefix("pd_proxy.").unwrap_or(key);
            match value {
                Value::Text(text) => write!(f, "{name}={text:?}")?,
                Value::Int(number) => write!(f, "{name}={number}")?,
                Value::Float(number) => write!(f, "{name}={number}")?,
                Value::Flag(flag) => write!(f, "{name}={flag}")?,
            }
        }
        for mark in &self.0.marks {
            write!(f, " happened={:?}", mark.name)?;
        }
        Ok(())
    }
}
