//! Scripted faults: their kind, the requests that they hit, and how often.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::hub::lock;

/// Faults a script may hold.
const MAX_FAULTS: usize = 256;

/// One scripted fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The requests that it hits.
    pub on: Match,
    /// Number of requests that it hits; `u32::MAX` = all.
    pub times: u32,
    /// Fault that happens.
    pub what: FaultKind,
}

impl Fault {
    /// Hits every request of the API, for ever.
    #[must_use]
    pub fn always(what: FaultKind) -> Fault {
        Fault { on: Match::default(), times: u32::MAX, what }
    }

    /// Hits the next request of the API.
    #[must_use]
    pub fn once(what: FaultKind) -> Fault {
        Fault { times: 1, ..Fault::always(what) }
    }

    /// Nobody can read the KV that this engine made: what a broken NIC, a wrong side-channel
    /// address or a connector of another release do to every decoder. The engine itself computes
    /// prompts and hands over as ever; what it writes into decoders' blocks itself does not arrive,
    /// and what it puts into a store no decoder can load.
    #[must_use]
    pub fn unreadable_kv() -> Fault {
        Fault::always(FaultKind::Status(500, None)).on_path("/sim/k")
    }

    /// Limits the fault to paths that begin with `prefix`.
    #[must_use]
    pub fn on_path(mut self, prefix: &str) -> Fault {
        self.on.path = Some(prefix.to_owned());
        self
    }

    /// Reads the JSON form:
    /// `{"path":"/v1/","method":"POST","contains":"x","times":1,"what":{"kind":"…",…}}`; all but
    /// `what` may be left out, `times` is then for ever. Kinds are names of [`FaultKind`] in
    /// snake case with members `bytes`, `events`, `requests`, `how` ("reset", "close"), `status`,
    /// `body`, `raw`, `ms`.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Fault> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let times = value.get("times").and_then(Value::as_u64).and_then(|times| u32::try_from(times).ok());
        Some(Fault {
            on: Match { path: text("path"), method: text("method"), contains: text("contains") },
            times: times.unwrap_or(u32::MAX),
            what: FaultKind::from_json(value.get("what")?)?,
        })
    }
}

/// The requests that a fault hits; what is None matches everything. `/sim/` paths are hit only by a
/// `path` that names them.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Beginning of the path.
    pub path: Option<String>,
    /// The method, exactly.
    pub method: Option<String>,
    /// Text that the body contains.
    pub contains: Option<String>,
}

impl Match {
    fn hits(&self, method: &str, path: &str, body: &[u8]) -> bool {
        let path_hit = match &self.path {
            Some(prefix) => path.starts_with(prefix.as_str()),
            None => !path.starts_with("/sim/"),
        };
        path_hit
            && self.method.as_deref().is_none_or(|wanted| wanted == method)
            && self.contains.as_ref().is_none_or(|text| memchr::memmem::find(body, text.as_bytes()).is_some())
    }
}

/// Ways in which a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// By a TCP reset.
    Reset,
    /// TCP end of stream, as if the response were over.
    Close,
}

/// Faults that can happen.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// Nothing listens: the port refuses and existing connections are reset, at once and until the
    /// faults are cleared. Matching and `times` do not apply.
    Refuse,
    /// A connection is accepted and reset before anything is read; counts connections, `on` does
    /// not apply.
    ResetAtAccept,
    /// The request is read, then the connection reset.
    ResetBeforeHead,
    /// The request is read and never answered.
    StallBeforeHead,
    /// This status, with this body or one like vLLM's; a hand-off in the request is given back on
    /// 4xx and 503, unless the body says that the request was not valid (`"type":"Bad Request"`).
    Status(u16, Option<Bytes>),
    /// 200 and a stream of exactly these bytes, cleanly ended.
    Events(Bytes),
    /// Exactly this many bytes of the response, counted from its status line, then the end.
    CutAfterBytes {
        /// Response bytes written.
        bytes: usize,
        /// Way in which it ends.
        how: ConnectionEnd,
    },
    /// Exactly this many bytes of the response, then nothing more.
    StallAfterBytes(usize),
    /// The response in pieces of this many bytes, one millisecond apart.
    DribbleBytes(usize),
    /// A stream ends cleanly after a few events, without a finish reason and without `[DONE]`.
    CloseWithoutDone,
    /// After a few events a stream has an error event, then `[DONE]`: what vLLM does when it fails.
    ErrorEvent,
    /// A stream ends cleanly after so many events.
    EndAfterEvents(usize),
    /// After so many events a stream has its usage and `[DONE]`, and no choice a finish reason:
    /// vLLM's generators end so for a request that was aborted.
    HollowAfterEvents(usize),
    /// After so many events a stream is given up, to be prefilled again: what vllm-ascend's
    /// recompute scheduler does.
    RecomputeAfterEvents(usize),
    /// The value of `kv_transfer_params` in the answer is these bytes.
    BadHandoff(Bytes),
    /// 503 to everything but `/health` and `/is_scaling_elastic_ep`, which says yes: a rank that
    /// elastic expert parallelism retired (vLLM 0.33).
    Retired,
    /// This status, like vLLM's, while the engine has so many requests: its `--max-num-queued-reqs`
    /// (503), or the limit of a proxy before it (429).
    Full {
        /// Requests that it takes.
        requests: usize,
        /// Status of its refusals.
        status: u16,
    },
    /// 429 and `Retry-After` with this number of seconds: the rate limit of an API, or of a proxy.
    RateLimit(u64),
    /// The answer comes this much later; other faults apply after it.
    Delay(Duration),
}

