//! The exposition of metrics, after one request of each kind.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pd_proxy::obs::names;
use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::{Value, json};

use crate::command::{Process, pair};
use crate::common::client::{self, get, post};
use crate::common::model;
use crate::common::stage::fast;
use crate::common::time::eventually;

use super::{CHAT, chat, long_text, name};

/// The samples of an exposition, each with the labels as written; panics if the text is not valid.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|l| !l.is_empty()) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kinds.insert(name, kind), None, "two types: {line}");
            continue;
        }
        if line.starts_with('#') {
            assert!(["pd_proxy_", "process_"].iter().any(|of| line[7..].starts_with(of)), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
        assert!(kinds.contains_key(name) || kinds.get(family) == Some(&"histogram"), "no type before {line}");
        assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
        assert_eq!(found.insert(series.to_owned(), value.parse().unwrap()), None, "twice: {line}");
    }
    found
}

/// Each histogram's buckets grow, and the last one is its count.
fn assert_buckets(samples: &BTreeMap<String, f64>, text: &str) {
    let mut last: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines().filter(|l| l.contains("_bucket{")) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (value, start) = (value.parse::<f64>().unwrap(), series.rfind("le=\"").unwrap());
        let key = series[..start].trim_end_matches([',', '{']).replace("_bucket", "_count");
        let before = last.insert(key, value).unwrap_or(0.0);
        assert!(value >= before, "{line}");
    }
    assert!(!last.is_empty());
    for (key, value) in last {
        let series = if key.contains('{') { format!("{key}}}") } else { key };
        assert_eq!(samples.get(&series), Some(&value), "{series}");
    }
}

/// One request of each kind; the tokens that the engines reported for them.
async fn one_of_each(gateway: SocketAddr, prefill: &Engine) -> BTreeMap<&'static str, u64> {
    let send = async |path: &str, body: Value| client::send(gateway, &post(path, &body.to_string())).await;
    let mut streamed = chat(&long_text().repeat(4));
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut tokens = BTreeMap::from([("prompt", 0), ("cached", 0), ("output", 0)]);
    for _ in 0..2 {
        let raw = send(CHAT, streamed.clone()).await;
        let usage = raw.events().pop().unwrap()["usage"].clone();
        let number = |p: &str| usage.pointer(p).and_then(Value::as_u64).unwrap();
        *tokens.get_mut("prompt").unwrap() += number("/prompt_tokens");
        *tokens.get_mut("output").unwrap() += number("/completion_tokens");
        *tokens.get_mut("cached").unwrap() += number("/prompt_tokens_details/cached_tokens");
    }
    assert!(tokens["cached"] > 0);
    let raw = send(
        "/v1/completions",
        json!({"model": "sim", "prompt": "ab", "use_beam_search": true, "max_tokens": 2}),
    )
    .await;
    let usage = raw.json()["usage"].clone();
    *tokens.get_mut("prompt").unwrap() += usage["prompt_tokens"].as_u64().unwrap();
    *tokens.get_mut("output").unwrap() += usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(send(CHAT, json!([1])).await.status, 400);
    assert_eq!(send(CHAT, json!({"model": "nope", "messages": []})).await.status, 404);
    assert_eq!(send("/tokenize", json!({"prompt": "a"})).await.status, 200);
    // On this path alone: the gateway asks the engine other things, too.
    prefill.inject(Fault::once(FaultKind::ResetBeforeHead).on_path(CHAT));
    assert_eq!(send(CHAT, chat("again")).await.status, 200);
    let usage = {
        // The same prompt once more says what the one that was tried twice counted.
        let raw = send(CHAT, chat("again")).await;
        raw.json()["usage"].clone()
    };
    *tokens.get_mut("prompt").unwrap() += 2 * usage["prompt_tokens"].as_u64().unwrap();
    *tokens.get_mut("output").unwrap() += 2 * usage["completion_tokens"].as_u64().unwrap();
    *tokens.get_mut("cached").unwrap() += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    tokens
}

/// Metrics of `layerwise`, tracing, fall-backs, and of gateways that share a fleet: they have no
/// series here.
const ELSEWHERE: [&str; 9] = [
    names::CALLBACKS,
    names::TRACE_SPANS,
    names::FALLBACKS,
    names::SHARED_OUT,
    names::SHARE_STANDING,
    names::SHARE_HEARD,
    names::SHARE_PLACEMENTS,
    names::SHARE_BUDGETS,
    names::SHARE_GATEWAYS,
];

