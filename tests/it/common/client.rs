//! A client that writes and reads raw bytes: what it is told is what was on the wire.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No exchange in a test takes longer, unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The data of each event of a stream; those without are left out.
pub fn data_of_events(stream: &str) -> impl Iterator<Item = &str> {
    stream.split("\n\n").filter_map(|frame| frame.lines().find_map(|line| line.strip_prefix("data: ")))
}

/// An answer as it came, and how it ended.
#[derive(Debug, Clone)]
pub struct Raw {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// Length of all that came, framing and head included.
    pub raw_bytes: usize,
    /// The framing says that the body is complete.
    pub complete: bool,
}

impl Raw {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let wanted = format!("{name}:");
        let line = self.head.lines().find(|l| l.to_ascii_lowercase().starts_with(&wanted))?;
        line.split_once(':').map(|(_, v)| v.trim())
    }

    /// The JSON of each event, `[DONE]` left out.
    pub fn events(&self) -> Vec<serde_json::Value> {
        data_of_events(&self.text())
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")))
            .collect()
    }

    pub fn done(&self) -> bool {
        self.text().ends_with("data: [DONE]\n\n")
    }

    /// The text of a chat or completion, streamed or not.
    pub fn words(&self) -> String {
        let of = |v: &serde_json::Value| {
            let choice = v.pointer("/choices/0")?;
            let text = choice
                .get("text")
                .or(choice.pointer("/delta/content"))
                .or(choice.pointer("/message/content"))?;
            text.as_str().map(str::to_owned)
        };
        if self.header("content-type").is_some_and(|t| t.starts_with("text/event-stream")) {
            self.events().iter().filter_map(of).collect()
        } else {
            of(&self.json()).unwrap_or_default()
        }
    }
}

/// A POST as bytes.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    post_with(path, &[], body.as_bytes())
}

/// A POST as bytes, with more headers.
pub fn post_with(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    [text.as_bytes(), body].concat()
}

/// A GET as bytes.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n\r\n").into_bytes()
}

/// One exchange on a connection of its own.
pub async fn send(to: SocketAddr, request: &[u8]) -> Raw {
    let mut socket = TcpStream::connect(to).await.expect("the gateway listens");
    // The server may answer and close before it has read everything.
    let _ = socket.write_all(request).await;
    read(&mut socket).await
}

/// Reads one answer to its end, as its framing tells it.
pub async fn read(socket: &mut (impl AsyncRead + Unpin)) -> Raw {
    read_on(socket, Vec::new()).await
}

/// The same, after its first bytes have been read already.
pub async fn read_on(socket: &mut (impl AsyncRead + Unpin), first: Vec<u8>) -> Raw {
    timeout(PATIENCE, read_all(socket, first)).await.expect("the answer never ended")
}

/// The same, for who has a limit of their own.
pub async fn read_all(socket: &mut (impl AsyncRead + Unpin), mut bytes: Vec<u8>) -> Raw {
    let mut piece = vec![0; 64 << 10];
    loop {
        let may_be_over = !is_chunked(&bytes) || bytes.ends_with(b"0\r\n\r\n");
        if let Some(raw) = may_be_over.then(|| parse(&bytes, false)).flatten() {
            return raw;
        }
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
        }
    }
    parse(&bytes, true).unwrap_or(Raw {
        status: 0,
        head: String::new(),
        raw_bytes: bytes.len(),
        body: bytes,
        complete: false,
    })
}

/// Long streams are parsed once, at their end.
fn is_chunked(bytes: &[u8]) -> bool {
    bytes
        .get(..bytes.len().min(2_000))
        .is_some_and(|b| String::from_utf8_lossy(b).contains("transfer-encoding: chunked"))
}

/// An answer, when it is complete; with `ended`, whatever there is of it.
fn parse(bytes: &[u8], ended: bool) -> Option<Raw> {
    let split = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
    let rest = &bytes[split + 4..];
    let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
    let mut raw = Raw { status, head, body: Vec::new(), raw_bytes: bytes.len(), complete: false };
    if status == 100 {
        return parse(rest, ended);
    }
    if raw.header("transfer-encoding").is_some_and(|t| t.contains("chunked")) {
        (raw.body, raw.complete) = unchunk(rest);
    } else {
        let length: usize = raw.header("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
        raw.complete = rest.len() >= length;
        raw.body = rest[..rest.len().min(length)].to_vec();
    }
    (raw.complete || ended).then_some(raw)
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(line) = rest.windows(2).position(|w| w == b"\r\n") else {
            return (body, false);
        };
        let size =
            std::str::from_utf8(&rest[..line]).ok().and_then(|s| usize::from_str_radix(s.trim(), 16).ok());
        let Some(size) = size else {
            return (body, false);
        };
        rest = &rest[line + 2..];
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        if rest.len() < size + 2 {
            return (body, false);
        }
        rest = &rest[size + 2..];
    }
}
