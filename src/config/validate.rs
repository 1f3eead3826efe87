//! Checks of a configuration that types can't make: each key by the rule in its table, then what
//! keys need of each other. They find everything at once.

use super::error::Invalid;
use super::model::offset_s;
use super::pool::{host_name, rank_host};
use super::table::KeyValue;
use super::{Config, PoolKind, Problem, Secret, Tokens};
use crate::endpoint::{Endpoint, HostError};
use std::collections::{BTreeMap, BTreeSet};

/// Most engines in a role.
const MAX_ENGINES: usize = 4_096;

/// The engines of a role, as they are listed.
struct EngineList<'a> {
    /// Name of the list's key.
    key: &'static str,
    /// The flag that sets it.
    flag: &'static str,
    /// Fewest engines in it.
    least: usize,
    /// Entries of the list.
    entries: &'a [String],
}

impl Config {
    /// Everything that is wrong with the values; empty when the configuration can be run.
    pub(crate) fn validate(&self) -> Vec<Invalid> {
        let mut invalid = Vec::new();
        self.check_rows(|value| !matches!(value, KeyValue::Whole(_) | KeyValue::Fraction(_)), &mut invalid);
        let lists = self.engine_lists();
        lists.iter().for_each(|list| list.check(&mut invalid));
        invalid.extend(self.one_place());
        invalid.extend(lists.iter().flat_map(|list| self.itself(list.key, list.entries)));
        self.discovery.kubernetes.validate(&mut invalid);
        self.dialect.validate(self, &mut invalid);
        secret("engine.api_key", self.engine.api_key.as_ref(), &mut invalid);
        secret("server.admin_key", self.server.admin_key.as_ref(), &mut invalid);
        self.forms(&mut invalid);
        super::tls::validate(self, &mut invalid);
        super::trace::validate(self, &mut invalid);
        super::share::validate(self, &mut invalid);
        self.pool(&mut invalid);
        self.events.validate(self, &mut invalid);
        self.check_rows(|value| matches!(value, KeyValue::Whole(_)), &mut invalid);
        invalid.extend(self.room());
        self.check_rows(|value| matches!(value, KeyValue::Fraction(_)), &mut invalid);
        invalid
    }

