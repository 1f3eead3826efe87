//! Traces of requests that meet trouble, and collectors that do.

use pd_proxy::obs::names;
use pd_proxy::sim::{Fault, FaultKind};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::collector::Collector;
use super::{CHAT, TRACE, ask, chat, names as span_names, script, tree};
use crate::command::{Process, pair};
use crate::common::client::{get, post, post_with, send};
use crate::common::stage::{Stage, fast, slow};
use crate::common::time::eventually;

#[tokio::test]
async fn a_retry_is_a_span_of_its_own() {
    let collector = Collector::start().await;
    let stage = Stage::set(script(&collector, |_| {})).await;
    stage.prefillers_fail(&Fault::once(FaultKind::ResetBeforeHead).on_path(CHAT));
    assert_eq!(ask(&stage, &chat(false), None).await.status, 200);
    stage.end().await;
    let (root, parts) = tree(&collector.spans());
    assert_eq!(
        span_names(&parts),
        ["receive", "admission", "decide", "prefill", "decide", "prefill", "decode"]
    );
    let (first, second) = (&parts[3], &parts[5]);
    assert_eq!(
        (first.failed, first.get("error.type"), first.get("pd_proxy.attempt")),
        (true, Some("broken"), Some("1"))
    );
    assert_eq!((second.failed, second.get("pd_proxy.attempt")), (false, Some("2")));
    assert_eq!(second.get("http.request.resend_count"), Some("1"));
    assert!(!root.failed, "the request went well");
}

#[tokio::test]
async fn failures_are_told_apart_from_refusals() {
    let collector = Collector::start().await;
    let stage = Stage::set(script(&collector, |config| config.retry.attempts = 1)).await;
    stage.prefillers_fail(&Fault::once(FaultKind::Status(500, None)).on_path(CHAT));
    assert_eq!(ask(&stage, &chat(true), None).await.status, 502);
    stage.prefillers_fail(&Fault::once(FaultKind::Status(404, None)).on_path(CHAT));
    assert_eq!(ask(&stage, &chat(true), None).await.status, 404);
    assert_eq!(stage.post(CHAT, "[1]").await.status, 400);
    stage.end().await;
    let spans = collector.spans();
    let root = |status: &str| {
        spans.iter().find(|s| s.kind == 2 && s.get("http.response.status_code") == Some(status)).unwrap()
    };
    assert_eq!((root("502").failed, root("502").get("error.type")), (true, Some("prefill_failed")));
    assert_eq!((root("404").failed, root("404").get("pd_proxy.reason")), (false, Some("engine")));
    assert_eq!((root("400").failed, root("400").get("pd_proxy.reason")), (false, Some("invalid_json")));
    let legs: Vec<_> = spans.iter().filter(|s| s.name == "prefill").collect();
    let told =
        |at: usize| (legs[at].failed, legs[at].get("error.type"), legs[at].get("http.response.status_code"));
    assert_eq!(told(0), (true, Some("500"), Some("500")));
    assert_eq!(told(1), (true, Some("404"), Some("404")));
    assert_eq!(spans.iter().filter(|s| s.trace == root("400").trace).count(), 3, "and no legs");
}

