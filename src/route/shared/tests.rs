//! Some gateways over one fleet, whose messages take their time, are lost, or are not carried at
//! all for a while.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::message::{DecoderLoad, Numbered, ReplicaId};
use super::{BEAT_S, LATER_S, SharedScheduler, Sources, Standing};
use crate::route::{Booking, Done, Job, LaneId, LaneSpec, NewRequest, SchedulerSettings, Seconds, Ticket};

const LANES: u16 = 3;

/// Gateways and what lies between them.
struct Site {
    now: Seconds,
    delay_s: Seconds,
    gateways: Vec<SharedScheduler>,
    /// Messages under way: when, to whom, from whom.
    under_way: Vec<(Seconds, usize, usize, Numbered)>,
    carried: bool,
    /// Requests that wait, by gateway and ticket.
    waiting: HashSet<(usize, Ticket)>,
    /// Prefills at work: gateway, booking and end.
    at_work: Vec<(usize, Booking, Seconds)>,
    placed: HashMap<(usize, Ticket), u32>,
    last_beat_s: Seconds,
    last_rest_s: Seconds,
}

fn job(blocks: u64) -> Arc<Job> {
    Arc::new(Job {
        prompt_tokens: 8_192,
        blocks: (0..16).map(|at| blocks * 1_000 + at).collect(),
        block_tokens: 512,
        ..Job::default()
    })
}

impl Site {
    fn new(gateways: usize, delay_s: Seconds) -> Site {
        let gateway = |at: usize| {
            let mut it = SharedScheduler::new(SchedulerSettings::default());
            for lane in 0..LANES {
                // Gateways number their prefillers as they like.
                let name = (u64::from(lane) + at as u64) % u64::from(LANES);
                it.open(LaneId(lane), LaneSpec { class: 0, cache_tokens: 1 << 20, identity: name });
            }
            it.share(ReplicaId(at as u64));
            it.connect(true, 0.0);
            it.lead(at == 0, 0.0);
            it
        };
        let mut site = Site {
            now: 0.0,
            delay_s,
            gateways: (0..gateways).map(gateway).collect(),
            under_way: Vec::new(),
            carried: true,
            waiting: HashSet::new(),
            at_work: Vec::new(),
            placed: HashMap::new(),
            last_beat_s: -1.0,
            last_rest_s: -1.0,
        };
        // Until all have heard who leads.
        site.pass(1.0);
        site
    }

    fn arrive(&mut self, at: usize, blocks: u64) -> Ticket {
        let new = NewRequest { since_s: self.now, job: job(blocks), tried: &[] };
        let sources = Sources { now: self.now, view: &(), random: &mut || 0 };
        let ticket = self.gateways[at].return_to_line(new, sources);
        self.waiting.insert((at, ticket));
        self.pump(at);
        ticket
    }

    fn pump(&mut self, at: usize) {
        let gateway = &mut self.gateways[at];
        gateway.pass(self.now);
        for commit in gateway.pump(Sources { now: self.now, view: &(), random: &mut || 0 }) {
            *self.placed.entry((at, commit.ticket)).or_default() += 1;
            if self.waiting.remove(&(at, commit.ticket)) {
                let end_s = self.now + commit.terms.prefill_s;
                self.at_work.push((at, commit.booking, end_s));
            } else {
                gateway.done(self.now, commit.booking, Done::Failed);
            }
        }
        for message in gateway.take_messages() {
            let heard = |to: &usize| message.to.is_none_or(|it| it == ReplicaId(*to as u64));
            for to in (0..self.gateways.len()).filter(heard) {
                if self.carried {
                    self.under_way.push((self.now + self.delay_s, to, at, message.clone()));
                }
            }
        }
    }

