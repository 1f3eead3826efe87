//! Access to the operators' routes where no key is asked for.
//!
//! A key that was shown opens all of them. Without keys, an address that other machines reach
//! serves none that changes the fleet or tells about single requests, and no page may come by a
//! name that is not the gateway's: by DNS rebinding a page's own name leads here, and its browser
//! takes the gateway for the page's origin.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use http::uri::Authority;
use http::{HeaderMap, Method, Response, Uri, header};

use crate::error::{Error, Kind};
use crate::server::{Gateway, auth, instances, printable, reply};

/// Names below it never leave the machine (RFC 6761 §6.3).
const LOCALHOST: &str = "localhost";

/// Path that Prometheus scrapes.
const METRICS: &str = "/metrics";

/// Tells about single requests of clients.
const DEBUG: &str = "/debug/";

/// Reach of a listener; in the extensions of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerScope {
    /// Only this machine connects to it.
    Loopback,
    /// Other machines do, and clients are among them.
    Shared,
    /// Other machines may, but it is the operators' own (`server.admin_host`).
    Operators,
}

impl ListenerScope {
    /// The reach of a listener of clients at these addresses.
    pub(super) fn of_clients(addresses: &[SocketAddr]) -> ListenerScope {
        let is_local = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        if addresses.iter().all(is_local) { ListenerScope::Loopback } else { ListenerScope::Shared }
    }
}

/// Warnings for the start, of the listeners of clients and of operators at these addresses; none
/// where a key is asked for, or where nothing but this machine reaches them.
pub fn open_routes(gateway: &Gateway, clients: &[SocketAddr], operators: &[SocketAddr]) -> Vec<String> {
    let listed = |all: &[SocketAddr]| all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
    let is_open =
        |all: &[SocketAddr]| !auth::asks(gateway) && ListenerScope::of_clients(all) == ListenerScope::Shared;
    let remedy = "set ADMIN_API_KEY (server.admin_key)";
    if is_open(operators) {
        let at = listed(operators);
        return vec![format!(
            "whoever reaches {at} may change the fleet, since no key is asked for: {remedy}"
        )];
    }
    if !operators.is_empty() || !is_open(clients) {
        return Vec::new();
    }
    let at = listed(clients);
    vec![if gateway.edge.now().open_admin {
        format!("server.open_admin = true: whoever reaches {at} may change the fleet")
    } else {
        format!(
            "routes that change the fleet are refused: other machines reach {at}, and no key is asked for; {remedy}, give \
             operators a listener of their own (server.admin_host), or set server.open_admin = true"
        )
    }]
}

/// Refuses what needs a key that nobody is asked for, and what comes by a name that is not ours.
pub(super) async fn check(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if auth::asks(&gateway) {
        // Routes that only look say themselves what they need.
        let refused = is_guarded(request.method(), request.uri().path());
        return match instances::refusal(request.extensions()).filter(|_| refused) {
            Some(refusal) => refusal,
            None => next.run(request).await,
        };
    }
    match check_without_key(&gateway, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => reply::error(&error),
    }
}

fn check_without_key(gateway: &Gateway, request: &Request) -> Result<(), Error> {
    let (edge, path) = (gateway.edge.now(), request.uri().path());
    let shared = request.extensions().get() == Some(&ListenerScope::Shared);
    if shared && !edge.open_admin && is_guarded(request.method(), path) {
        let message = format!(
            "{path} needs a key, since other machines reach this address and no key is asked for: set ADMIN_API_KEY \
             (server.admin_key) and send it in the header X-API-Key, or give operators a listener of their own \
             (server.admin_host), or let everybody change the fleet (server.open_admin = true)"
        );
        return Err(Error::new(Kind::AdminKeyNeeded, message));
    }
    // Scrapers come by any name, and counts are no secret that a page could use.
    if path == METRICS {
        return Ok(());
    }
    match foreign_host(&edge.names, request.uri(), request.headers()) {
        None => Ok(()),
        Some(host) => {
            let message = format!(
                "this route is not served by the name `{}`: use an IP address or localhost, add the name to \
                 server.names, or set server.admin_key and send it in the header X-API-Key",
                printable(&host)
            );
            Err(Error::new(Kind::ForeignHost, message))
        }
    }
}

