use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::kvhash::BlockHash;

fn index(blocks: usize) -> BlockIndex {
    BlockIndex::new(IndexLimits { holders: 8, blocks })
}

fn hash(number: u64) -> BlockHash {
    BlockHash::from(number.to_be_bytes())
}

fn prompt(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
    numbers.into_iter().map(hash).collect()
}

fn stored(hashes: &[u64], medium: Medium, group: Option<u32>) -> Event {
    Event::Stored(Stored { hashes: hashes.to_vec(), medium, group, block_tokens: 16, ..Stored::default() })
}

fn removed(hashes: &[u64], medium: Medium, group: Option<u32>) -> Event {
    Event::Removed(Removed { hashes: hashes.to_vec(), medium, group })
}

/// Leading blocks in HBM, in own memory, and in a pool by what any holder told.
fn of(index: &BlockIndex, holder: HolderId, hashes: &[BlockHash]) -> [u32; 3] {
    let all = index.prefixes(hashes, 16);
    let found = all.holders.iter().find(|it| it.holder == holder);
    found.map_or([0, 0, all.told_blocks], |it| [it.hbm_blocks, it.own_blocks, all.told_blocks])
}

#[test]
fn a_prefix_ends_at_the_first_hole() {
    let mut index = index(100);
    let (a, b) = (index.holder(1, 0).unwrap(), index.holder(2, 0).unwrap());
    index.apply(a, &stored(&[1, 2, 3], Medium::Gpu, Some(0)));
    index.apply(b, &stored(&[1, 3], Medium::Gpu, Some(0)));
    index.apply(b, &stored(&[2], Medium::Cpu, Some(0)));
    let asked = prompt([1, 2, 3, 4]);
    assert_eq!(of(&index, a, &asked), [3, 3, 0]);
    assert_eq!(of(&index, b, &asked), [1, 3, 0]);
    assert_eq!(index.prefixes(&prompt([4, 1]), 16), Prefixes::default());
    assert_eq!(index.prefixes::<u64>(&[], 16), Prefixes::default());
    assert_eq!(index.prefixes(&asked, 32), Prefixes::default(), "blocks of another size");
    assert_eq!(index.block_tokens(a), 16);
}

#[test]
fn a_block_stays_until_the_last_group_and_tier_let_go() {
    let mut index = index(100);
    let a = index.holder(1, 0).unwrap();
    let asked = prompt([1]);
    for group in [0, 1, 9] {
        index.apply(a, &stored(&[1], Medium::Gpu, Some(group)));
    }
    index.apply(a, &stored(&[1], Medium::Cpu, Some(0)));
    index.apply(a, &removed(&[1], Medium::Gpu, Some(0)));
    assert_eq!(of(&index, a, &asked), [1, 1, 0]);
    index.apply(a, &removed(&[1], Medium::Gpu, None));
    assert_eq!(of(&index, a, &asked), [0, 1, 0]);
    index.apply(a, &removed(&[1], Medium::Cpu, Some(0)));
    assert_eq!((of(&index, a, &asked), index.entries()), ([0, 0, 0], 0));
    index.apply(a, &removed(&[1], Medium::Cpu, Some(0)));
    assert_eq!(index.held_blocks(a), (0, 0));
}

#[test]
fn a_block_stays_in_hbm_until_its_last_copy_is_gone() {
    let mut index = index(100);
    let (a, asked) = (index.holder(1, 0).unwrap(), prompt([1, 2]));
    // Two requests computed the same prefix beside each other, and the first one's blocks are
    // evicted.
    index.apply(a, &stored(&[1, 2], Medium::Gpu, Some(0)));
    index.apply(a, &stored(&[1, 2], Medium::Gpu, Some(0)));
    index.apply(a, &removed(&[2], Medium::Gpu, Some(0)));
    index.apply(a, &removed(&[1], Medium::Gpu, Some(0)));
    assert_eq!(of(&index, a, &asked), [2, 2, 0]);
    index.apply(a, &removed(&[2, 1], Medium::Gpu, Some(0)));
    assert_eq!((of(&index, a, &asked), index.entries()), ([0, 0, 0], 0));
    // Older releases name no group; groups that share a place count together.
    for group in [None, None, Some(7), Some(9)] {
        index.apply(a, &stored(&[1], Medium::Gpu, group));
    }
    for group in [Some(9), None] {
        index.apply(a, &removed(&[1], Medium::Gpu, group));
        assert_eq!(of(&index, a, &asked), [1, 1, 0]);
    }
    index.apply(a, &removed(&[1], Medium::Gpu, None));
    assert_eq!(index.held_blocks(a), (0, 0));
}

