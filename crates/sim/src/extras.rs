//! The endpoints around generation: models, health, metrics, tokenizer, embeddings.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{Method, Response};
use serde_json::{Value, json};

use super::api::{self, read_json};
use super::chat;
use super::fail::ApiFailure;
use super::http::{ReceivedRequest, respond, respond_json, short_id, unix_s};
use super::hub::Hub;
use super::role_switch;
use super::spec::Connector;
use super::sse::Body;
use super::text::string_print;
use super::tokens;

/// Route of vLLM 0.32 and later that tells a chat's tokens.
const RENDER: &str = "/v1/chat/completions/render";

/// Routes of vLLM with `VLLM_ALLOW_RUNTIME_LORA_UPDATING`.
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

/// Numbers of a fake embedding.
const EMBEDDING_NUMBERS: u64 = 8;

/// The method that `path` takes; None if there is no such path.
#[must_use]
pub fn allowed(path: &str) -> Option<Method> {
    match path {
        "/server_info" | "/get_server_info" | "/query" | "/health" | "/ping" | "/version" | "/load"
        | "/metrics" | "/kv_event_sources" | "/v1/models" => Some(Method::GET),
        "/tokenize"
        | RENDER
        | "/detokenize"
        | "/v1/embeddings"
        | "/reset_prefix_cache"
        | LOAD
        | UNLOAD
        | role_switch::PATH => Some(Method::POST),
        _ => api::of_path(path).map(|_| Method::POST),
    }
}

/// Answers a GET.
#[must_use]
pub fn get(hub: &Hub, path: &str) -> Response<Body> {
    match path {
        "/server_info" | "/get_server_info" if hub.spec.connector == Connector::Sglang => {
            respond_json(&server_info(hub))
        }
        "/server_info" | "/get_server_info" => respond(404, "", Bytes::new()),
        "/version" if hub.spec.connector == Connector::Sglang => respond(404, "", Bytes::new()),
        "/version" => respond_json(&json!({"version": hub.spec.version})),
        // A bootstrap server of its own port in a real engine.
        "/query" if hub.spec.connector == Connector::Mooncake => respond_json(&bootstrap(hub)),
        "/query" => respond(404, "", Bytes::new()),
        "/kv_event_sources" if hub.spec.event_sources.is_empty() => respond(404, "", Bytes::new()),
        "/kv_event_sources" => respond(200, "application/json", hub.spec.event_sources.clone().into()),
        "/load" => {
            let ledger = hub.ledger();
            respond_json(&json!({"server_load": ledger.running + ledger.waiting}))
        }
        "/metrics" => respond(200, "text/plain; version=1.0.0; charset=utf-8", metrics(hub).into()),
        "/v1/models" => respond_json(&models(hub)),
        _ => respond(200, "", Bytes::new()),
    }
}

/// Answers a POST that does not generate.
pub fn post(hub: &Hub, path: &str, asked: &ReceivedRequest) -> Result<Response<Body>, ApiFailure> {
    if path == "/reset_prefix_cache" {
        hub.with(|core, _| core.reset_cache());
        return Ok(respond(200, "", Bytes::new()));
    }
    let body = read_json(asked)?;
    if matches!(path, LOAD | UNLOAD) {
        return change_adapters(hub, path, &body);
    }
    if path == role_switch::PATH {
        return role_switch::answer(hub, &body);
    }
    match path {
        "/tokenize" => tokenize(hub, &body, &asked.body),
        RENDER => render(hub, &body, &asked.body),
        "/detokenize" => detokenize(&body),
        _ => embeddings(hub, &body),
    }
    .map(|answer| respond_json(&answer))
}

