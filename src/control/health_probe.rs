//! Probes of engines' health, so that no client's request has to find a dead one. Engines in
//! cool-down are probed to end it, and engines without traffic for a while to find failures.
//!
//! The start time of an engine's process and its number of data-parallel ranks come from its
//! metrics. They are read once, and again after it was out of reach.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use http::{HeaderValue, Method, StatusCode};

use crate::control::rounds::Rounds;
use crate::dialect::engine_load;
use crate::endpoint::Endpoint;
use crate::fleet::health::State;
use crate::fleet::health::key::is_of_the_key;
use crate::fleet::{Fleet, Instance, ProbeAnswer, Role, RoleOutlook, Sign};
use crate::tokenization::exchange::{ExchangeError, authorized, exchange, try_exchange, url};
use crate::tokenization::facts::{self, ListReply};
use crate::util::rng;

/// Pause between looks at which probes are due.
const LOOK: Duration = Duration::from_millis(100);
/// Longest pause between probes of an engine in cool-down.
const RESTING_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between probes of such an engine while no engine of its role accepts requests.
const LAST_RESORT_PAUSE: Duration = Duration::from_millis(250);
/// Most probes at the same time.
const AT_ONCE: usize = 64;
/// Most probes beside these, of engines that did not answer the last one.
const SILENT_AT_ONCE: usize = 32;
/// Route that tells whether elastic expert parallelism is scaling the engine.
const SCALING_PATH: &str = "/is_scaling_elastic_ep";
/// The largest answer to a probe.
const ANSWER_BYTES: usize = 1 << 20;
/// The largest answer to `GET /metrics`.
const METRICS_BYTES: usize = 32 << 20;

/// The loop that probes engines, with its client and limits.
pub struct Prober {
    /// Engines that are probed, and whose health is told.
    pub fleet: Arc<Fleet>,
    /// The client for control calls.
    pub client: reqwest::Client,
    /// `Authorization` header for engines.
    pub authorization: Option<HeaderValue>,
    /// Path that is asked for.
    pub path: String,
    /// Between two probes of one engine.
    pub every: Duration,
    /// Limit for one probe.
    pub time: Duration,
    /// Pause between readings of an engine's list of models; `None` = it is read when something
    /// shows that it may have changed.
    pub models_every: Option<Duration>,
}

/// One engine, in all of its roles.
struct ProbeTarget {
    roles: Vec<Arc<Instance>>,
}

/// Outcomes of a probe, with the text of what failed.
#[derive(Debug, PartialEq, Eq)]
enum ProbeOutcome {
    Alive,
    /// It answers that it is not well.
    Dead(String),
    /// Nobody listens there.
    Refused(String),
    /// It does not answer in time, or breaks off.
    Silent(String),
}

/// Time of the next probe of each engine.
#[derive(Debug, Default)]
struct ProbeSchedule(HashMap<Endpoint, Instant>);

/// The same of the lists of models.
type ListSchedule = ProbeSchedule;

impl Prober {
    /// Probes for ever. A slow engine does not delay the probes of others, and gets one probe at a
    /// time.
    pub async fn run(self) {
        let (prober, mut schedule) = (Arc::new(self), ProbeSchedule::default());
        let mut lists = ListSchedule::default();
        let mut rounds = Rounds::new(AT_ONCE, SILENT_AT_ONCE);
        loop {
            tokio::time::sleep(LOOK).await;
            rounds.take_answers();
            prober.mark_old_lists(&mut lists);
            for (endpoint, engine) in prober.due(&mut schedule) {
                let prober = prober.clone();
                rounds.ask(endpoint, async move { prober.probe(engine).await });
            }
            rounds.retain(|endpoint| schedule.0.contains_key(endpoint));
        }
    }

    /// The engines whose probe is due, and those whose process may be another one by now.
    fn due(&self, schedule: &mut ProbeSchedule) -> Vec<(Endpoint, ProbeTarget)> {
        let engines = engines(&self.fleet);
        schedule.0.retain(|endpoint, _| engines.contains_key(endpoint));
        let now = Instant::now();
        let due = |(endpoint, engine): &(Endpoint, ProbeTarget)| {
            let is_hurried = self.is_hurried(engine);
            (schedule.is_due(endpoint, now, self.pause(engine)) || is_hurried) && self.is_wanted(engine)
        };
        engines.into_iter().filter(due).collect()
    }

    /// Has lists of models read again that are old: adapters come and go by orders that others
    /// give.
    fn mark_old_lists(&self, lists: &mut ListSchedule) {
        let Some(every) = self.models_every else { return };
        let (engines, now) = (engines(&self.fleet), Instant::now());
        lists.0.retain(|endpoint, _| engines.contains_key(endpoint));
        for (endpoint, engine) in engines.iter().filter(|(endpoint, _)| lists.is_due(endpoint, now, every)) {
            tracing::trace!(engine = %endpoint, "its list of models is read again");
            engine.roles.iter().for_each(|role| role.health().identity().models_may_differ(false));
        }
    }

