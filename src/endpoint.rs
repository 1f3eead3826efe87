//! Parsers of hosts, ports, engine endpoints and model names as people write them. The module is
//! pure: no name is resolved.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use thiserror::Error;

/// Longest host name and longest label of one, bytes (RFC 1035 §2.3.4).
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// Place where an engine listens. The host is canonical: lower case, an IPv6 address in its short
/// form without brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Name or IP address, never with brackets.
    pub host: String,
    /// TCP port, never 0 when it was parsed.
    pub port: u16,
    /// True if the engine is connected to over TLS.
    pub tls: bool,
}

/// Reasons why a text is no host, port or endpoint; reads after the offending text and a colon.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// A host without a port.
    #[error("has no port: write host:port")]
    NoPort,
    /// A number where an endpoint belongs.
    #[error("is a port without a host: write host:port")]
    NoHost,
    /// A host that brings a port where ports are given apart.
    #[error(
        "carries a port: give the host alone and its port in the list of ports, or use host:port with --prefill or --decode"
    )]
    PortInHost,
    /// A host to listen at that carries a port, and the key or flag that sets the port.
    #[error("carries a port: give the address alone, and the port by {0}")]
    PortApart(&'static str),
    /// Not a number from 0 to 65535.
    #[error("is no port: expected a whole number from 1 to 65535")]
    BadPort,
    /// Port 0 names nothing to connect to.
    #[error("port 0 cannot be connected to: expected 1 to 65535")]
    PortZero,
    /// TLS where it is not spoken: towards pools, or in a build without it.
    #[error("{}", if cfg!(feature = "tls") {
        "is https, which only engines are spoken to by: use http:// or a tunnel"
    } else {
        "is https, and this program was built without the feature `tls`: use http:// or a tunnel"
    })]
    Https,
    /// A scheme that no engine speaks.
    #[error("has an unknown scheme: use host:port, http://host:port or https://host:port")]
    Scheme,
    /// A URL with more than an authority.
    #[error("has a path or query: the gateway adds its own, write http://host:port alone")]
    Path,
    /// A URL with a user name.
    #[error("holds credentials: set engine.api_key (or OPENAI_API_KEY) instead")]
    Credentials,
    /// Colons from which host and port cannot be told apart.
    #[error("cannot tell address from port: write an IPv6 address in brackets, as in [::1]:8000")]
    BareIpv6,
    /// An IPv6 address with the name of an interface, which no engine is known by.
    #[error(
        "names an interface behind `%`, which can't be said here: give an address that needs none, or a host name"
    )]
    Zone,
    /// Brackets around something else, or not closed.
    #[error("is no IPv6 address in brackets: write it as in [::1]:8000")]
    BadIpv6,
    /// Two entries without a space between them.
    #[error(
        "is no IP address: it looks like two entries run together, is a space missing between them (before a line continuation)?"
    )]
    RunTogether,
    /// Digits and dots, but not four numbers.
    #[error("is no IP address: digits and dots, but not four numbers from 0 to 255")]
    NotAnIp,
    /// An address to bind, not to connect to.
    #[error("is a wildcard, which names no engine: give the address at which it can be reached")]
    Wildcard,
    /// A character or length that no host name has.
    #[error("is no host name: letters, digits, `-`, `_` and `.`, at most 63 between dots and 253 in all")]
    BadName,
}

impl Endpoint {
    /// An endpoint without TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, tls: false }
    }

    /// Reads `host:port`, `[v6]:port`, `http://host:port` or `https://host:port`, URLs with or
    /// without a closing `/`.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let (tls, rest) = without_scheme(text.trim())?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(HostError::Path);
        }
        if rest.contains('@') {
            return Err(HostError::Credentials);
        }
        let (host, port) = split_port(rest)?;
        Ok(Self { host: engine_host(host)?, port: engine_port(port)?, tls })
    }

    /// `host:port` as it stands in a URL: brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        let mut text = String::with_capacity(self.host.len() + "[]:65535".len());
        // A string takes all.
        _ = self.write_authority(&mut text);
        text
    }

    fn write_authority(&self, out: &mut impl fmt::Write) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }

    /// `path`, which begins with a slash or is empty, on it.
    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", if self.tls { "https" } else { "http" }, self.authority())
    }

    /// Returns the endpoint if it is connected to without TLS.
    ///
    /// # Errors
    /// [`HostError::Https`].
    pub fn plain(self) -> Result<Self, HostError> {
        if self.tls { Err(HostError::Https) } else { Ok(self) }
    }
}

/// Writes `host:port`, or `https://host:port` with TLS.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "https://" } else { "" })?;
        self.write_authority(f)
    }
}

