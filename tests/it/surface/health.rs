//! Questions of supervisors and load balancers: liveness, readiness, members.

use std::collections::BTreeSet;

use bytes::Bytes;
use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::post;
use crate::common::stage::Stage;
use crate::common::time::eventually;

use super::{CHAT, change, chat, count, header, name, remove_all};

#[tokio::test]
async fn supervisors_learn_whether_it_lives_and_whether_it_can_serve() {
    let stage = Stage::new().await;
    for path in ["/health", "/healthz", "/ping"] {
        let raw = stage.get(path).await;
        assert_eq!((raw.status, raw.text().as_str()), (200, ""), "{path}");
    }
    assert_eq!(stage.post("/ping", "").await.status, 200);
    let ready = stage.get("/readyz").await;
    assert_eq!(ready.status, 200);
    let expected = json!({
        "ready": true, "reason": null, "state": "unknown", "prefill": "unknown", "decode": "unknown",
        "prefill_instances": 2, "decode_instances": 2,
    });
    assert_eq!(ready.json(), expected, "engines that are not probed are believed");
    assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200);
    assert_eq!(stage.get("/readyz").await.json()["state"], "up");
    let health = stage.get("/healthcheck").await;
    assert_eq!(
        health.text(),
        r#"{"status":"ok","prefill_instances":2,"decode_instances":2,"request_num":0}"#
    );

    remove_all(&stage, "prefill", &stage.prefillers).await;
    let ready = stage.get("/readyz").await;
    assert_eq!(ready.status, 503);
    let expected = json!({
        "ready": false, "reason": "there is no prefiller", "state": "down", "prefill": "down", "decode": "up",
        "prefill_instances": 0, "decode_instances": 2,
    });
    assert_eq!(ready.json(), expected);
    assert_eq!(stage.get("/health").await.status, 200, "a restart would not bring a prefiller");
    let refused = stage.post(CHAT, &chat("x").to_string()).await;
    assert_eq!((refused.status, refused.header("x-pd-error")), (503, Some("no_prefiller")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["message"], "no prefiller is available");

    remove_all(&stage, "decode", &stage.decoders).await;
    assert_eq!(stage.get("/readyz").await.json()["decode_instances"], 0);
    stage.post("/instances/add", &change("prefill", json!(name(&stage.prefillers[0])))).await;
    assert_eq!(stage.get("/readyz").await.status, 503);
    let refused = stage.post(CHAT, &chat("x").to_string()).await;
    assert_eq!((refused.status, refused.header("x-pd-error")), (503, Some("no_decoder")));
    stage.end().await;
}

#[tokio::test]
async fn requests_inside_are_counted() {
    let stage = Stage::new().await;
    stage.prefillers_fail(&Fault::always(FaultKind::StallBeforeHead));
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&post(CHAT, &chat("x").to_string())).await.unwrap();
        open.push(socket);
    }
    eventually("3 inside", async || stage.get("/healthcheck").await.json()["request_num"] == 3).await;
    drop(open);
    eventually("none inside", async || stage.get("/healthcheck").await.json()["request_num"] == 0).await;
    stage.end().await;
}

#[tokio::test]
async fn status_lists_the_engines() {
    let stage = Stage::new().await;
    let names = |engines: &[Engine]| engines.iter().map(name).collect::<Vec<_>>();
    let expected = json!({
        "prefill_node_count": 2, "decode_node_count": 2,
        "prefill_nodes": names(&stage.prefillers), "decode_nodes": names(&stage.decoders),
        "prefill_draining_nodes": [], "decode_draining_nodes": [],
    });
    assert_eq!(stage.get("/status").await.json(), expected);
    stage.end().await;
}

