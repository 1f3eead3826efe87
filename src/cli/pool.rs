//! `--pool`: one URL that names a pool and its addresses, as entries of the configuration.
//!
//! The URL's own values win over files and variables, as every flag does, and lose against `--set`.
//! Keys that follow from it (who tokenises, how keys are spelled) lose against every explicit one.

use super::ServeArgs;
use crate::config::load::{CollectedEntries, Entry, Given, Origin};
use crate::config::{ConfigError, Problem};

const FLAG: &str = "--pool";

/// A scheme of such URLs.
struct Scheme {
    name: &'static str,
    /// Value of `pool.kind`.
    kind: &'static str,
    /// Port where the URL names none; 0 = it has to.
    port: u16,
    /// Keys that follow, unless they are set.
    follow: &'static [(&'static str, &'static str)],
    example: &'static str,
}

const SCHEMES: [Scheme; 8] = [
    Scheme {
        name: "mooncake",
        kind: "mooncake",
        port: 50051,
        follow: &[("key.preset", "mooncake-store")],
        example: "mooncake://10.0.0.8:50051?admin=9003",
    },
    Scheme {
        name: "mooncake+http",
        kind: "mooncake_http",
        port: 9003,
        follow: &[("key.preset", "mooncake-store")],
        example: "mooncake+http://10.0.0.8:9003",
    },
    Scheme {
        name: "memcache",
        kind: "memcache",
        port: 0,
        follow: &[("key.preset", "ascend-0.26"), ("key.store", "memcache")],
        example: "memcache://10.0.0.8:5000?admin=8000",
    },
    Scheme {
        name: "memcache+http",
        kind: "memcache_http",
        port: 0,
        follow: &[("key.preset", "ascend-0.26"), ("key.store", "memcache")],
        example: "memcache+http://10.0.0.8:8000",
    },
    Scheme {
        name: "ems",
        kind: "ems",
        port: 0,
        follow: &[("hash.scheme", "ems"), ("hash.block_tokens", "128")],
        example: "ems://10.0.0.1:60687,10.0.0.2:60687",
    },
    Scheme {
        name: "ucm",
        kind: "ucm",
        port: 0,
        follow: &[("key.preset", "ucm-posix"), ("key.store", "files")],
        example: "ucm:///mnt/ucm",
    },
    Scheme {
        name: "lmcache",
        kind: "lmcache_controller",
        port: 0,
        follow: &[],
        example: "lmcache://10.0.0.8:9000",
    },
    Scheme {
        name: "lmcache+mp",
        kind: "lmcache_coordinator",
        port: 0,
        follow: &[("key.preset", "lmcache-mp")],
        example: "lmcache+mp://10.0.0.8:9300",
    },
];

/// Parameters behind the question mark, and the keys that they set. `admin` is read apart.
const PARAMETERS: [(&str, &str); 3] =
    [("preset", "key.preset"), ("tenant", "pool.tenant"), ("block", "hash.block_tokens")];

/// A URL in its parts.
struct PoolUrl<'a> {
    scheme: &'static Scheme,
    /// Addresses, or directories.
    places: Vec<&'a str>,
    parameters: Vec<(&'a str, &'a str)>,
}

/// The part of a URL that can't be used, and the mending.
struct BadPart {
    value: String,
    fix: String,
}

impl ServeArgs {
    /// Adds what `--pool` says.
    pub(super) fn pool(&self, found: &mut CollectedEntries) {
        let Some(text) = &self.pool else { return };
        match entries(text.trim()) {
            Ok(entries) => found.entries.extend(entries),
            Err(BadPart { value, fix }) => {
                let origin = Origin::Flag(FLAG.to_owned());
                found.errors.push(ConfigError { origin, problem: Problem::PoolUrl { value, fix } });
            }
        }
    }

    /// Adds what follows from `--pool`, which is weaker than all that was said of the same keys.
    pub(crate) fn follow_pool(&self, found: &mut CollectedEntries) {
        let Some(Ok(url)) = self.pool.as_deref().map(|text| PoolUrl::parse(text.trim())) else { return };
        let follow = url.scheme.follow.iter().map(|(key, text)| entry(key, text));
        found.entries.splice(0..0, follow.collect::<Vec<_>>());
    }
}

