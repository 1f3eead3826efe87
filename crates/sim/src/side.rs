//! The side channel between engines: NIXL's transfers over RDMA, simulated over HTTP and TCP.
//!
//! `GET /sim/kv?engine_id=E&blocks=3,1` reads block contents, `POST /sim/kv/release` with
//! `{"engine_id":E,"request_id":R,"read":true}` gives a hand-off back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::handoff::Source;
use super::ledger::Release;
use super::net::Net;
use super::socket::Socket;

/// Time for one exchange with another engine, connecting included. vLLM's handshake gives up after
/// 5 s; a test should not wait that long.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_millis(1000);
/// Blocks read at a time: their ids, up to 11 bytes each, stand in a URL, which may have 64 KB.
const BLOCKS_PER_CALL: usize = 4096;
const RELEASE_PATH: &str = "/sim/kv/release";
/// Bytes a side channel answer may have.
const ANSWER_BYTES: usize = 16 << 20;

/// An engine that reads the KV of another one.
#[derive(Clone, Copy, Debug)]
pub struct KvReader<'a> {
    /// The network that it is in; `None` = the machine's.
    pub net: Option<&'a Arc<Net>>,
    /// Its release, which NIXL's handshake compares.
    pub version: &'a str,
}

/// Reads the contents of `blocks`, then gives the hand-off back.
pub async fn pull(reader: KvReader<'_>, source: &Source, blocks: &[u32]) -> io::Result<Vec<u64>> {
    timeout(EXCHANGE_TIMEOUT, async {
        let mut peer = Peer::connect(reader.net, source).await?;
        let mut contents: Vec<u64> = Vec::with_capacity(blocks.len());
        // An empty list is asked for too: the peer says whether it is the engine that is meant.
        let first = blocks.get(..blocks.len().min(BLOCKS_PER_CALL)).unwrap_or_default();
        let rest = blocks.get(first.len()..).unwrap_or_default();
        for some in std::iter::once(first).chain(rest.chunks(BLOCKS_PER_CALL)) {
            let ids = some.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let (engine_id, version) = (&source.engine_id, reader.version);
            let path = format!("/sim/kv?engine_id={engine_id}&version={version}&blocks={ids}");
            contents.extend(serde_json::from_slice::<Vec<u64>>(&peer.call("GET", &path, "").await?)?);
        }
        if contents.len() != blocks.len() {
            return Err(io::Error::other("the prefiller sent another number of blocks"));
        }
        peer.call("POST", RELEASE_PATH, &release_body(source, Release::Read)).await?;
        Ok(contents)
    })
    .await?
}

/// The blocks that the prefiller keeps under the name of `source`; `None` if there are none yet.
pub async fn kept(net: Option<&Arc<Net>>, source: &Source) -> io::Result<Option<Vec<u32>>> {
    timeout(EXCHANGE_TIMEOUT, async {
        let path = format!("/sim/kept?engine_id={}&name={}", source.engine_id, source.request_id);
        let answer = Peer::connect(net, source).await?.call("GET", &path, "").await?;
        Ok(serde_json::from_slice(&answer)?)
    })
    .await?
}

/// Gives a hand-off back.
pub async fn release(net: Option<&Arc<Net>>, source: &Source, why: Release) -> io::Result<()> {
    timeout(EXCHANGE_TIMEOUT, async {
        let body = release_body(source, why);
        Peer::connect(net, source).await?.call("POST", RELEASE_PATH, &body).await.map(|_| ())
    })
    .await?
}

/// Posts JSON and returns the answer's status. It has no time limit.
pub async fn post(net: Option<&Arc<Net>>, host: &str, port: u16, path: &str, body: &str) -> io::Result<u16> {
    let mut peer = Peer::at(net, host, port).await?;
    peer.exchange("POST", path, body).await.map(|(status, _)| status)
}

fn release_body(source: &Source, why: Release) -> String {
    let read = why == Release::Read;
    json!({"engine_id": source.engine_id, "request_id": source.request_id, "read": read}).to_string()
}

struct Peer {
    socket: Socket,
    host: String,
}

impl Peer {
    async fn connect(net: Option<&Arc<Net>>, source: &Source) -> io::Result<Peer> {
        Peer::at(net, &source.host, source.port).await
    }

    async fn at(net: Option<&Arc<Net>>, host: &str, port: u16) -> io::Result<Peer> {
        let socket = Socket::connect(net, host, port).await?;
        socket.hurry();
        // Resets instead of lingering: a bench makes more connections than there are ports to keep
        // waiting.
        socket.reset();
        Ok(Peer { socket, host: format!("{host}:{port}") })
    }

    /// Performs one exchange; returns the answer's body if its status is 200.
    async fn call(&mut self, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        match self.exchange(method, path, body).await? {
            (200, answer) => Ok(answer),
            (status, _) => Err(io::Error::other(format!("status {status}"))),
        }
    }

    async fn exchange(&mut self, method: &str, path: &str, body: &str) -> io::Result<(u16, Vec<u8>)> {
        let (host, length) = (&self.host, body.len());
        let ask =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n{body}");
        self.socket.write_all(ask.as_bytes()).await?;
        let mut answer = Vec::with_capacity(1024);
        loop {
            if let Some((status, start, length)) = parse_head(&answer)? {
                while answer.len() < start + length {
                    self.read_some(&mut answer).await?;
                }
                answer.drain(..start);
                answer.truncate(length);
                return Ok((status, answer));
            }
            self.read_some(&mut answer).await?;
        }
    }

    async fn read_some(&mut self, answer: &mut Vec<u8>) -> io::Result<()> {
        if answer.len() > ANSWER_BYTES || self.socket.read_buf(answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// Status, start of the body and its length, once the head is complete.
fn parse_head(answer: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
    let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).to_ascii_lowercase();
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok()).ok_or_else(bad)?;
    if length > ANSWER_BYTES { Err(bad()) } else { Ok(Some((status, end + 4, length))) }
}
