//! Nothing is prefilled for nobody: what requests do while no decoder could take them, and what is
//! released when one is back.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::json;

use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::{eventually, pace};
use crate::dialects::{self, EVERY, Spoken};
use crate::health::member;

const PATH: &str = "/v1/completions";
/// Requests that come while no decoder is there.
const MEANWHILE: usize = 24;

/// One prefiller, one decoder, and leases that outlive a decoder's absence.
fn script(spoken: Spoken) -> Script {
    let engine = EngineSpec { lease_ms: 30_000, connector: spoken.1, ..fast() };
    let mut script = Script { prefillers: 1, decoders: 1, engine, ..dialects::script(spoken) };
    script.config.engine.lease_ms = 30_000;
    // Nothing here is about deadlines.
    script.config.timeout.prefill_ms = 30_000;
    script.config.timeout.first_byte_ms = 30_000;
    script.config.timeout.answer_ms = 30_000;
    script
}

fn body(n: usize) -> String {
    json!({"model": "sim", "prompt": format!("{n} is a prompt of a few blocks ").repeat(6), "max_tokens": 4})
        .to_string()
}

fn prompts(stage: &Stage, engines: &[Engine]) -> usize {
    stage.seen(engines).iter().filter(|seen| seen.path.starts_with("/v1/")).count()
}

fn code(answer: &Raw) -> (u16, Option<&str>) {
    (answer.status, answer.header("x-pd-error"))
}

/// Prefill first, both at once, and bound to each other: the dialects in which a prefiller would
/// work before a decoder is asked.
#[tokio::test]
async fn no_decoder_no_prefill_in_every_dialect_and_service_is_back_at_once() {
    let pool = (DialectName::Pool, Connector::Pool);
    for spoken in EVERY.into_iter().chain([pool]) {
        let stage = Stage::set(script(spoken)).await;
        assert_eq!(stage.post(PATH, &body(0)).await.status, 200, "{spoken:?}");
        stage.decoders_fail(&Fault::always(FaultKind::Refuse));
        stage.forget();
        // Those whose connections were reset find out first, and then those that can't connect.
        let is_known = async || code(&stage.post(PATH, &body(1)).await) == (503, Some("no_decoder"));
        eventually(format!("{spoken:?}: nobody is there"), is_known).await;
        let spent = prompts(&stage, &stage.prefillers);
        // On a busy machine some come late enough to be let through, to find out.
        let mut trials = 0;
        for n in 2..MEANWHILE {
            let answer = stage.post(PATH, &body(n)).await;
            if answer.status == 502 {
                trials += 1;
                continue;
            }
            assert_eq!(code(&answer), (503, Some("no_decoder")), "{spoken:?}: {}", answer.text());
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        assert!(trials < MEANWHILE / 3, "{spoken:?}: {trials} requests were let through");
        let several = json!({"model": "sim", "prompt": ["a", "b"], "max_tokens": 2}).to_string();
        let answer = stage.post(PATH, &several).await;
        trials += usize::from(answer.status == 502);
        if !matches!(answer.status, 400 | 502) {
            assert_eq!(code(&answer), (503, Some("no_decoder")), "{spoken:?}: {}", answer.text());
        }
        let for_nobody = prompts(&stage, &stage.prefillers) - spent;
        assert!(for_nobody <= trials, "{spoken:?}: {for_nobody} prefilled for nobody in {trials} trials");
        stage.heal();
        let back = async || stage.post(PATH, &body(100)).await.status == 200;
        eventually(format!("{spoken:?} is back"), back).await;
        stage.assert_nothing_left(&format!("{spoken:?} after the decoder is back")).await;
        assert_eq!(stage.expired(), 0, "{spoken:?}: what was handed over is released, not left to its lease");
        stage.end().await;
    }
}

/// No request comes that could find out: a hand-off that waits for its release does.
#[tokio::test]
async fn release_waits_for_a_decoder_and_brings_it_back() {
    let stage = Stage::set(script(EVERY[0])).await;
    stage.decoders_fail(&Fault::always(FaultKind::Refuse));
    assert_eq!(stage.post(PATH, &body(1)).await.status, 502);
    assert_eq!(stage.prefillers[0].ledger().pinned_handoffs, 1, "it is kept for as long as its lease");
    // Longer than a release was tried before.
    pace(Duration::from_millis(500)).await;
    stage.forget();
    stage.heal();
    stage.assert_nothing_left("after the decoder is back").await;
    assert_eq!((stage.expired(), prompts(&stage, &stage.decoders)), (0, 1));
    eventually("it counts as back", async || {
        member(stage.gateway, "decode", stage.decoders[0].addr()).await["breaker"] == "closed"
    })
    .await;
    stage.end().await;
}

/// A decoder that answers probes and fails requests is found out about by one request at a time,
/// farther and farther apart.
#[tokio::test]
async fn decoder_that_fails_all_requests_costs_few_prefills() {
    let mut script = script((DialectName::Pool, Connector::Pool));
    script.config.retry.attempts = 1;
    script.config.health.failures = 1;
    script.config.health.rest_ms = 500;
    let stage = Stage::set(script).await;
    stage.decoders_fail(&Fault::always(FaultKind::Status(500, None)).on_path("/v1/"));
    assert_eq!(code(&stage.post(PATH, &body(60)).await).0, 502);
    stage.forget();
    let begun = Instant::now();
    let all = join_all((0..60).map(|n| {
        let stage = &stage;
        async move {
            pace(Duration::from_millis(n as u64 * 10)).await;
            code(&stage.post(PATH, &body(n)).await).0
        }
    }))
    .await;
    assert!(all.iter().all(|status| *status == 502 || *status == 503), "{all:?}");
    let spent = prompts(&stage, &stage.prefillers);
    // Trials are 50, 100, 200, 400 and 800 ms apart, and then a second.
    let trials = 6 + begun.elapsed().as_secs();
    assert!(spent as u64 <= trials, "{spent} prefills for nobody, of at most {trials} trials");
    stage.heal();
    eventually("it is back", async || stage.post(PATH, &body(100)).await.status == 200).await;
    stage.end().await;
}

/// vLLM answers 503 when its queue is full: requests wait before their prefill, and are served when
/// there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_decoders_are_waited_for_before_the_prefill() {
    let spoken = [EVERY[0], EVERY[1], EVERY[3], (DialectName::Pool, Connector::Pool)];
    join_all(spoken.map(wait_for_busy_decoders)).await;
}

