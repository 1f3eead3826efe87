//! The rows of facts about connectors' keys.

use super::{BlockScale, Connector, Preset};
use crate::kvhash::Release;
use crate::kvhash::keys::groups::GroupHash;
use crate::kvhash::keys::ranks::{AskRule, RankRule};

const NEWEST: Release = Release::new(u16::MAX, 0, 0);

const fn v(minor: u16, patch: u16) -> Release {
    Release::new(0, minor, patch)
}

/// vllm-ascend 0.13: the lookup forgets shares above 0 in later stages.
const ASCEND_0_13: Preset = Preset {
    name: "ascend-0.13",
    connector: Connector::AscendStore,
    since: v(13, 0).rc(1),
    until: v(13, u16::MAX),
    build: None,
    whole: "{model}@pcp{pcp}@dcp{dcp}@head_or_tp_rank:{head}@pp_rank:{pp}@{hash}",
    layers: Some("{model}@pcp{pcp}@dcp{dcp}@head_or_tp_rank:{head}@{hash}@{layer}"),
    gva: None,
    shared: None,
    ranks: RankRule::Ascend { pcp_in_key: true },
    asks: AskRule::OwnContextHead0,
    group_hash: GroupHash::Last,
    family_scales: false,
    scale: BlockScale::PcpDcp,
    unit: BlockScale::One,
    peer_tp: false,
    prefix: false,
    store_tp: false,
    yuanrong_max_chars: None,
    global_layers: false,
    leaves_a_block: false,
    hash_bytes: 32,
};

const ASCEND_0_14: Preset = Preset {
    name: "ascend-0.14",
    since: v(14, 0).rc(0),
    until: v(19, 0),
    asks: AskRule::OwnContext,
    ..ASCEND_0_13
};

/// Yuanrong rewrites keys.
const ASCEND_0_19_1: Preset = Preset {
    name: "ascend-0.19.1",
    since: v(19, 1).rc(0),
    until: v(20, 1),
    yuanrong_max_chars: Some(255),
    ..ASCEND_0_14
};

/// Groups come into the key.
const ASCEND_0_20_2: Preset = Preset {
    name: "ascend-0.20.2",
    since: v(20, 2).rc(0),
    until: v(20, u16::MAX),
    whole: "{model}@pcp{pcp}@dcp{dcp}@head_or_tp_rank:{head}@pp_rank:{pp}@group:{group}@cache_role:{role}\
            @cache_family:{family}@{hash}",
    layers: Some(
        "{model}@pcp{pcp}@dcp{dcp}@head_or_tp_rank:{head}@group:{group}@cache_role:{role}@cache_family:{family}@{hash}\
         @{layer}",
    ),
    group_hash: GroupHash::Concat,
    family_scales: true,
    ..ASCEND_0_19_1
};

/// The layer moves before the hash; coarse blocks get a digest.
const ASCEND_0_21: Preset = Preset {
    name: "ascend-0.21",
    since: v(21, 0).rc(0),
    until: v(22, u16::MAX),
    layers: Some(
        "{model}@pcp{pcp}@dcp{dcp}@head_or_tp_rank:{head}@group:{group}@cache_role:{role}@cache_family:{family}\
         @layer_id:{layer}@{hash}",
    ),
    group_hash: GroupHash::Sha256V1,
    ..ASCEND_0_20_2
};

/// MemCache gets layer-wise keys.
const ASCEND_0_23: Preset = Preset {
    name: "ascend-0.23",
    since: v(23, 0).rc(0),
    until: v(23, u16::MAX),
    gva: Some("{model}[@{group}]@{hash}@{head}@pcp{pcp}@dcp{dcp}@pp{pp}"),
    yuanrong_max_chars: Some(1024),
    ..ASCEND_0_21
};

/// Producers and consumers may differ in tp.
const ASCEND_0_24: Preset = Preset {
    name: "ascend-0.24",
    since: v(24, 0).rc(0),
    until: v(25, 0),
    gva: Some("{model}[@{group}]@{hash}@{head}"),
    peer_tp: true,
    ..ASCEND_0_23
};

/// A coarse block has the hash of its last part.
const ASCEND_0_25_1: Preset = Preset {
    name: "ascend-0.25.1",
    since: v(25, 1).rc(0),
    until: v(25, u16::MAX),
    group_hash: GroupHash::Last,
    ..ASCEND_0_24
};

