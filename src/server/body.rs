//! Reading a client's body: bounded in size and in time, and not copied when it came in one piece and is not small.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::error::{Error, Kind};
use crate::server::printable;

/// Memory is set aside for so many times what has arrived of a body: a lying Content-Length costs no more, and one that is true has
/// its memory in one piece before much would have to be moved.
const TRUSTED_TIMES: usize = 16;

/// A body up to this size is copied: it is a part of the connection's read buffer (8 KiB), which could not be used again for as
/// long as the request lives.
const SMALL_BYTES: usize = 4 << 10;

/// The name of no coding.
const PLAIN: &[u8] = b"identity";

/// Reads a whole body.
///
/// # Errors
/// `BodyCoded`, `BodyTooLarge`, `BodyTimeout`, or `BodyBroken` when the client stopped in the middle.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit_bytes: usize,
    limit: Duration,
) -> Result<Bytes, Error> {
    let plain = |coding: &HeaderValue| coding.is_empty() || coding.as_bytes().eq_ignore_ascii_case(PLAIN);
    if let Some(coding) = headers.get_all(header::CONTENT_ENCODING).iter().find(|coding| !plain(coding)) {
        return Err(coded(coding));
    }
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
        let arrived = whole.len() + data.len();
        if arrived > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        if whole.is_empty() && arrived == announced {
            return Ok(if announced <= SMALL_BYTES { Bytes::copy_from_slice(&data) } else { data });
        }
        if arrived > whole.capacity() {
            whole.reserve(announced.min(arrived.saturating_mul(TRUSTED_TIMES)).max(arrived) - whole.len());
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
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
