use std::collections::HashMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::super::store::ReplicaPlace;
use super::*;
use crate::kvhash::keys::{Ask, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};

const BLOCK_TOKENS: u32 = 16;

/// A store in memory that notes how much it was asked.
struct Shelf {
    objects: HashMap<String, Placement>,
    batch_keys: usize,
    exchanges: Mutex<Vec<usize>>,
}

impl KeyStore for Shelf {
    fn name(&self) -> &'static str {
        "shelf"
    }

    fn batch_keys(&self) -> usize {
        self.batch_keys
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        self.exchanges.lock().unwrap().push(indexes.len());
        let find = |index: &u32| self.objects.get(keys.get(*index as usize).unwrap()).cloned();
        let found = indexes.iter().map(|index| find(index).unwrap_or_default()).collect();
        Box::pin(async { Ok(found) })
    }
}

/// The keys of a prompt of `blocks` blocks, for `tp` ranks.
fn keys(blocks: u32, tp: u32) -> KeyBatch {
    let shape = KvShape { block_tokens: BLOCK_TOKENS, tp, kv_heads: tp, ..KvShape::default() };
    let preset = Preset::named("mooncake-store-0.30").unwrap();
    let profile = KeyProfile::new(&KeyConfig::new(preset, "/models/m", shape)).unwrap();
    let hashes: Vec<[u8; 32]> =
        (0..blocks).map(|n| std::array::from_fn(|i| (n >> (8 * (i % 4))) as u8)).collect();
    let mut batch = KeyBatch::default();
    // One block more than a hit may have: this connector leaves the last token to be computed.
    let prompt = PromptBlocks::new(&hashes, blocks * BLOCK_TOKENS);
    profile.keys_of_prompt(&prompt, Ask::Every, &mut batch).unwrap();
    assert_eq!(batch.len(), (blocks * tp) as usize);
    batch
}

fn place(host: &str, tier: Tier) -> ReplicaPlace {
    ReplicaPlace { host: host.into(), tier }
}

/// A shelf with the keys for which `of` gives a placement, by block and rank.
fn shelf(keys: &KeyBatch, batch_keys: usize, of: impl Fn(u32, u32) -> Placement) -> Keyed<Shelf> {
    let mut ranks: HashMap<u32, u32> = HashMap::new();
    let mut objects = HashMap::new();
    for index in 0..keys.len() {
        let block = keys.start_tokens(index).unwrap() / BLOCK_TOKENS;
        let rank = ranks.entry(block).or_default();
        let placement = of(block, *rank);
        *rank += 1;
        if placement.present {
            objects.insert(keys.get(index).unwrap().to_owned(), placement);
        }
    }
    Keyed::new(Shelf { objects, batch_keys, exchanges: Mutex::default() })
}

fn ask(pool: &Keyed<Shelf>, keys: KeyBatch) -> Presence {
    let question = Question { keys: Arc::new(keys), ..Question::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(pool.lookup(&question)).unwrap()
}

fn present(there: bool) -> Placement {
    if there { Placement::somewhere() } else { Placement::default() }
}

#[test]
fn a_block_counts_when_all_its_ranks_have_it() {
    let keys = keys(8, 4);
    let whole = shelf(&keys, 1024, |_, _| present(true));
    let found = ask(&whole, keys.clone());
    assert_eq!((found.hit_tokens, found.whole), (128, true));
    let gap = shelf(&keys, 1024, |block, rank| present((block, rank) != (5, 2)));
    let found = ask(&gap, keys.clone());
    assert_eq!((found.hit_tokens, found.sampled, found.whole), (5 * BLOCK_TOKENS, false, false));
    let nothing = shelf(&keys, 1024, |_, _| present(false));
    assert_eq!(ask(&nothing, keys), Presence::default());
    assert!(ask(&nothing, KeyBatch::default()).whole, "nothing is to be there");
}

#[test]
fn hosts_are_told_apart_with_the_slowest_tier_of_what_they_have() {
    let keys = keys(6, 2);
    let pool = shelf(&keys, 1024, |block, rank| Placement {
        present: block < 5,
        places: match (block, rank) {
            (0 | 1, _) => [place("a", Tier::Memory), place("b", Tier::Memory)].into_iter().collect(),
            (2, 1) => [place("b", Tier::Disk)].into_iter().collect(),
            _ => [place("b", Tier::Memory), place("b", Tier::Disk)].into_iter().collect(),
        },
    });
    let near =
        |host: &str, tier, blocks: u32| Near { host: host.into(), tier, tokens: blocks * BLOCK_TOKENS };
    let found = ask(&pool, keys);
    assert_eq!(found.hit_tokens, 5 * BLOCK_TOKENS);
    assert_eq!(found.near[..], [near("b", Tier::Disk, 5), near("a", Tier::Memory, 2)]);
}

#[test]
fn a_million_tokens_take_a_few_small_questions() {
    let blocks = 65_536;
    let keys = keys(blocks, 1);
    for (there, most_exchanges) in [(0, 3), (1, 3), (777, 3), (65_535, 3), (65_536, 1)] {
        let pool = shelf(&keys, 1024, |block, _| present(block < there));
        let found = ask(&pool, keys.clone());
        assert_eq!((found.hit_tokens, found.sampled), (there * BLOCK_TOKENS, true), "{there} blocks");
        let exchanges = pool.store.exchanges.lock().unwrap();
        assert!(
            exchanges.len() <= most_exchanges && exchanges.iter().all(|keys| *keys <= 1024),
            "{exchanges:?}"
        );
    }
}

#[test]
fn a_store_that_answers_too_little_is_not_believed() {
    struct Short;
    impl KeyStore for Short {
        fn name(&self) -> &'static str {
            "short"
        }
        fn batch_keys(&self) -> usize {
            1024
        }
        fn locate<'a>(&'a self, _: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
            Box::pin(async { Ok(vec![Placement::somewhere(); indexes.len() - 1]) })
        }
    }
    let question = Question { keys: Arc::new(keys(4, 1)), ..Question::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = runtime.block_on(Keyed::new(Short).lookup(&question));
    assert_eq!(refused, Err(PoolError::Protocol("3 answers to 4 keys".to_owned())));
}

proptest! {
    #[test]
    fn samples_find_the_same_end_as_asking_for_all(
        blocks in 1..300_u32, there in 0..300_u32, tp in 1..4_u32, batch_keys in 1..64_usize,
    ) {
        let keys = keys(blocks, tp);
        let pool = shelf(&keys, batch_keys, |block, _| present(block < there));
        let found = ask(&pool, keys.clone());
        prop_assert_eq!(found.hit_tokens, there.min(blocks) * BLOCK_TOKENS);
        let exchanges = pool.store.exchanges.lock().unwrap();
        prop_assert!(exchanges.iter().all(|asked| *asked <= batch_keys));
    }
}
