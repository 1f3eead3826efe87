//! The pool: blocks that prefillers have stored outside of their accelerators, and who can restore
//! them how fast.

use smallvec::SmallVec;

use super::cache::Cache;
use super::costs::Costs;
use super::holders::Holders;
use super::trace::BLOCK_TOKENS;
use super::{Cluster, Seconds};
use crate::route::{LaneId, PoolHits};

/// The pool that the prefillers share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolKind {
    /// None: only what a prefiller has in its accelerators is not computed again.
    #[default]
    None,
    /// One for all: every prefiller restores every block, over the network.
    Shared,
    /// One on each host: a prefiller restores what it has stored itself.
    Local,
    /// One on each host, reachable from the others at a fraction of the speed.
    Mixed,
}

/// Factor by which the way to another host of a [`PoolKind::Mixed`] pool is slower than a shared
/// pool's: one link of eight.
const MIXED_SLOWER: f64 = 4.0;

/// A pool's contents.
#[derive(Debug)]
pub struct Store {
    kind: PoolKind,
    /// Blocks that everybody reaches; of a shared pool only.
    shared: Cache,
    /// Blocks on each host; of the others.
    hosts: Holders,
    far_token_s: Seconds,
    near_token_s: Seconds,
}

impl Store {
    /// The cluster's pool, empty.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Store {
        let Costs { pool_tokens, near_token_s, far_token_s, .. } = cluster.costs;
        let host_blocks = pool_tokens / BLOCK_TOKENS;
        let all_blocks = host_blocks.saturating_mul(u32::from(cluster.prefillers));
        let slower = if cluster.pool == PoolKind::Mixed { MIXED_SLOWER } else { 1.0 };
        Store {
            kind: cluster.pool,
            shared: Cache::new(all_blocks),
            hosts: Holders::new(usize::from(cluster.prefillers), host_blocks),
            far_token_s: far_token_s * slower,
            near_token_s,
        }
    }

    /// The pool's answer about a prompt, for the gateway.
    #[must_use]
    pub fn hits(&self, blocks: &[u64]) -> PoolHits {
        let mut hits = PoolHits::default();
        match self.kind {
            PoolKind::None => {}
            PoolKind::Shared => hits.anywhere_tokens = tokens(self.shared.leading(blocks)),
            PoolKind::Local | PoolKind::Mixed => {
                let mut near: SmallVec<[(LaneId, u32); 4]> = SmallVec::new();
                self.hosts
                    .each_leading(blocks, |host, blocks| near.push((LaneId(host as u16), tokens(blocks))));
                if self.kind == PoolKind::Mixed {
                    hits.anywhere_tokens = near.iter().map(|(_, tokens)| *tokens).max().unwrap_or(0);
                }
                near.sort_unstable();
                hits.near = near;
            }
        }
        hits
    }

    /// Leading tokens of a prompt that a prefiller has after a restore, if it had `have_tokens`
    /// before, and the seconds that its link takes.
    #[must_use]
    pub fn restore(&self, lane: usize, blocks: &[u64], have_tokens: u32) -> (u32, Seconds) {
        let (near, any) = match self.kind {
            PoolKind::None => (0, 0),
            PoolKind::Shared => (0, tokens(self.shared.leading(blocks))),
            PoolKind::Local => (tokens(self.hosts.leading(lane, blocks)), 0),
            PoolKind::Mixed => (tokens(self.hosts.leading(lane, blocks)), self.hits(blocks).anywhere_tokens),
        };
        let near = near.max(have_tokens);
        let any = any.max(near);
        let near_s = f64::from(near - have_tokens) * self.near_token_s;
        (any, near_s + f64::from(any - near) * self.far_token_s)
    }

    /// A prefiller stored a prompt, or restored it.
    pub fn touch(&mut self, lane: usize, blocks: &[u64]) {
        match self.kind {
            PoolKind::None => {}
            PoolKind::Shared => self.shared.touch(blocks, |_, _| ()),
            PoolKind::Local | PoolKind::Mixed => self.hosts.touch(lane, blocks),
        }
    }

    /// A host is gone, with what only it had. A shared pool keeps copies.
    pub fn lose(&mut self, lane: usize) {
        self.hosts.clear(lane);
    }
}

fn tokens(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(pool: PoolKind) -> Store {
        let mut store = Store::new(&Cluster { prefillers: 2, decoders: 1, pool, ..Cluster::default() });
        store.touch(1, &[1, 2, 3]);
        store
    }

    #[test]
    fn each_kind_reaches_what_it_says() {
        let hits = |pool| {
            let hits = store(pool).hits(&[1, 2, 9]);
            (hits.anywhere_tokens, hits.near.to_vec())
        };
        assert_eq!(hits(PoolKind::None), (0, vec![]));
        assert_eq!(hits(PoolKind::Shared), (1024, vec![]));
        assert_eq!(hits(PoolKind::Local), (0, vec![(LaneId(1), 1024)]));
        assert_eq!(hits(PoolKind::Mixed), (1024, vec![(LaneId(1), 1024)]));

        let restores = |pool| [0, 1].map(|lane| store(pool).restore(lane, &[1, 2, 9], 512).0);
        assert_eq!(restores(PoolKind::None), [512, 512]);
        assert_eq!(restores(PoolKind::Shared), [1024, 1024]);
        assert_eq!(restores(PoolKind::Local), [512, 1024]);
        assert_eq!(restores(PoolKind::Mixed), [1024, 1024]);
    }

    #[test]
    fn far_is_slower_than_near_and_what_is_there_costs_nothing() {
        let mixed = store(PoolKind::Mixed);
        let [far, near] = [0, 1].map(|lane| mixed.restore(lane, &[1, 2], 0).1);
        assert!(far > near && near > 0.0, "{far} {near}");
        assert_eq!(mixed.restore(0, &[1, 2], 1024), (1024, 0.0));
    }

    #[test]
    fn a_lost_host_takes_only_its_own() {
        let mut local = store(PoolKind::Local);
        local.lose(1);
        assert_eq!(local.hits(&[1]), PoolHits::default());
        let mut shared = store(PoolKind::Shared);
        shared.lose(1);
        assert_eq!(shared.hits(&[1]).anywhere_tokens, 512);
    }
}
