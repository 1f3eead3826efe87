//! A stage: simulated prefillers and decoders, and a gateway in front of them, all in this process.

use std::net::SocketAddr;

use pd_proxy::app::App;
use pd_proxy::config::{Config, DialectName};
use pd_proxy::sim::{Engine, EngineSpec, Fault, Ledger, ObservedRequest, Role};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::client::{self, Raw};
use super::place;
use super::time::eventually;

/// Engines and a gateway.
pub struct Stage {
    pub prefillers: Vec<Engine>,
    pub decoders: Vec<Engine>,
    pub gateway: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

/// Settings of a stage.
pub struct Script {
    pub prefillers: usize,
    pub decoders: usize,
    /// The specification that all engines share.
    pub engine: EngineSpec,
    /// Changes of the default configuration.
    pub config: Config,
}

impl Default for Script {
    fn default() -> Script {
        let mut config = Config::default();
        config.server.host = "127.0.0.1".into();
        config.server.port = 0;
        config.server.drain_ms = 500;
        config.timeout.connect_ms = 1_000;
        config.timeout.tell_ms = 20;
        // Tests break everything at once; those of the budget set it.
        config.retry.budget_floor_per_s = 1_000;
        // Scripted faults are for requests: a probe would use them up.
        config.health.probe_ms = 0;
        // Tests that take the last engine away want to hear at once that it is gone.
        config.fleet.empty_wait_ms = 0;
        // Nor are engines asked what they speak; tests of that say so.
        config.dialect.name = DialectName::KvTransfer;
        Script { prefillers: 2, decoders: 2, engine: fast(), config }
    }
}

impl Script {
    /// The same, with engines that take the next request whatever the last ones came to.
    pub fn tried_at_once(mut self) -> Script {
        self.config.health.rest_ms = 1;
        self.config.health.failure_percent = 100;
        self
    }
}

/// An engine that takes no time.
pub fn fast() -> EngineSpec {
    EngineSpec { prefill_tokens_per_s: f64::INFINITY, tpot_ms: 0.0, slope_ms: 0.0, ..EngineSpec::default() }
}

/// An engine slow enough that a client can leave at every stage: 30 ms of prefill for 100 tokens, 5
/// ms per token.
pub fn slow() -> EngineSpec {
    EngineSpec { prefill_tokens_per_s: 3_000.0, tpot_ms: 5.0, ..EngineSpec::default() }
}

impl Stage {
    /// Two fast prefillers, two fast decoders.
    pub async fn new() -> Stage {
        Stage::set(Script::default()).await
    }

    /// As the script says.
    pub async fn set(script: Script) -> Stage {
        Stage::set_with(script, None).await
    }

    /// The same, with engines that have a fault before the gateway comes.
    pub async fn set_failing(script: Script, fault: &Fault) -> Stage {
        Stage::set_with(script, Some(fault)).await
    }

    async fn set_with(script: Script, fault: Option<&Fault>) -> Stage {
        // Whether they are up or not: nobody else answers in their place.
        let host = place::own_host();
        let start = async |role, count| {
            let mut engines = Vec::new();
            for _ in 0..count {
                let spec = EngineSpec { role, ..script.engine.clone() };
                engines.push(Engine::start(spec, host).await.expect("an engine starts"));
            }
            engines
        };
        let prefillers = start(Role::Prefill, script.prefillers).await;
        let decoders = start(Role::Decode, script.decoders).await;
        let mut config = script.config;
        config.fleet.prefill = prefillers.iter().map(|e| e.addr().to_string()).collect();
        config.fleet.decode = decoders.iter().map(|e| e.addr().to_string()).collect();
        for engine in prefillers.iter().chain(&decoders) {
            assert!(fault.is_none_or(|fault| engine.inject(fault.clone())));
        }
        // A simulated bootstrap server listens where its engine does.
        config.dialect.bootstraps = prefillers.iter().map(|e| format!("{0}={0}", e.addr())).collect();
        let app = App::build(&config).await.expect("the gateway starts");
        let (gateway, stop) = (app.addresses()[0], app.stop());
        #[expect(clippy::disallowed_methods, reason = "the stage owns it and waits for it in `end`")]
        let serving = tokio::spawn(app.serve());
        Stage { prefillers, decoders, gateway, stop, serving }
    }

    /// One exchange with the gateway.
    pub async fn send(&self, request: &[u8]) -> Raw {
        client::send(self.gateway, request).await
    }

    /// Sends a POST request.
    pub async fn post(&self, path: &str, body: &str) -> Raw {
        self.send(&client::post(path, body)).await
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str) -> Raw {
        self.send(&client::get(path)).await
    }

    pub fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.prefillers.iter().chain(&self.decoders)
    }

    /// The same fault on every prefiller.
    pub fn prefillers_fail(&self, fault: &Fault) {
        self.prefillers.iter().for_each(|e| assert!(e.inject(fault.clone())));
    }

    /// The same fault on every decoder.
    pub fn decoders_fail(&self, fault: &Fault) {
        self.decoders.iter().for_each(|e| assert!(e.inject(fault.clone())));
    }

    pub fn heal(&self) {
        self.engines().for_each(Engine::clear_faults);
    }

    /// The requests that engines of one side received on generating routes, oldest first within
    /// each engine.
    pub fn seen(&self, engines: &[Engine]) -> Vec<ObservedRequest> {
        engines
            .iter()
            .flat_map(Engine::seen)
            .filter(|s| s.method == "POST" && !s.path.starts_with("/sim") && s.path != "/detokenize")
            .collect()
    }

    pub fn forget(&self) {
        self.engines().for_each(Engine::clear_seen);
    }

    /// Waits until no engine runs anything or holds anything for anybody, and says what is left
    /// when that never comes.
    pub async fn assert_nothing_left(&self, when: &str) {
        let busy = |l: &Ledger| l.pinned_handoffs + l.pinned_blocks + l.running + l.waiting > 0;
        // One attempt at a release may take 10 s on a busy machine: leases of such tests are
        // longer.
        eventually(format!("{when}: nothing is left"), async || {
            let ledgers: Vec<Ledger> = self.engines().map(Engine::ledger).collect();
            if ledgers.iter().any(busy) { Err(ledgers) } else { Ok(()) }
        })
        .await;
    }

    /// Asks the gateway for its health a few times: whatever it had to do before that no clock and
    /// no engine holds up, it has done.
    pub async fn let_it_work(&self) {
        for _ in 0..3 {
            assert_eq!(self.get("/health").await.status, 200);
        }
    }

    /// No engine died of what it was sent.
    pub fn assert_all_alive(&self, when: &str) {
        for engine in self.engines() {
            assert_eq!(engine.ledger().dead, None, "{when}: {}", engine.addr());
        }
    }

    /// Hand-offs whose lease ended.
    pub fn expired(&self) -> u64 {
        self.prefillers.iter().map(|e| e.ledger().expired).sum()
    }

    /// Shuts everything down.
    pub async fn end(self) {
        self.stop.cancel();
        self.serving.await.expect("the gateway did not panic");
        for engine in self.prefillers.into_iter().chain(self.decoders) {
            engine.stop().await;
        }
    }
}