/// In a process of its own: the recorder belongs to a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn metrics_count_what_happened() {
    let (prefill, decode) = pair(fast()).await;
    // With everything on that has metrics of its own.
    let model = model::directory("qwen3");
    let flags = ["--max-retries", "5", "--model-path", model.path().to_str().unwrap()];
    // Nobody listens at the pool's address, nor where the prefiller is to publish.
    let nowhere = format!("events.endpoints={}=tcp://127.0.0.1:9 tcp://127.0.0.1:9", name(&prefill));
    let events = ["events.listen=true", nowhere.as_str()];
    let pool = ["key.preset=mooncake-store-0.30", "pool.kind=mooncake", "pool.addresses=127.0.0.1:9"];
    let settings = ["prompt.tokens=local", "prompt.verify_interval_ms=100", "hash.seed=0"];
    let settings = [&settings[..], &pool, &events].concat();
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let flags: Vec<&str> = flags.into_iter().chain(settings).collect();
    let (_process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
    let tokens = one_of_each(gateway, &prefill).await;

    // A request is accounted for when its last byte is out, which the client may see a moment
    // earlier.
    let ended = r#"pd_proxy_requests_total{route="chat_completions",code="200",reason="ok"}"#;
    let scrape = async || client::send(gateway, &get("/metrics")).await;
    eventually("4 chats are counted", async || samples(&scrape().await.text()).get(ended) == Some(&4.0))
        .await;
    // Counted at the second look at the engines.
    eventually("the cache is looked at", async || scrape().await.text().contains(names::PROMPT_CACHE)).await;
    eventually("events are looked for", async || scrape().await.text().contains(names::EVENTS_CONNECTED))
        .await;
    let raw = scrape().await;
    assert_eq!(
        (raw.status, raw.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    let text = raw.text();
    let found = samples(&text);
    assert_buckets(&found, &text);
    for name in names::ALL.iter().filter(|name| !ELSEWHERE.contains(name)) {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} in\n{text}");
    }
    let (p, d) = (name(&prefill), name(&decode));
    for (series, value) in [
        (r#"pd_proxy_requests_total{route="completions",code="200",reason="ok"}"#.to_owned(), 1.0),
        (
            r#"pd_proxy_requests_total{route="chat_completions",code="400",reason="invalid_json"}"#
                .to_owned(),
            1.0,
        ),
        (r#"pd_proxy_requests_total{route="chat_completions",code="404",reason="engine"}"#.to_owned(), 1.0),
        (r#"pd_proxy_requests_total{route="passthrough",code="200",reason="ok"}"#.to_owned(), 1.0),
        (r#"pd_proxy_tokens_total{kind="prompt"}"#.to_owned(), tokens["prompt"] as f64),
        (r#"pd_proxy_tokens_total{kind="cached"}"#.to_owned(), tokens["cached"] as f64),
        (r#"pd_proxy_tokens_total{kind="output"}"#.to_owned(), tokens["output"] as f64),
        (r#"pd_proxy_handoffs_total{outcome="used"}"#.to_owned(), 4.0),
        (r#"pd_proxy_prefill_bypassed_total{reason="beam"}"#.to_owned(), 1.0),
        (r#"pd_proxy_engines{role="prefill"}"#.to_owned(), 1.0),
        (r#"pd_proxy_engines{role="decode"}"#.to_owned(), 1.0),
        ("pd_proxy_inflight_requests".to_owned(), 0.0),
        ("pd_proxy_queued_requests".to_owned(), 0.0),
        (r#"pd_proxy_time_to_first_token_seconds_count{route="chat_completions"}"#.to_owned(), 2.0),
        (r#"pd_proxy_request_duration_seconds_count{route="completions"}"#.to_owned(), 1.0),
        (r#"pd_proxy_retries_total{role="prefill",reason="broken"}"#.to_owned(), 1.0),
        (format!(r#"pd_proxy_leg_failures_total{{role="prefill",engine="{p}",reason="broken"}}"#), 1.0),
        (format!(r#"pd_proxy_events_connected{{engine="{p}",rank="0"}}"#), 0.0),
        (format!(r#"pd_proxy_leg_duration_seconds_count{{role="prefill",engine="{p}"}}"#), 4.0),
        (format!(r#"pd_proxy_leg_duration_seconds_count{{role="decode",engine="{d}"}}"#), 5.0),
        (format!(r#"pd_proxy_build_info{{version="{}"}}"#, env!("CARGO_PKG_VERSION")), 1.0),
    ] {
        assert_eq!(found.get(&series), Some(&value), "{series} in\n{text}");
    }
}
