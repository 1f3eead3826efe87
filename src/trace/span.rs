//! A request's spans while they are open. One that is dropped is over, however that came about.
//!
//! A request that nobody wants has a scope all the same where traces are collected, since engines
//! are told its trace; it records nothing. There is no lock and no task in here: a span that is
//! over goes into the outbox, which never waits, and into the log, which drops what it has no room
//! for.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::context::{Context, SpanId, TRACEPARENT, TRACESTATE, TraceId};
use super::export::Tracer;
use super::lines;
use super::record::{Kind, Mark, Record, Value};

/// Most events of one span; a stream that is continued more often than this says no more about it.
const MARKS: usize = 32;

/// Status of a span that nobody closed: its client left, or nobody waited for it any more.
const CANCELLED: &str = "cancelled";

/// Facts that the spans of a request have in common.
pub struct Scope {
    tracer: Arc<Tracer>,
    trace: TraceId,
    /// The span that all others are parts of.
    root: SpanId,
    /// Its spans go to the collector.
    kept: bool,
    /// Id of the request in the log, if its steps are logged.
    logged: Option<Arc<str>>,
    state: Option<HeaderValue>,
    /// One moment by two clocks: the second is ns since 1970. So all times of a request differ by
    /// the same.
    clock: (Instant, u64),
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
    attributes: Vec<(&'static str, Value)>,
    marks: Vec<Mark>,
    error: Option<Cow<'static, str>>,
    /// Somebody said how it ended.
    closed: bool,
}

impl Scope {
    /// Of a request that arrived at `clock`, as the child of `parent`.
    pub(super) fn new(
        tracer: Arc<Tracer>,
        (trace, root, kept): (TraceId, SpanId, bool),
        state: Option<HeaderValue>,
        clock: (Instant, u64),
    ) -> Scope {
        let (prefills, decodes) = Default::default();
        Scope { tracer, trace, root, kept, logged: None, state, clock, prompt: None, prefills, decodes }
    }

    /// The same, with its steps logged under this name.
    pub(super) fn logged(self, name: Option<&str>) -> Scope {
        Scope { logged: name.map(Arc::from), ..self }
    }

    /// The same for one of several prompts, which counts its own attempts.
    pub fn part(&self, prompt: usize) -> Arc<Scope> {
        let (tracer, state) = (self.tracer.clone(), self.state.clone());
        let scope = Scope::new(tracer, (self.trace, self.root, self.kept), state, self.clock);
        Arc::new(Scope { prompt: Some(prompt as u64), logged: self.logged.clone(), ..scope })
    }

    /// The trace, as people look it up; `None` where there is no collector to look in.
    pub fn trace(&self) -> Option<TraceId> {
        self.tracer.collects().then_some(self.trace)
    }

    /// One prefill more is tried: which one it is, from 1 on.
    pub fn next_prefill(&self) -> u32 {
        self.prefills.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// One decode more is tried: which one it is, from 1 on.
    pub fn next_decode(&self) -> u32 {
        self.decodes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Says in `headers` that what they are sent with is a part of this request: in place of what
    /// the client said, which is where the request itself belongs.
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

    /// Somebody wants its spans.
    fn recorded(&self) -> bool {
        self.kept || self.logged.is_some()
    }

    fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.clock.0).as_nanos();
        self.clock.1.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
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
            start: scope.clock.0,
            ..SpanData::new(scope, name.into(), Kind::Server)
        };
        Span(Some(Box::new(open)))
    }

    /// A part of the request begins.
    pub fn begin(scope: Option<&Arc<Scope>>, name: &'static str, kind: Kind) -> Span {
        Span(scope.map(|scope| Box::new(SpanData::new(scope.clone(), name.into(), kind))))
    }

    /// A part of the request that began at this time.
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

    /// Names it as the parent of whatever is sent with these headers.
    pub fn onto(&self, headers: &mut Cow<'_, HeaderMap>) {
        let collected = self.0.as_ref().filter(|open| open.scope.tracer.collects());
        if let Some(parent) = collected.and_then(|open| open.scope.context(open.id).header()) {
            headers.to_mut().insert(TRACEPARENT, parent);
        }
    }

    /// It will be exported or logged: what is known of it is worth being put together.
    pub fn is_kept(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.scope.recorded())
    }

    /// Notes what is known of it.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(open) = self.kept() {
            open.attributes.push((key, value.into()));
        }
    }

    /// The same, where it is known.
    pub fn set_if(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Something happened in it just now.
    pub fn mark(&mut self, name: &'static str, attributes: Vec<(&'static str, Value)>) {
        if let Some(open) = self.kept().filter(|open| open.marks.len() < MARKS) {
            let at_ns = open.scope.ns(Instant::now());
            open.marks.push(Mark { at_ns, name, attributes });
        }
    }

    /// It failed like this; what was said first counts.
    pub fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        if let Some(open) = self.kept() {
            open.closed = true;
            if open.error.is_none() {
                open.error = Some(why.into());
            }
        }
    }

    /// It ended as it should, or its failure has been told.
    pub fn close(&mut self) {
        if let Some(open) = self.kept() {
            open.closed = true;
        }
    }

    /// It was over at this time already.
    pub fn ended(&mut self, at: Instant) {
        if let Some(open) = self.kept() {
            open.end = Some(at);
        }
    }

    /// It ends with `outcome`; `why` names a failure.
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
            attributes.push(("pd_proxy.prompt", Value::from(prompt)));
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
            attributes.push(("error.type", Value::Text(why.clone())));
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
                lines::write(name, scope.clock.1, &record);
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
