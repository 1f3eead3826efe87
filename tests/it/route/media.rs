//! Images among texts, in virtual time: neither waits for the other more than its turn, and what
//! is predicted of texts stays.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use pd_proxy::config::{Bind, Config, Tokens};
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, ObservedRequest};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{CHAT, chat};
use crate::common::memory::Memory;
use crate::common::stage::fast;
use crate::common::time::{eventually, pass_until};

/// Clients of either kind, each of which sends its next request when the last one is answered.
const TEXT_CLIENTS: usize = 8;
const IMAGE_CLIENTS: usize = 4;
/// Tokens of an image, which differ from those that are assumed of the first.
const IMAGE_TOKENS: usize = 2_000;

/// Time for which texts come alone, and for which images come, too.
const PHASE: Duration = Duration::from_secs(20);

/// Two prefillers that take a third of a second for a text and half a second for an image.
async fn stage() -> Memory {
    let engine = EngineSpec {
        prefill_tokens_per_s: 4_000.0,
        tpot_ms: 1.0,
        slope_ms: 0.0,
        image_tokens: IMAGE_TOKENS,
        seen_requests: 0,
        ..EngineSpec::default()
    };
    let mut config = Config::default();
    // Questions would go over sockets, and what is tested are estimates.
    config.prompt.tokens = Tokens::Off;
    config.route.ttft_slo_ms = 5_000;
    Memory::uneven(2, 1, &engine, config).await
}

