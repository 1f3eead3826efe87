//! The blocks that each engine holds, as its events tell. One table for all engines maps a block's
//! 64-bit hash to those that have it, so that one pass over a prompt's hashes answers for all.
//!
//! Bounded: a holder keeps at most [`IndexLimits::blocks`] blocks, the oldest are forgotten first,
//! and what it put into a pool is counted apart. A block that several KV cache groups or tiers hold
//! stays until the last of them lets go. In HBM, where an engine may have it several times, it
//! stays until its last copy is gone. Emptying a holder is one step; its dead entries are swept out
//! in pieces.

mod copies;
mod query;
mod slot;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::decode::{Event, Medium, Removed, Stored};
use copies::Copies;
use slot::Slot;

pub use query::{Leading, Prefixes};

/// Most holders of an index: as many as the scheduler has lanes.
pub const MAX_HOLDERS: usize = 4096;
/// Most blocks of a holder.
pub const MAX_BLOCKS: usize = 16 << 20;
/// KV cache groups told apart; those behind share the last place, so that a removal of one counts
/// for all of them.
const GROUPS: u32 = 8;
/// Dead entries swept out with each stored block.
const SWEEP_PER_STORE: usize = 2;

/// Limits of an index. A block takes about 60 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Most holders, at most [`MAX_HOLDERS`].
    pub holders: usize,
    /// Most blocks of a holder, at most [`MAX_BLOCKS`], and as many again that it put into a pool.
    pub blocks: usize,
}

/// A data-parallel rank of an instance: what has a prefix cache of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(u16);

/// Table of all known blocks.
#[derive(Debug)]
pub struct BlockIndex {
    limits: IndexLimits,
    blocks: HashMap<u64, Cells, FixedState>,
    holders: Vec<Holder>,
    /// Two for each holder: of its own memory, and of what it put into a pool.
    slots: Vec<Slot>,
}

/// Holders of a block. Most blocks are one engine's alone.
type Cells = SmallVec<[Cell; 2]>;

/// That a slot has a block.
#[derive(Clone, Copy, Debug)]
struct Cell {
    slot: u16,
    hbm: Copies,
    /// Groups that hold it in main memory or in a pool, a bit each. Those keep a block once,
    /// however often it is told.
    memory: u8,
    /// Likewise, on disk.
    disk: u8,
    /// Time of its coming, in the slot's own count.
    stamp: u32,
}

const _: () = assert!(size_of::<Cell>() == 12, "the table has millions of them");

/// Memories in which a holder keeps a block.
#[derive(Clone, Copy)]
enum Tier {
    Hbm,
    Memory,
    Disk,
}

#[derive(Debug)]
struct Holder {
    instance: u64,
    rank: u32,
    /// True if it has an owner. Otherwise it waits for its next one.
    taken: bool,
    /// Groups of which a block was told that it is part of a prefix.
    full_groups: u8,
    /// Tokens per block of its own, and of those that it put into a pool; 0 before it told.
    block_tokens: [u32; 2],
}

impl Default for IndexLimits {
    /// All holders, with 128 Ki blocks each: 2 Mi tokens in blocks of 16.
    fn default() -> Self {
        Self { holders: MAX_HOLDERS, blocks: 128 << 10 }
    }
}

impl HolderId {
    /// Its number, below [`MAX_HOLDERS`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    fn own(self) -> u16 {
        2 * self.0
    }

    fn pool(self) -> u16 {
        2 * self.0 + 1
    }
}

impl Cell {
    fn fresh(slot: u16, stamp: u32) -> Self {
        Self { slot, hbm: Copies::default(), memory: 0, disk: 0, stamp }
    }

    fn put(&mut self, tier: Tier, groups: u8) {
        match tier {
            Tier::Hbm => self.hbm.add(groups),
            Tier::Memory => self.memory |= groups,
            Tier::Disk => self.disk |= groups,
        }
    }

    fn take(&mut self, tier: Tier, groups: u8) {
        match tier {
            Tier::Hbm => self.hbm.remove(groups),
            Tier::Memory => self.memory &= !groups,
            Tier::Disk => self.disk &= !groups,
        }
    }

    /// Groups that hold it anywhere.
    fn groups(&self) -> u8 {
        self.hbm.groups() | self.memory | self.disk
    }
}

impl BlockIndex {
    /// An empty one.
    pub fn new(limits: IndexLimits) -> Self {
        let limits = IndexLimits {
            holders: limits.holders.min(MAX_HOLDERS),
            blocks: limits.blocks.clamp(1, MAX_BLOCKS),
        };
        Self { limits, blocks: HashMap::default(), holders: Vec::new(), slots: Vec::new() }
    }

