//! Observability: the metrics (names in [`names`], and nowhere else) and the log.
//!
//! Handles of histograms and gauges are made once, when an instance or an API is registered.
//! Counters with labels that are known only at the end of a request are made at first use and kept.
//! Nothing is recorded per token. Metrics of a part that is switched off have no series.
//!
//! The recorder drops a series only by its age, even one that is still written to through a handle.
//! So the series of instances, and the gauges of named fleets, which join and leave, are in
//! recorders of their own (`obs/instances.rs`, `obs/fleet_gauges.rs`).

mod decoders;
mod ended;
pub mod events;
mod fleet_gauges;
mod fleet_label;
mod handle_cache;
mod health;
mod instances;
pub mod keys;
mod last_value;
mod loads;
pub mod log;
pub mod names;
mod pool;
mod process;
mod prompts;
mod recent;
pub mod share;
pub mod traces;
pub mod words;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::dialect::Api;
use ended::EndedCounts;
use fleet_gauges::FleetGauges;
pub use fleet_label::FleetLabel;
use handle_cache::HandleCache;
use instances::{Instances, Series};
use keys::KeyMeter;
pub use last_value::{LastValue, TimedValue};
pub use loads::LoadGauges;
use pool::PoolMeter;
use prompts::PromptMeter;
pub use recent::Recently;
use recent::{Ended, RecentLoad};

/// The process-wide recorder, a global since Prometheus metrics belong to a process.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
static INSTANCES: Instances = Instances::new();

/// Renders the metrics.
#[derive(Clone, Debug)]
pub struct Exposition(Option<PrometheusHandle>);

/// Handles for one instance.
#[derive(Debug)]
pub struct LegMeter {
    leg: &'static str,
    instance: String,
    series: Series,
    seconds: Histogram,
    breaker: Gauge,
    /// Word of its state that is shown.
    shown: Mutex<Option<&'static str>>,
    /// Reason why a leg on it failed.
    failure: LastValue<&'static str>,
    /// Number of answers with a 4xx.
    refusals: AtomicU64,
}

/// Handles for the gateway as a whole.
#[derive(Debug)]
pub struct Meters {
    /// Label of the fleet whose requests are measured.
    label: FleetLabel,
    /// Gauges of this fleet, where there are several.
    gauges: FleetGauges,
    /// Requests that are being served.
    pub inflight: Gauge,
    /// Requests that wait to be let in.
    pub queued: Gauge,
    /// Open client connections.
    pub connections: Gauge,
    routes: [RouteMeter; Api::ALL.len()],
    /// Requests by route, status and reason.
    requests: HandleCache<(&'static str, u16, &'static str), Counter>,
    /// Handles by the name of a key.
    keys: HandleCache<String, Arc<KeyMeter>>,
    /// Hand-offs that were used, released and expired.
    handoffs: [Counter; 3],
    prompt_tokens: Counter,
    cached_tokens: Counter,
    output_tokens: Counter,
    /// Made once prompts are read.
    prompts: OnceLock<PromptMeter>,
    /// Made once a pool is asked.
    pool: OnceLock<PoolMeter>,
    /// Requests that wait for a prefiller.
    pub waiting: Gauge,
    wait_seconds: Histogram,
    /// Requests of all fleets that ended.
    ended: Arc<EndedCounts>,
    /// Of these, those of this fleet, where there are several.
    ended_in_fleet: Option<EndedCounts>,
    /// Load of the last minutes, of all fleets.
    recent: Arc<RecentLoad>,
    /// True if the gateway cuts the connections that are still open at its end; of all fleets.
    cutting: Arc<AtomicBool>,
}

/// Handles for one API.
#[derive(Debug)]
struct RouteMeter {
    ttft: Histogram,
    tpot: Histogram,
    gap_max: Histogram,
    total: Histogram,
}

/// Measurements of one finished request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Time until the first byte of a stream was sent.
    pub ttft: Option<Duration>,
    /// Mean time per output token after the first.
    pub tpot: Option<Duration>,
    /// The longest pause in a stream.
    pub gap_max: Option<Duration>,
    /// Time until the end of the request.
    pub total: Duration,
}

/// Outcomes of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handoff {
    /// A decoder took it.
    Used,
    /// The request ended before a decoder had it; a one-token decode fetched it, so that the
    /// prefiller could let go.
    Released,
    /// Only the prefiller's lease will free its blocks.
    Expired,
}

