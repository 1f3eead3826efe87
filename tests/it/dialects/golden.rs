//! Both legs of a request, bodies and headers, against `tests/golden/legs.json`: every dialect,
//! every API, streamed and not. The file is made by `make_legs.py` from the rules of the reference
//! proxies, which it names.

use std::collections::HashMap;

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, Engine, Fault, FaultKind, ObservedRequest};
use serde_json::Value;

use super::script;
use crate::common::client;
use crate::common::place;
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;

/// Values that stood for a name.
type Bound = HashMap<String, String>;

/// True if `actual` is the text `expected`, in which `{name:kind}` stands for something of that
/// kind.
fn fits(expected: &str, actual: &str, bound: &mut Bound) -> bool {
    let Some((before, rest)) = expected.split_once('{') else { return expected == actual };
    let (name, after) = rest.split_once('}').unwrap();
    let (name, kind) = name.split_once(':').unwrap();
    let Some(actual) = actual.strip_prefix(before) else { return false };
    let run = |good: fn(char) -> bool| actual.find(|c| !good(c)).unwrap_or(actual.len());
    let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let (len, whole) = match kind {
        "hex32" => (run(hex), run(hex) == 32),
        "uuid" => (run(|c| matches!(c, '0'..='9' | 'a'..='f' | '-')), actual.len() == 36),
        "port" => (run(|c| c.is_ascii_digit()), run(|c| c.is_ascii_digit()) > 0),
        "any" => (actual.len(), !actual.is_empty()),
        other => panic!("no such kind: {other}"),
    };
    let (value, actual) = actual.split_at(len);
    let known = bound.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    whole && known == value && fits(after, actual, bound)
}

/// Compares two values, placeholders bound; says where they differ.
fn differ(expected: &Value, actual: &Value, bound: &mut Bound) -> Option<String> {
    let here = || Some(format!("expected {expected}, found {actual}"));
    match (expected, actual) {
        (Value::String(text), Value::Object(_)) if text.ends_with(":object}") => None,
        (Value::String(text), _) if text.contains(":") && text.contains('{') => {
            let found = actual.as_str().map_or_else(|| actual.to_string(), str::to_owned);
            if fits(text, &found, bound) { None } else { here() }
        }
        (Value::Object(left), Value::Object(right)) => {
            // Their order is not part of what an engine reads.
            let [mut here, mut there]: [Vec<&String>; 2] = [left.keys().collect(), right.keys().collect()];
            here.sort_unstable();
            there.sort_unstable();
            if here != there {
                return Some(format!("expected the members {here:?}, found {there:?}"));
            }
            left.iter()
                .find_map(|(key, value)| differ(value, &right[key], bound).map(|why| format!("{key}: {why}")))
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            left.iter().zip(right).find_map(|(left, right)| differ(left, right, bound))
        }
        _ => {
            if expected == actual {
                None
            } else {
                here()
            }
        }
    }
}

/// The one request that an engine was sent, if it was.
async fn leg(engine: &Engine, expected: &Value, path: &str) -> Option<ObservedRequest> {
    let sent = || {
        let seen: Vec<ObservedRequest> =
            engine.seen().into_iter().filter(|seen| seen.method == "POST").collect();
        assert!(seen.len() < 2, "{path}: {seen:?}");
        seen.into_iter().next()
    };
    let only = match sent() {
        None if expected.is_null() => return None,
        None => eventually(format!("{path}: a request"), async || sent()).await,
        Some(only) => only,
    };
    assert_eq!(only.path, path);
    Some(only)
}