async fn wait_for_busy_decoders(spoken: Spoken) {
    let stage = Stage::set(script(spoken)).await;
    stage.decoders_fail(&Fault::always(FaultKind::Status(503, None)).on_path("/v1/"));
    assert_eq!(code(&stage.post(PATH, &body(0)).await), (503, Some("overloaded")), "{spoken:?}");
    stage.forget();
    let waiting = join_all((1..40).map(|n| {
        let stage = &stage;
        async move { stage.post(PATH, &body(n)).await.status }
    }));
    let refused = || prompts(&stage, &stage.decoders);
    let heal = async {
        eventually("some were refused", async || refused() >= 3).await;
        stage.heal();
        (prompts(&stage, &stage.prefillers), refused())
    };
    let (statuses, (prefilled, refused)) = tokio::join!(waiting, heal);
    assert!(prefilled <= refused + 2, "{spoken:?}: {prefilled} prefills, {refused} refusals");
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert!(served + refused >= 39, "{spoken:?}: {served} of 39 were served, {statuses:?}");
    stage.assert_nothing_left(&format!("{spoken:?} at the end")).await;
    stage.end().await;
}

/// A request is answered by the engines that `change` adds while it waits.
async fn assert_waits_for(stage: &Stage, change: &str) {
    let request = body(1);
    let comes = async {
        let waits = async || {
            let shown = client::send(stage.gateway, &client::get("/status.json")).await.json();
            shown["requests"]["waiting"] == json!(1)
        };
        eventually("the request is counted as waiting", waits).await;
        stage.post("/instances/add", change).await.status
    };
    let (answer, added) = tokio::join!(stage.post(PATH, &request), comes);
    assert_eq!((answer.status, added), (200, 200), "{change}: {}", answer.text());
}

