use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::{TRACEPARENT, TRACESTATE};
use super::record::{Attribute, Record, Value};
use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A tracer whose new traces' random part is `random`, and what holds its spans.
fn tracer(ratio: f64, trace: fn() -> [u8; 16]) -> (Arc<Tracer>, Exporter) {
    let span = || NEXT.fetch_add(1, Ordering::Relaxed);
    let collector = Collector {
        url: String::new(),
        headers: HeaderMap::new(),
        client: crate::tls::http().build().unwrap(),
    };
    Tracer::new(ratio, Ids { trace, span }, collector, Vec::new(), CancellationToken::new())
}

fn low() -> [u8; 16] {
    [0xff, 1, 1, 1, 1, 1, 1, 1, 1, 0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]
}

fn high() -> [u8; 16] {
    [0, 1, 1, 1, 1, 1, 1, 1, 1, 0x40, 0, 0, 0, 0, 0, 0]
}

fn headers(parent: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TRACEPARENT, HeaderValue::from_str(parent).unwrap());
    headers.insert(TRACESTATE, HeaderValue::from_static("a=1"));
    headers
}

fn begin(tracer: &Arc<Tracer>, headers: &HeaderMap) -> Span {
    tracer.begin(headers, "POST /x".to_owned(), Instant::now(), None)
}

fn records(exporter: &mut Exporter) -> Vec<Record> {
    std::iter::from_fn(|| exporter.batch()).flatten().collect()
}

fn told(span: &Span) -> String {
    let none = HeaderMap::new();
    let mut headers = Cow::Borrowed(&none);
    span.onto(&mut headers);
    headers.get(TRACEPARENT).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn parents_decide_and_else_the_share() {
    for (ratio, trace, parent, kept) in [
        (0.25, low as fn() -> [u8; 16], None, true),
        (0.25, high, None, false),
        (1.0, high, None, true),
        (0.0, low, None, false),
        (0.0, low, Some("01"), true),
        (1.0, low, Some("00"), false),
    ] {
        let (tracer, mut exporter) = tracer(ratio, trace);
        let came = parent.map_or_else(HeaderMap::new, |flags| headers(&format!("{PARENT}-{flags}")));
        let root = begin(&tracer, &came);
        assert_eq!(root.is_kept(), kept, "{ratio} {parent:?}");
        let of_parent = root.scope().unwrap().trace().unwrap().to_string() == PARENT[3..35];
        assert_eq!(of_parent, parent.is_some());
        let leg = Span::begin(root.scope(), "leg", Kind::Client);
        assert!(told(&leg).ends_with(if kept { "-01" } else { "-00" }), "engines are told all the same");
        assert!(told(&leg).starts_with(&format!("00-{}-", root.scope().unwrap().trace().unwrap())));
        drop((leg, root));
        assert_eq!(records(&mut exporter).len(), if kept { 2 } else { 0 });
    }
}

#[tokio::test]
async fn malformed_client_context_begins_a_trace() {
    let (tracer, mut exporter) = tracer(1.0, low);
    let root = begin(&tracer, &headers("00-1-2-01"));
    let mut out = headers("00-1-2-01");
    root.scope().unwrap().onto(&mut out);
    assert_eq!(out.get(TRACESTATE), None, "it belonged to the other");
    assert_eq!(out[TRACEPARENT], told(&root));
    drop(root);
    assert_eq!(records(&mut exporter)[0].parent, None);
}

#[tokio::test]
async fn spans_are_parts_of_their_request() {
    let (tracer, mut exporter) = tracer(0.0, low);
    let mut root = begin(&tracer, &headers(&format!("{PARENT}-01")));
    let mut out = HeaderMap::new();
    root.scope().unwrap().onto(&mut out);
    assert_eq!(out[TRACESTATE], "a=1");
    let mut one = Span::begin(root.scope(), "one", Kind::Client);
    one.set("n", 3u64);
    one.close();
    let id = told(&one);
    drop(one);
    let part = root.scope().unwrap().part(7);
    let mut two = Span::begin(Some(&part), "two", Kind::Internal);
    two.fail("first");
    two.fail("second");
    drop(two);
    drop(Span::begin(root.scope(), "three", Kind::Internal));
    root.mark("m", vec![]);
    root.close();
    drop(root);
    let [one, two, three, root] = records(&mut exporter).try_into().unwrap();
    assert_eq!((root.parent.unwrap().to_string(), root.remote_parent), (PARENT[36..].to_owned(), true));
    assert_eq!(root.state.as_ref().unwrap(), "a=1");
    for part in [&one, &two, &three] {
        assert_eq!((part.trace, part.parent, part.remote_parent), (root.trace, Some(root.span), false));
        assert!(part.start_ns >= root.start_ns && part.end_ns <= root.end_ns && part.start_ns <= part.end_ns);
    }
    assert!(id.contains(&one.span.to_string()));
    let fact = |key, value| Attribute { key, value };
    assert_eq!((one.attributes, one.error), (vec![fact("n", Value::Int(3))], None));
    assert_eq!(two.error.as_deref(), Some("first"));
    assert_eq!(two.attributes, [fact("pd_proxy.prompt", Value::Int(7)), fact("error.type", "first".into())]);
    assert_eq!(three.error.as_deref(), Some("cancelled"), "nobody closed it");
    assert_eq!((root.marks.len(), root.error), (1, None));
}

#[tokio::test]
async fn without_a_tracer_nothing_is_said() {
    let mut span = Span::begin(None, "x", Kind::Client);
    span.set("a", 1u64);
    span.fail("b");
    assert_eq!((told(&span).as_str(), span.is_kept(), span.scope().is_some()), ("", false, false));
    assert_eq!(std::mem::size_of::<Span>(), 8);
}

#[tokio::test]
async fn spans_beyond_the_outbox_are_dropped_and_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let (tracer, mut exporter) = metrics::with_local_recorder(&recorder, || tracer(1.0, low));
    for _ in 0..OUTBOX_SPANS + 10 {
        drop(begin(&tracer, &HeaderMap::new()));
    }
    assert_eq!(records(&mut exporter).len(), OUTBOX_SPANS);
    let text = metrics.render();
    let line = format!("{}{{outcome=\"dropped\"}} 10", crate::obs::names::TRACE_SPANS);
    assert!(text.contains(&line), "{text}");
}

