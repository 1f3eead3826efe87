//! Scrapes engines' own load at intervals. Several gateways in front of one fleet learn of each
//! other's load in no other way, and decoders report how much KV fits.
//!
//! Only the load beyond what this gateway gave an engine counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::control::rounds::Rounds;
use crate::dialect::engine_load::{self, EngineLoad};
use crate::fleet::{ExternalLoad, Fleet, Instance, InstanceId, Role};
use crate::tokenization::exchange::{authorized, exchange, url};
use crate::util::swap::Live;

/// The largest answer to `GET /metrics`.
const METRICS_BYTES: usize = 32 << 20;
/// Engines that are asked at once.
const AT_ONCE: usize = 16;
/// Engines that are asked at once beside these, of those that did not answer the last time.
const SILENT_AT_ONCE: usize = 4;

/// The loop that scrapes engines' loads, with its client.
pub struct Scraper {
    /// Engines that are asked, and whose loads are told.
    pub fleet: Arc<Fleet>,
    /// The client for control calls.
    pub client: reqwest::Client,
    /// `Authorization` header for engines.
    pub authorization: Option<HeaderValue>,
    /// Limit for one question.
    pub time: Arc<Live<Duration>>,
    /// Between two rounds.
    pub pause: Duration,
}

impl Scraper {
    /// Asks for ever.
    pub async fn run(self) {
        let (scraper, mut rounds) = (Arc::new(self), Rounds::new(AT_ONCE, SILENT_AT_ONCE));
        loop {
            tokio::time::sleep(scraper.pause).await;
            rounds.take_answers();
            let both = [Role::Prefill, Role::Decode];
            let engines: Vec<Arc<Instance>> =
                both.iter().flat_map(|role| scraper.fleet.members(*role).to_vec()).collect();
            let members: HashSet<InstanceId> = engines.iter().map(|engine| engine.id()).collect();
            rounds.retain(|id| members.contains(id));
            for engine in engines {
                let scraper = scraper.clone();
                rounds.ask(engine.id(), async move {
                    let loads = scraper.ask(&engine).await;
                    scraper.record_loads(&engine, loads.as_deref().unwrap_or_default());
                    loads.is_some()
                });
            }
        }
    }

    /// The loads of an engine's ranks; `None` if it does not answer.
    async fn ask(&self, engine: &Instance) -> Option<Vec<EngineLoad>> {
        let call =
            authorized(self.client.get(url(engine.endpoint(), "/metrics")), self.authorization.as_ref());
        match exchange(call, *self.time.now(), METRICS_BYTES).await {
            Ok((status, body)) if status.is_success() => {
                Some(engine_load::read(&String::from_utf8_lossy(&body)))
            }
            Ok(_) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// An engine that does not answer is not taken to be busy for others.
    fn record_loads(&self, engine: &Instance, loads: &[EngineLoad]) {
        for rank in engine.ranks() {
            let these = match rank {
                None => loads,
                Some(rank) => loads.get(usize::from(rank)..=usize::from(rank)).unwrap_or_default(),
            };
            let ours = engine.load_of(rank);
            let all: f64 = these.iter().map(|load| load.running + load.waiting).sum();
            // An engine does not count a request that it has answered and only holds blocks of.
            let requests = (all - f64::from(ours.working())).max(0.0);
            match engine.role() {
                Role::Prefill => self.fleet.scheduler().set_external_requests(engine.id(), rank, requests),
                // By its load here alone.
                Role::Encode => {}
                Role::Decode => {
                    let used: f64 = these.iter().map(EngineLoad::kv_tokens).sum();
                    let tokens = (used - ours.work_tokens() as f64).max(0.0);
                    let kv_capacity_tokens = these.iter().map(|load| load.kv_capacity_tokens).sum();
                    engine.set_external_load(rank, ExternalLoad { kv_capacity_tokens, requests, tokens });
                }
            }
        }
    }
}
