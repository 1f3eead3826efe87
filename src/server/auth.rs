//! Identifies callers: the key of a request is looked up before anything else of it is looked at.
//!
//! If keys are asked for, they end here: neither handlers nor engines see them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;
use tokio::time::Instant;

use crate::auth::{Caller, TokenReservation};
use crate::dialect::usage::TokenCounts;
use crate::error::{Error, Kind};
use crate::route::estimate;
use crate::server::table::{self, Key};
use crate::server::{Gateway, instances, printable};

/// Anthropic's clients send their key in it; vLLM's `disagg_proxy_demo.py` takes its admin key from
/// it.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Identity of the caller; in the extensions of every request that may go on.
#[derive(Clone, Debug)]
struct Identity {
    caller: Arc<Caller>,
    /// May change the fleet and look inside.
    admin: bool,
}

/// True if anything takes a key.
pub(super) fn asks(gateway: &Gateway) -> bool {
    gateway.callers.checks() || gateway.edge.now().admin_key.is_some()
}

/// Finds out who asks.
///
/// # Errors
/// `InvalidApiKey` where keys are asked for and this one is not known, or may not do this.
pub(super) fn identify(gateway: &Gateway, request: &mut Request) -> Result<(), Error> {
    let callers = &gateway.callers;
    if !callers.checks() {
        let admin = instances::has_admin_key(gateway, request.headers());
        let identity = Identity { caller: callers.anyone().clone(), admin: admin.unwrap_or(true) };
        request.extensions_mut().insert(identity);
        if admin.is_some() {
            // The gateway's own key: no engine is to see it.
            instances::remove_admin_key(gateway, request.headers_mut());
        }
        return Ok(());
    }
    let wanted = table::key_of(request.uri().path());
    if wanted == Key::Open {
        return Ok(());
    }
    let (for_admin, headers) = (wanted == Key::Admin, request.headers());
    let has_admin_key = instances::has_admin_key(gateway, headers) == Some(true);
    let key = presented(headers);
    let known = key.and_then(|key| callers.of_key(key));
    let admin = has_admin_key || known.as_ref().is_some_and(|caller| caller.grants.admin);
    let caller = match known {
        _ if for_admin && admin => known.unwrap_or_else(|| callers.anyone().clone()),
        Some(caller) if !for_admin => caller,
        _ => return Err(refuse(gateway, key.is_some(), known.is_some())),
    };
    let headers = request.headers_mut();
    headers.remove(header::AUTHORIZATION);
    headers.remove(API_KEY);
    request.extensions_mut().insert(Identity { caller, admin });
    Ok(())
}

/// A request without a key that is known, or whose key may not do this. What it presented is not
/// kept anywhere.
fn refuse(gateway: &Gateway, presented: bool, known: bool) -> Error {
    let (reason, message) = match (presented, known) {
        (_, true) => ("grant", "this key may not change or inspect the gateway"),
        (true, false) => ("unknown", "the API key is not known"),
        (false, false) => {
            ("missing", "an API key is needed, as `Authorization: Bearer …` or in the header X-API-Key")
        }
    };
    gateway.meters.key_refused(reason);
    if let Some(count) = gateway.callers.wrong(Instant::now()) {
        tracing::warn!(count, last = reason, "requests without a good key were refused");
    }
    Error::new(Kind::InvalidApiKey, message)
}

/// The key of a request.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(bearer);
    bearer.or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes)).filter(|key| !key.is_empty())
}

/// The key in a line of Authorization, where it is one of the scheme Bearer.
pub(super) fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = value.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// The caller of a request.
pub(super) fn caller(gateway: &Gateway, extensions: &Extensions) -> Arc<Caller> {
    let identity = extensions.get::<Identity>();
    identity.map_or_else(|| gateway.callers.anyone().clone(), |identity| identity.caller.clone())
}

/// True if who asks may change the fleet and look inside.
pub(super) fn administers(extensions: &Extensions) -> bool {
    extensions.get::<Identity>().is_some_and(|identity| identity.admin)
}

/// The announced size of a request's body, bytes.
pub(super) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Refuses a model that the caller may not use, in the words for one that does not exist.
///
/// # Errors
/// `ModelNotFound`.
pub(super) fn check_model(caller: &Caller, model: Option<&str>) -> Result<(), Error> {
    if caller.may_use(model) {
        return Ok(());
    }
    Err(match model {
        Some(model) => no_such_model(model),
        None => {
            let message = "This API key is for certain models: name one of them as `model`.";
            Error::new(Kind::ModelNotFound, message).param("model")
        }
    })
}

