//! Record of a span that is over.

use std::borrow::Cow;

use http::HeaderValue;

use super::context::{SpanId, TraceId};

/// A span that is over. Times are ns since 1970.
#[derive(Clone, Debug)]
pub struct Record {
    /// Id of its trace.
    pub trace: TraceId,
    /// Id of the span.
    pub span: SpanId,
    /// Span that it is a part of; `None` where the trace begins.
    pub parent: Option<SpanId>,
    /// True if the parent belongs to another process.
    pub remote_parent: bool,
    /// The header `tracestate`, as received.
    pub state: Option<HeaderValue>,
    /// Name of the step.
    pub name: Cow<'static, str>,
    /// Side of an exchange that it records.
    pub kind: Kind,
    /// Time of the beginning, in ns.
    pub start_ns: u64,
    /// Time of the end, in ns.
    pub end_ns: u64,
    /// Facts of the step: names and values.
    pub attributes: Vec<Attribute>,
    /// Events within the step.
    pub marks: Vec<Mark>,
    /// Reason why it failed, if so.
    pub error: Option<Cow<'static, str>>,
}

/// Side of an exchange that a span records; the numbers are OTLP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Neither request nor answer.
    Internal = 1,
    /// The gateway received the request.
    Server = 2,
    /// The gateway sent the request.
    Client = 3,
}

/// Something that happened at one moment.
#[derive(Clone, Debug)]
pub struct Mark {
    /// ns since 1970.
    pub at_ns: u64,
    /// Name of the event.
    pub name: &'static str,
    /// Facts of the event.
    pub attributes: Vec<Attribute>,
}

/// A fact of a span or of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Name of the fact.
    pub key: &'static str,
    /// Value of the fact.
    pub value: Value,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text value.
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
