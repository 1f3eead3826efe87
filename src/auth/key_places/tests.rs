//! Gateways with a store that does as the script of `share::places` does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Places that gateways hold, by their numbers.
#[derive(Default)]
struct Store {
    held: BTreeMap<usize, u32>,
    /// It came a moment ago.
    young: bool,
}

impl Store {
    fn exchange(&mut self, me: usize, request: PlacesRequest) -> PlacesGrant {
        let PlacesRequest { limit, inside, spare, parts } = request;
        let others: u32 = self.held.iter().filter(|(id, _)| **id != me).map(|(_, held)| held).sum();
        let free = limit.saturating_sub(others + inside);
        let most = if self.young { (limit / parts).saturating_sub(inside) } else { free / parts };
        let more = spare.min(most).min(free);
        self.held.insert(me, inside + more);
        PlacesGrant { held: inside + more, free: free - more, young: self.young }
    }
}

struct World {
    store: Store,
    gateways: Vec<KeyPlaces>,
    now: Instant,
}

impl World {
    fn new(gateways: usize, limit: usize) -> World {
        let all = (0..gateways).map(|_| KeyPlaces::new(Some(limit))).collect();
        let mut world = World { store: Store::default(), gateways: all, now: Instant::now() };
        (0..gateways).for_each(|at| world.exchange(at));
        (0..gateways).for_each(|at| world.exchange(at));
        world
    }

    /// One exchange of a gateway that has something to tell, or whose last one is long ago.
    fn exchange(&mut self, at: usize) {
        let count = self.gateways.len() as u32;
        let gateway = &mut self.gateways[at];
        gateway.join(count);
        if let Some(request) = gateway.next_exchange(self.now) {
            gateway.end_exchange(self.store.exchange(at, request));
        }
    }

    fn take(&mut self, at: usize, requests: usize) -> usize {
        (0..requests).filter(|_| self.gateways[at].take()).count()
    }

    fn inside(&self) -> u32 {
        self.gateways.iter().map(|it| it.inside).sum()
    }
}

#[test]
fn one_gateway_has_all_places_and_gets_them_back() {
    let mut places = KeyPlaces::new(Some(2));
    assert_eq!([places.take(), places.take(), places.take()], [true, true, false]);
    places.leave();
    assert!(places.is_free() && places.take() && !places.is_free());
    places.set_limit(Some(3));
    assert!(places.take() && !places.take());
    places.set_limit(None);
    assert!(places.take() && places.next_exchange(Instant::now()).is_none());
}

#[test]
fn an_even_burst_finds_all_places_and_no_more() {
    let mut world = World::new(4, 32);
    let admitted: usize = (0..4).map(|at| world.take(at, 9)).sum();
    assert_eq!(admitted, 32);
    let (in_turn, one_by_one) = ((0..32).map(|nth| nth % 4), (0..32).map(|nth| nth / 8));
    for order in [in_turn.collect::<Vec<_>>(), one_by_one.collect()] {
        let mut world = World::new(4, 32);
        for at in order {
            assert_eq!(world.take(at, 1), 1, "others are heard of all the time");
            world.exchange(at);
        }
    }
}

#[test]
fn places_follow_the_demand() {
    let mut world = World::new(4, 32);
    assert_eq!(world.take(0, 32), 8, "its part, before others are heard");
    let mut inside = 8;
    for _ in 0..40 {
        world.exchange(0);
        inside += world.take(0, 32);
    }
    assert_eq!((inside, world.inside()), (32, 32), "all of them in the end");
    world.now += RENEWAL;
    (0..4).for_each(|at| world.exchange(at));
    assert_eq!(world.take(1, 1), 0, "it has heard that there is none");
    (0..32).for_each(|_| world.gateways[0].leave());
    (0..8).for_each(|_| {
        world.now += RENEWAL;
        world.exchange(0);
    });
    world.exchange(1);
    assert_eq!(world.take(1, 32), 8, "what is not needed any more is free for others");
}

#[test]
fn places_of_a_gateway_that_is_gone_are_free_again() {
    let mut world = World::new(2, 8);
    (0..19).for_each(|_| {
        world.take(0, 8);
        world.exchange(0);
    });
    world.now += RENEWAL;
    world.exchange(1);
    assert_eq!((world.inside(), world.take(1, 1)), (8, 0));
    // The store has heard nothing of it for long.
    world.store.held.remove(&0);
    world.now += RENEWAL;
    world.exchange(1);
    assert_eq!(world.take(1, 8), 4);
}

