//! The program: SIGHUP, and the time between a stop signal and closed doors.

use std::time::{Duration, Instant};

use pd_proxy::sim::{Fault, FaultKind, Role};

use super::{CHAT, anywhere, chat, engine};
use crate::command::Process;
use crate::common::client::{self, get, post};
use crate::common::place;
use crate::common::time::eventually;

#[tokio::test]
async fn a_hangup_reads_the_configuration_again_and_flags_still_win() {
    let [prefill, decode] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    std::fs::write(&file, "[limit]\nbody_bytes = 100_000\nheaders = 50\n").unwrap();
    let flags = ["--config", file.to_str().unwrap(), "--set", "limit.headers=60"];
    let (mut process, address) = Process::gateway(&prefill, &decode, &flags, &[]);
    let status = async || client::send(address, &post(CHAT, &chat(&"long ".repeat(40)))).await.status;
    assert_eq!(status().await, 200);

    std::fs::write(&file, "[limit]\nbody_bytes = 64\nheaders = 40\n[timeout]\nconnect_ms = 5\n").unwrap();
    process.signal("HUP");
    let line = process.wait_for("the configuration was read again");
    assert!(line.contains("limit.body_bytes") && !line.contains("limit.headers"), "{line}");
    let line = process.wait_for("after a restart");
    assert!(line.contains("timeout.connect_ms"), "{line}");
    assert_eq!(status().await, 413);

    std::fs::write(&file, "[limit]\nbody_bytes = \"many\"\n").unwrap();
    process.signal("HUP");
    let line = process.wait_for("the configuration is refused");
    assert!(line.contains("limit.body_bytes"), "{line}");
    assert_eq!(status().await, 413);
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
}

/// While engines are asked what they speak.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn signals_count_from_the_beginning_of_the_start() {
    let [prefill, decode] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    prefill.inject(Fault::always(FaultKind::StallBeforeHead));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let (p, d) = (prefill.addr().to_string(), decode.addr().to_string());
    let flags = ["--host", "127.0.0.1", "--port", "0", "--prefill", &p, "--decode", &d, "--config"];
    let start = async || {
        std::fs::write(&file, "[limit]\nbody_bytes = 100_000\n").unwrap();
        prefill.clear_seen();
        let process = Process::start(&[&flags[..], &[file.to_str().unwrap()]].concat(), &[]);
        eventually("it starts", async || !prefill.seen().is_empty()).await;
        process
    };
    let mut process = start().await;
    process.signal("HUP");
    std::fs::write(&file, "[limit]\nbody_bytes = 64\n").unwrap();
    let line = process.wait_for("the configuration was read again");
    assert!(line.contains("limit.body_bytes"), "{line}");
    assert_eq!(process.said("listening on"), 1);
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));

    let mut process = start().await;
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
    assert_eq!((process.said("listening on"), process.said("stopped before the start was over")), (0, 1));
}