    /// The holder of this name, made if there is none yet: an instance by the caller's number, and
    /// its rank. None if there are too many.
    pub fn holder(&mut self, instance: u64, rank: u32) -> Option<HolderId> {
        if let Some(found) = self.find(instance, rank) {
            return Some(found);
        }
        let fresh = Holder { instance, rank, taken: true, full_groups: 0, block_tokens: [0; 2] };
        if let Some(free) = self.holders.iter().position(|holder| !holder.taken) {
            self.holders[free] = fresh;
            return u16::try_from(free).ok().map(HolderId);
        }
        if self.holders.len() >= self.limits.holders {
            return None;
        }
        let id = u16::try_from(self.holders.len()).ok()?;
        self.holders.push(fresh);
        self.slots.extend([Slot::default(), Slot::default()]);
        Some(HolderId(id))
    }

    /// The holder of this name.
    pub fn find(&self, instance: u64, rank: u32) -> Option<HolderId> {
        let is_it = |it: &Holder| it.taken && it.rank == rank && it.instance == instance;
        let found = self.holders.iter().position(is_it)?;
        u16::try_from(found).ok().map(HolderId)
    }

    /// Instance and data-parallel rank of a holder.
    pub fn name(&self, holder: HolderId) -> Option<(u64, u32)> {
        let found = self.holders.get(holder.index()).filter(|it| it.taken)?;
        Some((found.instance, found.rank))
    }

    /// Tokens per block that makes a prefix in its own memory, as it last told; 0 before it did.
    pub fn block_tokens(&self, holder: HolderId) -> u32 {
        self.holders.get(holder.index()).map_or(0, |it| it.block_tokens[0])
    }

    /// Instances and ranks that have told of blocks of this size in memory of their own.
    pub fn tellers(&self, block_tokens: u32) -> impl Iterator<Item = (u64, u32)> {
        let told = move |it: &&Holder| it.taken && it.block_tokens[0] == block_tokens;
        self.holders.iter().filter(told).map(|it| (it.instance, it.rank))
    }

    /// Blocks that it holds, in its own memory and in a pool.
    pub fn held_blocks(&self, holder: HolderId) -> (usize, usize) {
        let held = |slot: u16| self.slots.get(usize::from(slot)).map_or(0, Slot::held);
        (held(holder.own()), held(holder.pool()))
    }

    /// Entries of the table, dead ones among them.
    pub fn entries(&self) -> usize {
        self.blocks.len()
    }

    /// Takes in an event. Its cost is that of its hashes.
    pub fn apply(&mut self, holder: HolderId, event: &Event) {
        self.apply_part(holder, event, 0..usize::MAX);
    }

    /// Takes in those hashes of an event that have these places among them, so that others can read
    /// in between.
    pub fn apply_part(&mut self, holder: HolderId, event: &Event, part: Range<usize>) {
        if self.name(holder).is_none() {
            return;
        }
        match event {
            Event::Stored(stored) => self.store(holder, stored, within(&stored.hashes, part)),
            Event::Removed(removed) => self.remove(holder, removed, within(&removed.hashes, part)),
            Event::Cleared => self.empty(holder.own()),
            Event::Other => {}
        }
    }

    /// Forgets all its blocks. [`sweep`](Self::sweep) then gives back their memory.
    pub fn clear(&mut self, holder: HolderId) {
        if self.name(holder).is_some() {
            self.empty(holder.own());
            self.empty(holder.pool());
        }
        // The next blocks may be another model's.
        if let Some(holder) = self.holders.get_mut(holder.index()) {
            (holder.full_groups, holder.block_tokens) = Default::default();
        }
    }

    /// Forgets it: its instance is gone.
    pub fn release(&mut self, holder: HolderId) {
        self.clear(holder);
        if let Some(gone) = self.holders.get_mut(holder.index()) {
            gone.taken = false;
        }
    }

    /// Gives back the memory of up to `budget` dead entries of a holder. True if more of them may
    /// be left.
    pub fn sweep(&mut self, holder: HolderId, budget: usize) -> bool {
        if holder.index() >= self.holders.len() {
            return false;
        }
        let own = self.sweep_slot(holder.own(), budget);
        self.sweep_slot(holder.pool(), budget) || own
    }

    fn empty(&mut self, slot: u16) {
        self.slots[usize::from(slot)].empty();
    }

    fn store(&mut self, holder: HolderId, stored: &Stored, hashes: &[u64]) {
        let bit = group_bit(stored.group);
        let known = &mut self.holders[holder.index()];
        let pooled = stored.medium == Medium::Pool;
        let told = &mut known.block_tokens[usize::from(pooled)];
        // Blocks of a window may be of another size, and other tiers name none (vLLM's
        // OffloadingConnector tells 0), or that of their own chunks.
        let is_own = !stored.windowed && matches!(stored.medium, Medium::Gpu | Medium::Pool);
        if stored.block_tokens > 0 && (is_own || *told == 0) {
            *told = stored.block_tokens;
        }
        if !stored.windowed && !pooled {
            known.full_groups |= bit;
        }
        let (slot, tier) = place(holder, stored.medium);
        for &hash in hashes {
            self.store_one(hash, slot, tier, bit);
            self.sweep_slot(slot, SWEEP_PER_STORE);
        }
    }

