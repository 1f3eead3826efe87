//! One run: engines and a gateway in memory, in virtual time, and what must be true when all is
//! over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request as HttpRequest, header};
use http_body_util::BodyExt;
use pd_proxy::config::Config;
use pd_proxy::fleet::Role;
use pd_proxy::sim::{Engine, EngineSpec};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tower::ServiceExt;

use super::answer::Answer;
use super::plan::{DECODER_FIRST, Plan, Request, Trouble, Wrong};
use crate::common::memory::Memory;
use crate::common::time::{pass, pass_until};

/// Hand-offs that nobody fetches are held for so long.
const LEASE_MS: u64 = 5_000;
/// The address at which decoders call the gateway, if they do.
pub const GATEWAY: &str = "10.0.2.1:8000";
/// A hand-off is offered so often at most.
const RELEASES: u32 = (LEASE_MS / 200) as u32 + 8;
/// After this everything has ended that has an end: leases, grace, releases, connections that idle.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// Counts the lines of the access log.
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        of.is_event() && of.target() == "pd_proxy::relay::account" && of.fields().field("route").is_some()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs `work` on one thread in virtual time; gives its result and the lines that were logged.
pub fn in_virtual_time<T>(work: impl Future<Output = T>) -> (T, usize) {
    let lines = Arc::new(AtomicUsize::new(0));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let result = if std::env::var_os("CHAOS_LOG").is_some() {
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(std::io::stderr)
            .finish();
        tracing::subscriber::with_default(log, || runtime.block_on(work))
    } else {
        tracing::subscriber::with_default(Lines(lines.clone()), || runtime.block_on(work))
    };
    (result, lines.load(Ordering::Relaxed))
}

fn config(plan: &Plan) -> Config {
    let mut config = Config::default();
    config.dialect.name = plan.spoken.0;
    config.dialect.callback_url = (plan.spoken == DECODER_FIRST).then(|| format!("http://{GATEWAY}"));
    config.engine.lease_ms = LEASE_MS;
    config.engine.abandon_grace_ms = plan.grace_ms;
    config.retry.attempts = plan.attempts;
    config.timeout.connect_ms = 200;
    config.timeout.prefill_ms = plan.prefill_ms;
    config.timeout.first_byte_ms = plan.first_byte_ms;
    config.timeout.answer_ms = plan.first_byte_ms + 1_000;
    config.timeout.gap_ms = plan.gap_ms;
    config.timeout.total_ms = plan.total_ms;
    config
}

pub fn spec(answer_tokens: u32) -> EngineSpec {
    EngineSpec {
        answer_tokens,
        prefill_tokens_per_s: 2_000.0,
        tpot_ms: 10.0,
        slope_ms: 1.0,
        lease_ms: LEASE_MS,
        ..EngineSpec::default()
    }
}

/// One exchange, as far as its client stays.
pub async fn exchange(router: Router, request: &Request, id: String) -> Option<Answer> {
    let http = HttpRequest::post(request.api.path()).header("host", "gateway").header("x-request-id", id);
    let http = http.body(Body::from(request.body()));
    let whole = async {
        let response = router.oneshot(http.unwrap()).await.unwrap();
        let (head, mut body) = response.into_parts();
        let text =
            |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (mut bytes, mut clean) = (Vec::new(), true);
        while let Some(frame) = body.frame().await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => bytes.extend_from_slice(&data),
                Ok(Err(_)) => {}
                Err(_) => clean = false,
            }
        }
        let sse = text(header::CONTENT_TYPE.as_str()).is_some_and(|t| t.starts_with("text/event-stream"));
        let body = String::from_utf8(bytes).unwrap();
        Answer { status: head.status.as_u16(), ours: text("x-pd-error"), sse, body, clean }
    };
    match request.stays_ms {
        None => Some(whole.await),
        Some(ms) => {
            let _ = timeout(Duration::from_millis(ms), whole).await;
            None
        }
    }
}

async fn cause(memory: &Memory, trouble: &Trouble, start: Instant) {
    pass_until(start + Duration::from_millis(trouble.at_ms)).await;
    let engines = if trouble.prefiller { &memory.prefillers } else { &memory.decoders };
    let engine = &engines[trouble.engine];
    match &trouble.what {
        Wrong::Dies => engine.kill().await,
        Wrong::Heals => engine.clear_faults(),
        Wrong::Unreadable => assert!(engine.inject(pd_proxy::sim::Fault::unreadable_kv())),
        Wrong::Fault(what, times) => {
            let fault = pd_proxy::sim::Fault { times: *times, ..pd_proxy::sim::Fault::always(what.clone()) };
            assert!(engine.inject(fault));
        }
    }
}

