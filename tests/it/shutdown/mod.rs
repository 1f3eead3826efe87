//! The end of a shutdown: what is still open is cut, and its client is told.

mod everywhere;

use std::time::{Duration, Instant};

use pd_proxy::sim::{Fault, FaultKind};

use crate::command::{Process, open_stream, pair};
use crate::common::client::{self, post};
use crate::common::stage::fast;
use crate::common::time::eventually;

/// A stream that ends with an error, for which clients raise one.
fn told_that_it_is_cut(raw: &client::Raw) {
    assert!(raw.status == 200 && !raw.done(), "a cut stream looks cut: {}", raw.text());
    assert!(raw.text().trim_end().ends_with(r#""code":"shutdown"}}"#), "{}", raw.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_that_hangs_is_cut_after_the_drain_time() {
    let (prefill, decode) = pair(fast()).await;
    decode.inject(Fault::always(FaultKind::StallAfterBytes(1_000)));
    let (mut process, address) = Process::gateway(&prefill, &decode, &["--set", "server.drain_ms=400"], &[]);
    let mut stream = open_stream(address).await;
    let start = Instant::now();
    process.signal("TERM");
    process.wait_for("connections_cut=1");
    assert_eq!(process.ended().code(), Some(0));
    assert!(start.elapsed() >= Duration::from_millis(400), "it was cut too early");
    told_that_it_is_cut(&client::read(&mut stream).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_signal_ends_it_at_once() {
    let (prefill, decode) = pair(fast()).await;
    decode.inject(Fault::always(FaultKind::StallAfterBytes(1_000)));
    let (mut process, address) =
        Process::gateway(&prefill, &decode, &["--set", "server.drain_ms=600000"], &[]);
    let mut stream = open_stream(address).await;
    process.signal("TERM");
    process.wait_for("shutting down");
    process.signal("TERM");
    process.wait_for("cut by a second signal");
    assert_eq!(process.ended().code(), Some(0));
    told_that_it_is_cut(&client::read(&mut stream).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_that_has_not_begun_is_refused_when_it_is_cut() {
    let chat = r#"{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":4}"#;
    let embeddings = r#"{"model":"sim","input":"hi"}"#;
    let (drains, waits) = ("server.drain_ms=400", "server.drain_ms=600000");
    let browser = "server.cors_origins=https://chat.example";
    is_refused_when_cut("/v1/chat/completions", chat, &["--set", drains], false).await;
    is_refused_when_cut("/v1/chat/completions", chat, &["--set", waits], true).await;
    is_refused_when_cut("/v1/chat/completions", chat, &["--set", drains, "--set", browser], false).await;
    is_refused_when_cut("/v1/embeddings", embeddings, &["--set", drains], false).await;
    is_refused_when_cut("/v1/embeddings", embeddings, &["--set", waits], true).await;
}

/// A request that no engine answers is refused in whole, at the end of the time to drain or at a
/// second signal.
async fn is_refused_when_cut(path: &str, body: &str, flags: &[&str], by_second_signal: bool) {
    let (prefill, decode) = pair(fast()).await;
    for engine in [&prefill, &decode] {
        engine.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/embeddings"));
    }
    decode.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/chat/completions"));
    let (mut process, address) = Process::gateway(&prefill, &decode, flags, &[]);
    let asked = async || prefill.seen().iter().chain(&decode.seen()).any(|seen| seen.path == path);
    let request = post(path, body);
    let ends = async {
        eventually("an engine is asked", asked).await;
        process.signal("TERM");
        process.wait_for("shutting down");
        if by_second_signal {
            process.signal("TERM");
        }
    };
    let (raw, ()) = tokio::join!(client::send(address, &request), ends);
    assert_eq!((raw.status, raw.header("x-pd-error")), (503, Some("shutdown")), "{path}: {}", raw.text());
    assert!(raw.complete && raw.header("retry-after").is_some(), "{path}");
    let line = process.wait_for(" request id=");
    assert!(line.contains("WARN") && line.contains("shutdown"), "{line}");
    assert_eq!(process.ended().code(), Some(0), "{path}");
}
