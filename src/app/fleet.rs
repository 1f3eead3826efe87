//! From `[fleet]`, `[route]` and `[health]` to the engines and how they are chosen among.

use std::time::Duration;

use futures_util::future::join_all;

use crate::config::{self, Config};
use crate::endpoint::Endpoint;
use crate::fleet::health::{KeySource, Rules};
use crate::fleet::{EngineRanks, Fleet, FleetSettings, HostNames, LoadTargets, Owner, RankRule, Role};
use crate::obs::FleetLabel;
use crate::route::{Bind, Policy, SchedulerSettings};
use crate::util::rng;

/// The longest that one prefiller's name may take to be resolved.
const RESOLVE_TIME: Duration = Duration::from_secs(3);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The engines as configured, whose metrics have this label.
pub async fn fleet(config: &Config, label: &FleetLabel) -> Fleet {
    let fleet = Fleet::with(FleetSettings {
        is_remote: config.fleet.remote.is_some(),
        label: label.clone(),
        ..fleet_settings(config)
    });
    let ranks = config.fleet.ranks().into_iter();
    fleet.configure_ranks(ranks.map(|(engine, ranks)| EngineRanks { engine, ranks }));
    fleet.want(Owner::Configuration, Role::Prefill, &config.prefill_endpoints());
    fleet.want(Owner::Configuration, Role::Decode, &config.decode_endpoints());
    fleet.want(Owner::Configuration, Role::Encode, &config.encode_endpoints());
    fleet.scheduler().name_hosts(host_names(config).await);
    fleet
}

/// Names of hosts as a pool knows them: as configured, and the addresses of prefillers that are
/// given by name.
async fn host_names(config: &Config) -> HostNames {
    let mut names = HostNames::new();
    if config.pool.kind == config::PoolKind::Off {
        return names;
    }
    let engines = config.prefill_endpoints();
    let looked = engines.iter().map(|Endpoint { host, port, .. }| {
        tokio::time::timeout(RESOLVE_TIME, tokio::net::lookup_host((host.as_str(), *port)))
    });
    for (engine, found) in engines.iter().zip(join_all(looked).await) {
        for address in found.into_iter().flatten().flatten() {
            names.insert(address.ip().to_string(), engine.host.clone());
        }
    }
    names.extend(config.pool.host_names().map(|(name, host)| (name.to_owned(), host.to_owned())));
    names
}

fn fleet_settings(config: &Config) -> FleetSettings {
    let route = &config.route;
    let board = SchedulerSettings {
        policy: policy(route.policy),
        bind: match route.bind {
            config::Bind::Late => Bind::Late,
            config::Bind::Arrival => Bind::Arrival,
        },
        open_s: ms(route.open_ms).as_secs_f64(),
        batch_tokens: route.batch_tokens,
        ..SchedulerSettings::default()
    };
    FleetSettings {
        board,
        cache_tokens: route.cache_tokens,
        prefill_ranks: RankRule::of(config.fleet.prefill_ranks),
        decode_ranks: RankRule::of(config.fleet.decode_ranks),
        seed: rng::random(),
        health: rules(config),
        key_source: key_source(config),
        probed: config.health.probe_ms > 0,
        load_targets: LoadTargets {
            wait_s: ms(config.autoscale.wait_ms).as_secs_f64(),
            per_token_s: ms(config.autoscale.tpot_ms).as_secs_f64(),
        },
        ..FleetSettings::default()
    }
}

/// Clients' own keys reach engines only where the gateway has none for them and asks for none.
fn key_source(config: &Config) -> KeySource {
    match (&config.engine.api_key, &config.auth.keys_file) {
        (Some(_), _) => KeySource::Configuration,
        (None, Some(_)) => KeySource::Nobody,
        (None, None) => KeySource::Client,
    }
}

fn rules(config: &Config) -> Rules {
    let health = &config.health;
    Rules {
        failures: health.failures,
        failure_percent: health.failure_percent,
        rest_ms: health.rest_ms,
        rest_max_ms: health.rest_max_ms,
        slow_start_ms: health.slow_start_ms,
        probe_failures: health.probe_failures,
        probe_successes: health.probe_successes,
    }
}

/// The rule of that name.
fn policy(configured: config::Policy) -> Policy {
    match configured {
        config::Policy::Predicted => Policy::Predicted,
        config::Policy::LeastWork => Policy::LeastWork,
        config::Policy::LeastRequests => Policy::LeastRequests,
        config::Policy::RoundRobin => Policy::RoundRobin,
        config::Policy::Random => Policy::Random,
        config::Policy::PowerOfTwo => Policy::PowerOfTwo,
        config::Policy::Reference => Policy::Reference,
        config::Policy::CacheAware => Policy::CacheAware,
        config::Policy::Session => Policy::Session,
    }
}
