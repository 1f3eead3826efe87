//! Every route that engines answer, for each of several fleets: as a gateway of that fleet alone
//! has it.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{DIALECTS, Fleets, Settings, Side, chat, head, is_gateways, serve};
use crate::common::client::{self, Raw, get, post};
use crate::common::place;
use crate::common::time::eventually;

/// Members of answers that tell one request from the next, or one engine from another.
const OWN: [&str; 11] = [
    "id",
    "item_id",
    "created",
    "created_at",
    "completed_at",
    "kv_transfer_params",
    "ttft_ms",
    "disaggregation_mode",
    "disaggregation_bootstrap_port",
    "instance",
    "failed",
];

/// Part of the query of each request.
const MARK: &str = "mark=1";

/// Status of an answer, true if it is whole, content type, and text.
type Outline = (u16, bool, Option<String>, String);

/// A route that engines answer, as the gateway's own list has it.
struct Asked {
    method: String,
    path: String,
    /// Content type of its bodies, where it has them.
    kind: Option<String>,
    generates: bool,
}

/// The routes of the gateway at this address that engines answer.
async fn routes(gateway: SocketAddr) -> Vec<Asked> {
    let list = client::send(gateway, &get("/openapi.json")).await.json();
    let mut routes = Vec::new();
    for (path, operations) in list["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let tag = operation["tags"][0].as_str().unwrap();
            // A stored response is looked for in all fleets: the query says nothing of it.
            let is_stored = path.contains("{id}");
            if ["generating", "one engine", "every engine"].contains(&tag) && !is_stored {
                let kinds = operation.pointer("/requestBody/content").and_then(Value::as_object);
                routes.push(Asked {
                    method: method.to_uppercase(),
                    path: path.clone(),
                    kind: kinds.map(|kinds| kinds.keys().next().unwrap().clone()),
                    generates: tag == "generating",
                });
            }
        }
    }
    routes
}

impl Asked {
    /// The request for a model.
    fn request(&self, model: &str, query: &str, stream: bool) -> Vec<u8> {
        let path = format!("{}?{MARK}{query}", self.path);
        let body = match self.kind.as_deref() {
            None if self.method == "POST" => return post(&path, ""),
            None => return format!("{} {path} HTTP/1.1\r\nhost: gateway\r\n\r\n", self.method).into_bytes(),
            Some("application/json") => self.body(model, stream).to_string(),
            Some(_) => {
                let part = |name: &str, text: &str| {
                    format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
                };
                part("model", model) + &part("file", "RIFF") + "--b--\r\n"
            }
        };
        match self.kind.as_deref() {
            Some("application/json") => post(&path, &body),
            _ => {
                let kind = "multipart/form-data; boundary=b";
                let length = body.len();
                format!(
                    "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
                )
                .into_bytes()
            }
        }
    }

    fn body(&self, model: &str, stream: bool) -> Value {
        let mut body = json!({"model": model, "max_tokens": 3});
        match self.path.as_str() {
            "/v1/completions" | "/tokenize" => body["prompt"] = json!("once upon a time"),
            "/v1/responses" => body = json!({"model": model, "input": "once upon", "max_output_tokens": 3}),
            "/v1/embeddings" => body["input"] = json!(["once", "upon"]),
            "/detokenize" => body["tokens"] = json!([72, 101]),
            "/inference/v1/generate" => {
                body = json!({"model": model, "token_ids": [1, 2], "sampling_params": {"max_tokens": 3}});
            }
            path if path.ends_with("load_lora_adapter") => {
                body = json!({"lora_name": "sql", "lora_path": "/sql"})
            }
            _ => body["messages"] = chat(model)["messages"].clone(),
        }
        if self.generates {
            body["stream"] = json!(stream);
        }
        body
    }
}

/// The parts of an answer that are the same for the same question.
fn outline(answer: &Raw) -> Outline {
    let text = answer.text();
    let lines = text.lines().map(|line| {
        let (before, json) = line.find('{').map_or((line, ""), |at| line.split_at(at));
        let Ok(mut value) = serde_json::from_str(json) else { return line.to_owned() };
        forget(&mut value);
        format!("{before}{value}")
    });
    let kind = answer.header("content-type").map(str::to_owned);
    (answer.status, answer.complete, kind, lines.collect::<Vec<_>>().join("\n"))
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !OWN.contains(&name.as_str()));
            members.values_mut().for_each(forget);
        }
        Value::Array(values) => {
            values.iter_mut().for_each(forget);
            // Engines are in the order of their addresses.
            if values.iter().all(|value| value.get("roles").is_some()) {
                values.sort_by_key(Value::to_string);
            }
        }
        _ => {}
    }
}

