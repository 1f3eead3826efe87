//! Streams put together in any order have the same texts: those of one engine that was given all
//! prompts.

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::codec::sse;
use pd_proxy::dialect::Api;
use pd_proxy::dialect::batch::{Batch, Merge, merge, part_id};
use pd_proxy::sim::Engine;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::{PATH, body, by_choice, lone, prompts, request, timeless};
use crate::common::client::{self, Raw};

/// The answer of one engine to all prompts, and of another one to each.
async fn answers(more: &Value) -> (Raw, Vec<Raw>) {
    let (one, other) = (lone().await, lone().await);
    let prompts = json!(prompts(3));
    let whole = client::send(one.addr(), &request("r", &prompts, more)).await;
    let parts = each(&other, &body(&prompts, more)).await;
    one.stop().await;
    other.stop().await;
    (whole, parts)
}

async fn each(engine: &Engine, whole: &Value) -> Vec<Raw> {
    let whole = Object::scan(whole.to_string().into(), ScanLimits::default()).unwrap();
    let batch = Batch::of(Api::Completions, &whole, 9).unwrap();
    let mut answers = Vec::new();
    for at in 0..batch.prompts() {
        let (id, body) = (part_id("r", at), batch.body(&whole, at).unwrap());
        let asked = client::post_with(PATH, &[("x-request-id", &id)], body.bytes());
        answers.push(client::send(engine.addr(), &asked).await);
    }
    answers
}

fn variants() -> impl Iterator<Item = (u64, Value)> {
    let mores = [
        json!({"logprobs": 1, "return_token_ids": true}),
        json!({"echo": true, "stop": ["a"]}),
        json!({"max_tokens": 1}),
    ];
    (1..=3).flat_map(move |n| mores.clone().map(|more| (n, more)))
}

#[tokio::test]
async fn streams_in_any_order() {
    let mut runner = TestRunner::new(Config::with_cases(64));
    for (n, mut more) in variants() {
        more["n"] = n.into();
        more["stream"] = true.into();
        more["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let (whole, parts) = answers(&more).await;
        let want = by_choice(whole.events());
        let total: usize = parts.iter().map(|part| frames(part).len()).sum();
        let orders = proptest::collection::vec((0..parts.len(), 1..4_usize), 3 * total);
        let ran = runner.run(&orders, |order| {
            let merged = in_order(&parts, &order, n);
            prop_assert!(merged.done());
            prop_assert_eq!(by_choice(merged.events()), want.clone());
            Ok(())
        });
        ran.unwrap();
    }
}

fn frames(answer: &Raw) -> Vec<Bytes> {
    sse::frames(&answer.body).map(|frame| Bytes::copy_from_slice(frame.whole())).collect()
}

/// One stream of these, taken in this order: so many events of that part at a time, then what is
/// left.
fn in_order(parts: &[Raw], order: &[(usize, usize)], n: u64) -> Raw {
    let mut left: Vec<_> = parts.iter().map(|part| frames(part).into_iter()).collect();
    let mut merge = Merge::new(parts.len(), n);
    let mut out = Vec::new();
    let rest = (0..parts.len()).map(|at| (at, usize::MAX));
    for (at, count) in order.iter().copied().chain(rest) {
        let events: Vec<u8> = left[at].by_ref().take(count).flatten().collect();
        out.extend_from_slice(&merge.pass(at, &events.into()).unwrap());
    }
    assert!(merge.ended());
    Raw { body: out, ..parts[0].clone() }
}

#[tokio::test]
async fn whole_answers() {
    for (n, mut more) in variants() {
        more["n"] = n.into();
        let (whole, parts) = answers(&more).await;
        let scan = |part: &Raw| Object::scan(part.body.clone().into(), ScanLimits::default()).unwrap();
        let merged = merge(&parts.iter().map(scan).collect::<Vec<_>>(), n).unwrap();
        let merged: Value = serde_json::from_slice(&merged).unwrap();
        assert_eq!(timeless(merged), timeless(whole.json()), "{more}");
    }
}
