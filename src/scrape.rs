//! Asks engines how loaded they are, again and again: several gateways in front of one fleet have no other way to learn
//! of each other, and decoders say how much KV fits.
//!
//! What counts is what an engine has beyond what this gateway gave it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use http::HeaderValue;

use crate::dialect::engine_load::{self, EngineLoad};
use crate::fleet::{Instance, Role};
use crate::intake::exchange::{authorized, exchange, url};
use crate::relay::Relay;

/// The largest answer to `GET /metrics`.
const METRICS_BYTES: usize = 32 << 20;
/// Engines that are asked at once.
const AT_ONCE: usize = 16;

/// Who asks, and how.
pub struct Scraper {
    /// The engines.
    pub relay: Arc<Relay>,
    /// The client for control calls.
    pub client: reqwest::Client,
    /// Towards engines.
    pub authorization: Option<HeaderValue>,
    /// Between two rounds.
    pub pause: Duration,
    /// One answer.
    pub time: Duration,
}

impl Scraper {
    /// Asks for ever.
    pub async fn run(self) {
        loop {
            tokio::time::sleep(self.pause).await;
            let fleet = &self.relay.fleet;
            let engines: Vec<Arc<Instance>> =
                [Role::Prefill, Role::Decode].iter().flat_map(|role| fleet.members(*role).to_vec()).collect();
            let this = &self;
            let asked = stream::iter(engines).map(|engine| async move {
                let load = this.ask(&engine).await;
                this.told(&engine, load);
            });
            asked.buffer_unordered(AT_ONCE).collect::<()>().await;
        }
    }

    async fn ask(&self, engine: &Instance) -> Option<EngineLoad> {
        let call =
            authorized(self.client.get(url(engine.endpoint(), "/metrics")), self.authorization.as_ref());
        let (status, body) = exchange(call, self.time, METRICS_BYTES).await.ok()?;
        status.is_success().then(|| engine_load::read(&String::from_utf8_lossy(&body))).flatten()
    }

    /// An engine that does not answer is not taken to be busy for others.
    fn told(&self, engine: &Instance, load: Option<EngineLoad>) {
        let load = load.unwrap_or_default();
        let ours = f64::from(engine.load().requests());
        let foreign = (load.running + load.waiting - ours).max(0.0);
        match engine.role() {
            Role::Prefill => self.relay.fleet.desk().foreign(engine.id(), foreign),
            Role::Decode => {
                let used = load.kv_used * load.kv_capacity_tokens as f64;
                let foreign_tokens = (used - engine.load().work_tokens() as f64).max(0.0);
                engine.told(load.kv_capacity_tokens, foreign, foreign_tokens);
            }
        }
    }
}
