//! Refuses requests that pages of other origins make unasked, changes and answers alike.
//!
//! A browser sends a plain POST for any page that its user opens, from inside the user's network
//! and without asking here first (Fetch Standard, "CORS-safelisted request-header"). That the page
//! can't read the answer undoes no change, and gives no engine its time back. Only browsers send
//! the two headers that are looked at. A key is no page's to have, so a request with a key may come
//! from anywhere.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri, header};

use crate::error::{Error, Kind};
use crate::server::{Gateway, auth, printable, reply};

/// Origin of the request, as a browser knows it (W3C, "Fetch Metadata Request Headers").
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Its values for our own pages, and for actions of the browser's user outside of pages.
const OURS: [&str; 2] = ["same-origin", "none"];

/// With these a browser sends a body without asking here first. Engines refuse them; the gateway
/// takes them as the proxies before it do, since `curl -d` names one of them, too.
const UNASKED: [&str; 3] = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/// Lets on what changes nothing, who has a key, and what no page of another origin asks.
pub(super) async fn kept_out(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let has_key = auth::asks(&gateway) && auth::administers(request.extensions());
    if request.method().is_safe() || has_key {
        return next.run(request).await;
    }
    let Some(sign) = sign(request.uri(), request.headers()) else {
        return next.run(request).await;
    };
    let why = "asks for this change, which none may: send it by a program that is no browser, or set \
               server.admin_key and send that, too, in the header X-API-Key";
    reply::error(&refusal(&sign, why))
}

/// Lets on what generates, but where that takes no key not for a page of another origin whose
/// browser has not asked whether it may.
///
/// # Errors
/// `ForeignPage`.
pub(super) fn check(gateway: &Gateway, uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
    if gateway.callers.checks() || !is_unasked(headers) {
        return Ok(());
    }
    let Some(sign) = sign(uri, headers) else { return Ok(()) };
    if is_named(&gateway.edge.now().cors_origins, headers) {
        return Ok(());
    }
    let why = "asks, and its browser did not ask before whether it may: send `Content-Type: application/json`, \
               by a program that is no browser or from an origin that server.cors_origins names";
    Err(refusal(&sign, why))
}

fn refusal(sign: &Sign<'_>, why: &str) -> Error {
    let Sign { name, value } = sign;
    let value = printable(&String::from_utf8_lossy(value.as_bytes()));
    Error::new(Kind::ForeignPage, format!("`{name}: {value}` says that a page of another origin {why}"))
}

/// True if a browser would send a body of this type for every page.
fn is_unasked(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    essence.is_empty() || UNASKED.iter().any(|unasked| essence.eq_ignore_ascii_case(unasked.as_bytes()))
}

/// True if the page that asks is of one of `origins`, of which `*` is all.
fn is_named(origins: &[HeaderValue], headers: &HeaderMap) -> bool {
    let mut asking = headers.get_all(header::ORIGIN).iter().peekable();
    let known = asking.peek().is_some() && asking.all(|origin| origins.contains(origin));
    known || origins.iter().any(|origin| origin == "*")
}

/// A header that shows a page of another origin than the one that is asked.
#[derive(Debug, PartialEq)]
struct Sign<'a> {
    name: &'static str,
    value: &'a HeaderValue,
}

/// The first header that shows a page of another origin; None where there is none.
fn sign<'a>(uri: &Uri, headers: &'a HeaderMap) -> Option<Sign<'a>> {
    let theirs = |site: &&HeaderValue| !OURS.iter().any(|ours| site == ours);
    if headers.contains_key(SITE) {
        // The browser has compared what it was told to ask, whatever a proxy made of `Host`.
        return headers.get_all(SITE).iter().find(theirs).map(|value| Sign { name: "Sec-Fetch-Site", value });
    }
    // HTTP/2 has no `Host`, but an authority in its stead.
    let host = uri.authority().map(Authority::as_str);
    let host = host.or_else(|| headers.get(header::HOST)?.to_str().ok()).unwrap_or_default();
    let value = headers.get_all(header::ORIGIN).iter().find(|origin| !is_at(origin, host))?;
    Some(Sign { name: "Origin", value })
}

/// True if an origin's host and port are those of `host`. `null` is the origin of pages that have
/// none.
fn is_at(origin: &HeaderValue, host: &str) -> bool {
    let Some((scheme, origin)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else {
        return false;
    };
    let usual = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let (Ok(origin), Ok(host)) = (origin.parse::<Authority>(), host.parse::<Authority>()) else {
        return false;
    };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(usual);
    origin.host().eq_ignore_ascii_case(host.host()) && port(&origin) == port(&host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_known_by_host_and_port() {
        for (origin, host, same) in [
            ("http://gateway:8000", "gateway:8000", true),
            ("https://gateway", "gateway", true),
            ("https://gateway", "GATEWAY:443", true),
            ("http://gateway:80", "gateway", true),
            ("http://[::1]:8000", "[::1]:8000", true),
            ("http://gateway", "gateway:443", false),
            ("http://gateway:8001", "gateway:8000", false),
            ("http://gateway.evil", "gateway", false),
            ("http://gateway@evil", "gateway", false),
            ("null", "gateway", false),
            ("", "gateway", false),
            ("http://", "", false),
            ("http://gateway", "", false),
        ] {
            assert_eq!(is_at(&HeaderValue::from_static(origin), host), same, "{origin} at {host}");
        }
    }

    #[test]
    fn over_http2_the_authority_is_the_host() {
        let uri: Uri = "http://gateway:8000/instances/add".parse().unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(sign(&uri, &headers), None);
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://gateway:8000"));
        assert_eq!(sign(&uri, &headers), None);
        let evil = HeaderValue::from_static("http://evil");
        headers.append(header::ORIGIN, evil.clone());
        assert_eq!(sign(&uri, &headers), Some(Sign { name: "Origin", value: &evil }), "one of two is enough");
    }

    fn with(name: HeaderName, values: &[&'static str]) -> HeaderMap {
        values.iter().map(|&value| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn simple_requests_of_browsers_are_known_by_content_type() {
        for unasked in [
            "text/plain",
            "Text/Plain;charset=UTF-8",
            " application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "",
            ";",
        ] {
            assert!(is_unasked(&with(header::CONTENT_TYPE, &[unasked])), "{unasked}");
        }
        assert!(is_unasked(&HeaderMap::new()));
        for asked in ["application/json", "application/json; charset=utf-8", "text/plainer", "x"] {
            assert!(!is_unasked(&with(header::CONTENT_TYPE, &[asked])), "{asked}");
        }
    }

    #[test]
    fn a_page_is_named_by_all_that_is_said_of_its_origin() {
        let (page, evil) = ("https://chat.example", "https://evil.example");
        let origins = [HeaderValue::from_static(page), HeaderValue::from_static("http://localhost:3000")];
        let any = [HeaderValue::from_static("*")];
        let cases: [(&[&'static str], bool); 5] =
            [(&[page], true), (&[evil], false), (&["null"], false), (&[page, evil], false), (&[], false)];
        for (said, named) in cases {
            let headers = with(header::ORIGIN, said);
            assert_eq!(is_named(&origins, &headers), named, "{said:?}");
            assert!(is_named(&any, &headers) && !is_named(&[], &headers), "{said:?}");
        }
    }
}
