//! The part of a new configuration that a running gateway can take. The module is pure.

use crate::config::{Config, NamedFleet, Problem, Section};

/// Sections about the engines' protocol. As long as a change in one of them waits for a restart,
/// new lists of engines wait, too: they may be meant for it.
const PROTOCOL_SECTIONS: [&str; 3] = ["discovery.", "dialect.", "engine."];

/// Refusal of a file whose fleets have names where those that run have none, or the reverse: none
/// of its engines would be those of a fleet that runs.
pub const UNLIKE_FLEETS: &str =
    "all fleets.NAME sections came or went at once: restart the gateway, or take the change back";

/// A configuration that was taken as far as possible.
#[derive(Debug)]
pub struct Adoption {
    /// The configuration that runs from now on.
    pub config: Config,
    /// Keys whose new value counts from now on.
    pub applied: Vec<String>,
    /// Keys whose new value counts after a restart.
    pub pending: Vec<String>,
}

/// The part that can be taken makes no sense without the part that can't.
#[derive(Debug, thiserror::Error)]
#[error("{problem}, as long as {} counts only after a restart: restart the gateway", pending.join(" "))]
pub struct PartialChangeError {
    /// Description of the fault.
    problem: Problem,
    /// Keys whose new value counts after a restart.
    pending: Vec<String>,
}

/// Takes from `new` what can change while `running` runs.
///
/// # Errors
/// [`PartialChangeError`] if the part that can be taken is invalid without the rest.
pub fn adopt(running: &Config, new: &Config) -> Result<Adoption, PartialChangeError> {
    let adoption = live(running, new);
    match adoption.config.faults().into_iter().next() {
        Some(fault) => Err(PartialChangeError { problem: fault.into_problem(), pending: adoption.pending }),
        None => Ok(adoption),
    }
}

/// The part of `new` that can be taken, whether or not it makes sense without the rest.
pub fn live(running: &Config, new: &Config) -> Adoption {
    let mut next = running.updated_from(new);
    hold_engines(running, &mut next, new);
    let (mut applied, mut pending) = (names("", &running.differs(&next)), names("", &next.differs(new)));
    let goes = |fleet: &NamedFleet| new.fleets.iter().all(|it| it.name != fleet.name);
    applied
        .extend(next.fleets.iter().filter(|fleet| goes(fleet)).map(|fleet| format!("fleets.{}", fleet.name)));
    next.fleets.retain(|fleet| !goes(fleet));
    for fleet in &mut next.fleets {
        let Some(new) = new.fleets.iter().find(|it| it.name == fleet.name) else { continue };
        let prefix = format!("fleets.{}.", fleet.name);
        let mut config = fleet.config.updated_from(&new.config);
        hold_engines(&fleet.config, &mut config, &new.config);
        applied.extend(own_names(&prefix, &fleet.config.differs(&config), &applied));
        pending.extend(own_names(&prefix, &config.differs(&new.config), &pending));
        fleet.config = config;
        (fleet.origins, fleet.own_keys) = (new.origins.clone(), new.own_keys.clone());
    }
    let is_new = |name: &str| running.fleets.iter().all(|fleet| fleet.name != name);
    for fleet in new.fleets.iter().filter(|fleet| is_new(&fleet.name)) {
        applied.push(format!("fleets.{}", fleet.name));
        next.fleets.push(fleet.clone());
    }
    next.fleets.sort_by(|one, other| one.name.cmp(&other.name));
    Adoption { config: next, applied, pending }
}

/// Keeps the lists of engines while a change of their protocol waits for a restart.
fn hold_engines(running: &Config, next: &mut Config, new: &Config) {
    if next.differs(new).iter().any(|key| PROTOCOL_SECTIONS.iter().any(|section| key.starts_with(section))) {
        next.fleet.prefill.clone_from(&running.fleet.prefill);
        next.fleet.decode.clone_from(&running.fleet.decode);
        next.fleet.encode.clone_from(&running.fleet.encode);
    }
}

fn names(prefix: &str, keys: &[&'static str]) -> Vec<String> {
    keys.iter().map(|key| format!("{prefix}{key}")).collect()
}

/// Keys of a fleet, without those that it takes from the top level, which are `told`.
fn own_names(prefix: &str, keys: &[&'static str], told: &[String]) -> Vec<String> {
    let own: Vec<&'static str> =
        keys.iter().copied().filter(|key| !told.iter().any(|it| it == key)).collect();
    names(prefix, &own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DialectName, Secret};

    fn keys(change: impl FnOnce(&mut Config)) -> (Vec<String>, Vec<String>) {
        let running = Config::default();
        let mut new = running.clone();
        change(&mut new);
        let adoption = adopt(&running, &new).unwrap();
        (adoption.applied, adoption.pending)
    }

    #[test]
    fn reload_adopts_live_keys_and_names_the_rest() {
        let (applied, pending) = keys(|config| {
            config.fleet.decode = vec!["d:1".to_owned()];
            config.fleet.decode_ranks = 2;
            config.timeout.total_ms = 1;
            config.timeout.connect_ms = 1;
            config.limit.inflight = 1;
            config.server.port = 1;
            config.server.admin_key = Some(Secret::new("a"));
        });
        assert_eq!(applied, ["server.admin_key", "fleet.decode", "timeout.total_ms"]);
        assert_eq!(pending, ["server.port", "fleet.decode_ranks", "timeout.connect_ms", "limit.inflight"]);
    }

    #[test]
    fn lists_of_engines_wait_for_what_they_are_spoken_to_with() {
        let with = |change: fn(&mut Config)| {
            keys(|config| {
                config.fleet.decode = vec!["d:1".to_owned()];
                config.timeout.total_ms = 1;
                change(config);
            })
        };
        let applied = ["timeout.total_ms"];
        for (change, key) in [
            ((|config| config.engine.api_key = Some(Secret::new("b"))) as fn(&mut Config), "engine.api_key"),
            (|config| config.discovery.decode_dns = vec!["d:1".to_owned()], "discovery.decode_dns"),
            (|config| config.dialect.name = DialectName::Sglang, "dialect.name"),
        ] {
            let (taken, pending) = with(change);
            assert_eq!(taken, applied);
            let mut expected = vec!["fleet.decode", key];
            expected.sort();
            let mut pending = pending;
            pending.sort();
            assert_eq!(pending, expected);
        }
    }

    #[test]
    fn reload_refuses_keys_that_need_pending_ones() {
        let running = Config::default();
        let mut new = running.clone();
        // The gateway moves, and an engine takes its place.
        (new.server.port, new.fleet.decode) = (9_000, vec![format!("localhost:{}", running.server.port)]);
        assert!(new.validate().is_empty());
        let refused = adopt(&running, &new).unwrap_err().to_string();
        assert!(
            refused.contains("is this gateway itself") && refused.contains("as long as server.port counts"),
            "{refused}"
        );
    }

    #[test]
    fn equal_configurations_change_nothing() {
        assert_eq!(keys(|_| {}), (vec![], vec![]));
    }
}
