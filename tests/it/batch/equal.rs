//! The answer is that of one engine which was given all prompts.

use serde_json::{Value, json};

use super::{Own, by_choice, lone, prompts, request, timeless};
use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage};

/// The properties in which requests differ.
fn variants() -> Vec<Value> {
    vec![
        json!({}),
        json!({"logprobs": 2}),
        json!({"echo": true}),
        json!({"return_token_ids": true}),
        json!({"stop": ["a", "e"]}),
        json!({"logprobs": 1, "return_token_ids": true, "temperature": 0.5, "seed": 3, "user": "u"}),
    ]
}

/// Every variant, with so many answers and each kind of counts.
fn all_variants(stream: bool) -> Vec<Value> {
    let options = |stream| match stream {
        true => vec![json!(null), json!({"include_usage": true}), continuous()],
        false => vec![json!(null)],
    };
    let mut all = Vec::new();
    for (n, variant) in (1..=3).flat_map(|n| variants().into_iter().map(move |variant| (n, variant))) {
        for options in options(stream) {
            let mut more = variant.clone();
            (more["n"], more["stream"], more["stream_options"]) = (n.into(), stream.into(), options);
            all.push(more);
        }
    }
    all
}

fn assert_equal(got: &Raw, want: &Raw, more: &Value) {
    assert_eq!((got.status, got.complete), (200, true), "{more} {}", got.text());
    if more["stream"] == json!(true) {
        assert!(got.done(), "{more}: {}", got.text());
        assert_eq!(by_choice(got.events()), by_choice(want.events()), "{more}");
    } else {
        assert_eq!(timeless(got.json()), timeless(want.json()), "{more}");
    }
}

async fn is_equal(prompts_of: impl Fn() -> Value, stream: bool) {
    let (stage, alone) = (Stage::new().await, lone().await);
    for more in all_variants(stream) {
        let asked = request("r", &prompts_of(), &more);
        let want = client::send(alone.addr(), &asked).await;
        let got = stage.send(&asked).await;
        assert_equal(&got, &want, &more);
    }
    // A hand-off is for one answer, and a prefill that ends with a stop string at once hands
    // nothing over, as for one prompt.
    let right = |body: &[u8]| match holds(body, "\"n\":1") {
        true => holds(body, "kv_transfer_params") || holds(body, "\"stop\""),
        false => !holds(body, "kv_transfer_params"),
    };
    assert!(stage.seen(&stage.decoders).iter().all(|seen| right(&seen.body)));
    stage.assert_nothing_left("equal").await;
    stage.assert_all_alive("equal");
    assert_eq!(stage.expired(), 0);
    stage.end().await;
    alone.stop().await;
}

fn holds(body: &[u8], text: &str) -> bool {
    memchr::memmem::find(body, text.as_bytes()).is_some()
}

fn continuous() -> Value {
    json!({"include_usage": true, "continuous_usage_stats": true})
}

fn texts() -> Value {
    json!(prompts(3))
}

/// The same as texts, in the simulator's tokens: a code point each.
fn token_lists() -> Value {
    let ids = |text: String| text.chars().map(|c| (1 << 24) | u32::from(c)).collect::<Vec<_>>();
    json!(prompts(4).into_iter().map(ids).collect::<Vec<_>>())
}

#[tokio::test]
async fn whole_answers_to_texts() {
    is_equal(texts, false).await;
}

#[tokio::test]
async fn whole_answers_to_token_lists() {
    is_equal(token_lists, false).await;
}

#[tokio::test]
async fn streams_to_texts() {
    is_equal(texts, true).await;
}

#[tokio::test]
async fn streams_to_token_lists() {
    is_equal(token_lists, true).await;
}

#[tokio::test]
async fn each_prompt_has_both_legs_and_an_id_of_its_own() {
    let stage = Stage::new().await;
    for stream in [false, true] {
        stage.forget();
        let answer = stage.send(&request("mine", &texts(), &json!({"stream": stream, "n": 1}))).await;
        assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("mine")));
        for engines in [&stage.prefillers, &stage.decoders] {
            let seen = stage.seen(engines);
            let mut ids: Vec<String> = seen
                .iter()
                .filter_map(|s| s.headers.iter().find(|(name, _)| name == "x-request-id"))
                .map(|(_, id)| id.clone())
                .collect();
            ids.sort();
            assert_eq!(ids, ["mine-0", "mine-1", "mine-2"]);
            for one in seen {
                let body: Value = serde_json::from_slice(&one.body).unwrap();
                assert!(body["prompt"].is_string() && body["kv_transfer_params"].is_object());
                assert_eq!(body["n"], json!(1));
            }
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn the_account_is_one_and_counts_all() {
    let own = Own::stage("batch-account", Script::default()).await;
    let mut tokens = [0, 0];
    for stream in [false, true] {
        let more = json!({"stream": stream, "stream_options": if stream { json!({"include_usage": true}) } else { json!(null) }});
        let answer = own.stage.send(&own.request("r", &texts(), &more)).await;
        let usage = match stream {
            true => answer.events().last().unwrap()["usage"].clone(),
            false => answer.json()["usage"].clone(),
        };
        tokens[0] += usage["prompt_tokens"].as_u64().unwrap();
        tokens[1] += usage["completion_tokens"].as_u64().unwrap();
    }
    assert_eq!(tokens[1], 2 * 3 * 6);
    assert_eq!((own.ended("ok").await, own.all().await), (2, 2));
    assert_eq!([own.tokens("prompt").await, own.tokens("output").await], tokens);
    own.stage.end().await;
}
