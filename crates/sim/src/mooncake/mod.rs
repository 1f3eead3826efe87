//! A simulated Mooncake master: answers the two questions about many keys in any version's form,
//! and fails by script.

mod admin;
mod codec;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::gate::Gate;
use super::hub::lock;

pub use admin::AdminPort;
pub use codec::{
    Arguments, KeyEntry, Medium, MooncakeSpec, NOT_FOUND, Replica, Replicas, function_id, read_keys,
    type_code, write_existence, write_replicas, write_service, write_text,
};

const HEAD_BYTES: usize = 20;
/// Largest question that is read.
const MAX_BODY_BYTES: usize = 256 << 20;
/// Questions that are remembered.
const MAX_ASKED: usize = 65_536;
/// Failures in the script.
const MAX_MISHAPS: usize = 1024;
/// An answer that announces more than anybody has.
const HUGE: u32 = u32::MAX;

/// Faults of the answer to one question with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    /// No answer; the next question gets one.
    NoAnswer,
    /// The answer comes late, and so do those behind it.
    Delay(Duration),
    /// The connection is closed instead.
    Close,
    /// So many bytes of the answer, then the connection is closed.
    Cut(usize),
    /// So many bytes of the answer, then nothing for ever.
    Stall(usize),
    /// Bytes that are no answer.
    Garbage,
    /// The answer, with another sequence number.
    WrongSequence,
    /// A head that announces more than anybody has.
    Huge,
    /// An RPC error.
    Error(u8),
    /// One entry less than keys.
    Short,
}

/// Leadership of a master, as its admin port reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leadership {
    /// It leads the others.
    #[default]
    Leader,
    /// It leads, and does not answer about keys yet.
    WarmingUp,
    /// Another leads, at this RPC address; empty if it knows of none. Its own RPC port should be
    /// closed.
    Standby(String),
}

/// A question that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcCall {
    /// The function's id.
    pub function: u32,
    /// Its keys; none if the arguments were of the wrong form.
    pub keys: Option<usize>,
}

/// A running master; dropping it ends it.
#[derive(Debug)]
pub struct Mooncake {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    gate: Gate,
    /// Grows when all connections are to end.
    epoch: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spec: MooncakeSpec,
    objects: HashMap<String, KeyEntry>,
    mishaps: VecDeque<AnswerFault>,
    /// Mishap of questions when the script is at its end.
    always: Option<AnswerFault>,
    standing: Leadership,
    deaf: bool,
    asked: Vec<RpcCall>,
    connections: usize,
}

/// Replies to a question.
enum Reply {
    Send(Vec<u8>),
    SendThenClose(Vec<u8>),
    SendThenHang(Vec<u8>),
    Nothing,
}

impl Mooncake {
    /// Starts an empty master on `listen`; port 0 takes a free one.
    pub async fn start(spec: MooncakeSpec, listen: SocketAddr) -> io::Result<Mooncake> {
        let state = State {
            spec,
            objects: HashMap::new(),
            mishaps: VecDeque::new(),
            always: None,
            standing: Leadership::Leader,
            deaf: false,
            asked: Vec::new(),
            connections: 0,
        };
        let gate = Gate::bind(listen).await?;
        let shared = Arc::new(Shared { gate, epoch: watch::Sender::new(0), state: Mutex::new(state) });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(shared.clone()));
        Ok(Mooncake { shared, _tasks: tasks })
    }

    /// Address at which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.shared.gate.addr()
    }

    /// Stores an object of one complete replica in memory at `endpoint`.
    pub fn put(&self, key: &str, endpoint: &str) {
        let replica = Replica { medium: Medium::Memory, place: endpoint.to_owned(), complete: true };
        self.hold(key, KeyEntry::Object(vec![replica]));
    }

    /// Stores content under a key.
    pub fn hold(&self, key: &str, held: KeyEntry) {
        lock(&self.shared.state).objects.insert(key.to_owned(), held);
    }

    /// Forgets an object.
    pub fn remove(&self, key: &str) {
        lock(&self.shared.state).objects.remove(key);
    }

    /// Content that is stored under a key.
    #[must_use]
    pub fn held(&self, key: &str) -> Option<KeyEntry> {
        lock(&self.shared.state).objects.get(key).cloned()
    }

    /// Objects that are stored.
    #[must_use]
    pub fn objects(&self) -> usize {
        lock(&self.shared.state).objects.len()
    }

    /// Sets the standing that the admin port tells.
    pub fn stand(&self, standing: Leadership) {
        lock(&self.shared.state).standing = standing;
    }

    /// Sets the mishap of every question with keys that the script leaves alone.
    pub fn always(&self, mishap: Option<AnswerFault>) {
        lock(&self.shared.state).always = mishap;
    }

    /// Adds a failure to the script, of which each question with keys takes one.
    pub fn inject(&self, mishap: AnswerFault) {
        let mishaps = &mut lock(&self.shared.state).mishaps;
        if mishaps.len() < MAX_MISHAPS {
            mishaps.push_back(mishap);
        }
    }

    /// Reads and never answers, as a process that was stopped.
    pub fn set_deaf(&self, deaf: bool) {
        lock(&self.shared.state).deaf = deaf;
    }

    /// Refuses connections and resets those it has, as a process that was killed.
    pub fn kill(&self) {
        self.shared.gate.close();
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Listens again, as another version and without its objects.
    pub fn restart(&self, spec: MooncakeSpec) -> io::Result<()> {
        {
            let mut state = lock(&self.shared.state);
            state.spec = spec;
            state.objects.clear();
        }
        self.shared.gate.open()
    }

    /// The first questions that were read.
    #[must_use]
    pub fn asked(&self) -> Vec<RpcCall> {
        lock(&self.shared.state).asked.clone()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.shared.state).connections
    }
}