#[tokio::test]
async fn request_waits_for_a_decoder_in_the_place_of_the_last_one() {
    let mut script = script(EVERY[0]);
    script.config.fleet.empty_wait_ms = 10_000;
    let stage = Stage::set(script).await;
    for role in ["decode", "prefill"] {
        let engines = if role == "decode" { &stage.decoders } else { &stage.prefillers };
        let change = json!({"type": role, "instances": engines[0].addr().to_string()}).to_string();
        assert_eq!(stage.post("/instances/remove", &change).await.status, 200);
        assert_waits_for(&stage, &change).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn request_waits_for_the_first_decoder_of_a_gateway_that_has_just_begun() {
    let mut script = Script { decoders: 0, ..script(EVERY[0]) };
    script.config.fleet.empty_wait_ms = 10_000;
    let stage = Stage::set(script).await;
    let spec = EngineSpec { role: Role::Decode, ..fast() };
    let first = Engine::start(spec, (std::net::Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let change = json!({"type": "decode", "instances": first.addr().to_string()}).to_string();
    assert_waits_for(&stage, &change).await;
    stage.end().await;
    first.stop().await;
}

/// Requests that wait for a prefiller.
async fn waiting(stage: &Stage) -> u64 {
    stage.post("/debug/route", &body(0)).await.json()["waiting"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_line_wait_for_a_prefiller_in_the_place_of_the_last_one() {
    let mut script = script(EVERY[0]);
    script.engine = EngineSpec { prefill_tokens_per_s: 1_000.0, ..script.engine };
    script.prefillers = 2;
    script.config.fleet.empty_wait_ms = 10_000;
    (script.config.route.batch_tokens, script.config.route.open_ms) = (0, 1);
    let stage = Stage::set(script).await;
    let order = |at: usize| json!({"type": "prefill", "instances": stage.prefillers[at].addr().to_string()});
    let give = async |path, at| stage.post(path, &order(at).to_string()).await.status;
    assert_eq!(give("/instances/remove", 1).await, 200);
    for round in 0..8 {
        let requests: Vec<String> = (0..12).map(|n| body(100 * round + n)).collect();
        let answers = join_all(requests.iter().map(|request| stage.post(PATH, request)));
        let swap = async {
            eventually("they are in line", async || waiting(&stage).await >= 6).await;
            let removed = give("/instances/remove", round % 2).await;
            (removed, give("/instances/add", (round + 1) % 2).await)
        };
        let (answers, swapped) = tokio::join!(answers, swap);
        assert_eq!(swapped, (200, 200));
        let refused: Vec<_> = answers.iter().filter(|it| it.status != 200).map(code).collect();
        assert!(refused.is_empty(), "round {round}: {refused:?}");
    }
    stage.end().await;
}

#[tokio::test]
async fn prefiller_that_hands_nothing_over_is_counted() {
    let stage = Stage::set(Script { decoders: 1, ..Script::default() }).await;
    assert!(stage.prefillers[0].inject(Fault::always(FaultKind::BadHandoff("null".into()))));
    for n in 0..12 {
        assert_eq!(stage.post(PATH, &body(n)).await.status, 200);
    }
    let mute = stage.seen(&stage.prefillers[..1]).len();
    let counted = async |at: usize| {
        member(stage.gateway, "prefill", stage.prefillers[at].addr()).await["without_handoff"].clone()
    };
    assert_eq!((counted(0).await, counted(1).await), (json!(mute), json!(0)));
    let metrics = client::send(stage.gateway, &client::get("/metrics")).await.text();
    let name = "pd_proxy_prefills_without_handoff_total";
    let line = format!("{name}{{role=\"prefill\",engine=\"{}\"}} {mute}", stage.prefillers[0].addr());
    assert!(mute > 0 && metrics.contains(&line), "{line} in {metrics}");
    stage.end().await;
}
