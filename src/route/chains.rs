//! Prompts as a tree: each node is a run of blocks that no prompt branches off within. What is
//! known of prompts is known of whole nodes, so that a long prompt costs a node or two and not a
//! thousand entries.
//!
//! Block hashes are chained: two prompts that agree in a block agree in all before it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;

/// A node's place; those of dropped nodes are given again.
pub type NodeId = u32;
/// The parent of the first nodes.
pub const ROOT: NodeId = NodeId::MAX;

/// The tree, with a value for each node. Both parts of a node that is cut in two have its value.
#[derive(Debug)]
pub struct Chains<T> {
    nodes: Vec<Node<T>>,
    free: Vec<NodeId>,
    /// Node of each first block, by the parent.
    child_of: HashMap<(NodeId, u64), NodeId, FixedState>,
    blocks: usize,
}

/// A run of blocks.
#[derive(Debug)]
pub struct Node<T> {
    run: Run,
    /// The node before it.
    parent: NodeId,
    /// Number of nodes that continue it.
    children: u32,
    /// Value that is kept for it.
    pub value: T,
}

/// A node on a prompt's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Identity of the node.
    pub node: NodeId,
    /// Blocks of it that the prompt has; fewer than it has only at the way's end.
    pub blocks: usize,
}

/// A part of a prompt's blocks, shared with the prompt as long as that is not twice as long.
#[derive(Clone, Debug)]
struct Run {
    all: Arc<[u64]>,
    part: Range<usize>,
    /// The last block of the part, or 0: mostly it is all that has to be looked at.
    last: u64,
}

impl Run {
    fn of(all: &Arc<[u64]>, part: Range<usize>) -> Run {
        let run = all.get(part.clone()).unwrap_or_default();
        let last = run.last().copied().unwrap_or_default();
        if part.len() * 2 >= all.len() {
            return Run { all: Arc::clone(all), part, last };
        }
        let all: Arc<[u64]> = run.into();
        Run { part: 0..all.len(), all, last }
    }

    fn get(&self) -> &[u64] {
        self.all.get(self.part.clone()).unwrap_or_default()
    }

    /// The first `at` blocks, and the others.
    fn cut(&self, at: usize) -> (Run, Run) {
        let middle = self.part.start + at;
        (Run::of(&self.all, self.part.start..middle), Run::of(&self.all, middle..self.part.end))
    }

    /// Leading blocks that `blocks` has, too.
    fn common(&self, blocks: &[u64]) -> usize {
        let whole = self.part.len();
        if whole.checked_sub(1).and_then(|last| blocks.get(last)) == Some(&self.last) {
            return whole;
        }
        let mine = self.get();
        let length = mine.len().min(blocks.len());
        let (mine, theirs) = (&mine[..length], &blocks[..length]);
        // As far as the chains agree.
        let (mut low, mut high) = (0, length);
        let mut middle = length.saturating_sub(1);
        while low < high {
            if mine[middle] == theirs[middle] {
                low = middle + 1;
            } else {
                high = middle;
            }
            middle = low + (high - low) / 2;
        }
        low
    }
}

impl<T> Default for Chains<T> {
    fn default() -> Chains<T> {
        Chains { nodes: Vec::new(), free: Vec::new(), child_of: HashMap::default(), blocks: 0 }
    }
}

impl<T> Node<T> {
    /// Blocks in it.
    pub fn blocks(&self) -> usize {
        self.run.part.len()
    }

    /// The node before it, or [`ROOT`].
    pub fn parent(&self) -> NodeId {
        self.parent
    }

    /// True if some prompt continues it.
    pub fn has_children(&self) -> bool {
        self.children > 0
    }
}