/// Loads or unloads an adapter, with vLLM 0.32's words.
fn change_adapters(hub: &Hub, path: &str, body: &Value) -> Result<Response<Body>, ApiFailure> {
    let missing = || ApiFailure::bad_request("Both 'lora_name' and 'lora_path' must be provided.");
    let name = body.get("lora_name").and_then(Value::as_str).ok_or_else(missing)?;
    let mut loaded = hub.adapters();
    let is_loaded = loaded.iter().any(|known| known == name);
    let said = match (path, is_loaded) {
        (LOAD, true) => {
            let message = format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set \
                 'load_inplace' to True."
            );
            return Err(ApiFailure::bad_request(&message));
        }
        (LOAD, false) => {
            loaded.push(name.to_owned());
            format!("Success: LoRA adapter '{name}' added successfully.")
        }
        (_, false) => return Err(ApiFailure::unknown_adapter(name)),
        (_, true) => {
            loaded.retain(|known| known != name);
            format!("Success: LoRA adapter '{name}' removed successfully.")
        }
    };
    Ok(respond(200, "", said.into()))
}

/// As much of SGLang's as says what the server is there for.
fn server_info(hub: &Hub) -> Value {
    let mode = role_switch::name(hub.role());
    json!({"disaggregation_mode": mode, "disaggregation_bootstrap_port": hub.gate.addr().port()})
}

fn bootstrap(hub: &Hub) -> Value {
    json!({"0": {"engine_id": hub.engine_id, "worker_addr": {"0": {"0": format!("tcp://{}", hub.gate.addr())}}}})
}

fn models(hub: &Hub) -> Value {
    let (model, created) = (&hub.spec.model, unix_s());
    let root = hub.spec.root.clone().unwrap_or_else(|| format!("/models/{model}"));
    let mut list = json!({"object": "list", "data": [{
        "id": model, "object": "model", "created": created, "owned_by": "vllm", "root": root,
        "parent": null, "max_model_len": hub.spec.max_model_len, "permission": [{
            "id": format!("modelperm-{}", short_id()), "object": "model_permission", "created": created,
            "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
            "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
            "group": null, "is_blocking": false,
        }],
    }]});
    let adapters = hub.adapters().clone().into_iter().map(|name| {
        json!({
            "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": format!("/adapters/{name}"),
            "parent": model, "max_model_len": null, "permission": [],
        })
    });
    if let Some(entries) = list["data"].as_array_mut() {
        entries.extend(adapters);
    }
    list
}

fn tokenize(hub: &Hub, body: &Value, raw: &[u8]) -> Result<Value, ApiFailure> {
    if let Some(tokenizing) = &hub.spec.tokenize {
        let ids =
            (tokenizing.0)(raw).ok_or_else(|| ApiFailure::bad_request("The conversation was refused."))?;
        let max_model_len = hub.spec.max_model_len;
        return Ok(
            json!({"count": ids.len(), "max_model_len": max_model_len, "tokens": ids, "token_strs": null}),
        );
    }
    let text = match (body.get("prompt").and_then(Value::as_str), body.get("messages")) {
        (Some(prompt), _) => prompt.to_owned(),
        (None, Some(_)) => chat::render(body)?,
        (None, None) => {
            let missing = |name: &str| {
                let input = chat::dict_of(body);
                format!(
                    "{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', 'input': '{input}'}}"
                )
            };
            return Err(ApiFailure::validation(
                &[missing("prompt"), missing("messages")],
                "body.prompt".into(),
            ));
        }
    };
    let ids = tokens::encode(&text);
    let wanted = body.get("return_token_strs").and_then(Value::as_bool).unwrap_or(false);
    let strings = wanted.then(|| ids.iter().map(|&id| tokens::decode(&[id])).collect::<Vec<_>>());
    Ok(
        json!({"count": ids.len(), "max_model_len": hub.spec.max_model_len, "tokens": ids, "token_strs": strings}),
    )
}

/// As much of the answer as says what the prompt is.
fn render(hub: &Hub, body: &Value, raw: &[u8]) -> Result<Value, ApiFailure> {
    if !hub.spec.renders || hub.spec.tokenize.is_none() {
        return Err(ApiFailure::detail(404, "Not Found"));
    }
    let tokens = tokenize(hub, body, raw)?;
    Ok(
        json!({"request_id": format!("chatcmpl-{}", short_id()), "token_ids": tokens["tokens"], "features": null}),
    )
}