const ASCEND_0_26: Preset = Preset {
    name: "ascend-0.26",
    since: v(26, 0).rc(0),
    until: v(26, u16::MAX),
    whole: "{model}@pcp:{pcp}@dcp:{dcp}@head_or_tp_rank:{head}@pp_rank:{pp}@group:{group}@cache_role:{role}\
            @cache_family:{family}@{hash}",
    layers: Some(
        "{model}@pcp:{pcp}@dcp:{dcp}@head_or_tp_rank:{head}@group:{group}@cache_role:{role}@cache_family:{family}\
         @layer_id:{layer}@{hash}",
    ),
    asks: AskRule::OwnPrefillContext,
    ..ASCEND_0_25_1
};

/// The main branch of August 2026, which has no number: the range is empty.
const ASCEND_MAIN: Preset = Preset {
    name: "ascend-main-2026-08",
    since: v(0, 0),
    until: v(0, 0),
    build: Some("main-2026-08"),
    family_scales: false,
    yuanrong_max_chars: None,
    ..ASCEND_0_25_1
};

/// No prefill-context-parallel rank any more.
const ASCEND_0_30: Preset = Preset {
    name: "ascend-0.30",
    since: v(30, 0).rc(2),
    until: NEWEST,
    whole: "{model}@dcp:{dcp}@head_or_tp_rank:{head}@pp_rank:{pp}@group:{group}@cache_role:{role}\
            @cache_family:{family}@{hash}",
    layers: Some(
        "{model}@dcp:{dcp}@head_or_tp_rank:{head}@group:{group}@cache_role:{role}@cache_family:{family}\
         @layer_id:{layer}@{hash}",
    ),
    gva: Some("{model}[@{group}][@pp{pp}]@{hash}@{head}"),
    shared: Some("{model}[@{namespace}@pp_rank:{pp}]@{hash}@{head}"),
    ranks: RankRule::Ascend { pcp_in_key: false },
    family_scales: false,
    scale: BlockScale::Dcp,
    yuanrong_max_chars: None,
    global_layers: true,
    ..ASCEND_0_26
};

/// The store of MooncakeConnectorStoreV1, which is not the later package `ascend_store/v1`.
const ASCEND_LEGACY_0_10: Preset = Preset {
    name: "ascend-legacy-0.10",
    connector: Connector::AscendStoreV1,
    since: v(10, 0).rc(0),
    until: v(11, u16::MAX),
    whole: "{full_model}@{world}@{rank}@{hash}",
    layers: Some("{full_model}@{world}@{rank}@{hash}@{layer}"),
    ranks: RankRule::World,
    asks: AskRule::All,
    scale: BlockScale::One,
    ..ASCEND_0_13
};

const MOONCAKE_0_22: Preset = Preset {
    name: "mooncake-store-0.22",
    connector: Connector::MooncakeStore,
    since: v(22, 0).rc(0),
    until: v(23, u16::MAX),
    whole: "[{prefix}@]{model}{namespace}@tp_rank:{shard}@pcp{pcp}@dcp{dcp}@pp_rank:{pp}@group:{group}@{hash}",
    layers: None,
    ranks: RankRule::Upstream { per_group: false, dcp_forces_tp: false },
    asks: AskRule::SharesFirst,
    group_hash: GroupHash::Concat,
    scale: BlockScale::One,
    leaves_a_block: true,
    ..ASCEND_0_13
};

const MOONCAKE_0_24: Preset = Preset {
    name: "mooncake-store-0.24",
    since: v(24, 0).rc(0),
    until: v(29, u16::MAX),
    ranks: RankRule::Upstream { per_group: false, dcp_forces_tp: true },
    group_hash: GroupHash::Last,
    prefix: true,
    ..MOONCAKE_0_22
};

const MOONCAKE_0_30: Preset = Preset {
    name: "mooncake-store-0.30",
    since: v(30, 0).rc(0),
    until: NEWEST,
    ranks: RankRule::Upstream { per_group: true, dcp_forces_tp: true },
    store_tp: true,
    ..MOONCAKE_0_24
};

/// UCM's Posix store; ids are 16 bytes, and all versions spell paths alike.
const UCM_POSIX: Preset = Preset {
    name: "ucm-posix",
    connector: Connector::Ucm,
    since: v(0, 0),
    until: NEWEST,
    whole: "{root}/{hash:first3}/{hash}",
    layers: None,
    ranks: RankRule::One,
    asks: AskRule::All,
    scale: BlockScale::One,
    unit: BlockScale::PcpDcp,
    hash_bytes: 16,
    ..ASCEND_0_13
};

/// UCM with the setting `data_dir_shard_bytes = 0`.
const UCM_POSIX_FLAT: Preset = Preset { name: "ucm-posix-flat", whole: "{root}/data/{hash}", ..UCM_POSIX };