#[test]
fn without_the_store_each_gateway_has_its_part() {
    let mut world = World::new(4, 10);
    world.gateways.iter_mut().for_each(KeyPlaces::part);
    assert_eq!((0..4).map(|at| world.take(at, 9)).collect::<Vec<_>>(), [2, 2, 2, 2]);
    let mut small = World::new(4, 1);
    small.gateways.iter_mut().for_each(KeyPlaces::part);
    assert_eq!(small.take(0, 9), 1, "one at least, or a key could be refused for ever");
}

#[test]
fn a_store_that_comes_back_empty_has_no_places_beyond_the_parts_at_first() {
    let mut world = World::new(4, 32);
    assert_eq!((0..4).map(|at| world.take(at, 8)).collect::<Vec<_>>(), [8, 8, 8, 8]);
    world.store = Store { young: true, ..Store::default() };
    // The first one asks for more again and again, before others tell what they hold.
    for _ in 0..9 {
        world.now += RENEWAL;
        world.exchange(0);
        assert_eq!(world.take(0, 32), 0, "its part is taken");
    }
    (0..7).for_each(|_| world.gateways[0].leave());
    world.exchange(0);
    assert_eq!(world.take(0, 32), 7, "its part");
    world.now += RENEWAL;
    (0..4).for_each(|at| world.exchange(at));
    world.store.young = false;
    (0..8).for_each(|_| world.gateways[3].leave());
    for _ in 0..60 {
        world.now += RENEWAL;
        (0..4).for_each(|at| world.exchange(at));
        world.take(0, 32);
        assert!(world.inside() <= 32);
    }
    assert_eq!(world.inside(), 32, "all of them once everybody has told");
}

#[test]
fn an_exchange_is_told_once_and_again_after_a_while() {
    let mut places = KeyPlaces::new(Some(4));
    let start = Instant::now();
    places.join(2);
    let request = PlacesRequest { limit: 4, inside: 0, spare: 0, parts: 2 };
    assert_eq!(places.next_exchange(start), Some(request));
    assert!(places.take() && places.is_touched(), "this gateway's part, until the store has answered");
    assert_eq!(places.next_exchange(start), None, "one is under way");
    places.end_exchange(PlacesGrant { held: 0, free: 4, young: false });
    assert!(places.take() && !places.take());
    assert_eq!(places.next_exchange(start), Some(PlacesRequest { inside: 2, ..request }));
    places.end_exchange(PlacesGrant { held: 2, free: 2, young: false });
    assert_eq!(places.next_exchange(start), None);
    let renewed = PlacesRequest { inside: 2, spare: 2, ..request };
    assert_eq!(places.next_exchange(start + RENEWAL), Some(renewed));
}

proptest! {
    /// The limit is exceeded by no request if all gateways hear of each step.
    #[test]
    fn the_limit_holds_where_all_is_heard(
        limit in 1_usize..40,
        steps in proptest::collection::vec((0_usize..4, any::<bool>()), 1..300),
    ) {
        let mut world = World::new(4, limit);
        for (at, comes) in steps {
            if comes {
                world.take(at, 1);
            } else if world.gateways[at].inside > 0 {
                world.gateways[at].leave();
            }
            // In the second round each hears what others told in the first.
            for _ in 0..2 {
                world.now += RENEWAL;
                (0..4).for_each(|at| world.exchange(at));
            }
            prop_assert!(world.inside() as usize <= limit, "{} of {limit}", world.inside());
        }
    }

    /// The limit is exceeded by a part of each other gateway at most, whenever they hear of each
    /// other, and all places can be taken once everybody has heard.
    #[test]
    fn the_limit_is_exceeded_by_parts_alone(
        limit in 1_usize..40,
        steps in proptest::collection::vec((0_usize..4, 0_u8..4), 1..300),
    ) {
        let mut world = World::new(4, limit);
        for (at, what) in steps {
            match what {
                0 | 1 => drop(world.take(at, 1)),
                2 if world.gateways[at].inside > 0 => world.gateways[at].leave(),
                _ => world.exchange(at),
            }
            let most = limit + 3 * (limit / 4).max(1);
            prop_assert!(world.inside() as usize <= most, "{} of {limit}", world.inside());
        }
        for _ in 0..60 {
            world.now += RENEWAL;
            (0..4).for_each(|at| world.exchange(at));
            world.take(0, limit);
        }
        prop_assert!(world.inside() as usize >= limit);
    }
}
