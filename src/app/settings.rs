//! Limits and deadlines as the relay and the edge use them, from the configuration. All of these
//! can change while the gateway runs.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};

use crate::config::{Alias, Config, DialectName, RoutedModel, Secret, Target};
use crate::dialect::Dialect;
use crate::fleet::EngineProtocol;
use crate::relay::bypass::BypassRules;
use crate::relay::settings::Settings;
use crate::relay::vacancy::ProbeSettings;
use crate::route::AppendRules;
use crate::server::fleets::{EngineAccess, FleetSet, ModelAlias, ModelRule, ServedFleet};
use crate::server::{BodyLimits, Edge};

/// A secret that can't be sent in a header.
#[derive(Debug, thiserror::Error)]
#[error("engine.api_key can't be sent in a header: it has a character that is not visible ASCII")]
pub struct KeyError;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Settings of the relay.
pub fn settings(config: &Config) -> Settings {
    let (retry, timeout, limit) = (&config.retry, &config.timeout, &config.limit);
    Settings {
        skip: BypassRules {
            tokens: u32::try_from(config.route.bypass_tokens).unwrap_or(u32::MAX),
            wait: ms(config.route.bypass_wait_ms),
            without_prefiller: config.route.bypass_without_prefiller,
        },
        append: AppendRules {
            gap_s: ms(config.route.append_gap_ms).as_secs_f64(),
            late_s: ms(config.route.append_late_ms).as_secs_f64(),
            chunk_tokens: u32::try_from(config.route.append_chunk_tokens).unwrap_or(u32::MAX),
        },
        ttft_objective: ms(config.route.ttft_slo_ms),
        attempts: retry.attempts,
        delay: Duration::from_secs_f64(retry.delay_ms / 1e3),
        // A configured first pause is not cut by a shorter default of the maximum.
        delay_max: Duration::from_secs_f64(retry.delay_max_ms.max(retry.delay_ms) / 1e3),
        send_ids: config.prompt.send_ids,
        resume: retry.resume,
        pool_wait: ms(config.dialect.pool_wait_ms),
        kept_back: ms(if config.dialect.bidirectional { config.dialect.bidirectional_ttl_ms } else { 0 }),
        queue: ms(limit.queue_ms),
        empty_wait: ms(config.fleet.empty_wait_ms),
        lease: ms(config.engine.lease_ms),
        abandon_grace: ms(config.engine.abandon_grace_ms),
        prefill: ms(timeout.prefill_ms),
        prefill_per_1k_tokens: ms(timeout.prefill_ms_per_1k_tokens),
        encode: ms(timeout.encode_ms),
        first_byte: ms(timeout.first_byte_ms),
        answer: ms(timeout.answer_ms),
        gap: ms(timeout.gap_ms),
        tell: ms(timeout.tell_ms),
        total: ms(timeout.total_ms),
        encode_items: limit.encode_items,
        prompts: limit.prompts,
        prefill_reply_bytes: limit.prefill_reply_bytes,
        answer_bytes: limit.answer_bytes,
        frame_bytes: limit.frame_bytes,
    }
}

/// Settings of the engines' dialect.
pub fn protocol(config: &Config) -> EngineProtocol {
    let dialect = &config.dialect;
    EngineProtocol {
        dialect: match dialect.name {
            DialectName::Auto | DialectName::KvTransfer => Dialect::KvTransfer,
            DialectName::Pool => Dialect::Pool,
            DialectName::Mooncake => Dialect::Mooncake,
            DialectName::NixlPush => Dialect::NixlPush,
            DialectName::Sglang => Dialect::Sglang,
            DialectName::Layerwise => Dialect::Layerwise,
            DialectName::Moriio => Dialect::Moriio,
        },
        open: dialect.name == DialectName::Auto,
        bootstrap_port: dialect.bootstrap_port,
        bootstraps: dialect.bootstraps(),
        // Checked with the rest of the configuration.
        callback_url: config.callback().unwrap_or_default(),
        batch: dialect.batch,
    }
}

/// Memory limits of clients' bodies. One body alone always has room.
fn body_limits(config: &Config) -> BodyLimits {
    let limit = &config.limit;
    BodyLimits {
        held_bytes: limit.bodies_bytes.max(limit.body_bytes),
        unread_bytes: limit.unread_bytes.max(limit.body_bytes),
        unread: limit.unread_bodies,
        connection_bytes: limit.connection_unread_bytes.max(limit.body_bytes),
        least_rate: limit.body_rate,
        grace: ms(config.timeout.body_grace_ms),
    }
}

