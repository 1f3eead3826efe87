//! Messages of vLLM's `ZmqEventPublisher` (`vllm/distributed/kv_events.py`), in every form that
//! releases have sent.
//!
//! A message is three frames: topic, sequence (u64, big-endian) and a msgpack batch `[ts, [event…],
//! dp_rank?]`. Up to vLLM 0.23 events are arrays, `["BlockStored", hashes, parent, …]`, with
//! trailing optionals cut off; later they are maps with a `type`; a batch may be a map too. Hashes
//! are 64-bit numbers, or binaries, of which the number is the last 8 bytes. Unknown fields and
//! events are stepped over. The memory of a batch is bounded by the bytes at hand, and where some
//! bytes become many, by a count.

use super::msgpack::{Item, Malformed, Reader};

/// Sequence number that ends a replay: -1.
pub const END_OF_REPLAY: u64 = u64::MAX;

/// The frames of one message, live or replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames<'a> {
    /// Empty where a replay has none.
    pub topic: &'a [u8],
    /// Number of the batch, from 0, one more for each; [`END_OF_REPLAY`] behind the last one of a
    /// replay.
    pub sequence: u64,
    /// Bytes of the batch.
    pub payload: &'a [u8],
}

/// One batch: what an engine's scheduler step did to its blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    /// Time of the batch, in seconds since 1970.
    pub ts: f64,
    /// Events in their order.
    pub events: Vec<Event>,
    /// Data-parallel rank of the engine core.
    pub dp_rank: Option<u32>,
}

/// One event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks can be read from now on.
    Stored(Stored),
    /// They can't any more.
    Removed(Removed),
    /// The engine's prefix cache was emptied.
    Cleared,
    /// Of another type.
    Other,
}

/// Event `BlockStored` of vLLM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The blocks, 64-bit hashes as of
    /// [`BlockHash::event_u64`](crate::kvhash::BlockHash::event_u64), in prompt order.
    pub hashes: Vec<u64>,
    /// Of the block before the first one; None at a prompt's start.
    pub parent: Option<u64>,
    /// Token ids of all these blocks. Empty where the publisher leaves them out, as pools do.
    pub token_ids: Vec<u32>,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Name of the LoRA adapter, since 0.14.
    pub lora_name: Option<Box<str>>,
    /// Place where they lie.
    pub medium: Medium,
    /// Index of the KV cache group, since 0.20.
    pub group: Option<u32>,
    /// The group sees only a window or a state, so that its blocks say nothing about a prefix
    /// (`kv_cache_spec_kind`, since 0.24).
    pub windowed: bool,
}

/// Event `BlockRemoved` of vLLM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Hashes of the blocks.
    pub hashes: Vec<u64>,
    /// Place where they lay.
    pub medium: Medium,
    /// Index of the KV cache group; None for all.
    pub group: Option<u32>,
}

/// Media on which blocks of an event lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// `GPU`, and what names none: memory of the accelerator.
    #[default]
    Gpu,
    /// `CPU`: the engine's own main memory.
    Cpu,
    /// `STORAGE` and others: the engine's own disk, or farther.
    Storage,
    /// `cpu`, in lower case: put into a pool by AscendStore or the Mooncake store's connector.
    /// Never removed, as the pool evicts by itself.
    Pool,
}

/// Reasons why a message is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// Not the frames of a message.
    #[error("{0} frames, or a sequence that has not 8 bytes")]
    Frames(usize),
    /// The batch can't be read.
    #[error("batch: {0}")]
    Batch(#[from] Malformed),
}

/// Most events of a batch. Two bytes may be one, which takes a hundred; a scheduler step has
/// thousands at most.
pub const MAX_EVENTS: usize = 64 << 10;
/// Most hashes in the events of a batch: one for each block that a scheduler step can touch, many
/// times over.
pub const MAX_HASHES: usize = 1 << 20;
/// Kinds of KV cache groups whose blocks don't make a prefix, by a part of their names.
const WINDOWED_KINDS: [&str; 5] = ["sliding", "chunked", "mamba", "cross", "encoder"];

