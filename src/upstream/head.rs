//! Heads of HTTP/1.1 messages between the gateway and an engine (RFC 9112): requests written,
//! answers read. The module is pure.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};

/// The largest head of an answer.
pub const HEAD_BYTES: usize = 64 << 10;
/// The most lines in it.
const HEAD_LINES: usize = 128;

/// Head of an engine's answer.
#[derive(Debug)]
pub struct Head {
    /// Not one of 1xx.
    pub status: StatusCode,
    /// Version whose rules it follows.
    pub version: Version,
    /// As sent, less a length that the transfer coding overrules.
    pub headers: HeaderMap,
    /// Framing of its body.
    pub framing: Framing,
    /// True if the connection may carry another request after it.
    pub keep: bool,
}

/// Ways in which the end of a body is known (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes.
    Length(u64),
    /// By the last chunk.
    Chunked,
    /// By the end of the connection.
    Close,
}

/// A head that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// It is not HTTP/1.
    #[error("no HTTP/1 answer: {0}")]
    Syntax(String),
    /// It does not end.
    #[error("the answer's head is larger than {HEAD_BYTES} bytes")]
    TooLarge,
    /// Two lengths, or one that is no number.
    #[error("the answer's Content-Length is not one number")]
    Length,
    /// A body in a coding that nobody asked for: passed on, it would be half undone.
    #[error("the answer's Transfer-Encoding is not `chunked` alone")]
    Coding,
    /// A change of protocol that nobody asked for.
    #[error("status 101")]
    Upgrade,
}

