//! The tests that look at the rows of each scheme.

use super::{hashes, schemes};
use crate::vectors_keys::{ascend, stores};

/// A scheme, how many rows of it `tests/vectors` has, and the tests that compare what a row of it
/// expects.
type Entry = (&'static str, usize, &'static [fn()]);

/// All schemes that there are.
pub(super) const SCHEMES: &[Entry] = &[
    (
        "ascend_011_mooncake_store_v1",
        6,
        &[
            hashes::the_first_ascend_store,
            schemes::the_first_ascend_store_and_its_keys,
            ascend::ascend_store_v1_keys,
        ],
    ),
    ("ascend_store", 87, &[hashes::hashes_behind_ascend_store_keys, ascend::ascend_store_keys_and_lookups]),
    ("ascend_store_fmt", 20, &[ascend::ascend_store_formats]),
    ("ascend_store_groups", 11, &[ascend::ascend_store_groups]),
    ("ascend_store_gva", 8, &[ascend::ascend_layerwise_memcache_keys]),
    ("ascend_yuanrong_normalize", 3, &[ascend::yuanrong_rewrites]),
    ("ems_chain", 13, &[hashes::ems_chains, schemes::ems_numbers]),
    ("ems_lookup_pickle", 1, &[hashes::ems_lookups_as_pickles]),
    ("ems_tuple", 12, &[hashes::ems_chains]),
    ("libstdcxx_hash_string_view_16", 1, &[stores::ucm_paths]),
    (
        "lmcache_engine_key",
        43,
        &[hashes::lmcache_in_the_engine, schemes::lmcache_chunks, stores::lmcache_engine_keys],
    ),
    ("lmcache_mm", 5, &[hashes::lmcache_in_its_server]),
    (
        "lmcache_mp",
        9,
        &[
            hashes::lmcache_in_its_server,
            schemes::lmcache_chunks,
            schemes::keys_of_an_lmcache_prompt,
            stores::lmcache_mp_keys_and_file_names,
        ],
    ),
    ("py_int_hash", 1, &[hashes::python_hashes]),
    ("py_str_hash", 12, &[hashes::python_hashes]),
    ("py_tuple_hash", 5, &[hashes::python_hashes]),
    ("ucm_block_id", 62, &[hashes::ucm_block_ids, schemes::ucm_ids]),
    ("ucm_path_ds3fs", 1, &[stores::ucm_paths]),
    ("ucm_path_nfsstore_legacy", 2, &[stores::ucm_paths]),
    ("ucm_path_pcstore", 2, &[stores::ucm_paths]),
    ("ucm_path_pcstore_noshard", 2, &[stores::ucm_paths]),
    ("ucm_path_posix", 2, &[stores::ucm_paths]),
    ("ucm_path_posix_noshard", 2, &[stores::ucm_paths]),
    ("vllm_block_hash", 278, &[hashes::vllm_block_hashes, schemes::vllm]),
    ("vllm_group_list", 7, &[hashes::vllm_names_of_coarser_blocks]),
    ("vllm_kv_event_msgpack", 32, &[hashes::hashes_in_kv_events]),
    ("vllm_mooncake_store_fmt", 3, &[stores::mooncake_store_formats]),
    ("vllm_mooncake_store_ws", 9, &[stores::mooncake_store_ranks_and_groups]),
    ("vllm_none_hash", 34, &[hashes::vllm_chains_begin_where_the_seed_says]),
    ("vllm_with_group_id", 3, &[hashes::vllm_names_of_coarser_blocks]),
];
