//! Token ids as pickled integers, fast: prompts have tens of thousands, and each is hashed.

use super::op;

/// Tokens spelled side by side, which a compiler turns into vector instructions.
const LANES: usize = 16;
/// A token's opcode and argument, at most, in the fast path.
pub(super) const TOKEN_BYTES: usize = 5;
/// Room of a lane group, and a mask that is not below its last offset: offsets need no further
/// check.
const ROOM_BYTES: usize = 132;
const OFFSET_MASK: usize = 127;

/// True if all tokens are below 2^24, which is what [`encode`] can do. No vocabulary comes near.
pub(super) fn fit_a_lane(tokens: &[u32]) -> bool {
    tokens.iter().fold(0, |all, token| all | token) < 1 << 24
}

/// Encodes tokens below 2^24, without branches on the value, which is as good as random.
///
/// A token's opcode and argument take 2, 3 or 5 bytes, of which the fifth is zero. So four bytes
/// are stored for each into zeroed room, and the next one overwrites what is not the token's.
pub(super) fn encode(batch: &[u32], out: &mut Vec<u8>) {
    let mut at = out.len();
    out.resize(at + batch.len() * TOKEN_BYTES + ROOM_BYTES, 0);
    let (groups, rest) = batch.as_chunks::<LANES>();
    for group in groups {
        let Some(room) = out[at..].first_chunk_mut::<ROOM_BYTES>() else { return };
        at += scatter(group, room);
    }
    for &token in rest {
        let (spelled, len_bytes) = spell(token);
        out[at..at + 4].copy_from_slice(&spelled.to_le_bytes());
        at += len_bytes as usize;
    }
    out.truncate(at);
}

/// Writes a group of tokens; returns their length in bytes.
fn scatter(group: &[u32; LANES], room: &mut [u8; ROOM_BYTES]) -> usize {
    let (mut spelled, mut len_bytes) = ([0; LANES], [0; LANES]);
    for lane in 0..LANES {
        let (first, len) = spell(group[lane]);
        spelled[lane] = first;
        len_bytes[lane] = len;
    }
    let mut offset = 0;
    for lane in 0..LANES {
        let start = offset & OFFSET_MASK;
        room[start..start + 4].copy_from_slice(&spelled[lane].to_le_bytes());
        offset += len_bytes[lane] as usize;
    }
    offset
}

/// The first four bytes of a token below 2^24, and its length in bytes.
fn spell(token: u32) -> (u32, u32) {
    const { assert!(op::BIN_INT2 == op::BIN_INT1 + 2 && op::BIN_INT == op::BIN_INT2 - 3) };
    const { assert!(OFFSET_MASK >= (LANES - 1) * TOKEN_BYTES && ROOM_BYTES >= OFFSET_MASK + 4) };
    // Sums that carry into bit 31: comparisons that any vector unit has.
    let byte = token.wrapping_add(0x8000_0000 - 0x100) >> 31;
    let word = token.wrapping_add(0x8000_0000 - 0x1_0000) >> 31;
    let opcode = (u32::from(op::BIN_INT1) + 2 * byte).wrapping_sub(3 * word);
    ((token << 8).wrapping_add(opcode), 2 + byte + 2 * word)
}
