//! Questions to the meta service.

use super::{FRAME_TYPE, Form, HEADER_BYTES, Op};

/// Every request is to the service itself.
const DESTINATION: u32 = 0;
const BODY_VERSION: i16 = 0;
/// Leases run on as they were.
const FLAG_NO_LEASE: u32 = 0;
/// Operations are numbered for those who write.
const OPERATION: u64 = 0;

/// A key, or all keys of a question, that no length field has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keys of {0} bytes don't fit in a frame")]
pub struct KeyTooLong(pub usize);

/// The frame that asks `op` about `keys`, under the number `seq`.
///
/// # Errors
/// [`KeyTooLong`] beyond 4 GiB.
pub fn request<'a, K>(op: Op, seq: u32, keys: K) -> Result<Vec<u8>, KeyTooLong>
where
    K: Iterator<Item = &'a str> + Clone,
{
    let (mut count, mut bytes) = (0u64, 0usize);
    for key in keys.clone() {
        count += 1;
        bytes = bytes.saturating_add(4).saturating_add(key.len());
    }
    let head = if op == Op::Query(Form::Flagged) { 28 } else { 16 };
    let body_bytes = bytes.saturating_add(head);
    let Ok(announced) = u32::try_from(body_bytes) else { return Err(KeyTooLong(body_bytes)) };

    let mut frame = Vec::with_capacity(HEADER_BYTES + body_bytes);
    frame.extend(FRAME_TYPE.to_le_bytes());
    frame.extend(op.number().to_le_bytes());
    frame.extend(announced.to_le_bytes());
    frame.extend(seq.to_le_bytes());
    frame.extend(0u32.to_le_bytes());
    frame.extend(BODY_VERSION.to_le_bytes());
    frame.extend(op.number().to_le_bytes());
    frame.extend(DESTINATION.to_le_bytes());
    if op == Op::Query(Form::Flagged) {
        frame.extend(OPERATION.to_le_bytes());
        frame.extend(FLAG_NO_LEASE.to_le_bytes());
    }
    frame.extend(count.to_le_bytes());
    for key in keys {
        let length = u32::try_from(key.len()).map_err(|_| KeyTooLong(key.len()))?;
        frame.extend(length.to_le_bytes());
        frame.extend_from_slice(key.as_bytes());
    }
    Ok(frame)
}
