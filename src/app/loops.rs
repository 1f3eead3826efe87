//! Starts the loops that run beside requests: probes, load scrapes, discovery, housekeeping.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::task::JoinSet;

use super::ms;
use crate::auth::watch::Watch;
use crate::config::Config;
use crate::control::FleetHandles;
use crate::control::chat_ids::ChatIdsChecker;
use crate::control::dialect_detect::{Detector, SignClient};
use crate::control::discovery::{Discoverer, kubernetes};
use crate::control::health_probe::Prober;
use crate::control::kv_events::{self, FollowedRole, KvEventSubscriptions};
use crate::control::load_scrape::Scraper;
use crate::control::parity::{ParityChecker, ParityHandles};
use crate::fleet::Role;
use crate::naming_config::Trouble;
use crate::relay::Relay;
use crate::relay::lookup::{DecoderEventView, KvEventView};
use crate::server::fleets::ServedFleet;
use crate::server::{self, Gateway};
use crate::tls::ListenerTls;
use crate::tokenization::Asker;
use crate::util::swap::Live;

/// Samples are folded into buckets, and drained instances dropped, this often.
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// A block of this size is a page of the allocator by itself.
const OWN_PAGE_BYTES: usize = 8 << 20;

/// Longest time, in ms, to ask one prefiller for its dialect or its publishers: one that hangs must
/// not delay the start.
const DETECT_MS: u64 = 1_000;

/// Between two readings of an engine's list of models, where names lead to fleets: adapters that
/// others load are known after so long.
const MODELS_EVERY: Duration = Duration::from_secs(30);

/// Starts the tasks that need no engine: certificate renewal, key file, housekeeping.
pub(super) fn start_housekeeping(
    gateway: &Arc<Gateway>,
    tls: Option<&Arc<ListenerTls>>,
    keys: Option<Watch>,
    tasks: &mut JoinSet<()>,
) {
    if let Some(tls) = tls {
        tasks.spawn(server::renew(tls.clone()));
    }
    if let Some(keys) = keys {
        tasks.spawn(keys.run());
    }
    tasks.spawn(housekeeping(gateway.clone()));
}

/// Starts the loops of a fleet that look at its engines: discovery, health probes, load scrapes and
/// the scheduler's tick; waits for the first look of discovery.
pub(super) async fn start_engine_loops(
    config: &Config,
    served: &ServedFleet,
    control_time: &Arc<Live<Duration>>,
    tasks: &mut JoinSet<()>,
) {
    tasks.spawn(served.relay.fleet.scheduler().clone().tick());
    let handles = fleet_handles(served);
    if let Some(mut discoverer) = Discoverer::new(config, handles.clone()) {
        // The first requests should find engines.
        discoverer.look().await;
        tasks.spawn(discoverer.run());
    }
    kubernetes::start(config, &handles, tasks).await;
    if let Some(prober) = prober(config, served) {
        tasks.spawn(prober.run());
    }
    if config.prompt.send_ids {
        tasks.spawn(chat_ids(config, served).run());
    }
    if let Some(scraper) = scraper(config, served, control_time) {
        tasks.spawn(scraper.run());
    }
}

/// Starts the loops that compare tokens and names of blocks with the engines', and that listen to
/// KV events; waits for the first comparison.
///
/// # Errors
/// The fact in which the configuration and an engine contradict each other.
pub(super) async fn start_prompt_loops(
    config: &Config,
    handles: ParityHandles,
    events: Option<&KvEventView>,
    tasks: &mut JoinSet<()>,
) -> Result<(), Trouble> {
    if let Some(events) = events {
        let of_decoders = kv_events::index(&config.events);
        handles.fleet.set_decoder_reports(Arc::new(DecoderEventView { index: of_decoders.clone() }));
        for (role, index) in [(Role::Prefill, events.index.clone()), (Role::Decode, of_decoders)] {
            let (fleet, prompts) = (handles.fleet.clone(), handles.prompts.clone());
            let (followed, client) = (FollowedRole { role, index }, sign_client(config, &handles.asker));
            tasks.spawn(KvEventSubscriptions::new(&config.events, fleet, prompts, followed, client).run());
        }
    }
    let mut parity_checker = ParityChecker::new(config, handles);
    parity_checker.check_at_start().await?;
    tasks.spawn(parity_checker.run());
    Ok(())
}

