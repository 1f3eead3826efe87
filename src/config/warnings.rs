//! Finds values that are valid and most likely not meant: variables that nothing reads, a port
//! without its host, one engine in both lists.

use super::load::{Env, Origin, Origins};
use super::schema::distance;
use super::{Config, source};

/// A variable that differs from a known one by more letters than this is not taken for it.
const MAX_DISTANCE: usize = 3;
/// The most variables that are named: an environment may hold any number of them.
const MAX_NAMED: usize = 16;

/// Name of a preset that another package of vllm-ascend has by now, and its name since.
const OLD_PRESET: &str = "ascend-store-v1";
const NEW_PRESET: &str = "ascend-legacy-0.10";

/// The warnings, one line each.
pub(super) fn find(config: &Config, origins: &Origins, env: &Env) -> Vec<String> {
    let unread = env.iter().filter(|(name, value)| is_unread(name, value));
    let mut found: Vec<String> =
        unread.take(MAX_NAMED).map(|(name, _)| unread_variable(config, name)).collect();
    if config.server.admin_host.is_none() && *origins.of("server.admin_port") != Origin::Default {
        found.push(format!(
            "server.admin_port = {} has no effect without server.admin_host: set that to the address where operators are to be served, as in 127.0.0.1",
            config.server.admin_port
        ));
    }
    if config.key.preset.as_deref() == Some(OLD_PRESET) {
        found.push(format!(
            "key.preset = {OLD_PRESET:?} is deprecated, since later releases of vllm-ascend have an ascend_store/v1 with other keys: write {NEW_PRESET:?}, which is the same"
        ));
    }
    // `--prefill disable` puts the decoders into both lists, which is meant.
    if origins.of("fleet.prefill") != origins.of("fleet.decode") {
        let both = config.fleet.prefill.iter().filter(|engine| config.fleet.decode.contains(engine));
        found.extend(both.map(|engine| {
            format!("fleet.prefill and fleet.decode both list {engine}: it will prefill and decode its requests by itself; take it out of one list if that is not meant")
        }));
    }
    found
}

/// True if the variable has our prefix and nothing reads it. Kubernetes sets such variables for a
/// Service named `pd-proxy`, as `PD_PROXY_PORT=tcp://10.0.0.1:8000`.
fn is_unread(name: &str, value: &str) -> bool {
    let Some(rest) = name.strip_prefix(source::COMMON_PREFIX) else { return false };
    let of_service = rest.starts_with("SERVICE_")
        || value.starts_with("tcp://")
        || value.starts_with("udp://")
        || rest.contains("_TCP")
        || rest.contains("_UDP")
        || rest.contains("_SERVICE_");
    !source::is_ours(name) && !of_service
}

fn unread_variable(config: &Config, name: &str) -> String {
    let rows = config.rows();
    let of_key = |key: &str| format!("{}{}", source::PREFIX, key.to_ascii_uppercase().replace('.', "__"));
    let others = [source::FILES, source::DEFAULT_HOST].map(str::to_owned);
    let known = rows.iter().map(|row| of_key(row.name)).chain(others);
    // One underscore in place of two is the usual mistake.
    let plain = |name: &str| name.replace("__", "_");
    let near = known.map(|known| (distance(&plain(name), &plain(&known)), known));
    let key = name.strip_prefix(source::COMMON_PREFIX).unwrap_or(name).to_ascii_lowercase();
    let namesake = rows.iter().find(|row| row.name.rsplit('.').next() == Some(key.as_str()));
    let nearest = near.min().filter(|(distance, _)| *distance <= MAX_DISTANCE).map(|(_, known)| known);
    match nearest.or_else(|| namesake.map(|row| of_key(row.name))) {
        Some(nearest) => format!("the variable {name} is not read: did you mean {nearest}?"),
        None => format!(
            "the variable {name} is not read: keys are set by {}SECTION__KEY, as in {}SERVER__PORT",
            source::PREFIX,
            source::PREFIX
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ServeArgs;

    fn warnings(sets: &[&str], env: &[(&str, &str)]) -> Vec<String> {
        let args =
            ServeArgs { set: sets.iter().map(|set| (*set).to_owned()).collect(), ..ServeArgs::default() };
        let env: Env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Config::load(&args, &env).unwrap().warnings
    }

    #[test]
    fn a_variable_that_nothing_reads_is_told_with_the_nearest() {
        for (name, nearest) in [
            ("PD_PROXY_SERVER_PORT", "PD_PROXY__SERVER__PORT"),
            ("PD_PROXY_HEALTH_PROBEMS", "PD_PROXY__HEALTH__PROBE_MS"),
            ("PD_PROXY_CONFG", "PD_PROXY_CONFIG"),
            ("PD_PROXY_POLICY", "PD_PROXY__ROUTE__POLICY"),
            ("PD_PROXY_NOTHING_LIKE_IT", "PD_PROXY__SECTION__KEY"),
        ] {
            let found = warnings(&[], &[(name, "1")]);
            assert!(found.len() == 1 && found[0].contains(name) && found[0].contains(nearest), "{found:?}");
        }
    }

    /// Kubernetes sets them in every pod of a namespace with a Service of this name.
    #[test]
    fn variables_of_a_service_are_no_mistake() {
        let env = [
            ("PD_PROXY_SERVICE_HOST", "10.0.0.1"),
            ("PD_PROXY_SERVICE_PORT", "8000"),
            ("PD_PROXY_SERVICE_PORT_HTTP", "8000"),
            ("PD_PROXY_PORT", "tcp://10.0.0.1:8000"),
            ("PD_PROXY_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
            ("PD_PROXY_PORT_8000_TCP_PROTO", "tcp"),
            ("PD_PROXY_ADMIN_SERVICE_HOST", "10.0.0.2"),
            ("PD_PROXY__SERVER__PORT", "9000"),
            ("PD_PROXYX", "1"),
        ];
        assert_eq!(warnings(&[], &env), Vec::<String>::new());
        assert_eq!(warnings(&[], &[("PD_PROXY_PORT", "9000")]).len(), 1, "that was meant for us");
    }

    #[test]
    fn a_preset_by_its_old_name_is_told_with_the_new_one() {
        let found = warnings(&["key.preset=ascend-store-v1"], &[]);
        assert!(found.len() == 1 && found[0].contains("\"ascend-legacy-0.10\""), "{found:?}");
        assert_eq!(warnings(&["key.preset=ascend-legacy-0.10"], &[]).len(), 0);
    }

    #[test]
    fn a_port_without_its_host_and_an_engine_in_both_lists_are_told() {
        let found = warnings(&["server.admin_port=9000"], &[]);
        assert!(found.len() == 1 && found[0].contains("server.admin_host"), "{found:?}");
        assert_eq!(warnings(&["server.admin_port=9000", "server.admin_host=127.0.0.1"], &[]).len(), 0);
        let file = [("PD_PROXY__FLEET__PREFILL", "a:1,b:2")];
        let found = warnings(&["fleet.decode=b:2,c:3"], &file);
        assert!(found.len() == 1 && found[0].contains("b:2"), "{found:?}");
        assert_eq!(warnings(&["fleet.decode=c:3"], &file).len(), 0);
    }
}
