//! The known keys, read off the tables, and the nearest of them to a name that is none.

use super::Config;
use super::named_fleets;
use super::table::{Kind, Rule};

/// A name that differs by more than this many letters, or by a third of its own, is not offered as
/// the nearest.
const MAX_DISTANCE: usize = 3;
/// Names longer than this are not compared, bytes.
const MAX_COMPARED_BYTES: usize = 64;

/// Every `section.key` with the kind of its values, in the order of the tree.
pub(crate) struct Schema {
    keys: Vec<(&'static str, Kind)>,
}

/// The keys whose value is a secret, each with the environment variable that also sets it.
pub(crate) fn secrets() -> Vec<(&'static str, &'static str)> {
    let config = Config::default();
    let variable = |rule| if let Rule::Secret { variable } = rule { Some(variable) } else { None };
    config.rows().iter().filter_map(|row| Some((row.name, variable(row.rule)?))).collect()
}

impl Schema {
    /// The schema of the default tree.
    pub(crate) fn of_defaults() -> Self {
        let config = Config::default();
        Self { keys: config.rows().iter().map(|row| (row.name, row.value.kind())).collect() }
    }

    /// The kind of a key, at the top level or in a fleet; `None` when there is no such key.
    pub(crate) fn kind(&self, key: &str) -> Option<Kind> {
        let key = named_fleets::split_key(key).map_or(key, |(_, inner)| inner);
        self.keys.iter().find(|(known, _)| *known == key).map(|(_, kind)| *kind)
    }

    /// True if a section has this name, at the top level or in a fleet, or if it is a fleet.
    pub(crate) fn is_section(&self, name: &str) -> bool {
        if named_fleets::is_fleet(name) {
            return true;
        }
        let name = named_fleets::split_key(name).map_or(name, |(_, inner)| inner);
        self.keys.iter().any(|(key, _)| key.rsplit_once('.').is_some_and(|(section, _)| section == name))
    }

    /// The known key that an unknown one most likely means, written where it belongs: in the fleet
    /// that the unknown one names, unless it is one for all.
    pub(crate) fn nearest_to(&self, unknown: &str) -> Option<String> {
        let nearest = self.nearest(unknown)?;
        match named_fleets::split_key(unknown) {
            Some((fleet, _)) if named_fleets::shared_fault(unknown, nearest).is_none() => {
                Some(format!("fleets.{fleet}.{nearest}"))
            }
            _ => Some(nearest.to_owned()),
        }
    }

    /// The known key that an unknown one most likely means: the same name in another section, else
    /// the least edit.
    pub(crate) fn nearest(&self, unknown: &str) -> Option<&'static str> {
        let unknown = named_fleets::split_key(unknown).map_or(unknown, |(_, inner)| inner);
        let name = |key: &str| key.rsplit('.').next().map(str::to_owned);
        let namesake = self.keys.iter().find(|(key, _)| name(key) == name(unknown));
        let nearest = || {
            let near = self.keys.iter().filter_map(|(key, _)| Some((key_distance(unknown, key)?, key)));
            near.min_by_key(|(distance, _)| *distance).map(|(_, key)| *key)
        };
        namesake.map(|(key, _)| *key).or_else(nearest)
    }
}

impl Kind {
    /// Reads bare text, as variables and flags give it. What cannot be read stays a string, for the
    /// type check to refuse.
    pub(crate) fn read(self, text: &str) -> toml::Value {
        let as_toml = text.trim().parse::<toml::Value>().ok();
        match (self, as_toml) {
            (Self::Text, Some(value @ toml::Value::String(_)))
            | (Self::List, Some(value @ toml::Value::Array(_)))
            | (Self::Other, Some(value)) => value,
            (Self::List, _) => {
                let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
                toml::Value::Array(entries.map(|entry| toml::Value::String(entry.to_owned())).collect())
            }
            _ => toml::Value::String(text.to_owned()),
        }
    }
}

/// Edit distance between a key and an unknown one; `None` when its section or its name alone is too
/// far to be meant.
fn key_distance(unknown: &str, key: &str) -> Option<usize> {
    let close = |unknown: &str, known: &str| {
        let far = (unknown.len() / 3).clamp(1, MAX_DISTANCE);
        Some(distance(unknown, known)).filter(|distance| *distance <= far)
    };
    let (section, name) = key.rsplit_once('.')?;
    match unknown.rsplit_once('.') {
        Some((unknown_section, unknown_name)) => {
            Some(close(unknown_section, section)? + close(unknown_name, name)?)
        }
        None => close(unknown, name),
    }
}

/// Counts the letters to insert, delete, replace or swap with their neighbour to make one name the
/// other.
pub(super) fn distance(left: &str, right: &str) -> usize {
    // The comparison takes time and memory of both lengths multiplied.
    if left.len().max(right.len()) > MAX_COMPARED_BYTES {
        return usize::MAX;
    }
    strsim::osa_distance(left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_letter_edits() {
        for (left, right, edits) in [
            ("", "", 0),
            ("port", "port", 0),
            ("prot", "port", 1),
            ("polcy", "policy", 1),
            ("", "abc", 3),
            ("hosts", "host", 1),
        ] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
        }
    }

    #[test]
    fn the_nearest_key_is_a_namesake_or_a_small_edit() {
        let schema = Schema::of_defaults();
        for (unknown, nearest) in [
            ("route.polcy", Some("route.policy")),
            ("server.policy", Some("route.policy")),
            ("port", Some("server.port")),
            ("sever.port", Some("server.port")),
            ("fleet.prefil", Some("fleet.prefill")),
            ("limits.body_byte", Some("limit.body_bytes")),
            ("server.prot", Some("server.port")),
            ("server.tls", None),
            ("tls.certificate", None),
        ] {
            assert_eq!(schema.nearest(unknown), nearest, "{unknown}");
        }
    }

    #[test]
    fn nearest_key_of_a_fleet_is_one_of_that_fleet() {
        let schema = Schema::of_defaults();
        for (unknown, nearest) in [
            ("fleets.a.prefill", "fleets.a.fleet.prefill"),
            ("fleets.a.route.polcy", "fleets.a.route.policy"),
            ("fleets.a.server.prot", "server.port"),
            ("route.polcy", "route.policy"),
        ] {
            assert_eq!(schema.nearest_to(unknown).as_deref(), Some(nearest), "{unknown}");
        }
    }

    #[test]
    fn bare_text_is_read_by_the_kind_of_its_key() {
        let list = |entries: &[&str]| toml::Value::from(entries.to_vec());
        assert_eq!(Kind::Text.read("123"), toml::Value::from("123"));
        assert_eq!(Kind::Text.read("\"a b\""), toml::Value::from("a b"));
        assert_eq!(Kind::List.read("a:1, b:2"), list(&["a:1", "b:2"]));
        assert_eq!(Kind::List.read("[\"a:1\"]"), list(&["a:1"]));
        assert_eq!(Kind::Other.read("64_000"), toml::Value::from(64_000));
        assert_eq!(Kind::Other.read("many"), toml::Value::from("many"));
    }

    #[test]
    fn secrets_are_texts_of_the_tree() {
        let schema = Schema::of_defaults();
        assert_eq!(secrets().len(), 4);
        for (key, _) in secrets() {
            assert_eq!(schema.kind(key), Some(Kind::Text), "{key}");
        }
        assert!(schema.is_section("server") && !schema.is_section("port"));
    }
}
