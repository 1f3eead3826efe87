//! A request's spans while they are open. Dropping a span ends it.
//!
//! A request that is not sampled still has a scope where traces are collected, since engines get
//! its trace; it records nothing. The module has no lock and no task. A span that is over goes into
//! the outbox, which never waits, and into the log, which drops lines when it is full.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::context::{Context, SpanId, TRACEPARENT, TRACESTATE, TraceId};
use super::export::Tracer;
use super::lines;
use super::record::{Attribute, Kind, Mark, Record, Value};

/// Most events of one span; further continuations of a stream are not recorded.
const MARKS: usize = 32;

/// Status of a span that was dropped without being closed: its client left, or its result was not
/// needed any more.
const CANCELLED: &str = "cancelled";

/// Facts that the spans of a request have in common.
pub struct Scope {
    tracer: Arc<Tracer>,
    trace: TraceId,
    /// The span that all others are parts of.
    root: SpanId,
    /// True if its spans go to the collector.
    kept: bool,
    /// Id of the request in the log, if its steps are logged.
    logged: Option<Arc<str>>,
    state: Option<HeaderValue>,
    clock: ClockPair,
    /// Index of the prompt, of several.
    prompt: Option<u64>,
    prefills: AtomicU32,
    decodes: AtomicU32,
}

/// A span; empty where requests are not traced, and then all of its functions do nothing.
#[derive(Default)]
pub struct Span(Option<Box<SpanData>>);

struct SpanData {
    scope: Arc<Scope>,
    id: SpanId,
    parent: Option<SpanId>,
    remote_parent: bool,
    name: Cow<'static, str>,
    kind: Kind,
    start: Instant,
    end: Option<Instant>,
    attributes: Vec<Attribute>,
    marks: Vec<Mark>,
    error: Option<Cow<'static, str>>,
    /// True if its outcome was recorded.
    closed: bool,
}

/// One moment by two clocks: all times of a request are converted by the same offset.
#[derive(Clone, Copy)]
pub(super) struct ClockPair {
    pub(super) at: Instant,
    /// The same moment in ns since 1970.
    pub(super) unix_ns: u64,
}

/// A trace and its span that all others are parts of.
pub(super) struct TraceRoot {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    /// True if its spans go to the collector.
    pub(super) kept: bool,
}

impl Scope {
    /// Creates the scope of a request that arrived at `clock`, as a child of `parent`.
    pub(super) fn new(
        tracer: Arc<Tracer>,
        root: TraceRoot,
        state: Option<HeaderValue>,
        clock: ClockPair,
    ) -> Scope {
        let (prefills, decodes) = Default::default();
        let TraceRoot { trace, span: root, kept } = root;
        Scope { tracer, trace, root, kept, logged: None, state, clock, prompt: None, prefills, decodes }
    }

    /// Sets the name under which its steps are logged, if any.
    pub(super) fn logged(self, name: Option<&str>) -> Scope {
        Scope { logged: name.map(Arc::from), ..self }
    }

    /// The scope of one of several prompts, which counts its own attempts.
    pub fn part(&self, prompt: usize) -> Arc<Scope> {
        let (tracer, state) = (self.tracer.clone(), self.state.clone());
        let root = TraceRoot { trace: self.trace, span: self.root, kept: self.kept };
        let scope = Scope::new(tracer, root, state, self.clock);
        Arc::new(Scope { prompt: Some(prompt as u64), logged: self.logged.clone(), ..scope })
    }

    /// The trace, as people look it up; `None` where there is no collector to look in.
    pub fn trace(&self) -> Option<TraceId> {
        self.tracer.collects().then_some(self.trace)
    }

