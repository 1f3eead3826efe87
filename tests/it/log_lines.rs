//! Lines of the log: their fields, their level, and how often they come.

use pd_proxy::obs::words::SHARED_FIELDS;
use pd_proxy::sim::{Fault, FaultKind};
use serde_json::json;

use crate::common::log::Log;
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;
use crate::tidy::sources_below;

const CHAT: &str = "/v1/chat/completions";

fn stream() -> String {
    let messages = json!([{"role": "user", "content": "hello"}]);
    json!({"model": "sim", "messages": messages, "max_tokens": 8, "stream": true}).to_string()
}

/// The log shows each request that was lost, and how it ended, among its warnings.
#[tokio::test]
async fn a_lost_answer_is_a_warning_with_its_outcome() {
    let log = Log::collect();
    let stage = Stage::set(Script { decoders: 1, ..Script::default() }).await;
    assert_eq!(stage.post(CHAT, &stream()).await.status, 200);
    let lines = |level| log.count(&format!("{level} pd_proxy::relay::account: request id="));
    eventually("it is told", async || lines("INFO") == 1).await;
    assert_eq!(lines("WARN"), 0);
    for zero in ["resumed=0", "waited_ms=0 ", "output_tokens=0"] {
        assert_eq!(log.count(zero), 0, "{zero} says nothing");
    }
    stage.decoders_fail(&Fault::always(FaultKind::EndAfterEvents(2)).on_path("/v1/"));
    let _ = stage.post(CHAT, &stream()).await;
    eventually("it is told", async || lines("WARN") == 1).await;
    let lost = log.find("WARN pd_proxy::relay::account: request id=").unwrap();
    assert!(lost.contains(" status=200 reason=\"decode_failed\""), "{lost}");
    stage.end().await;
}

/// The reference names fields that one meets again and again.
#[test]
fn fields_that_lines_are_said_to_share_are_in_several() {
    let sources = sources_below("src");
    let calls = sources.iter().flat_map(|(_, text)| text.split("tracing::").skip(1));
    let calls: Vec<&str> = calls.map(|rest| rest.split(");").next().unwrap()).collect();
    for field in SHARED_FIELDS {
        let spelled = [" = ", " = %", " = ?", ",", ", "].map(|end| format!("{}{end}", field.name));
        let has = |call: &&&str| spelled.iter().any(|it| call.contains(it.as_str()));
        assert!(calls.iter().filter(has).count() >= 5, "{}", field.name);
    }
}

/// One spelling for each: searches need no second one.
#[test]
fn fields_of_engines_and_requests_have_one_name() {
    let wrong = ["leg =", "leg,", "instance =", "%instance,", "request_id =", "request_id,"];
    for (path, text) in sources_below("src") {
        let calls = text.split("tracing::").skip(1).filter(|rest| {
            ["debug!(", "info!(", "warn!(", "error!(", "event!("].iter().any(|name| rest.starts_with(name))
        });
        for call in calls {
            let call = call.split(");").next().unwrap();
            let found = wrong.iter().find(|field| {
                call.match_indices(*field).any(|(at, _)| call[..at].ends_with([' ', '(', '\n']))
            });
            assert_eq!(found, None, "{}: tracing::{call}", path.display());
        }
    }
}