/// True if a route changes the fleet, or tells about single requests.
fn is_guarded(method: &Method, path: &str) -> bool {
    !method.is_safe() || path.starts_with(DEBUG)
}

/// The host by which a request came, where that is neither an address nor one of our names. All
/// that a request says of its host counts: `:authority`, an absolute URI, each line of `Host`.
fn foreign_host(names: &[String], uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let of_uri = uri.authority().map(|authority| authority.as_str().as_bytes());
    let lines = headers.get_all(header::HOST).iter().map(http::HeaderValue::as_bytes);
    let mut said = of_uri.into_iter().chain(lines).map(String::from_utf8_lossy);
    said.find(|host| !is_ours(names, host)).map(std::borrow::Cow::into_owned)
}

fn is_ours(names: &[String], host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    // No browser sends credentials here, and what follows them would be hidden by them.
    if host.contains('@') {
        return false;
    }
    let host = authority.host();
    let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if literal.parse::<IpAddr>().is_ok() {
        return true;
    }
    // A page's name has a dot: no public name is a single label, and one that is comes from the
    // machine or its network.
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_local =
        !name.contains('.') || name.strip_suffix(LOCALHOST).is_some_and(|rest| rest.ends_with('.'));
    !name.is_empty() && is_local || names.contains(&name)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_ours() {
        let names = ["gateway.example".to_owned(), "pd-proxy.team.svc".to_owned()];
        for ours in [
            "127.0.0.1",
            "127.0.0.1:8000",
            "10.0.0.9:9000",
            "[::1]:8000",
            "[fd00::1]",
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "a.localhost:1",
            "gateway:8000",
            "Gateway.Example",
            "pd-proxy.team.svc.",
        ] {
            assert!(is_ours(&names, ours), "{ours}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.nip.io",
            "0x7f.1",
            "127.1",
            "not.alocalhost",
            "localhost.evil",
            "gateway.evil",
            "gateway.example.evil",
            "localhost@evil.example",
            "evil.example@localhost",
            "a b",
            "",
            "[::1",
        ] {
            assert!(!is_ours(&names, foreign), "{foreign}");
        }
    }

    #[test]
    fn every_host_that_a_request_names_is_looked_at() {
        let uri = |text: &'static str| Uri::from_static(text);
        let hosts = |values: &[&'static str]| -> HeaderMap {
            values.iter().map(|value| (header::HOST, HeaderValue::from_static(value))).collect()
        };
        let foreign = |uri, headers| foreign_host(&[], &uri, &headers);
        assert_eq!(foreign(uri("/status"), hosts(&[])), None, "HTTP/1.0; browsers always say it");
        assert_eq!(foreign(uri("/status"), hosts(&["localhost:1"])), None);
        let evil = Some("evil.example:1".to_owned());
        assert_eq!(foreign(uri("/status"), hosts(&["evil.example:1"])), evil);
        assert_eq!(foreign(uri("/status"), hosts(&["localhost", "evil.example:1"])), evil);
        assert_eq!(foreign(uri("http://evil.example:1/status"), hosts(&["localhost"])), evil);
        assert_eq!(foreign(uri("http://localhost/status"), hosts(&["evil.example:1"])), evil);
    }

    #[test]
    fn a_listener_reaches_as_far_as_its_farthest_address() {
        let reach = |texts: &[&str]| {
            let addresses: Vec<SocketAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
            ListenerScope::of_clients(&addresses)
        };
        assert_eq!(reach(&["127.0.0.1:1", "[::1]:1"]), ListenerScope::Loopback);
        assert_eq!(reach(&["[::ffff:127.0.0.1]:1"]), ListenerScope::Loopback);
        for shared in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            assert_eq!(reach(&["127.0.0.1:1", shared]), ListenerScope::Shared, "{shared}");
        }
    }

    #[test]
    fn changes_and_single_requests_are_guarded() {
        for (method, path, guarded) in [
            (Method::POST, "/instances/add", true),
            (Method::DELETE, "/instances", true),
            (Method::GET, "/instances", false),
            (Method::HEAD, "/status", false),
            (Method::GET, "/debug/route/a", true),
            (Method::GET, "/metrics", false),
        ] {
            assert_eq!(is_guarded(&method, path), guarded, "{method} {path}");
        }
    }
}
