//! Writing questions, straight from the keys of a batch into a buffer that lives on.

use super::{HAS_LITERAL, MAGIC, MAX_BODY_BYTES, STRING_CODE, VERSION, WireError};
use crate::kvhash::keys::KeyBatch;

const HEAD_BYTES: usize = 20;
/// Place where the head has the length of the body.
const BODY_LENGTH_AT: std::ops::Range<usize> = 12..16;

/// Functions of a master. The id is the first four bytes, read big-endian, of the MD5 of the C++
/// name `mooncake::WrappedMasterService::…`; it is the same in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Function {
    /// Asks if one key exists.
    ExistKey = 0x8938_5f09,
    /// Asks if keys exist.
    BatchExistKey = 0xb89f_a6b0,
    /// The replicas of one key.
    GetReplicaList = 0x1f7e_f174,
    /// The replicas of keys.
    BatchGetReplicaList = 0x1b0d_20ff,
    /// The version of the service, which is `2.0.0` in all of 0.3.8 to 0.3.13. Takes no keys.
    ServiceReady = 0x7b81_bb56,
}

/// The argument list that a master takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Keys and a tenant: 0.3.12 and later.
    #[default]
    Tenant,
    /// Keys alone: up to 0.3.11.post1.
    Plain,
}

/// All of a question but its keys.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Function that is called.
    pub function: Function,
    /// Form in which it is written.
    pub form: Form,
    /// The tenant, for [`Form::Tenant`].
    pub tenant: &'a str,
    /// Repeated in the answer.
    pub sequence: u32,
    /// Describe the types. No master needs it; those of the packages and their clients do it.
    pub literal: bool,
}

/// Appends a question about the keys `indexes` of `keys` to `out`; a function for one key takes the
/// first of them. Leaves `out` as it was when the question can't be written.
///
/// # Errors
/// [`WireError::NoKey`], or [`WireError::TooLarge`] beyond [`MAX_BODY_BYTES`].
pub fn write_request(
    out: &mut Vec<u8>,
    call: Call<'_>,
    keys: &KeyBatch,
    indexes: &[u32],
) -> Result<(), WireError> {
    let start = out.len();
    let written = write(out, call, keys, indexes);
    if written.is_err() {
        out.truncate(start);
    }
    written
}

fn write(out: &mut Vec<u8>, call: Call<'_>, keys: &KeyBatch, indexes: &[u32]) -> Result<(), WireError> {
    let start = out.len();
    out.extend([MAGIC, VERSION, 0, 0]);
    out.extend(call.sequence.to_le_bytes());
    out.extend((call.function as u32).to_le_bytes());
    out.extend([0; 8]);
    write_body(out, call, keys, indexes)?;
    let body_bytes = out.len() - start - HEAD_BYTES;
    let length = u32::try_from(body_bytes).ok().filter(|_| body_bytes <= MAX_BODY_BYTES);
    let length = length.ok_or(WireError::TooLarge("the keys are more than one question may have"))?;
    if let Some(place) = out.get_mut(start + BODY_LENGTH_AT.start..start + BODY_LENGTH_AT.end) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    Ok(())
}

fn write_body(out: &mut Vec<u8>, call: Call<'_>, keys: &KeyBatch, indexes: &[u32]) -> Result<(), WireError> {
    let Some((code, literal)) = call.types() else { return Ok(()) };
    let batch = call.function.takes_many();
    let indexes = if batch { indexes } else { indexes.get(..1).ok_or(WireError::NoKey(0))? };
    let key = |index: &u32| {
        let key = usize::try_from(*index).ok().and_then(|index| keys.get(index));
        key.ok_or(WireError::NoKey(*index))
    };
    let mut longest = if batch { indexes.len() } else { 0 };
    let mut bytes = 0;
    for index in indexes {
        let len = key(index)?.len();
        (longest, bytes) = (longest.max(len), bytes + len);
    }
    if bytes > MAX_BODY_BYTES {
        return Err(WireError::TooLarge("the keys are more than one question may have"));
    }
    let with_tenant = call.form == Form::Tenant;
    if with_tenant {
        longest = longest.max(call.tenant.len());
    }
    let width = Width::of(longest);
    let meta = (width as u8) << 3 | if call.literal { HAS_LITERAL } else { 0 };
    // Without a metainfo byte lengths have one byte and there is no literal.
    out.extend((code | u32::from(meta != 0)).to_le_bytes());
    if meta != 0 {
        out.push(meta);
    }
    if call.literal {
        out.extend_from_slice(literal);
        out.push(0);
    }
    if batch {
        width.write(out, indexes.len());
    }
    for index in indexes {
        let key = key(index)?;
        width.write(out, key.len());
        out.extend_from_slice(key.as_bytes());
    }
    if with_tenant {
        width.write(out, call.tenant.len());
        out.extend_from_slice(call.tenant.as_bytes());
    }
    Ok(())
}

/// Bytes of every length in one message: the fewest that hold the largest. Its number is that of
/// the metainfo.
#[derive(Clone, Copy)]
enum Width {
    One = 0,
    Two = 1,
    Four = 2,
}

impl Width {
    fn of(longest: usize) -> Self {
        match longest {
            0..0x100 => Width::One,
            0x100..0x1_0000 => Width::Two,
            _ => Width::Four,
        }
    }

    fn write(self, out: &mut Vec<u8>, length: usize) {
        let bytes = length.to_le_bytes();
        out.extend_from_slice(bytes.get(..1 << self as u8).unwrap_or(&bytes));
    }
}

impl Function {
    pub(super) fn takes_many(self) -> bool {
        matches!(self, Function::BatchExistKey | Function::BatchGetReplicaList)
    }
}

impl Call<'_> {
    /// Type code and literal of the arguments; none if there are no arguments.
    fn types(&self) -> Option<(u32, &'static [u8])> {
        if self.function == Function::ServiceReady {
            return None;
        }
        Some(match (self.function.takes_many(), self.form) {
            (true, Form::Tenant) => (0x00f7_8d62, &[0xfd, 0x84, 0x80, 0x0c, 0x80, 0x0c, 0xff]),
            (true, Form::Plain) => (0x8a86_e11a, &[0x84, 0x80, 0x0c]),
            (false, Form::Tenant) => (0x7cf9_1ed8, &[0xfd, 0x80, 0x0c, 0x80, 0x0c, 0xff]),
            (false, Form::Plain) => (STRING_CODE, &[0x80, 0x0c]),
        })
    }
}