/// `UcmNfsStore` in the V1 factory.
const UCM_PC: Preset = Preset { name: "ucm-pcstore", whole: "{root}/{hash:first8}/{hash}", ..UCM_POSIX };

/// UCM with the setting `shard_data_dir = false`.
const UCM_PC_FLAT: Preset = Preset { name: "ucm-pcstore-flat", whole: "{root}/data/{hash}", ..UCM_POSIX };

const UCM_DS3FS: Preset = Preset { name: "ucm-ds3fs", whole: "{root}/{hash:first2}/{hash}", ..UCM_POSIX };

/// The NFS store of the old API.
const UCM_NFS: Preset =
    Preset { name: "ucm-nfs", whole: "{root}/data/{hash:le0}/{hash:le1}.dat", ..UCM_POSIX };

/// UCM 0.7 pipelines over Mooncake; lookups ask for shard 0.
const UCM_MOONCAKE: Preset = Preset { name: "ucm-mooncake", whole: "{hash}_{shard}", ..UCM_POSIX };

const LMCACHE: Preset = Preset {
    name: "lmcache",
    connector: Connector::LmcacheEngine,
    since: v(4, 0),
    until: NEWEST,
    whole: "{full_model}@{world}@{rank}@{hash:u64}@{dtype}{tags}",
    layers: Some("{full_model}@{world}@{rank}@{hash:u64}@{dtype}@{layer}{tags}"),
    ranks: RankRule::LmcacheEngine,
    asks: AskRule::All,
    scale: BlockScale::One,
    hash_bytes: 8,
    ..ASCEND_0_13
};

/// `LMCACHE_PRE_CACHING_HASH_ALGORITHM=builtin`, the default: hashes are signed.
const LMCACHE_BUILTIN: Preset = Preset {
    name: "lmcache-builtin",
    whole: "{full_model}@{world}@{rank}@{hash:i64}@{dtype}{tags}",
    layers: Some("{full_model}@{world}@{rank}@{hash:i64}@{dtype}@{layer}{tags}"),
    ..LMCACHE
};

/// LMCache 0.3 (LMCache-Ascend 0.3.12): the storage format comes first.
const LMCACHE_0_3: Preset = Preset {
    name: "lmcache-0.3",
    since: v(3, 0),
    until: v(3, u16::MAX),
    whole: "vllm@{full_model}@{world}@{rank}@{hash:u64}@{dtype}{tags}",
    layers: Some("vllm@{full_model}@{world}@{rank}@{hash:u64}@{dtype}@{layer}{tags}"),
    ..LMCACHE
};

const LMCACHE_0_3_BUILTIN: Preset = Preset {
    name: "lmcache-0.3-builtin",
    whole: "vllm@{full_model}@{world}@{rank}@{hash:i64}@{dtype}{tags}",
    layers: Some("vllm@{full_model}@{world}@{rank}@{hash:i64}@{dtype}@{layer}{tags}"),
    ..LMCACHE_0_3
};

const LMCACHE_MP: Preset = Preset {
    name: "lmcache-mp",
    connector: Connector::LmcacheMp,
    whole: "{full_model}@{kv_rank:08x}@{group:x}@{hash}[@{salt}]",
    layers: None,
    ranks: RankRule::LmcacheMp,
    hash_bytes: 32,
    ..LMCACHE
};

/// File names of the server's file-system adapter; the store must be a file store.
const LMCACHE_MP_FILES: Preset = Preset {
    name: "lmcache-mp-files",
    whole: "{full_model}@0x{kv_rank:08x}@{group:x}@{hash}[@{salt}]",
    ..LMCACHE_MP
};

pub(super) const ALL: [&Preset; 28] = [
    &ASCEND_0_13,
    &ASCEND_0_14,
    &ASCEND_0_19_1,
    &ASCEND_0_20_2,
    &ASCEND_0_21,
    &ASCEND_0_23,
    &ASCEND_0_24,
    &ASCEND_0_25_1,
    &ASCEND_0_26,
    &ASCEND_MAIN,
    &ASCEND_0_30,
    &ASCEND_LEGACY_0_10,
    &MOONCAKE_0_22,
    &MOONCAKE_0_24,
    &MOONCAKE_0_30,
    &UCM_POSIX,
    &UCM_POSIX_FLAT,
    &UCM_PC,
    &UCM_PC_FLAT,
    &UCM_DS3FS,
    &UCM_NFS,
    &UCM_MOONCAKE,
    &LMCACHE,
    &LMCACHE_BUILTIN,
    &LMCACHE_0_3,
    &LMCACHE_0_3_BUILTIN,
    &LMCACHE_MP,
    &LMCACHE_MP_FILES,
];
