//! OTLP: the messages by which spans travel, and their making. The module is pure.
//!
//! Names and tags are those of opentelemetry-proto 1.x (`collector/trace/v1/trace_service.proto`,
//! `trace/v1/trace.proto`, `common/v1/common.proto`, `resource/v1/resource.proto`). Fields that the
//! gateway never sets are left out.

use prost::{Message, Oneof};

use super::record::{Attribute, Mark, Record, Value};

/// Bits of `Span.flags`: the parent's place is known, and the parent is in another process.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
const SAMPLED: u32 = 1;

/// `Status.code` of what failed.
pub const STATUS_ERROR: i32 = 2;

/// Message that is posted.
#[derive(Clone, PartialEq, Message)]
pub struct ExportRequest {
    /// One, of this process.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// Spans of one process.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// Identity of the process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// One, of this program.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// Description of a process.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// `service.name` and the like.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Spans by what made them.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// Library that made them.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Spans of the library.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// The instrumentation: this program.
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// Name of the library.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Version of the library.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// Message of one span.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// Trace id of 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// Span id of 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// Value of the header `tracestate`.
    #[prost(string, tag = "3")]
    pub trace_state: String,
    /// 8 bytes; empty where the trace begins.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// Name of the step.
    #[prost(string, tag = "5")]
    pub name: String,
    /// Kind, as [`super::record::Kind`].
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// Time of the beginning, in ns since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Time of the end, in ns since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// Facts of the step.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// Events within the step.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
    /// Status, if it failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    /// The flags of its `traceparent`, and whether its parent is in another process.
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// An event within a span.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Time, in ns since 1970.
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    /// Name of the event.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Facts of the event.
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

/// Status of a span.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// Reason why it failed.
    #[prost(string, tag = "2")]
    pub message: String,
    /// 0 for an unset status, or [`STATUS_ERROR`].
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// Name and value of an attribute.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Name of the attribute.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value of the attribute.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// One of the kinds that the gateway uses.
    #[prost(oneof = "Any", tags = "1, 2, 3, 4")]
    pub value: Option<Any>,
}

/// The kinds of value.
#[derive(Clone, PartialEq, Oneof)]
pub enum Any {
    /// A text value.
    #[prost(string, tag = "1")]
    Text(String),
    /// Yes or no.
    #[prost(bool, tag = "2")]
    Flag(bool),
    /// A whole number.
    #[prost(int64, tag = "3")]
    Int(i64),
    /// Any other number.
    #[prost(double, tag = "4")]
    Float(f64),
}

/// Answer of a collector.
#[derive(Clone, PartialEq, Message)]
pub struct ExportResponse {
    /// Present if it did not take all spans.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// Spans that a collector did not take.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// Number of rejected spans.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// Reason of the refusal.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// Resource of the process, which has these attributes.
pub fn resource(facts: Vec<Attribute>) -> Resource {
    Resource { attributes: attributes(facts) }
}

/// The bytes to be posted.
pub fn encode(resource: &Resource, records: Vec<Record>) -> Vec<u8> {
    let scope =
        Scope { name: env!("CARGO_PKG_NAME").to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = records.into_iter().map(span).collect();
    let of_scope = ScopeSpans { scope: Some(scope), spans };
    let all = ResourceSpans { resource: Some(resource.clone()), scope_spans: vec![of_scope] };
    ExportRequest { resource_spans: vec![all] }.encode_to_vec()
}

/// Number of rejected spans in a collector's answer of success; 0 if it has none or is not
/// understood.
pub fn rejected(answer: &[u8]) -> u64 {
    let partial = ExportResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

fn span(record: Record) -> Span {
    let remote = if record.remote_parent { IS_REMOTE } else { 0 };
    Span {
        trace_id: record.trace.bytes().to_vec(),
        span_id: record.span.bytes().to_vec(),
        trace_state: record
            .state
            .map(|state| state.to_str().unwrap_or_default().to_owned())
            .unwrap_or_default(),
        parent_span_id: record.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        name: record.name.into_owned(),
        kind: record.kind as i32,
        start_time_unix_nano: record.start_ns,
        end_time_unix_nano: record.end_ns.max(record.start_ns),
        attributes: attributes(record.attributes),
        events: record.marks.into_iter().map(event).collect(),
        status: record.error.map(|why| Status { message: why.into_owned(), code: STATUS_ERROR }),
        // Only spans that are kept get here.
        flags: SAMPLED | HAS_IS_REMOTE | remote,
    }
}

fn event(mark: Mark) -> Event {
    Event { time_unix_nano: mark.at_ns, name: mark.name.to_owned(), attributes: attributes(mark.attributes) }
}

fn attributes(facts: Vec<Attribute>) -> Vec<KeyValue> {
    let any = |value| match value {
        Value::Text(text) => Any::Text(text.into_owned()),
        Value::Int(number) => Any::Int(number),
        Value::Float(number) => Any::Float(number),
        Value::Flag(flag) => Any::Flag(flag),
    };
    facts.into_iter().map(|fact| key_value(fact.key, any(fact.value))).collect()
}

fn key_value(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::context::{SpanId, TraceId};
    use crate::trace::record::Kind;

    fn record() -> Record {
        Record {
            trace: TraceId::of([1; 16]),
            span: SpanId::of(2),
            parent: None,
            remote_parent: false,
            state: None,
            name: "n".into(),
            kind: Kind::Client,
            start_ns: 300,
            end_ns: 200,
            attributes: Vec::new(),
            marks: Vec::new(),
            error: None,
        }
    }

    /// Field number and wire type by field number and wire type, as the encoding's description has
    /// them.
    #[test]
    fn bytes_are_those_of_the_format() {
        let bytes =
            span(Record { attributes: vec![Attribute { key: "k", value: Value::Int(300) }], ..record() })
                .encode_to_vec();
        let expected = [
            &[0x0a, 16][..],
            &[1; 16],
            &[0x12, 8, 0, 0, 0, 0, 0, 0, 0, 2],
            &[0x2a, 1, b'n'],
            &[0x30, 3],
            &[0x39, 0x2c, 1, 0, 0, 0, 0, 0, 0],
            &[0x41, 0x2c, 1, 0, 0, 0, 0, 0, 0],
            &[0x4a, 8, 0x0a, 1, b'k', 0x12, 3, 0x18, 0xac, 2],
            &[0x85, 1, 1, 1, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, expected, "and it ends no earlier than it began");
    }

    #[test]
    fn failures_and_remote_parents_are_marked() {
        let parent = Some(SpanId::of(9));
        let made = span(Record { parent, remote_parent: true, error: Some("busy".into()), ..record() });
        assert_eq!(made.status, Some(Status { message: "busy".to_owned(), code: STATUS_ERROR }));
        assert_eq!((made.flags, made.parent_span_id), (0x301, vec![0, 0, 0, 0, 0, 0, 0, 9]));
    }

    #[test]
    fn rejected_spans_are_read() {
        let partial = PartialSuccess { rejected_spans: 7, error_message: "full".to_owned() };
        let answer = ExportResponse { partial_success: Some(partial) }.encode_to_vec();
        assert_eq!((rejected(&answer), rejected(b""), rejected(b"\xff<html>")), (7, 0, 0));
    }
}
