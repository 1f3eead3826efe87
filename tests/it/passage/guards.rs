//! Requests that must not reach a decoder: those that it can't answer alone, and ids that name
//! others.

use pd_proxy::config::DialectName;

use super::willing;
use crate::common::client::post_with;
use crate::common::raw_engine::Front;

const ALONE: [&str; 6] = [
    "/v1/chat/completions/batch",
    "/generative_scoring",
    "/cohere/v2/chat",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];
/// A name that engines of MoRIIO may read as addresses.
const ADDRESSES: &str = "___prefill_addr_10.0.0.66:1___decode_addr_10.0.0.66:2_0";

#[tokio::test]
async fn nothing_reaches_a_decoder_alone_where_decoders_compute_no_prompt() {
    for dialect in [DialectName::Moriio, DialectName::Sglang] {
        let (p, d) = (willing().await, willing().await);
        let front = Front::of(&[&p], &[&d], |config| config.dialect.name = dialect).await;
        for path in ALONE {
            let raw = front.send(&post_with(path, &[("x-request-id", ADDRESSES)], br#"{"model":"m"}"#)).await;
            assert_eq!(
                (raw.status, raw.header("x-pd-error")),
                (400, Some("invalid_value")),
                "{dialect:?} {path}"
            );
            assert!(raw.text().contains("dialect.name"), "{}", raw.text());
        }
        assert!(p.seen().is_empty() && d.seen().is_empty(), "{dialect:?}");
        front.end().await;
    }
}

#[tokio::test]
async fn no_client_chooses_an_id_that_engines_read() {
    let (p, d) = (willing().await, willing().await);
    let front = Front::of(&[&p], &[&d], |config| {
        config.dialect.name = DialectName::Moriio;
        config.retry.attempts = 1;
        config.server.passthrough = vec!["/v9/new".into()];
    })
    .await;
    for path in [super::CHAT, "/v1/completions", "/v1/messages", "/tokenize", "/v9/new"] {
        let body = br#"{"model":"m","messages":[],"prompt":"x","max_tokens":1}"#;
        let raw = front.send(&post_with(path, &[("x-request-id", ADDRESSES)], body)).await;
        assert_eq!(raw.header("x-request-id"), Some(ADDRESSES), "{path}: the client's own name for it stays");
    }
    let asked = [p.seen(), d.seen()].concat();
    assert!(asked.len() >= 4, "{}", asked.len());
    for asked in asked {
        assert!(!asked.head.contains("10.0.0.66"), "{}", asked.head);
    }
    front.end().await;
}

#[tokio::test]
async fn requests_that_sglang_cannot_disaggregate_are_refused() {
    let (p, d) = (willing().await, willing().await);
    let front = Front::of(&[&p], &[&d], |config| config.dialect.name = DialectName::Sglang).await;
    for path in ["/v1/messages", "/v1/responses", "/inference/v1/generate"] {
        let raw = front.post(path, r#"{"model":"m","messages":[],"input":"x","max_tokens":1}"#).await;
        assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_value")), "{path}");
        assert!(
            raw.text().contains("SGLang") && raw.text().contains("/v1/chat/completions"),
            "{}",
            raw.text()
        );
    }
    let raw = front.post("/v1/messages", r#"{"model":"m","messages":[],"max_tokens":1}"#).await;
    assert_eq!(raw.json()["type"], "error", "in Anthropic's shape");
    assert!(p.seen().is_empty() && d.seen().is_empty());
    front.end().await;
}
