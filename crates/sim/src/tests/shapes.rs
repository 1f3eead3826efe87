//! The engine's answers against recordings of vLLM 0.32: same statuses, same members in the same
//! order, same kinds of values, same kinds of events, and for errors the same bytes.

use std::path::Path;

use super::*;

/// A recorded exchange: `>>>`, the raw request, `<<<`, the raw response, `# reads` and timings.
struct Recording {
    name: String,
    request: Vec<u8>,
    response: Raw,
}

fn recordings(names: &[&str]) -> Vec<Recording> {
    // The crate stands two folders below the project.
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let folder = project.join("tests/transcripts").display().to_string();
    let listing = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let files: Vec<String> = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names
        .iter()
        .map(|name| {
            let file = files.iter().find(|file| file.starts_with(&format!("{name}-")));
            let file = file.unwrap_or_else(|| panic!("no recording {name} in {folder}"));
            recording(file, &std::fs::read(format!("{folder}/{file}")).unwrap())
        })
        .collect()
}

fn recording(name: &str, file: &[u8]) -> Recording {
    let find =
        |text: &[u8]| memchr::memmem::find(file, text).unwrap_or_else(|| panic!("{name}: no {text:?}"));
    let (start, middle) = (find(b">>>\n") + 4, find(b"\n<<<\n"));
    let end = memchr::memmem::find(file, b"\n# reads").unwrap_or(file.trim_ascii_end().len());
    let bytes = file[middle + 5..end].to_vec();
    Recording {
        name: name.to_owned(),
        request: file[start..middle].to_vec(),
        response: Raw { bytes, end: End::Closed, reads: 1 },
    }
}

/// Names, order and kinds, without the values. Of an array, the kinds its items have.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(items) => format!("[{}]", distinct(items.iter().map(shape)).join("|")),
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(name, value)| member_shape(name, value)).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

/// The alternatives of a completion's token are named by their texts: only that they are numbers
/// counts. A token without text has no bytes.
fn member_shape(name: &str, value: &Value) -> String {
    if name == "bytes" && value.is_array() {
        return "bytes:[number]".into();
    }
    let by_text = value.get(0).and_then(Value::as_object).is_some_and(|first| !first.contains_key("token"));
    if name != "top_logprobs" || !by_text {
        return format!("{name}:{}", shape(value));
    }
    let values =
        value.as_array().into_iter().flatten().filter_map(Value::as_object).flat_map(|one| one.values());
    format!("{name}:{{{}}}", distinct(values.map(shape)).join("|"))
}

fn distinct(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut out = Vec::new();
    for item in items {
        if !out.contains(&item) {
            out.push(item);
        }
    }
    out
}

/// The kinds of events a stream has, in order of first appearance, and whether each was one HTTP
/// chunk.
fn stream_shape(raw: &Raw) -> Vec<String> {
    let at = memchr::memmem::find(&raw.bytes, b"\r\n\r\n").unwrap() + 4;
    let chunks = chunks(&raw.bytes[at..]);
    distinct(chunks.iter().map(|chunk| {
        let text = std::str::from_utf8(chunk).unwrap();
        let (event, data) = text.split_once("data: ").unwrap();
        let data = data.strip_suffix("\n\n").unwrap_or_else(|| panic!("not one event: {text:?}"));
        let shape =
            if data == "[DONE]" { data.to_owned() } else { shape(&serde_json::from_str(data).unwrap()) };
        format!("{event}{shape}")
    }))
}

