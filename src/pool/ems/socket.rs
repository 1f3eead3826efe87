//! One connection to a lookup server.
//!
//! [`Socket::ask`] takes the socket and gives it back with the answer. A question that fails or is
//! dropped takes the socket with it: none is ever used again while an answer may still come, and
//! the server drops that answer.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::zmtp::{self, MAX_FRAME_BYTES, ZmtpError};
use crate::pool::zmtp::{GREETING, GREETING_BYTES, check_greeting, frame};

/// Answers fit; one that does not grows it, up to the largest frames that are taken.
const BUFFER_BYTES: usize = 256;

/// A connection on which no question is open.
#[derive(Debug)]
pub struct Socket<S> {
    stream: S,
}

/// Reasons why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// No connection, or it broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not what a lookup server says.
    #[error("{0}")]
    Zmtp(#[from] ZmtpError),
}

impl Socket<TcpStream> {
    /// True if it is still connected and silent, as one must be on which nothing is asked.
    pub fn is_idle(&self) -> bool {
        let mut byte = [0];
        matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    /// Shakes hands over a new connection.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn open(mut stream: S) -> Result<Self, SocketError> {
        stream.write_all(&GREETING).await?;
        let mut greeting = [0; GREETING_BYTES];
        stream.read_exact(&mut greeting).await?;
        check_greeting(&greeting).map_err(ZmtpError::Peer)?;
        stream.write_all(zmtp::READY_FRAME).await?;
        let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
        loop {
            if let Some(frame) = frame(&buffer, MAX_FRAME_BYTES).map_err(ZmtpError::Frame)? {
                // Nothing was asked: nothing may follow.
                let alone = frame.command && frame.body.end == buffer.len();
                zmtp::check_ready(buffer.get(frame.body).filter(|_| alone).unwrap_or_default())?;
                return Ok(Self { stream });
            }
            read_some(&mut stream, &mut buffer).await?;
        }
    }

    /// The body of the answer to a question with this body, and the socket for the next one.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn ask(mut self, body: &[u8]) -> Result<(BytesMut, Self), SocketError> {
        self.stream.write_all(&zmtp::question(body)).await?;
        let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
        loop {
            read_some(&mut self.stream, &mut buffer).await?;
            if let Some(body) = zmtp::answer(&buffer)? {
                let mut answer = buffer.split_off(body.start);
                answer.truncate(body.len());
                return Ok((answer, self));
            }
        }
    }
}

async fn read_some<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut BytesMut) -> Result<(), SocketError> {
    match stream.read_buf(buffer).await? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}