    /// Time passes in steps of a millisecond.
    fn pass(&mut self, seconds: Seconds) {
        let until_s = self.now + seconds;
        while self.now < until_s {
            self.now += 0.001;
            if self.now - self.last_beat_s >= BEAT_S {
                self.last_beat_s = self.now;
                for at in 0..self.gateways.len() {
                    self.gateways[at].beat(self.now, Vec::new());
                    self.pump(at);
                }
            }
            if self.now - self.last_rest_s >= LATER_S {
                self.last_rest_s = self.now;
                self.gateways.iter_mut().for_each(SharedScheduler::tell_rest);
            }
            let now = self.now;
            let due: Vec<_> = self.under_way.extract_if(.., |it| it.0 <= now).collect();
            for (_, to, from, message) in due {
                self.gateways[to].hear(self.now, ReplicaId(from as u64), &message);
                self.pump(to);
            }
            let ended: Vec<_> = self.at_work.extract_if(.., |it| it.2 <= now).collect();
            for (at, booking, _) in ended {
                self.gateways[at].done(self.now, booking, Done::Unseen);
                self.pump(at);
            }
            (0..self.gateways.len()).for_each(|at| self.pump(at));
        }
    }

    fn carry(&mut self, carried: bool) {
        self.carried = carried;
        if !carried {
            self.under_way.clear();
        }
        for at in 0..self.gateways.len() {
            self.gateways[at].connect(carried, self.now);
            self.pump(at);
        }
    }

    fn lead(&mut self, leader: usize) {
        for at in 0..self.gateways.len() {
            self.gateways[at].lead(at == leader, self.now);
            self.pump(at);
        }
    }

    /// All requests have been placed, each once, and no gateway believes that a prefiller works.
    fn assert_at_rest(&self) {
        assert!(self.waiting.is_empty(), "{} requests were not placed", self.waiting.len());
        assert!(self.placed.values().all(|times| *times == 1), "a request was placed twice");
        for (at, gateway) in self.gateways.iter().enumerate() {
            let load = |lane| gateway.board().load(LaneId(lane), self.now).map(|(_, requests)| requests);
            let loads: Vec<_> = (0..LANES).map(load).collect();
            assert_eq!(loads, [Some(0); LANES as usize], "gateway {at}");
            assert_eq!(gateway.waiting(), 0, "gateway {at}");
        }
    }
}

#[test]
fn the_leader_places_the_requests_of_all() {
    let mut site = Site::new(3, 0.005);
    let standings: Vec<_> = site.gateways.iter().map(|it| it.standing().unwrap()).collect();
    assert_eq!(
        standings,
        [Standing::Leads, Standing::Follows(ReplicaId(0)), Standing::Follows(ReplicaId(0))]
    );
    for at in 0..9 {
        site.arrive(at % 3, at as u64);
    }
    site.pass(30.0);
    site.assert_at_rest();
    let traffic: Vec<_> = site.gateways.iter().map(|it| it.traffic().unwrap()).collect();
    assert_eq!((traffic[0].own, traffic[0].for_others), (3, 6));
    assert_eq!((traffic[1].asked, traffic[1].placed, traffic[1].lapsed, traffic[1].own), (3, 3, 0, 0));
}

#[test]
fn all_gateways_know_what_each_prefiller_has_to_do() {
    let mut site = Site::new(3, 0.005);
    for at in 0..3 {
        site.arrive(at, at as u64);
    }
    site.pass(0.05);
    for gateway in &site.gateways {
        let loads: Vec<_> =
            (0..LANES).map(|lane| gateway.board().load(LaneId(lane), site.now).unwrap().1).collect();
        assert_eq!(loads, [1; LANES as usize], "each prefiller has one request");
    }
}

