//! An engine's publisher: a PUB and a ROUTER socket of another implementation of ZMTP, and a buffer
//! for replays.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pd_proxy::pool::events::zmtp::Address;
use tokio::task::JoinSet;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::common::place;
use crate::common::time::eventually;

/// One event that stores these blocks in HBM, as a batch of an old release: `[1.5, [["BlockStored",
/// …, 16]], 0]`.
pub fn stores(hashes: &[u64]) -> Vec<u8> {
    let mut event = vec![0x95, 0xab];
    event.extend(b"BlockStored");
    event.extend(list(hashes));
    event.extend([0xc0, 0x90, 16]);
    batch(&event)
}

/// One event that says that these blocks were put into a pool, as AscendStore publishes it.
pub fn puts(hashes: &[u64]) -> Vec<u8> {
    let mut event = vec![0x97, 0xab];
    event.extend(b"BlockStored");
    event.extend(list(hashes));
    event.extend([0xc0, 0x90, 16, 0xc0, 0xa3]);
    event.extend(b"cpu");
    batch(&event)
}

/// One event that removes these blocks.
pub fn removes(hashes: &[u64]) -> Vec<u8> {
    let mut event = vec![0x92, 0xac];
    event.extend(b"BlockRemoved");
    event.extend(list(hashes));
    batch(&event)
}

/// A batch that says nothing.
pub fn nothing() -> Vec<u8> {
    vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x90, 0]
}

fn batch(event: &[u8]) -> Vec<u8> {
    [&[0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x91], event, &[0]].concat()
}

fn list(hashes: &[u64]) -> Vec<u8> {
    let mut out = vec![0xdc];
    out.extend(u16::try_from(hashes.len()).unwrap().to_be_bytes());
    hashes.iter().for_each(|hash| out.extend([&[0xcf][..], &hash.to_be_bytes()].concat()));
    out
}

/// Addresses at which an engine publishes and replays.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub events: SocketAddr,
    pub replay: SocketAddr,
}

#[derive(Debug, Default)]
struct Buffer {
    batches: VecDeque<(u64, Vec<u8>)>,
    asked: Vec<u64>,
    /// The form of answers: with the topic, as of 0.32, or without.
    topics: bool,
    /// Batches that a replay leaves out once.
    holes: Vec<u64>,
}

pub struct Publisher {
    socket: PubSocket,
    buffer: Arc<Mutex<Buffer>>,
    keep: usize,
    next: u64,
    replays: JoinSet<()>,
}

impl Ports {
    /// Two that nobody uses.
    pub fn free() -> Self {
        Self { events: place::own(), replay: place::own() }
    }

    pub fn events(self) -> Address {
        format!("tcp://{}", self.events).parse().unwrap()
    }

    pub fn replay(self) -> Address {
        format!("tcp://{}", self.replay).parse().unwrap()
    }
}

impl Publisher {
    /// Listens there; a port that was just left may take a while.
    pub async fn start(ports: Ports, topics: bool) -> Self {
        let mut it = Self::start_half(ports, topics).await;
        it.open_replay(ports).await;
        it
    }

    /// The same, without the port for replays.
    pub async fn start_half(ports: Ports, topics: bool) -> Self {
        let mut socket = PubSocket::new();
        bind(&mut socket, ports.events).await;
        let buffer = Arc::new(Mutex::new(Buffer { topics, ..Buffer::default() }));
        Self { socket, buffer, keep: usize::MAX, next: 0, replays: JoinSet::new() }
    }

    /// Answers to questions for replays from now on.
    pub async fn open_replay(&mut self, ports: Ports) {
        let mut router = RouterSocket::new();
        bind(&mut router, ports.replay).await;
        self.replays.spawn(replay(router, Arc::clone(&self.buffer)));
    }

    /// Connects to one that listens, instead.
    pub async fn towards(at: SocketAddr) -> Self {
        let mut socket = PubSocket::new();
        socket.connect(&format!("tcp://{at}")).await.unwrap();
        Self { socket, buffer: Arc::default(), keep: usize::MAX, next: 0, replays: JoinSet::new() }
    }

    /// Ends as a process does: nobody is accepted any more, and nobody is left connected. Merely
    /// dropped, a socket may still take whoever comes at that moment, and never say anything to
    /// them.
    pub async fn stop(mut self) {
        self.replays.shutdown().await;
        let errors = self.socket.close().await;
        assert!(errors.is_empty(), "{errors:?}");
    }

    /// Number of batches that a replay can bring.
    pub fn keep(&mut self, batches: usize) {
        self.keep = batches;
    }

    /// Publishes, and keeps for replays.
    pub async fn publish(&mut self, payload: Vec<u8>) {
        let sequence = self.miss(payload.clone());
        self.send(sequence, payload).await;
    }

    /// Keeps for replays a batch that gets lost on its way. Returns its number.
    pub fn miss(&mut self, payload: Vec<u8>) -> u64 {
        let mut buffer = self.buffer.lock().unwrap();
        buffer.batches.push_back((self.next, payload));
        while buffer.batches.len() > self.keep {
            buffer.batches.pop_front();
        }
        self.next += 1;
        self.next - 1
    }

    /// Sends a batch under a number, and keeps nothing.
    pub async fn send(&mut self, sequence: u64, payload: Vec<u8>) {
        let frames = [b"kv-events".to_vec(), sequence.to_be_bytes().to_vec(), payload];
        self.frames(&frames).await;
    }

    pub async fn frames(&mut self, frames: &[Vec<u8>]) {
        let frames: Vec<Bytes> = frames.iter().cloned().map(Bytes::from).collect();
        self.socket.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
    }

    /// The next replay leaves this batch out.
    pub fn leave_out(&self, sequence: u64) {
        self.buffer.lock().unwrap().holes.push(sequence);
    }

    /// The numbers from which replays were asked for.
    pub fn asked(&self) -> Vec<u64> {
        self.buffer.lock().unwrap().asked.clone()
    }
}

async fn bind(socket: &mut impl Socket, at: SocketAddr) {
    let address = format!("tcp://{at}");
    eventually(format!("{at} is free"), async || socket.bind(&address).await.is_ok()).await;
}

async fn replay(mut router: RouterSocket, buffer: Arc<Mutex<Buffer>>) {
    while let Ok(question) = router.recv().await {
        let question = question.into_vec();
        let [identity, empty, start] = &question[..] else { panic!("{question:?}") };
        assert!(empty.is_empty());
        let start = u64::from_be_bytes(start[..].try_into().unwrap());
        let (answers, topics) = {
            let mut buffer = buffer.lock().unwrap();
            buffer.asked.push(start);
            let holes = std::mem::take(&mut buffer.holes);
            let wanted = buffer.batches.iter().filter(|(it, _)| *it >= start && !holes.contains(it));
            (wanted.cloned().collect::<Vec<_>>(), buffer.topics)
        };
        let end = (u64::MAX, Vec::new());
        for (sequence, payload) in answers.into_iter().chain([end]) {
            let mut frames = vec![identity.clone(), Bytes::new()];
            if topics {
                let last = sequence == u64::MAX;
                frames.push(Bytes::from_static(if last { b"" } else { b"kv-events" }));
            }
            frames.extend([Bytes::copy_from_slice(&sequence.to_be_bytes()), payload.into()]);
            if router.send(ZmqMessage::try_from(frames).unwrap()).await.is_err() {
                break;
            }
        }
    }
}
