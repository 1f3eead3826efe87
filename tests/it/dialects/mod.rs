//! Every dialect that has two engines meet: what each is told, that KV really travels, and that no
//! fault strands any.

mod alone;
mod back;
mod bodies;
mod both;
mod faults;
mod found_out;
mod golden;
mod refused;
mod stored;

use std::time::Duration;

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, EngineSpec};
use serde_json::json;

use crate::common::stage::{Script, Stage, fast};
use crate::common::time::pace;

/// A dialect, and simulated engines that speak it.
pub type Spoken = (DialectName, Connector);

/// Those in which a hand-off, a name or a room leads from one engine to the other.
pub const SPOKEN: [Spoken; 4] = [
    (DialectName::KvTransfer, Connector::Handoff),
    (DialectName::Mooncake, Connector::Mooncake),
    (DialectName::NixlPush, Connector::Push),
    (DialectName::Sglang, Connector::Sglang),
];

/// Those, and the one of which less is known.
pub const EVERY: [Spoken; 5] =
    [SPOKEN[0], SPOKEN[1], SPOKEN[2], SPOKEN[3], (DialectName::Moriio, Connector::Moriio)];

/// A stage whose deadlines are short enough to run into, and whose leases end within the test.
pub fn script((name, connector): Spoken) -> Script {
    let mut script =
        Script { engine: EngineSpec { lease_ms: 1_500, connector, ..fast() }, ..Script::default() };
    script.config.dialect.name = name;
    script.config.timeout.prefill_ms = 400;
    script.config.timeout.first_byte_ms = 400;
    script.config.timeout.answer_ms = 400;
    script.config.engine.lease_ms = 1_500;
    // What was broken is whole again in the next moment.
    script.config.health.rest_ms = 1;
    script
}

pub fn completion(stream: bool) -> (&'static str, String) {
    let prompt = "a prompt of a few blocks ".repeat(8);
    (
        "/v1/completions",
        json!({"model": "sim", "prompt": prompt, "max_tokens": 12, "stream": stream}).to_string(),
    )
}

pub fn chat(stream: bool) -> (&'static str, String) {
    let messages = json!([{"role": "user", "content": "a question of a few blocks ".repeat(8)}]);
    let body = json!({"model": "sim", "messages": messages, "max_tokens": 12, "stream": stream});
    ("/v1/chat/completions", body.to_string())
}

/// Prompt tokens that an engine's decoders had from elsewhere, and those that they computed.
pub async fn sources(stage: &Stage) -> (u64, u64) {
    let mut sums = (0, 0);
    for decoder in &stage.decoders {
        let metrics =
            crate::common::client::send(decoder.addr(), &crate::common::client::get("/metrics")).await;
        let count = |source: &str| -> u64 {
            let line = format!("source=\"{source}\"");
            let lines = metrics.text();
            let found = lines
                .lines()
                .filter(|l| l.starts_with("vllm:prompt_tokens_by_source_total") && l.contains(&line));
            found.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).map(|n| n as u64).sum()
        };
        sums.0 += count("external_kv_transfer");
        sums.1 += count("local_compute");
    }
    sums
}

/// Both legs are sent at once once a prefiller is known, and the decoder announces a message long
/// before the prefiller has its prompt.
#[tokio::test]
async fn an_announcement_does_not_end_the_prefill_that_it_waits_for() {
    let mut script = script((DialectName::NixlPush, Connector::Push));
    (script.prefillers, script.decoders) = (1, 1);
    script.engine.prefill_tokens_per_s = 400.0;
    script.config.timeout.prefill_ms = 60_000;
    script.config.timeout.first_byte_ms = 60_000;
    let stage = Stage::set(script).await;
    let ask = async |times: usize| {
        let messages = json!([{"role": "user", "content": "a question of a few blocks ".repeat(times)}]);
        let body = json!({"model": "sim", "messages": messages, "max_tokens": 12, "stream": true});
        stage.post("/v1/messages", &body.to_string()).await
    };
    assert_eq!(ask(1).await.status, 200, "it makes the prefiller known");
    stage.forget();
    let answer = ask(24).await;
    let last = answer.events().pop().unwrap_or_default();
    assert_eq!((answer.status, &last["type"]), (200, &json!("message_stop")), "{}", answer.text());
    assert_eq!((stage.seen(&stage.prefillers).len(), stage.seen(&stage.decoders).len()), (1, 1));
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn answers_are_those_of_one_engine_and_their_kv_has_travelled() {
    for spoken in EVERY {
        let alone = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
        let stage = Stage::set(script(spoken)).await;
        let mut prompt_tokens = 0;
        for round in 0..4 {
            for stream in [false, true] {
                for (path, body) in [completion(stream), chat(stream)] {
                    let body = body.replace("of a few", &format!("{round} of a few"));
                    let right = alone.post(path, &body).await;
                    let answer = stage.post(path, &body).await;
                    assert_eq!((answer.status, answer.complete), (200, true), "{spoken:?} {}", answer.text());
                    assert_eq!(answer.words(), right.words(), "{spoken:?} {path} {stream}");
                    if !stream {
                        prompt_tokens += answer.json()["usage"]["prompt_tokens"].as_u64().unwrap();
                    }
                }
            }
        }
        let (travelled, computed) = sources(&stage).await;
        assert_eq!(computed, 0, "{spoken:?}: a decoder computed a prompt itself");
        // The other half of the requests had the same prompts; what of them a decoder had in memory
        // need not travel.
        assert!(travelled >= prompt_tokens, "{spoken:?}: {travelled} of {prompt_tokens}");
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.assert_all_alive(&format!("{spoken:?}"));
        assert_eq!(stage.expired(), 0, "{spoken:?}");
        stage.end().await;
        alone.end().await;
    }
}

#[tokio::test]
async fn a_prefiller_that_is_another_process_is_found_out() {
    for spoken in [SPOKEN[1], SPOKEN[2]] {
        let mut script = script(spoken);
        (script.prefillers, script.decoders) = (1, 1);
        script.config.health.rest_ms = 1;
        let mut stage = Stage::set(script).await;
        let (path, body) = completion(false);
        let right = stage.post(path, &body).await.words();
        let at = stage.prefillers[0].addr();
        let spec =
            EngineSpec { connector: spoken.1, lease_ms: 1_500, role: pd_proxy::sim::Role::Prefill, ..fast() };
        stage.prefillers.remove(0).stop().await;
        let restarted = pd_proxy::sim::Engine::start(spec, at).await.expect("the same port again");
        stage.prefillers.push(restarted);
        // The first one may still go by the old name, and fail; whoever asks again is served by the
        // new one.
        let mut answer = stage.post(path, &body).await;
        if answer.status != 200 {
            // As clients do.
            pace(Duration::from_millis(50)).await;
            answer = stage.post(path, &body).await;
        }
        assert_eq!((answer.status, answer.words()), (200, right), "{spoken:?}");
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.end().await;
    }
}