#[tokio::test]
async fn a_stream_that_is_continued_says_so_and_one_that_breaks_fails() {
    for resume in [true, false] {
        let collector = Collector::start().await;
        let mut script = script(&collector, |config| config.retry.resume = resume);
        script.decoders = 2;
        let stage = Stage::set(script).await;
        stage.decoders[0].inject(Fault::once(FaultKind::EndAfterEvents(3)).on_path(CHAT));
        stage.decoders[1].inject(Fault::once(FaultKind::EndAfterEvents(3)).on_path(CHAT));
        assert_eq!(ask(&stage, &chat(true), None).await.done(), resume);
        stage.end().await;
        let (root, parts) = tree(&collector.spans());
        let legs = parts.iter().filter(|span| span.name == "decode first byte").count();
        assert_eq!(
            (legs, root.failed, !root.events.is_empty()),
            if resume { (2, false, true) } else { (1, true, false) }
        );
        let stream = parts.iter().find(|span| span.name == "stream").unwrap();
        assert_eq!((stream.failed, root.get("http.response.status_code")), (!resume, Some("200")));
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_no_failure_and_its_spans_end() {
    let collector = Collector::start().await;
    let mut script = script(&collector, |_| {});
    script.engine = slow();
    let stage = Stage::set(script).await;
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    let mut body = chat(true);
    body["max_tokens"] = 10_000.into();
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("traceparent", parent.as_str())];
    socket.write_all(&post_with(CHAT, &headers, body.to_string().as_bytes())).await.unwrap();
    // Its stream runs.
    let mut piece = [0; 1];
    tokio::io::AsyncReadExt::read_exact(&mut socket, &mut piece).await.unwrap();
    drop(socket);
    let spans = collector.wait_for(7).await;
    stage.end().await;
    let (root, parts) = tree(&spans);
    assert_eq!((root.failed, root.get("pd_proxy.reason")), (false, Some("client_gone")));
    assert!(parts.iter().all(|span| !span.failed), "{parts:#?}");
}

#[tokio::test]
async fn a_collector_that_refuses_for_a_moment_gets_the_spans_later() {
    let collector = Collector::start().await;
    let stage = Stage::set(script(&collector, |_| {})).await;
    collector.refuse(503);
    assert_eq!(ask(&stage, &chat(false), None).await.status, 200);
    assert_eq!(tree(&collector.wait_for(6).await).1.len(), 5);
    assert!(collector.refused(), "a post was made twice");
    stage.end().await;
}

/// In a process of its own: metrics belong to a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_collector_that_is_not_there_costs_requests_nothing_and_lines_name_the_trace() {
    let (prefill, decode) = pair(fast()).await;
    let flags = ["--set", "trace.endpoint=http://127.0.0.1:9", "--set", "log.format=json"];
    let (mut process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    for _ in 0..20 {
        let headers = [("traceparent", parent.as_str())];
        assert_eq!(
            send(gateway, &post_with(CHAT, &headers, chat(false).to_string().as_bytes())).await.status,
            200
        );
    }
    let lost = format!("{}{{outcome=\"failed\"}} 120", names::TRACE_SPANS);
    eventually(&lost, async || {
        let text = send(gateway, &get("/metrics")).await.text();
        if text.contains(&lost) { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(send(gateway, &post("/tokenize", r#"{"prompt":"a"}"#)).await.status, 200);
    let line = process.wait_for(r#""route":"passthrough""#);
    assert!(line.contains(r#""trace_id":""#), "{line}");
    assert_eq!(process.said(&format!(r#""trace_id":"{TRACE}""#)), 20, "one line for each");
    assert_eq!(process.said("traces: spans are lost"), 1, "said once");
}

/// Secrets and addresses are checked before anything starts.
#[test]
fn trace_settings_errors_are_named_at_the_start() {
    let flags = ["check", "--set", "trace.endpoint=collector:4318", "--set", "trace.sample_ratio=2"];
    let (code, _, err) = crate::command::run(&flags, &[]);
    assert_eq!(
        (code, err.trim_end()),
        (
            1,
            "flag --set: trace.endpoint: `collector:4318` does not begin with http:// or https:// and a host: write where \
             the collector takes OTLP over HTTP, as in http://collector:4318\n\
             flag --set: trace.sample_ratio = 2: expected 0 to 1"
        )
    );
    let (code, out, _) =
        crate::command::run(&["check", "--show"], &[("PD_PROXY__TRACE__HEADERS", "x-key=sk-7")]);
    assert!(code == 0 && out.contains("headers") && !out.contains("sk-7"), "{out}");
}
