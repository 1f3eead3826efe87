//! A prefiller and a decoder that stop in the same moment, as the two on one host do.

use std::time::Duration;

use futures_util::future::join_all;
use pd_proxy::sim::{Fault, FaultKind};
use tokio::time::Instant;

use super::{DIALECTS, ask, in_dialect};
use crate::common::memory::Memory;
use crate::common::time::pass;

/// So many clients until `end`; the numbers of requests and of those that failed.
async fn load(memory: &Memory, clients: usize, end: Instant) -> (usize, usize) {
    let all = join_all((0..clients).map(|client| async move {
        let (mut made, mut failed) = (0, 0);
        while Instant::now() < end {
            let status = ask(memory, client * 100_000 + made).await;
            failed += usize::from(status != 200);
            made += 1;
            pass(Duration::from_millis(50)).await;
        }
        (made, failed)
    }));
    all.await.iter().fold((0, 0), |(made, failed), one| (made + one.0, failed + one.1))
}

#[tokio::test(start_paused = true)]
async fn a_pair_that_stops_at_once_costs_no_request_in_any_dialect() {
    for spoken in DIALECTS {
        for clients in [2, 6] {
            let (memory, _listening) = in_dialect(spoken, 3).await;
            load(&memory, clients, Instant::now() + Duration::from_secs(2)).await;
            for engine in [&memory.prefillers[0], &memory.decoders[0]] {
                assert!(engine.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
            }
            let (made, failed) = load(&memory, clients, Instant::now() + Duration::from_secs(12)).await;

            assert_eq!(failed, 0, "{spoken:?}, {clients} clients: {failed} of {made} failed");
        }
    }
}
