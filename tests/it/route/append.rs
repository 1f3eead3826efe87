//! Decoders that remember a conversation compute its next prompt's rest by themselves.

use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::{Value, json};

use super::script;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::{self, post};
use crate::common::place::own_host;
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

const COMPLETIONS: &str = "/v1/completions";
/// Tokens of an answer: a prefiller would have to compute them, a decoder has them.
const ANSWER: usize = 400;

/// Decoders that may compute what they do not remember of a prompt.
fn remembering() -> Script {
    let mut script = script(2, 4_000.0);
    script.config.route.append_gap_ms = 100;
    script
}

/// A conversation in tokens: each prompt repeats what was said, as it was generated.
struct Conversation {
    tokens: Vec<u64>,
}

/// An answer, and how it came.
struct Turn {
    answer: Value,
    /// The record of the request that a decoder answered alone; `null` if it had a prefiller.
    append: Value,
}

impl Conversation {
    fn new(seed: u64) -> Conversation {
        Conversation { tokens: (0..200).map(|at| 65 + (at * seed) % 26).collect() }
    }

    fn body(&self) -> Value {
        json!({"model": "sim", "prompt": self.tokens, "max_tokens": ANSWER, "return_token_ids": true})
    }

    /// Says something more, and hears the answer.
    async fn go_on(&mut self, stage: &Stage) -> Turn {
        self.tokens.extend((0..40).map(|at| 97 + at % 26));
        let raw = stage.post(COMPLETIONS, &self.body().to_string()).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
        let told = stage.get(&format!("/debug/route/{}", raw.header("x-request-id").unwrap())).await.json();
        let answer = raw.json();
        let ids = answer["choices"][0]["token_ids"].as_array().expect("the answer's tokens");
        self.tokens.extend(ids.iter().filter_map(Value::as_u64));
        Turn { answer, append: told["appends"][0].clone() }
    }
}

impl Turn {
    fn cached(&self) -> u64 {
        self.answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    }

    fn text(&self) -> &str {
        self.answer["choices"][0]["text"].as_str().unwrap()
    }
}