#[test]
fn blocks_told_by_several_tiers_count_once() {
    let mut index = index(100);
    let a = index.holder(1, 0).unwrap();
    for medium in [Medium::Cpu, Medium::Storage, Medium::Pool] {
        index.apply(a, &stored(&[1], medium, Some(0)));
        index.apply(a, &stored(&[1], medium, Some(0)));
        index.apply(a, &removed(&[1], medium, Some(0)));
        assert_eq!((index.held_blocks(a), index.entries()), ((0, 0), 0), "{medium:?}");
    }
}

#[test]
fn the_size_of_blocks_is_that_in_hbm() {
    let mut index = index(100);
    let (a, asked) = (index.holder(1, 0).unwrap(), prompt([1, 2]));
    let offloaded = |block_tokens: u32| {
        let hashes = vec![1];
        Event::Stored(Stored { hashes, medium: Medium::Cpu, block_tokens, ..Stored::default() })
    };
    index.apply(a, &offloaded(256));
    assert_eq!(index.block_tokens(a), 256, "nobody else has told");
    index.apply(a, &stored(&[1, 2], Medium::Gpu, None));
    for block_tokens in [0, 256] {
        index.apply(a, &offloaded(block_tokens));
        assert_eq!((index.block_tokens(a), of(&index, a, &asked)), (16, [2, 2, 0]), "{block_tokens}");
    }
}

#[test]
fn windows_alone_make_no_prefix() {
    let mut index = index(100);
    let a = index.holder(1, 0).unwrap();
    let window = |hashes: &[u64]| {
        Event::Stored(Stored {
            hashes: hashes.to_vec(),
            group: Some(1),
            windowed: true,
            block_tokens: 16,
            ..Stored::default()
        })
    };
    index.apply(a, &window(&[1, 2]));
    assert_eq!(of(&index, a, &prompt([1, 2])), [2, 2, 0], "a model that has nothing else");
    index.apply(a, &stored(&[1], Medium::Gpu, Some(0)));
    assert_eq!(of(&index, a, &prompt([1, 2])), [1, 1, 0]);
}

#[test]
fn pooled_blocks_are_shared_and_survive_a_reset() {
    let mut index = index(100);
    let (a, b) = (index.holder(1, 0).unwrap(), index.holder(2, 0).unwrap());
    index.apply(a, &stored(&[1, 4], Medium::Gpu, None));
    index.apply(a, &stored(&[1, 3], Medium::Pool, None));
    index.apply(b, &stored(&[2], Medium::Pool, None));
    let asked = prompt([1, 2, 3, 4, 5]);
    assert_eq!((of(&index, a, &asked), of(&index, b, &asked)), ([1, 1, 3], [0, 0, 3]));
    index.apply(a, &Event::Cleared);
    assert_eq!(of(&index, a, &asked), [0, 0, 3]);
    assert_eq!((index.held_blocks(a), index.held_blocks(b)), ((0, 2), (0, 1)));
    index.clear(b);
    assert_eq!(of(&index, a, &asked), [0, 0, 1]);
}

#[test]
fn pooled_block_stored_again_is_young() {
    let mut index = index(3);
    let a = index.holder(1, 0).unwrap();
    index.apply(a, &stored(&[1, 2, 3, 1, 4], Medium::Pool, None));
    assert_eq!((of(&index, a, &prompt([1])), of(&index, a, &prompt([2]))), ([0, 0, 1], [0, 0, 0]));
    assert_eq!((index.held_blocks(a), index.entries()), ((0, 3), 3));
}

#[test]
fn the_oldest_go_first_and_the_pool_counts_apart() {
    let mut index = index(3);
    let a = index.holder(1, 0).unwrap();
    index.apply(a, &stored(&[1, 2, 3], Medium::Gpu, None));
    index.apply(a, &stored(&(100..200).collect::<Vec<_>>(), Medium::Pool, None));
    assert_eq!(index.held_blocks(a), (3, 3));
    index.apply(a, &removed(&[1], Medium::Gpu, None));
    index.apply(a, &stored(&[1, 4], Medium::Gpu, None));
    assert_eq!(of(&index, a, &prompt([2])), [0, 0, 0], "2 was the oldest");
    assert_eq!(of(&index, a, &prompt([3, 1, 4])), [3, 3, 0]);
    assert_eq!(index.entries(), 6);
}

