//! Every decoder fails every request: what that costs the prefillers.

use std::time::Duration;

use pd_proxy::sim::{Fault, FaultKind};

use super::{COMPLETIONS, DIALECTS, failed, in_dialect, steady};

#[tokio::test(start_paused = true)]
async fn decoders_that_fail_all_requests_cost_few_prefills() {
    for spoken in DIALECTS {
        for count in [1, 2, 4] {
            let (memory, _listening) = in_dialect(spoken, count).await;
            assert_eq!(failed(&steady(&memory, Duration::from_secs(1)).await), 0, "{spoken:?}");
            for decoder in &memory.decoders {
                assert!(decoder.inject(Fault::always(FaultKind::Status(500, None)).on_path("/v1/")));
            }
            memory.prefillers.iter().for_each(|it| it.clear_seen());
            let statuses = steady(&memory, Duration::from_secs(10)).await;
            let seen = memory.prefillers.iter().flat_map(|it| it.seen());
            let prefills = seen.filter(|seen| seen.path == COMPLETIONS).count();
            // One trial a second in the end, each on up to three decoders; at first four clients
            // that know nothing. Which decoder is tried is drawn, so that runs differ by a third.
            let most = 12 + 12 * usize::from(count).min(3) + 15 * usize::from(count);
            assert!(
                prefills <= most,
                "{spoken:?}, {count} decoders: {prefills} of {} requests",
                statuses.len()
            );
        }
    }
}
