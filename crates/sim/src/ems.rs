//! A simulated EMS lookup server: a ZeroMQ REP socket with one thread behind it, which one bad
//! message ends for good.

use std::collections::HashSet;
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
use pd_proxy_core::codec::pickle::{self, Protocol, ReadLimits, Value};

/// Connections at a time; a client needs one.
const MAX_CONNECTIONS: usize = 64;
/// Largest question that is read.
const MAX_QUESTION_BYTES: usize = 1 << 20;
/// Questions that are remembered.
const MAX_SEEN: usize = 1024;

/// Of version 3.1, as libzmq's, up to the name of the mechanism.
const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL";
const GREETING_BYTES: usize = 64;
const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REP";
/// READY of a REQ socket without a name.
const PEER_READY_BYTES: usize = 40;

/// Ways in which questions are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EmsAnswering {
    /// Answers with the number of leading blocks that are present.
    #[default]
    Prefix,
    /// That all are there: what the connector says when its pool raises.
    All,
    /// Answers as [`Self::Prefix`], after this time.
    Late(Duration),
    /// Not, until this changes; the thread is busy with it.
    Hang,
    /// The connection ends instead.
    Close,
    /// Answers with these bytes in place of a pickled number.
    Says(Vec<u8>),
    /// Answers with these bytes in place of the frames.
    Sends(Vec<u8>),
}

/// A running server; dropping it ends it.
#[derive(Debug)]
pub struct EmsLookup {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    gate: Gate,
    how: watch::Sender<EmsAnswering>,
    state: Mutex<State>,
    /// The one thread.
    thread: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    present: HashSet<i64>,
    seen: Vec<Vec<i64>>,
    connections: usize,
    /// Questions that have arrived and are not answered.
    open: usize,
    most_open: usize,
    dead: bool,
}

/// Counts a question while it is open, however that ends.
struct Open<'a>(&'a Shared);

impl EmsLookup {
    /// Starts one on `listen`; port 0 takes a free one.
    pub async fn start(listen: SocketAddr) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: Gate::bind(listen).await?,
            how: watch::Sender::default(),
            state: Mutex::default(),
            thread: tokio::sync::Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(shared.clone()));
        Ok(Self { shared, _tasks: tasks })
    }

    /// Address at which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.shared.gate.addr()
    }

    /// The blocks that are present from now on.
    pub fn hold(&self, hashes: impl IntoIterator<Item = i64>) {
        lock(&self.shared.state).present = hashes.into_iter().collect();
    }

    /// Sets the way in which questions are answered, those that hang included.
    pub fn set(&self, how: EmsAnswering) {
        self.shared.how.send_replace(how);
    }

    /// The questions so far, oldest first.
    #[must_use]
    pub fn seen(&self) -> Vec<Vec<i64>> {
        lock(&self.shared.state).seen.clone()
    }

    /// Connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.shared.state).connections
    }

    /// The most questions that were open at the same time on connections that lived.
    #[must_use]
    pub fn most_open(&self) -> usize {
        lock(&self.shared.state).most_open
    }

    /// A message that was no question has ended its thread.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        lock(&self.shared.state).dead
    }
}

impl<'a> Open<'a> {
    fn new(shared: &'a Shared) -> Self {
        let mut state = lock(&shared.state);
        state.open += 1;
        state.most_open = state.most_open.max(state.open);
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).open -= 1;
    }
}

async fn serve(shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = shared.gate.accept().await {
        while connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        lock(&shared.state).connections += 1;
        let shared = shared.clone();
        connections.spawn(async move { drop(connection(&shared, tcp).await) });
    }
}

async fn connection(shared: &Shared, mut tcp: TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut greeting = [0; GREETING_BYTES];
    greeting[..GREETING.len()].copy_from_slice(GREETING);
    tcp.write_all(&greeting).await?;
    tcp.read_exact(&mut greeting).await?;
    tcp.write_all(READY).await?;
    tcp.read_exact(&mut [0; PEER_READY_BYTES]).await?;
    loop {
        let question = read_message(&mut tcp).await?;
        let _open = Open::new(shared);
        let (mut reader, mut writer) = tcp.split();
        // As with a real socket, who hangs up gets no answer.
        let answer = tokio::select! {
            answer = answer(shared, &question) => answer,
            _ = reader.read_u8() => return Ok(()),
        };
        let Some(answer) = answer else { return Ok(()) };
        writer.write_all(&answer).await?;
    }
}

/// One message: an empty frame and a body.
async fn read_message(tcp: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; 3];
    tcp.read_exact(&mut head).await?;
    let len = match head {
        [1, 0, 0] => u64::from(tcp.read_u8().await?),
        [1, 0, 2] => tcp.read_u64().await?,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > MAX_QUESTION_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    tcp.read_exact(&mut body).await?;
    Ok(body)
}

/// The one thread's answer to a question, once it has come to it; `None`: the connection ends.
async fn answer(shared: &Shared, question: &[u8]) -> Option<Vec<u8>> {
    let _thread = shared.thread.lock().await;
    if lock(&shared.state).dead {
        return std::future::pending().await;
    }
    let Some(hashes) = read_question(question) else {
        lock(&shared.state).dead = true;
        return std::future::pending().await;
    };
    let found = {
        let mut state = lock(&shared.state);
        if state.seen.len() < MAX_SEEN {
            state.seen.push(hashes.clone());
        }
        hashes.iter().take_while(|hash| state.present.contains(hash)).count()
    };
    let mut how = shared.how.subscribe();
    if how.wait_for(|how| *how != EmsAnswering::Hang).await.is_err() {
        return std::future::pending().await;
    }
    let how = how.borrow().clone();
    let body = match how {
        EmsAnswering::Close => return None,
        EmsAnswering::Sends(bytes) => return Some(bytes),
        EmsAnswering::Says(body) => body,
        EmsAnswering::All => number(hashes.len()),
        EmsAnswering::Late(wait) => {
            tokio::time::sleep(wait).await;
            number(found)
        }
        EmsAnswering::Prefix | EmsAnswering::Hang => number(found),
    };
    let len = u8::try_from(body.len()).unwrap_or(u8::MAX);
    Some([&[1, 0, 0, len], &body[..usize::from(len)]].concat())
}

/// Reads a question as `req_id, hashes = pickle.loads(question)`.
fn read_question(question: &[u8]) -> Option<Vec<i64>> {
    let Ok(Value::List(pair)) = pickle::read(question, ReadLimits::default()) else { return None };
    let [Value::Str(_), Value::List(hashes)] = &pair[..] else { return None };
    let number = |hash: &Value| match hash {
        Value::Int(hash) => i64::try_from(*hash).ok(),
        _ => None,
    };
    hashes.iter().map(number).collect()
}

fn number(found: usize) -> Vec<u8> {
    let found = i128::try_from(found).unwrap_or(i128::MAX);
    pickle::write(&Value::Int(found), Protocol::V4).unwrap_or_default()
}