#[test]
fn names_are_given_back_and_taken_again() {
    let mut index = index(10);
    let holders: Vec<HolderId> = (0..8).map(|rank| index.holder(1, rank).unwrap()).collect();
    assert_eq!(index.holder(2, 0), None);
    assert_eq!(index.holder(1, 3), Some(holders[3]));
    index.apply(holders[3], &stored(&[1], Medium::Gpu, None));
    index.release(holders[3]);
    index.apply(holders[3], &stored(&[1], Medium::Gpu, None));
    assert_eq!((index.name(holders[3]), index.find(1, 3)), (None, None));
    let b = index.holder(2, 0).unwrap();
    assert_eq!(b, holders[3]);
    assert_eq!(of(&index, b, &prompt([1])), [0, 0, 0], "the last one's block");
    assert!(!index.sweep(b, 10));
    assert_eq!(index.entries(), 0);
}

#[test]
fn more_holders_than_a_word_has_bits() {
    for ranks in [65, 300, 1_100] {
        let mut index = BlockIndex::new(IndexLimits { holders: MAX_HOLDERS, blocks: 300 });
        let blocks_of = |rank: u32| rank % 290 + 1;
        for rank in 0..ranks {
            let holder = index.holder(1, rank).unwrap();
            let has: Vec<u64> = (0..u64::from(blocks_of(rank))).collect();
            index.apply(
                holder,
                &stored(&has, if rank.is_multiple_of(2) { Medium::Gpu } else { Medium::Cpu }, None),
            );
        }
        let found = index.prefixes(&prompt(0..300), 16);
        let blocks: Vec<[u32; 2]> = found.holders.iter().map(|it| [it.hbm_blocks, it.own_blocks]).collect();
        let in_hbm = |rank: u32| if rank.is_multiple_of(2) { blocks_of(rank) } else { 0 };
        let expected: Vec<[u32; 2]> = (0..ranks).map(|rank| [in_hbm(rank), blocks_of(rank)]).collect();
        assert_eq!(blocks, expected);
    }
}

#[test]
fn clearing_is_one_step_and_sweeping_gives_back() {
    let mut index = index(1000);
    let a = index.holder(1, 0).unwrap();
    let hashes: Vec<u64> = (0..1000).collect();
    index.apply(a, &stored(&hashes, Medium::Gpu, None));
    index.clear(a);
    assert_eq!((index.held_blocks(a), index.entries()), ((0, 0), 1000));
    index.apply(a, &stored(&[500], Medium::Gpu, None));
    assert_eq!(of(&index, a, &prompt([500])), [1, 1, 0]);
    assert!(index.sweep(a, 10));
    while index.sweep(a, 100) {}
    assert_eq!((index.entries(), of(&index, a, &prompt([500]))), (1, [1, 1, 0]));
}

#[test]
fn stamps_start_anew_when_they_are_used_up() {
    let mut index = index(3);
    let a = index.holder(1, 0).unwrap();
    index.slots[0].wear(u32::MAX - 3);
    for hash in 0..20 {
        index.apply(a, &stored(&[hash], Medium::Gpu, None));
    }
    assert_eq!(of(&index, a, &prompt([17, 18, 19])), [3, 3, 0]);
    assert_eq!(index.entries(), 3);
    index.slots[0].wear(u32::MAX - 1);
    index.clear(a);
    index.apply(a, &stored(&[1], Medium::Gpu, None));
    assert_eq!((of(&index, a, &prompt([1])), index.entries()), ([1, 1, 0], 1));
}

/// Number of copies held (of a hash, on a medium, in a group), and the order in which hashes came.
type Held = (BTreeMap<(u64, usize, u32), u8>, Vec<u64>);

/// A model that keeps what it was told, as a list per holder and kind.
#[derive(Default)]
struct Model {
    /// For each holder, in its own memory and in a pool.
    slots: BTreeMap<(usize, bool), Held>,
}

