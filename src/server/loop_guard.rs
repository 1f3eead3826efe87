//! The name by which a gateway knows its own requests again. The module is pure.
//!
//! Each request to an engine names the gateway that it has passed (`Via`, RFC 9110 §7.6.3). One
//! that comes back shows that an engine's address is the gateway's own, whatever name it was given,
//! or leads here by way of another gateway: it would ask itself until it has no sockets left.

use http::{HeaderMap, HeaderValue, Version, header};
use memchr::memmem;

/// A gateway's name in `Via`, as long as it runs.
#[derive(Clone, Debug)]
pub struct Via {
    name: String,
    /// Lines that are added where the request came over HTTP/1.1, and where over HTTP/2.
    lines: [HeaderValue; 2],
}

impl Via {
    /// The name that is made of a random number.
    pub fn new(random: u64) -> Via {
        let name = format!("pd-proxy-{random:016x}");
        let line = |version: &str| {
            HeaderValue::from_str(&format!("{version} {name}"))
                .unwrap_or_else(|_| HeaderValue::from_static("1.1 pd-proxy"))
        };
        let lines = [line("1.1"), line("2")];
        Via { name, lines }
    }

    /// The line for a request that came by this version, or that nobody sent.
    pub fn line(&self, version: Version) -> &HeaderValue {
        &self.lines[usize::from(version == Version::HTTP_2)]
    }

    /// True if a request with these headers has been here.
    pub fn passed(&self, headers: &HeaderMap) -> bool {
        let here = |via: &HeaderValue| memmem::find(via.as_bytes(), self.name.as_bytes()).is_some();
        headers.get_all(header::VIA).iter().any(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_knows_its_own_requests_and_no_others() {
        let (ours, theirs) = (Via::new(7), Via::new(8));
        let mut headers = HeaderMap::new();
        assert!(!ours.passed(&headers));
        headers.append(header::VIA, HeaderValue::from_static("1.0 fred, 1.1 p.example.net"));
        headers.append(header::VIA, theirs.line(Version::HTTP_2).clone());
        assert!(!ours.passed(&headers) && theirs.passed(&headers));
        let line = ours.line(Version::HTTP_11).to_str().unwrap();
        assert_eq!(line, "1.1 pd-proxy-0000000000000007");
        headers.append(header::VIA, HeaderValue::from_str(&format!("{line}, 1.1 balancer")).unwrap());
        assert!(ours.passed(&headers));
    }
}