impl<'a> Frames<'a> {
    /// Of a live message (topic, sequence, payload) or of a replayed one, with an empty frame in
    /// front, and in older releases no topic. The sequence is always the last but one.
    pub fn of<B: AsRef<[u8]>>(frames: &'a [B]) -> Result<Self, BadMessage> {
        let bad = BadMessage::Frames(frames.len());
        let [front @ .., sequence, payload] = frames else { return Err(bad) };
        if front.is_empty() || front.len() > 2 {
            return Err(bad);
        }
        let sequence = <[u8; 8]>::try_from(sequence.as_ref()).map_err(|_| bad)?;
        let topic = front.last().map_or(&[][..], AsRef::as_ref);
        Ok(Self { topic, sequence: u64::from_be_bytes(sequence), payload: payload.as_ref() })
    }
}

impl EventBatch {
    /// The batch in a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let mut batch = Self { ts: 0.0, events: Vec::new(), dp_rank: None };
        match reader.item()? {
            Item::Array(count) => {
                if count < 2 {
                    return Err(Malformed::Expected("batch of two fields or more"));
                }
                for index in 0..count {
                    batch.field(["ts", "events", "dp_rank"].get(index as usize).copied(), &mut reader)?;
                }
            }
            Item::Map(count) => {
                for _ in 0..count {
                    let name = reader.text_or_none()?;
                    batch.field(name, &mut reader)?;
                }
            }
            _ => return Err(Malformed::Expected("batch")),
        }
        reader.finish()?;
        Ok(batch)
    }

    fn field(&mut self, name: Option<&str>, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        match name {
            Some("ts") => self.ts = seconds(reader)?,
            Some("events") => self.events = events(reader)?,
            Some("dp_rank" | "data_parallel_rank") => self.dp_rank = small(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    }
}

/// Fields of an event, whatever its type.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<&'a str>,
    stored: Stored,
    has_hashes: bool,
}

const STORED_FIELDS: [&str; 10] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];
const REMOVED_FIELDS: [&str; 3] = ["block_hashes", "medium", "group_idx"];

impl Event {
    /// Number of blocks that it names.
    pub fn hashes(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.hashes.len(),
            Self::Removed(removed) => removed.hashes.len(),
            Self::Cleared | Self::Other => 0,
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut fields = Fields::default();
        match reader.item()? {
            Item::Array(0) => return Err(Malformed::Expected("type of an event")),
            Item::Array(count) => {
                fields.kind = reader.text_or_none()?;
                let names = match fields.kind {
                    Some("BlockStored") => &STORED_FIELDS[..],
                    Some("BlockRemoved") => &REMOVED_FIELDS[..],
                    _ => &[],
                };
                for index in 1..count {
                    fields.field(names.get(index as usize - 1).copied(), reader)?;
                }
            }
            Item::Map(count) => {
                // A map's type may come behind its other fields, which are the same in all types.
                for _ in 0..count {
                    match reader.text_or_none()? {
                        Some("type") => fields.kind = reader.text_or_none()?,
                        name => fields.field(name, reader)?,
                    }
                }
            }
            _ => return Err(Malformed::Expected("event")),
        }
        fields.event()
    }
}

