//! Predicted hits come true, or are not acted on any more.

use std::sync::Arc;

use futures_util::future::join_all;
use pd_proxy::cmd::demo::Embedded;
use pd_proxy::config::{Config, DialectName, Policy, Tokens};
use pd_proxy::sim::{Connector, EngineSpec, Pool};

use super::{ask, chat, explained, number, script};
use crate::common::client;
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;
use crate::resume::metric;

/// Tokens of prompts: predicted to be cached, reported as cached, and all.
#[derive(Default)]
struct Sums {
    predicted: f64,
    reported: f64,
    prompts: f64,
}

impl Sums {
    fn and(self, other: Sums) -> Sums {
        Sums {
            predicted: self.predicted + other.predicted,
            reported: self.reported + other.reported,
            prompts: self.prompts + other.prompts,
        }
    }
}

/// A conversation that goes on for four turns.
async fn converse(stage: &Stage, conversation: usize) -> Sums {
    let mut sums = Sums::default();
    for turn in 0..4 {
        let said = explained(stage.gateway, &chat(conversation, 2 * turn + 1, 160)).await;
        let (predicted, reported) = (number(&said, "any_tokens"), number(&said, "cached_tokens"));
        sums = sums.and(Sums { predicted, reported, prompts: number(&said, "prompt_tokens") });
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predicted_hits_equal_reported_ones() {
    let stage = Stage::set(script(3, 4_000.0)).await;
    let all = join_all((0..12).map(|conversation| converse(&stage, conversation))).await;
    let Sums { predicted, reported, prompts } = all.into_iter().fold(Sums::default(), Sums::and);
    assert!((predicted - reported).abs() <= 0.02 * reported, "predicted {predicted}, reported {reported}");
    assert!(reported > 0.2 * prompts, "{reported} of {prompts}: there was something to predict");
    stage.assert_nothing_left("conversations").await;
    stage.end().await;
}

/// The share of prompts that engines had cached, when nothing but the place decides: one request at
/// a time.
async fn share(policy: Policy, tokens: Tokens) -> f64 {
    let mut script = script(3, 4_000.0);
    (script.config.route.policy, script.config.prompt.tokens) = (policy, tokens);
    let stage = Stage::set(script).await;
    let mut sums = Sums::default();
    for conversation in 0..6 {
        sums = sums.and(converse(&stage, conversation).await);
    }
    stage.end().await;
    sums.reported / sums.prompts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_go_back_to_where_they_were() {
    // Of 1 + 3 + 5 + 7 messages 1 + 3 + 5 are old, less the end of the last block of each.
    for tokens in [Tokens::Engine, Tokens::Off] {
        let share = share(Policy::Predicted, tokens).await;
        assert!(share > 0.5, "{share}, tokens from {tokens:?}");
    }
    // Round and round, the fourth turn finds what is left of the first.
    let share = share(Policy::RoundRobin, Tokens::Engine).await;
    assert!(share < 0.2, "{share}: the test would pass whoever decides");
}

/// Engines with a pool, and a gateway that asks it with this seed.
async fn pooled(seed: &str, fresh_ms: u64) -> Stage {
    Stage::set(with_pool(seed, fresh_ms).await).await
}

async fn with_pool(seed: &str, fresh_ms: u64) -> Script {
    let mut script = script(2, 50_000.0);
    let embedded = Embedded::start(&EngineSpec::default()).await.unwrap();
    let mut config = Config { fleet: script.config.fleet.clone(), ..script.config };
    embedded.configure(&mut config);
    config.hash.seed = Some(seed.into());
    (config.prompt.budget_ms, config.pool.fresh_ms) = (10_000, fresh_ms);
    script.config = config;
    script.engine.pool = Some(Arc::new(Pool::new(4096).mirrored(embedded)));
    script
}

/// True if the pool's answer steers the choice.
async fn steers(stage: &Stage) -> bool {
    let dry = stage.post("/debug/route", &chat(99, 1, 64).to_string()).await;
    dry.json()["beliefs"]["named"].as_bool().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pools_word_counts_while_it_comes_true() {
    let stage = pooled("0", 0).await;
    explained(stage.gateway, &chat(0, 1, 160)).await;
    let told = async || number(&explained(stage.gateway, &chat(0, 1, 160)).await, "any_tokens") > 100.0;
    eventually("the pool has the prompt", told).await;
    assert!(steers(&stage).await);
    stage.end().await;
}

/// Two dozen conversations of two turns.
async fn converse_in_two_turns(stage: &Stage) {
    assert!(steers(stage).await);
    for conversation in 0..24 {
        for turn in 0..2 {
            ask(stage.gateway, &chat(conversation, 2 * turn + 1, 64)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_seed_is_found_out() {
    let stage = pooled("1", 0).await;
    converse_in_two_turns(&stage).await;
    assert!(!steers(&stage).await, "engines find what the pool never knows of");
    stage.end().await;
}

/// Prompts for which the pool was asked between the legs.
async fn waits(stage: &Stage) -> u64 {
    let metrics = client::send(stage.gateway, &client::get("/metrics")).await.text();
    ["there", "waited", "gave_up", "no_answer"]
        .map(|outcome| metric(&metrics, "pd_proxy_pool_waits_total", &[outcome]))
        .iter()
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decoder_waits_for_a_pool_that_is_asked_by_wrong_names() {
    let mut script = with_pool("1", 0).await;
    script.engine.connector = Connector::Pool;
    (script.config.dialect.name, script.config.dialect.pool_wait_ms) = (DialectName::Pool, 20);
    let stage = Stage::set(script).await;
    converse_in_two_turns(&stage).await;
    assert!(!steers(&stage).await);
    let before = waits(&stage).await;
    assert!(before >= 20, "{before}: as long as they were believed");
    ask(stage.gateway, &chat(30, 1, 64)).await;
    assert_eq!(waits(&stage).await, before);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_before_the_pool_knows_it_is_one_doubt() {
    let mut script = with_pool("0", 60_000).await;
    // It is there and stays empty.
    let _pool = script.engine.pool.take();
    let stage = Stage::set(script).await;
    converse_in_two_turns(&stage).await;
    assert!(steers(&stage).await, "the pool's answers may all be as old as the first");
    stage.end().await;
}
