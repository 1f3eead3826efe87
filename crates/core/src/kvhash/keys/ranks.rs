//! The ranks of an engine that write a block, and those of them that the engine's own lookup asks
//! about.

use super::groups::{GroupKind, KvGroup};

/// Parallel shape of the engines that fill the pool, and what their cache looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Tensor-parallel size, in ranks.
    pub tp: u32,
    /// Number of pipeline stages.
    pub pp: u32,
    /// Prefill-context-parallel size, in ranks.
    pub pcp: u32,
    /// Decode-context-parallel size, in ranks of the tensor-parallel group.
    pub dcp: u32,
    /// KV heads of the whole model; not read with `mla`.
    pub kv_heads: u32,
    /// Latent attention: all ranks hold the same KV.
    pub mla: bool,
    /// Tensor-parallel size of the other side, where the connector was told one (`decode_tp_size`
    /// on a producer, `prefill_tp_size` on a consumer).
    pub peer_tp: Option<u32>,
    /// Shards of a shared store (`store_tp_size`).
    pub store_tp: Option<u32>,
    /// Layers of one pipeline stage, for layer-wise keys.
    pub layers: u32,
    /// The engine's block size, in tokens.
    pub block_tokens: u32,
    /// Tokens of one block hash, where it is not the block of the key.
    pub hash_tokens: Option<u32>,
    /// KV-cache groups of a hybrid model; empty means one group of `block_tokens`.
    pub groups: Vec<KvGroup>,
}

/// The ranks that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankRule {
    /// AscendStore: ranks that hold the same heads share a key. `pcp_in_key` until 0.26.
    Ascend {
        /// True if context-parallel ranks have keys of their own.
        pcp_in_key: bool,
    },
    /// The upstream connector, MooncakeStoreConnector. Before 0.30 one factor serves all groups;
    /// DCP forces `tp_rank` from 0.24 on.
    Upstream {
        /// Each group has its own factor (0.30).
        per_group: bool,
        /// DCP above 1 takes the tensor-parallel rank itself.
        dcp_forces_tp: bool,
    },
    /// Every rank of the world (vllm-ascend 0.11).
    World,
    /// LMCache in the engine: every worker, with MLA only worker 0 of a world of 1.
    LmcacheEngine,
    /// LMCache's server: world tp x pp, with MLA pp x dcp.
    LmcacheMp,
    /// One key per block (UCM's scheduler asks for rank 0 only).
    One,
}

/// Conditions that the engine's own lookup has for the keys that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskRule {
    /// All of them, stage by stage.
    All,
    /// Shares of the first stage, and share 0 of the later ones (vllm-ascend 0.13).
    OwnContextHead0,
    /// All shares of all stages, with context-parallel ranks 0 only (vllm-ascend 0.18 to 0.25).
    OwnContext,
    /// As before with all decode-context-parallel ranks (vllm-ascend from 0.26).
    OwnPrefillContext,
    /// All, shares outside and stages inside (upstream).
    SharesFirst,
}

/// Place where a key comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Share of the KV heads, or the replica rank.
    pub head: u32,
    /// First tensor-parallel rank with this key.
    pub tp: u32,
    /// Index of the pipeline stage.
    pub pp: u32,
    /// Rank of prefill context parallelism.
    pub pcp: u32,
    /// Rank of decode context parallelism.
    pub dcp: u32,
    /// Global rank or worker.
    pub rank: u32,
    /// Index of the group.
    pub group: u32,
    /// Index of the layer.
    pub layer: u32,
}

impl Default for KvShape {
    fn default() -> Self {
        Self {
            tp: 1,
            pp: 1,
            pcp: 1,
            dcp: 1,
            kv_heads: 1,
            mla: false,
            peer_tp: None,
            store_tp: None,
            layers: 1,
            block_tokens: 128,
            hash_tokens: None,
            groups: Vec::new(),
        }
    }
}

