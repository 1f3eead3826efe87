//! Clients that leave at each point: no decoder is left waiting for KV that will not come.

use std::time::Duration;

use pd_proxy::sim::{Engine, Fault, FaultKind};
use tokio::io::AsyncReadExt;

use super::{begin, body, minutes, script, slow_prefills};
use crate::common::stage::Stage;
use crate::common::time::{eventually, pass};

#[tokio::test]
async fn a_call_that_comes_after_the_client_has_left_is_answered_with_a_prefill() {
    let stage = Stage::set(script()).await;
    stage.decoders_fail(&Fault::always(FaultKind::Delay(Duration::from_millis(250))));
    let client = begin(stage.gateway, &body(true)).await;
    eventually("the decode leg", async || !stage.seen(&stage.decoders).is_empty()).await;
    drop(client);
    eventually("the call", async || stage.decoders.iter().any(|engine| !engine.heard().is_empty())).await;
    assert_eq!(stage.seen(&stage.prefillers).len(), 1);
    assert_eq!(stage.decoders.iter().flat_map(Engine::heard).collect::<Vec<_>>(), [200]);
    stage.assert_nothing_left("after the client left before the call").await;
    stage.end().await;
}

/// In virtual time, as prefills of minutes are.
#[tokio::test(start_paused = true)]
async fn a_prefill_that_has_begun_ends_though_the_client_has_left() {
    let (memory, _listening) = minutes::slow().await;
    let began = async || memory.prefillers[0].ledger().running == 1;
    tokio::select! {
        answer = minutes::ask(&memory) => panic!("{answer:?}"),
        () = eventually("the prefill", began) => {}
    }
    // The client has left. The grace time is long over, and the decoder's blocks come back with the
    // last layer only.
    pass(Duration::from_secs(120)).await;
    let decoder = memory.decoders[0].ledger();
    assert_eq!(decoder.waiting, 1, "the decoder is not hung up on before it has its KV: {decoder:#?}");
    pass(Duration::from_secs(120)).await;
    for engine in memory.prefillers.iter().chain(&memory.decoders) {
        let ledger = engine.ledger();
        assert_eq!(ledger.running + ledger.waiting + ledger.pinned_handoffs, 0, "{ledger:#?}");
    }
    let (_, metrics) = memory.get("/metrics").await;
    assert!(metrics.contains("client_gone"), "it is settled as what it was");
}

#[tokio::test]
async fn a_decoder_that_does_not_call_is_hung_up_on_after_the_grace_time() {
    let stage = Stage::set(script()).await;
    stage.decoders_fail(&Fault::always(FaultKind::StallBeforeHead));
    let client = begin(stage.gateway, &body(true)).await;
    eventually("the decode leg", async || !stage.seen(&stage.decoders).is_empty()).await;
    drop(client);
    stage.assert_nothing_left("after the client left").await;
    assert!(stage.seen(&stage.prefillers).is_empty());
    // The reservation on the decoder is given back when the grace time is over.
    eventually("no seats are taken", async || {
        let shown = stage.get("/instances").await.json();
        if shown.to_string().contains("\"requests\":1") { Err(shown) } else { Ok(()) }
    })
    .await;
    stage.end().await;
}

#[tokio::test]
async fn client_that_leaves_during_the_answer_strands_nothing() {
    let mut script = script();
    script.engine.tpot_ms = 20.0;
    let stage = Stage::set(script).await;
    let mut body = body(true);
    body["max_tokens"] = 200.into();
    let mut client = begin(stage.gateway, &body).await;
    let mut some = [0; 64];
    assert!(client.read(&mut some).await.unwrap() > 0);
    drop(client);
    stage.assert_nothing_left("after the client left in the middle").await;
    stage.end().await;
}

#[tokio::test]
async fn the_total_time_limit_ends_both_legs_as_a_client_that_leaves_does() {
    let mut script = slow_prefills(700.0);
    script.config.timeout.total_ms = 900;
    let stage = Stage::set(script).await;
    // The call comes late: the limit is over in the middle of the prefill.
    stage.decoders_fail(&Fault::always(FaultKind::Delay(Duration::from_millis(450))));
    let answer = stage.post(super::COMPLETIONS, &body(true).to_string()).await;
    assert_eq!(
        (answer.status, answer.header("x-pd-error")),
        (504, Some("prefill_timeout")),
        "{}",
        answer.text()
    );
    stage.assert_nothing_left("after the time limit").await;
    stage.end().await;
}
