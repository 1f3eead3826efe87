//! Names of blocks that are not the engines' are found out by what our own prefills have stored.

use std::net::SocketAddr;
use std::sync::Arc;

use pd_proxy::cmd::demo::Embedded;
use pd_proxy::sim::{Engine, EngineSpec, Pool};

use super::{ask, chat};
use crate::command::{Process, pair};
use crate::common::client::{self, get};
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

/// The end of the line that tells of wrong names.
const WRONG: &str = "nothing that prefillers stored is found by its names";

/// The end of the line that tells of a stored prompt's lookup.
const LOOKED_UP: &str = "was looked up again";

/// A gateway of its own, its engines, and their pool.
struct Fleet {
    process: Process,
    gateway: SocketAddr,
    engines: [Engine; 2],
}

impl Fleet {
    /// The pool names blocks as engines with this `root` would, and holds so many of them; the
    /// gateway has these settings beside the right ones.
    async fn new(root: Option<&str>, blocks: usize, sets: &[&str]) -> Fleet {
        let root = root.map(str::to_owned);
        let embedded = Embedded::start(&EngineSpec { root, ..EngineSpec::default() }).await.unwrap();
        let (master, admin) = (embedded.addr(), embedded.admin_addr());
        let pool = Arc::new(Pool::new(blocks).mirrored(embedded));
        let (prefill, decode) = pair(EngineSpec { pool: Some(pool), ..fast() }).await;
        let addresses = [format!("pool.addresses={master}"), format!("pool.admins={admin}")];
        let base = [
            "prompt.tokens=engine",
            "prompt.budget_ms=10000",
            "hash.seed=0",
            "key.preset=mooncake-store-0.30",
            "pool.kind=mooncake",
            "pool.deadline_ms=1000",
            "pool.fresh_ms=0",
        ];
        let all =
            base.iter().copied().chain(addresses.iter().map(String::as_str)).chain(sets.iter().copied());
        let flags: Vec<&str> =
            ["--log-level", "debug"].into_iter().chain(all.flat_map(|set| ["--set", set])).collect();
        let (process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
        Fleet { process, gateway, engines: [prefill, decode] }
    }

    /// A sample of a metric.
    async fn sample(&self, series: &str) -> f64 {
        let all = samples(&client::send(self.gateway, &get("/metrics")).await.text());
        *all.get(series).unwrap_or_else(|| panic!("{series} in {all:?}"))
    }

    async fn unfound(&self) -> f64 {
        self.sample("pd_proxy_block_names_unfound{source=\"pool\"}").await
    }

    async fn end(self) {
        for engine in self.engines {
            engine.stop().await;
        }
    }
}

async fn is_found_out(root: Option<&str>, sets: &[&str], words: &[&str]) {
    let mut fleet = Fleet::new(root, 4096, sets).await;
    let gateway = fleet.gateway;
    let ask_one = async |conversation| drop(ask(gateway, &chat(conversation, 1, 160)).await);
    let sent = fleet.process.prompted(WRONG, 1, ask_one).await;
    let line = fleet.process.hear(WRONG);
    assert!(words.iter().all(|word| line.contains(word)) && line.contains("WARN"), "{words:?} in {line}");
    eventually("it is shown", async || fleet.unfound().await == 1.0).await;
    assert_eq!(fleet.sample("pd_proxy_prediction_source_trusted{source=\"names\"}").await, 0.0);
    assert_eq!(client::send(fleet.gateway, &get("/readyz")).await.status, 200, "it serves as before");
    let mut conversation = sent;
    eventually("it looks again", async || {
        ask(fleet.gateway, &chat(conversation, 1, 160)).await;
        conversation += 1;
        fleet.process.said(LOOKED_UP) > sent
    })
    .await;
    assert_eq!(fleet.process.said(WRONG), 1, "told once");
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_seed_is_found_out() {
    is_found_out(None, &["hash.seed=1"], &["the pool's keys are spelled as ours", "hash.seed"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_name_is_found_out() {
    is_found_out(Some("/models/real"), &[], &["have \"real\"", "see key.model"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_parallel_size_is_found_out() {
    is_found_out(None, &["key.tp=2", "key.kv_heads=2"], &["key.tp"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn right_names_are_never_warned_of() {
    let mut fleet = Fleet::new(None, 4096, &[]).await;
    for conversation in 0..12 {
        ask(fleet.gateway, &chat(conversation, 1, 160)).await;
    }
    fleet.process.wait_for(LOOKED_UP);
    assert_eq!((fleet.unfound().await, fleet.process.said(WRONG)), (0.0, 0));
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_keeps_nothing_says_nothing_of_names() {
    let mut fleet = Fleet::new(None, 0, &[]).await;
    let gateway = fleet.gateway;
    let ask_one = async |conversation| drop(ask(gateway, &chat(conversation, 1, 160)).await);
    // When the ninth is judged, the eighth has been.
    fleet.process.prompted(LOOKED_UP, 9, ask_one).await;
    assert_eq!((fleet.unfound().await, fleet.process.said(WRONG)), (0.0, 0));
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_with_room_for_one_block_says_nothing_of_names() {
    let mut fleet = Fleet::new(None, 1, &[]).await;
    // The last block of each prompt is there, and none of its first.
    ask(fleet.gateway, &chat(0, 1, 160)).await;
    let line = fleet.process.wait_for(LOOKED_UP);
    assert!(line.contains("pool=true"), "{line}");
    assert_eq!((fleet.unfound().await, fleet.process.said(WRONG)), (0.0, 0));
    fleet.end().await;
}

/// An answer of the pool from before the prefill does not count after it, however fresh it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_equal_prompts_finds_what_the_first_stored() {
    let mut fleet = Fleet::new(None, 4096, &["pool.fresh_ms=60000"]).await;
    ask(fleet.gateway, &chat(0, 1, 160)).await;
    let line = fleet.process.wait_for("INFO request id=");
    assert!(line.contains("pooled_tokens=0 "), "{line}");
    ask(fleet.gateway, &chat(0, 1, 160)).await;
    let line = fleet.process.wait_for("INFO request id=");
    assert!(line.contains("pooled_tokens=") && !line.contains("pooled_tokens=0 "), "{line}");
    fleet.end().await;
}