fn entries(text: &str) -> Result<Vec<Entry>, BadPart> {
    let url = PoolUrl::parse(text)?;
    let scheme = url.scheme;
    let mut entries = vec![entry("pool.kind", scheme.kind)];
    let is_folders = scheme.kind == "ucm";
    let places = match is_folders {
        true => url.places.iter().map(|place| (*place).to_owned()).collect(),
        false => url.addresses()?,
    };
    entries.push(list(if is_folders { "key.roots" } else { "pool.addresses" }, places.clone()));
    for (name, value) in &url.parameters {
        if *name == "admin" {
            let admins = value.split(',').map(str::trim).filter(|admin| !admin.is_empty());
            let admins = admins.flat_map(|admin| at_hosts(admin, &places)).collect();
            entries.push(list("pool.admins", admins));
        } else if let Some((_, key)) = PARAMETERS.iter().find(|(known, _)| known == name) {
            entries.push(entry(key, value));
        }
    }
    Ok(entries)
}

impl<'a> PoolUrl<'a> {
    fn parse(text: &'a str) -> Result<PoolUrl<'a>, BadPart> {
        let bad = |value: &str, fix: String| BadPart { value: value.to_owned(), fix };
        let known = || {
            let examples: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.example).collect();
            format!("write it as one of {}", examples.join(", "))
        };
        let Some((name, rest)) = text.split_once("://") else { return Err(bad(hidden(text), known())) };
        let name = name.to_ascii_lowercase();
        let Some(scheme) = SCHEMES.iter().find(|scheme| scheme.name == name) else {
            return Err(bad(&format!("{name}://"), known()));
        };
        let such = format!("write it as in {}", scheme.example);
        let (places, query) = rest.split_once('?').unwrap_or((rest, ""));
        if places.contains('@') {
            return Err(bad("…@…", format!("pools take no credentials here: {such}")));
        }
        let places = match scheme.kind {
            "ucm" => places,
            // What clients of such URLs leave at the end.
            _ => places.trim_end_matches('/'),
        };
        let places: Vec<&str> = places.split(',').map(str::trim).filter(|place| !place.is_empty()).collect();
        if places.is_empty() {
            return Err(bad(text, format!("it names no address: {such}")));
        }
        if let Some(place) = places.iter().find(|place| scheme.kind == "ucm" && !place.starts_with('/')) {
            return Err(bad(place, format!("a directory begins with a slash, after the two of ://: {such}")));
        }
        let mut parameters = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_known = name == "admin" || PARAMETERS.iter().any(|(known, _)| *known == name);
            if !is_known || value.is_empty() {
                let fix = "its parameters are admin=PORT, preset=NAME, tenant=NAME and block=TOKENS; other keys are set by --set";
                return Err(bad(pair, fix.to_owned()));
            }
            parameters.push((name, value));
        }
        Ok(PoolUrl { scheme, places, parameters })
    }

    /// The addresses, each with a port.
    fn addresses(&self) -> Result<Vec<String>, BadPart> {
        let with_port = |place: &&str| {
            let has_port =
                place.rsplit_once(':').is_some_and(|(host, _)| !host.is_empty() && !place.ends_with(']'));
            match (has_port, self.scheme.port) {
                (true, _) => Ok((*place).to_owned()),
                (false, 0) => {
                    let fix = format!("it names no port: write it as in {}", self.scheme.example);
                    Err(BadPart { value: (*place).to_owned(), fix })
                }
                (false, port) => Ok(format!("{place}:{port}")),
            }
        };
        self.places.iter().map(with_port).collect()
    }
}

/// An admin address: a port alone is one on each host of `places`.
fn at_hosts(admin: &str, places: &[String]) -> Vec<String> {
    if !admin.bytes().all(|byte| byte.is_ascii_digit()) {
        return vec![admin.to_owned()];
    }
    let hosts = places.iter().filter_map(|place| place.rsplit_once(':'));
    hosts.map(|(host, _)| format!("{host}:{admin}")).collect()
}

/// A text that may hold a password, as it may be shown.
fn hidden(text: &str) -> &str {
    if text.contains('@') { "…@…" } else { text }
}

fn entry(key: &str, text: &str) -> Entry {
    let origin = Origin::Flag(FLAG.to_owned());
    Entry { key: key.to_owned(), given: Given::Text(text.to_owned()), origin }
}

