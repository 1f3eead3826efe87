use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::*;
use crate::endpoint::Endpoint;
use crate::fleet::{FleetSettings, Need};
use crate::route::saturation::tests::{Units, played_servers};
use crate::route::{Job, Policy, PrefillCosts, Reported, SchedulerSettings};

/// Tokens of each prompt, of which nothing is cached.
const PROMPT_TOKENS: u32 = 4_000;
/// Seconds that it takes an engine: twice of what is assumed at the start.
const PREFILL_S: f64 = 0.8592;

fn fleet(role: Role, engines: u16) -> Arc<Fleet> {
    let board = SchedulerSettings { policy: Policy::Predicted, ..SchedulerSettings::default() };
    let fleet = Fleet::with(FleetSettings { board, ..FleetSettings::default() });
    (1..=engines).for_each(|port| assert!(fleet.add(role, Endpoint::new("e", port))));
    Arc::new(fleet)
}

/// A request that waits for a prefiller, has it for as long as its prompt takes, and leaves.
async fn request(fleet: Arc<Fleet>) {
    let job = Arc::new(Job { prompt_tokens: PROMPT_TOKENS, ..Job::default() });
    let Some(waiting) = fleet.scheduler().place(job, Instant::now(), &[]) else { return };
    let Some(mut placed) = waiting.await else { return };
    sleep(Duration::from_secs_f64(PREFILL_S)).await;
    placed.reservation.hold(Instant::now(), Reported::default());
}

/// Prefillers, and the requests that come to them.
struct Stage {
    fleet: Arc<Fleet>,
    units: Units,
    tasks: JoinSet<()>,
}

impl Stage {
    fn new(engines: u16, seed: u64) -> Stage {
        let (fleet, mut tasks) = (fleet(Role::Prefill, engines), JoinSet::new());
        tasks.spawn(fleet.scheduler().clone().tick());
        Stage { fleet, units: Units(seed), tasks }
    }

    /// Has requests come at random that keep so many prefillers busy, and returns the loads of the
    /// last minute, one for each look of the housekeeping.
    async fn come(&mut self, busy: f64, seconds: u64) -> Vec<RoleLoad> {
        let (meters, begin) = (Meters::default(), Instant::now());
        let end = begin + Duration::from_secs(seconds);
        let (mut next, mut look, mut loads) = (begin, begin, Vec::new());
        while next.min(look) < end {
            sleep_until(next.min(look)).await;
            if look <= next {
                self.fleet.show_loads(&meters);
                let load = self.fleet.role_load(Role::Prefill);
                loads.extend(load.filter(|_| look + Duration::from_secs(60) > end));
                look += Duration::from_secs(2);
            } else {
                self.tasks.spawn(request(self.fleet.clone()));
                next += Duration::from_secs_f64(-(1.0 - self.units.next()).ln() * PREFILL_S / busy);
            }
        }
        loads
    }
}

fn mean(loads: &[RoleLoad], value: fn(&RoleLoad) -> f64) -> f64 {
    loads.iter().map(value).sum::<f64>() / loads.len() as f64
}

#[tokio::test(start_paused = true)]
async fn prefill_load_goes_up_and_down_with_what_comes() {
    let assumed = PrefillCosts::default().service(PROMPT_TOKENS, crate::route::Hit::default()).prefill_s;
    assert!((2.0 * assumed - PREFILL_S).abs() < 1e-9, "{assumed}");
    let mut stage = Stage::new(8, 11);
    let mut before = 0.0;
    for (busy, seconds) in [(0.4, 240), (2.2, 180), (5.5, 180), (2.2, 180), (0.4, 180)] {
        let loads = stage.come(busy, seconds).await;
        let needed = mean(&loads, |load| load.engines_needed);
        let played = f64::from(played_servers(busy, |_| PREFILL_S, 1.0));
        // A minute has some 25 to 400 prompts: what came in it is off by as much as chance is.
        assert!((needed - played).abs() <= 1.0, "{busy} busy: {needed}, played {played}");
        let is_more = busy > before;
        before = busy;
        let saturation = mean(&loads, |load| load.saturation);
        assert_eq!(saturation <= 1.0, played <= 8.0, "{busy} busy: {saturation}");
        assert!(is_more || needed < 6.0, "{busy} busy: {needed}");
    }
}

#[tokio::test(start_paused = true)]
async fn prefillers_with_too_much_to_do_show_it_and_recover() {
    let mut stage = Stage::new(2, 5);
    let calm = stage.come(0.5, 120).await;
    assert!(mean(&calm, |load| load.saturation) < 1.0 && mean(&calm, |load| load.work_s) < 2.0);
    // Twice of what two prefillers do in the best case, for two minutes: what is left over is as
    // much as both do in two minutes.
    let busy = stage.come(4.0, 120).await;
    let last = busy.last().unwrap();
    assert!(last.saturation > 2.0 && last.engines_needed >= 5.0, "{last:?}");
    assert!((200.0..290.0).contains(&last.work_s), "{last:?}");
    // They work it off in another two minutes, and until then it is load.
    let after = stage.come(0.2, 61).await;
    assert!(after[10].saturation > 1.0, "{:?}", after[10]);
    let calm = stage.come(0.2, 240).await;
    assert!(mean(&calm, |load| load.saturation) < 0.5, "{calm:?}");
    assert!(calm.last().unwrap().engines_needed <= 1.0);
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_refused_for_want_of_time_are_load() {
    let fleet = fleet(Role::Prefill, 1);
    fleet.show_loads(&Meters::default());
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        (0..3).for_each(|_| fleet.scheduler().note_refused(1.0));
    }
    let load = fleet.role_load(Role::Prefill).unwrap();
    let played = f64::from(played_servers(3.0, |_| 1.0, 1.0));
    assert!(
        (load.engines_needed - played).abs() <= 1.0 && load.saturation > 3.0,
        "{load:?}, played {played}"
    );
}

