//! What is kept of a span that is over.

use std::borrow::Cow;

use http::HeaderValue;

use super::context::{SpanId, TraceId};

/// A span that is over. Times are ns since 1970.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its trace.
    pub trace: TraceId,
    /// Itself.
    pub span: SpanId,
    /// Whose part it is; `None` where the trace begins.
    pub parent: Option<SpanId>,
    /// That is another process's.
    pub remote_parent: bool,
    /// `tracestate`, as it came.
    pub state: Option<HeaderValue>,
    /// What was done.
    pub name: Cow<'static, str>,
    /// On which side of an exchange.
    pub kind: Kind,
    /// When it began.
    pub start_ns: u64,
    /// When it was over.
    pub end_ns: u64,
    /// What is known of it: names and values.
    pub attributes: Vec<(&'static str, Value)>,
    /// What happened in it.
    pub marks: Vec<Mark>,
    /// Reason why it failed, if so.
    pub error: Option<Cow<'static, str>>,
}

/// On which side of an exchange a span is; the numbers are OTLP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Neither.
    Internal = 1,
    /// We were asked.
    Server = 2,
    /// We asked.
    Client = 3,
}

/// Something that happened at one moment.
#[derive(Clone, Debug)]
pub struct Mark {
    /// ns since 1970.
    pub at_ns: u64,
    /// What.
    pub name: &'static str,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Value)>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Yes or no.
    Flag(bool),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Int(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Value {
        Value::Int(number.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Float(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}