/// The head of a request with a body of `body_bytes`. Lines that say how the body is framed are
/// ours.
pub fn write(method: &Method, target: &str, host: &str, headers: &HeaderMap, body_bytes: usize) -> Bytes {
    let size = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    let mut out = Vec::with_capacity(size + target.len() + host.len() + 64);
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    if body_bytes > 0 || !method.is_safe() {
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(body_bytes.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    for (name, value) in headers {
        if [HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name) {
            continue;
        }
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.into()
}

/// Reads the head at the beginning of `bytes`, which answers a request of this method; interim ones
/// (1xx) are passed over. With it comes where the body begins; `None` while the head is incomplete.
///
/// # Errors
/// [`BadHead`].
pub fn read(bytes: &Bytes, method: &Method) -> Result<Option<(Head, usize)>, BadHead> {
    let mut at = 0;
    loop {
        let rest = bytes.slice(at..);
        let mut lines = [httparse::EMPTY_HEADER; HEAD_LINES];
        let mut answer = httparse::Response::new(&mut lines);
        let parsed = answer.parse(&rest).map_err(|e| BadHead::Syntax(e.to_string()))?;
        let httparse::Status::Complete(length) = parsed else {
            return if bytes.len() > HEAD_BYTES { Err(BadHead::TooLarge) } else { Ok(None) };
        };
        let code = answer.code.unwrap_or_default();
        let status = StatusCode::from_u16(code).map_err(|e| BadHead::Syntax(e.to_string()))?;
        at += length;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(BadHead::Upgrade);
        }
        if status.is_informational() {
            continue;
        }
        let version = if answer.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let headers = headers(&rest, answer.headers)?;
        return Ok(Some((framed(status, version, headers, method)?, at)));
    }
}

/// The lines as slices of the text.
fn headers(text: &Bytes, lines: &[httparse::Header<'_>]) -> Result<HeaderMap, BadHead> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name =
            HeaderName::from_bytes(line.name.as_bytes()).map_err(|e| BadHead::Syntax(e.to_string()))?;
        let value = HeaderValue::from_maybe_shared(text.slice_ref(line.value))
            .map_err(|e| BadHead::Syntax(e.to_string()))?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn framed(
    status: StatusCode,
    version: Version,
    mut headers: HeaderMap,
    asked: &Method,
) -> Result<Head, BadHead> {
    let names = |name: &HeaderName, what: &str| {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case(what))
    };
    let persists = if version == Version::HTTP_11 {
        !names(&CONNECTION, "close")
    } else {
        names(&CONNECTION, "keep-alive") && !headers.contains_key(TRANSFER_ENCODING)
    };
    let coding = coding(&headers)?;
    let coded = coding != Coding::None;
    let bodiless =
        asked == Method::HEAD || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    let length = length(&headers)?;
    let framing = match length {
        _ if bodiless => Framing::Length(0),
        _ if coding == Coding::Chunked => Framing::Chunked,
        Some(length) if !coded => Framing::Length(length),
        _ => Framing::Close,
    };
    // Both are what smuggling is made of: the coding counts (RFC 9112 §6.3), and nothing more is
    // read from there.
    let suspect = coded && length.is_some();
    if suspect {
        headers.remove(CONTENT_LENGTH);
    }
    let keep = persists && !suspect && framing != Framing::Close;
    Ok(Head { status, version, headers, framing, keep })
}

/// Transfer codings of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    /// No word of it.
    None,
    /// `identity`, which RFC 2616 had: as it is.
    Identity,
    /// It comes in chunks.
    Chunked,
}

/// The coding of a body; one that is compressed as well is refused, since no request of ours asks
/// for that (`TE`, RFC 9112 §7.4).
fn coding(headers: &HeaderMap) -> Result<Coding, BadHead> {
    let mut coding = Coding::None;
    for line in headers.get_all(TRANSFER_ENCODING) {
        let text = line.to_str().map_err(|_| BadHead::Coding)?;
        if coding == Coding::None {
            coding = Coding::Identity;
        }
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            coding = match coding {
                Coding::Chunked => return Err(BadHead::Coding),
                _ if name.eq_ignore_ascii_case("chunked") => Coding::Chunked,
                _ if name.eq_ignore_ascii_case("identity") => Coding::Identity,
                _ => return Err(BadHead::Coding),
            };
        }
    }
    Ok(coding)
}

/// One number, however often it is said.
fn length(headers: &HeaderMap) -> Result<Option<u64>, BadHead> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for text in value.to_str().map_err(|_| BadHead::Length)?.split(',') {
            let digits = text.trim();
            let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
            let number: u64 = number.ok_or(BadHead::Length)?;
            if length.is_some_and(|before| before != number) {
                return Err(BadHead::Length);
            }
            length = Some(number);
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Result<Option<(Head, usize)>, BadHead> {
        read(&Bytes::copy_from_slice(text.as_bytes()), &Method::POST)
    }

    fn head(lines: &str) -> Head {
        read_all(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n")).unwrap().unwrap().0
    }

    #[test]
    fn a_request_says_where_it_goes_and_how_long_it_is() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", HeaderValue::from_static("r-1"));
        headers.insert("content-length", HeaderValue::from_static("7"));
        headers.insert("transfer-encoding", HeaderValue::from_static("chunked"));
        let text = write(&Method::POST, "/v1/completions?a=b", "h:8000", &headers, 12);
        assert_eq!(
            text,
            "POST /v1/completions?a=b HTTP/1.1\r\nhost: h:8000\r\ncontent-length: 12\r\nx-request-id: r-1\r\n\r\n"
        );
        let text = write(&Method::GET, "/health", "h", &HeaderMap::new(), 0);
        assert_eq!(text, "GET /health HTTP/1.1\r\nhost: h\r\n\r\n");
        let text = write(&Method::POST, "/x", "h", &HeaderMap::new(), 0);
        assert_eq!(text, "POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n");
    }

    #[test]
    fn framing_follows_from_the_head() {
        for (lines, framing, keep) in [
            ("content-length: 5\r\n", Framing::Length(5), true),
            ("Content-Length: 5, 5\r\ncontent-length: 5\r\n", Framing::Length(5), true),
            ("transfer-encoding: chunked\r\n", Framing::Chunked, true),
            ("Transfer-Encoding: , Chunked\r\n", Framing::Chunked, true),
            ("transfer-encoding: identity\r\ncontent-length: 3\r\n", Framing::Close, false),
            ("transfer-encoding: chunked\r\ncontent-length: 3\r\n", Framing::Chunked, false),
            ("", Framing::Close, false),
            ("content-length: 5\r\nconnection: close\r\n", Framing::Length(5), false),
            ("content-length: 5\r\nConnection: x, Close\r\n", Framing::Length(5), false),
        ] {
            let head = head(lines);
            assert_eq!((head.framing, head.keep), (framing, keep), "{lines:?}");
        }
        assert!(
            !head("transfer-encoding: chunked\r\ncontent-length: 3\r\n").headers.contains_key(CONTENT_LENGTH)
        );
    }

    #[test]
    fn some_answers_have_no_body_whatever_they_say() {
        for status in ["204 No Content", "304 Not Modified"] {
            let text = format!("HTTP/1.1 {status}\r\ncontent-length: 9\r\n\r\n");
            assert_eq!(read_all(&text).unwrap().unwrap().0.framing, Framing::Length(0));
        }
        let text = Bytes::from_static(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        assert_eq!(read(&text, &Method::HEAD).unwrap().unwrap().0.framing, Framing::Length(0));
    }

    #[test]
    fn old_servers_close_unless_they_say_otherwise() {
        let old = |lines: &str| read_all(&format!("HTTP/1.0 200 OK\r\n{lines}\r\n")).unwrap().unwrap().0;
        assert!(!old("content-length: 1\r\n").keep);
        assert!(old("content-length: 1\r\nconnection: keep-alive\r\n").keep);
    }

    #[test]
    fn interim_answers_are_passed_over() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\nno";
        let (head, at) = read_all(text).unwrap().unwrap();
        assert_eq!((head.status, &text[at..]), (StatusCode::BAD_REQUEST, "no"));
        assert!(read_all("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200").unwrap().is_none());
    }

    #[test]
    fn malformed_head_is_refused() {
        assert!(matches!(read_all("SSH-2.0\r\n\r\n"), Err(BadHead::Syntax(_))));
        assert!(matches!(read_all("HTTP/1.1 101 Switching\r\n\r\n"), Err(BadHead::Upgrade)));
        for length in ["5\r\ncontent-length: 6", "-1", "+1", "1x", "", "99999999999999999999"] {
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            assert_eq!(read_all(&text).err(), Some(BadHead::Length), "{length:?}");
        }
        for coding in [
            "gzip, chunked",
            "gzip",
            "chunked, gzip",
            "chunked\r\ntransfer-encoding: chunked",
            "x",
            "chunked;a=b",
            "chunked, identity",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n");
            assert_eq!(read_all(&text).err(), Some(BadHead::Coding), "{coding:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD_BYTES));
        assert_eq!(read_all(&long).err(), Some(BadHead::TooLarge));
        let many = "a: b\r\n".repeat(HEAD_LINES + 1);
        assert!(matches!(read_all(&format!("HTTP/1.1 200 OK\r\n{many}\r\n")), Err(BadHead::Syntax(_))));
    }
}
