//! Reads a master's answers. The type code of a body tells its schema, so no version is asked for.
//!
//! ```text
//! entry      = 01 response | 00 error i32
//! response   = count replica* lease_ms u64 [E: optional<u64> checksum]
//! replica    = [C, D, E: id u64] tag u8, descriptor, status i32
//! buffer     = size u64, address u64, [C, D, E: protocol string], endpoint string
//! disk       = path string, size u64
//! local disk = client (u64, u64), size u64, endpoint string
//! dfs        = path string, offset u64, size u64, aligned size u64, shard i32
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::literal::Literal;
use super::read::{Cursor, Open, open};
use super::{STRING_CODE, WireError};
use crate::endpoint::parse_host;
use crate::pool::{MAX_HOSTS, Placement, ReplicaPlace, Tier};

/// Placements of the keys, one entry per key in the order of the question.
pub type Answer = Vec<Placement>;

/// Type code of `vector<expected<bool, ErrorCode>>`.
const EXIST_MANY: u32 = 0x2a5f_8c5c;
/// Type code of `expected<bool, ErrorCode>`.
const EXIST_ONE: u32 = 0x90e8_00d2;
/// `expected<string, ErrorCode>` and, of 0.3.7, `expected<void, ErrorCode>`.
const SERVICE: [u32; 2] = [0x1cb3_cc34, 0xaf28_68cc];

/// Error code `OBJECT_NOT_FOUND`.
const NOT_FOUND: i32 = -704;
/// `REPLICA_IS_NOT_READY`: written in part.
const NOT_READY: i32 = -703;
/// The status of a replica that can be read.
const COMPLETE: i32 = 3;

/// Least bytes of an entry: a truth value and another, or an error.
const MIN_ENTRY_BYTES: usize = 2;
/// Least bytes of a replica: a tag, an empty descriptor and a status.
const MIN_REPLICA_BYTES: usize = 5;

/// Descriptors of replicas.
#[derive(Clone, Copy, Debug)]
enum Descriptor {
    /// Of 0.3.7 alone.
    Buffers,
    Buffer,
    /// A file that all clients reach: it has no host.
    Disk,
    LocalDisk,
    /// The same as `Disk`.
    Dfs,
}

/// One version of the answer of `GetReplicaList` and `BatchGetReplicaList`.
#[derive(Debug)]
struct Schema {
    many: u32,
    one: u32,
    /// Replicas have an id, and buffers a protocol.
    with_id: bool,
    with_checksum: bool,
    /// Descriptors by their tag.
    descriptors: &'static [(Descriptor, Tier)],
}

const MEMORY: (Descriptor, Tier) = (Descriptor::Buffer, Tier::Memory);
/// NVMe over fabrics.
const NOF: (Descriptor, Tier) = (Descriptor::Buffer, Tier::Disk);
const DISK: (Descriptor, Tier) = (Descriptor::Disk, Tier::Disk);
const LOCAL_DISK: (Descriptor, Tier) = (Descriptor::LocalDisk, Tier::Disk);
const DFS: (Descriptor, Tier) = (Descriptor::Dfs, Tier::Disk);

const SCHEMAS: [Schema; 5] = [
    // E: 0.3.13 and later.
    Schema {
        many: 0x20c5_453a,
        one: 0x88c6_276c,
        with_id: true,
        with_checksum: true,
        descriptors: &[MEMORY, NOF, DISK, LOCAL_DISK, DFS],
    },
    // D: 0.3.11 and 0.3.12.
    Schema {
        many: 0x0a20_c6b8,
        one: 0x75ec_f440,
        with_id: true,
        with_checksum: false,
        descriptors: &[MEMORY, NOF, DISK, LOCAL_DISK],
    },
    // C: 0.3.9 and 0.3.10.
    Schema {
        many: 0x9d4c_4ca0,
        one: 0x8362_cb40,
        with_id: true,
        with_checksum: false,
        descriptors: &[MEMORY, DISK, LOCAL_DISK],
    },
    // B: 0.3.8.
    Schema {
        many: 0x5919_decc,
        one: 0xb67e_ec78,
        with_id: false,
        with_checksum: false,
        descriptors: &[MEMORY, DISK, LOCAL_DISK],
    },
    // A: 0.3.7.
    Schema {
        many: 0xe180_3126,
        one: 0xa682_73aa,
        with_id: false,
        with_checksum: false,
        descriptors: &[(Descriptor::Buffers, Tier::Memory), DISK],
    },
];

