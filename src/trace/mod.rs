//! Tracing: a request's steps as spans, which go to an OpenTelemetry collector, and, at level
//! debug, to the log.
//!
//! If neither takes a request, its [`Span`]s are empty: two machine words that are never read.

pub mod context;
mod export;
pub mod lines;
pub mod otlp;
pub mod record;
mod span;
#[cfg(test)]
mod tests;

pub use export::{Collector, Exporter, Ids, OUTBOX_SPANS, POST_TIME, Tracer};
pub use record::{Attribute, Kind, Value};
pub use span::{Scope, Span};
