//! The part of ZMTP 3 (<https://rfc.zeromq.org/spec/23/>) that a listener to events needs: NULL security, SUB and
//! DEALER, over TCP or a Unix socket. A peer makes it hold no more than it sent, and never more than
//! [`MAX_MESSAGE_BYTES`].

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Longest message, all frames together. A batch that stores 128 Ki tokens takes under 1 MiB.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Most frames of a message.
const MAX_FRAMES: usize = 8;
const READ_BYTES: usize = 16 << 10;
const GREETING_BYTES: usize = 64;
/// Silence of a peer after which TCP asks whether it is still there, and how often and how many times it then asks.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Where a publisher is, as vLLM's `--kv-events-config` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `tcp://host:port`.
    Tcp(String),
    /// `ipc:///path`.
    Ipc(PathBuf),
}

/// Not `tcp://host:port` or `ipc://path`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no address of events: write tcp://host:port or ipc://path")]
pub struct BadAddress;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The peer does not speak ZMTP 3 without security, or is no publisher.
    #[error("not the protocol: {0}")]
    Protocol(&'static str),
    /// A message beyond [`MAX_MESSAGE_BYTES`] or of too many frames.
    #[error("a message is too large")]
    TooLarge,
    /// It took too long.
    #[error("timed out")]
    TimedOut,
}

/// What one is towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Subscriber,
    Dealer,
}

/// Any stream of bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Where engines connect to, if they are told to.
pub(super) enum Listener {
    Tcp(TcpListener),
    Ipc(UnixListener),
}

/// A connection after its handshake.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    buffer: BytesMut,
    /// Frames of a message that is not whole yet, and their bytes.
    frames: Vec<Bytes>,
    frames_bytes: usize,
}

