//! A MemCache meta service: the binary protocol and the HTTP address of three versions, with
//! faults.
//!
//! Filled from outside; nothing is ever evicted. It reads what comes strictly and notes every
//! hello, so that a test can say which ranks were named.

mod frames;
mod http;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::gate::Gate;
use super::hub::lock;

/// Longest request that is read, bytes.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Hellos and questions that are remembered.
const SEEN: usize = 4096;

/// Versions whose bytes are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetaVersion {
    /// 1.1: questions about places without a flag, objects of 64 bytes.
    V1_1,
    /// 1.2: with a flag; 32 bytes per replica.
    V1_2,
    /// 1.3: as 1.2, with 40 bytes.
    V1_3,
}

/// An object of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaObject {
    /// Replicas: rank and medium (0 HBM, 1 DRAM, 2 SSD).
    pub replicas: Vec<(u32, u16)>,
    /// True if the object was written completely.
    pub readable: bool,
}

/// Actions of the service other than answering. The questions that follow a hello are answered, but
/// for `Silent`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetaFault {
    /// It answers normally.
    #[default]
    None,
    /// Hellos are refused.
    Refuse,
    /// Questions are read, and that is all.
    Silent,
    /// Questions about places get no answer.
    SilentAboutPlaces,
    /// Answers come this late.
    Late(Duration),
    /// So many bytes of an answer come, then the connection ends.
    Cut(usize),
    /// Bytes that are no frame.
    Garbage,
    /// Answers under numbers that nobody used; the right ones never come.
    WrongSequence,
    /// Before each answer a request of its own, and an answer to nobody.
    Strange,
    /// One answer of two is held back until the next has been sent.
    Swapped,
    /// Answers with no entries.
    Empty,
}

/// One question that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    /// The operation: 9 presence, 14 places.
    pub op: i16,
    /// Number of keys that were understood.
    pub keys: usize,
}

/// A running service. Dropping it ends it.
#[derive(Debug)]
pub struct MetaService {
    shared: Arc<Shared>,
    tcp: Arc<Gate>,
    http: SocketAddr,
    cut: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(super) struct Shared {
    version: MetaVersion,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<String, MetaObject>,
    fault: MetaFault,
    hellos: Vec<u64>,
    asked: Vec<MetaRequest>,
}

impl MetaService {
    /// Listens on two free ports of 127.0.0.1.
    ///
    /// # Errors
    /// There are none left.
    pub async fn start(version: MetaVersion) -> io::Result<Self> {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let tcp = Arc::new(Gate::bind(free).await?);
        let listener = tokio::net::TcpListener::bind(free).await?;
        let http = listener.local_addr()?;
        let shared = Arc::new(Shared { version, inner: Mutex::default() });
        let cut = watch::Sender::new(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(tcp.clone(), shared.clone(), cut.clone()));
        tasks.spawn(http::accept(listener, shared.clone()));
        Ok(Self { shared, tcp, http, cut, _tasks: tasks })
    }

    /// Address of the binary protocol.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.tcp.addr()
    }

    /// Address of the HTTP API.
    #[must_use]
    pub fn http_addr(&self) -> SocketAddr {
        self.http
    }

    /// Stores an object.
    pub fn put(&self, key: &str, object: MetaObject) {
        lock(&self.shared.inner).objects.insert(key.to_owned(), object);
    }

    /// Sets the fault from now on.
    pub fn fault(&self, fault: MetaFault) {
        lock(&self.shared.inner).fault = fault;
    }

