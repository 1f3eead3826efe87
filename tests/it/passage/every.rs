//! Orders of operators to every engine.

use pd_proxy::config::Secret;
use serde_json::{Value, json};

use super::{asked_at, hanging_up, willing};
use crate::common::client::{self, Raw, get, post, post_with};
use crate::common::raw_engine::{Front, RawEngine, answer};

const ORDERS: [&str; 19] = [
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/fault_tolerance/apply",
    "/abort_request",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/stop_profile",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/flush_cache",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/pause_generation",
    "/continue_generation",
];

fn of(raw: &Raw, engine: &RawEngine) -> Value {
    let told = raw.json();
    let engines = told["engines"].as_array().unwrap();
    engines.iter().find(|it| it["instance"] == engine.addr().to_string()).cloned().unwrap_or(Value::Null)
}

#[tokio::test]
async fn an_order_reaches_every_engine_once() {
    let (p1, p2, d, both) = (willing().await, willing().await, willing().await, willing().await);
    let front = Front::of(&[&p1, &p2, &both], &[&d, &both], |_| {}).await;
    let engines = [&p1, &p2, &d, &both];
    for path in ORDERS {
        engines.iter().for_each(|engine| engine.forget());
        let raw = front
            .post(&format!("{path}?level=1&role=all"), r#"{"lora_name":"a","kv_transfer_params":{}}"#)
            .await;
        assert_eq!(raw.status, 200, "{path}: {}", raw.text());
        assert_eq!(
            (raw.json()["asked"].clone(), raw.json()["failed"].clone()),
            (json!(4), json!([])),
            "{path}"
        );
        for engine in engines {
            let asked = asked_at(engine, path);
            assert_eq!((asked.len(), asked[0].target.clone()), (1, format!("{path}?level=1")), "{path}");
            assert_eq!(asked[0].body, br#"{"lora_name":"a"}"#, "{path}");
        }
        assert_eq!(of(&raw, &both)["roles"], json!(["prefill", "decode"]));
        assert_eq!(of(&raw, &d)["body"], json!({"object": "list", "data": []}));
    }
    for path in ["/is_sleeping", "/is_paused", "/fault_tolerance/status"] {
        assert_eq!((front.get(path).await.status, asked_at(&d, path).len()), (200, 1), "{path}");
    }
    front.end().await;
}

#[tokio::test]
async fn an_order_is_for_the_role_that_it_names() {
    let (p, d) = (willing().await, willing().await);
    let front = Front::of(&[&p], &[&d], |_| {}).await;
    for (role, at) in [("prefill", [1, 0]), ("decode", [0, 1]), ("all", [1, 1])] {
        p.forget();
        d.forget();
        assert_eq!(front.post(&format!("/sleep?role={role}"), "").await.status, 200, "{role}");
        assert_eq!([p.seen().len(), d.seen().len()], at, "{role}");
    }
    p.forget();
    d.forget();
    let raw = front.post("/sleep?role=prefiller", "").await;
    assert_eq!((raw.status, raw.json()["error"]["param"].clone()), (400, json!("role")));
    let raw = front.post("/sleep?role=encode", "").await;
    assert_eq!(raw.status, 502, "nobody is of this role");
    assert!(p.seen().is_empty() && d.seen().is_empty());
    front.end().await;
}

#[tokio::test]
async fn order_results_are_reported_per_engine() {
    let good = willing().await;
    let refusing = RawEngine::start(|_| answer(400, r#"{"detail":"no such adapter"}"#)).await;
    let silent = hanging_up().await;
    let front = Front::of(&[&good, &refusing], &[&silent], |_| {}).await;
    let raw = front.post("/v1/load_lora_adapter", "{}").await;
    assert_eq!((raw.status, raw.json()["succeeded"].clone()), (502, json!(1)), "a part failed");
    assert_eq!(of(&raw, &good)["status"], 200);
    assert_eq!(
        (of(&raw, &refusing)["status"].clone(), of(&raw, &refusing)["body"]["detail"].clone()),
        (json!(400), json!("no such adapter"))
    );
    assert_eq!(of(&raw, &silent)["status"], Value::Null);
    assert!(of(&raw, &silent)["error"].is_string());
    let mut failed = [format!("http://{}", refusing.addr()), format!("http://{}", silent.addr())];
    failed.sort();
    assert_eq!(raw.json()["failed"], json!(failed));
    front.end().await;
    let front = Front::of(&[&refusing], &[&refusing], |_| {}).await;
    assert_eq!(front.post("/v1/load_lora_adapter", "{}").await.status, 400, "all refuse alike");
    front.end().await;
}

#[tokio::test]
async fn orders_take_the_admin_key_and_engines_never_see_it() {
    let engine = willing().await;
    let front = Front::of(&[&engine], &[&engine], |config| {
        config.server.admin_key = Some(Secret::new("sk-admin"));
        config.engine.api_key = Some(Secret::new("sk-engine"));
    })
    .await;
    for path in ORDERS.iter().chain(&["/reset_prefix_cache"]) {
        for headers in [&[][..], &[("x-api-key", "sk-other")], &[("authorization", "Bearer sk-admin")]] {
            let raw = front.send(&post_with(path, headers, b"{}")).await;
            assert_eq!((raw.status, raw.header("x-pd-error")), (401, Some("invalid_api_key")), "{path}");
        }
    }
    assert!(front.send(&get("/is_sleeping")).await.status == 401 && engine.seen().is_empty());
    assert_eq!(front.send(&post_with("/sleep", &[("x-api-key", "sk-admin")], b"")).await.status, 200);
    let asked = engine.seen();
    assert_eq!(asked[0].header("authorization"), Some("Bearer sk-engine"));
    assert!(!asked[0].head.contains("sk-admin"), "{}", asked[0].head);
    front.end().await;
}

#[tokio::test]
async fn orders_are_for_the_listener_of_operators_where_there_is_one() {
    let engine = willing().await;
    let front = Front::of(&[&engine], &[&engine], |config| {
        (config.server.admin_host, config.server.admin_port) = (Some("127.0.0.1".into()), 0);
    })
    .await;
    assert_eq!(front.post("/sleep", "").await.status, 404);
    assert!(engine.seen().is_empty());
    assert_eq!(client::send(front.admin.unwrap(), &post("/sleep", "")).await.status, 200);
    assert_eq!(engine.seen().len(), 1);
    front.end().await;
}
