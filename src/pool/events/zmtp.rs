//! The sockets that a listener to events needs: SUB and DEALER, over TCP or a Unix socket. A peer
//! makes it hold no more than it sent, and never more than [`MAX_MESSAGE_BYTES`].

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::pool::zmtp::{
    COMMAND, FrameError, GREETING, GREETING_BYTES, MORE, PeerError, check_greeting, frame, push_frame, ready,
    socket_type,
};

/// Longest message, all frames together. A batch that stores 128 Ki tokens takes under 1 MiB.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Most frames of a message.
const MAX_FRAMES: usize = 8;
const READ_BYTES: usize = 16 << 10;
/// Silence of a peer after which TCP asks whether it is still there, and how often and how many
/// times it then asks.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

/// Address of a publisher, as vLLM's `--kv-events-config` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP, as `tcp://host:port`.
    Tcp(String),
    /// Unix socket, as `ipc:///path`.
    Ipc(PathBuf),
}

/// Not `tcp://host:port` or `ipc://path`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no address of events: write tcp://host:port or ipc://path")]
pub struct BadAddress;

/// Reasons why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed.
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

/// Roles towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Subscriber,
    Dealer,
}

/// Any stream of bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Sockets that engines connect to, if they are told to.
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
    more: bool,
    command: bool,
    body: Bytes,
}

impl From<PeerError> for LinkError {
    fn from(error: PeerError) -> Self {
        Self::Protocol(match error {
            PeerError::Greeting => "no greeting of ZMTP 3",
            PeerError::Mechanism => "another security than NULL",
        })
    }
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Flags => Self::Protocol("flags of a frame"),
            FrameError::TooLarge => Self::TooLarge,
        }
    }
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
    /// Place where a data-parallel rank publishes: the port counts up; a path gets `_dp` and the
    /// rank. None beyond the ports.
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
        this.stream.write_all(&GREETING).await?;
        let theirs = loop {
            if let Some((greeting, _)) = this.buffer.split_first_chunk::<GREETING_BYTES>() {
                break *greeting;
            }
            this.read_more().await?;
        };
        check_greeting(&theirs)?;
        let _ = this.buffer.split_to(GREETING_BYTES);
        this.write(COMMAND, &ready(role.name(), &[])).await?;
        let answer = loop {
            if let Some(frame) = next_frame(&mut this.buffer)? {
                break frame;
            }
            this.read_more().await?;
        };
        let theirs = Some(&answer.body[..]).filter(|_| answer.command).and_then(socket_type);
        let theirs = theirs.ok_or(LinkError::Protocol("no READY"))?;
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
            if frame.command {
                self.obey(&frame.body).await?;
                continue;
            }
            self.frames_bytes += frame.body.len();
            if self.frames_bytes > MAX_MESSAGE_BYTES || self.frames.len() == MAX_FRAMES {
                return Err(LinkError::TooLarge);
            }
            self.frames.push(frame.body);
            if !frame.more {
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
        let mut frame = Vec::new();
        push_frame(&mut frame, flags, body);
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
    let Some(next) = frame(buffer, MAX_MESSAGE_BYTES)? else { return Ok(None) };
    let body = buffer.split_to(next.body.end).freeze().slice(next.body);
    Ok(Some(Frame { more: next.more, command: next.command, body }))
}

#[cfg(test)]
mod tests;
