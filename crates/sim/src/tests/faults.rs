use bytes::Bytes;

use super::*;

async fn ask(engine: &Engine, stream: bool) -> Raw {
    let body = with(&completion("tell me something"), json!({ "stream": stream }));
    post(engine, "/v1/completions", &body).await
}

#[tokio::test]
async fn a_refusing_port_comes_back_when_cleared() {
    let engine = engine().await;
    let mut idle = TcpStream::connect(engine.addr()).await.unwrap();
    engine.inject(Fault::always(FaultKind::Refuse));
    assert_eq!(TcpStream::connect(engine.addr()).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(drain(&mut idle, PATIENCE).await.end, End::Reset);
    engine.clear_faults();
    assert_eq!(ask(&engine, false).await.status(), 200);
}

#[tokio::test]
async fn resets_before_anything_is_answered() {
    let engine = engine().await;
    engine.inject(Fault::once(FaultKind::ResetBeforeHead));
    let raw = ask(&engine, false).await;
    assert_eq!((raw.bytes.len(), raw.end), (0, End::Reset));
    assert_eq!(engine.seen().len(), 1);
    engine.inject(Fault::once(FaultKind::ResetAtAccept));
    let mut tcp = TcpStream::connect(engine.addr()).await.unwrap();
    assert_eq!(drain(&mut tcp, PATIENCE).await.end, End::Reset);
    assert_eq!(engine.seen().len(), 1);
    assert_eq!(ask(&engine, false).await.status(), 200);
}

#[tokio::test]
async fn stalls_hold_the_connection() {
    let engine = engine().await;
    let text = request("POST", "/v1/completions", "", &completion("x").to_string());
    for (what, bytes) in [(FaultKind::StallBeforeHead, 0), (FaultKind::StallAfterBytes(50), 50)] {
        engine.inject(Fault::once(what));
        let mut tcp = TcpStream::connect(engine.addr()).await.unwrap();
        tcp.write_all(text.as_bytes()).await.unwrap();
        let mut got = vec![0; bytes];
        tcp.read_exact(&mut got).await.unwrap();
        let raw = drain(&mut tcp, Duration::from_millis(200)).await;
        assert_eq!((raw.bytes.len(), raw.end), (0, End::Silent));
    }
}

#[tokio::test]
async fn responses_are_cut_at_the_byte() {
    let engine = engine().await;
    for stream in [false, true] {
        let whole = ask(&engine, stream).await.bytes.len();
        for bytes in [1, 20, 300, whole - 1] {
            for (how, end) in [(ConnectionEnd::Reset, End::Reset), (ConnectionEnd::Close, End::Closed)] {
                engine.inject(Fault::once(FaultKind::CutAfterBytes { bytes, how }));
                let raw = ask(&engine, stream).await;
                assert_eq!((raw.bytes.len(), raw.end), (bytes, end));
            }
        }
    }
}

#[tokio::test]
async fn a_dribbled_response_arrives_whole_in_pieces() {
    let engine = engine().await;
    engine.inject(Fault::once(FaultKind::DribbleBytes(7)));
    let raw = ask(&engine, true).await;
    assert_eq!(raw.events().last().unwrap(), "[DONE]");
    assert!(raw.reads > 20, "{} reads", raw.reads);
}

#[tokio::test]
async fn streams_that_fail_in_the_middle() {
    let engine = engine().await;
    engine.inject(Fault::once(FaultKind::CloseWithoutDone));
    let raw = ask(&engine, true).await;
    assert_eq!((raw.events().len(), raw.end), (3, End::Closed));
    assert!(raw.bytes.ends_with(b"0\r\n\r\n") && !raw.body().contains("[DONE]"));
    engine.inject(Fault::once(FaultKind::ErrorEvent));
    let events = ask(&engine, true).await.events();
    assert_eq!(events.len(), 5);
    assert!(events[3].starts_with(r#"{"error":{"message":"Internal server error""#));
    assert_eq!(events[4], "[DONE]");
    assert_eq!(engine.ledger(), Ledger::default());
}

#[tokio::test]
async fn statuses_bad_handoffs_and_delays() {
    let engine = engine().await;
    engine.inject(Fault::once(FaultKind::Status(418, Some(Bytes::from_static(b"teapot")))));
    let raw = ask(&engine, false).await;
    assert_eq!((raw.status(), raw.body().as_str()), (418, "teapot"));
    engine.inject(Fault::once(FaultKind::BadHandoff(Bytes::from_static(b"{not json"))));
    assert!(ask(&engine, false).await.body().contains(r#""kv_transfer_params":{not json,"ec_transfer"#));
    let started = std::time::Instant::now();
    engine.inject(Fault::once(FaultKind::Delay(Duration::from_millis(50))));
    assert_eq!(ask(&engine, false).await.status(), 200);
    assert!(started.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn faults_and_ledger_over_http() {
    let engine = engine().await;
    let fault = json!({"path": "/v1/", "times": 1, "what": {"kind": "status", "status": 503}});
    assert_eq!(post(&engine, "/sim/faults", &fault).await.status(), 200);
    assert_eq!(ask(&engine, false).await.status(), 503);
    assert_eq!(ask(&engine, false).await.status(), 200);
    assert_eq!(post(&engine, "/sim/faults", &json!({"what": {"kind": "x"}})).await.status(), 400);
    let raw = send(engine.addr(), &request("DELETE", "/sim/faults", "", "")).await;
    assert_eq!(raw.status(), 200);
    assert_eq!(get(&engine, "/sim/ledger").await.json()["pinned_handoffs"], 0);
}

#[tokio::test]
async fn a_killed_engine_resets_and_a_stopped_one_finishes() {
    let slow = EngineSpec { tpot_ms: 20.0, ..EngineSpec::default() };
    let text = request(
        "POST",
        "/v1/completions",
        "",
        &with(&completion("x"), json!({"stream": true, "max_tokens": 100})).to_string(),
    );
    for kill in [true, false] {
        let engine = Engine::start(slow.clone(), ANY).await.unwrap();
        let mut tcp = TcpStream::connect(engine.addr()).await.unwrap();
        tcp.write_all(text.as_bytes()).await.unwrap();
        eventually(&engine, |ledger| ledger.running == 1).await;
        if kill {
            engine.kill().await;
            assert_eq!(engine.ledger(), Ledger::default());
            assert_eq!(drain(&mut tcp, PATIENCE).await.end, End::Reset);
            assert!(TcpStream::connect(engine.addr()).await.is_err());
            let again = Engine::start(EngineSpec::default(), engine.addr()).await.unwrap();
            assert_eq!(ask(&again, false).await.status(), 200);
        } else {
            let (_, raw) = tokio::join!(engine.stop(), drain(&mut tcp, PATIENCE));
            assert_eq!((raw.events().last().unwrap().as_str(), raw.end), ("[DONE]", End::Closed));
        }
    }
}
