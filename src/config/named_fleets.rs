//! `[fleets.NAME]`: fleets side by side. Each has the sections of the top level, from which it
//! takes what it does not say itself. The module is pure.

use std::collections::BTreeMap;

use super::load::{Given, Origin, Origins};
use super::{Config, Endpoint, FleetProblem, ModelsProblem, Problem, endpoints, remote};

/// Name of the only fleet where the configuration names none.
pub const DEFAULT_NAME: &str = "default";

/// Most fleets of one process. Each has loops, a scheduler and metrics of its own.
const MAX_FLEETS: usize = 64;
/// Longest name, bytes: it stands in metrics and URLs.
const MAX_NAME_BYTES: usize = 63;
/// The section that has them.
const SECTION: &str = "fleets";

/// Sections that a fleet can't have: they are about clients, or about the process.
const SHARED_SECTIONS: [&str; 8] = ["server", "tls", "auth", "models", "limit", "log", "trace", "share"];
/// Keys of other sections for which the same holds: times of clients' sockets.
const SHARED_KEYS: [&str; 5] = [
    "timeout.write_ms",
    "timeout.body_ms",
    "timeout.body_grace_ms",
    "timeout.header_ms",
    "timeout.handshake_ms",
];
/// Keys that only a fleet can have where there are some: engines and models are of one.
const FLEET_KEYS: [&str; 13] = [
    "fleet.prefill",
    "fleet.decode",
    "fleet.encode",
    "fleet.ranks",
    "fleet.model",
    "fleet.aliases",
    "discovery.file",
    "discovery.prefill_dns",
    "discovery.decode_dns",
    "discovery.kubernetes.prefill_selector",
    "discovery.kubernetes.decode_selector",
    "discovery.kubernetes.prefill_service",
    "discovery.kubernetes.decode_service",
];

/// A fleet of several.
#[derive(Clone, Debug)]
pub struct NamedFleet {
    /// Name by which operators know it.
    pub name: String,
    /// Its configuration, with what it takes from the top level; it names no fleets itself.
    pub config: Config,
    /// Place where each key of it was set.
    pub origins: Origins,
    /// Keys that are set in it, and not taken from the top level.
    pub own_keys: Vec<String>,
}

/// A fault, and the fleet that has it.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Name of the fleet; `None` = all of them, or the gateway.
    pub(crate) fleet: Option<String>,
    /// Name of the configuration key.
    pub(crate) key: &'static str,
    /// Description of the fault.
    pub(crate) problem: Problem,
}

/// Name of a fleet and the key inside it, of `fleets.NAME.section.key` or of a section in a fleet.
pub(super) fn split_key(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(SECTION)?.strip_prefix('.')?.split_once('.')
}

/// True for `fleets` and `fleets.NAME`.
pub(super) fn is_fleet(section: &str) -> bool {
    section == SECTION || fleet_name(section).is_some()
}

/// Name of the fleet whose section this is: `fleets.NAME`.
pub(super) fn fleet_name(section: &str) -> Option<&str> {
    section.strip_prefix(SECTION)?.strip_prefix('.').filter(|name| !name.contains('.'))
}

/// The section that a table below `[fleet]` is most likely meant to be: `[fleet.chat.fleet]` is
/// `[fleets.chat.fleet]`.
pub(super) fn meant_fleet(key: &str, given: &Given) -> Option<String> {
    let Given::Value(toml::Value::Table(inner)) = given else { return None };
    let name = key.strip_prefix("fleet.").filter(|name| name_fault(name).is_none())?;
    let section = inner.iter().find(|(_, value)| value.is_table()).map_or("fleet", |(section, _)| section);
    Some(format!("[fleets.{name}.{section}]"))
}

/// Finds fault with the name of a fleet.
pub(super) fn name_fault(name: &str) -> Option<Problem> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    // Two underscores stand between the parts of a variable's name.
    let is_name =
        (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain) && !name.contains("__");
    (!is_name).then(|| FleetProblem::FleetName { name: name.chars().take(MAX_NAME_BYTES).collect() }.into())
}

/// Finds fault with a key inside a fleet that is one for all.
pub(super) fn shared_fault(key: &str, inner: &str) -> Option<Problem> {
    let problem = || FleetProblem::SharedByFleets { key: key.to_owned(), shared: inner.to_owned() };
    is_shared(inner).then(|| problem().into())
}