#[test]
fn a_question_and_its_answer_are_for_two_gateways_and_the_rest_waits() {
    let mut site = Site::new(3, 0.005);
    (site.last_beat_s, site.last_rest_s) = (site.now, site.now);
    let ways = |site: &Site| site.under_way.iter().map(|it| (it.2, it.1)).collect::<Vec<_>>();
    site.arrive(1, 1);
    assert_eq!(ways(&site), [(1, 0)], "the leader alone is asked");
    site.pass(0.006);
    assert_eq!(ways(&site), [(0, 1)], "the asker alone is told");
    site.pass(0.006);
    assert_eq!(ways(&site), [], "nobody has to know at once");
    site.pass(LATER_S + 0.01);
    let (me, others) = site.gateways[2].gateways(site.now).unwrap();
    let others: Vec<_> = others.iter().map(|it| (it.id, it.leads, it.prefills)).collect();
    assert_eq!(me, ReplicaId(2));
    assert_eq!(others, [(ReplicaId(0), true, 0), (ReplicaId(1), false, 1)]);
    site.pass(10.0);
    site.assert_at_rest();
}

#[test]
fn a_prompt_goes_where_another_gateway_sent_its_beginning() {
    let mut site = Site::new(3, 0.005);
    site.arrive(1, 7);
    site.pass(10.0);
    site.arrive(2, 7);
    site.pass(10.0);
    site.assert_at_rest();
    let prompt = super::chain::with_chain(&job(7));
    let all = site.gateways[0].board().explain(site.now, &prompt, &());
    let held = all.iter().filter(|terms| terms.hit.hbm_tokens > 0).count();
    assert_eq!(held, 1, "one prefiller holds the prompt");
}

#[test]
fn a_gateway_that_hears_nothing_places_its_own_requests_at_once() {
    let mut site = Site::new(2, 0.005);
    site.carry(false);
    let ticket = site.arrive(1, 1);
    assert!(!site.waiting.contains(&(1, ticket)), "it waited");
    assert_eq!(site.gateways[1].standing(), Some(Standing::Unconnected));
    site.pass(20.0);
    site.carry(true);
    site.pass(2.0);
    site.assert_at_rest();
    assert_eq!(site.gateways[1].standing(), Some(Standing::Alone), "nobody leads until the lease says so");
    site.lead(0);
    site.pass(1.0);
    assert_eq!(site.gateways[1].standing(), Some(Standing::Follows(ReplicaId(0))));
}

#[test]
fn a_request_without_a_sign_of_the_leader_is_placed_here_within_milliseconds() {
    let mut site = Site::new(2, 0.001);
    site.carried = false;
    let ticket = site.arrive(1, 1);
    assert!(site.waiting.contains(&(1, ticket)));
    site.pass(0.03);
    assert!(!site.waiting.contains(&(1, ticket)));
    assert_eq!(site.gateways[1].traffic().unwrap().lapsed, 1);
    // The next one does not ask as long as nothing is heard of the leader.
    let next = site.arrive(1, 2);
    assert!(!site.waiting.contains(&(1, next)));
}

#[test]
fn a_leader_that_is_far_away_is_not_asked() {
    let mut site = Site::new(2, 0.2);
    let ticket = site.arrive(1, 1);
    assert!(!site.waiting.contains(&(1, ticket)));
    assert_eq!(site.gateways[1].standing(), Some(Standing::Alone));
}

#[test]
fn requests_of_a_gateway_that_is_gone_are_forgotten_within_a_second() {
    let mut site = Site::new(2, 0.005);
    site.arrive(1, 1);
    site.pass(0.1);
    let requests = |site: &Site| {
        let load = |lane| site.gateways[0].board().load(LaneId(lane), site.now).unwrap().1;
        (0..LANES).map(load).sum::<u32>()
    };
    assert_eq!(requests(&site), 1);
    site.at_work.clear();
    // It says nothing any more.
    for _ in 0..10 {
        site.now += 0.1;
        site.gateways[0].pass(site.now);
        site.gateways[0].beat(site.now, Vec::new());
    }
    assert_eq!(requests(&site), 0);
}

