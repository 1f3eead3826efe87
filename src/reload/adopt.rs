//! What of a new configuration a running gateway can take. Pure.

use crate::config::Config;

/// A configuration that was taken as far as possible.
#[derive(Debug)]
pub struct Adopted {
    /// What runs from now on.
    pub config: Config,
    /// Keys whose new value counts from now on.
    pub applied: Vec<String>,
    /// Keys whose new value counts after a restart.
    pub pending: Vec<String>,
}

/// Takes from `new` what can change while `running` runs.
pub fn adopt(running: &Config, new: &Config) -> Adopted {
    let mut next = running.clone();
    let (fleet, timeout, limit, route) = (&new.fleet, &new.timeout, &new.limit, &new.route);
    // Ranks are places that engines bring along when they come.
    let (prefill_ranks, decode_ranks) = (running.fleet.prefill_ranks, running.fleet.decode_ranks);
    next.fleet = crate::config::Fleet { prefill_ranks, decode_ranks, ..fleet.clone() };
    // The budget is counted in a window that goes on.
    let (budget, budget_floor_per_s) = (running.retry.budget, running.retry.budget_floor_per_s);
    next.retry = crate::config::Retry { budget, budget_floor_per_s, ..new.retry.clone() };
    next.log.level = new.log.level;
    next.log.sample_ratio = new.log.sample_ratio;
    next.server.admin_key = new.server.admin_key.clone();
    next.dialect.pool_wait_ms = new.dialect.pool_wait_ms;
    next.dialect.bidirectional = new.dialect.bidirectional;
    next.dialect.bidirectional_ttl_ms = new.dialect.bidirectional_ttl_ms;
    next.engine.lease_ms = new.engine.lease_ms;
    next.engine.abandon_grace_ms = new.engine.abandon_grace_ms;
    next.route.bypass_tokens = route.bypass_tokens;
    next.route.bypass_wait_ms = route.bypass_wait_ms;
    next.route.bypass_without_prefiller = route.bypass_without_prefiller;
    next.route.ttft_slo_ms = route.ttft_slo_ms;
    // Connections to engines are opened by clients that are set up once.
    let connect_ms = running.timeout.connect_ms;
    next.timeout = crate::config::Timeout { connect_ms, ..timeout.clone() };
    next.limit.body_bytes = limit.body_bytes;
    next.limit.header_bytes = limit.header_bytes;
    next.limit.headers = limit.headers;
    next.limit.prompts = limit.prompts;
    next.limit.encode_items = limit.encode_items;
    next.limit.prefill_reply_bytes = limit.prefill_reply_bytes;
    next.limit.answer_bytes = limit.answer_bytes;
    next.limit.frame_bytes = limit.frame_bytes;
    next.limit.json_depth = limit.json_depth;
    next.limit.json_members = limit.json_members;
    next.limit.overload_status = limit.overload_status;
    let (applied, pending) = (running.differs(&next), next.differs(new));
    Adopted { config: next, applied, pending }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn keys(change: impl FnOnce(&mut Config)) -> (Vec<String>, Vec<String>) {
        let running = Config::default();
        let mut new = running.clone();
        change(&mut new);
        let adopted = adopt(&running, &new);
        (adopted.applied, adopted.pending)
    }

    #[test]
    fn what_can_change_does_and_the_rest_is_named() {
        let (applied, pending) = keys(|config| {
            config.fleet.decode = vec!["d:1".to_owned()];
            config.fleet.decode_ranks = 2;
            config.timeout.total_ms = 1;
            config.timeout.connect_ms = 1;
            config.discovery.kubernetes.namespace = "llm".to_owned();
            config.server.port = 1;
            config.server.admin_key = Some(Secret::new("a"));
            config.engine.api_key = Some(Secret::new("b"));
        });
        assert_eq!(applied, ["server.admin_key", "fleet.decode", "timeout.total_ms"]);
        assert_eq!(
            pending,
            [
                "server.port",
                "fleet.decode_ranks",
                "discovery.kubernetes.namespace",
                "engine.api_key",
                "timeout.connect_ms"
            ]
        );
    }

    #[test]
    fn nothing_new_is_nothing() {
        assert_eq!(keys(|_| {}), (vec![], vec![]));
    }
}
