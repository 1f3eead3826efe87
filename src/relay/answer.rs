//! Answer for the client: a whole body that was complete before its first byte went out, or a
//! stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, header};
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;

use crate::relay::account::Ledger;
use crate::relay::merged::Merged;
use crate::relay::stream::Stream;

/// As much of a complete answer is handed on at once: what the layer below takes it keeps, outside
/// of every limit, until a client over HTTP/2 opens its window.
const PIECE_BYTES: usize = 16 << 10;

/// An answer to the client.
pub type Answer = Response<AnswerBody>;

/// The body of an answer: one of three, none of which has to ask at each piece which of them it is.
#[derive(Debug)]
pub enum AnswerBody {
    /// A complete body.
    Whole(Whole),
    /// Arrives piece by piece.
    Stream(Box<Stream>),
    /// The same, of several prompts.
    Merged(Box<Merged>),
}

/// A complete answer. Its account is settled when the connection has taken all of it.
#[derive(Debug)]
pub struct Whole {
    pieces: Pieces,
    #[expect(dead_code, reason = "held for its Drop")]
    ledger: Box<Ledger>,
}

/// Bytes that are handed on piece by piece.
#[derive(Debug)]
struct Pieces(Bytes);

/// Takes out of an engine's headers what must not reach a client in the gateway's name
/// (`ends_here`), and what `Connection` lists.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    // Comparing the few that are there is cheaper than looking up the many that could be.
    let there: SmallVec<[HeaderName; 8]> =
        headers.keys().filter(|name| ends_here(name.as_str())).cloned().collect();
    for name in there {
        headers.remove(name);
    }
}

/// True for headers of an engine's answer that end at the gateway.
fn ends_here(name: &str) -> bool {
    is_of_the_connection(name) || is_of_the_origin(name) || steers_proxies(name)
}

/// True for what describes an engine's connection and framing, which ours replace (RFC 9110
/// §7.6.1), and who the engine is.
fn is_of_the_connection(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "content-length"
            | "date"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authentication-info"
            | "proxy-connection"
            | "proxy-status"
            | "server"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "via"
            | "x-powered-by"
    )
}

/// True for what a browser would remember of, or do at, the gateway's own origin, all of whose
/// pages and clients it would bind: cookies, other addresses and encryption (RFC 7838, RFC 6797),
/// redirects, reports, who may read (vLLM lets all pages read by default; behind us that is
/// `server.cors_origins`'s to say).
fn is_of_the_origin(name: &str) -> bool {
    matches!(
        name,
        "accept-ch"
            | "alt-svc"
            | "clear-site-data"
            | "content-location"
            | "critical-ch"
            | "expect-ct"
            | "link"
            | "location"
            | "nel"
            | "origin-agent-cluster"
            | "public-key-pins"
            | "public-key-pins-report-only"
            | "refresh"
            | "report-to"
            | "reporting-endpoints"
            | "service-worker-allowed"
            | "set-cookie"
            | "set-cookie2"
            | "set-login"
            | "speculation-rules"
            | "strict-transport-security"
            | "timing-allow-origin"
    ) || name.starts_with("access-control-")
        || name.starts_with("cross-origin-")
}

/// True for what proxies in front of the gateway obey (nginx, Apache, lighttpd, perlbal: files of
/// theirs, requests of theirs), and for the gateway's own words.
fn steers_proxies(name: &str) -> bool {
    name.starts_with("x-")
        && (name.starts_with("x-pd-")
            || name.starts_with("x-accel-")
            || matches!(name, "x-sendfile" | "x-lighttpd-send-file" | "x-reproxy-url" | "x-reproxy-file"))
        || matches!(name, "surrogate-control" | "surrogate-key")
}

/// Headers that `Connection` lists (RFC 9110 §7.6.1): whoever passes a message on leaves them out.
pub fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

impl Whole {
    /// These bytes, of a request with this account.
    pub fn of(body: Bytes, ledger: Ledger) -> Whole {
        Whole { pieces: Pieces(body), ledger: Box::new(ledger) }
    }
}

impl Whole {
    /// The same account with other bytes.
    #[must_use]
    pub fn map_bytes(self, change: impl FnOnce(Bytes) -> Bytes) -> Whole {
        Whole { pieces: Pieces(change(self.pieces.0)), ..self }
    }

    /// Bytes that have not been handed on yet.
    pub fn bytes(&self) -> &Bytes {
        &self.pieces.0
    }
}

impl Pieces {
    fn next(&mut self) -> Option<Bytes> {
        let piece = self.0.split_to(self.0.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(piece)
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_headers_of_an_engine_are_removed() {
        let names =
            |headers: &HeaderMap| headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
        let mut headers = HeaderMap::new();
        for name in [
            "connection",
            "content-length",
            "server",
            "via",
            "transfer-encoding",
            "set-cookie",
            "refresh",
            "content-location",
            "location",
            "alt-svc",
            "strict-transport-security",
            "clear-site-data",
            "access-control-allow-origin",
            "x-accel-redirect",
            "x-accel-expires",
            "x-sendfile",
            "x-pd-error",
            "x-pd-anything",
            "cross-origin-opener-policy",
        ] {
            headers.append(HeaderName::from_static(name), header::HeaderValue::from_static("a"));
            headers.append(HeaderName::from_static(name), header::HeaderValue::from_static("b"));
        }
        let passed = [
            "content-type",
            "x-request-id",
            "retry-after",
            "cache-control",
            "x-data-parallel-rank",
            "etag",
            "endpoint-load-metrics",
        ];
        for name in passed {
            headers.append(HeaderName::from_static(name), header::HeaderValue::from_static("c"));
        }
        headers.append("connection", header::HeaderValue::from_static("x-private"));
        headers.append("x-private", header::HeaderValue::from_static("d"));
        strip_hop_by_hop(&mut headers);
        // The map does not keep its order.
        let (mut left, mut right) = (names(&headers), passed.map(str::to_owned).to_vec());
        left.sort_unstable();
        right.sort_unstable();
        assert_eq!(left, right);
    }

    #[test]
    fn pieces_are_small_and_lose_nothing() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 1] {
            let all: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut pieces = Pieces(all.clone().into());
            let taken: Vec<Bytes> = std::iter::from_fn(|| pieces.next()).collect();
            assert_eq!(taken.concat(), all);
            assert_eq!(taken.len(), length.div_ceil(PIECE_BYTES));
        }
    }
}