impl FromStr for Endpoint {
    type Err = HostError;
    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

/// The canonical form of a name or IP address, brackets removed. A wildcard is allowed: it may be
/// meant for binding.
pub fn parse_host(text: &str) -> Result<String, HostError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(HostError::Empty);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let inner = rest.strip_suffix(']').ok_or(HostError::BadIpv6)?;
        return ipv6(inner).ok_or(if has_zone(inner) { HostError::Zone } else { HostError::BadIpv6 });
    }
    if text.contains(':') {
        return ipv6(text).ok_or(if has_zone(text) { HostError::Zone } else { HostError::PortInHost });
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let not_ip = if text.matches('.').count() > 3 { HostError::RunTogether } else { HostError::NotAnIp };
        return text.parse::<Ipv4Addr>().map(|ip| ip.to_string()).map_err(|_| not_ip);
    }
    if is_name(text) { Ok(text.to_ascii_lowercase()) } else { Err(HostError::BadName) }
}

/// As [`parse_host`], for a host to connect to: no wildcard.
pub fn engine_host(text: &str) -> Result<String, HostError> {
    if text.trim() == "*" {
        return Err(HostError::Wildcard);
    }
    let host = parse_host(text)?;
    let wildcard = host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if wildcard { Err(HostError::Wildcard) } else { Ok(host) }
}

/// As [`parse_host`], for a host to listen at; `port` is what says the port there.
pub fn bind_host(text: &str, port: &'static str) -> Result<String, HostError> {
    parse_host(text).map_err(|why| match why {
        HostError::PortInHost => HostError::PortApart(port),
        HostError::BadIpv6 if text.contains("]:") => HostError::PortApart(port),
        why => why,
    })
}

/// True if two names mean the same model. Of a path only its last part counts, as in vLLM's own
/// proxy: people give a proxy the model's folder, and engines serve it by its name alone. Which of
/// them it is, engines say.
pub fn same_model(one: &str, other: &str) -> bool {
    last_part(one) == last_part(other)
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// A port to connect to: 1 to 65535.
pub fn engine_port(text: &str) -> Result<u16, HostError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse::<u16>().ok().filter(|_| digits).ok_or(HostError::BadPort)?;
    if port == 0 { Err(HostError::PortZero) } else { Ok(port) }
}

/// True if TLS is asked for, and the text after the scheme.
fn without_scheme(text: &str) -> Result<(bool, &str), HostError> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok((false, text)) };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok((false, rest)),
        "https" if cfg!(feature = "tls") => Ok((true, rest)),
        "https" => Err(HostError::Https),
        _ => Err(HostError::Scheme),
    }
}

/// Cuts `host:port` without judging either; says what is missing when it cannot.
fn split_port(text: &str) -> Result<(&str, &str), HostError> {
    if text.is_empty() {
        return Err(HostError::Empty);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HostError::NoHost);
    }
    if text.starts_with('[') {
        let end = text.find(']').ok_or(HostError::BadIpv6)?;
        let (host, rest) = text.split_at(end + 1);
        return rest.strip_prefix(':').map(|port| (host, port)).ok_or(HostError::NoPort);
    }
    match text.matches(':').count() {
        0 => Err(parse_host(text).err().unwrap_or(HostError::NoPort)),
        1 => text.split_once(':').ok_or(HostError::NoPort),
        // `10.0.0.1:810010.0.0.2:8100`: no IPv6 address has two groups of dots
        _ if text.matches('.').count() > 3 => Err(HostError::RunTogether),
        _ => Err(HostError::BareIpv6),
    }
}

fn ipv6(text: &str) -> Option<String> {
    text.parse::<Ipv6Addr>().ok().map(|ip| ip.to_string())
}

/// True if this is an IPv6 address with the name of an interface (RFC 4007 §11).
fn has_zone(text: &str) -> bool {
    text.split_once('%').is_some_and(|(address, _)| ipv6(address).is_some())
}

fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    // A closing dot marks a fully qualified name.
    text.len() <= MAX_NAME_BYTES && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        for (text, authority) in [
            ("10.0.0.1:8100", "10.0.0.1:8100"),
            (" Node-1.rack_2:80 ", "node-1.rack_2:80"),
            ("http://h:1", "h:1"),
            ("HTTP://h:1/", "h:1"),
            ("[::1]:80", "[::1]:80"),
            ("http://[FE80:0:0::1]:65535/", "[fe80::1]:65535"),
            ("svc.ns.svc.cluster.local.:8000", "svc.ns.svc.cluster.local.:8000"),
        ] {
            assert_eq!(
                Endpoint::parse(text).map(|endpoint| endpoint.authority()),
                Ok(authority.to_owned()),
                "{text}"
            );
        }
        #[cfg(feature = "tls")]
        {
            let secure = Endpoint::parse("HTTPS://[::1]:443/").unwrap();
            let said = (secure.to_string(), secure.authority(), secure.url("/v1"));
            assert_eq!(said, ("https://[::1]:443".into(), "[::1]:443".into(), "https://[::1]:443/v1".into()));
            assert_eq!(Endpoint::parse("https://h"), Err(HostError::NoPort));
            assert_eq!(secure.plain(), Err(HostError::Https));
        }
        #[cfg(not(feature = "tls"))]
        assert_eq!(Endpoint::parse("https://h:443"), Err(HostError::Https));
        assert_eq!("[::1]:80".parse(), Ok(Endpoint::new("::1", 80)));
    }

    #[test]
    fn invalid_endpoint_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", HostError::Empty),
            ("http://", HostError::Empty),
            ("h", HostError::NoPort),
            ("[::1]", HostError::NoPort),
            ("[::1]80", HostError::NoPort),
            ("8998", HostError::NoHost),
            (":80", HostError::Empty),
            ("h:", HostError::BadPort),
            ("h:+80", HostError::BadPort),
            ("h:65536", HostError::BadPort),
            ("h:0", HostError::PortZero),
            ("grpc://h:1", HostError::Scheme),
            ("http://h:1/v1", HostError::Path),
            ("http://u:p@h:1", HostError::Credentials),
            ("::1:80", HostError::BareIpv6),
            ("2001:db8::1", HostError::BareIpv6),
            ("[::g]:80", HostError::BadIpv6),
            ("[::1", HostError::BadIpv6),
            ("[h]:80", HostError::BadIpv6),
            ("[fe80::1%eth0]:80", HostError::Zone),
            ("[h%eth0]:80", HostError::BadIpv6),
            ("192.0.0.3192.0.0.3", HostError::RunTogether),
            ("192.0.0.3192.0.0.3:8100", HostError::RunTogether),
            ("10.0.0.1:810010.0.0.2:8100", HostError::RunTogether),
            ("10.0.0:80", HostError::NotAnIp),
            ("10.0.0.256:80", HostError::NotAnIp),
            ("0.0.0.0:80", HostError::Wildcard),
            ("[::]:80", HostError::Wildcard),
            ("*:80", HostError::Wildcard),
            ("a b:80", HostError::BadName),
            ("a..b:80", HostError::BadName),
            ("h\u{e9}:80", HostError::BadName),
        ] {
            assert_eq!(Endpoint::parse(text), Err(reason), "{text}");
        }
        assert_eq!(Endpoint::parse(&format!("{}:80", "a".repeat(64))), Err(HostError::BadName));
    }

    #[test]
    fn hosts_alone_may_be_bare_ipv6_or_wildcards_to_bind() {
        assert_eq!(parse_host("2001:DB8::1"), Ok("2001:db8::1".to_owned()));
        assert_eq!(parse_host("[::]"), Ok("::".to_owned()));
        assert_eq!(parse_host("0.0.0.0"), Ok("0.0.0.0".to_owned()));
        assert_eq!(parse_host("10.0.0.1:8100"), Err(HostError::PortInHost));
        assert_eq!(parse_host("fe80::1%eth0"), Err(HostError::Zone));
        assert_eq!(parse_host("[fe80::1%25eth0]"), Err(HostError::Zone));
        assert_eq!(engine_host("::"), Err(HostError::Wildcard));
    }

    #[test]
    fn a_host_to_listen_at_has_its_port_elsewhere() {
        for text in ["0.0.0.0:8000", "localhost:8000", "[::]:8000", "http://0.0.0.0:8000"] {
            assert_eq!(bind_host(text, "--port"), Err(HostError::PortApart("--port")), "{text}");
        }
        assert_eq!(bind_host("[::]", "--port"), Ok("::".to_owned()));
        assert_eq!(bind_host("[::g]", "--port"), Err(HostError::BadIpv6));
    }

    #[test]
    fn of_a_path_the_last_part_is_the_model() {
        for (one, other) in [
            ("Qwen3-8B", "Qwen3-8B"),
            ("/data/models/Qwen3-8B", "Qwen3-8B"),
            ("/data/models/Qwen3-8B/", "Qwen/Qwen3-8B"),
        ] {
            assert!(same_model(one, other) && same_model(other, one), "{one} {other}");
        }
        for (one, other) in [("Qwen3-8B", "qwen3-8b"), ("/models/a", "/models/b"), ("a/b", "a"), ("a", "")] {
            assert!(!same_model(one, other), "{one} {other}");
        }
    }
}
