//! Export of spans: into a bounded outbox, and from there, in batches, to a collector (OTLP over
//! HTTP, protobuf).
//!
//! A collector that is slow or gone does not delay requests: when the outbox is full, further spans
//! are dropped and counted.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::context::{Context, SpanId, TraceId, state_of};
use super::otlp::{self, Resource};
use super::record::{Attribute, Record};
use super::span::{ClockPair, Scope, Span, TraceRoot};
use crate::obs::traces::{Outcome, SpanMeter};

/// Spans that wait to be posted, about 1 KB each. A request has some eight.
pub const OUTBOX_SPANS: usize = 8_192;

/// Most spans in one post.
const BATCH_SPANS: usize = 512;

/// Spans are posted this often, or when the outbox is half full.
const EVERY: Duration = Duration::from_secs(1);

/// The longest that one post may take.
pub const POST_TIME: Duration = Duration::from_secs(5);

/// Most attempts to post a batch while the collector can't be reached, or is overloaded. The pause
/// after the first is below; each further one is twice as long.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// Limit for the part of a collector's answer that is read.
const ANSWER_BYTES: usize = 64 << 10;

/// Sources of new ids.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    /// Random bytes, of which the last seven are equally distributed.
    pub trace: fn() -> [u8; 16],
    /// Source of random numbers.
    pub span: fn() -> u64,
}

/// Begins traces, and takes their spans.
pub struct Tracer {
    /// Of 2^56 traces that begin here, the number that is kept.
    share: u64,
    ids: Ids,
    /// None = there is no collector.
    outbox: Option<Outbox>,
}

/// Spans on their way to the exporter.
struct Outbox {
    sender: mpsc::Sender<Record>,
    filling: Arc<Notify>,
    meter: SpanMeter,
}

/// Address and client of a collector.
#[derive(Clone, Debug)]
pub struct Collector {
    /// The URL that is posted to.
    pub url: String,
    /// Headers that are sent along, keys among them.
    pub headers: HeaderMap,
    /// HTTP client that posts.
    pub client: reqwest::Client,
}

/// The task that posts.
pub struct Exporter {
    collector: Collector,
    resource: Resource,
    outbox: mpsc::Receiver<Record>,
    filling: Arc<Notify>,
    meter: SpanMeter,
    stop: CancellationToken,
    /// The last post failed, which has been logged.
    failing: bool,
}

/// Reasons why a post failed.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("status {0}")]
    Status(StatusCode),
    #[error("{0}")]
    Http(#[source] reqwest::Error),
}

impl Tracer {
    /// Creates a tracer that keeps `share`, from 0 to 1, of the traces that begin here. The second
    /// value is the task that posts them as `resource`. When `stop` is cancelled it posts the rest
    /// and ends.
    pub fn new(
        sample_ratio: f64,
        ids: Ids,
        collector: Collector,
        resource: Vec<Attribute>,
        stop: CancellationToken,
    ) -> (Arc<Tracer>, Exporter) {
        let (sender, outbox) = mpsc::channel(OUTBOX_SPANS);
        let (filling, meter) = (Arc::new(Notify::new()), SpanMeter::new());
        let share = (sample_ratio.clamp(0.0, 1.0) * (1u64 << 56) as f64) as u64;
        let kept = Outbox { sender, filling: filling.clone(), meter: meter.clone() };
        let tracer = Tracer { share, ids, outbox: Some(kept) };
        let resource = otlp::resource(resource);
        let exporter = Exporter { collector, resource, outbox, filling, meter, stop, failing: false };
        (Arc::new(tracer), exporter)
    }

    /// Creates a tracer without a collector, for the log alone.
    pub fn without_collector(ids: Ids) -> Arc<Tracer> {
        Arc::new(Tracer { share: 0, ids, outbox: None })
    }

    /// True if spans go to a collector, and engines are told of traces.
    pub fn collects(&self) -> bool {
        self.outbox.is_some()
    }

