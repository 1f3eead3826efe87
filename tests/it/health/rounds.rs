//! Rounds of looks at engines: one that does not answer is waited for, and no other engine waits
//! with it.

use pd_proxy::sim::{Engine, Fault, FaultKind};

use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;

/// Looks at each of the other engines while one of them owes an answer.
const LOOKS: usize = 5;
/// Limit for one look: longer than any test waits.
const LIMIT_MS: u64 = 600_000;

fn looks(engine: &Engine, path: &str) -> usize {
    engine.seen().iter().filter(|seen| seen.path == path).count()
}

/// Silences one prefiller on `path` and has the others looked at there meanwhile.
async fn others_are_looked_at_meanwhile(script: Script, path: &str) {
    let stage = Stage::set(script).await;
    let silent = &stage.prefillers[0];
    assert!(silent.inject(Fault::always(FaultKind::StallBeforeHead).on_path(path)));
    let before = looks(silent, path);
    eventually("the silent one is asked", async || looks(silent, path) > before).await;
    let owed = looks(silent, path);
    for other in stage.engines().filter(|engine| engine.addr() != silent.addr()) {
        let so_far = looks(other, path);
        eventually("another one is asked again", async || looks(other, path) >= so_far + LOOKS).await;
    }
    // One look may have been answered before the fault counted.
    assert!(looks(silent, path) <= owed + 1, "one question at a time");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_engine_delays_no_probe_of_another() {
    let mut script = Script::default();
    (script.config.health.probe_ms, script.config.health.probe_timeout_ms) = (20, LIMIT_MS);
    others_are_looked_at_meanwhile(script, "/health").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_engine_delays_no_scrape_of_another() {
    let mut script = Script::default();
    (script.config.route.scrape_ms, script.config.timeout.models_ms) = (20, LIMIT_MS);
    others_are_looked_at_meanwhile(script, "/metrics").await;
}