impl Exposition {
    /// Installs the recorder, or returns the one that is there.
    pub fn install() -> Exposition {
        Exposition(RECORDER.get_or_init(start).clone())
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> String {
        let Some(handle) = &self.0 else { return String::new() };
        fleet_gauges::render_with(handle.render()) + &INSTANCES.render() + &process::render()
    }

    /// Folds buffered samples into buckets. Without it, memory grows while nothing scrapes.
    pub fn upkeep(&self) {
        if let Some(handle) = &self.0 {
            handle.run_upkeep();
            INSTANCES.upkeep(Instant::now());
        }
    }
}

/// Starts recording; `None` when another recorder is installed in this process.
fn start() -> Option<PrometheusHandle> {
    let recorder = Arc::new(recorder()?);
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder.clone()).ok()?;
    fleet_label::GLOBAL.get_or_init(|| recorder);
    names::describe();
    gauge!(names::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Some(handle)
}

fn recorder() -> Option<PrometheusRecorder> {
    let builder = names::buckets().into_iter().try_fold(PrometheusBuilder::new(), |b, (name, bounds)| {
        b.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
    });
    Some(builder.ok()?.build_recorder())
}

/// Place where the series of this instance are made; without a label of its fleet, it is the one of
/// its other series.
fn series(instance: &str, label: Option<&FleetLabel>) -> Series {
    if RECORDER.get().is_none_or(Option::is_none) {
        return Series::none();
    }
    INSTANCES.series(instance, label, || {
        let recorder = recorder()?;
        metrics::with_local_recorder(&recorder, names::describe_instances);
        Some(recorder)
    })
}

/// True if a request with this end counts as failed: a 5xx, or a broken stream of any status. A
/// `status` of `None` means that the client had left. A client's mistake is no failure.
pub fn failed_request(status: Option<u16>, reason: &str) -> bool {
    match status {
        Some(status @ 400..) => status >= 500,
        _ => !matches!(reason, "ok" | "engine" | "client_gone"),
    }
}

/// Initialises a counter to 0, so that a rate sees its first increment.
fn begun(counter: Counter) -> Counter {
    counter.increment(0);
    counter
}

impl LegMeter {
    /// Handles for an instance of the fleet with `label` that serves `leg`.
    pub fn new(leg: &'static str, instance: &str, label: &FleetLabel) -> LegMeter {
        let series = series(instance, Some(label));
        let (seconds, breaker) = series.with(|| {
            health::begin(leg, instance);
            (
                histogram!(names::LEG_SECONDS, "role" => leg, "engine" => instance.to_owned()),
                gauge!(names::BREAKER, "role" => leg, "engine" => instance.to_owned()),
            )
        });
        LegMeter {
            leg,
            instance: instance.to_owned(),
            series,
            seconds,
            breaker,
            shown: Mutex::default(),
            failure: LastValue::default(),
            refusals: AtomicU64::new(0),
        }
    }

    /// Records a leg that succeeded after `took`.
    pub fn done(&self, took: Duration) {
        self.seconds.record(took);
    }

    /// Counts a failed leg. `reason` is one of a fixed set of words.
    pub fn failed(&self, reason: &'static str) {
        debug_assert!(words::LEG_FAILURES.iter().any(|word| word.name == reason), "{reason} is in no table");
        self.failure.set(reason);
        self.series.with(|| {
            counter!(names::LEG_FAILURES, "role" => self.leg, "engine" => self.instance.clone(), "reason" => reason)
                .increment(1);
        });
    }

    /// Reason why a leg on it failed last, and when.
    pub fn last_failure(&self) -> Option<TimedValue<&'static str>> {
        self.failure.get()
    }
}

impl Meters {
    /// Makes all handles, of a gateway with one fleet, or of what several share.
    pub fn new() -> Meters {
        keys::start();
        health::begin_reloads();
        let gauges = [names::INFLIGHT, names::QUEUED, names::CONNECTIONS].map(|name| gauge!(name));
        Meters::labelled(FleetLabel::default(), gauges)
    }

    /// Handles of one fleet of several, whose series have its label. What the fleets share stays
    /// one series.
    #[must_use]
    pub fn of_fleet(&self, fleet: &Arc<str>) -> Meters {
        let own = FleetGauges::of(fleet);
        let label = FleetLabel::of(fleet, &own);
        let gauges = [&self.inflight, &self.queued, &self.connections].map(Gauge::clone);
        let meters = label.with(|| Meters::labelled(label.clone(), gauges));
        Meters {
            gauges: own,
            cutting: self.cutting.clone(),
            ended: self.ended.clone(),
            ended_in_fleet: Some(EndedCounts::default()),
            recent: self.recent.clone(),
            ..meters
        }
    }