#[tokio::test]
async fn between_a_stop_signal_and_closed_doors_requests_are_still_served() {
    let [prefill, decode] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let flags = ["--set", "server.lame_duck_ms=1500"];
    let (mut process, address) = Process::gateway(&prefill, &decode, &flags, &[]);
    eventually("it is ready", async || client::send(address, &get("/readyz")).await.status == 200).await;
    let start = Instant::now();
    process.signal("TERM");
    eventually("it says that it leaves", async || client::send(address, &get("/readyz")).await.status == 503)
        .await;
    assert_eq!(client::send(address, &post(CHAT, &chat("x"))).await.status, 200);
    assert_eq!(process.ended().code(), Some(0));
    assert!(start.elapsed() >= Duration::from_millis(1_500), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_second_signal_ends_that_time() {
    let [prefill, decode] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let flags = ["--set", "server.lame_duck_ms=600000"];
    let (mut process, address) = Process::gateway(&prefill, &decode, &flags, &[]);
    // It is not ready before its engines have answered either, and two signals at once are one.
    eventually("it is ready", async || client::send(address, &get("/readyz")).await.status == 200).await;
    process.signal("TERM");
    eventually("it says that it leaves", async || client::send(address, &get("/readyz")).await.status == 503)
        .await;
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
}

#[tokio::test]
async fn a_name_that_fails_does_not_hide_what_another_changed() {
    let [prefill, decode] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let names = format!("[\"localhost:{}\", \"no-such-name.invalid:80\"]", decode.addr().port());
    std::fs::write(&file, format!("[discovery]\ndecode_dns = {names}\n")).unwrap();
    let prefill = prefill.addr().to_string();
    let flags =
        ["--host", "127.0.0.1", "--port", "0", "--prefill", &prefill, "--config", file.to_str().unwrap()];
    let mut process = Process::start(&flags, &[]);
    process.wait_for("the fleet changed");
    let line = process.wait_for("no-such-name.invalid");
    assert!(line.contains("the rest stays as it was"), "{line}");
    assert_eq!(process.said("nothing changes"), 0);
}

/// Ports where nobody listens: an operator reads it before the first request fails of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_that_are_not_there_are_told_of_before_anybody_asks() {
    let [p_at, d_at] = [place::own(), place::own()];
    let (prefill, decode) = (p_at.to_string(), d_at.to_string());
    let flags = ["--host", "127.0.0.1", "--port", "0", "--prefill", &prefill, "--decode", &decode];
    let probes = ["--set", "health.probe_ms=50", "--set", "health.probe_timeout_ms=50"];
    let mut process = Process::start(&[&flags[..], &probes].concat(), &[]);
    let line = process.wait_for("no prefiller says yet what it is");
    assert!(line.contains("WARN") && line.contains(&prefill), "{line}");
    let address = process.address();
    for (role, at) in [("prefill", &prefill), ("decode", &decode)] {
        let line = process.hear(&format!("engine {at} ({role}) is down: connection refused; next try in"));
        assert!(line.contains("WARN") && line.contains(&format!("engine={at} role=\"{role}\"")), "{line}");
    }
    let ready = client::send(address, &get("/readyz")).await;
    let reason = "every prefiller is down (1 of 1); every decoder is down (1 of 1)";
    assert_eq!((ready.status, &ready.json()["reason"]), (503, &reason.into()));
    let instances = client::send(address, &get("/instances")).await.json();
    for it in instances["instances"].as_array().unwrap() {
        assert_eq!((&it["state"], &it["cause"]), (&"down".into(), &"connection refused".into()));
    }
    let metrics = client::send(address, &get("/metrics")).await.text();
    let state = format!("pd_proxy_engine_state{{role=\"decode\",engine=\"{decode}\",state=\"down\"}} 1");
    assert!(
        metrics.contains(&state) && metrics.contains("pd_proxy_role_state{role=\"decode\",state=\"down\"} 1")
    );
    assert_eq!(client::send(address, &get("/health")).await.status, 200, "it lives");
    let [p, d] = [engine(Role::Prefill, p_at).await, engine(Role::Decode, d_at).await];
    process.wait_for("INFO ready");
    assert_eq!(client::send(address, &get("/readyz")).await.status, 200);
    assert_eq!(process.said(") is down: "), 2, "each transition is told once");
    assert_eq!(process.said("not ready yet"), 1);
    drop([p, d]);
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));

    let [p, d] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let (mut process, _) = Process::gateway(&p, &d, &[], &[]);
    process.wait_for("ready");
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
    assert_eq!(process.said("no prefiller says yet"), 0);
}

/// A name that requests must carry and that no engine serves: each request would be refused by the
/// gateway or by the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn likely_mistakes_are_told_once() {
    let [p, d] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let flags = ["--model", "Qwen3-8B", "--set", "server.admin_port=9999", "--set", "health.probe_ms=2s"];
    let (mut process, _) = Process::gateway(&p, &d, &flags, &[("PD_PROXY_SERVER_PORT", "9000")]);
    let said = process.hear("the variable PD_PROXY_SERVER_PORT is not read");
    assert!(said.contains("WARN") && said.contains("did you mean PD_PROXY__SERVER__PORT?"), "{said}");
    process.hear("server.admin_port = 9999 has no effect without server.admin_host");
    let said = process.hear("fleet.model = \"Qwen3-8B\" is served by no engine: they list sim;");
    assert!(said.contains("WARN"), "{said}");
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
    assert_eq!(process.said("is served by no engine"), 1);
}

/// The alert for block names fired on every fleet without a pool: its metric stood at 0.
#[tokio::test]
async fn disabled_features_have_no_series() {
    let [prefill, decode] = [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let (_process, address) = Process::gateway(&prefill, &decode, &[], &[]);
    assert_eq!(client::send(address, &post(CHAT, &chat("hello"))).await.status, 200);
    let text = client::send(address, &get("/metrics")).await.text();
    for off in [
        "pd_proxy_block_names_known",
        "pd_proxy_tokens_proven",
        "pd_proxy_prediction_source_trusted{source=\"names\"}",
        "pd_proxy_token_parity_checks_total",
        "pd_proxy_prompt_cache_lookups_total",
        "pd_proxy_prompts_total",
        "pd_proxy_pool_",
        "pd_proxy_events_",
        "pd_proxy_callbacks_total",
        "pd_proxy_trace_spans_total",
    ] {
        let series = text.lines().find(|line| line.starts_with(off));
        assert_eq!(series, None, "{off}");
    }
    for on in [
        "pd_proxy_prediction_source_trusted{source=\"history\"} 1",
        "pd_proxy_engines{role=\"decode\"} 1",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_open_fds ",
    ] {
        assert!(text.lines().any(|line| line.starts_with(on)), "{on}");
    }
}