/// That there is no such model, or none for this caller.
pub(super) fn no_such_model(name: &str) -> Error {
    no_such_model_but(name, None)
}

/// The same, with the model that the caller may have meant.
pub(super) fn no_such_model_but(name: &str, nearest: Option<&str>) -> Error {
    let mut message =
        format!("The model `{}` does not exist or you do not have access to it.", printable(name));
    if let Some(nearest) = nearest {
        message.push_str(&format!(" Did you mean `{}`?", printable(nearest)));
    }
    Error::new(Kind::ModelNotFound, message).param("model")
}

/// Sets aside so many of a caller's tokens per minute: what its request, of so many bytes, is
/// expected to take.
///
/// # Errors
/// `RateLimited` when they are used up.
pub(super) fn reserve(
    gateway: &Gateway,
    caller: &Caller,
    bytes: usize,
    expected: TokenCounts,
) -> Result<Option<TokenReservation>, Error> {
    caller.learn(bytes, expected.prompt);
    let reserved = caller.reserve(expected.prompt.saturating_add(expected.output), Instant::now());
    reserved.map_err(|wait| used_up(gateway, wait))
}

/// Refuses a request whose caller has no tokens left at all, before it takes a place and its body
/// is read.
///
/// # Errors
/// `RateLimited`.
pub(super) fn check_budget(gateway: &Gateway, caller: &Caller, headers: &HeaderMap) -> Result<(), Error> {
    let now = Instant::now();
    let wait_for = |tokens: u64| match caller.reserve(tokens, now) {
        Err(wait) => Some(wait),
        Ok(taken) => {
            taken.into_iter().for_each(|taken| taken.settle(0, now));
            None
        }
    };
    let Some(soonest) = wait_for(1) else { return Ok(()) };
    // One token is there sooner than what this request needs. What of the body is text is not known
    // before it is read: the caller's last ones tell.
    let bytes = announced(headers).unwrap_or(0);
    let as_text = || estimate::prompt_tokens(usize::try_from(bytes).unwrap_or(0));
    let tokens = caller.expected(bytes).unwrap_or_else(as_text);
    Err(used_up(gateway, wait_for(tokens).unwrap_or(soonest)))
}

fn used_up(gateway: &Gateway, wait: Duration) -> Error {
    gateway.meters.turned_away("key_tokens");
    Error::new(Kind::RateLimited, "the tokens per minute of this API key are used up").retry_after(wait)
}

/// Adds the rest of a caller's tokens per minute, in OpenAI's headers.
pub(super) fn tell_limits(caller: &Caller, headers: &mut HeaderMap) {
    let Some(level) = caller.level(Instant::now()) else { return };
    headers.insert("x-ratelimit-limit-tokens", level.limit.into());
    headers.insert("x-ratelimit-remaining-tokens", level.remaining.into());
    if let Ok(value) = HeaderValue::from_str(&seconds(level.full_in)) {
        headers.insert("x-ratelimit-reset-tokens", value);
    }
}

/// As OpenAI writes times: `1.5s`.
fn seconds(time: Duration) -> String {
    format!("{:.3}s", time.as_secs_f64())
}

/// A list of models without those that the caller may not use.
pub(super) fn only_allowed(caller: &Caller, list: Bytes) -> Bytes {
    if caller.grants.models.is_none() {
        return list;
    }
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(&list) else { return Bytes::new() };
    if let Some(Value::Array(models)) = answer.get_mut("data") {
        models.retain(|model| caller.may_use(model.get("id").and_then(Value::as_str)));
    }
    Value::Object(answer).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn a_key_is_where_clients_put_it() {
        for (lines, key) in [
            (&[("authorization", "Bearer sk-1")][..], Some("sk-1")),
            (&[("authorization", "bearer  sk-1")], Some("sk-1")),
            (&[("x-api-key", "sk-2")], Some("sk-2")),
            (&[("authorization", "Bearer sk-1"), ("x-api-key", "sk-2")], Some("sk-1")),
            (&[("authorization", "Basic c2s="), ("x-api-key", "sk-2")], Some("sk-2")),
            (&[("authorization", "Bearer ")], None),
            (&[("authorization", "sk-1")], None),
            (&[("x-api-key", "")], None),
            (&[], None),
        ] {
            assert_eq!(presented(&headers(lines)), key.map(str::as_bytes), "{lines:?}");
        }
    }

    #[test]
    fn times_are_written_in_seconds() {
        assert_eq!(seconds(Duration::from_millis(90_500)), "90.500s");
        assert_eq!(seconds(Duration::ZERO), "0.000s");
    }
}
