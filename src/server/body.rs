//! Reading a client's body: bounded in size, in time and in memory, and not copied when it came in
//! one piece and is not small.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderValue, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Error, Kind};
use crate::server::body_memory::{BodyBytes, BodyLimits, ConnectionBytes, ConnectionShare, IncomingBody};
use crate::server::{Gateway, auth, printable};

/// Memory is set aside for so many times what has arrived of a body: a lying Content-Length costs
/// no more, and one that is true has its memory in one piece before much would have to be moved.
const TRUSTED_TIMES: usize = 16;

/// A body up to this size is copied: it is a part of the connection's read buffer (8 KiB), which
/// could not be used again for as long as the request lives. In one piece it is not counted:
/// `limit.inflight` and `limit.queue` bound those.
const SMALL_BYTES: usize = 4 << 10;

/// A body that is whole within this time is not counted among those that are on their way: nearly
/// all are.
const PROMPT_TIME: Duration = Duration::from_millis(50);

/// The name of no coding.
const PLAIN: &[u8] = b"identity";

/// Reads a whole body of at most `limit_bytes`.
///
/// # Errors
/// `BodyCoded`, `BodyTooLarge`, `BodyTimeout`, `Overloaded` when there is no memory for it, or
/// `BodyBroken` when the client stopped in the middle.
pub(super) async fn read(
    gateway: &Gateway,
    head: &Parts,
    body: Body,
    limit_bytes: usize,
) -> Result<Bytes, Error> {
    let plain = |coding: &HeaderValue| coding.is_empty() || coding.as_bytes().eq_ignore_ascii_case(PLAIN);
    if let Some(coding) = head.headers.get_all(header::CONTENT_ENCODING).iter().find(|coding| !plain(coding))
    {
        return Err(coded(coding));
    }
    let announced = auth::announced(&head.headers).and_then(|bytes| usize::try_from(bytes).ok());
    if announced.is_some_and(|n| n > limit_bytes) {
        return Err(too_large(limit_bytes));
    }
    let (limits, time) = {
        let edge = gateway.edge.now();
        (edge.bodies, edge.body_time)
    };
    let mut reading = Reading {
        gateway,
        body,
        announced: announced.unwrap_or(0),
        limit_bytes,
        limits,
        whole: BytesMut::new(),
        held: None,
        connection: head.extensions.get::<ConnectionBytes>().map(ConnectionBytes::share),
        on_its_way: None,
    };
    match timeout(PROMPT_TIME.min(time), reading.read_whole()).await {
        Ok(read) => read,
        // On the side: few bodies come here, and all requests would set room aside for it.
        Err(_) => Box::pin(reading.slowly(time)).await,
    }
}

/// A body of which a part has come.
struct Reading<'a> {
    gateway: &'a Gateway,
    body: Body,
    announced: usize,
    limit_bytes: usize,
    limits: BodyLimits,
    whole: BytesMut,
    /// Its bytes among those of all bodies; None before the first.
    held: Option<BodyBytes>,
    connection: Option<ConnectionShare>,
    on_its_way: Option<IncomingBody>,
}

