//! The configuration while the gateway runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pd_proxy::app::App;
use pd_proxy::cli::{Command, parse_from};
use pd_proxy::config::{Config, Env};
use pd_proxy::control::reload::{Content, Source};
use pd_proxy::sim::{Engine, Fault, FaultKind, Role};
use serde_json::json;

use super::{CHAT, Gateway, Load, anywhere, chat, engine, is_member};
use crate::command::Process;
use crate::common::client::{self, get, post};
use crate::common::log::Log;
use crate::common::time::eventually;

fn write(file: &Path, prefill: &Engine, decode: &Engine, more: &str) {
    let (prefill, decode) = (prefill.addr(), decode.addr());
    let text = format!(
        "[server]\nhost = \"127.0.0.1\"\nport = 0\n[fleet]\nprefill = [\"{prefill}\"]\ndecode = [\"{decode}\"]\n{more}"
    );
    // As it should be done: a reader sees the one or the other.
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, file).unwrap();
}

async fn gateway(file: &Path) -> Gateway {
    let Ok(Command::Serve(args)) =
        parse_from(["pd-proxy", "--config", file.to_str().unwrap(), "--set", "retry.attempts=4"])
    else {
        panic!("flags of serve");
    };
    let files = vec![file.to_owned()];
    let content = Content::of(&files);
    let load = move || Config::load(&args, &Env::new());
    let loaded = load().unwrap();
    let mut app = App::build(&loaded.config).await.unwrap();
    let every = Some(Duration::from_millis(20));
    app.follow(Source { load: Arc::new(load), files, content, hangup: None, threshold: None, every }, loaded);
    Gateway::run(app)
}

#[tokio::test]
async fn a_changed_file_changes_the_fleet_and_the_limits_and_loses_no_request() {
    const REFUSED: &str = "the configuration is refused, nothing changes";
    let log = Log::collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let prefiller = engine(Role::Prefill, anywhere()).await;
    let [old, new] = [engine(Role::Decode, anywhere()).await, engine(Role::Decode, anywhere()).await];
    write(&file, &prefiller, &old, "");
    let gateway = gateway(&file).await;
    let load = Load::on(gateway.at);
    eventually("the first serves", async || !old.seen().is_empty()).await;

    write(&file, &prefiller, &new, "");
    eventually("the second serves", async || new.seen().iter().any(|seen| seen.path == CHAT)).await;
    eventually("the first has left", async || {
        super::member(gateway.at, "decode", old.addr()).await.is_null()
    })
    .await;

    for broken in ["[limit]\nbody_bytes = 0\n", "[limits]\nbody_bytes = 1\n", "[limit"] {
        let refused = log.count(REFUSED);
        write(&file, &prefiller, &old, broken);
        eventually("it is refused", async || log.count(REFUSED) > refused).await;
        assert!(!is_member(gateway.at, "decode", old.addr()).await, "{broken}");
        assert!(is_member(gateway.at, "decode", new.addr()).await, "{broken}");
    }

    // An editor that was cut off, or a volume without its content: two looks and more see it so.
    for lost in ["", "[server]\nhost = \"127.0.0.1\"\nport = 0\n"] {
        let refused = log.count(REFUSED);
        std::fs::write(&file, lost).unwrap();
        eventually("it is refused", async || log.count(REFUSED) > refused).await;
        assert!(is_member(gateway.at, "decode", new.addr()).await, "{lost}");
        assert!(!is_member(gateway.at, "decode", "127.0.0.1:8002".parse().unwrap()).await, "{lost}");
    }

    assert!(load.end().await > 10);
    write(&file, &prefiller, &new, "[limit]\nbody_bytes = 64\n");
    eventually("the limit counts", async || {
        client::send(gateway.at, &post(CHAT, &chat(&"long ".repeat(40)))).await.status == 413
    })
    .await;
    gateway.end().await;
}

#[tokio::test]
async fn load_scrape_takes_the_reloaded_limit() {
    const READ: &str = "the configuration was read again";
    let log = Log::collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let [prefiller, decoder] =
        [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    assert!(prefiller.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/metrics")));
    let more = |models_ms, body_bytes| {
        format!(
            "[route]\nscrape_ms = 10\n[health]\nprobe_ms = 0\n[timeout]\nmodels_ms = {models_ms}\n[limit]\nbody_bytes = {body_bytes}\n"
        )
    };
    write(&file, &prefiller, &decoder, &more(50, 10_000));
    let gateway = gateway(&file).await;
    let asked = || prefiller.seen().iter().filter(|seen| seen.path == "/metrics").count();
    eventually("each question is given up soon", async || asked() > 2).await;
    let times = log.count(READ);
    write(&file, &prefiller, &decoder, &more(600_000, 64));
    // The body's limit may count a little before that of questions.
    eventually("the limits count", async || log.count(READ) > times).await;
    assert_eq!(client::send(gateway.at, &post(CHAT, &chat(&"long ".repeat(40)))).await.status, 413);
    let so_far = asked();
    // Each takes two looks at the file, 20 ms apart. With the old limit several questions would be
    // given up meanwhile.
    for body_bytes in 65..75 {
        let times = log.count(READ);
        write(&file, &prefiller, &decoder, &more(600_000, body_bytes));
        eventually("the file is read again", async || log.count(READ) > times).await;
    }
    assert!(asked() <= so_far + 1, "one question was under way, and the next is waited for");
    gateway.end().await;
}

/// In an image they are named so, for its health check to read them, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn files_that_a_variable_names_are_followed_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let prefiller = engine(Role::Prefill, anywhere()).await;
    let [old, new] = [engine(Role::Decode, anywhere()).await, engine(Role::Decode, anywhere()).await];
    write(&file, &prefiller, &old, "");
    let path = file.to_str().unwrap();
    let mut process =
        Process::start(&[], &[("PD_PROXY_CONFIG", path), ("PD_PROXY_DEFAULT_HOST", "192.0.2.1")]);
    let at = process.address();
    assert!(at.ip().is_loopback(), "the file's host counts: {at}");
    let status = client::send(at, &get("/status.json")).await.json();
    assert_eq!(status["gateway"]["config"], json!([path]), "what is looked at: {status}");

    write(&file, &prefiller, &new, "");
    process.signal("HUP");
    process.wait_for("the configuration was read again");
    assert!(is_member(at, "decode", new.addr()).await);
}
