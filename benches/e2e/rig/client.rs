//! HTTP/1.1 client without code of the gateway: it judges independently where an answer ends.

use std::net::SocketAddr;
use std::ops::Range;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::trouble::Trouble;

/// Bytes of buffer that are reserved for one read.
const READ_BYTES: usize = 8 << 10;
/// Longest head, chunk length or trailer line, in bytes.
const HEAD_BYTES: usize = 64 << 10;
/// Most header fields of a head.
const HEADERS: usize = 64;

/// A connection, and the bytes that were received over it.
#[derive(Debug)]
pub(crate) struct Connection {
    tcp: TcpStream,
    held: Vec<u8>,
    /// Start of the unread bytes in `held`; those before it have been taken.
    at: usize,
    /// True if the connection can carry another request.
    reusable: bool,
}

/// An answer that is being read.
#[derive(Debug)]
pub(crate) struct Answer<'c> {
    connection: &'c mut Connection,
    /// Status code of the answer.
    pub(crate) status: u16,
    left: Left,
}

/// Part of the body that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// This number of bytes, then the end.
    Bytes(u64),
    /// The length of a chunk.
    Size,
    /// The rest of a chunk, in bytes.
    Chunk(u64),
    /// All bytes until the connection closes.
    ToClose,
    /// Nothing: the answer is complete.
    Ended,
}

impl Connection {
    /// Opens a connection to `to`.
    pub(crate) async fn open(to: SocketAddr) -> Result<Connection, Trouble> {
        let tcp = TcpStream::connect(to).await.map_err(|_| Trouble::Connect)?;
        tcp.set_nodelay(true).map_err(|_| Trouble::Connect)?;
        Ok(Connection { tcp, held: Vec::new(), at: 0, reusable: false })
    }

    /// True if the peer keeps the connection open for another request. The last answer must have
    /// been read to its end.
    pub(crate) fn is_free(&self) -> bool {
        self.reusable
    }

    /// Sends a whole request and reads the head of the answer.
    ///
    /// # Errors
    /// [`Trouble::Stale`] if nothing at all was answered on a connection that had been used before.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<Answer<'_>, Trouble> {
        let used = std::mem::take(&mut self.reusable);
        let sent = self.tcp.write_all(request).await.map_err(|_| Trouble::Cut);
        let first = match sent {
            Ok(()) => self.fill().await,
            Err(e) => Err(e),
        };
        if used && matches!(first, Ok(false) | Err(_)) {
            return Err(Trouble::Stale);
        }
        if !first? {
            return Err(Trouble::Cut);
        }
        loop {
            if let Some((status, left, reusable)) = self.head()? {
                self.reusable = reusable;
                return Ok(Answer { connection: self, status, left });
            }
            if self.held.len() - self.at > HEAD_BYTES {
                return Err(Trouble::NotHttp);
            }
            if !self.fill().await? {
                return Err(Trouble::Cut);
            }
        }
    }

    /// Parses status, framing and whether the connection stays open; `None` if the head is
    /// incomplete.
    fn head(&mut self) -> Result<Option<(u16, Left, bool)>, Trouble> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(self.held.get(self.at..).unwrap_or_default());
        let httparse::Status::Complete(length) = parsed.map_err(|_| Trouble::NotHttp)? else {
            return Ok(None);
        };
        let value = |name: &str| {
            let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(found.value).ok().map(str::to_ascii_lowercase)
        };
        let length_said = value("content-length").map(|text| text.parse());
        let left = match (value("transfer-encoding"), length_said) {
            (Some(coding), _) if coding == "chunked" => Left::Size,
            (None, Some(Ok(0))) => Left::Ended,
            (None, Some(Ok(bytes))) => Left::Bytes(bytes),
            (None, None) => Left::ToClose,
            _ => return Err(Trouble::NotHttp),
        };
        let stays = head.version == Some(1) && value("connection").is_none_or(|said| said != "close");
        let status = head.code.ok_or(Trouble::NotHttp)?;
        self.at += length;
        Ok(Some((status, left, stays && left != Left::ToClose)))
    }

    /// Reads more bytes; false at the end of the connection.
    async fn fill(&mut self) -> Result<bool, Trouble> {
        if self.at == self.held.len() {
            self.held.clear();
        } else {
            self.held.drain(..self.at);
        }
        self.at = 0;
        self.held.reserve(READ_BYTES);
        let read = self.tcp.read_buf(&mut self.held).await.map_err(|_| Trouble::Cut)?;
        Ok(read > 0)
    }

    /// Takes up to `most` bytes and at least one; an empty range at the end of the connection.
    async fn take(&mut self, most: u64) -> Result<Range<usize>, Trouble> {
        if self.at == self.held.len() {
            self.fill().await?;
        }
        let from = self.at;
        self.at += (self.held.len() - from).min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(from..self.at)
    }

    /// Takes the next line, without its end.
    async fn line(&mut self) -> Result<&[u8], Trouble> {
        loop {
            let rest = self.held.get(self.at..).unwrap_or_default();
            if let Some(end) = memchr::memchr(b'\n', rest) {
                let from = self.at;
                self.at += end + 1;
                return Ok(self.held.get(from..from + end).unwrap_or_default().trim_ascii_end());
            }
            if rest.len() > HEAD_BYTES || !self.fill().await? {
                return Err(Trouble::Cut);
            }
        }
    }
}

impl Answer<'_> {
    /// Returns the next piece of the body; `None` when the body is complete.
    ///
    /// # Errors
    /// [`Trouble::Cut`] if the body ends early, [`Trouble::NotHttp`] if a chunk's length is
    /// malformed.
    pub(crate) async fn piece(&mut self) -> Result<Option<&[u8]>, Trouble> {
        while self.left == Left::Size {
            self.left = self.next_chunk().await?;
        }
        let most = match self.left {
            Left::Bytes(most) | Left::Chunk(most) => most,
            Left::ToClose => u64::MAX,
            Left::Size | Left::Ended => return Ok(None),
        };
        let taken = self.connection.take(most).await?;
        let after = most - taken.len() as u64;
        match self.left {
            Left::ToClose if taken.is_empty() => {
                self.left = Left::Ended;
                return Ok(None);
            }
            _ if taken.is_empty() => return Err(Trouble::Cut),
            Left::Bytes(_) => self.left = if after == 0 { Left::Ended } else { Left::Bytes(after) },
            Left::Chunk(_) if after > 0 => self.left = Left::Chunk(after),
            Left::Chunk(_) => self.left = Left::Size,
            _ => {}
        }
        Ok(self.connection.held.get(taken))
    }

    /// Reads the whole body, of at most `most` bytes.
    pub(crate) async fn whole(&mut self, most: usize) -> Result<Vec<u8>, Trouble> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            if all.len() + piece.len() > most {
                return Err(Trouble::TooLong);
            }
            all.extend_from_slice(piece);
        }
        Ok(all)
    }

    /// Reads the length of the next chunk, and steps over the line end after the one before. After
    /// the last chunk, whose length is 0, it reads the trailers, too.
    async fn next_chunk(&mut self) -> Result<Left, Trouble> {
        let mut line = self.connection.line().await?;
        if line.is_empty() {
            line = self.connection.line().await?;
        }
        let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
        let text = std::str::from_utf8(digits).map_err(|_| Trouble::NotHttp)?;
        let size = u64::from_str_radix(text, 16).map_err(|_| Trouble::NotHttp)?;
        if size > 0 {
            return Ok(Left::Chunk(size));
        }
        while !self.connection.line().await?.is_empty() {}
        Ok(Left::Ended)
    }
}