fn list(key: &str, values: Vec<String>) -> Entry {
    let values = values.into_iter().map(toml::Value::String).collect();
    Entry { given: Given::Value(toml::Value::Array(values)), ..entry(key, "") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Env, Loaded, PoolKind, Tokens};

    fn loaded(pool: &str, sets: &[&str], env: &[(&str, &str)]) -> Result<Loaded, String> {
        let args = ServeArgs {
            pool: Some(pool.to_owned()),
            model_path: Some("/models/none".to_owned()),
            tp: Some("2".to_owned()),
            seed: Some("0".to_owned()),
            set: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..ServeArgs::default()
        };
        let env: Env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Config::load(&args, &env).map_err(|errors| errors.to_string())
    }

    #[test]
    fn one_line_configures_a_pool_and_says_where_each_value_came_from() {
        let loaded = loaded("mooncake://10.0.0.8:50088,10.0.0.9?admin=9003", &[], &[]).unwrap();
        let Config { pool, key, hash, prompt, .. } = &loaded.config;
        assert_eq!(pool.kind, PoolKind::Mooncake);
        assert_eq!(pool.addresses, ["10.0.0.8:50088", "10.0.0.9:50051"]);
        assert_eq!(pool.admins, ["10.0.0.8:9003", "10.0.0.9:9003"]);
        assert_eq!(
            (key.preset.as_deref(), key.tp, hash.seed.as_deref()),
            (Some("mooncake-store"), 2, Some("0"))
        );
        assert_eq!((prompt.tokens, loaded.config.tokens()), (Tokens::Auto, Tokens::Auto));
        for key in ["pool.kind", "pool.addresses", "pool.admins", "key.preset"] {
            assert_eq!(loaded.origins.of(key).to_string(), "flag --pool", "{key}");
        }
    }

    #[test]
    fn every_example_is_a_configuration() {
        for scheme in &SCHEMES {
            let sets: &[&str] = if scheme.name == "lmcache+mp" { &["key.model=m"] } else { &[] };
            let loaded = loaded(scheme.example, sets, &[]).unwrap();
            assert_eq!(loaded.config.pool.kind.name(), scheme.kind);
        }
        let loaded = loaded("ucm:///mnt/a,/mnt/b?preset=ucm-pcstore", &[], &[]).unwrap();
        assert_eq!(loaded.config.key.roots, ["/mnt/a", "/mnt/b"]);
        assert_eq!(loaded.config.key.preset.as_deref(), Some("ucm-pcstore"));
    }

    #[test]
    fn explicit_keys_win_over_what_follows_and_set_over_all() {
        let env = [("PD_PROXY__KEY__PRESET", "mooncake-store-0.24"), ("PD_PROXY__PROMPT__TOKENS", "engine")];
        let loaded = loaded("mooncake://a:1", &["pool.addresses=b:2", "key.tp=4"], &env).unwrap();
        let Config { pool, key, prompt, .. } = &loaded.config;
        assert_eq!((key.preset.as_deref(), prompt.tokens), (Some("mooncake-store-0.24"), Tokens::Engine));
        assert_eq!((&pool.addresses[..], key.tp), (&["b:2".to_owned()][..], 4));
    }

    #[test]
    fn a_bad_url_names_the_part_and_the_mending() {
        for (url, words) in [
            ("10.0.0.8:50051", "`10.0.0.8:50051` in --pool: write it as one of mooncake://"),
            ("redis://a:1", "`redis://` in --pool: write it as one of mooncake://"),
            ("mooncake://", "`mooncake://` in --pool: it names no address: write it as in mooncake://"),
            ("memcache://10.0.0.8", "`10.0.0.8` in --pool: it names no port: write it as in memcache://"),
            ("ucm://mnt/a", "`mnt/a` in --pool: a directory begins with a slash"),
            ("mooncake://u:secret@a:1", "`…@…` in --pool: pools take no credentials here"),
            ("mooncake://a:1?admim=9003", "`admim=9003` in --pool: its parameters are admin=PORT"),
            ("mooncake://a:1?admin=", "`admin=` in --pool: its parameters are admin=PORT"),
            ("mooncake://a b:1", "pool.addresses: `a b:1`"),
        ] {
            let error = loaded(url, &[], &[]).unwrap_err();
            assert!(error.contains(words) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