fn streams(fleet: &Fleet, count: usize) -> Vec<Reservation> {
    let one = || fleet.pick(Role::Decode, Need { tokens: 2_000, ..Need::default() }).unwrap();
    (0..count).map(|_| one()).collect()
}

/// With the costs that are assumed at the start a decoder bears 150 streams of 2 000 tokens at 50
/// ms a step: 20 ms, and 0.2 ms for each.
#[tokio::test(start_paused = true)]
async fn decode_load_goes_up_and_down_with_streams() {
    let fleet = fleet(Role::Decode, 2);
    let load = || fleet.role_load(Role::Decode).unwrap();
    assert_eq!(load(), RoleLoad { engines: 2, ..RoleLoad::default() });
    let mut all = streams(&fleet, 300);
    assert_eq!(load().engines_needed, 2.0);
    assert!((load().saturation - 1.0).abs() < 1e-9);
    all.extend(streams(&fleet, 120));
    assert_eq!(load().engines_needed, 3.0);
    assert!((load().saturation - 1.4).abs() < 1e-9);
    sleep(Duration::from_secs(20)).await;
    // 15 are left on each: a tenth of what it bears, with steps of 23 ms.
    all.truncate(30);
    assert_eq!(load().engines_needed, 1.0);
    // Streams stayed for 20 s so far, those that are met under way stay for 10 s more.
    assert!((load().work_s - 2.0 * 0.1 * 10.0).abs() < 0.4, "{:?}", load());
    fleet.remove(Role::Decode, &Endpoint::new("e", 1));
    assert_eq!(load().engines, 1, "one drains");
}

/// As long as decoders are looked at every two seconds, for so many of them.
async fn look_for(fleet: &Fleet, seconds: u32) -> RoleLoad {
    for _ in 0..seconds / 2 {
        sleep(Duration::from_secs(2)).await;
        fleet.show_loads(&Meters::default());
    }
    fleet.role_load(Role::Decode).unwrap()
}

#[tokio::test(start_paused = true)]
async fn decode_load_rises_at_once_and_falls_within_a_minute() {
    let fleet = fleet(Role::Decode, 2);
    look_for(&fleet, 60).await;
    // 210 on each, of the 150 that it bears.
    let all = streams(&fleet, 420);
    let first = look_for(&fleet, 2).await;
    assert_eq!(first.engines_needed, 3.0, "{first:?}");
    let busy = look_for(&fleet, 80).await;
    assert!((busy.saturation - 1.4).abs() < 1e-9, "{busy:?}");
    drop(all);
    let last = look_for(&fleet, 2).await;
    assert!(last.engines_needed == 3.0 && last.work_s == 0.0, "{last:?}");
    let half = look_for(&fleet, 28).await;
    assert!((0.6..0.9).contains(&half.saturation) && half.engines_needed == 2.0, "{half:?}");
    // Decoders that are gone don't make the load of the minute less.
    for port in 1..=2 {
        fleet.remove(Role::Decode, &Endpoint::new("e", port));
    }
    assert_eq!(fleet.role_load(Role::Decode).unwrap().engines_needed, 2.0);
    let none = look_for(&fleet, 40).await;
    assert_eq!((none.saturation, none.engines_needed), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_the_first_prefiller_are_load() {
    let mut stage = Stage::new(1, 3);
    stage.come(0.5, 60).await;
    let fleet = stage.fleet.clone();
    while fleet.role_load(Role::Prefill).unwrap().work_s > 0.0 {
        sleep(Duration::from_secs(1)).await;
    }
    fleet.remove(Role::Prefill, &Endpoint::new("e", 1));
    let before = fleet.role_load(Role::Prefill).unwrap();
    let waiting: Vec<_> = (0..100).map(|_| fleet.vacancy(Role::Prefill).await_member()).collect();
    let load = fleet.role_load(Role::Prefill).unwrap();
    assert!((load.work_s / (100.0 * PREFILL_S) - 1.0).abs() < 0.5, "{load:?}");
    assert!(load.engines_needed > before.engines_needed, "{before:?}, {load:?}");
    assert_eq!((fleet.waiting(Role::Prefill), fleet.waiting(Role::Decode)), (100, 0));
    drop(waiting);
    assert_eq!(fleet.waiting(Role::Prefill), 0);
}

#[tokio::test(start_paused = true)]
async fn encoders_are_counted_where_there_are_some() {
    assert_eq!(fleet(Role::Decode, 1).role_load(Role::Encode), None);
    let fleet = fleet(Role::Encode, 2);
    fleet.show_loads(&Meters::default());
    let one = || fleet.pick(Role::Encode, Need::default()).unwrap();
    for _ in 0..120 {
        // Two at once for a second on each: half a second of work each.
        let items = [one(), one(), one(), one()];
        sleep(Duration::from_secs(1)).await;
        items.iter().for_each(|item| fleet.note_encoded(item, Duration::from_secs(1)));
        drop(items);
        fleet.show_loads(&Meters::default());
    }
    let load = fleet.role_load(Role::Encode).unwrap();
    let played = f64::from(played_servers(2.0, |_| 0.5, 1.0));
    assert!((load.engines_needed - played).abs() <= 1.0, "{load:?}, played {played}");
    assert!(load.saturation > 1.0, "both are busy all the time: {load:?}");
}
