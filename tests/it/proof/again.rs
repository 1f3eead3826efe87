//! Engines that come back are compared again.

use pd_proxy::sim::{EngineSpec, Role};
use serde_json::json;

use super::{
    PROVEN, TEMPLATE, TODAY, becomes, changed, chat, complete, counts, decoder, gateway, local, metrics,
    prefiller, prompts, same, spec, start,
};
use crate::common::stage::fast;
use crate::common::{model, place};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn another_chat_template_is_held_against_chats_alone_and_until_a_restart() {
    let dir = model::directory(TEMPLATE);
    let other = EngineSpec { tokenize: Some(model::tokenizing("llama3", TODAY, same)), ..fast() };
    let (prefill, decode) = (prefiller(other).await, decoder().await);
    let at = prefill.addr();
    let (mut process, gateway) = gateway(&prefill, &decode, &local(&dir));
    assert_eq!(process.said("Chats are routed by load until"), 1);
    assert_eq!(metrics(gateway).await.get(PROVEN), Some(&0.0));
    complete(gateway, &json!("The quick brown fox")).await;
    complete(gateway, &json!([1, 2, 3])).await;
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 2.0), ("unknown/refuted", 1.0)]));

    // It comes back with the right template, and with larger blocks.
    prefill.kill().await;
    let _again = start(EngineSpec { block_tokens: 32, ..spec(same) }, Role::Prefill, at).await;
    becomes(gateway, PROVEN, 1.0).await;
    process.wait_for("blocks have 32 tokens now, and had 16");
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 3.0), ("unknown/refuted", 1.0)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_engine_that_comes_back_is_compared_again() {
    let dir = model::directory(TEMPLATE);
    let at = place::own();
    let (prefill, decode) = (start(spec(same), Role::Prefill, at).await, decoder().await);
    let (mut process, gateway) = gateway(&prefill, &decode, &local(&dir));
    assert_eq!(metrics(gateway).await.get(PROVEN), Some(&1.0));
    prefill.stop().await;
    process.wait_for("our tokens are not compared yet");
    assert_eq!(metrics(gateway).await.get(PROVEN), Some(&1.0), "that an engine is away proves nothing");
    let _prefill = start(spec(changed), Role::Prefill, at).await;
    becomes(gateway, PROVEN, 0.0).await;
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("unknown/refuted", 1.0)]));
}
