//! A prompt that a prefiller stores for `pd-proxy check`, and that is looked up.

use std::sync::Arc;

use pd_proxy::cmd::demo::Embedded;
use pd_proxy::sim::{EngineSpec, Pool};

use super::{expect, set};
use crate::command::{pair, run};
use crate::common::stage::fast;

/// Engines whose pool names blocks as `pool` says, and what is found with these settings.
async fn found(root: Option<&str>, more: &[&str]) -> (i32, String) {
    let root = root.map(str::to_owned);
    let embedded = Embedded::start(&EngineSpec { root, ..EngineSpec::default() }).await.unwrap();
    let (master, admin) = (embedded.addr(), embedded.admin_addr());
    let pool = Arc::new(Pool::new(4096).mirrored(embedded));
    let (prefill, decode) = pair(EngineSpec { pool: Some(pool), ..fast() }).await;
    let sets = [
        set("fleet.prefill", prefill.addr()),
        set("fleet.decode", decode.addr()),
        set("prompt.tokens", "engine"),
        set("key.preset", "mooncake-store-0.30"),
        set("pool.kind", "mooncake"),
        set("pool.addresses", master),
        set("pool.admins", admin),
        set("timeout.models_ms", 2_000),
    ];
    let mut line = vec!["check".to_owned()];
    line.extend(sets.into_iter().flat_map(|set| ["--set".to_owned(), set]));
    line.extend(more.iter().map(|word| (*word).to_owned()));
    let found = tokio::task::spawn_blocking(move || {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        run(&line, &[])
    });
    let (code, out, err) = found.await.unwrap();
    prefill.stop().await;
    decode.stop().await;
    (code, format!("{out}{err}"))
}

const FOUND: &str = "what it stores is found in the pool by our names";
const MISSING: &str = "it stored a prompt that is not found in the pool by our names";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_prompt_is_found_by_right_names() {
    let right = found(None, &["--seed", "0"]).await;
    expect(&right, 0, &[FOUND, "keys looked at are as mooncake-store-0.30"]);
    let without = found(None, &["--seed", "0", "--no-store"]).await;
    expect(&without, 0, &["note the pool is empty"]);
    assert!(!without.1.contains(FOUND), "{}", without.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_seed_model_or_parallel_size_is_bad_with_the_key_to_change() {
    let seed = found(None, &["--seed", "1"]).await;
    expect(&seed, 3, &[MISSING, "most likely hash.seed", "keys looked at are as mooncake-store-0.30"]);
    let model = found(Some("/models/real"), &["--seed", "0"]).await;
    expect(&model, 3, &[MISSING, "model differs", "have \"real\"", "see key.model"]);
    let tp = found(None, &["--seed", "0", "--tp", "2", "--set", "key.kv_heads=2"]).await;
    expect(&tp, 3, &["of none all: key.tp"]);
}