async fn accept(shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = shared.gate.accept() => {
                let Ok((tcp, _)) = accepted else { continue };
                lock(&shared.state).connections += 1;
                connections.spawn(serve(shared.clone(), tcp));
            }
        }
    }
}

async fn serve(shared: Arc<Shared>, tcp: TcpStream) {
    let mut epoch = shared.epoch.subscribe();
    epoch.mark_unchanged();
    tokio::select! {
        _ = epoch.changed() => {}
        // However a connection ends, it ends.
        _ = converse(&shared, tcp) => {}
    }
}

async fn converse(shared: &Shared, mut tcp: TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    loop {
        let mut head = [0; HEAD_BYTES];
        tcp.read_exact(&mut head).await?;
        let number = |at: usize| {
            let bytes = head.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let body_bytes = usize::try_from(number(12)).unwrap_or(usize::MAX);
        if !head.starts_with(&[0x15, 0, 0]) || body_bytes > MAX_BODY_BYTES {
            return Ok(());
        }
        let mut body = vec![0; body_bytes];
        tcp.read_exact(&mut body).await?;
        let (mishap, answer) = shared.answer(number(8), number(4), &body);
        if let Some(AnswerFault::Delay(delay)) = mishap {
            tokio::time::sleep(delay).await;
        }
        match reply(mishap, answer) {
            Reply::Send(bytes) => tcp.write_all(&bytes).await?,
            Reply::SendThenClose(bytes) => return tcp.write_all(&bytes).await,
            Reply::SendThenHang(bytes) => {
                tcp.write_all(&bytes).await?;
                return std::future::pending().await;
            }
            Reply::Nothing => {}
        }
    }
}

fn reply(mishap: Option<AnswerFault>, answer: Option<Vec<u8>>) -> Reply {
    let Some(mut answer) = answer else { return Reply::Nothing };
    match mishap {
        Some(AnswerFault::NoAnswer) => Reply::Nothing,
        Some(AnswerFault::Close) => Reply::SendThenClose(Vec::new()),
        Some(AnswerFault::Cut(bytes)) => {
            answer.truncate(bytes);
            Reply::SendThenClose(answer)
        }
        Some(AnswerFault::Stall(bytes)) => {
            answer.truncate(bytes);
            Reply::SendThenHang(answer)
        }
        Some(AnswerFault::Garbage) => Reply::SendThenHang(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        Some(AnswerFault::WrongSequence) => {
            if let Some(byte) = answer.get_mut(7) {
                *byte ^= 0x40;
            }
            Reply::Send(answer)
        }
        Some(AnswerFault::Huge) => {
            if let Some(length) = answer.get_mut(8..12) {
                length.copy_from_slice(&HUGE.to_le_bytes());
            }
            Reply::SendThenHang(answer)
        }
        Some(AnswerFault::Delay(_) | AnswerFault::Error(_) | AnswerFault::Short) | None => {
            Reply::Send(answer)
        }
    }
}

impl Shared {
    /// The mishap of a question, and its answer; none from a deaf master.
    fn answer(&self, function: u32, sequence: u32, body: &[u8]) -> (Option<AnswerFault>, Option<Vec<u8>>) {
        let mut state = lock(&self.state);
        let spec = state.spec;
        let keys = read_keys(body, spec);
        if state.asked.len() < MAX_ASKED {
            state.asked.push(RpcCall { function, keys: keys.as_ref().map(Vec::len) });
        }
        if state.deaf {
            return (None, None);
        }
        let with_keys = keys.as_ref().is_some_and(|keys| !keys.is_empty());
        let mishap = if with_keys { state.mishaps.pop_front().or(state.always) } else { None };
        let (error, body) = match mishap {
            Some(AnswerFault::Error(code)) => (code, write_text(spec, "by script")),
            _ => state.body(function, keys, mishap == Some(AnswerFault::Short)),
        };
        (mishap, Some(framed(error, sequence, &body)))
    }
}

impl State {
    fn body(&self, function: u32, keys: Option<Vec<String>>, short: bool) -> (u8, Vec<u8>) {
        let (exist, locate) = (function_id("BatchExistKey"), function_id("BatchGetReplicaList"));
        if function == function_id("ServiceReady") {
            return (0, write_service(self.spec));
        }
        if function != exist && function != locate {
            return (11, write_text(self.spec, "the rpc function not registered"));
        }
        let Some(keys) = keys else { return (4, write_text(self.spec, "invalid rpc arg")) };
        let held = |key: &String| self.objects.get(key).cloned().unwrap_or(KeyEntry::Error(NOT_FOUND));
        let held: Vec<KeyEntry> = keys.iter().skip(usize::from(short)).map(held).collect();
        (
            0,
            if function == exist {
                write_existence(self.spec, &held)
            } else {
                write_replicas(self.spec, &held)
            },
        )
    }
}

fn framed(error: u8, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(HUGE);
    let head = [[0x15, 0, error, 0], sequence.to_le_bytes(), length.to_le_bytes(), [0; 4]];
    [head.as_flattened(), body].concat()
}
