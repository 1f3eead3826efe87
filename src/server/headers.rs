//! Headers between client and engines. The module is pure.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::relay::answer::named_by_connection;
use crate::server::adapter::ADAPTER;

/// Prefix of a browser's questions for a page of another origin: the gateway answers them, and
/// engines hear of none.
const CORS: &str = "access-control-request-";

/// Headers that end here: they belong to the client's connection, would change what engines send
/// (compression), or choose something that is ours to choose (the rank, whose pages may read, and
/// where it names the model, an adapter).
static NOT_FORWARDED: [HeaderName; 19] = [
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::EXPECT,
    header::HOST,
    header::ORIGIN,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    ADAPTER,
    HeaderName::from_static("x-data-parallel-rank"),
];

/// The header that client, engines and log share.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request id longer than this is replaced: engines make their own ids from it.
const ID_BYTES: usize = 128;

/// The client's request id when it is sane (letters, digits and `-_.:` only, at most 128), else a
/// new one.
pub fn request_id(asked: Option<&HeaderValue>) -> String {
    let sane = |id: &str| {
        !id.is_empty()
            && id.len() <= ID_BYTES
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    match asked.and_then(|v| v.to_str().ok()).filter(|id| sane(id)) {
        Some(id) => id.to_owned(),
        None => uuid::Uuid::new_v4().to_string(),
    }
}

/// Headers for an engine: the client's without those that end here, our line of `Via`, the shared
/// id, and the configured `Authorization`, if there is one, in place of the client's.
pub fn for_engine(
    client: &HeaderMap,
    id: &str,
    via: &HeaderValue,
    authorization: Option<&HeaderValue>,
) -> HeaderMap {
    let named = named_by_connection(client);
    let ends_here = |name: &HeaderName| {
        NOT_FORWARDED.contains(name) || named.contains(name) || name.as_str().starts_with(CORS)
    };
    let mut out = HeaderMap::with_capacity(client.len() + 3);
    for (name, value) in client.iter().filter(|(name, _)| !ends_here(name)) {
        out.append(name, detached(value));
    }
    out.append(header::VIA, via.clone());
    if let Ok(id) = HeaderValue::from_str(id) {
        out.insert(REQUEST_ID, id);
    }
    if let Some(authorization) = authorization {
        out.insert(header::AUTHORIZATION, authorization.clone());
    }
    out
}

/// Headers of a client's request that somebody else's API is sent: versions of the API alone.
static FOR_REMOTE: [HeaderName; 4] = [
    header::ACCEPT,
    HeaderName::from_static("anthropic-version"),
    HeaderName::from_static("anthropic-beta"),
    HeaderName::from_static("openai-beta"),
];

/// Headers for somebody else's API: of the client's only those that say how the request is meant,
/// its `Authorization` never.
pub fn for_remote(
    client: &HeaderMap,
    id: &str,
    via: &HeaderValue,
    authorization: Option<&HeaderValue>,
) -> HeaderMap {
    let said = FOR_REMOTE.iter().filter_map(|name| Some((name.clone(), client.get(name)?.clone())));
    let said = HeaderMap::from_iter(said);
    for_engine(&said, id, via, authorization)
}

/// The same value in memory of its own. As it came, it holds on to the connection's read buffer for
/// as long as the request lives.
fn detached(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// The size of a head's lines, roughly as sent.
pub fn size_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn sane_ids_are_kept_and_others_replaced() {
        let id = |v: &str| request_id(Some(&HeaderValue::from_bytes(v.as_bytes()).unwrap()));
        assert_eq!(id("run_7.a:b-C"), "run_7.a:b-C");
        for bad in ["", "a b", "x\"y", "ü", "a/b"] {
            assert!(uuid::Uuid::parse_str(&id(bad)).is_ok(), "{bad:?}");
        }
        let long = HeaderValue::from_str(&"x".repeat(129)).unwrap();
        assert_eq!((request_id(Some(&long)).len(), request_id(None).len()), (36, 36));
    }

    #[test]
    fn engines_get_the_clients_headers_and_nothing_of_its_connection() {
        let client = map(&[
            ("authorization", "Bearer mine"),
            ("traceparent", "00-1-2-01"),
            ("accept-encoding", "gzip"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("x-data-parallel-rank", "7"),
            ("host", "gateway"),
        ]);
        let via = HeaderValue::from_static("1.1 us");
        let got = for_engine(&client, "id-1", &via, None);
        assert_eq!(
            got,
            map(&[
                ("authorization", "Bearer mine"),
                ("traceparent", "00-1-2-01"),
                ("via", "1.1 us"),
                ("x-request-id", "id-1")
            ])
        );
        let configured = HeaderValue::from_static("Bearer ours");
        let remote = for_remote(&client, "id-1", &via, None);
        assert_eq!(remote, map(&[("via", "1.1 us"), ("x-request-id", "id-1")]));
        assert_eq!(for_engine(&client, "id-1", &via, Some(&configured))["authorization"], "Bearer ours");
    }
}
