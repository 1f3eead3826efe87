//! Predicted hits come true, or are not acted on any more.

use std::sync::Arc;

use futures_util::future::join_all;
use pd_proxy::config::{Config, Policy, Tokens};
use pd_proxy::demo::Embedded;
use pd_proxy::sim::{EngineSpec, Pool};

use super::{ask, chat, explained, number, script};
use crate::common::stage::Stage;
use crate::surface::until;

/// Conversations that go on for some turns; returns the tokens predicted and reported as cached, and those of the prompts.
async fn converse(stage: &Stage, conversations: usize, turns: usize) -> (f64, f64, f64) {
    let each = (0..conversations).map(async |conversation| {
        let mut sums = (0.0, 0.0, 0.0);
        for turn in 0..turns {
            let said = explained(stage.gateway, &chat(conversation, 2 * turn + 1, 160)).await;
            sums.0 += number(&said, "any_tokens");
            sums.1 += number(&said, "cached_tokens");
            sums.2 += number(&said, "prompt_tokens");
        }
        sums
    });
    let all = join_all(each).await;
    all.into_iter().fold((0.0, 0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1, sum.2 + it.2))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_predicted_is_what_engines_report() {
    let stage = Stage::set(script(3, 4_000.0)).await;
    let (predicted, reported, prompts) = converse(&stage, 12, 4).await;
    assert!((predicted - reported).abs() <= 0.02 * reported, "predicted {predicted}, reported {reported}");
    // Of 1 + 3 + 5 + 7 messages 1 + 3 + 5 are old, less the end of the last block of each.
    assert!(reported > 0.5 * prompts, "{reported} of {prompts}: turns go back to where they were");
    stage.assert_nothing_left("conversations").await;
    stage.end().await;
}

/// The share of prompts that engines had cached.
async fn share(policy: Policy, tokens: Tokens) -> f64 {
    let mut script = script(3, 4_000.0);
    (script.config.route.policy, script.config.prompt.tokens) = (policy, tokens);
    let stage = Stage::set(script).await;
    let (_, reported, prompts) = converse(&stage, 8, 4).await;
    stage.end().await;
    reported / prompts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_go_back_to_where_they_were_more_often_than_by_chance() {
    let by_chance = share(Policy::Random, Tokens::Engine).await;
    let by_tokens = share(Policy::Predicted, Tokens::Engine).await;
    assert!(by_tokens > 1.2 * by_chance, "{by_tokens} against {by_chance}");
    let by_text = share(Policy::Predicted, Tokens::Off).await;
    assert!(by_text > 1.2 * by_chance, "{by_text} against {by_chance}");
}

/// Engines with a pool, and a gateway that asks it with this seed.
async fn pooled(seed: &str) -> Stage {
    let mut script = script(2, 50_000.0);
    let embedded = Embedded::start(&EngineSpec::default()).await.unwrap();
    let mut config = Config { fleet: script.config.fleet.clone(), ..script.config };
    embedded.configure(&mut config);
    config.hash.seed = Some(seed.into());
    config.prompt.budget_ms = 10_000;
    script.config = config;
    script.engine.pool = Some(Arc::new(Pool::new(4096).mirrored(embedded)));
    Stage::set(script).await
}

/// Whether the pool's word steers.
async fn steers(stage: &Stage) -> bool {
    let dry = stage.post("/debug/route", &chat(99, 1, 64).to_string()).await;
    dry.json()["beliefs"]["named"].as_bool().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pools_word_counts_while_it_comes_true() {
    let stage = pooled("0").await;
    explained(stage.gateway, &chat(0, 1, 160)).await;
    let told = async || number(&explained(stage.gateway, &chat(0, 1, 160)).await, "any_tokens") > 100.0;
    until("the pool has the prompt", told).await;
    assert!(steers(&stage).await);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_seed_is_found_out() {
    let stage = pooled("1").await;
    assert!(steers(&stage).await);
    for conversation in 0..24 {
        for turn in 0..2 {
            ask(stage.gateway, &chat(conversation, 2 * turn + 1, 64)).await;
        }
    }
    assert!(!steers(&stage).await, "engines find what the pool never knows of");
    stage.end().await;
}