    /// Counts an attempt at prefill. Returns its number, from 1.
    pub fn next_prefill(&self) -> u32 {
        self.prefills.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts an attempt at decode. Returns its number, from 1.
    pub fn next_decode(&self) -> u32 {
        self.decodes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes `traceparent` and `tracestate` of this request into `headers`, in place of the
    /// client's.
    pub fn onto(&self, headers: &mut HeaderMap) {
        if !self.tracer.collects() {
            return;
        }
        headers.remove(TRACESTATE);
        if let Some(state) = &self.state {
            headers.insert(TRACESTATE, state.clone());
        }
        if let Some(parent) = self.context(self.root).header() {
            headers.insert(TRACEPARENT, parent);
        }
    }

    fn context(&self, span: SpanId) -> Context {
        Context { trace: self.trace, span, sampled: self.kept }
    }

    /// True if its spans are collected or logged.
    fn recorded(&self) -> bool {
        self.kept || self.logged.is_some()
    }

    fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.clock.at).as_nanos();
        self.clock.unix_ns.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

impl Span {
    /// The span of the request as a whole.
    pub(super) fn root(scope: Scope, parent: Option<SpanId>, name: String) -> Span {
        let scope = Arc::new(scope);
        let open = SpanData {
            id: scope.root,
            parent,
            remote_parent: parent.is_some(),
            start: scope.clock.at,
            ..SpanData::new(scope, name.into(), Kind::Server)
        };
        Span(Some(Box::new(open)))
    }

    /// Begins a span for a part of the request.
    pub fn begin(scope: Option<&Arc<Scope>>, name: &'static str, kind: Kind) -> Span {
        Span(scope.map(|scope| Box::new(SpanData::new(scope.clone(), name.into(), kind))))
    }

    /// Creates a span for a part of the request that began at `start`.
    pub fn since(scope: Option<&Arc<Scope>>, name: &'static str, start: Instant) -> Span {
        let mut span = Span::begin(scope, name, Kind::Internal);
        if let Some(open) = &mut span.0 {
            open.start = start;
        }
        span
    }

    /// The scope that it is a span of.
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.0.as_ref().map(|open| &open.scope)
    }

    /// Writes the span as the parent into these headers.
    pub fn onto(&self, headers: &mut Cow<'_, HeaderMap>) {
        let collected = self.0.as_ref().filter(|open| open.scope.tracer.collects());
        if let Some(parent) = collected.and_then(|open| open.scope.context(open.id).header()) {
            headers.to_mut().insert(TRACEPARENT, parent);
        }
    }

    /// True if it will be exported or logged, so that its attributes are worth computing.
    pub fn is_kept(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.scope.recorded())
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(open) = self.kept() {
            open.attributes.push(Attribute { key, value: value.into() });
        }
    }

    /// Sets an attribute if it has a value.
    pub fn set_if(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Records an event at the present time.
    pub fn mark(&mut self, name: &'static str, attributes: Vec<Attribute>) {
        if let Some(open) = self.kept().filter(|open| open.marks.len() < MARKS) {
            let at_ns = open.scope.ns(Instant::now());
            open.marks.push(Mark { at_ns, name, attributes });
        }
    }

    /// Records its failure; the first reason counts.
    pub fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        if let Some(open) = self.kept() {
            open.closed = true;
            if open.error.is_none() {
                open.error = Some(why.into());
            }
        }
    }

    /// Records that its outcome is known: a success, or a failure that was recorded before.
    pub fn close(&mut self) {
        if let Some(open) = self.kept() {
            open.closed = true;
        }
    }

    /// Sets an end that lies in the past.
    pub fn ended(&mut self, at: Instant) {
        if let Some(open) = self.kept() {
            open.end = Some(at);
        }
    }

    /// Ends it with `outcome`, which is returned; `why` names a failure.
    pub fn of<T, E>(mut self, outcome: Result<T, E>, why: impl FnOnce(&E) -> &'static str) -> Result<T, E> {
        match &outcome {
            Ok(_) => self.close(),
            Err(e) => self.fail(why(e)),
        }
        outcome
    }

    fn kept(&mut self) -> Option<&mut SpanData> {
        self.0.as_deref_mut().filter(|open| open.scope.recorded())
    }
}

impl SpanData {
    fn new(scope: Arc<Scope>, name: Cow<'static, str>, kind: Kind) -> SpanData {
        let mut attributes = Vec::new();
        if let Some(prompt) = scope.prompt.filter(|_| scope.recorded()) {
            attributes.push(Attribute { key: "pd_proxy.prompt", value: Value::from(prompt) });
        }
        SpanData {
            id: scope.tracer.span_id(),
            parent: Some(scope.root),
            remote_parent: false,
            scope,
            name,
            kind,
            start: Instant::now(),
            end: None,
            attributes,
            marks: Vec::new(),
            error: None,
            closed: false,
        }
    }

    fn record(self) -> Record {
        let SpanData { scope, mut attributes, .. } = self;
        let error = self.error.or_else(|| (!self.closed).then_some(CANCELLED.into()));
        if let Some(why) = &error {
            attributes.push(Attribute { key: "error.type", value: Value::Text(why.clone()) });
        }
        Record {
            trace: scope.trace,
            span: self.id,
            parent: self.parent,
            remote_parent: self.remote_parent,
            state: scope.state.clone(),
            name: self.name,
            kind: self.kind,
            start_ns: scope.ns(self.start),
            end_ns: scope.ns(self.end.unwrap_or_else(Instant::now)),
            attributes,
            marks: self.marks,
            error,
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = self.0.take().filter(|open| open.scope.recorded()) {
            let scope = open.scope.clone();
            let record = open.record();
            if let Some(name) = &scope.logged {
                lines::write(name, scope.clock.unix_ns, &record);
            }
            if scope.kept {
                scope.tracer.put(record);
            }
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("trace", &self.trace).field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(open) => f.debug_tuple("Span").field(&open.name).field(&open.id).finish(),
            None => f.write_str("Span(-)"),
        }
    }
}
