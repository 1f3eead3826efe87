//! A chat goes on with the special tokens that its engine shows, or not at all.

use pd_proxy::sim::{EngineSpec, Fault, FaultKind, Parser};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, metric, request, resuming};
use crate::common::stage::{Script, Stage};

/// The text that a client reads of a chat with `more` members that breaks, the bodies that went on
/// with it, and the refusals for special tokens.
async fn broken(engine: EngineSpec, more: &Value) -> (String, Vec<Value>, u64) {
    let stage = Stage::set(Script { engine, ..resuming() }).await;
    stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(5)).on_path(CHAT));
    let text = stage.send(&request(CHAT, 20, more)).await.text();
    let seen = stage.seen(&stage.decoders);
    let bodies = seen.iter().filter(|seen| seen.path == COMPLETIONS);
    let bodies = bodies.map(|seen| serde_json::from_slice(&seen.body).unwrap()).collect();
    let metrics = stage.get("/metrics").await.text();
    stage.end().await;
    let labels = ["refused", "\"special_tokens\""];
    (text, bodies, metric(&metrics, "pd_proxy_continuations_total", &labels))
}

fn engine(parser: Parser) -> EngineSpec {
    EngineSpec { parser, ..EngineSpec::default() }
}

#[tokio::test]
async fn a_continuation_has_the_value_that_the_engines_parsers_chose() {
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"});
    for (parser, more, skips) in [
        (Parser::None, json!({}), true),
        (Parser::None, json!({"skip_special_tokens": true}), true),
        (Parser::None, json!({"skip_special_tokens": false}), false),
        (Parser::Reasoning, json!({}), false),
        (Parser::Reasoning, json!({"skip_special_tokens": true}), false),
        (Parser::Reasoning, tools.clone(), false),
        (Parser::Tools, json!({}), true),
        (Parser::Tools, tools, true),
    ] {
        let (text, bodies, _) = broken(engine(parser), &more).await;
        assert!(
            text.ends_with("data: [DONE]\n\n") && !text.contains("\"error\""),
            "{parser:?} {more}: {text}"
        );
        let told: Vec<_> = bodies.iter().map(|body| body["skip_special_tokens"].clone()).collect();
        assert_eq!(told, [json!(skips)], "{parser:?} {more}");
    }
}

#[tokio::test]
async fn a_chat_does_not_go_on_where_no_engine_tells_unless_no_parser_matters() {
    let silent = EngineSpec { renders: false, ..engine(Parser::Reasoning) };
    for more in [json!({}), json!({"skip_special_tokens": true})] {
        let (text, bodies, refused) = broken(silent.clone(), &more).await;
        assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{more}: {text}");
        assert!(bodies.is_empty() && refused > 0, "{more}: {refused}");
    }
    let (text, bodies, _) = broken(silent, &json!({"skip_special_tokens": false})).await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(bodies.len(), 1);
}

#[tokio::test]
async fn a_chat_whose_tools_may_be_called_does_not_go_on() {
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}]});
    let (text, bodies, _) = broken(engine(Parser::Tools), &tools).await;
    assert!(text.contains("\"error\"") && bodies.is_empty(), "{text}");
}
