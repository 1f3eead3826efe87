//! The master's side of the wire: reading questions, writing answers in any version's form. Written
//! apart from the client's, so that each is judged by the other.

use md5::{Digest, Md5};

/// The argument list that a master takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arguments {
    /// Keys and a tenant: 0.3.12 and later.
    #[default]
    Tenant,
    /// Keys alone: up to 0.3.11.post1.
    Plain,
}

/// Ways in which a master describes replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Replicas {
    /// Mooncake version 0.3.7.
    A,
    /// Mooncake version 0.3.8.
    B,
    /// 0.3.9 and 0.3.10.
    C,
    /// 0.3.11 and 0.3.12.
    D,
    /// Mooncake version 0.3.13.
    #[default]
    E,
    /// No version: as E, with one more number in each replica.
    Later,
}

/// The version of a simulated master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MooncakeSpec {
    /// Arguments that it takes.
    pub arguments: Arguments,
    /// Form of its answers.
    pub replicas: Replicas,
    /// It leaves the description of types out.
    pub terse: bool,
}

/// Media of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A segment of memory.
    Memory,
    /// NVMe over fabrics; from D.
    Nof,
    /// A file that all share.
    Disk,
    /// A file of one client; from B.
    LocalDisk,
    /// A distributed file system; from E.
    Dfs,
}

/// A replica of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Medium that it lies on; one that the version does not know is left out.
    pub medium: Medium,
    /// `host:port`, or the path of a file.
    pub place: String,
    /// It can be read.
    pub complete: bool,
}

/// Content of a master under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyEntry {
    /// An object with its replicas.
    Object(Vec<Replica>),
    /// An error when asked for.
    Error(i32),
}

/// Error code `OBJECT_NOT_FOUND`.
pub const NOT_FOUND: i32 = -704;

const UUID: &[u8] = &[0xfd, 0x04, 0x04, 0x89, 0x89, 0xff];
const STRING: &[u8] = &[0x80, 0x0c];

/// A body in the making: the width of its lengths is known at its end.
#[derive(Default)]
struct Body {
    parts: Vec<Part>,
}

enum Part {
    Length(usize),
    Bytes(Vec<u8>),
}

impl Body {
    fn length(&mut self, length: usize) {
        self.parts.push(Part::Length(length));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.parts.push(Part::Bytes(bytes.to_vec()));
    }

    fn string(&mut self, text: &str) {
        self.length(text.len());
        self.bytes(text.as_bytes());
    }

    fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.bytes(&number.to_le_bytes());
        }
    }

    fn finish(self, literal: &[u8], terse: bool) -> Vec<u8> {
        let lengths = self.parts.iter().map(|part| if let Part::Length(length) = part { *length } else { 0 });
        let (class, width) = match lengths.max().unwrap_or(0) {
            0..0x100 => (0, 1),
            0x100..0x1_0000 => (1, 2),
            _ => (2, 4),
        };
        let meta = class << 3 | if terse { 0 } else { 4_u8 };
        let mut out = (type_code(literal) | u32::from(meta != 0)).to_le_bytes().to_vec();
        if meta != 0 {
            out.push(meta);
        }
        if !terse {
            out.extend_from_slice(literal);
            out.push(0);
        }
        for part in self.parts {
            match part {
                Part::Length(length) => out.extend(length.to_le_bytes().iter().take(width)),
                Part::Bytes(bytes) => out.extend(bytes),
            }
        }
        out
    }
}

/// The code of a type: from the digest of its literal.
#[must_use]
pub fn type_code(literal: &[u8]) -> u32 {
    let digest = Md5::digest(literal);
    digest.iter().take(4).fold(0, |code, byte| code << 8 | u32::from(*byte)) & !1
}

/// The id of a function, from its name.
#[must_use]
pub fn function_id(name: &str) -> u32 {
    let digest = Md5::digest(format!("mooncake::WrappedMasterService::{name}"));
    digest.iter().take(4).fold(0, |id, byte| id << 8 | u32::from(*byte))
}

/// The keys of a question about many, if its arguments are what `spec` takes.
#[must_use]
pub fn read_keys(body: &[u8], spec: MooncakeSpec) -> Option<Vec<String>> {
    let literal: &[u8] = match spec.arguments {
        Arguments::Tenant => &[0xfd, 0x84, 0x80, 0x0c, 0x80, 0x0c, 0xff],
        Arguments::Plain => &[0x84, 0x80, 0x0c],
    };
    let (code, mut rest) = body.split_first_chunk::<4>()?;
    let code = u32::from_le_bytes(*code);
    if code & !1 != type_code(literal) {
        return None;
    }
    let mut width = 1;
    if code & 1 == 1 {
        let (meta, after) = rest.split_first()?;
        (width, rest) = (1 << (meta >> 3 & 3), after);
        if meta & 4 != 0 {
            rest = rest.strip_prefix(literal)?.strip_prefix(&[0])?;
        }
    }
    let count = take_length(&mut rest, width)?;
    let keys = (0..count).map(|_| take_string(&mut rest, width)).collect::<Option<Vec<_>>>()?;
    match spec.arguments {
        Arguments::Tenant => take_string(&mut rest, width).map(|_| keys),
        Arguments::Plain => Some(keys),
    }
}

fn take_length(rest: &mut &[u8], width: usize) -> Option<usize> {
    let (length, after) = rest.split_at_checked(width)?;
    *rest = after;
    length.iter().rev().try_fold(0_usize, |sum, byte| Some(sum.checked_mul(256)? | usize::from(*byte)))
}

fn take_string(rest: &mut &[u8], width: usize) -> Option<String> {
    let length = take_length(rest, width)?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    String::from_utf8(text.to_vec()).ok()
}