/// The hosts of one answer, each made once, by the endpoint as it is spelled.
#[derive(Default)]
struct Hosts<'a>(HashMap<&'a [u8], Option<Arc<str>>, BuildHasherDefault<AtOnce>>);

/// Hashes what it is given at once: endpoints are short, and a hasher for streams has half a
/// kilobyte to set up.
#[derive(Default)]
struct AtOnce(u64);

/// Reads an answer about `asked` keys. A type that is not known is read by its literal, if it has
/// one: then nothing is told about places.
///
/// # Errors
/// [`WireError`]. Nothing larger than the body is ever allocated.
pub fn read_answer(body: &[u8], asked: usize) -> Result<Answer, WireError> {
    let mut open = open(body)?;
    let answer = match open.code {
        EXIST_MANY => entries(&mut open, asked, flag)?,
        EXIST_ONE => one(&mut open, flag)?,
        code => {
            let mut hosts = Hosts::default();
            if let Some(schema) = SCHEMAS.iter().find(|schema| schema.many == code) {
                entries(&mut open, asked, |at, placement| schema.response(at, &mut hosts, placement))?
            } else if let Some(schema) = SCHEMAS.iter().find(|schema| schema.one == code) {
                one(&mut open, |at, placement| schema.response(at, &mut hosts, placement))?
            } else {
                by_literal(&mut open, asked)?
            }
        }
    };
    open.end()?;
    if answer.len() == asked { Ok(answer) } else { Err(WireError::Count { asked, answered: answer.len() }) }
}

/// The version of the service that `ServiceReady` answers; empty if it has none.
///
/// # Errors
/// [`WireError`].
pub fn read_service(body: &[u8]) -> Result<String, WireError> {
    let mut open = open(body)?;
    if !SERVICE.contains(&open.code) {
        return Err(unknown(&open));
    }
    let at = &mut open.payload;
    if !at.flag()? {
        return Err(WireError::Entry(at.i32()?));
    }
    let version = if open.code == SERVICE[0] { at.string()? } else { &[] };
    open.end()?;
    Ok(String::from_utf8_lossy(version).into_owned())
}

/// The words of an error; empty when there are none.
pub(super) fn read_text(body: &[u8]) -> String {
    let text = open(body).ok().filter(|open| open.code == STRING_CODE);
    let text = text.and_then(|mut open| open.payload.string().ok()).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Answers to many keys, each read where it stays: placements are large, and there are thousands.
fn entries<'a>(
    open: &mut Open<'a>,
    asked: usize,
    mut response: impl FnMut(&mut Cursor<'a>, &mut Placement) -> Result<(), WireError>,
) -> Result<Answer, WireError> {
    let at = &mut open.payload;
    let answered = at.count(MIN_ENTRY_BYTES)?;
    if answered != asked {
        return Err(WireError::Count { asked, answered });
    }
    let mut answer = Vec::new();
    answer.resize_with(answered, Placement::default);
    for placement in &mut answer {
        entry(at, placement, &mut response)?;
    }
    Ok(answer)
}

fn one<'a>(
    open: &mut Open<'a>,
    mut response: impl FnMut(&mut Cursor<'a>, &mut Placement) -> Result<(), WireError>,
) -> Result<Answer, WireError> {
    let mut answer = vec![Placement::default()];
    for placement in &mut answer {
        entry(&mut open.payload, placement, &mut response)?;
    }
    Ok(answer)
}

fn entry<'a>(
    at: &mut Cursor<'a>,
    placement: &mut Placement,
    response: &mut impl FnMut(&mut Cursor<'a>, &mut Placement) -> Result<(), WireError>,
) -> Result<(), WireError> {
    if at.flag()? {
        return response(at, placement);
    }
    match at.i32()? {
        NOT_FOUND | NOT_READY => Ok(()),
        error => Err(WireError::Entry(error)),
    }
}

fn by_literal(open: &mut Open<'_>, asked: usize) -> Result<Answer, WireError> {
    let Some((many, response)) = open.literal.and_then(Literal::parse).and_then(Literal::into_response)
    else {
        return Err(unknown(open));
    };
    let mut steps = Literal::steps(open.payload.left());
    let skip = |at: &mut Cursor<'_>, placement: &mut Placement| {
        response.skip(at, &mut steps)?;
        placement.present = true;
        Ok(())
    };
    if many { entries(open, asked, skip) } else { one(open, skip) }
}