fn detokenize(body: &Value) -> Result<Value, ApiFailure> {
    let Some(ids) = body.get("tokens").and_then(Value::as_array) else {
        return Err(ApiFailure::schema("missing", "body.tokens", "Field required", &chat::dict_of(body)));
    };
    let ids: Vec<u32> =
        ids.iter().filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    Ok(json!({ "prompt": tokens::decode(&ids) }))
}

fn embeddings(hub: &Hub, body: &Value) -> Result<Value, ApiFailure> {
    let inputs = match body.get("input") {
        Some(Value::Array(items)) if items.iter().all(Value::is_string) => items.clone(),
        Some(input) => vec![input.clone()],
        None => {
            return Err(ApiFailure::schema("missing", "body.input", "Field required", &chat::dict_of(body)));
        }
    };
    let mut prompt_tokens = 0;
    let mut data = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
        prompt_tokens += tokens::encode(&text).len();
        let hash = string_print(&text);
        let vector: Vec<f64> =
            (0..EMBEDDING_NUMBERS).map(|i| ((hash >> (8 * i)) & 0xff) as f64 / 255.0).collect();
        data.push(json!({"index": index, "object": "embedding", "embedding": vector}));
    }
    Ok(json!({
        "id": format!("embd-{}", short_id()), "object": "list", "created": unix_s(), "model": hub.spec.model,
        "data": data, "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens,
            "completion_tokens": 0, "prompt_tokens_details": null},
    }))
}

fn metrics(hub: &Hub) -> String {
    let ledger = hub.ledger();
    let (sources, usage) = hub.with(|core, _| core.usage());
    let mut out = String::with_capacity(2048);
    let model = &hub.spec.model;
    let mut gauge = |name: &str, kind: &str, labels: &str, value: f64| {
        let family = name.strip_suffix("_total").unwrap_or(name);
        if !out.contains(&format!("# TYPE vllm:{name} ")) {
            let _ = writeln!(out, "# HELP vllm:{name} Simulated {family}.\n# TYPE vllm:{name} {kind}");
        }
        let _ = writeln!(out, "vllm:{name}{{engine=\"0\",model_name=\"{model}\"{labels}}} {value:?}");
    };
    gauge("num_requests_running", "gauge", "", ledger.running as f64);
    gauge("num_requests_waiting", "gauge", "", ledger.waiting as f64);
    gauge("kv_cache_usage_perc", "gauge", "", usage);
    let by_source = [
        ("local_compute", sources.local_compute),
        ("local_cache_hit", sources.local_cache_hit),
        ("external_kv_transfer", sources.external_kv_transfer),
    ];
    for (source, tokens) in by_source {
        let labels = format!(",source=\"{source}\"");
        gauge("prompt_tokens_by_source_total", "counter", &labels, tokens as f64);
    }
    gauge("nixl_num_kv_expired_reqs_total", "counter", "", ledger.expired as f64);
    gauge("cache_config_info", "gauge", &cache_config(hub), 1.0);
    // The other ranks have lines of their own; what they do is counted with the first.
    for rank in 1..hub.spec.ranks {
        for (name, labels, value) in
            [("num_requests_running", "", 0.0), ("cache_config_info", &*cache_config(hub), 1.0)]
        {
            let _ =
                writeln!(out, "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\"{labels}}} {value:?}");
        }
    }
    let start_s = unix_now_s() - hub.now_us() as f64 / 1e6;
    let _ = writeln!(out, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start_s:?}");
    out
}

fn unix_now_s() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

/// vLLM's `CacheConfig` as labels, those that are simulated.
fn cache_config(hub: &Hub) -> String {
    let spec = &hub.spec;
    let caching = if spec.prefix_caching { "True" } else { "False" };
    format!(
        ",block_size=\"{}\",enable_prefix_caching=\"{caching}\",hash_block_size=\"None\",num_gpu_blocks=\"{}\",\
         prefix_caching_hash_algo=\"{}\"",
        spec.block_tokens,
        spec.kv_blocks / usize::from(spec.ranks.max(1)),
        spec.hash_algo
    )
}