impl Model {
    fn apply(&mut self, holder: usize, event: &Event, limit: usize) {
        match event {
            Event::Stored(it) => {
                let (held, order) = self.slots.entry((holder, it.medium == Medium::Pool)).or_default();
                for &hash in &it.hashes {
                    let copies = held.entry((hash, it.medium as usize, it.group.unwrap_or(0))).or_default();
                    let most = if it.medium == Medium::Gpu { copies::MOST } else { 1 };
                    *copies = (*copies + 1).min(most);
                    if it.medium == Medium::Pool {
                        order.retain(|it| *it != hash);
                    }
                    if !order.contains(&hash) {
                        order.push(hash);
                    }
                    if order.len() > limit {
                        let oldest = order.remove(0);
                        held.retain(|(hash, ..), _| *hash != oldest);
                    }
                }
            }
            Event::Removed(it) => {
                let (held, order) = self.slots.entry((holder, it.medium == Medium::Pool)).or_default();
                for removed in &it.hashes {
                    held.retain(|&(hash, medium, group), copies| {
                        let is_it = hash == *removed
                            && medium == it.medium as usize
                            && it.group.is_none_or(|it| it == group);
                        *copies -= u8::from(is_it);
                        *copies > 0
                    });
                }
                order.retain(|hash| held.keys().any(|(held, ..)| held == hash));
            }
            Event::Cleared => drop(self.slots.remove(&(holder, false))),
            Event::Other => {
                self.slots.remove(&(holder, false));
                self.slots.remove(&(holder, true));
            }
        }
    }

    fn leading(&self, holder: usize, hashes: &[u64]) -> [u32; 3] {
        let has = |hash: u64, gpu: bool| {
            self.slots.get(&(holder, false)).is_some_and(|(held, _)| {
                held.keys().any(|(it, medium, _)| *it == hash && (!gpu || *medium == Medium::Gpu as usize))
            })
        };
        let told = |hash: u64| {
            let pools = self.slots.iter().filter(|((_, pool), _)| *pool);
            pools.into_iter().any(|(_, (held, _))| held.keys().any(|(it, ..)| *it == hash))
        };
        let count = |it: &dyn Fn(u64) -> bool| {
            u32::try_from(hashes.iter().take_while(|hash| it(**hash)).count()).unwrap()
        };
        [count(&|hash| has(hash, true)), count(&|hash| has(hash, false)), count(&told)]
    }
}

fn an_event() -> impl Strategy<Value = (usize, Event)> {
    let medium = prop_oneof![
        4 => Just(Medium::Gpu),
        1 => Just(Medium::Cpu),
        1 => Just(Medium::Storage),
        2 => Just(Medium::Pool),
    ];
    let hashes = prop::collection::vec(0..12_u64, 0..4);
    let group = prop::option::of(0..3_u32);
    let event = (0..20, hashes, medium, group).prop_map(|(kind, hashes, medium, group)| match kind {
        0 => Event::Cleared,
        // In this test, that all is to be cleared.
        1 => Event::Other,
        2..8 => removed(&hashes, medium, group),
        _ => stored(&hashes, medium, group),
    });
    (0..3_usize, event)
}

proptest! {
    #[test]
    fn index_equals_a_simple_list(
        events in prop::collection::vec(an_event(), 0..80),
        limit in 1..8_usize,
        worn in any::<bool>(),
    ) {
        let mut index = index(limit);
        let mut model = Model::default();
        let holders: Vec<HolderId> = (0..3).map(|rank| index.holder(3, rank).unwrap()).collect();
        if worn {
            index.slots.iter_mut().for_each(|slot| slot.wear(u32::MAX - 9));
        }
        for (holder, event) in &events {
            if *event == Event::Other {
                index.clear(holders[*holder]);
            } else {
                index.apply(holders[*holder], event);
            }
            model.apply(*holder, event, limit);
            for start in 0..12 {
                let numbers: Vec<u64> = (start..12).collect();
                for (at, id) in holders.iter().enumerate() {
                    prop_assert_eq!(
                        of(&index, *id, &prompt(numbers.iter().copied())),
                        model.leading(at, &numbers)
                    );
                }
            }
            for (at, id) in holders.iter().enumerate() {
                let held = |pool| model.slots.get(&(at, pool)).map_or(0, |(_, order)| order.len());
                prop_assert_eq!(index.held_blocks(*id), (held(false), held(true)));
            }
        }
        for id in &holders {
            while index.sweep(*id, 1) {}
            index.clear(*id);
            while index.sweep(*id, 1) {}
        }
        prop_assert_eq!(index.entries(), 0);
    }
}
