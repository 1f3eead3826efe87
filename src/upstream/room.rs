//! Memory for the small pieces in which streams come.
//!
//! A piece is on its way to the client before the next one is read, as a rule. So the same memory
//! serves one after the other, of all streams of a thread, and is in the processor's cache when it
//! is written: memory of its own for each would come from anywhere.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};

/// Larger ones have memory of their own: it is cold at its beginning alone.
const SMALL_BYTES: usize = 512;
/// For a piece, and another one while the first is still held. A piece that is held for long, by a
/// client that reads slowly, holds all of it.
const ROOM_BYTES: usize = 2 * SMALL_BYTES;

thread_local! {
    static ROOM: Cell<BytesMut> = Cell::default();
}

/// Bytes that `fill` writes, at most `most_bytes` of them, and its result.
pub(super) fn piece<T>(most_bytes: usize, fill: impl FnOnce(&mut BytesMut) -> T) -> (Bytes, T) {
    if most_bytes > SMALL_BYTES {
        let mut own = BytesMut::new();
        let said = fill(&mut own);
        return (own.freeze(), said);
    }
    let mut room = ROOM.take();
    // From its beginning, unless somebody has something of it.
    if !room.try_reclaim(ROOM_BYTES) && room.capacity() < most_bytes {
        room = BytesMut::with_capacity(ROOM_BYTES);
    }
    let said = fill(&mut room);
    let piece = room.split().freeze();
    ROOM.set(room);
    (piece, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(byte: u8, length: usize) -> Bytes {
        let (piece, said) = piece(length, |room| {
            room.extend_from_slice(&vec![byte; length]);
            room.len()
        });
        assert_eq!(said, length);
        piece
    }

    #[test]
    fn freed_pieces_memory_is_reused() {
        let first = of(b'a', 240).as_ptr();
        for byte in b'b'..b'z' {
            let next = of(byte, 1 + 9 * usize::from(byte - b'a'));
            assert_eq!(next.as_ptr(), first);
        }
    }

    #[test]
    fn held_pieces_stay_unchanged() {
        for length in [0, 1, 240, SMALL_BYTES, SMALL_BYTES + 1, 5_000] {
            let held: Vec<Bytes> = (0..50).map(|byte| of(byte, length)).collect();
            for (byte, piece) in (0..50).zip(&held) {
                assert_eq!(piece, &vec![byte; length]);
            }
        }
    }

    #[test]
    fn piece_beyond_its_estimate_has_room() {
        let (more, ()) = piece(1, |room| room.extend_from_slice(&[7; 3 * ROOM_BYTES]));
        assert_eq!(more, vec![7; 3 * ROOM_BYTES]);
    }
}