fn assert_same_shape(recording: &Recording, ours: &Raw) {
    let (name, real) = (&recording.name, &recording.response);
    assert_eq!(ours.status(), real.status(), "{name}: {}", ours.body());
    if real.head().contains("text/event-stream") {
        assert_eq!(stream_shape(ours), stream_shape(real), "{name}");
    } else if real.body().is_empty() {
        assert_eq!(ours.body(), "", "{name}");
    } else {
        assert_eq!(shape(&ours.json()), shape(&real.json()), "{name}");
    }
    let header = |raw: &Raw, name: &str| {
        let head = raw.head();
        head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    for wanted in ["content-type:", "allow:"] {
        assert_eq!(header(ours, wanted), header(real, wanted), "{name}: {wanted}");
    }
}

/// An engine like the recorded ones.
async fn tiny() -> Engine {
    let spec = EngineSpec { model: "tiny".to_owned(), max_model_len: 2048, ..EngineSpec::default() };
    Engine::start(spec, ANY).await.unwrap()
}

async fn replay(engine: &Engine, request: &[u8]) -> Raw {
    let mut tcp = TcpStream::connect(engine.addr()).await.unwrap();
    tcp.write_all(request).await.unwrap();
    drain(&mut tcp, PATIENCE).await
}

#[tokio::test]
async fn answers_have_the_recorded_shape() {
    let engine = tiny().await;
    let names = [
        "10", "12", "14", "17", "18", "21", "23", "30", "31", "32", "33", "34", "35", "36", "37", "39", "40",
        "41", "42", "45", "46", "47", "48", "49", "50", "53", "54", "55", "56", "57", "58", "59", "60", "61",
        "62", "63", "65", "66", "67", "70", "71", "72", "73", "74", "78", "79", "82", "90", "91", "92", "93",
        "94", "95", "96", "98", "D7", "E3", "E6",
    ];
    for recording in recordings(&names) {
        let ours = replay(&engine, &recording.request).await;
        assert_same_shape(&recording, &ours);
    }
}

#[tokio::test]
async fn decodes_of_a_handoff_have_the_recorded_shape() {
    let (p, d) = (tiny().await, tiny().await);
    for recording in recordings(&["11", "13", "15", "20", "22", "24"]) {
        let text = String::from_utf8(recording.request.clone()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let path = head.split(' ').nth(1).unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        let mut leg = prefill_leg(&body);
        leg.as_object_mut().unwrap().remove("stream_options");
        leg["n"] = json!(1);
        let handoff = post(&p, path, &leg).await.json()["kv_transfer_params"].clone();
        assert_eq!(shape(&handoff), shape(&body["kv_transfer_params"]), "{}", recording.name);
        let body = with(&body, json!({"kv_transfer_params": handoff}));
        let id = head.lines().find(|line| line.starts_with("X-Request-Id")).map(|line| format!("{line}\r\n"));
        let text = request("POST", path, &id.unwrap_or_default(), &body.to_string());
        assert_same_shape(&recording, &send(d.addr(), &text).await);
    }
    assert_eq!((p.ledger().released_by_decode, p.ledger().pinned_handoffs), (6, 0));
}

#[tokio::test]
async fn errors_are_the_recorded_bytes() {
    let engine = tiny().await;
    let names = [
        "43", "64", "78", "79", "97", "C0", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "D0", "D1",
        "D2", "D3", "D5", "D6", "D8", "E0", "E1", "E7",
    ];
    for recording in recordings(&names) {
        let ours = replay(&engine, &recording.request).await;
        assert_eq!(ours.status(), recording.response.status(), "{}", recording.name);
        assert_eq!(ours.body(), recording.response.body(), "{}", recording.name);
    }
    // Blocks as long as the recorded engine's, measured in text.
    let spec = EngineSpec { block_tokens: 64, model: "tiny".to_owned(), ..EngineSpec::default() };
    let decoder = Engine::start(spec, ANY).await.unwrap();
    for recording in &recordings(&["25", "26"]) {
        let ours = replay(&decoder, &recording.request).await;
        assert_eq!((ours.status(), ours.body()), (500, recording.response.body()), "{}", recording.name);
    }
    engine.inject(Fault::once(FaultKind::Status(503, None)));
    let busy = &recordings(&["F1"])[0];
    assert_eq!(replay(&engine, &busy.request).await.body(), busy.response.body());
}

#[tokio::test]
async fn a_named_tool_is_called_whole_and_streamed() {
    let engine = engine().await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9,
        "tool_choice": {"type": "function", "function": {"name": "f"}}});
    let whole = post(&engine, "/v1/chat/completions", &body).await.json();
    let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!((whole["choices"][0]["message"]["content"].as_str(), &call["name"]), (Some(""), &json!("f")));
    let arguments = call["arguments"].as_str().unwrap().to_owned();
    assert!(serde_json::from_str::<Value>(&arguments).unwrap()["text"].is_string());
    let events = post(&engine, "/v1/chat/completions", &with(&body, json!({"stream": true}))).await.events();
    let pieces = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let piece = |event: Value| {
        event
            .pointer("/choices/0/delta/tool_calls/0/function/arguments")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    assert_eq!(pieces.filter_map(piece).collect::<String>(), arguments);
}

#[tokio::test]
async fn the_key_guards_only_v1_and_metrics_tell_the_load() {
    let spec = EngineSpec { api_key: Some("secret".to_owned()), ..EngineSpec::default() };
    let engine = Engine::start(spec, ANY).await.unwrap();
    let refused = get(&engine, "/v1/models").await;
    assert_eq!((refused.status(), refused.body().as_str()), (401, r#"{"error":"Unauthorized"}"#));
    let bearer = |key: &str| request("GET", "/v1/models", &format!("authorization: Bearer {key}\r\n"), "");
    assert_eq!(send(engine.addr(), &bearer("wrong")).await.status(), 401);
    assert_eq!(send(engine.addr(), &bearer("secret")).await.status(), 200);
    let metrics = get(&engine, "/metrics").await.body();
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"sim\"} 0.0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"sim\"} 0.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"sim\"} 0.0",
        "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"sim\",source=\"local_compute\"} 0.0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn answers_end_by_themselves_and_say_so_in_every_api() {
    let spec = EngineSpec { answer_tokens: 8, ..EngineSpec::default() };
    let engine = Engine::start(spec, ANY).await.unwrap();
    let ask = async |path: &str, body: Value| {
        let whole = post(&engine, path, &with(&json!({"model": "sim"}), body)).await;
        assert_eq!(whole.status(), 200, "{}", whole.body());
        whole.json()
    };
    let mut lengths = Vec::new();
    for n in 0..64 {
        let body = with(&completion(&format!("prompt {n}")), json!({"max_tokens": 500}));
        let whole = ask("/v1/completions", body.clone()).await;
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        assert_eq!(whole["choices"][0]["stop_reason"], Value::Null);
        lengths.push(whole["usage"]["completion_tokens"].as_u64().unwrap());
        let ignoring =
            ask("/v1/completions", with(&body, json!({"max_tokens": 60, "ignore_eos": true}))).await;
        assert_eq!(ignoring["choices"][0]["finish_reason"], "length");
        assert_eq!(ignoring["usage"]["completion_tokens"], 60);
        let not_first = ask("/v1/completions", with(&body, json!({"max_tokens": 1, "min_tokens": 1}))).await;
        assert_eq!(
            not_first["choices"][0]["finish_reason"], "length",
            "min_tokens keeps a prefill from ending by itself"
        );
    }
    let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
    assert!((5.0..12.0).contains(&mean) && lengths.iter().max() > lengths.iter().min(), "{lengths:?}");

    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = ask("/v1/chat/completions", json!({"messages": messages, "max_tokens": 500})).await;
    assert_eq!(chat["choices"][0]["finish_reason"], "stop");
    let body = json!({"messages": messages, "max_tokens": 500});
    assert_eq!(ask("/v1/messages", body.clone()).await["stop_reason"], "end_turn");
    let body = with(&body, json!({"model": "sim", "stream": true}));
    assert!(post(&engine, "/v1/messages", &body).await.body().contains(r#""stop_reason":"end_turn""#));
    let said = ask("/v1/responses", json!({"input": "x", "max_output_tokens": 500})).await;
    assert_eq!((&said["status"], &said["incomplete_details"]), (&json!("completed"), &Value::Null));
}

#[tokio::test]
async fn choices_differ_and_streams_say_the_same_as_whole_answers() {
    let engine = engine().await;
    let body = with(&completion("x"), json!({"n": 3, "max_tokens": 40, "stop": ["."]}));
    let whole = post(&engine, "/v1/completions", &body).await.json();
    let texts: Vec<&str> = (0..3).map(|i| whole["choices"][i]["text"].as_str().unwrap()).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert!(texts.iter().all(|text| !text.contains('.')));
    let mut streamed = vec![String::new(); 3];
    for event in post(&engine, "/v1/completions", &with(&body, json!({"stream": true}))).await.events() {
        let Ok(event) = serde_json::from_str::<Value>(&event) else { continue };
        let choice = &event["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        streamed[index].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(streamed, texts);
}
