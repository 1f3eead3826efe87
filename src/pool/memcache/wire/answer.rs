//! Answers of the meta service. Nothing is allocated for more entries than there are bytes for.

use bytes::Buf;
use smallvec::SmallVec;

use super::{Form, Op, WireError};
use crate::pool::store::Tier;

/// Present and readable. Anything else is not: -3102 no such key, -3007 not written yet.
const RESULT_PRESENT: i32 = 0;
const RESULT_BYTES: usize = 4;
/// A replica that can be read.
const STATE_READABLE: u16 = 1;

/// A 1.1 object: u64 size, u16 prot, u8 count, u8 valid, 8 × u32 rank, 8 × u16 medium, 4 unused
/// bytes.
const PLAIN_BYTES: usize = 64;
const PLAIN_SLOTS: usize = 8;
/// A later object without its replicas: u64 size, u16 prot, u8 count, u8 valid, u64 replicas.
const FLAGGED_BYTES: usize = 20;
/// Its replicas: u64 size, u64 address, u32 rank, u16 medium, u16 state, u64 lease in ms, and in
/// 1.3 one u64 more.
const REPLICA_BYTES: [usize; 2] = [40, 32];

/// One object of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// It exists and, from 1.2 on, can be read.
    pub present: bool,
    /// Its readable replicas.
    pub ranks: SmallVec<[Rank; 2]>,
}

/// One replica of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Rank whose memory it is in.
    pub rank: u32,
    /// Kind of that memory.
    pub tier: Tier,
}

/// The answer to [`Op::Exist`] about `asked` keys, in their order.
///
/// # Errors
/// [`WireError`] for anything that is not exactly that.
pub fn exist(body: &[u8], asked: usize) -> Result<Vec<bool>, WireError> {
    let mut rest = entries(body, Op::Exist, asked)?;
    if Some(rest.len()) != asked.checked_mul(RESULT_BYTES) {
        return Err(WireError::Layout(body.len()));
    }
    Ok((0..asked).map(|_| rest.get_i32_le() == RESULT_PRESENT).collect())
}

/// The answer to [`Op::Query`] in `form` about `asked` keys, in their order.
///
/// # Errors
/// [`WireError`] for anything that is not exactly that.
pub fn query(body: &[u8], form: Form, asked: usize) -> Result<Vec<Object>, WireError> {
    let rest = entries(body, Op::Query(form), asked)?;
    match form {
        Form::Plain if Some(rest.len()) == asked.checked_mul(PLAIN_BYTES) => {
            Ok(rest.chunks_exact(PLAIN_BYTES).map(plain).collect())
        }
        Form::Plain => Err(WireError::Layout(body.len())),
        // Versions don't tell which they are. Only one layout's lengths add up to the bytes that
        // are there.
        Form::Flagged => match REPLICA_BYTES.map(|bytes| flagged(rest, asked, bytes)) {
            [Some(one), Some(other)] if one != other => Err(WireError::Layout(body.len())),
            [Some(objects), _] | [None, Some(objects)] => Ok(objects),
            [None, None] => Err(WireError::Layout(body.len())),
        },
    }
}

/// Checks what comes before the entries, and gives their bytes.
fn entries(body: &[u8], op: Op, asked: usize) -> Result<&[u8], WireError> {
    let mut rest = body;
    let mut field = |bytes| {
        let (field, after) = rest.split_at_checked(bytes).ok_or(WireError::Short)?;
        rest = after;
        Ok(field)
    };
    field(2)?;
    let message = field(2)?.get_i16_le();
    if message != op.answer() {
        return Err(WireError::Message(message));
    }
    field(4)?;
    let got = field(8)?.get_u64_le();
    if usize::try_from(got) != Ok(asked) {
        return Err(WireError::Count { got, asked });
    }
    Ok(rest)
}

fn plain(mut entry: &[u8]) -> Object {
    entry.advance(10);
    let (count, valid) = (usize::from(entry.get_u8()), entry.get_u8());
    let mut ranks = [0; PLAIN_SLOTS];
    ranks.fill_with(|| entry.get_u32_le());
    let places = ranks.into_iter().map(|rank| (rank, entry.get_u16_le()));
    if valid == 0 {
        return Object::default();
    }
    Object {
        present: true,
        ranks: places.take(count).filter_map(|(rank, medium)| replica(rank, medium)).collect(),
    }
}

/// All objects, if replicas of `replica_bytes` make their lengths add up.
fn flagged(mut rest: &[u8], asked: usize, replica_bytes: usize) -> Option<Vec<Object>> {
    // As many as there are bytes for.
    let mut objects = Vec::with_capacity(asked.min(rest.len() / FLAGGED_BYTES));
    for _ in 0..asked {
        let (mut head, after) = rest.split_at_checked(FLAGGED_BYTES)?;
        head.advance(10);
        let (count, valid) = (u64::from(head.get_u8()), head.get_u8());
        let replicas = head.get_u64_le();
        if replicas != count || valid > 1 {
            return None;
        }
        let bytes = usize::try_from(replicas).ok()?.checked_mul(replica_bytes)?;
        let (replicas, after) = after.split_at_checked(bytes)?;
        rest = after;
        let mut object = Object::default();
        for replica in replicas.chunks_exact(replica_bytes).filter(|_| valid == 1).map(Replica::of) {
            object.present |= !matches!(replica, Replica::Unready);
            object.ranks.extend(replica.rank());
        }
        objects.push(object);
    }
    rest.is_empty().then_some(objects)
}

/// A copy of an object.
enum Replica {
    /// It can't be read yet.
    Unready,
    /// It can be read, from a kind of memory that has no name here.
    Unnamed,
    On(Rank),
}

impl Replica {
    fn of(mut entry: &[u8]) -> Replica {
        entry.advance(16);
        let (rank, medium, state) = (entry.get_u32_le(), entry.get_u16_le(), entry.get_u16_le());
        match replica(rank, medium) {
            _ if state != STATE_READABLE => Replica::Unready,
            Some(rank) => Replica::On(rank),
            None => Replica::Unnamed,
        }
    }

    fn rank(self) -> Option<Rank> {
        match self {
            Replica::On(rank) => Some(rank),
            Replica::Unready | Replica::Unnamed => None,
        }
    }
}

fn replica(rank: u32, medium: u16) -> Option<Rank> {
    let tier = match medium {
        0 => Tier::Hbm,
        1 => Tier::Memory,
        2 => Tier::Disk,
        _ => return None,
    };
    Some(Rank { rank, tier })
}
