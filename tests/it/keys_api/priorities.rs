//! A key's priority on the wire to engines.

use serde_json::{Value, json};

use crate::common::stage::{Script, Stage};

use super::{keys, request, script};

const HEADER: &str = "X-Vllm-Priority";
/// Paths, and what is asked there.
fn asks() -> [(&'static str, Value); 5] {
    let chat = json!({"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3});
    let prompt = json!({"model": "sim", "prompt": "hello there", "max_tokens": 3});
    let several = json!({"model": "sim", "prompt": ["one", "two"], "max_tokens": 3});
    let input = json!({"model": "sim", "input": "hello", "max_output_tokens": 3});
    [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/completions", prompt),
        ("/v1/completions", several),
        ("/v1/responses", input),
        ("/v1/messages", chat),
    ]
}

/// Priorities that engines were told, and how many of them saw the header.
async fn told(stage: &Stage, path: &str, headers: &[(&str, &str)], body: &Value) -> (Vec<Value>, usize) {
    stage.forget();
    let raw = stage.send(&request(path, headers, body)).await;
    assert_eq!(raw.status, 200, "{path} {}", raw.text());
    let seen: Vec<_> =
        [&stage.prefillers, &stage.decoders].iter().flat_map(|side| stage.seen(side)).collect();
    let by_header =
        seen.iter().filter(|it| it.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(HEADER)));
    let by_header = by_header.count();
    let of = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["priority"].clone();
    (seen.iter().map(|it| of(&it.body)).collect(), by_header)
}

fn prioritised(script: Script) -> Script {
    let mut script = script;
    script.config.engine.priority_scheduling = true;
    script
}

#[tokio::test]
async fn both_legs_are_told_the_priority_of_the_key_and_never_a_sooner_one() {
    let dir = keys(&[("low", "priority = \"low\""), ("plain", ""), ("high", "priority = \"high\"")]);
    let stage = Stage::set(prioritised(script(&dir))).await;
    for (key, of_key) in [("low", 10), ("plain", 0), ("high", -10)] {
        let bearer = format!("Bearer sk-of-{key}");
        for (path, body) in asks() {
            for (claimed, by_header, granted) in [
                (None, None, of_key),
                (Some(json!(25)), None, 25),
                (Some(json!(-99)), None, of_key),
                (Some(json!("-99")), None, of_key),
                (Some(json!(25)), Some("-99"), of_key),
                (Some(json!(-99)), Some("25"), 25),
            ] {
                let mut body = body.clone();
                if let Some(claimed) = claimed {
                    body["priority"] = claimed;
                }
                let mut headers = vec![("Authorization", bearer.as_str())];
                headers.extend(by_header.map(|value| (HEADER, value)));
                let (told, by_header) = told(&stage, path, &headers, &body).await;
                assert!(told.len() >= 2, "{path}: both legs");
                assert!(told.iter().all(|it| *it == granted), "{key} {path} {body}: {told:?}");
                assert_eq!(by_header, 0);
            }
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn claim_that_is_no_integer_is_refused_as_vllm_refuses_it() {
    let dir = keys(&[("plain", "")]);
    let stage = Stage::set(prioritised(script(&dir))).await;
    let bearer = ("Authorization", "Bearer sk-of-plain");
    let embed = json!({"model": "sim", "input": "hello"});
    for (path, body) in asks().into_iter().chain([("/v1/embeddings", embed)]) {
        for (claimed, by_header, said) in [
            (json!("high"), None, "`priority` is high"),
            (json!(1.5), None, "`priority` is 1.5"),
            (json!(2.5), Some("7"), "`priority` is 2.5"),
            (json!(7), Some("soon"), "the header X-Vllm-Priority is soon"),
        ] {
            let mut body = body.clone();
            body["priority"] = claimed;
            let headers: Vec<_> =
                std::iter::once(bearer).chain(by_header.map(|value| (HEADER, value))).collect();
            let raw = stage.send(&request(path, &headers, &body)).await;
            let text = raw.text();
            assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_value")), "{path} {text}");
            let fix = "expected an integer, or none for the priority of the key";
            assert!(text.contains(fix), "{path} {text}");
            if path != "/v1/messages" {
                let error = raw.json()["error"].clone();
                let message = error["message"].as_str().unwrap();
                assert!(error["param"] == "priority" && message.starts_with(said), "{path} {text}");
            }
        }
    }
    assert!(
        stage.engines().all(|engine| engine.seen().iter().all(|seen| !seen.path.starts_with("/v1/chat")))
    );
    stage.end().await;
}

#[tokio::test]
async fn routes_of_one_engine_clamp_what_is_claimed() {
    let dir = keys(&[("low", "priority = \"low\"")]);
    let stage = Stage::set(prioritised(script(&dir))).await;
    let bearer = [("Authorization", "Bearer sk-of-low")];
    let body = json!({"model": "sim", "input": "hello"});
    assert_eq!(told(&stage, "/v1/embeddings", &bearer, &body).await, (vec![Value::Null], 0));
    let claim = json!({"model": "sim", "input": "hello", "priority": -5});
    assert_eq!(told(&stage, "/v1/embeddings", &bearer, &claim).await, (vec![json!(10)], 0));
    let by_header = [bearer[0], (HEADER, "-5")];
    assert_eq!(told(&stage, "/v1/embeddings", &by_header, &body).await, (vec![json!(10)], 0));
    stage.end().await;
}

#[tokio::test]
async fn engines_that_schedule_otherwise_get_what_the_client_sent() {
    let dir = keys(&[("low", "priority = \"low\"")]);
    let stage = Stage::set(script(&dir)).await;
    let headers = [("Authorization", "Bearer sk-of-low"), (HEADER, "-5")];
    let (path, mut body) = asks().into_iter().next().unwrap();
    assert_eq!(told(&stage, path, &headers, &body).await, (vec![Value::Null; 2], 2));
    body["priority"] = json!(-7);
    assert_eq!(told(&stage, path, &headers, &body).await.0, vec![json!(-7); 2]);
    stage.end().await;
}