#[tokio::test]
async fn models_are_the_first_good_answer_verbatim() {
    let stage = Stage::new().await;
    let odd = r#"{ "object":"list",  "data":[{"id":"sim","x":1.50}] }"#;
    let answer =
        Fault::always(FaultKind::Status(200, Some(Bytes::from_static(odd.as_bytes())))).on_path("/v1/models");
    assert!(stage.prefillers[1].inject(answer));
    let raw = stage.send(b"GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer mine\r\n\r\n").await;
    assert_eq!((raw.status, raw.json()["data"][0]["id"].as_str()), (200, Some("sim")));
    let seen = stage.prefillers[0].seen();
    assert_eq!((seen.len(), header(&seen[0], "authorization")), (1, Some("Bearer mine".into())));
    assert_eq!(stage.engines().map(count).sum::<usize>(), 1, "one engine is enough");

    let no_list = |text: &'static str| FaultKind::Status(200, Some(Bytes::from_static(text.as_bytes())));
    for bad in [
        FaultKind::Refuse,
        FaultKind::Status(500, None),
        FaultKind::ResetBeforeHead,
        no_list("<html>It works!</html>"),
        no_list(r#"{"object":"error","message":"not yet"}"#),
        no_list(r#"{"object":"list","data":{"id":"sim"}}"#),
    ] {
        stage.prefillers[0].inject(Fault::always(bad.clone()));
        let raw = stage.get("/v1/models").await;
        assert_eq!((raw.status, raw.text().as_str()), (200, odd), "{bad:?}");
        assert_eq!(raw.header("content-type"), Some("application/json"));
        stage.prefillers[0].clear_faults();
    }
    stage.prefillers_fail(&Fault::always(FaultKind::Refuse));
    let raw = stage.get("/v1/models").await;
    assert_eq!((raw.status, raw.json()["object"].as_str()), (200, Some("list")), "a decoder answers");
    for bad in [FaultKind::Refuse, no_list("{}")] {
        stage.decoders_fail(&Fault::always(bad.clone()));
        let raw = stage.get("/v1/models").await;
        let message = raw.json()["error"]["message"].clone();
        assert_eq!((raw.status, message), (503, json!("no engine answers /v1/models")), "{bad:?}");
        stage.decoders.iter().for_each(Engine::clear_faults);
    }
    stage.end().await;
}

/// As OpenAI answers `GET /v1/models/{model}`, where engines have no such route.
#[tokio::test]
async fn one_model_is_its_entry_of_the_list() {
    let stage = Stage::new().await;
    let list = r#"{"object":"list","data":[{"id":"a","object":"model"},{"id":"org/b","object":"model","owned_by":"me"}]}"#;
    let answer = FaultKind::Status(200, Some(Bytes::from_static(list.as_bytes())));
    stage.prefillers_fail(&Fault::always(answer).on_path("/v1/models"));
    for (path, id) in [("a", "a"), ("org/b", "org/b"), ("org%2Fb", "org/b"), ("org%2fb?x=1", "org/b")] {
        let raw = stage.get(&format!("/v1/models/{path}")).await;
        let model = raw.json();
        assert_eq!(
            (raw.status, &model["id"], &model["object"]),
            (200, &json!(id), &json!("model")),
            "{path}"
        );
        assert_eq!(raw.header("content-type"), Some("application/json"));
    }
    for unknown in ["b", "org", "A", "org%2Fb%2F"] {
        let raw = stage.get(&format!("/v1/models/{unknown}")).await;
        let name = unknown.replace("%2F", "/");
        let expected = json!({"error": {
            "message": format!("The model `{name}` does not exist or you do not have access to it."),
            "type": "invalid_request_error", "param": "model", "code": "model_not_found",
        }});
        assert_eq!((raw.status, raw.json()), (404, expected), "{unknown}");
    }
    let raw = stage.post("/v1/models/a", "{}").await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (405, Some("method_not_allowed")));
    stage.heal();
    stage.prefillers_fail(&Fault::always(FaultKind::Refuse));
    stage.decoders_fail(&Fault::always(FaultKind::Refuse));
    let raw = stage.get("/v1/models/a").await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (503, Some("no_prefiller")), "nobody knows");
    stage.end().await;
}

#[tokio::test]
async fn every_engine_resets_its_cache() {
    let stage = Stage::new().await;
    let path = "/reset_prefix_cache?reset_running_requests=true&x=a%20b";
    let raw = stage.post(path, "").await;
    assert_eq!((raw.status, raw.text().as_str()), (200, ""));
    for engine in stage.engines() {
        let paths: Vec<String> = engine.seen().into_iter().map(|s| s.path).collect();
        assert_eq!(paths, [path], "{}", engine.addr());
    }
    stage.prefillers[1].inject(Fault::always(FaultKind::Status(500, None)));
    stage.decoders[0].inject(Fault::always(FaultKind::Refuse));
    let raw = stage.post("/reset_prefix_cache", "").await;
    let failed: BTreeSet<String> = [stage.prefillers[1].url(), stage.decoders[0].url()].into();
    assert_eq!((raw.status, raw.json()), (500, json!({ "failed": failed })));
    stage.end().await;
}