    /// Checks by themselves the values that are `chosen`.
    fn check_rows(&self, chosen: fn(KeyValue<'_>) -> bool, invalid: &mut Vec<Invalid>) {
        self.rows().iter().filter(|row| chosen(row.value)).for_each(|row| row.check(invalid));
    }

    /// The engines that are listed; a role that is looked for need not be.
    fn engine_lists(&self) -> [EngineList<'_>; 3] {
        let [prefill, decode] = self.discovery.looks_for().map(|looked_for| usize::from(!looked_for));
        let prefill = if self.fleet.remote.is_some() { 0 } else { prefill };
        let fleet = &self.fleet;
        [
            EngineList { key: "fleet.prefill", flag: "--prefill", least: prefill, entries: &fleet.prefill },
            EngineList { key: "fleet.decode", flag: "--decode", least: decode, entries: &fleet.decode },
            EngineList { key: "fleet.encode", flag: "--encode", least: 0, entries: &fleet.encode },
        ]
    }

    /// With all connections taken by requests, nobody would answer a health check. Told of a key
    /// that is not at its default: who set that has to hear of it.
    fn room(&self) -> Option<Invalid> {
        let (limit, usual) = (&self.limit, super::Limit::default());
        let (connections, requests) = (wide(limit.connections), wide(limit.inflight) + wide(limit.queue));
        let key = if limit.connections != usual.connections {
            "limit.connections"
        } else if limit.inflight != usual.inflight {
            "limit.inflight"
        } else {
            "limit.queue"
        };
        (1..=requests).contains(&connections).then_some((key, Problem::Room { connections, requests }))
    }

    /// Checks the keys that `[pool]` needs, and its addresses.
    fn pool(&self, invalid: &mut Vec<Invalid>) {
        let Self { pool, key, prompt, hash, .. } = self;
        if pool.kind == PoolKind::Off {
            return;
        }
        let value = pool.kind.name();
        let lacks = |needed| ("pool.kind", Problem::Needs { key: "pool.kind", value, needed });
        if pool.kind == PoolKind::Ucm {
            invalid.extend(key.roots.is_empty().then(|| lacks("key.roots")));
        } else if pool.addresses.is_empty() {
            invalid.push(lacks("pool.addresses"));
        }
        let several = matches!(pool.kind, PoolKind::Mooncake | PoolKind::MooncakeHttp | PoolKind::Ems);
        if pool.addresses.len() > 1 && !several && pool.kind != PoolKind::Ucm {
            let count = pool.addresses.len();
            invalid.push(("pool.addresses", Problem::OneAddress { kind: value, count }));
        }
        let by_tokens = matches!(pool.kind, PoolKind::Ems | PoolKind::LmcacheController);
        invalid.extend((key.preset.is_none() && !by_tokens).then(|| lacks("key.preset")));
        invalid.extend((prompt.tokens == Tokens::Off).then(|| lacks("prompt.tokens")));
        invalid.extend(
            (pool.kind == PoolKind::Ems && hash.block_tokens == 0).then(|| lacks("hash.block_tokens")),
        );
        let coordinator = pool.kind == PoolKind::LmcacheCoordinator;
        invalid.extend((coordinator && key.model.is_none()).then(|| lacks("key.model")));
        for (key, texts) in [("pool.addresses", &pool.addresses), ("pool.admins", &pool.admins)] {
            for text in texts {
                let plain = Endpoint::parse(text).and_then(Endpoint::plain);
                if let Err(why) = plain {
                    invalid.push((key, Problem::Host { key, text: text.clone(), why }));
                }
            }
        }
        for text in pool.ranks.iter().filter(|text| rank_host(text).is_none()) {
            invalid.push(("pool.ranks", Problem::NotARank { text: text.clone() }));
        }
        for text in pool.hosts.iter().filter(|text| host_name(text).is_none()) {
            invalid.push(("pool.hosts", Problem::NotAHostName { text: text.clone() }));
        }
    }

    /// Checks values that have a form of their own, and what one key needs of another.
    fn forms(&self, invalid: &mut Vec<Invalid>) {
        let Self { prompt, key, .. } = self;
        let wrong = |key, value: &String, expected: &str| {
            let (name, value, expected) = (String::from(key), value.clone(), expected.to_owned());
            (key, Problem::WrongType { key: name, value, expected })
        };
        let status = self.limit.overload_status;
        if (430..503).contains(&status) {
            invalid.push(wrong("limit.overload_status", &status.to_string(), "503 or 429"));
        }
        if let Some(text) = prompt.utc_offset.as_ref().filter(|text| offset_s(text).is_none()) {
            invalid.push(wrong("prompt.utc_offset", text, "an offset from UTC, as in +08:00"));
        }
        let object = |text: &&String| serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(text);
        if let Some(text) = prompt.template_kwargs.as_ref().filter(|text| object(text).is_err()) {
            invalid.push(wrong(
                "prompt.template_kwargs",
                text,
                r#"a JSON object, as in {"enable_thinking": false}"#,
            ));
        }
        let strings = |text: &&String| serde_json::from_str::<BTreeMap<String, String>>(text);
        if let Some(text) = prompt.reasoning_effort_map.as_ref().filter(|text| strings(text).is_err()) {
            invalid.push(wrong(
                "prompt.reasoning_effort_map",
                text,
                r#"a JSON object of strings, as in {"medium": "low"}"#,
            ));
        }
        if prompt.tokens == Tokens::Local && prompt.model_path.is_none() {
            let needs = Problem::Needs { key: "prompt.tokens", value: "local", needed: "prompt.model_path" };
            invalid.push(("prompt.tokens", needs));
        }
        if key.template.is_some() && key.preset.is_none() {
            let needs = Problem::Needs { key: "key.template", value: "…", needed: "key.preset" };
            invalid.push(("key.template", needs));
        }
    }
}

impl EngineList<'_> {
    fn check(&self, invalid: &mut Vec<Invalid>) {
        let Self { key, flag, least, entries } = *self;
        if !(least..=MAX_ENGINES).contains(&entries.len()) {
            let problem = Problem::Engines { key, count: entries.len(), max: MAX_ENGINES, flag };
            return invalid.push((key, problem));
        }
        let mut seen = BTreeSet::new();
        for text in entries {
            match Endpoint::parse(text) {
                // the value is not quoted: it may hold a password
                Err(why @ HostError::Credentials) => {
                    invalid.push((key, Problem::Host { key, text: "http://…@…".to_owned(), why }));
                }
                Err(why) => invalid.push((key, Problem::Host { key, text: text.clone(), why })),
                Ok(endpoint) => {
                    let name = endpoint.to_string();
                    if !seen.insert(endpoint) {
                        invalid.push((key, Problem::Duplicate { key, endpoint: name }));
                    }
                }
            }
        }
    }
}

