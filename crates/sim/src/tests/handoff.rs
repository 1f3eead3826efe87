use super::*;

const PROMPT: &str =
    "the quick brown fox jumps over the lazy dog and goes on to say a good deal more than that";

async fn right_text(body: &Value) -> String {
    text_of(&post(&engine().await, "/v1/completions", body).await.json())
}

#[tokio::test]
async fn a_handoff_whole_and_streamed() {
    let (p, d) = (engine().await, engine().await);
    let body = completion(PROMPT);
    let right = right_text(&body).await;
    for stream in [false, true] {
        let handoff = prefill(&p, &body).await;
        assert_eq!(p.ledger().pinned_handoffs, 1);
        let body = with(&body, json!({"stream": stream, "kv_transfer_params": handoff}));
        let answer = post(&d, "/v1/completions", &body).await;
        let text = if stream {
            let events = answer.events();
            assert_eq!(events.last().unwrap(), "[DONE]");
            let event = |text: &String| serde_json::from_str::<Value>(text).unwrap();
            events[..events.len() - 1].iter().map(event).map(|event| text_of(&event)).collect()
        } else {
            assert_eq!(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
            text_of(&answer.json())
        };
        assert_eq!(text, right);
        post(&d, "/reset_prefix_cache", &json!({})).await;
    }
    let (p, d) = (p.ledger(), d.ledger());
    assert_eq!((p.pinned_handoffs, p.used_blocks, p.released_by_decode), (0, 0, 2));
    assert_eq!(d, Ledger::default());
}

#[tokio::test]
async fn kv_of_another_prompt_is_answered_with_another_text() {
    let (p, d) = (engine().await, engine().await);
    let handoff = prefill(&p, &completion(PROMPT)).await;
    let other = completion(&PROMPT.replace("fox", "cat"));
    let answer = post(&d, "/v1/completions", &with(&other, json!({"kv_transfer_params": handoff}))).await;
    assert_eq!(answer.status(), 200);
    assert_ne!(text_of(&answer.json()), right_text(&other).await);
}

#[tokio::test]
async fn params_used_after_the_lease_are_right_until_the_blocks_are_reused() {
    let spec = EngineSpec { kv_blocks: 16, lease_ms: 0, ..EngineSpec::default() };
    let p = Engine::start(spec, ANY).await.unwrap();
    let body = completion(PROMPT);
    let right = right_text(&body).await;
    let handoff = prefill(&p, &body).await;
    assert_eq!(eventually(&p, |ledger| ledger.expired == 1).await.used_blocks, 0);
    let again = with(&body, json!({"kv_transfer_params": handoff}));
    assert_eq!(text_of(&post(&engine().await, "/v1/completions", &again).await.json()), right);
    post(&p, "/v1/completions", &completion(&"something else ".repeat(48))).await;
    let late = post(&engine().await, "/v1/completions", &again).await;
    assert_eq!(late.status(), 200);
    assert_ne!(text_of(&late.json()), right);
    assert_eq!(p.ledger().released_by_decode, 0);
}

#[tokio::test]
async fn a_rejected_or_dropped_decode_gives_the_handoff_back() {
    let (p, d) = (engine().await, engine().await);
    let body = completion(PROMPT);
    let rejected = json!({"kv_transfer_params": prefill(&p, &body).await, "temperature": -2});
    assert_eq!(post(&d, "/v1/completions", &with(&body, rejected)).await.status(), 400);
    eventually(&p, |ledger| ledger.released_by_reject == 1 && ledger.pinned_blocks == 0).await;

    d.inject(Fault::once(FaultKind::Status(503, None)));
    let busy = json!({"kv_transfer_params": prefill(&p, &body).await});
    assert_eq!(post(&d, "/v1/completions", &with(&body, busy)).await.status(), 503);
    eventually(&p, |ledger| ledger.released_by_reject == 2 && ledger.pinned_blocks == 0).await;

    p.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/sim/kv"));
    let handoff = prefill(&p, &body).await;
    let mut tcp = TcpStream::connect(d.addr()).await.unwrap();
    let body = with(&body, json!({"kv_transfer_params": handoff})).to_string();
    tcp.write_all(request("POST", "/v1/completions", "", &body).as_bytes()).await.unwrap();
    eventually(&d, |ledger| ledger.waiting == 1).await;
    p.clear_faults();
    drop(tcp);
    eventually(&d, |ledger| *ledger == Ledger::default()).await;
    eventually(&p, |ledger| ledger.released_by_reject == 3 && ledger.used_blocks == 0).await;
}

#[tokio::test]
async fn an_unknown_or_unreachable_prefiller_is_a_500() {
    let (p, d) = (engine().await, engine().await);
    let body = completion(PROMPT);
    let handoff = prefill(&p, &body).await;
    let unknown = with(&handoff, json!({"remote_engine_id": "somebody else"}));
    let answer = post(&d, "/v1/completions", &with(&body, json!({"kv_transfer_params": unknown}))).await;
    let error = json!({"error": {"message": "Internal server error", "type": "InternalServerError", "param": null,
        "code": 500}});
    assert_eq!((answer.status(), answer.json()), (500, error));
    p.kill().await;
    let gone = with(&body, json!({"kv_transfer_params": handoff, "stream": true}));
    let answer = post(&d, "/v1/completions", &gone).await;
    assert_eq!(answer.status(), 200, "a stream's head is sent before the KV is there");
    assert!(answer.events()[0].starts_with(r#"{"error":"#));
    assert_eq!(answer.events()[1..], ["[DONE]"]);
    assert_eq!(d.ledger(), Ledger::default());
}

#[tokio::test]
async fn params_the_scheduler_cannot_use_kill_the_engine() {
    let p = engine().await;
    let body = completion(PROMPT);
    let handoff = prefill(&p, &completion("short")).await;
    for params in [json!({"do_remote_prefill": true}), handoff] {
        let d = engine().await;
        let mut idle = TcpStream::connect(d.addr()).await.unwrap();
        let answer = post(&d, "/v1/completions", &with(&body, json!({"kv_transfer_params": params}))).await;
        assert_eq!(answer.status(), 500);
        assert!(answer.body().contains("EngineCore encountered an issue."));
        assert_eq!(drain(&mut idle, PATIENCE).await.end, End::Reset);
        assert_eq!(TcpStream::connect(d.addr()).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(d.ledger().dead.unwrap().starts_with("assert num_"));
    }
}

#[tokio::test]
async fn a_stream_on_the_prefiller_pins_but_tells_nobody() {
    let p = engine().await;
    let body = with(&prefill_leg(&completion(PROMPT)), json!({"stream": true}));
    let answer = post(&p, "/v1/completions", &body).await;
    assert!(!answer.body().contains("kv_transfer_params"));
    assert_eq!(p.ledger().pinned_handoffs, 1);
}

#[tokio::test]
async fn from_033_on_every_chunk_has_the_member_and_the_last_tells() {
    let spec = EngineSpec { streams_handoff: true, ..EngineSpec::default() };
    let p = Engine::start(spec, ANY).await.unwrap();
    let body = with(&prefill_leg(&completion(PROMPT)), json!({"stream": true, "max_tokens": 3}));
    let answer = post(&p, "/v1/completions", &body).await.body();
    let chunks: Vec<&str> = answer.split("\n\n").filter(|chunk| chunk.contains("\"choices\"")).collect();
    assert_eq!(chunks.len(), 3, "{answer}");
    assert!(chunks[..2].iter().all(|chunk| chunk.ends_with(",\"kv_transfer_params\":null}")), "{answer}");
    assert!(chunks[2].contains("\"remote_block_ids\":"), "{answer}");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_prefill_is_over_strands_nothing() {
    let spec = EngineSpec { prefill_tokens_per_s: 1.0, ..EngineSpec::default() };
    let p = Engine::start(spec, ANY).await.unwrap();
    let text = request("POST", "/v1/completions", "", &prefill_leg(&completion(PROMPT)).to_string());
    let mut both = Vec::new();
    for count in 1..=2 {
        let mut tcp = TcpStream::connect(p.addr()).await.unwrap();
        tcp.write_all(text.as_bytes()).await.unwrap();
        eventually(&p, |ledger| ledger.running + ledger.waiting == count).await;
        both.push(tcp);
    }
    drop(both);
    eventually(&p, |ledger| *ledger == Ledger::default()).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_frees_the_decoder() {
    let d = Engine::start(EngineSpec { tpot_ms: 50.0, ..EngineSpec::default() }, ANY).await.unwrap();
    let p = engine().await;
    let body = with(&completion(PROMPT), json!({"stream": true, "max_tokens": 1000}));
    let body = with(&body, json!({"kv_transfer_params": prefill(&p, &body).await})).to_string();
    let mut tcp = TcpStream::connect(d.addr()).await.unwrap();
    tcp.write_all(request("POST", "/v1/completions", "", &body).as_bytes()).await.unwrap();
    eventually(&d, |ledger| ledger.running == 1).await;
    assert_eq!(p.ledger().released_by_decode, 1);
    drop(tcp);
    eventually(&d, |ledger| *ledger == Ledger::default()).await;
}

#[tokio::test]
async fn engines_share_a_pool() {
    let pool = std::sync::Arc::new(Pool::new(1000));
    let pooled = EngineSpec { connector: Connector::Pool, pool: Some(pool), ..EngineSpec::default() };
    let p = Engine::start(EngineSpec { role: Role::Prefill, ..pooled.clone() }, ANY).await.unwrap();
    let d = Engine::start(EngineSpec { role: Role::Decode, ..pooled }, ANY).await.unwrap();
    let body = completion(PROMPT);
    assert_eq!(prefill(&p, &body).await, Value::Null);
    let answer = post(&d, "/v1/completions", &body).await.json();
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
    assert_eq!(text_of(&answer), right_text(&body).await);
    let metrics = get(&d, "/metrics").await.body();
    assert!(metrics.contains("source=\"external_kv_transfer\"} 16.0"), "{metrics}");
    assert_eq!(p.ledger(), Ledger::default());
}