    /// Label of the fleet, for handles that others make.
    pub fn label(&self) -> &FleetLabel {
        &self.label
    }

    /// All handles, with these gauges of requests that are served and wait, and of connections.
    fn labelled(label: FleetLabel, [inflight, queued, connections]: [Gauge; 3]) -> Meters {
        let tokens = |kind: &'static str| counter!(names::TOKENS, "kind" => kind);
        // These exist from the start, so that a rate sees the first increment.
        keys::start_turned_away();
        health::begin_fleet();
        for leg in ["prefill", "decode", "encode"] {
            counter!(names::RETRIES_DENIED, "role" => leg).increment(0);
        }
        for reason in ["broken", "ended", "silent", "failed", "recomputed"] {
            counter!(names::CONTINUATIONS, "outcome" => "resumed", "reason" => reason).increment(0);
            counter!(names::CONTINUATIONS, "outcome" => "failed", "reason" => reason).increment(0);
        }
        Meters {
            label,
            gauges: FleetGauges::default(),
            inflight,
            queued,
            connections,
            routes: Api::ALL.map(RouteMeter::new),
            requests: HandleCache::default(),
            keys: HandleCache::default(),
            handoffs: ["used", "released", "expired"]
                .map(|outcome| begun(counter!(names::HANDOFFS, "outcome" => outcome))),
            prompt_tokens: tokens("prompt"),
            cached_tokens: tokens("cached"),
            output_tokens: tokens("output"),
            prompts: OnceLock::new(),
            pool: OnceLock::new(),
            waiting: gauge!(names::WAITING),
            wait_seconds: histogram!(names::WAIT_SECONDS),
            ended: Arc::default(),
            ended_in_fleet: None,
            recent: Arc::default(),
            cutting: Arc::default(),
        }
    }

    /// Counts a request that ended with `status`. `reason` is `ok`, `engine` (the engine's own
    /// answer) or the code of the gateway's error.
    pub fn request(&self, route: &'static str, status: u16, reason: &'static str) {
        let begin = || {
            let code = status.to_string();
            self.label
                .with(|| counter!(names::REQUESTS, "route" => route, "code" => code, "reason" => reason))
        };
        self.requests.get(&(route, status, reason), begin).increment(1);
        let failed = failed_request(Some(status), reason);
        self.ended.count(failed);
        self.ended_in_fleet.iter().for_each(|counts| counts.count(failed));
    }

    /// Marks that the gateway cuts connections from now on: these were not left by clients.
    pub fn cut_all(&self) {
        self.cutting.store(true, Ordering::Relaxed);
    }

    /// True if open connections are being cut.
    pub fn cuts(&self) -> bool {
        self.cutting.load(Ordering::Relaxed)
    }

    /// Numbers of requests that ended and that failed ([`failed_request`]) since the start, in all
    /// fleets.
    pub fn ended(&self) -> (u64, u64) {
        self.ended.now()
    }

    /// The same in this fleet.
    pub fn ended_in_fleet(&self) -> (u64, u64) {
        self.ended_in_fleet.as_ref().unwrap_or(&self.ended).now()
    }

    /// Looks at the load, so that it is known later what was new. `at` is a time since the start.
    pub fn note_load(&self, at: Duration) {
        let (all, failed) = self.ended();
        self.recent.note(at, Ended { all, failed });
    }

    /// The load of the last minutes, at a time since the start.
    pub fn recently(&self, at: Duration) -> Recently {
        let (all, failed) = self.ended();
        self.recent.until(at, Ended { all, failed })
    }

    /// Records the times of a generating request.
    pub fn sample(&self, api: Api, sample: Sample) {
        let Some(route) = Api::ALL.iter().position(|a| *a == api).and_then(|i| self.routes.get(i)) else {
            return;
        };
        let record = |h: &Histogram, value: Option<Duration>| value.into_iter().for_each(|v| h.record(v));
        record(&route.ttft, sample.ttft);
        sample.ttft.into_iter().for_each(|took| self.recent.first_token(took));
        record(&route.tpot, sample.tpot);
        record(&route.gap_max, sample.gap_max);
        route.total.record(sample.total);
    }