    /// True once after a connection to the engine broke, or was found closed.
    fn is_hurried(&self, engine: &ProbeTarget) -> bool {
        for lost in engine.roles.iter().filter(|it| it.health().take_lost_connections()) {
            self.fleet.doubt_process(lost);
        }
        engine.roles.iter().filter(|it| it.health().identity().take_hurry()).count() > 0
    }

    /// Pause between probes of an engine, with 10 % jitter: several gateways would probe in step
    /// otherwise.
    fn pause(&self, engine: &ProbeTarget) -> Duration {
        let now_ms = self.fleet.now_ms();
        let rests = |it: &&Arc<Instance>| it.health().state(now_ms) != State::Closed;
        let missed = |it: &Arc<Instance>| self.fleet.outlook(it.role()) == RoleOutlook::Resting;
        let mut resting = engine.roles.iter().filter(rests).peekable();
        let every = match resting.peek().is_some() {
            true if resting.any(missed) => self.every.min(LAST_RESORT_PAUSE),
            true => self.every.min(RESTING_PAUSE),
            false if engine.roles.iter().any(|it| it.health().is_doubted()) => {
                self.every.min(LAST_RESORT_PAUSE)
            }
            false => self.every,
        };
        every.mul_f64(0.9 + 0.2 * (rng::random() as f64 / u64::MAX as f64))
    }

    /// True if the engine is to be probed: engines that served within the interval need no probe.
    fn is_wanted(&self, engine: &ProbeTarget) -> bool {
        let now_ms = self.fleet.now_ms();
        let every_ms = u64::try_from(self.every.as_millis()).unwrap_or(u64::MAX);
        engine.roles.iter().any(|it| {
            !it.health().served_within(now_ms, every_ms)
                || it.health().identity().start_wanted()
                || wants_models(it)
        })
    }

    /// Probes an engine. False if it is silent.
    async fn probe(&self, engine: ProbeTarget) -> bool {
        let Some(first) = engine.roles.first() else { return true };
        let call = self.call(first, &self.path);
        let outcome = match try_exchange(call, self.time, ANSWER_BYTES).await {
            Ok((status, _)) if is_bad_answer(status, has_served(&engine)) => {
                ProbeOutcome::Dead(format!("GET {} answers {}", self.path, status.as_u16()))
            }
            Ok(_) if self.is_scaling(&engine).await => {
                ProbeOutcome::Dead("it is being scaled, or was retired".to_owned())
            }
            Ok(_) => ProbeOutcome::Alive,
            Err(ExchangeError::ConnectionRefused(text)) => ProbeOutcome::Refused(text),
            Err(ExchangeError::Failed(text)) => ProbeOutcome::Silent(format!("GET {}: {text}", self.path)),
        };
        // It may be another process than before, of another model or release, and may not take our
        // key: it is looked at before its next request.
        if outcome == ProbeOutcome::Alive && engine.roles.iter().any(wants_models) {
            self.ask_models(&engine).await;
        }
        for role in &engine.roles {
            role.meter().probed(outcome.name());
            self.fleet.probed(role, outcome.answer());
        }
        if matches!(outcome, ProbeOutcome::Refused(_)) {
            self.fleet.doubt_process(first);
        }
        if outcome != ProbeOutcome::Alive {
            return !matches!(outcome, ProbeOutcome::Silent(_));
        }
        if engine.roles.iter().any(|it| it.health().identity().start_wanted()) {
            self.ask_start(&engine).await;
        }
        true
    }

    /// True if an engine that answered busy says that it is being scaled, or was retired when that
    /// ended. vLLM's elastic expert parallelism then answers 503 to everything but its health.
    /// SGLang has the route with GET.
    async fn is_scaling(&self, engine: &ProbeTarget) -> bool {
        let busy = |it: &Arc<Instance>| it.health().busy_since_ms().is_some();
        let Some(first) = engine.roles.first().filter(|_| engine.roles.iter().any(busy)) else {
            return false;
        };
        for method in [Method::POST, Method::GET] {
            let call = self.client.request(method, url(first.endpoint(), SCALING_PATH));
            let call = authorized(call, self.authorization.as_ref());
            match exchange(call, self.time, ANSWER_BYTES).await {
                Ok((StatusCode::METHOD_NOT_ALLOWED, _)) => {}
                Ok((StatusCode::OK, body)) => return engine_load::is_scaling(&body),
                _ => return false,
            }
        }
        false
    }

    async fn ask_start(&self, engine: &ProbeTarget) {
        let Some(first) = engine.roles.first() else { return };
        let asked = exchange(self.call(first, "/metrics"), self.time, METRICS_BYTES).await;
        let Ok((status, body)) = asked else { return };
        let text = String::from_utf8_lossy(&body);
        let text = Some(text).filter(|_| status == StatusCode::OK);
        let started_s = text.as_deref().and_then(engine_load::start_s);
        let ranks = text.as_deref().and_then(engine_load::ranks);
        for role in &engine.roles {
            self.fleet.seen(role, Sign::Start(started_s));
            if let Some(ranks) = ranks {
                self.fleet.tells_ranks(role, ranks);
            }
        }
    }

