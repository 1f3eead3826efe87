//! Aliases: engines get the model's own name, and answers have the client's.

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use super::{CHAT, DIALECTS, Fleets, Settings, chat};

/// Every value of a member `model` in a JSON text or in the events of a stream.
fn models(text: &str) -> Vec<String> {
    let datas = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let values = datas.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let mut found = Vec::new();
    values.for_each(|value| collect(&value, &mut found));
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match value.as_str().filter(|_| key == "model") {
                    Some(model) => found.push(model.to_owned()),
                    None => collect(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
        _ => {}
    }
}

fn bodies() -> Vec<(&'static str, Value)> {
    vec![
        (CHAT, chat("gpt-4o")),
        ("/v1/completions", json!({"model": "gpt-4o", "prompt": "a b c", "max_tokens": 4})),
        ("/v1/completions", json!({"model": "gpt-4o", "prompt": ["a b", "c d"], "max_tokens": 4})),
        ("/v1/responses", json!({"model": "gpt-4o", "input": "hello", "max_output_tokens": 4})),
        (
            "/v1/messages",
            json!({"model": "gpt-4o", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}),
        ),
    ]
}

async fn check(fleets: &Fleets) {
    for (path, mut body) in bodies() {
        for stream in [false, true] {
            body["stream"] = json!(stream);
            let answer = fleets.post(path, &body).await;
            assert_eq!((answer.status, answer.complete), (200, true), "{path} {stream}: {}", answer.text());
            let models = models(&answer.text());
            assert!(!models.is_empty(), "{path} {stream}: {}", answer.text());
            assert!(models.iter().all(|model| model == "gpt-4o"), "{path} {stream}: {models:?}");
        }
    }
    let asked = fleets.sides[0].prefiller.seen();
    let own = asked.iter().filter(|seen| seen.path == CHAT).map(|seen| String::from_utf8_lossy(&seen.body));
    let own: Vec<_> = own.collect();
    assert!(own.iter().all(|body| body.contains("\"model-0\"") && !body.contains("gpt-4o")), "{own:?}");
    let stored = fleets.post("/v1/responses", &json!({"model": "gpt-4o", "input": "hello"})).await.json();
    let path = format!("/v1/responses/{}", stored["id"].as_str().unwrap());
    // The simulator keeps none.
    let kept = json!({"id": stored["id"], "object": "response", "model": "model-0"}).to_string();
    for engine in [&fleets.sides[0].prefiller, &fleets.sides[0].decoder] {
        let fault = FaultKind::Status(200, Some(kept.clone().into()));
        assert!(engine.inject(Fault::always(fault).on_path(&path)));
    }
    let again = fleets.get(&path).await;
    assert_eq!((again.status, again.json()["model"].as_str()), (200, Some("gpt-4o")), "{}", again.text());
    if fleets.sides.len() > 1 {
        check_named_fleet(fleets, &path).await;
    }
    let text = json!({"model": "gpt-4o", "prompt": "a"});
    assert_eq!(fleets.post("/tokenize", &text).await.status, 200);
    assert_eq!(fleets.chat("model-0").await.json()["model"], "model-0", "its own name stays");
}

/// A stored response of the first fleet, asked for with the name of a fleet.
async fn check_named_fleet(fleets: &Fleets, path: &str) {
    let engine = &fleets.sides[0].decoder;
    let requests = |query: &str| {
        let routes = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")];
        routes.map(|(method, more)| {
            format!("{method} {path}{more}{query} HTTP/1.1\r\nhost: gateway\r\ncontent-length: 0\r\n\r\n")
        })
    };
    let asked = || engine.seen().iter().filter(|seen| seen.path.starts_with(path)).count();
    for wrong in ["?fleet=f1", "?fleet=f9"] {
        let before = asked();
        for request in requests(wrong) {
            let refused = fleets.send(request.as_bytes()).await;
            let error = refused.json()["error"].clone();
            assert_eq!(
                (refused.status, error["param"].as_str()),
                (400, Some("fleet")),
                "{request} {}",
                refused.text()
            );
        }
        assert_eq!(asked(), before, "nothing is cancelled or deleted");
    }
    for request in requests("?fleet=f0") {
        let before = asked();
        fleets.send(request.as_bytes()).await;
        assert!(asked() > before, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alias_reaches_engines_as_the_model_and_clients_as_itself() {
    let aliases = ["aliases = [\"gpt-4o=model-0\"]"];
    for count in [1, 2] {
        let settings = Settings { fleet: &aliases, ..Settings::default() };
        let fleets = Fleets::set(&DIALECTS[..count], settings).await;
        check(&fleets).await;
        fleets.end().await;
    }
}