#[test]
fn loads_on_decoders_are_the_sums_of_the_last_beats() {
    let mut site = Site::new(3, 0.005);
    let load = |requests, tokens| DecoderLoad { decoder: 7, requests, tokens };
    // The next beats, of gateways without load, come later.
    site.last_beat_s = site.now;
    site.gateways[1].beat(site.now, vec![load(9, 9)]);
    site.gateways[1].beat(site.now, vec![load(2, 100)]);
    site.gateways[2].beat(site.now, vec![load(1, 50)]);
    (1..3).for_each(|at| site.pump(at));
    site.pass(0.01);
    let elsewhere = |site: &Site, at: usize| site.gateways[at].decoders_elsewhere().get(&7).copied();
    assert_eq!([elsewhere(&site, 0), elsewhere(&site, 1)], [Some(load(3, 150)), Some(load(1, 50))]);
    site.carry(false);
    assert_eq!(elsewhere(&site, 0), None);
}

#[test]
fn requests_of_gateways_that_are_heard_are_not_counted_twice() {
    let mut site = Site::new(2, 0.005);
    site.arrive(1, 1);
    site.pass(0.05);
    let backlogs = |site: &Site| -> Vec<Seconds> {
        (0..LANES).map(|lane| site.gateways[0].board().load(LaneId(lane), site.now).unwrap().0).collect()
    };
    let before = backlogs(&site);
    // Its metrics tell of one request that this gateway did not send: that of the other.
    let busy = before.iter().position(|backlog| *backlog > 0.0).unwrap();
    let now = site.now;
    site.gateways[0].set_external_requests(now, LaneId(busy as u16), 1.0);
    assert_eq!(backlogs(&site), before);
    site.gateways[0].set_external_requests(now, LaneId(busy as u16), 2.0);
    assert!(backlogs(&site)[busy] > before[busy]);
}

#[test]
fn a_gateway_that_comes_learns_what_others_have_under_way() {
    let mut site = Site::new(3, 0.005);
    for blocks in 0..3 {
        site.arrive(0, blocks);
    }
    site.pass(0.02);
    let mut fresh = SharedScheduler::new(SchedulerSettings::default());
    (0..LANES).for_each(|lane| {
        fresh.open(LaneId(lane), LaneSpec { class: 0, cache_tokens: 1 << 20, identity: u64::from(lane) });
    });
    fresh.share(ReplicaId(3));
    fresh.connect(true, site.now);
    site.gateways.push(fresh);
    site.pump(3);
    site.pass(0.03);
    let loads: Vec<_> =
        (0..LANES).map(|lane| site.gateways[3].board().load(LaneId(lane), site.now).unwrap().1).collect();
    assert_eq!(loads, [1; LANES as usize]);
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { at: usize, blocks: u64 },
    Pass { ms: u32 },
    Carry(bool),
    Lead(usize),
    Lose,
    Leave,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3usize, 0..5u64).prop_map(|(at, blocks)| Step::Arrive { at, blocks }),
        4 => (1..400u32).prop_map(|ms| Step::Pass { ms }),
        1 => any::<bool>().prop_map(Step::Carry),
        1 => (0..4usize).prop_map(Step::Lead),
        1 => Just(Step::Lose),
        1 => Just(Step::Leave),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each request is placed once by its own gateway, and nothing is believed for ever: with
    /// messages lost or cut, and led by nobody or by others.
    #[test]
    fn every_request_is_placed_once_and_nothing_is_left(
        delay_ms in prop::sample::select(vec![1, 20, 200]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut site = Site::new(3, f64::from(delay_ms) / 1e3);
        for step in steps {
            match step {
                Step::Arrive { at, blocks } => {
                    site.arrive(at, blocks);
                }
                Step::Pass { ms } => site.pass(f64::from(ms) / 1e3),
                Step::Carry(carried) => site.carry(carried),
                Step::Lead(leader) => site.lead(leader),
                Step::Lose => site.under_way.clear(),
                Step::Leave => {
                    let first = site.waiting.iter().min_by_key(|(at, ticket)| (*at, ticket.0)).copied();
                    if let Some((at, ticket)) = first {
                        site.waiting.remove(&(at, ticket));
                        site.gateways[at].cancel(ticket);
                        site.pump(at);
                    }
                }
            }
        }
        site.pass(60.0);
        site.carry(false);
        site.pass(1.0);
        site.assert_at_rest();
    }
}
