//! One cell's own gateway and engines on sockets, so that no cell knows of another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pd_proxy::app::App;
use pd_proxy::config::Config;
use pd_proxy::fleet::Role as Side;
use pd_proxy::server::Gateway;
use pd_proxy::sim::{Engine, EngineSpec, Fault, Role};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::oracle::ATTEMPTS;
use super::plan::{Cell, Ill, Leg, Spot};
use crate::common::stage::fast;
use crate::common::time::eventually;

/// A hanging leg is given up after this time in the first round, and later in others; all else has
/// as long as it takes.
const LIMIT_MS: u64 = 1_500;
const FOREVER_MS: u64 = 60_000;
/// Everything ends within this, unless it is left for ever.
const PATIENCE: Duration = Duration::from_secs(10);
/// Far beyond the test: what is freed was freed by somebody's doing.
const LEASE_MS: u64 = 600_000;

/// The state that the queue of releases must have come to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReleaseQueue {
    /// Nothing is in it.
    MustBeOver,
    /// It may hold hand-offs: none of the decoders takes any, and until the lease ends one may come
    /// back.
    MayWait,
}

/// Two prefillers, two decoders and a gateway.
pub struct Rig {
    pub prefillers: Vec<Engine>,
    pub decoders: Vec<Engine>,
    pub address: SocketAddr,
    gateway: Arc<Gateway>,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

/// State of an engine in which the fault finds it at work.
fn spec(cell: &Cell, leg: Leg) -> EngineSpec {
    let spec = EngineSpec { lease_ms: LEASE_MS, ..fast() };
    match (cell.ill, leg) {
        (Ill::Killed | Ill::ClientLeaves(_), Leg::Prefill) if cell.leg == leg => {
            EngineSpec { prefill_tokens_per_s: 20.0, ..spec }
        }
        (Ill::Killed, Leg::Decode) if cell.leg == leg => EngineSpec { tpot_ms: 30.0, ..spec },
        (Ill::KilledAfter, Leg::Decode) => EngineSpec { tpot_ms: 30.0, ..spec },
        (Ill::ClientLeaves(Spot::Event), Leg::Decode) => EngineSpec { tpot_ms: 30.0, ..spec },
        _ => spec,
    }
}

fn config(cell: &Cell, round: u32) -> Config {
    let mut config = Config::default();
    config.dialect.name = pd_proxy::config::DialectName::KvTransfer;
    config.server.host = "127.0.0.1".into();
    config.server.port = 0;
    config.server.drain_ms = 200;
    config.engine.lease_ms = LEASE_MS;
    config.engine.abandon_grace_ms = 100;
    config.retry.attempts = ATTEMPTS;
    config.retry.resume = cell.resume;
    config.retry.budget_floor_per_s = 1_000;
    config.health.probe_ms = 0;
    let limit_ms = if cell.ill.silent() { LIMIT_MS * u64::from(round + 1) } else { FOREVER_MS };
    config.timeout.prefill_ms = limit_ms;
    config.timeout.first_byte_ms = limit_ms;
    config.timeout.answer_ms = limit_ms;
    config.timeout.gap_ms = limit_ms;
    config
}

/// Two engines of one side.
pub async fn engines(role: Role, spec: &EngineSpec) -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..2 {
        let spec = EngineSpec { role, ..spec.clone() };
        engines.push(Engine::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap());
    }
    engines
}

impl Rig {
    pub async fn set(cell: &Cell, round: u32) -> Rig {
        let prefillers = engines(Role::Prefill, &spec(cell, Leg::Prefill)).await;
        let decoders = engines(Role::Decode, &spec(cell, Leg::Decode)).await;
        let mut config = config(cell, round);
        config.fleet.prefill = prefillers.iter().map(|e| e.addr().to_string()).collect();
        config.fleet.decode = decoders.iter().map(|e| e.addr().to_string()).collect();
        let app = App::build(&config).await.unwrap();
        let (address, stop, gateway) = (app.addresses()[0], app.stop(), app.gateway());
        #[expect(clippy::disallowed_methods, reason = "the rig owns it and waits for it in `end`")]
        let serving = tokio::spawn(app.serve());
        Rig { prefillers, decoders, address, gateway, stop, serving }
    }

