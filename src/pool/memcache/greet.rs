//! The first exchanges on a connection: the hello, and which form of questions the service
//! understands.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::conn::{Conn, Line, lost, next_frame};
use super::wire::{self, Form, Op, WELCOME_BYTES};
use crate::endpoint::Endpoint;
use crate::pool::PoolError;

/// For a connection and a hello.
const CONNECT: Duration = Duration::from_secs(2);
/// For each of the few questions that follow.
const PROBE: Duration = Duration::from_secs(1);
/// Idle connections are kept alive in what lies between, and noticed when they are not.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// A key that nobody stores.
const PROBE_KEY: &str = "pd-proxy-probe";

/// A fresh connection.
struct Fresh {
    stream: TcpStream,
    buffer: BytesMut,
    seq: u32,
}

/// Connects, and finds out how places can be asked for if they are wanted.
///
/// # Errors
/// [`PoolError::Unreachable`], or `Refused` and `Protocol` when the service is another.
pub(super) async fn connect(
    service: &Endpoint,
    places: bool,
    in_flight: usize,
) -> Result<(Conn, Line), PoolError> {
    let mut fresh = timeout(CONNECT, Fresh::greeted(service)).await.map_err(|_| silent("connecting"))??;
    fresh.check_alive().await?;
    let form = if places { fresh.form().await? } else { None };
    Ok(Conn::new(fresh.stream, fresh.buffer, fresh.seq, form, in_flight))
}

impl Fresh {
    async fn greeted(service: &Endpoint) -> Result<Self, PoolError> {
        let address = (service.host.as_str(), service.port);
        let mut stream = TcpStream::connect(address).await.map_err(|e| lost(&e))?;
        stream.set_nodelay(true).map_err(|e| lost(&e))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(|e| lost(&e))?;
        stream.write_all(&wire::hello()).await.map_err(|e| lost(&e))?;
        let mut welcome = [0; WELCOME_BYTES];
        stream.read_exact(&mut welcome).await.map_err(|e| lost(&e))?;
        match i16::from_le_bytes(welcome) {
            0 => Ok(Self { stream, buffer: BytesMut::new(), seq: 1 }),
            code => Err(PoolError::Refused(format!("the service answered the hello with {code}"))),
        }
    }

    /// The one question that all versions answer, so that silence later on says something about
    /// that question.
    async fn check_alive(&mut self) -> Result<(), PoolError> {
        let body = self.probe(Op::Exist).await?.ok_or_else(|| silent("a first question"))?;
        wire::exist(&body, 1).map_err(|error| PoolError::Protocol(error.to_string()))?;
        Ok(())
    }

    /// The later form first: a 1.1 service reads it as no keys at all, the other way round anything
    /// may come.
    async fn form(&mut self) -> Result<Option<Form>, PoolError> {
        for form in [Form::Flagged, Form::Plain] {
            let body = self.probe(Op::Query(form)).await?;
            if body.is_some_and(|body| wire::query(&body, form, 1).is_ok()) {
                return Ok(Some(form));
            }
        }
        tracing::warn!("this MemCache version does not tell where its objects are in a way that is known");
        Ok(None)
    }

    /// Asks for one key; `None` if no answer came in time.
    async fn probe(&mut self, op: Op) -> Result<Option<Bytes>, PoolError> {
        let seq = self.seq;
        self.seq = seq.wrapping_add(1);
        let frame = wire::request(op, seq, std::iter::once(PROBE_KEY))
            .map_err(|error| PoolError::TooLarge(error.to_string()))?;
        self.stream.write_all(&frame).await.map_err(|e| lost(&e))?;
        let answer = async {
            loop {
                let frame = next_frame(&mut self.stream, &mut self.buffer).await?;
                if frame.seq == seq && frame.op == op.number() {
                    return Ok(frame.body);
                }
            }
        };
        timeout(PROBE, answer).await.ok().transpose()
    }
}

fn silent(what: &str) -> PoolError {
    PoolError::Unreachable(format!("no answer to {what}"))
}