fn check(case: &Value, side: &str, seen: Option<&ObservedRequest>, bound: &mut Bound) {
    let when = format!("{} {} stream {} {side}", case["dialect"], case["api"], case["stream"]);
    let expected = &case[side];
    assert_eq!(seen.is_some(), !expected.is_null(), "{when}: asked or not");
    let Some(seen) = seen else { return };
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(differ(expected, &body, bound), None, "{when}");
    let header = |name: &str| {
        let mut found = seen.headers.iter().filter(|(known, _)| known == name);
        let first = found.next().map(|(_, value)| value.clone());
        assert!(found.next().is_none(), "{when}: {name} twice");
        first
    };
    let id = header("x-request-id").unwrap();
    assert!(fits(case["id"].as_str().unwrap(), &id, bound), "{when}: {id}");
    for (name, value) in [
        ("content-type", Some("application/json".to_owned())),
        ("content-length", Some(seen.body.len().to_string())),
        ("authorization", Some("Bearer of-the-client".to_owned())),
        ("x-session", Some("kept".to_owned())),
        ("transfer-encoding", None),
        ("connection", None),
        ("x-data-parallel-rank", None),
    ] {
        assert_eq!(header(name), value, "{when}: {name}");
    }
}

async fn stage(dialect: &str) -> Stage {
    let spoken = match dialect {
        "kv_transfer" => (DialectName::KvTransfer, Connector::Handoff),
        "pool" => (DialectName::Pool, Connector::Pool),
        "mooncake" => (DialectName::Mooncake, Connector::Mooncake),
        "nixl_push" | "nixl_push_again" => (DialectName::NixlPush, Connector::Push),
        "sglang" => (DialectName::Sglang, Connector::Sglang),
        "layerwise" => (DialectName::Layerwise, Connector::Layerwise),
        "moriio" => (DialectName::Moriio, Connector::Moriio),
        other => panic!("no such dialect: {other}"),
    };
    let mut script = Script { prefillers: 1, decoders: 1, ..script(spoken) };
    if dialect == "layerwise" {
        let place = place::own();
        (script.config.server.host, script.config.server.port) = (place.ip().to_string(), place.port());
        script.config.dialect.callback_url = Some(format!("http://{place}"));
    }
    Stage::set(script).await
}

/// The case with the hosts of this stage in the place of 127.0.0.1.
fn at_home(case: &Value, stage: &Stage) -> Value {
    let [gateway, engines] = [stage.gateway, stage.prefillers[0].addr()].map(|at| at.ip().to_string());
    let text = case.to_string().replace("127.0.0.1:{gateway", &format!("{gateway}:{{gateway"));
    serde_json::from_str(&text.replace("127.0.0.1", &engines)).unwrap()
}

async fn run(case: &Value) {
    let stage = stage(case["dialect"].as_str().unwrap()).await;
    let case = &at_home(case, &stage);
    let text = |name: &str| case[name].as_str().unwrap();
    let (dialect, path) = (text("dialect"), text("path"));
    let (prefiller, decoder) = (&stage.prefillers[0], &stage.decoders[0]);
    if dialect != "layerwise" {
        // As an engine would say it: what either computes is not looked at here.
        let word = serde_json::json!({"id": "x", "choices": [], "kv_transfer_params": case.get("word")});
        let answer = FaultKind::Events(word.to_string().into());
        assert!(prefiller.inject(Fault::always(answer).on_path(path)));
        let event = FaultKind::Events(
            "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
                .into(),
        );
        assert!(decoder.inject(Fault::always(event).on_path(path)));
    }
    let headers = [
        ("x-request-id", "golden"),
        ("authorization", "Bearer of-the-client"),
        ("x-session", "kept"),
        ("x-data-parallel-rank", "7"),
        ("te", "trailers"),
    ];
    let request = client::post_with(path, &headers, case["client"].to_string().as_bytes());
    if dialect == "nixl_push_again" {
        stage.send(&request).await;
        stage.forget();
    }
    let answer = stage.send(&request).await;
    if case["status"] != 200 {
        assert_eq!(u64::from(answer.status), case["status"], "{dialect} {path}: {}", answer.text());
    }
    let mut bound = Bound::new();
    for (side, engine) in [("prefill", prefiller), ("decode", decoder)] {
        let seen = leg(engine, &case[side], path).await;
        check(case, side, seen.as_ref(), &mut bound);
    }
    stage.end().await;
}

#[tokio::test]
async fn both_legs_are_what_the_reference_proxies_send() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../golden/legs.json")).unwrap();
    assert_eq!(cases.len(), 8 * 5 * 2);
    for case in &cases {
        run(case).await;
    }
}
