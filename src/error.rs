//! The error type of all failures while a request is served.
//!
//! An [`Error`] carries what happened ([`Kind`]), what the client may read (`public`: no host
//! names, no text of an engine's 5xx) and what the log says (`detail`). Retries are decided in
//! `relay/legs.rs`, where a leg's outcome is known. The module knows no HTTP: `server/reply.rs`
//! alone turns a kind into a status.

mod kind;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

pub use kind::Kind;

/// Longest `Retry-After` that a client is given.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// An error with its two messages: one for the client, one for the log.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    public: Cow<'static, str>,
    param: Option<&'static str>,
    detail: Box<str>,
    retry_after: Option<Duration>,
    lasting: bool,
    is_limit: bool,
    route: Option<Box<str>>,
}

impl Error {
    /// An error whose public message is `public`; the log says the same.
    pub fn new(kind: Kind, public: impl Into<Cow<'static, str>>) -> Error {
        Error {
            kind,
            public: public.into(),
            param: None,
            detail: Box::default(),
            retry_after: None,
            lasting: false,
            is_limit: false,
            route: None,
        }
    }

    /// Adds what only the log may say: instance names, causes.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.detail = detail.into().into_boxed_str();
        self
    }

    /// Names the field of the request that is at fault.
    #[must_use]
    pub fn param(mut self, param: &'static str) -> Error {
        self.param = Some(param);
        self
    }

    /// Notes that other engines would end the request in the same way.
    #[must_use]
    pub fn lasting(mut self) -> Error {
        self.lasting = true;
        self
    }

    /// True if other engines would end the request in the same way.
    pub fn is_lasting(&self) -> bool {
        self.lasting
    }

    /// Sets the time after which asking again is worth it, where that is known better than in
    /// general.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Error {
        self.retry_after = Some(wait);
        self
    }

    /// Time that a refused client should wait, in whole seconds: at least one, at most an hour.
    pub fn retry_after_s(&self) -> u64 {
        let wait = self.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        wait.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(u64::MAX)
    }

    /// Notes that all who were asked refused for a limit of requests, and not for want of room.
    #[must_use]
    pub fn limit(mut self) -> Error {
        self.is_limit = true;
        self
    }

    /// True if all who were asked refused for a limit of requests.
    pub fn is_limit(&self) -> bool {
        self.is_limit
    }

    /// Notes the fleets that were asked, as a client is told of them.
    #[must_use]
    pub fn routed(mut self, route: &str) -> Error {
        self.route = Some(route.into());
        self
    }

    /// The fleets that were asked, of a model with a rule for them.
    pub fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    /// The error of a request that failed with this one, and then with another one of somebody
    /// else. Want of room passes, and goes before what may not; of two such the sooner end counts.
    #[must_use]
    pub fn or(self, other: &Error) -> Error {
        if other.kind != Kind::Overloaded {
            return self;
        }
        if self.kind != Kind::Overloaded {
            return other.clone();
        }
        let wait_s = self.retry_after_s().min(other.retry_after_s());
        Error { is_limit: self.is_limit && other.is_limit, ..self }.retry_after(Duration::from_secs(wait_s))
    }

    /// Kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Text that the client may read.
    pub fn public(&self) -> &str {
        &self.public
    }

    /// The text for the log: the public message and the detail.
    pub fn log_line(&self) -> String {
        if self.detail.is_empty() {
            self.public.to_string()
        } else {
            format!("{}: {}", self.public, self.detail)
        }
    }

    /// OpenAI's `{"error":{"message","type","param","code"}}`, as JSON text.
    pub fn to_json(&self) -> String {
        serde_json::json!({ "error": self.inner() }).to_string()
    }

    /// The object inside `error` alone, for APIs that wrap it differently.
    pub fn inner(&self) -> serde_json::Value {
        serde_json::json!({
            "message": self.public,
            "type": self.kind.openai_type(),
            "param": self.param,
            "code": self.kind.code(),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.log_line())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_never_reads_the_detail() {
        let e = Error::new(Kind::DecodeFailed, "the decoder broke off").detail("10.0.0.3:8200: reset");
        assert!(!e.to_json().contains("10.0.0.3"));
        assert!(e.log_line().contains("10.0.0.3"));
        assert_eq!(
            e.to_json(),
            r#"{"error":{"message":"the decoder broke off","type":"server_error","param":null,"code":"decode_failed"}}"#
        );
    }
}
