//! The bytes of the binary protocol, from the service's side. The module is pure.

use super::{MetaObject, MetaVersion};

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const OP_EXIST: i16 = 9;
pub(super) const OP_QUERY: i16 = 14;

const MAGIC: [u8; 4] = [0x1b, 0x0f, 1, 0];
const NO_SUCH_KEY: i32 = -3102;
const NOT_READABLE: i32 = -3007;
/// Size of every object here, in bytes.
const OBJECT_BYTES: u64 = 4096;
/// Replicas that a 1.1 object has room for.
const SLOTS: usize = 8;

/// The rank in a hello; `None`: it is none.
pub(super) fn rank_of(hello: &[u8; 16]) -> Option<u64> {
    let rest = hello.strip_prefix(&MAGIC)?.strip_prefix(&[0; 4])?;
    Some(u64::from_le_bytes(rest.try_into().ok()?))
}

/// Operation, bytes of the body, number.
pub(super) fn header(bytes: &[u8; HEADER_BYTES]) -> Option<(i16, usize, u32)> {
    let mut rest = bytes.as_slice();
    let kind = u16::from_le_bytes(take(&mut rest)?);
    let op = i16::from_le_bytes(take(&mut rest)?);
    let length = u32::from_le_bytes(take(&mut rest)?);
    let seq = u32::from_le_bytes(take(&mut rest)?);
    (kind == 0).then_some((op, usize::try_from(length).ok()?, seq))
}

pub(super) fn frame(op: i16, seq: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0];
    frame.extend(op.to_le_bytes());
    frame.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend(seq.to_le_bytes());
    frame.extend([0; 4]);
    frame.extend(body);
    frame
}

/// The keys of a question, none if it can't be read.
pub(super) fn keys(version: MetaVersion, op: i16, body: &[u8]) -> Vec<String> {
    let flagged = op == OP_QUERY && version > MetaVersion::V1_1;
    read_keys(body, if flagged { 20 } else { 8 }).unwrap_or_default()
}

fn read_keys(body: &[u8], skip: usize) -> Option<Vec<String>> {
    let mut rest = body.get(skip..)?;
    let count = u64::from_le_bytes(take(&mut rest)?);
    let mut keys = Vec::new();
    for _ in 0..count {
        let length = usize::try_from(u32::from_le_bytes(take(&mut rest)?)).ok()?;
        let (key, after) = rest.split_at_checked(length)?;
        keys.push(std::str::from_utf8(key).ok()?.to_owned());
        rest = after;
    }
    Some(keys)
}

/// The body of an answer; `None` to what is not answered at all.
pub(super) fn answer(version: MetaVersion, op: i16, objects: &[Option<&MetaObject>]) -> Option<Vec<u8>> {
    let message: i16 = match op {
        OP_EXIST => 5,
        OP_QUERY => 10,
        _ => return None,
    };
    let mut body = vec![0, 0];
    body.extend(message.to_le_bytes());
    body.extend([0; 4]);
    body.extend((objects.len() as u64).to_le_bytes());
    for object in objects {
        match (op, version) {
            (OP_EXIST, _) => body.extend(result(*object).to_le_bytes()),
            (_, MetaVersion::V1_1) => plain(*object, &mut body),
            (_, MetaVersion::V1_2) => flagged(*object, 32, &mut body),
            (_, MetaVersion::V1_3) => flagged(*object, 40, &mut body),
        }
    }
    Some(body)
}

fn result(object: Option<&MetaObject>) -> i32 {
    match object {
        None => NO_SUCH_KEY,
        Some(object) if !object.readable => NOT_READABLE,
        Some(_) => 0,
    }
}

/// Size, prot, count, valid.
fn head(object: Option<&MetaObject>, into: &mut Vec<u8>) {
    into.extend(object.map_or(0, |_| OBJECT_BYTES).to_le_bytes());
    let count = object.map_or(0, |object| u8::try_from(object.replicas.len()).unwrap_or(u8::MAX));
    into.extend([0, 0, count, u8::from(object.is_some())]);
}

fn plain(object: Option<&MetaObject>, into: &mut Vec<u8>) {
    head(object, into);
    let replicas = object.map_or([].as_slice(), |object| &object.replicas);
    let slot = |n: usize| replicas.get(n).copied().unwrap_or_default();
    (0..SLOTS).for_each(|n| into.extend(slot(n).0.to_le_bytes()));
    (0..SLOTS).for_each(|n| into.extend(slot(n).1.to_le_bytes()));
    into.extend([0; 4]);
}

fn flagged(object: Option<&MetaObject>, replica_bytes: usize, into: &mut Vec<u8>) {
    head(object, into);
    let replicas = object.map_or([].as_slice(), |object| &object.replicas);
    into.extend((replicas.len() as u64).to_le_bytes());
    for (rank, medium) in replicas {
        let end = into.len() + replica_bytes;
        into.extend(OBJECT_BYTES.to_le_bytes());
        into.extend((u64::from(*rank + 1) << 40).to_le_bytes());
        into.extend(rank.to_le_bytes());
        into.extend(medium.to_le_bytes());
        into.extend(u16::from(object.is_some_and(|object| object.readable)).to_le_bytes());
        into.extend(9_999u64.to_le_bytes());
        into.resize(end, 0);
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_at_checked(N)?;
    *rest = after;
    taken.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_in_the_other_form_have_no_keys() {
        let plain = [&[0; 8][..], &1u64.to_le_bytes(), &3u32.to_le_bytes(), b"key"].concat();
        let flagged = [&[0; 20][..], &1u64.to_le_bytes(), &3u32.to_le_bytes(), b"key"].concat();
        assert_eq!(keys(MetaVersion::V1_1, OP_QUERY, &plain), ["key"]);
        assert_eq!(keys(MetaVersion::V1_3, OP_QUERY, &flagged), ["key"]);
        assert!(keys(MetaVersion::V1_1, OP_QUERY, &flagged).is_empty());
        assert!(keys(MetaVersion::V1_3, OP_QUERY, &plain).is_empty());
        assert_eq!(keys(MetaVersion::V1_3, OP_EXIST, &plain), ["key"]);
    }
}