impl Side {
    /// Requests on this route that each of its engines got, and forgets them.
    fn asked(&self, route: &Asked) -> [usize; 2] {
        [&self.prefiller, &self.decoder].map(|engine| {
            let seen = engine.seen();
            engine.clear_seen();
            // The gateway asks some of them by itself, without a query, and chats in its own words.
            let is_asked = |path: &str| match path.split_once('?') {
                Some((path, query)) => path == route.path && query.contains(MARK),
                None => path == route.path && route.generates,
            };
            let of_client = seen.iter().filter(|seen| seen.method == route.method && !is_gateways(seen));
            of_client.filter(|seen| is_asked(&seen.path)).count()
        })
    }
}

/// Outlines of the answers of a gateway of this dialect alone, and how often its engines were
/// asked.
async fn alone(at: usize) -> Vec<(Outline, [usize; 2])> {
    let side = Side::start(at, DIALECTS[at]).await;
    let (place, dir) = (place::own(), tempfile::tempdir().unwrap());
    let own = side.toml(DIALECTS[at].0, "").replace(&format!("fleets.{}.", side.name), "");
    let callback = format!("callback_url = \"http://{place}\"\n");
    let file = dir.path().join("alone.toml");
    std::fs::write(&file, head(place) + &own + &callback).unwrap();
    let (gateway, stop, serving) = serve(&file).await;
    let hello = post(super::CHAT, &chat(&side.model).to_string());
    eventually("it serves", async || client::send(gateway, &hello).await.status == 200).await;
    let mut answers = Vec::new();
    for route in routes(gateway).await {
        for stream in [false, true] {
            side.asked(&route);
            let answer = client::send(gateway, &route.request(&side.model, "", stream)).await;
            answers.push((outline(&answer), side.asked(&route)));
        }
    }
    stop.cancel();
    serving.await.unwrap();
    side.prefiller.stop().await;
    side.decoder.stop().await;
    answers
}

/// All routes for each of these fleets.
async fn compare(count: usize) {
    let fleets = Fleets::set(&DIALECTS[..count], Settings::default()).await;
    let routes = routes(fleets.at).await;
    assert!(routes.len() > 60, "{}", routes.len());
    let mut wrong = Vec::new();
    for (at, side) in fleets.sides.iter().enumerate() {
        let mut expected = alone(at).await.into_iter();
        for route in &routes {
            // A route that has no model's name is told the fleet.
            let query = format!("&fleet={}", side.name);
            for stream in [false, true] {
                let what = format!("{} of {count}: {} {} {stream}", DIALECTS[at].0, route.method, route.path);
                for side in &fleets.sides {
                    side.asked(route);
                }
                let answer = fleets.send(&route.request(&side.model, &query, stream)).await;
                let (same, asked) = expected.next().unwrap();
                if outline(&answer) != same {
                    wrong.push(format!("{what}: {:?} in place of {same:?}", outline(&answer)));
                }
                for other in &fleets.sides {
                    let (is_own, got) = (other.name == side.name, other.asked(route));
                    // A refusal may overtake the leg to the other engine, where both go at once.
                    if is_own && answer.status >= 400 {
                        continue;
                    }
                    let wanted = if is_own { asked } else { [0, 0] };
                    if got != wanted {
                        wrong.push(format!("{what}: {} is asked {got:?} times, not {wanted:?}", other.name));
                    }
                }
                let served = ["/v1/chat/completions", "/v1/completions", "/tokenize"];
                assert!(
                    !served.contains(&route.path.as_str()) || answer.status == 200,
                    "{what}: {}",
                    answer.text()
                );
            }
        }
        assert!(expected.next().is_none());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_route_of_two_fleets_answers_as_that_fleet_alone() {
    compare(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_route_of_five_fleets_answers_as_that_fleet_alone() {
    compare(5).await;
}