    /// Ends all connections of the binary protocol and takes no new ones.
    pub fn stop(&self) {
        self.tcp.close();
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Takes connections again, on the same port.
    ///
    /// # Errors
    /// The port is taken.
    pub fn resume(&self) -> io::Result<()> {
        self.tcp.open()
    }

    /// The ranks that were named in hellos, oldest first.
    #[must_use]
    pub fn hellos(&self) -> Vec<u64> {
        lock(&self.shared.inner).hellos.clone()
    }

    /// The questions, oldest first.
    #[must_use]
    pub fn asked(&self) -> Vec<MetaRequest> {
        lock(&self.shared.inner).asked.clone()
    }
}

impl MetaObject {
    /// One readable replica in main memory.
    #[must_use]
    pub fn on(rank: u32) -> Self {
        Self { replicas: vec![(rank, 1)], readable: true }
    }
}

async fn accept(gate: Arc<Gate>, shared: Arc<Shared>, cut: watch::Sender<u64>) {
    let mut links = JoinSet::new();
    while let Ok((stream, _)) = gate.accept().await {
        while links.try_join_next().is_some() {}
        let (shared, mut cut) = (shared.clone(), cut.subscribe());
        links.spawn(async move {
            tokio::select! {
                // However a link ends, nothing of the service depends on it.
                _ = link(stream, &shared) => {}
                _ = cut.changed() => {}
            }
        });
    }
}

async fn link(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).await?;
    let Some(rank) = frames::rank_of(&hello) else { return Ok(()) };
    let fault = {
        let mut inner = lock(&shared.inner);
        if inner.hellos.len() < SEEN {
            inner.hellos.push(rank);
        }
        inner.fault.clone()
    };
    let welcome: i16 = if fault == MetaFault::Refuse { -1 } else { 0 };
    stream.write_all(&welcome.to_le_bytes()).await?;
    let mut held = None;
    loop {
        let mut header = [0; frames::HEADER_BYTES];
        stream.read_exact(&mut header).await?;
        let Some((op, bytes, seq)) = frames::header(&header) else { return Ok(()) };
        if bytes > MAX_BODY_BYTES {
            return Ok(());
        }
        let mut body = vec![0; bytes];
        stream.read_exact(&mut body).await?;
        let (answer, fault) = answer(shared, op, &body);
        let Some(answer) = answer else { continue };
        if !say(&mut stream, MetaReply { op, seq, body: answer }, fault, &mut held).await? {
            return Ok(());
        }
    }
}

/// The body of the answer, and what is to happen to it.
fn answer(shared: &Shared, op: i16, body: &[u8]) -> (Option<Vec<u8>>, MetaFault) {
    let mut inner = lock(&shared.inner);
    let keys = frames::keys(shared.version, op, body);
    if inner.asked.len() < SEEN {
        inner.asked.push(MetaRequest { op, keys: keys.len() });
    }
    let greeting = keys == ["pd-proxy-probe"] && inner.fault != MetaFault::Silent;
    let fault = if greeting { MetaFault::None } else { inner.fault.clone() };
    let objects: Vec<Option<&MetaObject>> = keys.iter().map(|key| inner.objects.get(key)).collect();
    let silent = inner.fault == MetaFault::SilentAboutPlaces && op == frames::OP_QUERY;
    let objects = if fault == MetaFault::Empty { Vec::new() } else { objects };
    let answer = frames::answer(shared.version, op, &objects);
    (answer.filter(|_| !silent), fault)
}

/// An answer before it is framed.
struct MetaReply {
    op: i16,
    seq: u32,
    body: Vec<u8>,
}

/// Sends an answer the way the fault has it; `false` ends the link.
async fn say(
    stream: &mut TcpStream,
    answer: MetaReply,
    fault: MetaFault,
    held: &mut Option<Vec<u8>>,
) -> io::Result<bool> {
    let MetaReply { op, seq, body } = answer;
    let frame = frames::frame(op, seq, &body);
    match fault {
        MetaFault::Silent => {}
        MetaFault::Late(time) => {
            tokio::time::sleep(time).await;
            stream.write_all(&frame).await?;
        }
        MetaFault::Cut(bytes) => {
            stream.write_all(frame.get(..bytes).unwrap_or(&frame)).await?;
            return Ok(false);
        }
        MetaFault::Garbage => stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?,
        MetaFault::WrongSequence => {
            stream.write_all(&frames::frame(op, seq.wrapping_add(1 << 20), &body)).await?;
        }
        MetaFault::Strange => {
            stream.write_all(&frames::frame(7, seq, b"a request")).await?;
            stream.write_all(&frames::frame(op, seq.wrapping_sub(1), &body)).await?;
            stream.write_all(&frame).await?;
        }
        MetaFault::Swapped => match held.take() {
            None => *held = Some(frame),
            Some(before) => {
                stream.write_all(&frame).await?;
                stream.write_all(&before).await?;
            }
        },
        _ => stream.write_all(&frame).await?,
    }
    Ok(true)
}