/// The request by which an engine that was out of reach is tried again: that of a probe.
pub fn probe_settings(config: &Config) -> ProbeSettings {
    let path = config.health.probe_path.parse();
    let path = path.unwrap_or_else(|_| PathAndQuery::from_static("/health"));
    ProbeSettings { path, time: ms(config.health.probe_timeout_ms) }
}

/// Settings of questions to a fleet's engines, and the names of its models.
///
/// # Errors
/// [`KeyError`] names a secret that can't be sent in a header.
pub fn engine_access(config: &Config) -> Result<EngineAccess, KeyError> {
    let fleet = &config.fleet;
    let bearer = |key: &Secret| {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| KeyError)?;
        value.set_sensitive(true);
        Ok::<_, KeyError>(value)
    };
    let alias = |alias: Alias| ModelAlias { name: alias.name.into(), model: alias.model.into() };
    Ok(EngineAccess {
        authorization: config.engine.api_key.as_ref().map(bearer).transpose()?,
        models_time: ms(config.timeout.models_ms),
        probe_time: ms(fleet.probe_timeout_ms),
        probe_attempts: fleet.probe_attempts,
        probe_interval: ms(fleet.probe_interval_ms),
        keep_alive: ms(config.stream.keep_alive_ms),
        priority_scheduling: config.engine.priority_scheduling,
        model: fleet.model.clone(),
        aliases: fleet.aliases().into_iter().map(alias).collect(),
    })
}

/// The fleets of a gateway that runs `served`, with the rules for models that several of them
/// serve; `None` if none of them has engines.
pub fn fleet_set(config: &Config, served: Vec<Arc<ServedFleet>>) -> Option<FleetSet> {
    let (remotes, mut fleets): (Vec<_>, Vec<_>) =
        served.into_iter().partition(|fleet| fleet.remote.is_some());
    let first = if fleets.is_empty() { return None } else { fleets.remove(0) };
    let rule = |RoutedModel { name, targets, fallback }: RoutedModel| ModelRule {
        name: name.into(),
        targets: targets.into_iter().map(|Target { fleet, weight }| (fleet.into(), weight)).collect(),
        fallback: fallback.into_iter().map(String::into_boxed_str).collect(),
    };
    let rules = config.models.routed().into_iter().map(rule).collect();
    Some(FleetSet { first, others: fleets, remotes, rules })
}

/// Settings of the server's edge.
pub fn edge(config: &Config) -> Edge {
    let (limit, timeout) = (&config.limit, &config.timeout);
    Edge {
        body_bytes: limit.body_bytes,
        header_bytes: limit.header_bytes,
        headers: limit.headers,
        steps_ratio: config.log.sample_ratio,
        connections: limit.connections,
        body_time: ms(timeout.body_ms),
        bodies: body_limits(config),
        header_time: ms(timeout.header_ms),
        handshake_time: ms(timeout.handshake_ms),
        write_time: ms(timeout.write_ms),
        json_depth: limit.json_depth,
        json_members: limit.json_members,
        cors_origins: config
            .server
            .cors_origins
            .iter()
            .filter_map(|it| HeaderValue::from_str(it).ok())
            .collect(),
        overload_status: StatusCode::from_u16(limit.overload_status)
            .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        admin_key: config.server.admin_key.as_ref().map(|k| k.expose().to_owned()),
        passthrough: config.server.passthrough.clone(),
        unknown_responses: config.auth.unknown_responses,
        open_admin: config.server.open_admin,
        names: config.own_names(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompt_extends_time_limits_up_to_the_request_limit() {
        let mut config = Config::default();
        config.timeout.prefill_ms_per_1k_tokens = 500;
        let time = |config: &Config, tokens| settings(config).computing(ms(2_000), tokens).as_millis();
        assert_eq!(
            [0, 1, 3_000, u64::MAX].map(|tokens| time(&config, tokens)),
            [2_000, 2_000, 3_500, 3_600_000]
        );
        config.timeout.prefill_ms_per_1k_tokens = 0;
        assert_eq!(time(&config, 1 << 20), 2_000);
    }
}
