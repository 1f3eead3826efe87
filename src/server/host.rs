//! The host that a request says that it is for: exactly one, and one that could be (RFC 9112 §3.2,
//! RFC 9113 §8.3.1). The module is pure.
//!
//! Proxies before us and caches disagree about a request with none or two; which one they went by
//! can't be known here.

use http::{Request, Uri, Version, header};

use crate::error::{Error, Kind};
use crate::server::printable;

/// The longest name of a host, bytes (RFC 1035 §2.3.4), with brackets and a port.
const HOST_BYTES: usize = 255 + "[]:65535".len();

/// Refuses a request that names no host, two, or one that can't be.
///
/// # Errors
/// `InvalidHost`.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), Error> {
    let mut lines = request.headers().get_all(header::HOST).iter();
    let (host, more) = (lines.next(), lines.next().is_some());
    let authority = authority_over_http2(request.version(), request.uri());
    if let Some(authority) = request.uri().authority()
        && !is_host(authority.as_str().as_bytes())
    {
        return Err(malformed(authority.as_str()));
    }
    let wrong = match (host, authority) {
        _ if more => "it has more than one `Host` line: send one",
        (None, None) if request.version() >= Version::HTTP_11 => MISSING,
        (None, _) => return Ok(()),
        (Some(host), _) if !is_host(host.as_bytes()) => {
            return Err(malformed(&String::from_utf8_lossy(host.as_bytes())));
        }
        // A gateway between that speaks HTTP/1.1 behind it adds `Host` beside the authority: both
        // are the same.
        (Some(host), Some(authority)) if !authority.as_bytes().eq_ignore_ascii_case(host.as_bytes()) => {
            "its `Host` is not its `:authority`: send one of them, or the same in both"
        }
        (Some(_), _) => return Ok(()),
    };
    Err(Error::new(Kind::InvalidHost, format!("the request can't be told whom it is for: {wrong}")))
}

const MISSING: &str =
    "it has no `Host` line (`:authority` over HTTP/2): send `Host: ` and the name or address of this gateway";

/// The authority of a request over HTTP/2, which has it in the place of `Host`. Over HTTP/1.1 a
/// whole URL may stand in the first line; `Host` is needed beside it all the same.
fn authority_over_http2(version: Version, uri: &Uri) -> Option<&str> {
    uri.authority().filter(|_| version >= Version::HTTP_2).map(http::uri::Authority::as_str)
}

fn malformed(host: &str) -> Error {
    let host = printable(host);
    let message = format!(
        "`{host}` is no name or address of a host: send `Host: ` (`:authority` over HTTP/2) with `name`, `name:port`, `[IPv6]` or \
         `[IPv6]:port`"
    );
    Error::new(Kind::InvalidHost, message)
}

/// True if `text` is a name or an address, with or without a port. Stricter than RFC 3986 §3.2.2:
/// no name in DNS has a comma, and two hosts that a proxy has joined into one line have; an empty
/// name is that of nobody (RFC 9110 §4.2.1).
pub(super) fn is_host(text: &[u8]) -> bool {
    if text.len() > HOST_BYTES {
        return false;
    }
    let (host, port) = match text.iter().position(|&byte| byte == b']') {
        Some(end) if text.first() == Some(&b'[') => {
            let is_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            if end == 1 || !text[1..end].iter().all(is_address) {
                return false;
            }
            text.split_at(end + 1)
        }
        Some(_) => return false,
        None => text.split_at(text.iter().position(|&byte| byte == b':').unwrap_or(text.len())),
    };
    !host.is_empty() && (host[0] == b'[' || host.iter().all(is_of_a_name)) && is_port(port)
}

/// Nothing, or a colon and a number; the number may be missing (RFC 3986 §3.2.3).
fn is_port(text: &[u8]) -> bool {
    match text.split_first() {
        None => true,
        Some((b':', digits)) => {
            let number = digits.iter().try_fold(0u32, |sum, byte| {
                byte.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(u32::from(byte - b'0')))
            });
            number.is_some_and(|number| number <= u32::from(u16::MAX))
        }
        Some(_) => false,
    }
}

/// Letters, digits and what RFC 3986 allows beside them in a name, without the comma.
fn is_of_a_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'%'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b';'
                | b'='
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_with_or_without_a_port() {
        for good in [
            "gateway",
            "gateway:8000",
            "10.0.0.1",
            "10.0.0.1:80",
            "[::1]",
            "[fd00::1]:8000",
            "a_b-c.svc.",
            "a:",
            "x",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        let long = "a".repeat(HOST_BYTES + 1);
        for bad in [
            "", ":80", "a b", "a/b", "a?b", "a#b", "u@a", "a\\b", "a,b", "a, b", "a:b", "a:1:2", "a:65536",
            "a:-1", "a:+1", "[::1", "::1", "[]", "[x]", "[::1]80", "[::1]:x", "a]", "[a]b]", "http://a",
            "a\u{e9}", "a\"b", "<a>", &long,
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    fn request(version: Version, uri: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::builder().version(version).uri(uri).body(()).unwrap();
        for host in hosts {
            request.headers_mut().append(header::HOST, host.parse().unwrap());
        }
        request
    }

    #[test]
    fn a_request_names_one_host() {
        let (old, one, two) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        for (version, uri, hosts, good) in [
            (one, "/x", &["gateway"][..], true),
            (one, "http://other/x", &["gateway"], true),
            (one, "/x", &[], false),
            (one, "http://gateway/x", &[], false),
            (one, "/x", &["a", "a"], false),
            (one, "/x", &[""], false),
            (old, "/x", &[], true),
            (old, "/x", &["a", "b"], false),
            (old, "/x", &["a b"], false),
            (two, "http://gateway:1/x", &[], true),
            (two, "/x", &["gateway"], true),
            (two, "/x", &[], false),
            (two, "http://gateway/x", &["GATEWAY"], true),
            (two, "http://gateway/x", &["other"], false),
            (two, "http://gateway/x", &["gateway", "gateway"], false),
            (two, "http://user@gateway/x", &[], false),
            (one, "http://user@gateway/x", &["gateway"], false),
        ] {
            assert_eq!(check(&request(version, uri, hosts)).is_ok(), good, "{version:?} {uri} {hosts:?}");
        }
    }
}
