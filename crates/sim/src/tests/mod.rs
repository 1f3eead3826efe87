//! Whole engines over real sockets.

mod faults;
mod handoff;
mod shapes;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

pub(super) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Longer than anything here takes on a busy machine; a test that needs it fails.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn engine() -> Engine {
    Engine::start(EngineSpec::default(), ANY).await.unwrap()
}

/// End of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Reset,
    Silent,
}

/// A raw exchange.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) bytes: Vec<u8>,
    pub(super) end: End,
    pub(super) reads: usize,
}

impl Raw {
    pub(super) fn status(&self) -> u16 {
        String::from_utf8_lossy(&self.bytes).split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(super) fn head(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        text.split_once("\r\n\r\n").unwrap().0.to_owned()
    }

    /// The body, chunks joined.
    pub(super) fn body(&self) -> String {
        let at = memchr::memmem::find(&self.bytes, b"\r\n\r\n").unwrap() + 4;
        let body = &self.bytes[at..];
        if !self.head().contains("transfer-encoding: chunked") {
            return String::from_utf8(body.to_vec()).unwrap();
        }
        String::from_utf8(chunks(body).concat()).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body()).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The data of every event.
    pub(super) fn events(&self) -> Vec<String> {
        let body = self.body();
        body.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }
}

pub(super) fn chunks(mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some(at) = memchr::memmem::find(body, b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..at]).unwrap(), 16).unwrap();
        if size == 0 || body.len() < at + 2 + size {
            break;
        }
        out.push(body[at + 2..at + 2 + size].to_vec());
        body = &body[at + 4 + size..];
    }
    out
}

pub(super) fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// Reads until the connection ends, or nothing came for `patience`.
pub(super) async fn drain(tcp: &mut TcpStream, patience: Duration) -> Raw {
    let (mut bytes, mut reads) = (Vec::new(), 0);
    let mut buffer = [0; 65536];
    loop {
        let end = match tokio::time::timeout(patience, tcp.read(&mut buffer)).await {
            Err(_) => End::Silent,
            Ok(Ok(0)) => End::Closed,
            Ok(Ok(n)) => {
                bytes.extend_from_slice(&buffer[..n]);
                reads += 1;
                continue;
            }
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionReset => End::Reset,
            Ok(Err(error)) => panic!("{error}"),
        };
        return Raw { bytes, end, reads };
    }
}

pub(super) async fn send(addr: SocketAddr, text: &str) -> Raw {
    let mut tcp = TcpStream::connect(addr).await.unwrap();
    tcp.write_all(text.as_bytes()).await.unwrap();
    drain(&mut tcp, PATIENCE).await
}

pub(super) async fn post(engine: &Engine, path: &str, body: &Value) -> Raw {
    send(engine.addr(), &request("POST", path, "", &body.to_string())).await
}

pub(super) async fn get(engine: &Engine, path: &str) -> Raw {
    send(engine.addr(), &request("GET", path, "", "")).await
}

pub(super) fn completion(prompt: &str) -> Value {
    json!({"model": "sim", "prompt": prompt, "max_tokens": 12, "temperature": 0})
}

/// `body` as the prefill leg sends it.
pub(super) fn prefill_leg(body: &Value) -> Value {
    with(body, json!({"max_tokens": 1, "stream": false, "kv_transfer_params": {"do_remote_decode": true}}))
}

pub(super) fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Prefills `body` on `engine`; the hand-off.
pub(super) async fn prefill(engine: &Engine, body: &Value) -> Value {
    let answer = post(engine, "/v1/completions", &prefill_leg(body)).await.json();
    answer["kv_transfer_params"].clone()
}

pub(super) fn text_of(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Waits for a state that other tasks bring about.
pub(super) async fn eventually(engine: &Engine, what: impl Fn(&Ledger) -> bool) -> Ledger {
    let wait = async {
        loop {
            let ledger = engine.ledger();
            if what(&ledger) {
                return ledger;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{:?}", engine.ledger()))
}