    /// Adds token counts that engines reported.
    pub fn tokens(&self, prompt: u64, cached: u64, output: u64) {
        self.prompt_tokens.increment(prompt);
        self.cached_tokens.increment(cached);
        self.output_tokens.increment(output);
        self.recent.output(output);
    }

    /// Counts a further attempt of a leg.
    pub fn retry(&self, leg: &'static str, reason: &'static str) {
        self.label.with(|| counter!(names::RETRIES, "role" => leg, "reason" => reason).increment(1));
    }

    /// Counts a further attempt that the retry budget did not allow.
    pub fn retry_denied(&self, leg: &'static str) {
        self.label.with(|| counter!(names::RETRIES_DENIED, "role" => leg).increment(1));
    }

    /// Begins the series of callbacks, where decoders are asked first.
    pub fn callbacks_start(&self) {
        for outcome in ["taken", "again", "unknown", "failed", "bad"] {
            self.label.with(|| counter!(names::CALLBACKS, "outcome" => outcome).increment(0));
        }
    }

    /// Counts a callback of a decoder that was asked first.
    pub fn callback(&self, outcome: &'static str) {
        self.label.with(|| counter!(names::CALLBACKS, "outcome" => outcome).increment(1));
    }

    /// Counts the outcome of a stream that broke. `reason` is one of a fixed set of words.
    pub fn continuation(&self, outcome: &'static str, reason: &'static str) {
        self.label
            .with(|| counter!(names::CONTINUATIONS, "outcome" => outcome, "reason" => reason).increment(1));
    }

    /// Counts the outcome of a hand-off.
    pub fn handoff(&self, outcome: Handoff) {
        let [used, released, expired] = &self.handoffs;
        match outcome {
            Handoff::Used => used.increment(1),
            Handoff::Released => released.increment(1),
            Handoff::Expired => expired.increment(1),
        }
    }

    /// Counts a request that went to a decoder alone.
    pub fn bypassed(&self, reason: &'static str) {
        debug_assert!(words::BYPASSED.iter().any(|word| word.name == reason), "{reason} is in no table");
        self.label.with(|| counter!(names::BYPASSED, "reason" => reason).increment(1));
    }

    /// Offers of KV that ended like this.
    pub fn kv_offers(&self, outcome: &'static str, count: u64) {
        self.label.with(|| counter!(names::KV_OFFERS, "outcome" => outcome).increment(count));
    }

    /// A prefiller can read so many tokens of its prompt from a decoder.
    pub fn kv_offered(&self, tokens: u64) {
        self.label.with(|| counter!(names::KV_OFFERED_TOKENS).increment(tokens));
    }

    /// A request waited so long for its prefiller.
    pub fn waited(&self, time: Duration) {
        self.wait_seconds.record(time);
    }

    /// A prefill took so many times the seconds that were predicted.
    pub fn prefill_ratio(&self, ratio: f64) {
        self.label.with(|| histogram!(names::PREFILL_RATIO).record(ratio));
    }

    /// Cached tokens as predicted and as reported. `why` is empty where nothing was missed.
    pub fn predicted(&self, verdict: &'static str, why: &'static str, predicted: u64, reported: Option<u64>) {
        self.label.with(|| counter!(names::PREDICTIONS, "verdict" => verdict, "reason" => why).increment(1));
        if let Some(reported) = reported {
            let direction = if reported < predicted { "less" } else { "more" };
            let error = reported.abs_diff(predicted) as f64;
            self.label.with(|| histogram!(names::PREDICTION_ERROR, "direction" => direction).record(error));
        }
    }

    /// Shows if a source of predictions (`names`, `history`, `decoders`, `answers`) steers.
    pub fn source_trusted(&self, source: &'static str, trusted: bool) {
        self.label.with(|| gauge!(names::BELIEVED, "source" => source).set(f64::from(u8::from(trusted))));
    }
}

impl Default for Meters {
    fn default() -> Meters {
        Meters::new()
    }
}

impl RouteMeter {
    fn new(api: Api) -> RouteMeter {
        let h = |name: &'static str| histogram!(name, "route" => api.name());
        RouteMeter {
            ttft: h(names::TTFT),
            tpot: h(names::TPOT),
            gap_max: h(names::GAP_MAX),
            total: h(names::DURATION),
        }
    }
}
