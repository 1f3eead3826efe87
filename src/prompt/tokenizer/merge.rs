//! Byte-pair merging by rank, as tiktoken does it: of all neighbours that make a token together,
//! those of the smallest rank are merged first, the leftmost of equal ones, until none is left.
//!
//! Open merges are in a heap, so a piece of n bytes takes n log n steps whatever is in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ranks::Ranks;

/// Mark of a part that was merged into the one before it.
const MERGED: u32 = u32::MAX;

/// Buffers for one piece after another.
#[derive(Default)]
pub(super) struct Merger {
    parts: Vec<Part>,
    open: BinaryHeap<Reverse<Merge>>,
}

/// Bytes that are one token; a part is known by the place where it begins.
#[derive(Clone, Copy)]
struct Part {
    /// Begin of the part before it.
    before: u32,
    /// End of it, where the next one begins, or [`MERGED`].
    end: u32,
}

/// Two neighbours that make a token. The order is that in which they are merged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merge {
    rank: u32,
    start: u32,
    end: u32,
}

impl Merger {
    /// Appends the ranks of a piece's tokens, each plus `offset`. The piece is shorter than 4 GiB.
    pub(super) fn encode(&mut self, ranks: &Ranks, piece: &[u8], offset: u32, out: &mut Vec<u32>) {
        if let Some(rank) = ranks.get(piece) {
            out.push(rank + offset);
            return;
        }
        self.begin(ranks, piece);
        while let Some(Reverse(merge)) = self.open.pop() {
            if self.is_open(merge) {
                self.merge(ranks, piece, merge);
            }
        }
        let mut start = 0;
        while let Some(part) = self.parts.get(start) {
            let end = part.end as usize;
            // All parts are tokens: single bytes are, and merges make no others.
            let rank = piece.get(start..end).and_then(|bytes| ranks.get(bytes));
            out.extend(rank.map(|rank| rank + offset));
            start = end;
        }
    }

    fn begin(&mut self, ranks: &Ranks, piece: &[u8]) {
        self.open.clear();
        self.parts.clear();
        let part = |at: u32| Part { before: at.wrapping_sub(1), end: at + 1 };
        self.parts.extend((0..).zip(piece).map(|(at, _)| part(at)));
        for start in (0..).zip(piece).map(|(at, _)| at) {
            self.offer(ranks, piece, start);
        }
    }

    fn end(&self, start: u32) -> Option<u32> {
        self.parts.get(start as usize).map(|part| part.end)
    }

    /// Puts the part that begins here and the next one among the open merges, if they make a token.
    fn offer(&mut self, ranks: &Ranks, piece: &[u8], start: u32) {
        let end = self.end(start).and_then(|middle| self.end(middle));
        let Some(end) = end else { return };
        if let Some(rank) = piece.get(start as usize..end as usize).and_then(|bytes| ranks.get(bytes)) {
            self.open.push(Reverse(Merge { rank, start, end }));
        }
    }

    /// True if both neighbours are still there, and nothing more.
    fn is_open(&self, merge: Merge) -> bool {
        let middle = self.end(merge.start).filter(|middle| *middle != MERGED);
        middle.and_then(|middle| self.end(middle)) == Some(merge.end)
    }

    fn merge(&mut self, ranks: &Ranks, piece: &[u8], Merge { start, end, .. }: Merge) {
        let Some(middle) = self.end(start) else { return };
        if let Some(part) = self.parts.get_mut(middle as usize) {
            part.end = MERGED;
        }
        if let Some(next) = self.parts.get_mut(end as usize) {
            next.before = start;
        }
        let Some(part) = self.parts.get_mut(start as usize) else { return };
        part.end = end;
        let before = part.before;
        self.offer(ranks, piece, start);
        self.offer(ranks, piece, before);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::ranks::tests::file;
    use super::*;

    fn encode(ranks: &Ranks, piece: &[u8]) -> Vec<u32> {
        let mut out = Vec::new();
        Merger::default().encode(ranks, piece, 0, &mut out);
        out
    }

    /// The definition, step by step.
    fn naive(ranks: &Ranks, piece: &[u8]) -> Vec<u32> {
        if let Some(rank) = ranks.get(piece) {
            return vec![rank];
        }
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|byte| vec![*byte]).collect();
        loop {
            let pairs =
                (1..parts.len()).map(|at| (ranks.get(&[&parts[at - 1][..], &parts[at]].concat()), at));
            let Some((_, at)) = pairs.filter_map(|(rank, at)| Some((rank?, at))).min() else { break };
            let right = parts.remove(at);
            parts[at - 1].extend(right);
        }
        parts.iter().map(|part| ranks.get(part).unwrap()).collect()
    }

    #[test]
    fn merges_of_equal_rank_go_from_the_left() {
        let ranks = Ranks::parse(file(&["ab", "ba", "aba"]).as_bytes()).unwrap();
        assert_eq!(encode(&ranks, b"aba"), [258]);
        // "ab" goes first, wherever it is, and then the leftmost "aba".
        assert_eq!(encode(&ranks, b"ababa"), [256, 258]);
    }

    #[test]
    fn long_run_of_one_letter_is_merged_in_time() {
        let ranks = Ranks::parse(file(&["aa", "aaaa", "aaaaaaaa"]).as_bytes()).unwrap();
        let ids = encode(&ranks, &vec![b'a'; (1 << 20) + 3]);
        assert_eq!(ids.len(), (1 << 17) + 2);
        assert_eq!(ids[ids.len() - 3..], [258, 256, u32::from(b'a')]);
    }

    proptest! {
        #[test]
        fn merged_piece_equals_the_definition(tokens in vec("[abc]{2,4}", 0..12), piece in "[abc]{0,24}") {
            let mut known: Vec<&str> = Vec::new();
            for token in &tokens {
                if !known.contains(&token.as_str()) {
                    known.push(token);
                }
            }
            let ranks = Ranks::parse(file(&known).as_bytes()).unwrap();
            prop_assert_eq!(encode(&ranks, piece.as_bytes()), naive(&ranks, piece.as_bytes()));
        }
    }
}
