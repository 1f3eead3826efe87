//! `pd-proxy init` before engines that answer, differ, are away, or store in a pool.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use pd_proxy::cmd::demo::Embedded;
use pd_proxy::sim::{Connector, EngineSpec, Pool};

use super::{anywhere, expect};
use crate::command::{pair, run};
use crate::common::stage::fast;

/// Exit code, and what was printed, of the program with these arguments.
async fn said(line: Vec<String>) -> (i32, String) {
    said_with(line, &[]).await
}

/// The same, with variables of the environment.
async fn said_with(line: Vec<String>, env: &'static [(&str, &str)]) -> (i32, String) {
    let ended = tokio::task::spawn_blocking(move || {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        run(&line, env)
    });
    let (code, out, err) = ended.await.unwrap();
    (code, format!("{out}{err}"))
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// Output of `init` for a pair of engines, the file that it wrote, and the findings of `check` with
/// that file.
struct Outcome {
    init: (i32, String),
    file: String,
    check: (i32, String),
}

async fn written(spec: EngineSpec, more: &[&str], path: &Path) -> Outcome {
    let (prefill, decode) = pair(spec).await;
    let (p, d) = (prefill.addr().to_string(), decode.addr().to_string());
    let path_text = path.to_str().unwrap();
    let mut line = words(&["init", "--output", path_text, "--prefill", &p, "--decode", &d]);
    line.extend(words(more));
    let init = said(line).await;
    let file = std::fs::read_to_string(path).unwrap();
    let check = said(words(&["check", "--config", path_text])).await;
    prefill.stop().await;
    decode.stop().await;
    Outcome { init, file, check }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_of_engines_that_hand_over_is_written_and_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    for (connector, dialect) in [(Connector::Handoff, "auto"), (Connector::Sglang, "sglang")] {
        let path = dir.path().join(format!("{dialect}.toml"));
        let outcome = written(EngineSpec { connector, ..fast() }, &[], &path).await;
        expect(&outcome.init, 0, &["Next: pd-proxy check --config"]);
        assert!(outcome.file.contains(&format!("# name = \"{dialect}\"")), "{}", outcome.file);
        assert!(outcome.file.contains("# QUESTION: "), "{}", outcome.file);
        expect(&outcome.check, 0, &["the configuration is valid"]);
    }
}

/// Engines of these connectors end by a request of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_asked_for_no_prompt_where_there_is_no_pool() {
    for connector in [Connector::Layerwise, Connector::Moriio, Connector::Handoff] {
        let (prefill, decode) = pair(EngineSpec { connector, ..fast() }).await;
        let (p, d) = (prefill.addr().to_string(), decode.addr().to_string());
        expect(&said(words(&["init", "--dry-run", "--prefill", &p, "--decode", &d])).await, 0, &["moriio"]);
        for engine in [prefill, decode] {
            let posts = engine.seen().into_iter().filter(|seen| seen.path.starts_with("/v1/completions"));
            assert_eq!(posts.count(), 0, "{connector:?}");
            engine.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seed_is_found_by_what_a_prefiller_stores_in_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let embedded = Embedded::start(&EngineSpec::default()).await.unwrap();
    let (master, admin) = (embedded.addr(), embedded.admin_addr());
    let url = format!("mooncake://{master}?admin={}", admin.port());
    let pool = Arc::new(Pool::new(4096).mirrored(embedded));
    let path = dir.path().join("pool.toml");
    let spec = EngineSpec { pool: Some(pool), ..fast() };
    let outcome = written(spec, &["--pool", &url], &path).await;
    expect(&outcome.init, 0, &["Next: "]);
    assert!(outcome.file.contains("\nseed = \"0\"\n"), "{}", outcome.file);
    assert!(outcome.file.contains(&format!("addresses = [\"{master}\"]")), "{}", outcome.file);
    expect(&outcome.check, 0, &["what it stores is found in the pool by our names"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_exists_is_left_as_it_is_and_what_is_printed_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, "[server]\nport = 1\n").unwrap();
    let there = said(words(&["init", "--output", path.to_str().unwrap()])).await;
    expect(&there, 1, &["it exists, and is left as it is"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "[server]\nport = 1\n");

    let (prefill, decode) = pair(fast()).await;
    let (p, d) = (prefill.addr().to_string(), decode.addr().to_string());
    let path = dir.path().join("none.toml");
    let line = ["init", "--dry-run", "--output", path.to_str().unwrap(), "--prefill", &p, "--decode", &d];
    let dry = said(words(&line)).await;
    expect(&dry, 0, &["[fleet]", &format!("prefill = [\"{p}\"]"), "served as sim"]);
    assert!(dry.1.parse::<toml::Table>().is_ok() && !path.exists(), "{}", dry.1);
    let printed = said(words(&["init", "--output", "-", "--prefill", &p, "--decode", &d])).await;
    expect(&printed, 0, &["[fleet]", &format!("prefill = [\"{p}\"]"), "check --config pd-proxy.toml"]);
    assert!(printed.1.parse::<toml::Table>().is_ok() && !Path::new("-").exists(), "{}", printed.1);
    prefill.stop().await;
    // One engine is enough.
    let half = said(words(&line)).await;
    expect(&half, 0, &["could not be asked", &format!("prefill = [\"{p}\"]")]);
    decode.stop().await;
    let nobody = said(words(&line)).await;
    expect(&nobody, 1, &["no engine answered, so nothing is written", &p, &d]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_no_engine_is_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.toml");
    let no_models = r#"{"object":"list","data":[]}"#;
    for (server, why) in [
        (Router::new(), "answers, but has none of an engine's"),
        (
            Router::new().fallback(|| async { "<html>It works!</html>" }),
            "answers, but has none of an engine's",
        ),
        (
            Router::new().fallback(|| async { Redirect::temporary("http://127.0.0.1:1/") }),
            "answers, but has none of an engine's",
        ),
        (
            Router::new()
                .route("/version", get(|| async { r#"{"version":"0.32.0"}"# }))
                .route("/v1/models", get(move || async move { no_models })),
            "answers /v1/models, and lists no model",
        ),
    ] {
        let listener = tokio::net::TcpListener::bind(anywhere()).await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, server).await.unwrap() });
        let line = ["init", "--output", path.to_str().unwrap(), "--prefill", &at, "--decode", &at];
        let refused = said(words(&line)).await;
        expect(&refused, 1, &["nothing is written", why, "is an engine behind this port?"]);
        assert!(!path.exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_stay_out_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret.toml");
    let spec = EngineSpec { api_key: Some("sk-engine".to_owned()), ..fast() };
    let (prefill, decode) = pair(spec).await;
    let (p, d) = (prefill.addr().to_string(), decode.addr().to_string());
    let line = ["init", "--output", path.to_str().unwrap(), "--prefill", &p, "--decode", &d];
    let init = said_with(words(&line), &[("PD_PROXY__ENGINE__API_KEY", "sk-engine")]).await;
    expect(&init, 0, &["Next: "]);
    let file = std::fs::read_to_string(&path).unwrap();
    let without = said(words(&["init", "--dry-run", "--prefill", &p, "--decode", &d])).await;
    expect(&without, 0, &["wants a key: set engine.api_key"]);
    // The key was used: the engines told what they tell to those who have it.
    assert!(!file.contains("sk-engine") && file.contains("# model = \"sim\""), "{file}");
    prefill.stop().await;
    decode.stop().await;
}
