//! Log lines of answers that failed by their engine's own report, in each API.

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use crate::command::{Process, pair};
use crate::common::client::{self, post};
use crate::common::stage::fast;

const BEGUN: &str = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":0}}}\n\n\
                     event: content_block_delta\ndata: {\"delta\":{\"text\":\"a\"}}\n\n";
const CREATED: &str = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\"}}\n\n\
                       event: response.output_text.delta\ndata: {\"delta\":\"a\"}\n\n";
const CHOICE: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n";

fn message(kind: &str) -> String {
    format!(
        "{BEGUN}event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\"}}}}\n\ndata: [DONE]\n\n"
    )
}

fn response(code: &str) -> String {
    format!(
        "{CREATED}event: response.failed\ndata: {{\"response\":{{\"error\":{{\"code\":\"{code}\"}}}}}}\n\n"
    )
}

fn choice(code: u16) -> String {
    format!("{CHOICE}data: {{\"error\":{{\"code\":{code}}}}}\n\ndata: [DONE]\n\n")
}

fn asked(path: &str) -> Value {
    let mut body = json!({"model": "sim", "stream": true, "max_tokens": 9});
    match path {
        "/v1/messages" => body["messages"] = json!([{"role": "user", "content": "hi"}]),
        "/v1/responses" => body["input"] = "hi".into(),
        _ => body["prompt"] = json!(["hi", "ho"]),
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_that_failed_by_its_engine_s_word_is_no_good_one() {
    let (prefill, decode) = pair(fast()).await;
    let flags = ["--set", "log.format=json", "--set", "health.probe_ms=0"];
    let (mut process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
    for (path, events, reason) in [
        ("/v1/messages", message("internal_error"), "decode_failed"),
        ("/v1/messages", message("invalid_request_error"), "engine"),
        ("/v1/responses", response("server_error"), "decode_failed"),
        ("/v1/responses", response("invalid_prompt"), "engine"),
        ("/v1/completions", choice(500), "decode_failed"),
        ("/v1/completions", choice(400), "engine"),
    ] {
        decode.inject(Fault::always(FaultKind::Events(events.clone().into())).on_path(path));
        let answer = client::send(gateway, &post(path, &asked(path).to_string())).await;
        decode.clear_faults();
        assert!(answer.status == 200 && answer.text().contains("\"error\""), "{path}: {}", answer.text());
        let line: Value = serde_json::from_str(&process.wait_for(r#""message":"request""#)).unwrap();
        assert_eq!((&line["status"], &line["reason"]), (&200.into(), &reason.into()), "{events}\n{line}");
    }
}