impl FaultKind {
    fn from_json(value: &Value) -> Option<FaultKind> {
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let count = |name: &str| number(name).and_then(|count| usize::try_from(count).ok());
        let raw =
            |name: &str| value.get(name).and_then(Value::as_str).map(|text| Bytes::from(text.to_owned()));
        let how = if value.get("how").and_then(Value::as_str) == Some("close") {
            ConnectionEnd::Close
        } else {
            ConnectionEnd::Reset
        };
        Some(match value.get("kind")?.as_str()? {
            "refuse" => FaultKind::Refuse,
            "reset_at_accept" => FaultKind::ResetAtAccept,
            "reset_before_head" => FaultKind::ResetBeforeHead,
            "stall_before_head" => FaultKind::StallBeforeHead,
            "status" => FaultKind::Status(number("status").and_then(|s| u16::try_from(s).ok())?, raw("body")),
            "events" => FaultKind::Events(raw("body")?),
            "cut_after_bytes" => FaultKind::CutAfterBytes { bytes: count("bytes")?, how },
            "stall_after_bytes" => FaultKind::StallAfterBytes(count("bytes")?),
            "dribble_bytes" => FaultKind::DribbleBytes(count("bytes")?),
            "close_without_done" => FaultKind::CloseWithoutDone,
            "error_event" => FaultKind::ErrorEvent,
            "end_after_events" => FaultKind::EndAfterEvents(count("events")?),
            "hollow_after_events" => FaultKind::HollowAfterEvents(count("events")?),
            "recompute_after_events" => FaultKind::RecomputeAfterEvents(count("events")?),
            "bad_handoff" => FaultKind::BadHandoff(raw("raw")?),
            "retired" => FaultKind::Retired,
            "full" => FaultKind::Full {
                requests: count("requests")?,
                status: number("status").and_then(|s| u16::try_from(s).ok())?,
            },
            "rate_limit" => FaultKind::RateLimit(number("retry_after_s")?),
            "delay" => FaultKind::Delay(Duration::from_millis(number("ms")?)),
            _ => return None,
        })
    }
}

/// The faults of one engine.
#[derive(Debug, Default)]
pub struct Script {
    faults: Mutex<Vec<Fault>>,
}

impl Script {
    /// Adds a fault; false if the script is full.
    pub fn add(&self, fault: Fault) -> bool {
        let mut faults = lock(&self.faults);
        if faults.len() >= MAX_FAULTS {
            return false;
        }
        faults.push(fault);
        true
    }

    /// Forgets all faults.
    pub fn clear(&self) {
        lock(&self.faults).clear();
    }

    /// The faults of a request, used up by it: every delay, and the first of the others.
    #[must_use]
    pub fn take(&self, method: &str, path: &str, body: &[u8]) -> Vec<FaultKind> {
        let mut taken = Vec::new();
        let mut other = false;
        lock(&self.faults).retain_mut(|fault| {
            let delay = matches!(fault.what, FaultKind::Delay(_));
            let of_request = !matches!(fault.what, FaultKind::Refuse | FaultKind::ResetAtAccept);
            if fault.times == 0 || !of_request || (other && !delay) || !fault.on.hits(method, path, body) {
                return fault.times > 0;
            }
            other |= !delay;
            taken.push(fault.what.clone());
            fault.spend()
        });
        taken.sort_by_key(|what| !matches!(what, FaultKind::Delay(_)));
        taken
    }

    /// True if KV that this engine sends to `path` by itself is lost on its way.
    #[must_use]
    pub fn loses_kv(&self, path: &str) -> bool {
        !self.take("POST", path, b"").is_empty()
    }

    /// True if a new connection is to be reset.
    #[must_use]
    pub fn take_at_accept(&self) -> bool {
        let mut hit = false;
        lock(&self.faults).retain_mut(|fault| {
            if hit || fault.times == 0 || !matches!(fault.what, FaultKind::ResetAtAccept) {
                return true;
            }
            hit = true;
            fault.spend()
        });
        hit
    }
}

impl Fault {
    /// Uses the fault once; false when it is used up.
    fn spend(&mut self) -> bool {
        if self.times != u32::MAX {
            self.times = self.times.saturating_sub(1);
        }
        self.times > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_are_matched_and_used_up() {
        let script = Script::default();
        script.add(Fault::once(FaultKind::ErrorEvent).on_path("/v1/chat"));
        script.add(Fault::always(FaultKind::Delay(Duration::ZERO)));
        assert_eq!(script.take("POST", "/v1/completions", b"").len(), 1);
        let both = script.take("POST", "/v1/chat/completions", b"");
        assert!(matches!(both.as_slice(), [FaultKind::Delay(_), FaultKind::ErrorEvent]));
        assert_eq!(script.take("POST", "/v1/chat/completions", b"").len(), 1);
        assert!(script.take("GET", "/sim/kv", b"").is_empty());
        script.clear();
        assert!(script.take("POST", "/v1/completions", b"").is_empty());
    }

    #[test]
    fn the_json_form() {
        let fault = Fault::from_json(&json!({"path": "/v1/", "contains": "abc", "times": 2,
            "what": {"kind": "cut_after_bytes", "bytes": 7, "how": "close"}}))
        .unwrap();
        assert!(matches!(fault.what, FaultKind::CutAfterBytes { bytes: 7, how: ConnectionEnd::Close }));
        assert!(fault.on.hits("POST", "/v1/x", b"..abc"));
        assert!(!fault.on.hits("POST", "/v1/x", b"..ab"));
        assert!(Fault::from_json(&json!({"what": {"kind": "nonsense"}})).is_none());
    }
}
