//! A collector: it takes what is posted to it and decodes it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use pd_proxy::trace::otlp::{Any, ExportRequest, KeyValue, STATUS_ERROR, Span};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::common::time::eventually;

/// A collector on a free port.
pub struct Collector {
    pub url: String,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    posts: Mutex<Vec<(HeaderMap, ExportRequest)>>,
    status: AtomicU16,
}

/// A span as tests look at it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub name: String,
    pub kind: i32,
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub start: u64,
    pub end: u64,
    pub state: String,
    /// Values as text.
    pub attributes: BTreeMap<String, String>,
    pub events: Vec<String>,
    pub failed: bool,
}

impl Collector {
    pub async fn start() -> Collector {
        let shared = Arc::new(Shared { posts: Mutex::default(), status: AtomicU16::new(200) });
        let router = Router::new().route("/v1/traces", post(take)).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Collector { url, shared, _serving: serving }
    }

    /// Refuses the next post with this status.
    pub fn refuse(&self, status: u16) {
        self.shared.status.store(status, Ordering::Relaxed);
    }

    /// That has happened.
    pub fn refused(&self) -> bool {
        self.shared.status.load(Ordering::Relaxed) == 200
    }

    /// The posts that it took.
    pub fn posts(&self) -> Vec<(HeaderMap, ExportRequest)> {
        self.shared.posts.lock().unwrap().clone()
    }

    /// All spans that it took, by their beginning.
    pub fn spans(&self) -> Vec<Seen> {
        let posts = self.posts();
        let all = posts.iter().flat_map(|(_, post)| &post.resource_spans).flat_map(|r| &r.scope_spans);
        let mut spans: Vec<Seen> = all.flat_map(|scope| &scope.spans).map(seen).collect();
        spans.sort_by_key(|span| span.start);
        spans
    }

    /// Waits until it has so many.
    pub async fn wait_for(&self, spans: usize) -> Vec<Seen> {
        eventually(format!("{spans} spans"), async || {
            let seen = self.spans();
            if seen.len() < spans { Err(seen) } else { Ok(seen) }
        })
        .await
    }
}

impl Seen {
    pub fn get(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let status = StatusCode::from_u16(shared.status.swap(200, Ordering::Relaxed)).unwrap();
    if status.is_success() {
        shared.posts.lock().unwrap().push((headers, ExportRequest::decode(body).unwrap()));
    }
    status
}

/// Name and text of each attribute.
pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| match one.value.clone().and_then(|v| v.value).unwrap() {
        Any::Text(text) => text,
        Any::Flag(flag) => flag.to_string(),
        Any::Int(number) => number.to_string(),
        Any::Float(number) => number.to_string(),
    };
    let map: BTreeMap<String, String> = attributes.iter().map(|one| (one.key.clone(), text(one))).collect();
    assert_eq!(map.len(), attributes.len(), "one name twice in {attributes:?}");
    map
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seen(span: &Span) -> Seen {
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    Seen {
        name: span.name.clone(),
        kind: span.kind,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        state: span.trace_state.clone(),
        attributes: texts(&span.attributes),
        events: span.events.iter().map(|event| event.name.clone()).collect(),
        failed: span.status.as_ref().is_some_and(|status| status.code == STATUS_ERROR),
    }
}