/// The answer of `BatchExistKey`.
#[must_use]
pub fn write_existence(spec: MooncakeSpec, held: &[KeyEntry]) -> Vec<u8> {
    let mut body = Body::default();
    body.length(held.len());
    for held in held {
        match held {
            KeyEntry::Object(replicas) => body.bytes(&[1, u8::from(replicas.iter().any(|r| r.complete))]),
            KeyEntry::Error(NOT_FOUND) => body.bytes(&[1, 0]),
            KeyEntry::Error(error) => write_error(&mut body, *error),
        }
    }
    body.finish(&[0x84, 0x87, 0x0b, 0x01], spec.terse)
}

/// The answer of `BatchGetReplicaList`.
#[must_use]
pub fn write_replicas(spec: MooncakeSpec, held: &[KeyEntry]) -> Vec<u8> {
    let mut body = Body::default();
    body.length(held.len());
    for held in held {
        match held {
            KeyEntry::Object(replicas) => write_object(&mut body, spec.replicas, replicas),
            KeyEntry::Error(error) => write_error(&mut body, *error),
        }
    }
    body.finish(&replicas_literal(spec.replicas), spec.terse)
}

/// The answer of `ServiceReady`.
#[must_use]
pub fn write_service(spec: MooncakeSpec) -> Vec<u8> {
    let mut body = Body::default();
    body.bytes(&[1]);
    body.string("2.0.0");
    body.finish(&[0x87, 0x80, 0x0c, 0x01], spec.terse)
}

/// The body of an answer with an error.
#[must_use]
pub fn write_text(spec: MooncakeSpec, text: &str) -> Vec<u8> {
    let mut body = Body::default();
    body.string(text);
    body.finish(STRING, spec.terse)
}

fn write_error(body: &mut Body, error: i32) {
    body.bytes(&[0]);
    body.bytes(&error.to_le_bytes());
}

fn write_object(body: &mut Body, form: Replicas, replicas: &[Replica]) {
    let known: Vec<_> = replicas.iter().filter_map(|r| Some((r, tag(form, r.medium)?))).collect();
    body.bytes(&[1]);
    body.length(known.len());
    for (number, (replica, tag)) in (1_u64..).zip(known) {
        if form >= Replicas::C {
            body.numbers(&[number]);
        }
        body.bytes(&[tag]);
        write_descriptor(body, form, replica);
        body.bytes(&if replica.complete { 3_i32 } else { 1 }.to_le_bytes());
        if form == Replicas::Later {
            body.numbers(&[number]);
        }
    }
    body.numbers(&[5000]);
    if form >= Replicas::E {
        // A checksum, now and then.
        if replicas.len() % 2 == 1 { body.bytes(&[1, 1, 2, 3, 4, 5, 6, 7, 8]) } else { body.bytes(&[0]) }
    }
}

fn write_descriptor(body: &mut Body, form: Replicas, replica: &Replica) {
    match replica.medium {
        Medium::Memory | Medium::Nof => {
            if form == Replicas::A {
                body.length(1);
            }
            body.numbers(&[64, 0x7f00_0000_0000]);
            if form >= Replicas::C {
                body.string("tcp");
            }
            body.string(&replica.place);
        }
        Medium::Disk => {
            body.string(&replica.place);
            body.numbers(&[64]);
        }
        Medium::LocalDisk => {
            body.numbers(&[1, 2, 64]);
            body.string(&replica.place);
        }
        Medium::Dfs => {
            body.string(&replica.place);
            body.numbers(&[0, 64, 4096]);
            body.bytes(&7_i32.to_le_bytes());
        }
    }
}

fn tag(form: Replicas, medium: Medium) -> Option<u8> {
    let known: &[Medium] = match form {
        Replicas::A => &[Medium::Memory, Medium::Disk],
        Replicas::B | Replicas::C => &[Medium::Memory, Medium::Disk, Medium::LocalDisk],
        Replicas::D => &[Medium::Memory, Medium::Nof, Medium::Disk, Medium::LocalDisk],
        Replicas::E | Replicas::Later => {
            &[Medium::Memory, Medium::Nof, Medium::Disk, Medium::LocalDisk, Medium::Dfs]
        }
    };
    known.iter().position(|known| *known == medium).and_then(|tag| u8::try_from(tag).ok())
}

fn structure(parts: &[&[u8]]) -> Vec<u8> {
    [&[0xfd], parts.concat().as_slice(), &[0xff]].concat()
}

fn replicas_literal(form: Replicas) -> Vec<u8> {
    let buffer = match form {
        Replicas::A | Replicas::B => structure(&[&[4, 4], STRING]),
        _ => structure(&[&[4, 4], STRING, STRING]),
    };
    let memory = match form {
        Replicas::A => structure(&[&[0x84], &buffer]),
        _ => structure(&[&buffer]),
    };
    let disk = structure(&[STRING, &[4]]);
    let local_disk = structure(&[UUID, &[4], STRING]);
    let dfs = structure(&[STRING, &[4, 4, 4, 1]]);
    let variants = match form {
        Replicas::A => vec![memory, disk],
        Replicas::B | Replicas::C => vec![memory, disk, local_disk],
        Replicas::D => vec![memory.clone(), memory, disk, local_disk],
        Replicas::E | Replicas::Later => vec![memory.clone(), memory, disk, local_disk, dfs],
    };
    let id: &[u8] = if form >= Replicas::C { &[4] } else { &[] };
    let later: &[u8] = if form == Replicas::Later { &[4] } else { &[] };
    let replica = structure(&[id, &[0x86], &variants.concat(), &[0xff, 1], later]);
    let checksum: &[u8] = if form >= Replicas::E { &[0x85, 4] } else { &[] };
    [&[0x84, 0x87], structure(&[&[0x84], &replica, &[4], checksum]).as_slice(), &[1]].concat()
}