fn is_shared(key: &str) -> bool {
    let section = key.split('.').next().unwrap_or_default();
    SHARED_SECTIONS.contains(&section) || SHARED_KEYS.contains(&key)
}

/// The tree of a fleet: that of the top level with its own keys on top.
pub(super) fn merged(top: &toml::Table, own: &toml::Table) -> toml::Table {
    let mut tree = top.clone();
    for (key, value) in own {
        match (tree.get_mut(key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(own)) => *inner = merged(inner, own),
            _ => drop(tree.insert(key.clone(), value.clone())),
        }
    }
    tree
}

impl Config {
    /// The fleets that this configuration serves, with their names: those of `[fleets]`, or the
    /// only one.
    pub fn served_fleets(&self) -> Vec<(&str, &Config)> {
        if self.fleets.is_empty() {
            return vec![(DEFAULT_NAME, self)];
        }
        self.fleets.iter().map(|fleet| (fleet.name.as_str(), &fleet.config)).collect()
    }

    /// Experimental settings of all fleets, each once.
    pub fn experimental_in_fleets(&self) -> Vec<&'static str> {
        let mut notes = Vec::new();
        for note in self.served_fleets().iter().flat_map(|(_, config)| config.experimental()) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// Everything that is wrong with the values, in all fleets and between them; empty when the
    /// configuration can be run.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let of_none = |(key, problem)| Fault { fleet: None, key, problem };
        if self.fleets.is_empty() {
            let alone = self.fleet.remote.is_some().then(|| ModelsProblem::RemoteAlone.into());
            let alone = alone.map(|problem| ("fleet.remote", problem));
            let own = self.validate().into_iter().chain(alone).map(of_none);
            return own.chain(self.alias_faults()).chain(self.model_faults()).collect();
        }
        let mut faults = self.faults_of_each();
        let count = self.fleets.len();
        if count > MAX_FLEETS {
            let problem = FleetProblem::TooManyFleets { count, max: MAX_FLEETS }.into();
            faults.push(Fault { fleet: None, key: "fleet.prefill", problem });
        }
        faults.extend(self.engine_faults());
        faults.extend(self.alias_faults());
        faults.extend(self.model_faults());
        faults.extend(self.unknown_models());
        if self.fleets.iter().all(|fleet| fleet.config.fleet.remote.is_some()) {
            let problem = ModelsProblem::RemoteAlone.into();
            faults.push(Fault { fleet: None, key: "fleet.remote", problem });
        }
        faults
    }

    /// Faults of each fleet by itself; one that all have is told once.
    fn faults_of_each(&self) -> Vec<Fault> {
        let found: Vec<(&str, &'static str, Problem)> = self
            .fleets
            .iter()
            .flat_map(|fleet| {
                let name = fleet.name.as_str();
                let remote = remote::faults(&fleet.config, &fleet.own_keys);
                let found = fleet.config.validate().into_iter().chain(remote);
                found.map(move |(key, problem)| (name, key, problem))
            })
            .collect();
        let mut counts: BTreeMap<(&'static str, String), usize> = BTreeMap::new();
        for (_, key, problem) in &found {
            *counts.entry((key, problem.to_string())).or_default() += 1;
        }
        let mut faults = Vec::new();
        for (name, key, problem) in found {
            let text = problem.to_string();
            let count = counts.get(&(key, text.clone())).copied().unwrap_or_default();
            let of_all = is_shared(key) || count > 1 && count == self.fleets.len();
            match of_all {
                false => faults.push(Fault { fleet: Some(name.to_owned()), key, problem }),
                true if counts.remove(&(key, text)).is_some() => {
                    faults.push(Fault { fleet: None, key, problem });
                }
                true => {}
            }
        }
        faults
    }

    /// Engines that two fleets list.
    fn engine_faults(&self) -> Vec<Fault> {
        let mut known: BTreeMap<Endpoint, &str> = BTreeMap::new();
        let mut faults = Vec::new();
        // Of one API elsewhere several models may be used, each as a fleet.
        for NamedFleet { name, config, .. } in self.fleets.iter().filter(|it| it.config.remote().is_none()) {
            let lists = [
                ("fleet.prefill", &config.fleet.prefill),
                ("fleet.decode", &config.fleet.decode),
                ("fleet.encode", &config.fleet.encode),
            ];
            for (key, engine) in
                lists.iter().flat_map(|(key, list)| endpoints(list).into_iter().map(|it| (*key, it)))
            {
                let text = engine.to_string();
                match known.get(&engine) {
                    Some(one) if *one != name => {
                        let (one, other) = ((*one).to_owned(), name.clone());
                        let problem =
                            FleetProblem::EngineOfTwoFleets { key, endpoint: text, one, other }.into();
                        faults.push(Fault { fleet: Some(name.clone()), key, problem });
                    }
                    Some(_) => {}
                    None => drop(known.insert(engine, name)),
                }
            }
        }
        faults
    }

    /// Names of models that are claimed twice, and aliases of aliases.
    fn alias_faults(&self) -> Vec<Fault> {
        let mut fleets = self.served_fleets();
        // Only a fall-back leads to an API elsewhere: its names are no names of the gateway.
        fleets.retain(|(_, config)| config.fleet.remote.is_none());
        let routed = self.models.routed();
        let is_shared_out = |model: &str| routed.iter().any(|it| it.name == model && !it.targets.is_empty());
        let mut claimed: BTreeMap<String, &str> = BTreeMap::new();
        let mut faults = Vec::new();
        let several = !self.fleets.is_empty();
        let named = |name: &str| several.then(|| name.to_owned());
        for (fleet, config) in &fleets {
            for (at, model) in config.fleet.claimed_names().into_iter().enumerate() {
                let is_model = at == 0 && config.fleet.model.is_some();
                let key = if is_model { "fleet.model" } else { "fleet.aliases" };
                match claimed.get(&model) {
                    Some(one) if one != fleet && is_shared_out(&model) => {}
                    Some(one) => {
                        let (one, other) = ((*one).to_owned(), (*fleet).to_owned());
                        let problem = FleetProblem::NameClaimedTwice { key, model, one, other }.into();
                        faults.push(Fault { fleet: named(fleet), key, problem });
                    }
                    None => drop(claimed.insert(model, fleet)),
                }
            }
        }
        let aliases = || {
            fleets.iter().flat_map(|(name, config)| {
                config.fleet.aliases().into_iter().map(move |alias| (*name, alias))
            })
        };
        for (fleet, alias) in aliases() {
            if aliases().any(|(_, other)| other.name == alias.model) {
                let problem = FleetProblem::AliasOfAlias { alias: alias.name, model: alias.model }.into();
                faults.push(Fault { fleet: named(fleet), key: "fleet.aliases", problem });
                continue;
            }
            let is_model_of = |config: &Config| config.fleet.model.as_deref() == Some(&alias.model);
            let own = fleets.iter().any(|(name, config)| *name == fleet && is_model_of(config));
            let other = fleets.iter().find(|(_, config)| is_model_of(config)).filter(|_| !own);
            if let Some((other, _)) = other {
                let (alias, model, other) = (alias.name, alias.model, (*other).to_owned());
                let problem = FleetProblem::AliasElsewhere { alias, model, other }.into();
                faults.push(Fault { fleet: named(fleet), key: "fleet.aliases", problem });
            }
        }
        faults
    }

    /// Fleets whose models nobody can know.
    fn unknown_models(&self) -> Option<Fault> {
        let unknown = |fleet: &&NamedFleet| {
            fleet.config.health.probe_ms == 0 && fleet.config.fleet.claimed_names().is_empty()
        };
        let fleet = self.fleets.iter().find(unknown).filter(|_| self.fleets.len() > 1)?;
        Some(Fault {
            fleet: Some(fleet.name.clone()),
            key: "health.probe_ms",
            problem: FleetProblem::UnknownModels.into(),
        })
    }

    /// Keys that are set at the top level, and of one fleet where there are several.
    pub(super) fn misplaced(&self, origins: &Origins) -> Vec<Fault> {
        let Some(first) = self.fleets.first() else { return Vec::new() };
        let set = FLEET_KEYS.into_iter().filter(|key| *origins.of(key) != Origin::Default);
        set.map(|key| {
            let problem = FleetProblem::OfOneFleet { key, fleet: first.name.clone() }.into();
            Fault { fleet: None, key, problem }
        })
        .collect()
    }
}

impl Fault {
    /// The fault with the name of its fleet in its words.
    pub(crate) fn into_problem(self) -> Problem {
        match self.fleet {
            Some(fleet) => FleetProblem::InFleet { fleet, problem: Box::new(self.problem) }.into(),
            None => self.problem,
        }
    }
}

#[cfg(test)]
mod tests;
