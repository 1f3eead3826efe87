//! Keys and values that an earlier release took and this one does not, with what takes their place.
//! Without this table they would be unknown names among others.

use crate::config::Problem;

/// A name that is gone, and the advice for those that still have it in a file.
struct Removed {
    /// Name of the key, as `section.key`.
    key: &'static str,
    /// The value that is gone, in small letters with `_`; `None` if the whole key is.
    value: Option<&'static str>,
    /// Ends the message: the reason, and what to use instead.
    instead: &'static str,
}

const P2P_NCCL: &str = "vLLM has no P2pNcclConnector since 0.32: start the engines with NixlConnector or MooncakeConnector \
                        and leave dialect.name out";

const KV_CONNECTION: &str =
    "it was for P2pNcclConnector alone, which vLLM does not have since 0.32: leave it out";

const PREFIX_FIRST: &str = "it was for comparison alone: `pd-proxy replay --policy prefix-first` still has it; to serve, use \
                            cache_aware, or leave route.policy out";

const REMOVED: &[Removed] = &[
    Removed { key: "dialect.name", value: Some("p2p_nccl"), instead: P2P_NCCL },
    Removed { key: "route.policy", value: Some("prefix_first"), instead: PREFIX_FIRST },
    Removed { key: "dialect.kv_port", value: None, instead: KV_CONNECTION },
    Removed { key: "dialect.kv_addresses", value: None, instead: KV_CONNECTION },
];

/// The problem of a key that is gone; `None` for any other.
pub(super) fn key(key: &str) -> Option<Problem> {
    let gone = REMOVED.iter().find(|it| it.key == key && it.value.is_none())?;
    Some(Problem::Removed { given: key.to_owned(), instead: gone.instead })
}

/// The problem of a value that is gone, in any of its spellings; `None` for any other.
pub(super) fn value(key: &str, value: &toml::Value) -> Option<Problem> {
    let name = value.as_str()?.to_ascii_lowercase().replace('-', "_");
    let gone = REMOVED.iter().find(|it| it.key == key && it.value == Some(name.as_str()))?;
    Some(Problem::Removed { given: format!("{key} = {value}"), instead: gone.instead })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ServeArgs;
    use crate::config::schema::Schema;
    use crate::config::{Config, DialectName, Env, Policy};

    #[test]
    fn names_that_are_gone_are_refused_with_what_takes_their_place_from_every_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        std::fs::write(&path, "[dialect]\nname = \"P2P-nccl\"\nkv_port = 14_579\nkv_addresses = []\n")
            .unwrap();
        let args = ServeArgs {
            config: vec![path.clone()],
            set: vec!["dialect.name=p2p_nccl".to_owned(), "route.policy=prefix-first".to_owned()],
            ..ServeArgs::default()
        };
        let env = Env::from([("PD_PROXY__DIALECT__NAME".to_owned(), "p2p_nccl".to_owned())]);
        let errors = Config::load(&args, &env).unwrap_err().to_string();
        let file = format!("file {}: ", path.display());
        for expected in [
            format!("{file}dialect.name = \"P2P-nccl\" is no longer taken: {P2P_NCCL}"),
            format!("{file}dialect.kv_port is no longer taken: {KV_CONNECTION}"),
            format!("{file}dialect.kv_addresses is no longer taken: {KV_CONNECTION}"),
            format!(
                "env PD_PROXY__DIALECT__NAME: dialect.name = \"p2p_nccl\" is no longer taken: {P2P_NCCL}"
            ),
            format!("flag --set: dialect.name = \"p2p_nccl\" is no longer taken: {P2P_NCCL}"),
            format!("flag --set: route.policy = \"prefix-first\" is no longer taken: {PREFIX_FIRST}"),
        ] {
            assert!(errors.lines().any(|line| line.ends_with(&expected)), "{expected}\n{errors}");
        }
        assert_eq!(errors.matches("is no longer taken").count(), 6, "{errors}");
    }

    #[test]
    fn no_name_that_is_taken_is_called_gone() {
        let schema = Schema::of_defaults();
        for Removed { key, value, .. } in REMOVED {
            assert_eq!(schema.kind(key).is_some(), value.is_some(), "{key}");
            let taken = [DialectName::NAMES, Policy::NAMES].concat();
            assert!(value.is_none_or(|value| !taken.contains(&value)), "{key}");
        }
    }
}
