//! Members of a client's body that only the gateway may set.
//!
//! They carry addresses of engines: with vLLM 0.32 a client's own `kv_transfer_params` kills a NIXL
//! decoder, and with any version they let a client make one engine open connections to wherever it
//! likes. At the top level they are dropped without a word, wherever and however often they stand.
//! vLLM also copies `vllm_xargs` (and, on the token API, `sampling_params.extra_args`) into the
//! place where it keeps them, so there they are refused.

use crate::codec::json::{Edit, Object};

/// Top-level members that are always dropped.
const DROPPED: [&str; 4] =
    ["kv_transfer_params", "ec_transfer_params", "data_parallel_rank", "routed_dp_rank"];

/// Top-level members that are dropped by their beginning (SGLang's addresses).
const DROPPED_PREFIXES: [&str; 2] = ["bootstrap_", "disagg_prefill_"];

/// Members that are refused in the engines' free-form arguments.
const FORBIDDEN_ARGS: [&str; 2] = ["kv_transfer_params", "ec_transfer_params"];

/// Place where the free-form arguments are, as a path of members.
const ARGS: [&[&str]; 2] = [&["vllm_xargs"], &["sampling_params", "extra_args"]];

/// The edit that every body needs before any engine may see it.
pub fn edit() -> Edit {
    Edit::dropping(&DROPPED, &DROPPED_PREFIXES)
}

/// True if [`edit`] drops the member `key`.
pub fn drops(key: &str) -> bool {
    DROPPED.contains(&key) || DROPPED_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// True if `name` is a field of a form whose value engines take as free-form arguments.
pub fn is_free_form(name: &str) -> bool {
    ARGS.iter().any(|path| path.first() == Some(&name))
}

/// True if free-form arguments, written as text, may hold one that only the gateway may set: by its
/// name, or by an escape that could spell one.
pub fn names_addresses(name: &[u8], value: &[u8]) -> bool {
    let has = |text: &[u8], word: &str| memchr::memmem::find(text, word.as_bytes()).is_some();
    has(value, "\\u") || FORBIDDEN_ARGS.iter().any(|argument| has(name, argument) || has(value, argument))
}

/// Reasons why a body may not be sent to an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// An argument that only the gateway may set.
    #[error("`{0}` names engines to each other and can't be set by a client; leave it out")]
    Argument(String),
    /// Arguments that can't be looked into, because they are too deep or too many.
    #[error("`{0}` can't be checked: it is too deep or has too many members")]
    Unreadable(String),
}

/// Looks for arguments that only the gateway may set.
///
/// Every occurrence of a member on the way is looked into: an engine may read another one than we
/// would.
///
/// # Errors
/// The first that is found.
pub fn check_arguments(body: &Object) -> Result<(), Forbidden> {
    ARGS.iter().try_for_each(|path| search(body, path, ""))
}

fn search(object: &Object, path: &[&str], at: &str) -> Result<(), Forbidden> {
    let Some((first, rest)) = path.split_first() else {
        let found = object.members().map(|(key, _)| key).find(|key| FORBIDDEN_ARGS.contains(&key.as_ref()));
        return found.map_or(Ok(()), |key| Err(Forbidden::Argument(format!("{at}{key}"))));
    };
    let values = object.members().filter(|(key, value)| key == first && value.is_object());
    for (_, value) in values {
        let here = format!("{at}{first}");
        let inside = value.object().map_err(|_| Forbidden::Unreadable(here.clone()))?;
        search(&inside, rest, &format!("{here}."))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;

    fn scan(text: &str) -> Object {
        Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
    }

    #[test]
    fn engine_addresses_never_pass() {
        let sent = r#"{"a":1,"kv_transfer_params":{"do_remote_prefill":true},"bootstrap_host":"evil","b":2,
            "kv_\u0074ransfer_params":1,"ec_transfer_params":[],"bootstrap_room":7,"disagg_prefill_dp_rank":0,
            "data_parallel_rank":1,"routed_dp_rank":1}"#;
        let kept = scan(sent).splice(&edit()).to_bytes();
        let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
        assert_eq!(kept, serde_json::json!({"a": 1, "b": 2}));
    }

    #[test]
    fn free_form_arguments_are_searched() {
        let check = |text: &str| check_arguments(&scan(text));
        let argument = |path: &str| Err(Forbidden::Argument(path.into()));
        assert_eq!(check(r#"{"vllm_xargs":{"x":1}}"#), Ok(()));
        assert_eq!(check(r#"{"vllm_xargs":null,"sampling_params":{"extra_args":null}}"#), Ok(()));
        assert_eq!(
            check(r#"{"vllm_xargs":{"kv\u005ftransfer_params":"x"}}"#),
            argument("vllm_xargs.kv_transfer_params")
        );
        // The first of two duplicates counts as well.
        assert_eq!(
            check(r#"{"sampling_params":{"extra_args":{"ec_transfer_params":{}},"extra_args":{}}}"#),
            argument("sampling_params.extra_args.ec_transfer_params")
        );
    }

    #[test]
    fn unreadable_container_is_refused() {
        let many: String = (0..5_000).map(|n| format!("\"m{n}\":0,")).collect();
        let body = format!(r#"{{"vllm_xargs":{{{many}"kv_transfer_params":{{}}}}}}"#);
        assert_eq!(check_arguments(&scan(&body)), Err(Forbidden::Unreadable("vllm_xargs".into())));
    }
}