/// A chat of 1 300 tokens that begins like no other one.
fn text(n: usize) -> String {
    let word = format!("t{n:06} ");
    let content = word.repeat(4_000 / word.len());
    json!({"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 2}).to_string()
}

/// A chat with an image of half a megabyte, whose bytes would be 125 000 tokens of text.
fn image(n: usize) -> String {
    let url = format!("data:image/png;base64,{n:06}{}", "iVBORw0KGgoA".repeat(43_000));
    let content =
        json!([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]);
    json!({"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 2}).to_string()
}

/// An answer's status, and the time until it was whole.
#[derive(Debug)]
struct Answer {
    status: u16,
    took: Duration,
}

/// The answers of one client, whose requests `body` makes of numbers that nobody else uses.
async fn client(memory: &Memory, number: usize, until: Instant, body: fn(usize) -> String) -> Vec<Answer> {
    let mut answers = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        let (status, _) = memory.post(CHAT, body(1_000 * number + answers.len())).await;
        answers.push(Answer { status, took: began.elapsed() });
    }
    answers
}

/// The answers of so many clients.
async fn clients(
    memory: &Memory,
    numbers: std::ops::Range<usize>,
    until: Instant,
    body: fn(usize) -> String,
) -> Vec<Answer> {
    join_all(numbers.map(|number| client(memory, number, until, body))).await.into_iter().flatten().collect()
}

/// Seconds of a text that nobody has seen, as predicted for each prefiller.
async fn predicted_s(memory: &Memory) -> Vec<f64> {
    let (status, explained) = memory.post("/debug/route", text(999_999)).await;
    assert_eq!(status, 200, "{explained}");
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let candidates = explained["candidates"].as_array().unwrap();
    candidates.iter().map(|it| it["prefill_s"].as_f64().unwrap()).collect()
}

fn slowest(answers: &[Answer]) -> Duration {
    answers.iter().map(|answer| answer.took).max().unwrap()
}

/// True if each is within 20 % of `before_s`.
fn stays(each_s: &[f64], before_s: f64) -> bool {
    each_s.iter().all(|it| (it / before_s - 1.0).abs() < 0.2)
}

#[tokio::test(start_paused = true)]
async fn images_change_nothing_for_texts_and_are_served_in_their_turn() {
    let memory = stage().await;
    let until = Instant::now() + PHASE;
    let before = clients(&memory, 0..TEXT_CLIENTS, until, text).await;
    let before_s = predicted_s(&memory).await;
    let begin = Instant::now();
    let meanwhile = async {
        pass_until(begin + PHASE / 2).await;
        predicted_s(&memory).await
    };
    let (texts, images, meanwhile_s) = tokio::join!(
        clients(&memory, 20..20 + TEXT_CLIENTS, begin + PHASE, text),
        clients(&memory, 40..40 + IMAGE_CLIENTS, begin + PHASE, image),
        meanwhile,
    );
    let after_s = predicted_s(&memory).await;
    for answers in [&before, &texts, &images] {
        assert!(answers.iter().all(|answer| answer.status == 200), "nobody is refused: {answers:?}");
    }
    // What an image takes more than a text puts it back by a few times as much.
    let turn = slowest(&texts) + Duration::from_secs(1);
    assert!(slowest(&images) < turn, "{:?}, and texts {:?}", slowest(&images), slowest(&texts));
    assert!(stays(&before_s, before_s[0]), "both are alike: {before_s:?}");
    assert!(stays(&meanwhile_s, before_s[0]), "among images: {meanwhile_s:?} after {before_s:?}");
    assert!(stays(&after_s, before_s[0]), "after them: {after_s:?} after {before_s:?}");
}

/// A chat with an image of two megabytes.
fn large_image(n: u64) -> Value {
    let url = format!("data:image/png;base64,{}", "QUJDREVGR0hJ".repeat(175_000));
    json!({"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": [
        {"type": "text", "text": format!("What is this {n}?")},
        {"type": "image_url", "image_url": {"url": url}}]}]})
}

/// Answer of the gateway to the question where it would send this.
async fn dry_run(memory: &Memory, body: &Value) -> Value {
    let (status, explained) = memory.post("/debug/route", body.to_string()).await;
    assert_eq!(status, 200, "{explained}");
    serde_json::from_str(&explained).unwrap()
}

/// Chats that the engine has been sent.
fn chats_of(engine: &Engine) -> Vec<ObservedRequest> {
    engine.seen().into_iter().filter(|seen| seen.path == CHAT).collect()
}

#[tokio::test(start_paused = true)]
async fn an_image_among_texts_is_served_in_its_turn() {
    let mut config = Config::default();
    // Questions would go over sockets, and an engine that stalls would not answer them.
    config.prompt.tokens = Tokens::Off;
    config.route.bind = Bind::Late;
    (config.route.batch_tokens, config.route.open_ms) = (0, 1);
    let engine = EngineSpec { prefill_tokens_per_s: 1e6, ..fast() };
    let memory = Arc::new(Memory::uneven(1, 2, &engine, config).await);
    let tokens =
        async || dry_run(&memory, &large_image(0)).await["request"]["prompt_tokens"].as_u64().unwrap();
    assert!((1_000..1_200).contains(&tokens().await), "its data is no text");
    let prefiller = &memory.prefillers[0];
    prefiller.inject(Fault::once(FaultKind::StallBeforeHead));
    // Texts of seconds: an image that comes so much later than the first of them does not pass it.
    let mut clients = JoinSet::new();
    let mut first = None;
    let bodies = [chat(1, 1, 400), chat(2, 1, 24_000), large_image(1), chat(3, 1, 24_000)];
    for (n, body) in bodies.into_iter().enumerate() {
        let asked = memory.clone();
        let client = clients.spawn(async move { asked.post(CHAT, body.to_string()).await });
        first.get_or_insert(client);
        let arrived = async || {
            let waiting = dry_run(&memory, &chat(77, 1, 8)).await["waiting"].as_u64().unwrap();
            chats_of(prefiller).len() == 1 && waiting == n as u64
        };
        eventually("the first is on the engine, each of the others waits after it", arrived).await;
    }
    // The first one leaves, and the line begins to move.
    first.unwrap().abort();
    let mut served = 0;
    while let Some(ended) = clients.join_next().await {
        served += usize::from(ended.is_ok_and(|(status, _)| status == 200));
    }
    assert_eq!(served, 3, "all but the first");
    let order: Vec<bool> =
        chats_of(prefiller).iter().map(|seen| seen.body.windows(6).any(|word| word == b"base64")).collect();
    assert_eq!(order[..2], [false, true], "texts of more tokens do not go before it: {order:?}");
    // Its engine has counted it, and the next one is taken for as much.
    let learned = async || tokens().await < 900;
    eventually("the engine's count is known", learned).await;
    let kept = async || prefiller.ledger().pinned_handoffs == 0 && prefiller.ledger().running == 0;
    eventually("nothing is left", kept).await;
}