/// Detects the engines' dialect if `dialect.name` is `auto`.
pub(super) async fn detect_dialect(config: &Config, served: &ServedFleet, tasks: &mut JoinSet<()>) {
    if !served.relay.speech.now().open {
        return;
    }
    let detector = detector(config, served);
    // The first requests should already be sent in the engines' dialect.
    let is_known = detector.ask_round(0).await;
    if !is_known {
        detector.warn_of_silence();
    }
    tasks.spawn(detector.run(is_known));
}

async fn housekeeping(gateway: Arc<Gateway>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING);
    loop {
        tick.tick().await;
        gateway.exposition.upkeep();
        let fleets = gateway.fleets();
        for served in fleets.iter_with_remotes() {
            let Relay { fleet, upstream, meters, .. } = &*served.relay;
            for engine in upstream.sweep() {
                fleet.doubt_processes_at(&engine);
            }
            for role in Role::ALL {
                fleet.sweep(role);
            }
            fleet.show(meters);
        }
        fleets.refresh_names();
        let uptime_ms = fleets.first().relay.fleet.now_ms();
        gateway.meters.note_load(Duration::from_millis(uptime_ms));
        return_memory();
    }
}

/// Makes the allocator return freed memory to the system. mimalloc does so after a second, but only
/// when a thread frees a page, and an idle process frees none. No byte of the block is touched.
fn return_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(OWN_PAGE_BYTES)));
}

/// Parts by which engines come into the fleet and leave it.
pub(super) fn fleet_handles(served: &ServedFleet) -> FleetHandles {
    let relay = &served.relay;
    FleetHandles {
        fleet: relay.fleet.clone(),
        upstream: relay.upstream.clone(),
        meters: relay.meters.clone(),
    }
}

/// The loop that scrapes engines' own loads; `None` if `route.scrape_ms` is 0.
fn scraper(config: &Config, served: &ServedFleet, time: &Arc<Live<Duration>>) -> Option<Scraper> {
    (config.route.scrape_ms > 0).then(|| Scraper {
        fleet: served.relay.fleet.clone(),
        client: served.control.clone(),
        authorization: served.access.now().authorization.clone(),
        time: time.clone(),
        pause: ms(config.route.scrape_ms),
    })
}

/// The loop that asks engines if they take the token ids of chats.
fn chat_ids(config: &Config, served: &ServedFleet) -> ChatIdsChecker {
    let relay = &served.relay;
    ChatIdsChecker {
        fleet: relay.fleet.clone(),
        protocol: relay.speech.clone(),
        asker: super::running::asker(served),
        pause: ms(config.prompt.verify_interval_ms),
    }
}

/// The client for questions about an engine's dialect and publishers.
fn sign_client(config: &Config, asker: &Asker) -> SignClient {
    SignClient {
        client: asker.client.clone(),
        authorization: asker.authorization.clone(),
        time: ms(config.timeout.models_ms.min(DETECT_MS)),
    }
}

/// The loop that detects which dialect the engines speak.
fn detector(config: &Config, served: &ServedFleet) -> Detector {
    Detector {
        fleet: served.relay.fleet.clone(),
        protocol: served.relay.speech.clone(),
        client: sign_client(config, &super::running::asker(served)),
        has_verdict: AtomicBool::new(false),
    }
}

/// The loop that probes engines' health; `None` if `health.probe_ms` is 0.
fn prober(config: &Config, served: &ServedFleet) -> Option<Prober> {
    let health = &config.health;
    (health.probe_ms > 0).then(|| Prober {
        fleet: served.relay.fleet.clone(),
        client: served.control.clone(),
        authorization: served.access.now().authorization.clone(),
        path: health.probe_path.clone(),
        every: ms(health.probe_ms),
        time: ms(health.probe_timeout_ms),
        models_every: served.relay.meters.label().name().map(|_| MODELS_EVERY),
    })
}