#[tokio::test]
async fn a_request_that_waited_to_be_read_began_when_it_came() {
    let (tracer, mut exporter) = tracer(1.0, low);
    let arrived = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
    let root = tracer.begin(&HeaderMap::new(), String::new(), arrived, None);
    drop(Span::since(root.scope(), "admission", arrived));
    drop(root);
    let [admission, root] = records(&mut exporter).try_into().unwrap();
    assert_eq!(admission.start_ns, root.start_ns);
    assert!(root.end_ns - root.start_ns >= 3_000_000_000);
}

/// Lines that are logged, at `level` and above, while `work` is done.
fn logged(level: tracing::Level, work: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let to = lines.clone();
    let log =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || to.clone());
    tracing::subscriber::with_default(log.finish(), work);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn steps_are_logged_where_nothing_is_collected_and_engines_are_told_nothing() {
    let said = logged(tracing::Level::DEBUG, || {
        let tracer = Tracer::without_collector(Ids { trace: low, span: || 7 });
        assert!(begin(&tracer, &headers(PARENT)).scope().is_none(), "nobody wants it");
        let now = Instant::now();
        let mut root = tracer.begin(&headers(PARENT), "POST /x".to_owned(), now, Some("r-1"));
        assert!(root.is_kept());
        let mut part = Span::begin(root.scope(), "decode", Kind::Client);
        part.set("pd_proxy.attempt", 2u32);
        part.set("url.full", "http://e:1/\n".to_owned());
        part.fail("status 500");
        assert_eq!(told(&part), "");
        let mut sent = headers(PARENT);
        root.scope().unwrap().onto(&mut sent);
        assert_eq!(sent, headers(PARENT), "what the client says goes on as it is");
        drop(part);
        root.close();
    });
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    for word in [
        " id=\"r-1\"",
        "step=\"decode\"",
        "error=\"status 500\"",
        "facts=attempt=2 url.full=\"http://e:1/\\n\"",
    ] {
        assert!(lines[0].contains(word) && lines[0].contains("DEBUG"), "{word}: {said}");
    }
    assert!(lines[1].contains("step=\"POST /x\"") && !lines[1].contains("error="), "{said}");
}

#[test]
fn a_share_of_the_requests_is_logged_at_level_debug_alone() {
    let wanted = |ratio| {
        [lines::wanted(ratio, || 0), lines::wanted(ratio, || 1 << 63), lines::wanted(ratio, || u64::MAX)]
    };
    logged(tracing::Level::DEBUG, || {
        assert_eq!(
            [0.0, 0.25, 0.75, 1.0].map(wanted).map(|of| of.map(u8::from)),
            [[0; 3], [1, 0, 0], [1, 1, 0], [1; 3]]
        );
    });
    logged(tracing::Level::INFO, || assert_eq!(wanted(1.0), [false; 3]));
}
