//! Clients that leave at each point: no decoder is left waiting for KV that will not come.

use std::time::Duration;

use pd_proxy::sim::{Engine, Fault, What};
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use super::{begin, body, script, slow_prefills, stranded, until};
use crate::common::stage::Stage;

fn decoders_wait(stage: &Stage) -> bool {
    stage.decoders.iter().any(|engine| engine.ledger().waiting == 1)
}

#[tokio::test]
async fn a_call_that_comes_after_the_client_has_left_is_answered_with_a_prefill() {
    let stage = Stage::set(script()).await;
    stage.decoders_fail(&Fault::always(What::Delay(Duration::from_millis(250))));
    let client = begin(stage.gateway, &body(true)).await;
    until("the decode leg", || !stage.seen(&stage.decoders).is_empty()).await;
    drop(client);
    until("the call", || stage.decoders.iter().any(|engine| !engine.heard().is_empty())).await;
    assert_eq!(stage.seen(&stage.prefillers).len(), 1);
    assert_eq!(stage.decoders.iter().flat_map(Engine::heard).collect::<Vec<_>>(), [200]);
    stage.assert_nothing_left("after the client left before the call").await;
    stage.end().await;
}

#[tokio::test]
async fn a_prefill_that_has_begun_ends_though_the_client_has_left() {
    // Longer than the grace time: the decoder's blocks come back with the last layer only.
    let stage = Stage::set(slow_prefills(1_200.0)).await;
    let client = begin(stage.gateway, &body(true)).await;
    until("the prefill", || stage.prefillers.iter().any(|engine| engine.ledger().running == 1)).await;
    drop(client);
    sleep(Duration::from_millis(700)).await;
    assert!(decoders_wait(&stage), "the decoder is not hung up on before it has its KV");
    stage.assert_nothing_left("after the prefill").await;
    assert_eq!(stranded(&stage), 0);
    let answered = stage.get("/metrics").await.text();
    assert!(answered.contains("client_gone"), "it is settled as what it was");
    stage.end().await;
}

#[tokio::test]
async fn a_decoder_that_does_not_call_is_hung_up_on_after_the_grace_time() {
    let stage = Stage::set(script()).await;
    stage.decoders_fail(&Fault::always(What::StallBeforeHead));
    let client = begin(stage.gateway, &body(true)).await;
    until("the decode leg", || !stage.seen(&stage.decoders).is_empty()).await;
    drop(client);
    stage.assert_nothing_left("after the client left").await;
    assert!(stage.seen(&stage.prefillers).is_empty());
    // The seat on the decoder is given back when the grace time is over.
    let start = std::time::Instant::now();
    loop {
        let shown = stage.get("/instances").await.json();
        let busy = shown.to_string().contains("\"requests\":1");
        if !busy {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{shown}");
        sleep(Duration::from_millis(20)).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn who_leaves_during_the_answer_leaves_nothing() {
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
    stage.decoders_fail(&Fault::always(What::Delay(Duration::from_millis(450))));
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
