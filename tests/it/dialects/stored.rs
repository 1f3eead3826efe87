//! A pool alone carries the KV: decoders wait until it has the prompt, but not for ever, and for no
//! dead pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pd_proxy::cmd::demo::Embedded;
use pd_proxy::config::{Config, DialectName};
use pd_proxy::sim::{Connector, Engine, EngineSpec, Pool};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::{chat, completion, sources};
use crate::common::client;
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

/// Longer than any test: what comes after it never comes.
const NEVER_MS: u64 = 600_000;

/// Engines that store a prompt so long after its answer, and a gateway that waits so long.
async fn script(spoken: (DialectName, Connector), store_delay_ms: u64, pool_wait_ms: u64) -> Script {
    let (name, connector) = spoken;
    let embedded = Embedded::start(&fast()).await.unwrap();
    let script = Script::default();
    let mut config = Config { ..script.config };
    embedded.configure(&mut config);
    // Everybody's tests share two cores.
    (config.prompt.budget_ms, config.pool.deadline_ms) = (10_000, 2_000);
    (config.dialect.name, config.dialect.pool_wait_ms) = (name, pool_wait_ms);
    let pool = Some(Arc::new(Pool::new(4096).mirrored(embedded)));
    Script { engine: EngineSpec { connector, pool, store_delay_ms, ..fast() }, config, ..script }
}

const POOL: (DialectName, Connector) = (DialectName::Pool, Connector::Pool);
/// Found out by answers that hand nothing over.
const SILENT: (DialectName, Connector) = (DialectName::KvTransfer, Connector::Pool);

#[tokio::test]
async fn decoders_load_what_comes_late_when_they_are_made_to_wait() {
    for spoken in [POOL, SILENT] {
        let alone = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
        let stage = Stage::set(script(spoken, 150, 60_000).await).await;
        let mut prompts = Vec::new();
        for (path, body) in [completion(false), chat(false), completion(true)] {
            let body = body.replace("of a few", &format!("{path} {} of a few", body.contains("true")));
            let answer = stage.post(path, &body).await;
            assert_eq!((answer.status, answer.words()), (200, alone.post(path, &body).await.words()));
            if !body.contains("\"stream\":true") {
                prompts.push(answer.json()["usage"]["prompt_tokens"].as_u64().unwrap());
            }
        }
        let (loaded, computed) = sources(&stage).await;
        assert!(computed <= 3 * 16, "{spoken:?}: only what is behind the last whole block, not {computed}");
        assert!(loaded + 2 * 16 >= prompts.iter().sum(), "{spoken:?}: {loaded} of {prompts:?}");
        stage.assert_nothing_left("waited").await;
        stage.end().await;
        alone.end().await;
    }
}

#[tokio::test]
async fn without_the_wait_a_decoder_that_looks_early_computes() {
    let stage = Stage::set(script(POOL, NEVER_MS, 0).await).await;
    assert_eq!(stage.post(completion(false).0, &completion(false).1).await.status, 200);
    assert_eq!(sources(&stage).await.0, 0, "nothing was there yet");
    stage.end().await;
}

#[tokio::test]
async fn a_prompt_that_never_comes_is_decoded_when_the_time_is_over() {
    let stage = Stage::set(script(POOL, NEVER_MS, 300).await).await;
    let began = Instant::now();
    let answer = stage.post(chat(false).0, &chat(false).1).await;
    assert_eq!(answer.status, 200);
    assert!(began.elapsed() >= Duration::from_millis(300), "it was waited for");
    assert_eq!(sources(&stage).await.0, 0);
    stage.end().await;
}

#[tokio::test]
async fn the_wait_leaves_the_decoder_half_of_the_requests_time() {
    let mut script = script(POOL, NEVER_MS, NEVER_MS).await;
    script.config.timeout.total_ms = 4_000;
    let stage = Stage::set(script).await;
    let began = Instant::now();
    assert_eq!(stage.post(completion(false).0, &completion(false).1).await.status, 200);
    assert!(began.elapsed() < Duration::from_millis(4_000));
    stage.end().await;
}

#[tokio::test]
async fn no_request_waits_for_a_dead_or_silent_pool() {
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for address in ["127.0.0.1:1".to_owned(), deaf.local_addr().unwrap().to_string()] {
        let mut script = script(POOL, NEVER_MS, NEVER_MS).await;
        (script.config.pool.addresses, script.config.pool.admins) = (vec![address.clone()], Vec::new());
        script.config.pool.deadline_ms = 20;
        let stage = Stage::set(script).await;
        for _ in 0..2 {
            let began = Instant::now();
            assert_eq!(stage.post(completion(true).0, &completion(true).1).await.status, 200);
            assert!(began.elapsed() < Duration::from_secs(10), "{address}");
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_leaves_nothing() {
    let stage = Stage::set(script(POOL, NEVER_MS, NEVER_MS).await).await;
    let (path, body) = completion(true);
    let mut client = TcpStream::connect(stage.gateway).await.unwrap();
    client.write_all(&client::post(path, &body)).await.unwrap();
    let computed = |engine: &Engine| !engine.seen().is_empty() && engine.ledger().running == 0;
    eventually("the prefill is done", async || stage.prefillers.iter().any(computed)).await;
    // Its answer is read, and the pool asked.
    stage.let_it_work().await;
    drop(client);
    stage.assert_nothing_left("the client left").await;
    assert!(
        stage.seen(&stage.decoders).iter().all(|seen| !seen.path.contains("completions")),
        "nobody wants it"
    );
    stage.end().await;
}
