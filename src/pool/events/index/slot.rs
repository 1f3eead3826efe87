//! The order in which a holder's blocks came, to forget the oldest first.

use std::collections::VecDeque;

/// Stale entries that are always tolerated.
const STALE_FLOOR: usize = 64;

/// One order, with a count that stamps each entry. An entry whose stamp is not its cell's any more
/// is stale: its block was removed, and perhaps came again. One below the floor is dead: all was
/// cleared.
#[derive(Debug, Default)]
pub(super) struct Slot {
    order: VecDeque<(u64, u32)>,
    next: u32,
    floor: u32,
    held: usize,
    /// Entries below the floor: all of them are at the front.
    dead: usize,
}

impl Slot {
    /// Blocks that live.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Stamps below are of the dead.
    pub(super) fn floor(&self) -> u32 {
        self.floor
    }

    /// Adds a block and returns its stamp.
    pub(super) fn push(&mut self, hash: u64) -> u32 {
        let stamp = self.next;
        self.order.push_back((hash, stamp));
        self.next += 1;
        self.held += 1;
        stamp
    }

    /// The oldest entry, stale or not.
    pub(super) fn pop(&mut self) -> Option<(u64, u32)> {
        let oldest = self.order.pop_front()?;
        self.dead -= usize::from(oldest.1 < self.floor);
        Some(oldest)
    }

    /// The oldest entry, if it is dead.
    pub(super) fn pop_dead(&mut self) -> Option<(u64, u32)> {
        if self.dead == 0 { None } else { self.pop() }
    }

    /// A living block is gone.
    pub(super) fn gone(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// All blocks are dead from now on.
    pub(super) fn empty(&mut self) {
        self.floor = self.next;
        self.held = 0;
        self.dead = self.order.len();
    }

    /// More than half of the entries are stale, the dead not counted.
    pub(super) fn is_stale(&self) -> bool {
        self.order.len() - self.dead > 2 * self.held + STALE_FLOOR
    }

    /// Drops stale entries: those that live and for which this does not hold.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u64, u32) -> bool) {
        let floor = self.floor;
        self.order.retain(|(hash, stamp)| *stamp < floor || keep(*hash, *stamp));
    }

    /// No stamps are left: all must be renumbered before the next entry.
    pub(super) fn is_worn(&self) -> bool {
        self.next == u32::MAX
    }

    /// Stamps all entries anew, from 0; none of them may be stale or dead.
    pub(super) fn renumber(&mut self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.next = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        self.floor = 0;
        self.order.iter_mut().zip(0_u32..).map(|((hash, stamp), fresh)| {
            *stamp = fresh;
            (*hash, fresh)
        })
    }

    #[cfg(test)]
    pub(super) fn wear(&mut self, next: u32) {
        self.next = next;
    }
}