impl<T: Clone + Default> Chains<T> {
    /// Blocks in all nodes.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// A node, unless this is [`ROOT`].
    pub fn get(&self, node: NodeId) -> Option<&Node<T>> {
        self.nodes.get(node as usize)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut Node<T>> {
        self.nodes.get_mut(node as usize)
    }

    /// Places of nodes, also of dropped ones, whose values are as new.
    pub fn places(&self) -> Range<NodeId> {
        0..NodeId::try_from(self.nodes.len()).unwrap_or(ROOT)
    }

    /// The nodes along a prompt, as far as they are known.
    pub fn along<'a>(&'a self, blocks: &'a [u64]) -> impl Iterator<Item = Step> + 'a {
        let (mut node, mut rest) = (ROOT, blocks);
        std::iter::from_fn(move || {
            node = *self.child_of.get(&(node, *rest.first()?))?;
            let run = &self.get(node)?.run;
            let blocks = run.common(rest);
            // Nothing known continues a part of a run.
            rest = if blocks == run.part.len() { &rest[blocks..] } else { &[] };
            Some(Step { node, blocks })
        })
    }

    /// Makes the first `upto` blocks of a prompt end at a node's end, and says at which. New nodes
    /// have new values.
    pub fn reach(&mut self, blocks: &Arc<[u64]>, upto: usize) -> NodeId {
        let upto = upto.min(blocks.len());
        let (mut parent, mut known) = (ROOT, 0);
        let mut last = None;
        for step in self.along(&blocks[..upto]) {
            known += step.blocks;
            last = Some(step);
        }
        if let Some(step) = last {
            parent = self.cut(step.node, step.blocks);
        }
        if known == upto {
            return parent;
        }
        self.blocks += upto - known;
        self.put(Node { run: Run::of(blocks, known..upto), parent, children: 0, value: T::default() })
    }

    /// Splits a node after its first `at_blocks` blocks, and returns the node of these blocks,
    /// which is new: `node` keeps the rest. With 0, or nothing left to keep, returns `node`
    /// unchanged.
    pub fn cut(&mut self, node: NodeId, at_blocks: usize) -> NodeId {
        let Some(rest) = self.get_mut(node).filter(|rest| (1..rest.blocks()).contains(&at_blocks)) else {
            return node;
        };
        let (head, tail) = rest.run.cut(at_blocks);
        let first = tail.get().first().copied();
        rest.run = tail;
        let (parent, value) = (rest.parent, rest.value.clone());
        let head = self.put(Node { run: head, parent, children: 1, value });
        // `put` has counted the new node as one more child of `parent`, but it replaces `node`.
        if let Some(parent) = self.get_mut(parent) {
            parent.children -= 1;
        }
        if let Some(rest) = self.get_mut(node) {
            rest.parent = head;
        }
        self.child_of.extend(first.map(|first| ((head, first), node)));
        head
    }

    /// Drops a node without children, and its ancestors of which that becomes true, as long as
    /// `unused` says so.
    pub fn drop_unused(&mut self, mut node: NodeId, unused: impl Fn(&T) -> bool) {
        while let Some(gone) = self.nodes.get_mut(node as usize) {
            // Dropped ones are empty.
            if gone.has_children() || gone.blocks() == 0 || !unused(&gone.value) {
                return;
            }
            let parent = std::mem::replace(&mut gone.parent, ROOT);
            let run = std::mem::replace(&mut gone.run, Run { all: Arc::default(), part: 0..0, last: 0 });
            gone.value = T::default();
            self.blocks -= run.part.len();
            if let Some(first) = run.get().first() {
                self.child_of.remove(&(parent, *first));
            }
            self.free.push(node);
            if let Some(parent) = self.get_mut(parent) {
                parent.children -= 1;
            }
            node = parent;
        }
    }

    /// Finds a place for a node, and makes it a child of its parent.
    fn put(&mut self, node: Node<T>) -> NodeId {
        let (parent, first) = (node.parent, node.run.get().first().copied());
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.places().end,
        };
        match self.get_mut(id) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        if let Some(parent) = self.get_mut(parent) {
            parent.children += 1;
        }
        self.child_of.extend(first.map(|first| ((parent, first), id)));
        id
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prompt(blocks: &[u64]) -> Arc<[u64]> {
        blocks.into()
    }

    /// The blocks along a way, node by node.
    fn way(chains: &Chains<u8>, blocks: &[u64]) -> Vec<Vec<u64>> {
        chains
            .along(blocks)
            .map(|step| chains.get(step.node).unwrap().run.get()[..step.blocks].to_vec())
            .collect()
    }

    #[test]
    fn prompts_part_where_they_differ_and_end() {
        let mut chains = Chains::<u8>::default();
        let first = chains.reach(&prompt(&[1, 2, 3, 4]), 9);
        chains.get_mut(first).unwrap().value = 7;
        assert_eq!(way(&chains, &[1, 2, 5]), [vec![1, 2]]);
        let second = chains.reach(&prompt(&[1, 2, 5]), 3);
        assert_eq!(chains.reach(&prompt(&[1, 2, 3, 4]), 4), first, "it is where it was");
        assert_eq!(way(&chains, &[1, 2, 3, 4, 9]), [vec![1, 2], vec![3, 4]]);
        let values = chains.along(&[1, 2, 5]).map(|step| chains.get(step.node).unwrap().value);
        assert_eq!(values.collect::<Vec<_>>(), [7, 0], "the part before has the value of the whole");
        let shared = chains.reach(&prompt(&[1, 2, 3]), 2);
        assert_eq!(chains.get(second).unwrap().parent(), shared);
        assert!(chains.get(shared).unwrap().has_children() && !chains.get(second).unwrap().has_children());
        assert_eq!(chains.reach(&prompt(&[]), 5), ROOT);
        assert_eq!(chains.blocks(), 5);
    }

    #[test]
    fn unused_blocks_are_dropped_up_to_the_branch() {
        let mut chains = Chains::<u8>::default();
        let first = chains.reach(&prompt(&[1, 2, 3]), 3);
        let second = chains.reach(&prompt(&[1, 2, 4]), 3);
        chains.drop_unused(first, |_| true);
        chains.drop_unused(first, |_| true);
        assert_eq!((chains.blocks(), way(&chains, &[1, 2, 3])), (3, vec![vec![1, 2]]));
        chains.drop_unused(second, |_| true);
        assert_eq!((chains.blocks(), chains.child_of.len(), chains.free.len()), (0, 0, 3));
    }

    #[test]
    fn a_small_part_does_not_keep_the_whole_prompt() {
        let long: Arc<[u64]> = (0..1000).collect();
        let mut chains = Chains::<u8>::default();
        chains.reach(&long, 10);
        assert_eq!(Arc::strong_count(&long), 1);
        let node = chains.reach(&long, 1000);
        assert_eq!(Arc::strong_count(&long), 2);
        chains.cut(node, 100);
        assert_eq!(Arc::strong_count(&long), 2, "shared by the longer part alone");
    }

    proptest! {
        /// Against the set of all beginnings.
        #[test]
        fn knows_what_was_entered(prompts in proptest::collection::vec(proptest::collection::vec(0u64..3, 0..8), 1..20)) {
            let mut chains = Chains::<u8>::default();
            let mut known = std::collections::BTreeSet::new();
            // A block's hash tells all that is before it.
            let chained = |prompt: &[u64]| (1..=prompt.len()).map(|n| prompt[..n].iter().fold(7, |h, &it| h * 31 + it)).collect::<Vec<u64>>();
            for blocks in &prompts {
                let blocks = chained(blocks);
                let leaf = chains.reach(&prompt(&blocks), blocks.len());
                prop_assert_eq!(chains.along(&blocks).last().map_or(ROOT, |step| step.node), leaf);
                known.extend(blocks);
                prop_assert_eq!(chains.blocks(), known.len());
            }
            for blocks in &prompts {
                let blocks = chained(blocks);
                prop_assert_eq!(way(&chains, &blocks).concat(), blocks);
            }
            for node in chains.places() {
                chains.drop_unused(node, |_| true);
            }
            prop_assert_eq!((chains.blocks(), chains.child_of.len(), chains.free.len()), (0, 0, chains.nodes.len()));
        }
    }
}
