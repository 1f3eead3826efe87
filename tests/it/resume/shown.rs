//! Text that an engine's parsers hold back is noticed before another one goes on behind its tokens.

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, request, resuming};
use crate::common::client;
use crate::common::stage::Stage;

/// The first events of a chat whose tokens say `said`, of which `shown` has come out; then it
/// breaks off.
async fn begun(stage: &Stage, said: &str, shown: &str) -> FaultKind {
    let ask = json!({"model": "sim", "prompt": said, "add_special_tokens": false});
    let ids = stage.post("/tokenize", &ask.to_string()).await.json()["tokens"].clone();
    assert!(ids.as_array().is_some_and(|ids| ids.len() > 1), "{ids}");
    let event = |delta: Value, ids: Value, prompt: Value| {
        let choice =
            json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null, "token_ids": ids});
        let event = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "sim",
            "choices": [choice], "prompt_token_ids": prompt});
        format!("data: {event}\n\n")
    };
    let role = event(json!({"role": "assistant", "content": ""}), Value::Null, json!([7, 8, 9]));
    FaultKind::Events((role + &event(json!({"content": shown}), ids, Value::Null)).into())
}

/// The text that a client reads, and the number of decoders that went on with it.
async fn read(said: &str, shown: &str) -> (String, usize) {
    let stage = Stage::set(resuming()).await;
    stage.decoders_fail(&Fault::once(begun(&stage, said, shown).await).on_path(CHAT));
    let answer = client::send(stage.gateway, &request(CHAT, 30, &json!({}))).await;
    let seen = stage.seen(&stage.decoders);
    stage.end().await;
    (answer.text(), seen.iter().filter(|seen| seen.path == COMPLETIONS).count())
}

#[tokio::test]
async fn a_chat_goes_on_where_all_of_its_tokens_were_shown_and_not_where_some_were_held() {
    let (text, went_on) = read("an answer <b>", "an answer <b>").await;
    assert!(text.ends_with("data: [DONE]\n\n") && !text.contains("\"error\""), "{text}");
    assert_eq!(went_on, 1);
    let (text, went_on) = read("an answer <b></", "an answer <b>").await;
    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    assert_eq!(went_on, 0);
}
