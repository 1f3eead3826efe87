//! Reading a client's body: bounded in size and in time, and not copied when it came in one piece and is not small.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::error::{Error, Kind};

/// Memory is set aside for a body up to this size before it has arrived; a lying Content-Length costs no more.
const TRUSTED_BYTES: usize = 1 << 20;

/// A body up to this size is copied: it is a part of the connection's read buffer (8 KiB), which could not be used again for as
/// long as the request lives.
const SMALL_BYTES: usize = 4 << 10;

/// Reads a whole body.
///
/// # Errors
/// `BodyTooLarge`, `BodyTimeout`, or `BodyBroken` when the client stopped in the middle.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit_bytes: usize,
    limit: Duration,
) -> Result<Bytes, Error> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|n| n > limit_bytes) {
        return Err(too_large(limit_bytes));
    }
    match timeout(limit, gather(body, announced.unwrap_or(0), limit_bytes)).await {
        Ok(read) => read,
        Err(_) => {
            Err(Error::new(Kind::BodyTimeout, format!("the request body did not arrive within {limit:?}")))
        }
    }
}

async fn gather(mut body: Body, announced: usize, limit_bytes: usize) -> Result<Bytes, Error> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let broken = |e: axum::Error| {
            Error::new(Kind::BodyBroken, "the request body could not be read to its end")
                .detail(e.to_string())
        };
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        if whole.len() + data.len() > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        if whole.is_empty() {
            if data.len() == announced {
                return Ok(if announced <= SMALL_BYTES { Bytes::copy_from_slice(&data) } else { data });
            }
            whole.reserve(announced.min(TRUSTED_BYTES).max(data.len()));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

fn too_large(limit_bytes: usize) -> Error {
    Error::new(
        Kind::BodyTooLarge,
        format!("the request body is larger than {limit_bytes} bytes (limit.body_bytes)"),
    )
}