    pub fn side(&self, leg: Leg) -> &[Engine] {
        match leg {
            Leg::Prefill => &self.prefillers,
            Leg::Decode => &self.decoders,
        }
    }

    /// The first `count` engines of the leg have the fault from now on.
    pub fn inject(&self, leg: Leg, count: usize, fault: &Fault) {
        self.side(leg).iter().take(count).for_each(|engine| assert!(engine.inject(fault.clone())));
    }

    /// Number of times that the first `count` engines of the leg have read the request `id`,
    /// releases left out.
    pub fn read(&self, leg: Leg, count: usize, id: &str) -> u32 {
        let own = |seen: &pd_proxy::sim::ObservedRequest| {
            let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
            let most = body.get("max_tokens").or(body.get("max_output_tokens")).and_then(|n| n.as_u64());
            let release = leg == Leg::Decode && most == Some(1);
            let asked_for_text = seen.path == "/detokenize";
            !release
                && !asked_for_text
                && seen.headers.iter().any(|(name, value)| name == "x-request-id" && value == id)
        };
        let of = |engine: &Engine| engine.seen().iter().filter(|seen| own(seen)).count();
        self.side(leg).iter().take(count).map(of).sum::<usize>() as u32
    }

    /// Engines of the leg that work for somebody.
    pub fn at_work(&self, leg: Leg) -> impl Iterator<Item = &Engine> {
        self.side(leg).iter().filter(|engine| {
            let ledger = engine.ledger();
            ledger.running + ledger.waiting > 0
        })
    }

    /// Hand-offs that engines which are not `killed` keep for somebody.
    pub fn pinned(&self, killed: &[SocketAddr]) -> u32 {
        let alive = self.prefillers.iter().filter(|engine| !killed.contains(&engine.addr()));
        alive.map(|engine| engine.ledger().pinned_handoffs).sum::<usize>() as u32
    }

    /// Work that the gateway or an engine still has; `None` when all is over.
    fn open(&self, killed: &[SocketAddr], releases: ReleaseQueue) -> Option<String> {
        let fleets = self.gateway.fleets();
        let relay = &fleets.first().relay;
        let scheduler = relay.fleet.scheduler();
        let pending = relay.releases.pending() && releases == ReleaseQueue::MustBeOver;
        let inside = (self.gateway.gate.inside(), pending, scheduler.waiting(), scheduler.booked());
        if inside != (0, false, 0, 0) {
            return Some(format!("inside, releases, waiting, booked: {inside:?}"));
        }
        for side in [Side::Prefill, Side::Decode] {
            for instance in relay.fleet.members(side).iter() {
                let load = instance.load();
                let held = (load.requests(), load.work_tokens(), load.held_tokens());
                if held != (0, 0, 0) {
                    return Some(format!("{} seats: {held:?}", side.name()));
                }
            }
        }
        let engines = self.prefillers.iter().chain(&self.decoders).filter(|e| !killed.contains(&e.addr()));
        let busy = engines.map(Engine::ledger).find(|l| l.running + l.waiting > 0 || l.dead.is_some());
        busy.map(|ledger| format!("an engine: {ledger:?}"))
    }

    /// Waits until nobody does anything any more and `right` holds of the hand-offs that are kept;
    /// gives their number, and what is left.
    pub async fn settled(
        &self,
        killed: &[SocketAddr],
        releases: ReleaseQueue,
        right: impl Fn(u32) -> bool,
    ) -> (u32, Option<String>) {
        comes(|| self.open(killed, releases).is_none() && right(self.pinned(killed))).await;
        (self.pinned(killed), self.open(killed, releases))
    }

    /// Ends all faults of the decoders and waits for the releases that waited for one; gives what
    /// is left.
    pub async fn released(&self) -> Option<String> {
        self.decoders.iter().for_each(Engine::clear_faults);
        comes(|| self.open(&[], ReleaseQueue::MustBeOver).is_none()).await;
        self.open(&[], ReleaseQueue::MustBeOver)
    }

    pub async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

/// Waits for this; false if it never comes. What that means is for the oracle to say.
pub async fn comes(holds: impl Fn() -> bool) -> bool {
    timeout(PATIENCE, eventually("it comes", async || holds())).await.is_ok()
}