    /// Asks which models it serves, and its release. An engine that does not answer stays in the
    /// fleet.
    async fn ask_models(&self, engine: &ProbeTarget) {
        let Some(first) = engine.roles.first() else { return };
        engine.roles.iter().for_each(|role| role.health().identity().models_asked());
        let (listed, release) = tokio::join!(
            facts::model_names(self.call(first, "/v1/models"), self.time),
            facts::release(self.call(first, "/version"), self.time)
        );
        for role in &engine.roles {
            self.fleet.record_release(role, release.as_deref());
            match &listed {
                Ok(ListReply::Names(names)) => {
                    self.fleet.takes_key(role);
                    self.fleet.record_models(role, names.clone());
                }
                Ok(ListReply::Refused(status)) => {
                    if is_of_the_key(*status) {
                        self.fleet.refuses_key(role, *status);
                    }
                    self.fleet.record_models(role, Vec::new());
                }
                Err(_) => self.fleet.models_unanswered(role),
            }
        }
    }

    fn call(&self, engine: &Instance, path: &str) -> reqwest::RequestBuilder {
        authorized(self.client.get(url(engine.endpoint(), path)), self.authorization.as_ref())
    }
}

impl ProbeOutcome {
    /// The metric label.
    fn name(&self) -> &'static str {
        match self {
            ProbeOutcome::Alive => "alive",
            ProbeOutcome::Dead(_) => "dead",
            ProbeOutcome::Refused(_) => "refused",
            ProbeOutcome::Silent(_) => "silent",
        }
    }

    fn answer(&self) -> ProbeAnswer<'_> {
        match self {
            ProbeOutcome::Alive => ProbeAnswer::Good,
            ProbeOutcome::Refused(text) => ProbeAnswer::Refused(text),
            ProbeOutcome::Dead(text) | ProbeOutcome::Silent(text) => ProbeAnswer::Bad(text),
        }
    }
}

/// True for the answers to a probe that speak against a server, which may have served a request.
pub fn is_bad_answer(status: StatusCode, has_served: bool) -> bool {
    status.is_server_error() || is_elsewhere(status) && !has_served
}

/// True for the answers of a server without this path. vLLM and SGLang have `/health` in all
/// releases, and answer 200 or 503.
pub fn is_elsewhere(status: StatusCode) -> bool {
    let without_path = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::GONE];
    status.is_redirection() || without_path.contains(&status)
}

/// True if a leg on it went well: then it is an engine, whatever it answers on this path.
fn has_served(engine: &ProbeTarget) -> bool {
    engine.roles.iter().any(|it| it.health().served_ms() > 0)
}

/// True if its list of models is unknown, refused, not the fleet's, or may have changed.
fn wants_models(instance: &Arc<Instance>) -> bool {
    let health = instance.health();
    health.key_word().refuses()
        || health.serves_other_model()
        || health.is_doubted()
        || health.identity().models_wanted()
}

impl ProbeSchedule {
    /// True if its probe is due; the next is then after `pause`. A new engine is due at once, as an
    /// operator who mistyped it is reading the log now. A time further away than `pause` is brought
    /// forward.
    fn is_due(&mut self, endpoint: &Endpoint, now: Instant, pause: Duration) -> bool {
        let next = now + pause;
        let Some(turn) = self.0.get_mut(endpoint) else {
            self.0.insert(endpoint.clone(), next);
            return true;
        };
        let due = *turn <= now;
        *turn = if due { next } else { (*turn).min(next) };
        due
    }
}

/// Everybody who may be sent something, once, in whatever roles.
fn engines(fleet: &Fleet) -> HashMap<Endpoint, ProbeTarget> {
    let mut engines: HashMap<Endpoint, ProbeTarget> = HashMap::new();
    for role in Role::ALL {
        for instance in fleet.members(role).iter().filter(|it| !it.draining()) {
            let engine =
                engines.entry(instance.endpoint().clone()).or_insert(ProbeTarget { roles: Vec::new() });
            engine.roles.push(instance.clone());
        }
    }
    engines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_pause_and_come_earlier_for_resting_engines() {
        let mut schedule = ProbeSchedule::default();
        let (at, start) = (Endpoint::new("e", 1), Instant::now());
        let mut due = |after_ms, pause_ms| {
            schedule.is_due(&at, start + Duration::from_millis(after_ms), Duration::from_millis(pause_ms))
        };
        assert!(due(0, 5_000), "a newcomer");
        assert!(!due(4_900, 5_000) && due(5_000, 5_000));
        assert!(!due(5_100, 1_000) && !due(6_000, 1_000) && due(6_100, 1_000), "it rests now");
    }
}