impl Fields<'_> {
    fn field(&mut self, name: Option<&str>, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let stored = &mut self.stored;
        match name {
            Some("block_hashes") => {
                let one = |reader: &mut Reader<'_>| hash(reader)?.ok_or(Malformed::Expected("hash"));
                stored.hashes = list(reader, "hashes", MAX_HASHES, one)?;
                self.has_hashes = true;
            }
            Some("parent_block_hash") => stored.parent = hash(reader)?,
            Some("token_ids") => stored.token_ids = token_ids(reader)?,
            Some("block_size") => stored.block_tokens = small(reader)?.unwrap_or(0),
            Some("medium") => stored.medium = medium(reader.text_or_none()?),
            Some("lora_name") => stored.lora_name = reader.text_or_none()?.map(Into::into),
            Some("group_idx") => stored.group = small(reader)?,
            Some("kv_cache_spec_kind") => {
                let kind = reader.text_or_none()?.unwrap_or("");
                stored.windowed = WINDOWED_KINDS.iter().any(|part| kind.contains(part));
            }
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn event(self) -> Result<Event, Malformed> {
        match self.kind {
            Some("BlockStored" | "BlockRemoved") if !self.has_hashes => Err(Malformed::Expected("hashes")),
            Some("BlockStored") => Ok(Event::Stored(self.stored)),
            Some("BlockRemoved") => {
                let Stored { hashes, medium, group, .. } = self.stored;
                Ok(Event::Removed(Removed { hashes, medium, group }))
            }
            Some("AllBlocksCleared") => Ok(Event::Cleared),
            Some(_) => Ok(Event::Other),
            None => Err(Malformed::Expected("type of an event")),
        }
    }
}

fn events(reader: &mut Reader<'_>) -> Result<Vec<Event>, Malformed> {
    let mut left = MAX_HASHES;
    list(reader, "events", MAX_EVENTS, |reader| {
        let event = Event::decode(reader)?;
        left = left.checked_sub(event.hashes()).ok_or(Malformed::TooMany("hashes"))?;
        Ok(event)
    })
}

fn list<'a, T>(
    reader: &mut Reader<'a>,
    what: &'static str,
    most: usize,
    mut each: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = reader.array_len()? as usize;
    if count > reader.room() {
        return Err(Malformed::Truncated);
    }
    if count > most {
        return Err(Malformed::TooMany(what));
    }
    let mut items = Vec::with_capacity(count.min(MAX_AHEAD));
    for _ in 0..count {
        items.push(each(reader)?);
    }
    Ok(items)
}

/// Most items that a list's announced length makes room for ahead: a longer one grows as its items
/// are read.
const MAX_AHEAD: usize = 4096;

fn seconds(reader: &mut Reader<'_>) -> Result<f64, Malformed> {
    match reader.item()? {
        Item::Float(value) => Ok(value),
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit")]
        Item::Unsigned(value) => Ok(value as f64),
        _ => Err(Malformed::Expected("time")),
    }
}

/// A number that fits; None for anything else.
fn small(reader: &mut Reader<'_>) -> Result<Option<u32>, Malformed> {
    Ok(reader.unsigned_or_none()?.and_then(|value| u32::try_from(value).ok()))
}

/// A hash as a number: numbers in two's complement, as old releases have signed ones; the tail of
/// binaries.
fn hash(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    match reader.item()? {
        Item::Unsigned(value) => Ok(Some(value)),
        Item::Negative(value) => Ok(Some(value.cast_unsigned())),
        Item::Bytes(bytes) => match bytes.last_chunk() {
            Some(tail) => Ok(Some(u64::from_be_bytes(*tail))),
            None => Err(Malformed::Expected("hash of 8 bytes or more")),
        },
        Item::Nil => Ok(None),
        _ => Err(Malformed::Expected("hash")),
    }
}

/// Token ids, or none at all: nil, or something else than numbers.
fn token_ids(reader: &mut Reader<'_>) -> Result<Vec<u32>, Malformed> {
    let mut ahead = *reader;
    if matches!(ahead.item()?, Item::Array(_)) {
        // Four bytes for each one at hand, at most.
        let one = |reader: &mut Reader<'_>| small(reader)?.ok_or(Malformed::Expected("token id"));
        return list(reader, "token ids", usize::MAX, one);
    }
    reader.skip()?;
    Ok(Vec::new())
}

fn medium(name: Option<&str>) -> Medium {
    match name {
        None | Some("GPU" | "gpu" | "NPU" | "npu") => Medium::Gpu,
        Some("CPU") => Medium::Cpu,
        Some("cpu") => Medium::Pool,
        Some(_) => Medium::Storage,
    }
}

#[cfg(test)]
mod tests;