fn generated(stage: &Stage, engines: &[Engine]) -> usize {
    stage.seen(engines).iter().filter(|seen| seen.path == COMPLETIONS).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_turns_have_no_prefiller_and_the_answers_of_one_engine() {
    let stage = Stage::set(remembering()).await;
    let one = Engine::start(fast(), own_host()).await.unwrap();
    let mut conversation = Conversation::new(3);
    for turn in 0..6 {
        let mut before = Conversation { tokens: conversation.tokens.clone() };
        before.tokens.extend((0..40).map(|at| 97 + at % 26));
        let said = conversation.go_on(&stage).await;
        let raw = client::send(one.addr(), &post(COMPLETIONS, &before.body().to_string())).await;
        assert_eq!(said.text(), raw.json()["choices"][0]["text"].as_str().unwrap(), "turn {turn}");
        let held = said.append["held_tokens"].as_u64();
        if turn == 0 {
            assert_eq!((held, said.cached()), (None, 0));
            continue;
        }
        // All that was handed over, computed and generated, in whole blocks.
        let known = before.tokens.len() as u64 - 40;
        assert_eq!(
            (held, said.cached()),
            (Some((known - 1) / 16 * 16), (known - 1) / 16 * 16),
            "turn {turn}"
        );
        assert_eq!(said.append["cached_tokens"], said.cached());
    }
    assert_eq!((generated(&stage, &stage.prefillers), generated(&stage, &stage.decoders)), (1, 6));
    assert_eq!(
        stage.decoders.iter().filter(|it| !stage.seen(std::slice::from_ref(it)).is_empty()).count(),
        1
    );
    stage.assert_nothing_left("six turns").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoder_that_forgot_answers_right_and_is_believed_less() {
    let stage = Stage::set(remembering()).await;
    let (mut lost, mut other) = (Conversation::new(3), Conversation::new(5));
    other.go_on(&stage).await;
    lost.go_on(&stage).await;
    lost.go_on(&stage).await;
    for decoder in &stage.decoders {
        client::send(decoder.addr(), &post("/reset_prefix_cache", "{}")).await;
    }
    let said = lost.go_on(&stage).await;
    assert!(said.append["held_tokens"].as_u64() > Some(1_000), "{}", said.append);
    assert_eq!(said.cached(), 0, "its decoder computed all of it");
    assert_eq!(said.append["cached_tokens"], 0);
    let said = lost.go_on(&stage).await;
    assert!(said.cached() > 1_000, "what it has computed since is believed");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_that_would_harm_streams_goes_to_a_prefiller() {
    let mut script = remembering();
    (script.decoders, script.config.route.append_gap_ms) = (1, 1);
    let stage = Stage::set(script).await;
    let mut conversation = Conversation::new(3);
    conversation.go_on(&stage).await;
    assert!(!conversation.go_on(&stage).await.append.is_null(), "nobody is there to be harmed");
    assert!(stage.decoders[0].inject(Fault::once(FaultKind::StallBeforeHead).on_path(COMPLETIONS)));
    let body = post("/v1/completions", &json!({"model": "sim", "prompt": "a", "max_tokens": 9}).to_string());
    let mut stream = TcpStream::connect(stage.gateway).await.unwrap();
    stream.write_all(&body).await.unwrap();
    let runs = async || generated(&stage, &stage.decoders) == 3;
    eventually("a stream runs there", runs).await;
    assert!(
        conversation.go_on(&stage).await.append.is_null(),
        "a gap of a millisecond is reached by any step"
    );
    drop(stream);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoders_compute_nothing_unless_they_may() {
    let mut script = remembering();
    script.config.route.append_gap_ms = 0;
    let stage = Stage::set(script).await;
    let mut conversation = Conversation::new(3);
    for _ in 0..3 {
        assert!(conversation.go_on(&stage).await.append.is_null());
    }
    assert_eq!(generated(&stage, &stage.prefillers), 3);
    let served = stage.decoders.iter().filter(|it| !stage.seen(std::slice::from_ref(it)).is_empty());
    assert_eq!(served.count(), 1, "all turns are decoded where the conversation is");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoder_that_fails_leaves_the_request_to_a_prefiller() {
    let stage = Stage::set(remembering()).await;
    let mut conversation = Conversation::new(3);
    conversation.go_on(&stage).await;
    let holder = stage.decoders.iter().find(|it| !stage.seen(std::slice::from_ref(*it)).is_empty());
    assert!(holder.unwrap().inject(Fault::once(FaultKind::ResetBeforeHead).on_path(COMPLETIONS)));
    let said = conversation.go_on(&stage).await;
    assert!(said.append["held_tokens"].as_u64().is_some(), "its decoder was to compute the rest");
    assert_eq!(generated(&stage, &stage.prefillers), 2, "no other decoder computes all of it");
    stage.assert_nothing_left("answered after all").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_run_names_the_decoder_that_would_compute_the_rest() {
    let stage = Stage::set(remembering()).await;
    let mut conversation = Conversation::new(3);
    let dry = async |body: &Value| {
        stage.post("/debug/route?path=/v1/completions", &body.to_string()).await.json()["append"].clone()
    };
    assert_eq!(dry(&conversation.body()).await, Value::Null);
    conversation.go_on(&stage).await;
    let append = dry(&conversation.body()).await;
    assert_eq!(
        (&append["is_worth_it"], append["held_tokens"].as_u64()),
        (&json!(true), Some(624)),
        "{append}"
    );
    assert!(append["first_s"].as_f64() < append["handed_over_s"].as_f64(), "{append}");
    // An operator empties the caches.
    assert_eq!(stage.post("/reset_prefix_cache", "{}").await.status, 200);
    assert_eq!(dry(&conversation.body()).await, Value::Null);
    stage.end().await;
}