impl Reading<'_> {
    /// Reads on to the end. Dropped meanwhile, it can be called again.
    async fn read_whole(&mut self) -> Result<Bytes, Error> {
        while let Some(frame) = self.body.frame().await {
            let broken = |e: axum::Error| {
                Error::new(Kind::BodyBroken, "the request body could not be read to its end")
                    .detail(e.to_string())
            };
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            let arrived = self.whole.len() + data.len();
            if arrived > self.limit_bytes {
                return Err(too_large(self.limit_bytes));
            }
            let in_one_piece = self.whole.is_empty() && arrived == self.announced;
            if in_one_piece && arrived <= SMALL_BYTES {
                return Ok(Bytes::copy_from_slice(&data));
            }
            self.charge(data.len())?;
            if in_one_piece {
                return Ok(self.keep(data));
            }
            if arrived > self.whole.capacity() {
                let trusted = arrived.saturating_mul(TRUSTED_TIMES);
                self.whole.reserve(self.announced.min(trusted).max(arrived) - self.whole.len());
            }
            self.whole.extend_from_slice(&data);
        }
        let whole = std::mem::take(&mut self.whole).freeze();
        Ok(self.keep(whole))
    }

    /// The same for a body that takes its time, which is now counted as one on its way. Its time
    /// ends `time` after the request was there, or sooner when it comes more slowly than it must.
    async fn slowly(mut self, time: Duration) -> Result<Bytes, Error> {
        let start = Instant::now() - PROMPT_TIME.min(time);
        let (limits, memory) = (self.limits, &self.gateway.bodies);
        let (on_its_way, mut gives_way) =
            memory.begin(self.held.as_ref().map_or(0, BodyBytes::bytes), &limits);
        self.on_its_way = Some(on_its_way);
        loop {
            let allowed = limits.allowed(self.whole.len()).min(time);
            tokio::select! {
                biased;
                read = self.read_whole() => return read,
                _ = &mut gives_way => return Err(self.no_room("body_unread", OLDEST)),
                () = sleep_until(start + allowed) => {
                    // What has come meanwhile may have bought it more time.
                    if limits.allowed(self.whole.len()).min(time) <= start.elapsed() {
                        return Err(late(allowed, time, &limits));
                    }
                }
            }
        }
    }

    fn charge(&mut self, more: usize) -> Result<(), Error> {
        let held = self.held.get_or_insert_with(|| self.gateway.bodies.nothing());
        if held.grow(more, &self.limits).is_err() {
            return Err(self.no_room("body_memory", FULL));
        }
        if self.connection.as_mut().is_some_and(|share| share.grow(more, &self.limits).is_err()) {
            return Err(self.no_room("body_unread", CROWDED));
        }
        if let Some(on_its_way) = &self.on_its_way {
            on_its_way.grow(more, &self.limits);
        }
        Ok(())
    }

    /// The whole body with its room.
    fn keep(&mut self, body: Bytes) -> Bytes {
        match self.held.take() {
            Some(held) => held.keep(body),
            None => body,
        }
    }

    fn no_room(&self, reason: &'static str, message: &'static str) -> Error {
        self.gateway.meters.turned_away(reason);
        Error::new(Kind::Overloaded, message)
    }
}

/// Said of a body for which all bodies together leave no room.
const FULL: &str = "the gateway has as many bytes of request bodies in memory as it may (limit.bodies_bytes)";

/// Said of a body for which its connection leaves no room.
const CROWDED: &str = "this connection has as many bytes of unfinished request bodies under way as it may \
                       (limit.connection_unread_bytes)";

/// Said of a body that gives way.
const OLDEST: &str = "the gateway waits for as many request bodies as it may (limit.unread_bodies, \
                      limit.unread_bytes), and this one has been on its way for longest";

impl BodyLimits {
    /// The time within which more than `arrived` bytes must have come.
    fn allowed(&self, arrived: usize) -> Duration {
        if self.least_rate == 0 {
            return Duration::MAX;
        }
        self.grace.saturating_add(Duration::from_secs_f64(arrived as f64 / self.least_rate as f64))
    }
}

fn late(allowed: Duration, time: Duration, limits: &BodyLimits) -> Error {
    let message = if allowed >= time {
        format!("the request body did not arrive within {time:?}")
    } else {
        format!(
            "the request body came more slowly than {} bytes/s (limit.body_rate, after timeout.body_grace_ms = {})",
            limits.least_rate,
            limits.grace.as_millis()
        )
    };
    Error::new(Kind::BodyTimeout, message)
}

fn coded(coding: &HeaderValue) -> Error {
    let coding = printable(&String::from_utf8_lossy(coding.as_bytes()));
    let message = format!(
        "the request body is sent with `Content-Encoding: {coding}`, which is not read here: send it as it is"
    );
    Error::new(Kind::BodyCoded, message)
}

fn too_large(limit_bytes: usize) -> Error {
    Error::new(
        Kind::BodyTooLarge,
        format!("the request body is larger than {limit_bytes} bytes (limit.body_bytes)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_of_the_least_rate_buys_a_second() {
        let grace = Duration::from_secs(10);
        let limits = BodyLimits {
            held_bytes: 0,
            unread_bytes: 0,
            unread: 0,
            connection_bytes: 0,
            least_rate: 1_024,
            grace,
        };
        assert_eq!(
            [0, 512, 1 << 20].map(|bytes| limits.allowed(bytes).as_millis()),
            [10_000, 10_500, 1_034_000]
        );
        assert_eq!(BodyLimits { least_rate: 0, ..limits }.allowed(0), Duration::MAX);
    }
}
