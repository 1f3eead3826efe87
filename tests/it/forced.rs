//! Answers that must call a tool, before prefillers that can't end one after its first token
//! (vllm-project/vllm, issue 38911).

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, EngineSpec, Fault, FaultKind};
use serde_json::{Value, json};

use crate::common::client::Raw;
use crate::common::stage::{Script, Stage, fast};
#[cfg(feature = "share")]
use crate::common::store::Store;
#[cfg(feature = "share")]
use crate::common::time::eventually;
use crate::surface::samples;

const CHAT: &str = "/v1/chat/completions";
/// As vLLM 0.18 says it, but for how it calls the model of a function.
const HALF_A_LIST: &str = r#"{"error":{"message":"1 validation error for list[FunctionDefinition]\n  Invalid JSON: EOF while parsing a list at line 1 column 1","type":"BadRequestError","param":null,"code":400}}"#;

fn chat(choice: Value) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": "call it, please"}], "max_tokens": 24,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": choice})
}

fn named() -> Value {
    chat(json!({"type": "function", "function": {"name": "f"}}))
}

async fn ask(stage: &Stage, body: &Value) -> Raw {
    stage.post(CHAT, &body.to_string()).await
}

fn called(raw: &Raw) -> Value {
    raw.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].clone()
}

fn asked(stage: &Stage) -> (usize, usize) {
    (stage.seen(&stage.prefillers).len(), stage.seen(&stage.decoders).len())
}

#[tokio::test]
async fn a_decoder_answers_alone_and_prefillers_are_spared() {
    let spoken = [
        (DialectName::KvTransfer, Connector::Handoff),
        (DialectName::Mooncake, Connector::Mooncake),
        (DialectName::Pool, Connector::Pool),
    ];
    let answers = [
        FaultKind::Status(400, Some(HALF_A_LIST.into())),
        FaultKind::Status(500, Some("Internal Server Error".into())),
    ];
    for ((name, connector), fails) in
        spoken.into_iter().flat_map(|spoken| answers.iter().map(move |it| (spoken, it)))
    {
        let mut script = Script { engine: EngineSpec { connector, ..fast() }, ..Script::default() };
        script.config.dialect.name = name;
        let stage = Stage::set(script).await;
        let right = called(&ask(&stage, &named()).await);
        assert!(right.is_string(), "{right}");
        stage.prefillers_fail(&Fault::always(fails.clone()).on_path(CHAT));
        for (turn, prefills) in [1, 0, 0].into_iter().enumerate() {
            stage.forget();
            let answer = ask(&stage, &named()).await;
            assert_eq!(
                (answer.status, called(&answer)),
                (200, right.clone()),
                "{name} {fails:?} {}",
                answer.text()
            );
            let (asked_first, asked_then) = asked(&stage);
            assert_eq!(asked_first, prefills, "{name} {fails:?}: turn {turn}");
            // With the decode leg beside the prefill, that one was given up.
            assert!((1..=2).contains(&asked_then), "{name} {fails:?}: turn {turn}");
        }
        // Others are prefilled, and hear what their prefiller says.
        stage.forget();
        let free = ask(&stage, &chat(json!("auto"))).await;
        assert!(free.status >= 400 && asked(&stage).0 >= 1, "{name} {fails:?}");
        stage.heal();
        stage.assert_nothing_left(&format!("{name} {fails:?}")).await;
        let counted = samples(&stage.get("/metrics").await.text());
        assert!(counted[r#"pd_proxy_prefill_bypassed_total{reason="forced_call"}"#] >= 3.0);
        stage.end().await;
    }
}

/// Each gateway would find it out with a prefill whose KV nobody fetches.
#[cfg(feature = "share")]
#[tokio::test]
async fn another_gateway_hears_that_prefillers_fail() {
    let (store, stage) = (Store::open().await, Stage::set(Script::default()).await);
    stage.prefillers_fail(&Fault::always(FaultKind::Status(400, Some(HALF_A_LIST.into()))).on_path(CHAT));
    let one = store.front(&stage, |_| {}).await;
    assert_eq!(one.post(CHAT, &named().to_string()).await.status, 200);
    eventually("it is told", async || !store.values(":forced:1").is_empty()).await;
    one.end().await;
    let looks = store.asked(":forced:1");
    let other = store.front(&stage, |_| {}).await;
    eventually("the other gateway has heard it", async || store.asked(":forced:1") >= looks + 2).await;
    stage.forget();
    assert_eq!(other.post(CHAT, &named().to_string()).await.status, 200);
    assert_eq!(asked(&stage).0, 0, "no prefiller is asked");
    other.end().await;
    stage.end().await;
}

/// A fault of the request itself is reported by the decoder, too, and teaches nothing.
#[tokio::test]
async fn a_request_that_nobody_takes_is_refused_and_prefillers_are_not_suspected() {
    let stage = Stage::new().await;
    let refusal = r#"{"error":{"message":"no such tool","type":"BadRequestError","param":null,"code":400}}"#;
    let all_refuse = Fault::always(FaultKind::Status(400, Some(refusal.into()))).on_path(CHAT);
    stage.prefillers_fail(&all_refuse);
    stage.decoders_fail(&all_refuse);
    let answer = ask(&stage, &chat(json!("required"))).await;
    assert_eq!((answer.status, answer.text()), (400, refusal.to_owned()));
    stage.heal();
    stage.forget();
    assert_eq!(ask(&stage, &named()).await.status, 200);
    assert_eq!(asked(&stage), (1, 1));
    stage.end().await;
}
