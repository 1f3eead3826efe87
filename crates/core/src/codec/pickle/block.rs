//! The one pickle that is written for every block of every prompt: `(bytes, (int, …), None)` in
//! protocol 5.
//!
//! The [`Writer`](super::Writer) writes the same, object by object; that takes about as long as the
//! digest of a small block. A test holds the two together.

use super::tokens::{TOKEN_BYTES, encode, fit_a_lane};
use super::write::FRAME_BYTES;
use super::{Protocol, op};

/// Up to the length of the frame, which is known at the end.
const HEAD: [u8; 11] = [op::PROTO, Protocol::V5 as u8, op::FRAME, 0, 0, 0, 0, 0, 0, 0, 0];
const SHA256_BYTES: usize = 32;
const OPENING_BYTES: usize = HEAD.len() + 2 + SHA256_BYTES + 2;
/// Room for everything that is not tokens, generously.
const REST_BYTES: usize = 300;

/// Appends the pickle of `(parent, tokens as a tuple, None)`, unless the tuple is of a kind that is
/// spelled in another way: `false`, and nothing is appended.
pub fn plain_block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32]) -> bool {
    let (Ok(parent_len), true) = (u8::try_from(parent.len()), parent.len() > 1) else { return false };
    let one_frame = tokens.len() * TOKEN_BYTES + REST_BYTES < FRAME_BYTES;
    if tokens.len() <= 3 || !one_frame || !fit_a_lane(tokens) {
        return false;
    }
    let start = out.len();
    match parent.first_chunk::<SHA256_BYTES>() {
        Some(hash) if parent.len() == SHA256_BYTES => out.extend_from_slice(&opening(hash)),
        _ => {
            out.extend_from_slice(&HEAD);
            out.extend_from_slice(&[op::SHORT_BIN_BYTES, parent_len]);
            out.extend_from_slice(parent);
            out.extend_from_slice(&[op::MEMOIZE, op::MARK]);
        }
    }
    encode(tokens, out);
    out.extend_from_slice(&[op::TUPLE, op::MEMOIZE, op::NONE, op::TUPLE3, op::MEMOIZE, op::STOP]);
    let body = start + HEAD.len();
    let frame_bytes = (out.len() - body) as u64;
    out[body - 8..body].copy_from_slice(&frame_bytes.to_le_bytes());
    true
}

/// All that stands before the tokens of a block whose parent is a SHA-256, in one piece: most are.
fn opening(parent: &[u8; SHA256_BYTES]) -> [u8; OPENING_BYTES] {
    let mut opening = [0; OPENING_BYTES];
    opening[..HEAD.len()].copy_from_slice(&HEAD);
    opening[HEAD.len()..HEAD.len() + 2].copy_from_slice(&[op::SHORT_BIN_BYTES, SHA256_BYTES as u8]);
    opening[HEAD.len() + 2..OPENING_BYTES - 2].copy_from_slice(parent);
    opening[OPENING_BYTES - 2..].copy_from_slice(&[op::MEMOIZE, op::MARK]);
    opening
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::Writer;
    use super::*;

    fn by_objects(parent: &[u8], tokens: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, Protocol::V5);
        writer.open(3);
        writer.bytes(parent);
        writer.open(tokens.len());
        tokens.iter().for_each(|token| writer.int(i128::from(*token)));
        writer.close(tokens.len());
        writer.none();
        writer.close(3);
        writer.finish();
        out
    }

    fn token() -> impl Strategy<Value = u32> {
        prop_oneof![
            0..0x200_u32,
            0xFF00..0x1_0100_u32,
            0..200_000_u32,
            0xFF_FF00..0x100_0010_u32,
            any::<u32>()
        ]
    }

    proptest! {
        #[test]
        fn a_block_is_what_its_objects_are(
            parent in prop_oneof![vec(any::<u8>(), 32), vec(any::<u8>(), 16), vec(any::<u8>(), 0..300)],
            tokens in prop_oneof![vec(token(), 0..70), vec(0..300_000_u32, 0..700)],
        ) {
            let mut out = vec![7];
            let written = plain_block(&mut out, &parent, &tokens);
            prop_assert_eq!(out.len() > 1, written);
            if written {
                prop_assert_eq!(&out[1..], &by_objects(&parent, &tokens)[..]);
            }
        }
    }

    #[test]
    fn usual_blocks_take_this_way_and_odd_ones_do_not() {
        let tokens: Vec<u32> = (0..20_000).collect();
        for (parent, tokens, taken) in [
            (&[0; 32][..], &tokens[..16], true),
            (&[0; 16], &tokens[..4], true),
            (&[0; 32], &tokens[..8_192], true),
            (&[0; 32], &tokens[..3], false),
            (&[0; 1], &tokens[..16], false),
            (&[0; 256], &tokens[..16], false),
            (&[0; 32], &tokens[..], false),
            (&[0; 32], &[1, 2, 3, 1 << 24], false),
        ] {
            assert_eq!(plain_block(&mut Vec::new(), parent, tokens), taken, "{} tokens", tokens.len());
        }
    }
}