impl KvShape {
    /// Ranks that share one KV head.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        let heads = if self.mla { 1 } else { self.kv_heads };
        (self.tp / heads.max(1)).max(1)
    }

    /// Ranks of one instance as the rule counts them.
    #[must_use]
    pub fn world(&self, rule: RankRule) -> u32 {
        match (rule, self.mla) {
            (RankRule::LmcacheEngine, true) => 1,
            (RankRule::LmcacheMp, true) => self.pp.saturating_mul(self.dcp),
            _ => self.tp.saturating_mul(self.pp),
        }
    }

    /// The places that write a block of group `index`, in (pp, pcp, tp) order; several ranks may
    /// name the same.
    #[must_use]
    pub fn places(&self, rule: RankRule, index: u32, kind: GroupKind) -> Vec<Place> {
        match rule {
            RankRule::Ascend { pcp_in_key } => self.each(if pcp_in_key { self.pcp } else { 1 }, |at, out| {
                self.ascend_shares(at.tp, kind, |head| out.push(Place { head, group: index, ..at }));
            }),
            RankRule::Upstream { per_group, dcp_forces_tp } => {
                self.each(self.pcp, |at, out| match self.store_tp {
                    Some(shards) if kind != GroupKind::Mamba => {
                        out.extend((0..shards).map(|head| Place { head, dcp: 0, group: index, ..at }));
                    }
                    _ => {
                        let by_rank =
                            (dcp_forces_tp && self.dcp > 1) || (per_group && kind == GroupKind::Mamba);
                        let replicas =
                            if per_group && kind == GroupKind::Mla { self.tp } else { self.replicas() };
                        let head = if by_rank { at.tp } else { at.tp / replicas };
                        out.push(Place { head, group: index, ..at });
                    }
                })
            }
            RankRule::World | RankRule::LmcacheEngine | RankRule::LmcacheMp => {
                (0..self.world(rule)).map(|rank| Place { rank, group: index, ..Place::default() }).collect()
            }
            RankRule::One => vec![Place { group: index, ..Place::default() }],
        }
    }

    /// Calls `add` for every rank.
    fn each(&self, pcp: u32, add: impl Fn(Place, &mut Vec<Place>)) -> Vec<Place> {
        let mut out = Vec::new();
        for pp in 0..self.pp {
            for pcp in 0..pcp {
                for tp in 0..self.tp {
                    add(Place { tp, pp, pcp, dcp: tp % self.dcp.max(1), ..Place::default() }, &mut out);
                }
            }
        }
        out
    }

    fn ascend_shares(&self, tp_rank: u32, kind: GroupKind, mut add: impl FnMut(u32)) {
        match self.peer_tp {
            _ if kind == GroupKind::Mamba => add(tp_rank),
            Some(peer) => {
                let each = self.tp.max(peer) / self.tp;
                (tp_rank * each..(tp_rank + 1) * each).for_each(add);
            }
            None => add(tp_rank / self.replicas()),
        }
    }
}

impl AskRule {
    /// True if the engine asks for this place.
    #[must_use]
    pub fn asks(self, at: &Place) -> bool {
        match self {
            Self::All | Self::SharesFirst => true,
            Self::OwnContextHead0 => at.pcp == 0 && at.dcp == 0 && (at.pp == 0 || at.head == 0),
            Self::OwnContext => at.pcp == 0 && at.dcp == 0,
            Self::OwnPrefillContext => at.pcp == 0,
        }
    }

    /// Place where the engine asks for this place: places sort by it.
    #[must_use]
    pub fn order(self, at: &Place) -> [u32; 4] {
        match self {
            Self::SharesFirst => [at.group, at.head, at.pp, at.dcp],
            _ => [at.group, at.pp, at.dcp, at.head],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASCEND: RankRule = RankRule::Ascend { pcp_in_key: true };

    fn heads(shape: &KvShape, kind: GroupKind) -> Vec<u32> {
        shape.places(ASCEND, 0, kind).iter().map(|p| p.head).collect()
    }

    #[test]
    fn ranks_with_the_same_heads_share_a_key_except_for_states() {
        let shape = KvShape { tp: 4, kv_heads: 2, ..KvShape::default() };
        assert_eq!(heads(&shape, GroupKind::Full), [0, 0, 1, 1]);
        assert_eq!(heads(&shape, GroupKind::Mamba), [0, 1, 2, 3]);
        assert_eq!(heads(&KvShape { mla: true, ..shape }, GroupKind::Full), [0; 4]);
    }

    #[test]
    fn a_rank_writes_for_all_ranks_of_a_larger_peer() {
        let shape = KvShape { tp: 2, kv_heads: 8, peer_tp: Some(8), ..KvShape::default() };
        assert_eq!(heads(&shape, GroupKind::Full), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(heads(&KvShape { peer_tp: Some(1), ..shape }, GroupKind::Full), [0, 1]);
    }

    #[test]
    fn upstream_counts_heads_per_group_from_0_30() {
        let shape = KvShape { tp: 4, kv_heads: 4, ..KvShape::default() };
        let heads = |per_group, kind| {
            let rule = RankRule::Upstream { per_group, dcp_forces_tp: true };
            shape.places(rule, 0, kind).iter().map(|p| p.head).collect::<Vec<_>>()
        };
        assert_eq!(heads(true, GroupKind::Mla), [0; 4]);
        assert_eq!(heads(false, GroupKind::Mla), [0, 1, 2, 3]);
    }
}
