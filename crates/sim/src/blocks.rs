//! The engine's KV blocks: reference counts, prefix cache, least recently freed first out.

use std::collections::{BTreeMap, HashMap};

/// Block ids of one sequence, in order.
pub type BlockIds = Vec<u32>;

/// All KV blocks of an engine. A freed block keeps its content and its place in the prefix cache
/// until it is reused.
#[derive(Debug)]
pub struct Blocks {
    cells: Vec<Cell>,
    free: BTreeMap<u64, u32>,
    by_key: HashMap<u64, u32>,
    clock: u64,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    print: u64,
    key: Option<u64>,
    refs: u32,
    freed_at: u64,
}

impl Blocks {
    /// `count` free blocks.
    #[must_use]
    pub fn new(count: usize) -> Blocks {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let cells = (0..count).map(|i| Cell { freed_at: u64::from(i), ..Cell::default() }).collect();
        let free = (0..count).map(|i| (u64::from(i), i)).collect();
        Blocks { cells, free, by_key: HashMap::new(), clock: u64::from(count) }
    }

    /// Number of blocks with a holder.
    #[must_use]
    pub fn used(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    /// Number of leading `keys` that the prefix cache has.
    #[must_use]
    pub fn hits(&self, keys: &[u64]) -> usize {
        keys.iter().take_while(|key| self.by_key.contains_key(key)).count()
    }

    /// Takes the cached blocks of `cached` (all must be hits) and `fresh` new ones; None if there
    /// are too few free.
    pub fn take(&mut self, cached: &[u64], fresh: usize) -> Option<BlockIds> {
        let mut ids: BlockIds = cached.iter().filter_map(|key| self.by_key.get(key).copied()).collect();
        let idle = ids.iter().filter(|&&id| self.cell(id).is_some_and(|cell| cell.refs == 0)).count();
        if self.free.len() < idle + fresh {
            return None;
        }
        self.hold(&ids);
        for _ in 0..fresh {
            let (_, id) = self.free.pop_first()?;
            self.claim(id);
            ids.push(id);
        }
        Some(ids)
    }

    /// Adds a holder to each block.
    pub fn hold(&mut self, ids: &[u32]) {
        for &id in ids {
            let Some(cell) = self.cell_mut(id) else { continue };
            cell.refs += 1;
            let freed_at = cell.freed_at;
            if cell.refs == 1 {
                self.free.remove(&freed_at);
            }
        }
    }

    /// Removes a holder from each block; the tail of a sequence is the first to be reused, as in
    /// vLLM.
    pub fn release(&mut self, ids: &[u32]) {
        for &id in ids.iter().rev() {
            self.clock += 1;
            let now = self.clock;
            let Some(cell) = self.cell_mut(id) else { continue };
            cell.refs = cell.refs.saturating_sub(1);
            if cell.refs == 0 {
                cell.freed_at = now;
                self.free.insert(now, id);
            }
        }
    }

    /// Writes content into a block; with a `key` it can be found by later prompts.
    pub fn fill(&mut self, id: u32, print: u64, key: Option<u64>) {
        let fresh = key.filter(|key| !self.by_key.contains_key(key));
        let Some(cell) = self.cell_mut(id) else { return };
        cell.print = print;
        cell.key = fresh;
        if let Some(key) = fresh {
            self.by_key.insert(key, id);
        }
    }

    /// Content of the blocks now, whoever they belong to; `None` if an id does not exist.
    #[must_use]
    pub fn read(&self, ids: &[u32]) -> Option<Vec<u64>> {
        ids.iter().map(|&id| self.cell(id).map(|cell| cell.print)).collect()
    }

    /// Forgets the prefix cache; content stays.
    pub fn reset_cache(&mut self) {
        self.by_key.clear();
        for cell in &mut self.cells {
            cell.key = None;
        }
    }

    /// A free block gets its first holder and loses what it was.
    fn claim(&mut self, id: u32) {
        self.clock += 1;
        let garbage = u64::MAX - self.clock;
        let Some(cell) = self.cell_mut(id) else { return };
        cell.refs = 1;
        cell.print = garbage;
        if let Some(key) = cell.key.take() {
            self.by_key.remove(&key);
        }
    }

    fn cell(&self, id: u32) -> Option<&Cell> {
        self.cells.get(id as usize)
    }

    fn cell_mut(&mut self, id: u32) -> Option<&mut Cell> {
        self.cells.get_mut(id as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_blocks_keep_their_content_until_reused() {
        let mut blocks = Blocks::new(3);
        let ids = blocks.take(&[], 2).unwrap();
        blocks.fill(ids[0], 7, Some(70));
        blocks.fill(ids[1], 8, None);
        blocks.release(&ids);
        assert_eq!((blocks.used(), blocks.read(&ids)), (0, Some(vec![7, 8])));
        assert_eq!(blocks.hits(&[70, 71]), 1);
        let again = blocks.take(&[70], 2).unwrap();
        assert_eq!(again[0], ids[0]);
        assert_ne!(blocks.read(&ids).unwrap()[1], 8, "the tail was reused");
        assert!(blocks.take(&[], 1).is_none());
    }

    #[test]
    fn a_cached_block_that_is_free_counts_against_the_free_ones() {
        let mut blocks = Blocks::new(2);
        let ids = blocks.take(&[], 1).unwrap();
        blocks.fill(ids[0], 1, Some(10));
        blocks.release(&ids);
        assert!(blocks.take(&[10], 2).is_none());
        assert_eq!(blocks.take(&[10], 1).unwrap().len(), 2);
        blocks.reset_cache();
        assert_eq!(blocks.hits(&[10]), 0);
        assert_eq!(blocks.read(&[99]), None);
    }
}