/// A key is sent as an HTTP header: visible ASCII only.
fn secret(key: &'static str, value: Option<&Secret>, invalid: &mut Vec<Invalid>) {
    match value.map(Secret::expose) {
        Some("") => invalid.push((key, Problem::EmptyText { key })),
        Some(text) if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            invalid.push((key, Problem::SecretCharacters { key }));
        }
        _ => {}
    }
}

/// A count as wide as bounds are.
fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::table::Rule;
    use super::*;

    fn messages(change: impl FnOnce(&mut Config)) -> Vec<String> {
        let mut config = Config::default();
        change(&mut config);
        config.validate().into_iter().map(|(_, problem)| problem.to_string()).collect()
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(messages(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn every_number_has_bounds_and_nothing_else_has() {
        let config = Config::default();
        for row in config.rows() {
            let is_number = matches!(row.value, KeyValue::Whole(_) | KeyValue::Fraction(_));
            assert_eq!(matches!(row.rule, Rule::Within { .. }), is_number, "{}", row.name);
        }
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let found = messages(|config| {
            config.server.host = "a b".to_owned();
            config.fleet.prefill = vec![];
            config.fleet.decode =
                vec!["h:1".to_owned(), "http://H:1/".to_owned(), "http://u:pw@h:2".to_owned()];
            config.engine.api_key = Some(Secret::new("sk-1\n"));
            config.server.admin_key = Some(Secret::new(""));
            config.limit.inflight = 0;
            config.limit.header_bytes = 100;
            config.retry.delay_ms = f64::NAN;
        });
        assert_eq!(
            found,
            [
                "server.host: `a b` is no host name: letters, digits, `-`, `_` and `.`, at most 63 between dots and 253 in all",
                "fleet.prefill lists 0 engines: expected 1 to 4096, as in --prefill host:port",
                "fleet.decode: `h:1` is listed twice",
                "fleet.decode: `http://…@…` holds credentials: set engine.api_key (or OPENAI_API_KEY) instead",
                "engine.api_key holds a space, line end or other character that no key has: is there a newline at its end?",
                "server.admin_key is empty: leave it out instead",
                "limit.header_bytes = 100: expected 8192 to 1099511627776",
                "limit.inflight = 0: expected 1 to 16777216",
                "retry.delay_ms = NaN: expected 0 to 604800000",
            ]
        );
    }

    #[test]
    fn one_endpoint_may_serve_both_roles_without_a_wait() {
        let found = messages(|config| {
            config.fleet.prefill = vec!["h:7100".to_owned()];
            config.fleet.decode = vec!["h:7100".to_owned()];
            config.limit.queue = 0;
            config.server.port = 0;
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_service_without_standbys_has_one_address() {
        let found = |kind| {
            messages(|config| {
                config.pool.kind = kind;
                config.pool.addresses = vec!["h:1".to_owned(), "h:2".to_owned()];
                config.prompt.tokens = Tokens::Engine;
                config.key.preset = Some("lmcache".to_owned());
                config.key.model = Some("m".to_owned());
                config.hash.block_tokens = 128;
            })
        };
        for kind in [PoolKind::Mooncake, PoolKind::MooncakeHttp, PoolKind::Ems] {
            assert_eq!(found(kind), Vec::<String>::new(), "{}", kind.name());
        }
        for kind in [
            PoolKind::Memcache,
            PoolKind::MemcacheHttp,
            PoolKind::LmcacheController,
            PoolKind::LmcacheCoordinator,
        ] {
            let [only] = &found(kind)[..] else { panic!("one problem with {}", kind.name()) };
            let beginning = format!("pool.addresses lists 2, and pool.kind = {}", kind.name());
            assert!(only.starts_with(&beginning), "{only}");
        }
    }
}
