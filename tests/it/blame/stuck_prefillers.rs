//! Prefillers that take requests and do nothing with them.

use std::time::Duration;

use futures_util::future::join_all;
use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Fault, FaultKind};
use tokio::time::Instant;

use super::{COMPLETIONS, DIALECTS, breakers, in_dialect, post};
use crate::common::memory::Memory;
use crate::common::time::pass;

/// Clients that ask one thing after the other for so long.
async fn ask(memory: &Memory, clients: usize, time: Duration) {
    let end = Instant::now() + time;
    join_all((0..clients).map(async |client| {
        for n in 0.. {
            let prompt = format!("client {client} asks {n} {}", "in some words ".repeat(8));
            let body = format!(r#"{{"model":"sim","prompt":"{prompt}","max_tokens":3,"stream":true}}"#);
            let (status, text) = post(memory, COMPLETIONS, body).await;
            assert_eq!(status, 200, "{text}");
            pass(Duration::from_millis(200)).await;
            if Instant::now() >= end {
                return;
            }
        }
    }))
    .await;
}

fn tries(memory: &Memory) -> usize {
    memory.prefillers[0].seen().iter().filter(|seen| seen.path == COMPLETIONS).count()
}

#[tokio::test(start_paused = true)]
async fn a_prefiller_that_does_nothing_rests_in_every_dialect() {
    let mut wrong = Vec::new();
    for spoken in &DIALECTS {
        for clients in [1, 4] {
            let (memory, _listening) = in_dialect(*spoken, 2).await;
            ask(&memory, clients, Duration::from_secs(2)).await;
            let before = tries(&memory);
            assert!(memory.prefillers[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
            ask(&memory, clients, Duration::from_secs(75)).await;
            let tried = tries(&memory) - before;
            let states = (breakers(&memory, Role::Prefill), breakers(&memory, Role::Decode));
            let (prefillers, decoders) = &states;
            let is_right = prefillers[0] != State::Closed
                && prefillers[1] == State::Closed
                && *decoders == [State::Closed; 2];
            if !is_right {
                wrong.push(format!("{spoken:?}, {clients} clients: {tried} tries, {states:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
