use super::*;

fn endpoint(port: u16) -> Endpoint {
    Endpoint::new("p", port)
}

fn fleet(ports: &[u16]) -> Fleet {
    let fleet = Fleet::new(Policy::LeastWork);
    for &port in ports {
        assert!(fleet.add(Role::Prefill, endpoint(port)));
    }
    fleet
}

fn need(tokens: u64) -> Need<'static> {
    Need { tokens, ..Need::default() }
}

#[test]
fn reservation_counts_for_the_next_choice_until_dropped() {
    let fleet = fleet(&[1, 2]);
    let first = fleet.pick(Role::Prefill, need(100)).unwrap();
    let second = fleet.pick(Role::Prefill, need(10)).unwrap();
    assert_ne!(first.instance().id(), second.instance().id());
    let third = fleet.pick(Role::Prefill, need(10)).unwrap();
    assert_eq!(third.instance().id(), second.instance().id());
    let lighter = first.instance().id();
    drop(first);
    assert_eq!(fleet.pick(Role::Prefill, need(1)).unwrap().instance().id(), lighter);
}

#[test]
fn ties_rotate() {
    let fleet = fleet(&[1, 2, 3]);
    let ids: Vec<_> = (0..3).map(|_| fleet.pick(Role::Prefill, need(5)).unwrap().instance().id()).collect();
    assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), 3);
}

#[test]
fn failed_instance_is_the_last_choice() {
    let fleet = fleet(&[1, 2]);
    let first = fleet.pick(Role::Prefill, need(1)).unwrap().instance().id();
    let tried = [first];
    for _ in 0..4 {
        let other = fleet.pick(Role::Prefill, Need { tried: &tried, ..need(1) }).unwrap();
        assert_ne!(other.instance().id(), first);
    }
    let failing = fleet.pick(Role::Prefill, need(1)).unwrap().instance().clone();
    fleet.report(&failing, Outcome::Failed);
    for _ in 0..4 {
        assert_ne!(fleet.pick(Role::Prefill, need(1)).unwrap().instance().id(), failing.id());
    }
    fleet.report(&failing, Outcome::Served);
    let again: Vec<_> = (0..4).map(|_| fleet.pick(Role::Prefill, need(1)).unwrap().instance().id()).collect();
    assert!(again.contains(&failing.id()));
}

#[test]
fn questions_are_spread_over_engines_that_do_not_rest() {
    let fleet = fleet(&[1, 2, 3]);
    let failing = fleet.members(Role::Prefill)[1].clone();
    fleet.report(&failing, Outcome::Failed);
    let ports: Vec<u16> = (0..4).map(|n| fleet.any(Role::Prefill, n).unwrap().endpoint().port).collect();
    assert_eq!(ports, [1, 3, 1, 3]);
    for other in [0, 2] {
        fleet.report(&fleet.members(Role::Prefill)[other].clone(), Outcome::Failed);
    }
    assert_eq!(fleet.any(Role::Prefill, 1).unwrap().id(), failing.id(), "when all rest, any will do");
    assert!(fleet.any(Role::Decode, 0).is_none());
}

#[test]
fn removal_waits_for_the_work_on_that_instance_alone() {
    let fleet = fleet(&[1, 2]);
    let reservation = fleet.pick(Role::Prefill, need(1)).unwrap();
    let busy = reservation.instance().endpoint().clone();
    let idle = endpoint(if busy.port == 1 { 2 } else { 1 });
    assert_eq!(fleet.remove(Role::Prefill, &busy), Removal::Draining);
    assert_eq!(fleet.remove(Role::Prefill, &idle), Removal::Gone);
    assert!(fleet.pick(Role::Prefill, need(1)).is_none(), "the drained one is not chosen");
    drop(reservation);
    assert_eq!(fleet.sweep(Role::Prefill), 0);
    assert_eq!(fleet.members(Role::Prefill).len(), 0);
    assert_eq!(fleet.remove(Role::Prefill, &busy), Removal::Unknown);
}

#[test]
fn each_source_changes_its_own_members_alone() {
    let fleet = Fleet::new(Policy::LeastWork);
    let ports = |fleet: &Fleet| {
        let mut ports: Vec<u16> = fleet.members(Role::Decode).iter().map(|it| it.endpoint().port).collect();
        ports.sort_unstable();
        ports
    };
    let want = |owner, ports: &[u16]| {
        fleet.want(owner, Role::Decode, &ports.iter().map(|port| endpoint(*port)).collect::<Vec<_>>())
    };
    assert_eq!(want(Owner::Configuration, &[1, 2]), (2, 0));
    assert_eq!(want(Owner::File, &[2, 3]), (1, 0), "one is there already");
    assert!(fleet.add(Role::Decode, endpoint(4)));
    assert_eq!(want(Owner::File, &[]), (0, 1));
    assert_eq!(ports(&fleet), [1, 2, 4]);
    assert_eq!(want(Owner::Configuration, &[]), (0, 2));
    assert_eq!(ports(&fleet), [4]);
    want(Owner::Dns, &[4, 5]);
    assert_eq!(fleet.remove(Role::Decode, &endpoint(5)), Removal::Gone);
    assert_eq!(want(Owner::Dns, &[4, 5]), (0, 0), "an operator removed it");
    assert_eq!(want(Owner::Dns, &[4]), (0, 0));
    assert_eq!(want(Owner::Dns, &[4, 5]), (1, 0), "it was away, and is there again");
    assert_eq!(want(Owner::Dns, &[]), (0, 1));
    assert_eq!(ports(&fleet), [4], "the operator wants it");
}

#[test]
fn adding_a_draining_instance_takes_it_back() {
    let fleet = fleet(&[1]);
    let _seat = fleet.pick(Role::Prefill, need(1)).unwrap();
    fleet.remove(Role::Prefill, &endpoint(1));
    assert!(fleet.add(Role::Prefill, endpoint(1)));
    assert!(!fleet.add(Role::Prefill, endpoint(1)), "it serves already");
    assert_eq!(fleet.serving(Role::Prefill), 1);
}