fn unknown(open: &Open<'_>) -> WireError {
    let hex = |bytes: &[u8]| bytes.iter().take(Literal::MAX_BYTES).map(|b| format!("{b:02x}")).collect();
    WireError::Unknown { code: open.code, literal: open.literal.map_or_else(|| "none".to_owned(), hex) }
}

fn flag(at: &mut Cursor<'_>, placement: &mut Placement) -> Result<(), WireError> {
    placement.present = at.flag()?;
    Ok(())
}

impl Schema {
    fn response<'a>(
        &self,
        at: &mut Cursor<'a>,
        hosts: &mut Hosts<'a>,
        placement: &mut Placement,
    ) -> Result<(), WireError> {
        for _ in 0..at.count(MIN_REPLICA_BYTES)? {
            self.replica(at, hosts, placement)?;
        }
        // The lease.
        at.array::<8>()?;
        if self.with_checksum && at.flag()? {
            at.array::<8>()?;
        }
        Ok(())
    }

    fn replica<'a>(
        &self,
        at: &mut Cursor<'a>,
        hosts: &mut Hosts<'a>,
        placement: &mut Placement,
    ) -> Result<(), WireError> {
        if self.with_id {
            at.array::<8>()?;
        }
        let tag = usize::from(at.byte()?);
        let (descriptor, tier) =
            *self.descriptors.get(tag).ok_or(WireError::Malformed("a kind of replica that is not known"))?;
        let endpoint = match descriptor {
            Descriptor::Buffers => {
                let mut first = None;
                // Parts of one object: where the first lies stands for all.
                for _ in 0..at.count(MIN_BUFFER_BYTES)? {
                    first = first.or(Some(self.buffer(at)?));
                }
                first
            }
            Descriptor::Buffer => Some(self.buffer(at)?),
            Descriptor::LocalDisk => {
                at.array::<24>()?;
                Some(at.string()?)
            }
            Descriptor::Disk => {
                at.string()?;
                at.array::<8>()?;
                None
            }
            Descriptor::Dfs => {
                at.string()?;
                at.array::<28>()?;
                None
            }
        };
        if at.i32()? == COMPLETE {
            placement.present = true;
            let host = endpoint.and_then(|endpoint| hosts.of(endpoint));
            add_place(placement, host.map(|host| ReplicaPlace { host, tier }));
        }
        Ok(())
    }

    /// The endpoint of a buffer.
    fn buffer<'a>(&self, at: &mut Cursor<'a>) -> Result<&'a [u8], WireError> {
        at.array::<16>()?;
        if self.with_id {
            at.string()?;
        }
        at.string()
    }
}

/// Least bytes of a buffer: size, address and an empty endpoint.
const MIN_BUFFER_BYTES: usize = 17;

fn add_place(placement: &mut Placement, place: Option<ReplicaPlace>) {
    let Some(place) = place else { return };
    let places = &mut placement.places;
    if places.len() < MAX_HOSTS && !places.contains(&place) {
        places.push(place);
    }
}

impl Hasher for AtOnce {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<'a> Hosts<'a> {
    fn of(&mut self, endpoint: &'a [u8]) -> Option<Arc<str>> {
        self.0.entry(endpoint).or_insert_with(|| host_of(endpoint)).clone()
    }
}

/// The host of `host:port`; the port tells ranks apart, not hosts.
pub(in super::super) fn host_of(endpoint: &[u8]) -> Option<Arc<str>> {
    let (host, _port) = std::str::from_utf8(endpoint).ok()?.rsplit_once(':')?;
    parse_host(host).ok().map(Arc::from)
}