#[derive(Debug)]
struct Frame {
    flags: u8,
    body: Bytes,
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if let Some(path) = text.strip_prefix("ipc://").filter(|path| !path.is_empty()) {
            return Ok(Self::Ipc(path.into()));
        }
        let rest = text.strip_prefix("tcp://").ok_or(BadAddress)?;
        let (host, port) = rest.rsplit_once(':').ok_or(BadAddress)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(BadAddress);
        }
        Ok(Self::Tcp(if host == "*" { format!("0.0.0.0:{port}") } else { rest.to_owned() }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

impl Address {
    /// Where a data-parallel rank publishes: the port counts up; a path gets `_dp` and the rank. None beyond the ports.
    pub fn of_rank(&self, rank: u16) -> Option<Self> {
        match self {
            Self::Tcp(address) => {
                let (host, port) = address.rsplit_once(':')?;
                let port = port.parse::<u16>().ok()?.checked_add(rank)?;
                Some(Self::Tcp(format!("{host}:{port}")))
            }
            Self::Ipc(path) => Some(Self::Ipc(format!("{}_dp{rank}", path.display()).into())),
        }
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, LinkError> {
        Ok(match self {
            Self::Tcp(address) => Box::new(tuned(TcpStream::connect(address.as_str()).await?)?),
            Self::Ipc(path) => Box::new(UnixStream::connect(path).await?),
        })
    }

    pub(super) async fn listen(&self) -> Result<Listener, LinkError> {
        Ok(match self {
            Self::Tcp(address) => Listener::Tcp(TcpListener::bind(address.as_str()).await?),
            Self::Ipc(path) => Listener::Ipc(UnixListener::bind(path)?),
        })
    }
}

fn tuned(stream: TcpStream) -> io::Result<TcpStream> {
    let (idle, every, times) = KEEPALIVE;
    let keepalive = socket2::TcpKeepalive::new().with_time(idle).with_interval(every).with_retries(times);
    socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Listener {
    pub(super) async fn accept(&self) -> Result<Box<dyn Stream>, LinkError> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(tuned(listener.accept().await?.0)?),
            Self::Ipc(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

impl Role {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Subscriber => b"SUB",
            Self::Dealer => b"DEALER",
        }
    }

    fn peers(self) -> &'static [&'static [u8]] {
        match self {
            Self::Subscriber => &[b"PUB", b"XPUB"],
            Self::Dealer => &[b"ROUTER"],
        }
    }
}

impl Connection {
    /// Greets, and sees that the peer is what is looked for.
    pub(super) async fn greet(stream: Box<dyn Stream>, role: Role) -> Result<Self, LinkError> {
        let mut this = Self { stream, buffer: BytesMut::new(), frames: Vec::new(), frames_bytes: 0 };
        let mut greeting = [0; GREETING_BYTES];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        // Version 3.0: subscriptions are messages, which all versions of PUB understand.
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        this.stream.write_all(&greeting).await?;
        while this.buffer.len() < GREETING_BYTES {
            this.read_more().await?;
        }
        let theirs = this.buffer.split_to(GREETING_BYTES);
        if theirs[0] != 0xff || theirs[9] & 1 != 1 || theirs[10] < 3 {
            return Err(LinkError::Protocol("no greeting of ZMTP 3"));
        }
        if theirs[12..32] != greeting[12..32] {
            return Err(LinkError::Protocol("another security than NULL"));
        }
        let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
        ready.extend(u32::try_from(role.name().len()).unwrap_or(0).to_be_bytes());
        ready.extend(role.name());
        this.write(COMMAND, &ready).await?;
        let answer = loop {
            if let Some(frame) = next_frame(&mut this.buffer)? {
                break frame;
            }
            this.read_more().await?;
        };
        let theirs = socket_type(&answer).ok_or(LinkError::Protocol("no READY"))?;
        if !role.peers().contains(&theirs) {
            return Err(LinkError::Protocol("a socket of another type"));
        }
        Ok(this)
    }

    /// Asks for all messages whose topic begins so.
    pub(super) async fn subscribe(&mut self, topic: &str) -> Result<(), LinkError> {
        self.write(0, &[&[1], topic.as_bytes()].concat()).await
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), LinkError> {
        let last = frames.len().saturating_sub(1);
        for (index, frame) in frames.iter().enumerate() {
            self.write(if index < last { MORE } else { 0 }, frame).await?;
        }
        Ok(())
    }

    /// The next message, never empty. May be dropped at any point and called again.
    pub(super) async fn receive(&mut self) -> Result<Vec<Bytes>, LinkError> {
        loop {
            let Some(frame) = next_frame(&mut self.buffer)? else {
                self.read_more().await?;
                continue;
            };
            if frame.flags & COMMAND != 0 {
                self.obey(&frame.body).await?;
                continue;
            }
            self.frames_bytes += frame.body.len();
            if self.frames_bytes > MAX_MESSAGE_BYTES || self.frames.len() == MAX_FRAMES {
                return Err(LinkError::TooLarge);
            }
            self.frames.push(frame.body);
            if frame.flags & MORE == 0 {
                self.frames_bytes = 0;
                return Ok(std::mem::take(&mut self.frames));
            }
        }
    }

    /// A heartbeat is answered with its own context; other commands say nothing to a listener.
    async fn obey(&mut self, command: &[u8]) -> Result<(), LinkError> {
        if command.starts_with(b"\x05ERROR") {
            return Err(LinkError::Protocol("refused by the peer"));
        }
        if let Some(context) = command.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
            let pong = [b"\x04PONG", context.get(..16).unwrap_or(context)].concat();
            self.write(COMMAND, &pong).await?;
        }
        Ok(())
    }

    async fn write(&mut self, flags: u8, body: &[u8]) -> Result<(), LinkError> {
        let mut frame = Vec::with_capacity(body.len() + 9);
        match u8::try_from(body.len()) {
            Ok(length) => frame.extend([flags, length]),
            Err(_) => {
                frame.push(flags | LONG);
                frame.extend((body.len() as u64).to_be_bytes());
            }
        }
        frame.extend(body);
        Ok(self.stream.write_all(&frame).await?)
    }

    async fn read_more(&mut self) -> Result<(), LinkError> {
        self.buffer.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(LinkError::Closed),
            _ => Ok(()),
        }
    }
}

/// Takes a frame off the buffer, if it is whole.
fn next_frame(buffer: &mut BytesMut) -> Result<Option<Frame>, LinkError> {
    let Some((&flags, rest)) = buffer.split_first() else { return Ok(None) };
    if flags > (MORE | LONG | COMMAND) || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(LinkError::Protocol("flags of a frame"));
    }
    let (length, head) = if flags & LONG == 0 {
        let Some(length) = rest.first() else { return Ok(None) };
        (usize::from(*length), 2)
    } else {
        let Some(length) = rest.first_chunk() else { return Ok(None) };
        (usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX), 9)
    };
    if length > MAX_MESSAGE_BYTES {
        return Err(LinkError::TooLarge);
    }
    if buffer.len() < head + length {
        return Ok(None);
    }
    buffer.advance(head);
    Ok(Some(Frame { flags, body: buffer.split_to(length).freeze() }))
}

/// The `Socket-Type` of a READY command: a length and a name, a length (u32) and a value, for each property.
fn socket_type(ready: &Frame) -> Option<&[u8]> {
    if ready.flags & COMMAND == 0 {
        return None;
    }
    let mut rest = ready.body.strip_prefix(b"\x05READY")?;
    while let Some((&length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(length))?;
        let (length, after) = after.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, after) = after.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests;