/// The words of an undisturbed answer, by engines whose answers have a mean length of their own, or
/// 0.
pub async fn undisturbed(request: &Request, answer_tokens: u32) -> String {
    let memory = Memory::set(1, &spec(answer_tokens), Config::default()).await;
    let answer =
        exchange(memory.router.clone(), &Request { stays_ms: None, ..request.clone() }, "calm".into()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text()
}

/// Plays the plan; panics at the first thing that must not be. `right` has the words of each
/// request.
pub async fn play(plan: &Plan, right: &[String]) {
    let spec = EngineSpec { connector: plan.spoken.1, ..spec(plan.answer_tokens) };
    let memory = Memory::uneven(plan.prefillers, plan.decoders, &spec, config(plan)).await;
    let listening = (plan.spoken == DECODER_FIRST).then(|| memory.listen(GATEWAY.parse().unwrap()));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for (at, request) in plan.requests.iter().cloned().enumerate() {
        let router = memory.router.clone();
        clients.spawn(async move {
            pass_until(start + Duration::from_millis(request.at_ms)).await;
            let answer = exchange(router, &request, format!("r{at}")).await;
            assert!(start.elapsed() < Duration::from_secs(30), "it took {:?}: {request:?}", start.elapsed());
            (at, answer)
        });
    }
    futures_util::future::join_all(plan.troubles.iter().map(|trouble| cause(&memory, trouble, start))).await;
    while let Some(client) = clients.join_next().await {
        let (at, answer) = client.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        if let Some(answer) = answer {
            answer.assert_honest(plan.requests[at].api, &right[at]);
        }
    }
    pass(AFTERWARDS).await;
    assert_nothing_left(plan, &memory);
    assert_attempts(plan, &memory);
    drop((listening, memory));
    pass(AFTERWARDS).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
}

fn assert_nothing_left(plan: &Plan, memory: &Memory) {
    let killed = |prefiller: bool, engine: usize| {
        plan.troubles
            .iter()
            .any(|t| t.prefiller == prefiller && t.engine == engine && matches!(t.what, Wrong::Dies))
    };
    for (prefiller, engines) in [(true, &memory.prefillers), (false, &memory.decoders)] {
        for (at, engine) in engines.iter().enumerate() {
            let ledger = engine.ledger();
            // A decoder that is asked first keeps blocks until they are written, which nobody does
            // after some failures (docs/cancellation.md, "What remains").
            let waits = plan.spoken == DECODER_FIRST && !prefiller;
            let pinned = if waits { 0 } else { ledger.pinned_handoffs + ledger.pinned_blocks };
            let held = pinned + ledger.running + ledger.waiting;
            assert!(held == 0 || killed(prefiller, at), "an engine still holds: {ledger:?}");
            assert_eq!(ledger.dead, None, "it died of what it was sent");
        }
    }
    let gateway = memory.app.gateway();
    assert_eq!(gateway.gate.inside(), 0, "passes");
    assert!(!gateway.fleets().first().relay.releases.pending(), "releases");
    assert_eq!(gateway.fleets().first().relay.rendezvous.open_names(), 0, "meetings");
    let scheduler = gateway.fleets().first().relay.fleet.scheduler().clone();
    assert_eq!((scheduler.waiting(), scheduler.booked()), (0, 0), "the board");
    for role in [Role::Prefill, Role::Decode] {
        for instance in gateway.fleets().first().relay.fleet.members(role).iter() {
            let load = instance.load();
            let held = (load.requests(), load.work_tokens(), load.held_tokens());
            assert_eq!(held, (0, 0, 0), "seats on {}", instance.endpoint());
        }
    }
}

/// Times that a request may stand in line for room and be refused as busy again, beside its
/// attempts.
const BUSY_ROUNDS: u32 = 8;

/// Each decode leg that fails may cost a fresh prefill, and each of those so many attempts; each
/// hand-off is offered to decoders that are busy until its lease is over, 0.2 s apart at least
/// where no other one is there.
fn assert_attempts(plan: &Plan, memory: &Memory) {
    let legs = |engines: &[Engine]| {
        let mut by_id: HashMap<String, u32> = HashMap::new();
        for seen in engines.iter().flat_map(Engine::seen).filter(|seen| seen.method == "POST") {
            let id = seen.headers.into_iter().find(|(name, _)| name == "x-request-id").map(|(_, id)| id);
            *by_id.entry(id.unwrap_or_default()).or_default() += 1;
        }
        by_id
    };
    let tries = plan.attempts + BUSY_ROUNDS;
    let prefills = tries * tries;
    for (id, count) in legs(&memory.prefillers) {
        assert!(count <= prefills, "{count} prefills of {id}");
    }
    for (id, count) in legs(&memory.decoders) {
        assert!(count <= tries + RELEASES * prefills, "{count} decodes of {id}");
    }
}