    fn store_one(&mut self, hash: u64, slot: u16, tier: Tier, bit: u8) {
        let floor = self.slots[usize::from(slot)].floor();
        let cells = self.blocks.entry(hash).or_default();
        if let Some(cell) = cells.iter_mut().find(|cell| cell.slot == slot && cell.stamp >= floor) {
            cell.put(tier, bit);
            if is_pool(slot) {
                // It is put again when the pool had lost it: it is young once more.
                self.slots[usize::from(slot)].gone();
                cell.stamp = self.slots[usize::from(slot)].push(hash);
                self.make_room(slot);
            }
            return;
        }
        let mut fresh = Cell::fresh(slot, self.slots[usize::from(slot)].push(hash));
        fresh.put(tier, bit);
        match cells.iter_mut().find(|cell| cell.slot == slot) {
            // A dead one: its place is taken, and the order's old entry finds no cell of its stamp
            // any more.
            Some(cell) => *cell = fresh,
            None => cells.push(fresh),
        }
        self.make_room(slot);
    }

    /// Keeps a slot within its limits: of blocks, of stale entries in its order, of stamps.
    fn make_room(&mut self, slot: u16) {
        let at = usize::from(slot);
        while self.slots[at].held() > self.limits.blocks {
            let Some((hash, stamp)) = self.slots[at].pop() else { break };
            let live = stamp >= self.slots[at].floor();
            if drop_cell(&mut self.blocks, hash, |it| it.slot == slot && it.stamp == stamp) && live {
                self.slots[at].gone();
            }
        }
        if self.slots[at].is_stale() {
            let blocks = &self.blocks;
            self.slots[at].retain(|hash, stamp| has_cell(blocks, hash, slot, stamp));
        }
        if self.slots[at].is_worn() {
            self.renumber(slot);
        }
    }

    /// Starts a slot's count of stamps anew: once in four billion blocks.
    fn renumber(&mut self, slot: u16) {
        self.sweep_slot(slot, usize::MAX);
        let state = &mut self.slots[usize::from(slot)];
        let blocks = &self.blocks;
        state.retain(|hash, stamp| has_cell(blocks, hash, slot, stamp));
        for (hash, stamp) in state.renumber() {
            let cells = self.blocks.get_mut(&hash);
            if let Some(cell) = cells.and_then(|them| them.iter_mut().find(|it| it.slot == slot)) {
                cell.stamp = stamp;
            }
        }
    }

    fn remove(&mut self, holder: HolderId, removed: &Removed, hashes: &[u64]) {
        let bits = removed.group.map_or(u8::MAX, |group| group_bit(Some(group)));
        let (slot, tier) = place(holder, removed.medium);
        let state = &mut self.slots[usize::from(slot)];
        for &hash in hashes {
            let floor = state.floor();
            let was_last = drop_cell(&mut self.blocks, hash, |cell| {
                if cell.slot != slot || cell.stamp < floor {
                    return false;
                }
                cell.take(tier, bits);
                cell.groups() == 0
            });
            if was_last {
                state.gone();
            }
        }
    }

    /// Drops up to `budget` dead entries, which are at the front of a slot's order. True if some
    /// may be left.
    fn sweep_slot(&mut self, slot: u16, budget: usize) -> bool {
        let state = &mut self.slots[usize::from(slot)];
        for _ in 0..budget {
            let Some((hash, stamp)) = state.pop_dead() else { return false };
            drop_cell(&mut self.blocks, hash, |it| it.slot == slot && it.stamp == stamp);
        }
        true
    }
}

/// Drops the first cell of a block for which `is_it` holds. True if there was one.
fn drop_cell(
    blocks: &mut HashMap<u64, Cells, FixedState>,
    hash: u64,
    mut is_it: impl FnMut(&mut Cell) -> bool,
) -> bool {
    let Entry::Occupied(mut entry) = blocks.entry(hash) else { return false };
    let Some(at) = entry.get_mut().iter_mut().position(&mut is_it) else { return false };
    entry.get_mut().swap_remove(at);
    if entry.get().is_empty() {
        entry.remove();
    }
    true
}

fn has_cell(blocks: &HashMap<u64, Cells, FixedState>, hash: u64, slot: u16, stamp: u32) -> bool {
    blocks.get(&hash).is_some_and(|cells| cells.iter().any(|it| it.slot == slot && it.stamp == stamp))
}

fn within(hashes: &[u64], part: Range<usize>) -> &[u64] {
    let end = part.end.min(hashes.len());
    hashes.get(part.start..end).unwrap_or(&[])
}

/// True if a slot is of what was put into a pool.
fn is_pool(slot: u16) -> bool {
    !slot.is_multiple_of(2)
}

fn group_bit(group: Option<u32>) -> u8 {
    1 << group.unwrap_or(0).min(GROUPS - 1)
}

fn place(holder: HolderId, medium: Medium) -> (u16, Tier) {
    match medium {
        Medium::Gpu => (holder.own(), Tier::Hbm),
        Medium::Cpu => (holder.own(), Tier::Memory),
        Medium::Storage => (holder.own(), Tier::Disk),
        Medium::Pool => (holder.pool(), Tier::Memory),
    }
}

#[cfg(test)]
mod tests;