    /// The span of a request that came with these headers. It goes on with its client's trace,
    /// where there is one, and is kept if that is; else a trace begins. `logged` is what the
    /// request is called where its steps are logged, too.
    pub fn begin(
        self: &Arc<Self>,
        headers: &HeaderMap,
        name: String,
        arrived: Instant,
        logged: Option<&str>,
    ) -> Span {
        if !self.collects() && logged.is_none() {
            return Span::default();
        }
        let parent = Context::of(headers).filter(|_| self.collects());
        let state = parent.and_then(|_| state_of(headers));
        let (trace, kept) = match &parent {
            Some(parent) => (parent.trace, parent.sampled),
            None => {
                let trace = TraceId::of((self.ids.trace)());
                (trace, trace.random() < self.share)
            }
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let arrived_ns = since_1970.saturating_sub(arrived.elapsed()).as_nanos();
        let clock = ClockPair { at: arrived, unix_ns: u64::try_from(arrived_ns).unwrap_or(u64::MAX) };
        let root = TraceRoot { trace, span: self.span_id(), kept };
        let scope = Scope::new(self.clone(), root, state, clock);
        Span::root(scope.logged(logged), parent.map(|parent| parent.span), name)
    }

    pub(super) fn span_id(&self) -> SpanId {
        SpanId::of((self.ids.span)())
    }

    /// Puts a finished span into the outbox.
    pub(super) fn put(&self, record: Record) {
        let Some(outbox) = &self.outbox else { return };
        if outbox.sender.try_send(record).is_err() {
            outbox.meter.count(Outcome::Dropped, 1);
        }
        if outbox.sender.capacity() < OUTBOX_SPANS / 2 {
            outbox.filling.notify_one();
        }
    }
}

impl Exporter {
    /// Posts until it is stopped, and then the rest.
    pub async fn run(mut self) {
        loop {
            let last = tokio::select! {
                biased;
                () = self.stop.cancelled() => true,
                () = self.filling.notified() => false,
                () = sleep(EVERY) => false,
            };
            while let Some(batch) = self.batch() {
                self.post(batch).await;
            }
            if last {
                return;
            }
        }
    }

    /// Takes the spans to be posted next; `None` when the outbox is empty.
    pub(super) fn batch(&mut self) -> Option<Vec<Record>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_SPANS
            && let Ok(record) = self.outbox.try_recv()
        {
            batch.push(record);
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Posts a batch, more than once if that may help.
    async fn post(&mut self, batch: Vec<Record>) {
        let spans = batch.len() as u64;
        let body = bytes::Bytes::from(otlp::encode(&self.resource, batch));
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS {
            let error = match self.once(body.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    self.meter.count(Outcome::Sent, spans - rejected);
                    self.meter.count(Outcome::Rejected, rejected);
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("traces: the collector takes spans again");
                    }
                    return;
                }
                Err(error) => error,
            };
            if attempt == ATTEMPTS || !error.may_pass() || self.stop.is_cancelled() {
                self.meter.count(Outcome::Failed, spans);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(
                        url = self.collector.url,
                        "traces: spans are lost until the collector takes them again: {error}"
                    );
                }
                return;
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = sleep(pause) => {}
            }
            pause *= 2;
        }
    }

    /// Posts a batch once. Returns the number of spans that the collector rejected.
    async fn once(&self, body: bytes::Bytes) -> Result<u64, PostError> {
        // The URL may contain a secret, so errors omit it; the configuration has it.
        let http = |e: reqwest::Error| PostError::Http(e.without_url());
        let request = self.collector.client.post(&self.collector.url).timeout(POST_TIME);
        let request = request.headers(self.collector.headers.clone());
        let request =
            request.header(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let mut response = request.body(body).send().await.map_err(http)?;
        if !response.status().is_success() {
            return Err(PostError::Status(response.status()));
        }
        let mut answer = Vec::new();
        while answer.len() < ANSWER_BYTES
            && let Some(piece) = response.chunk().await.map_err(http)?
        {
            answer.extend_from_slice(&piece);
        }
        Ok(otlp::rejected(&answer))
    }
}

impl PostError {
    /// True if OTLP allows the same post to be repeated.
    fn may_pass(&self) -> bool {
        match self {
            PostError::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            PostError::Http(_) => true,
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("share", &self.share).finish_non_exhaustive()
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("collector", &self.collector.url).finish_non_exhaustive()
    }
}
