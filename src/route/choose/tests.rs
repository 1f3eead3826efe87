use super::*;

const ALL: [Policy; 9] = [
    Policy::Predicted,
    Policy::LeastWork,
    Policy::LeastRequests,
    Policy::RoundRobin,
    Policy::Random,
    Policy::PowerOfTwo,
    Policy::Reference,
    Policy::CacheAware,
    Policy::Session,
];

fn loads(work: &[u64]) -> Vec<Candidate> {
    work.iter().map(|&work_tokens| Candidate { work_tokens, ..Candidate::default() }).collect()
}

fn pick(policy: Policy, work: &[u64], turn: u64, random: u64) -> Option<usize> {
    choose(policy, &loads(work), RequestFacts::default(), TieBreak { turn, random })
}

#[test]
fn no_candidates_give_no_choice() {
    for p in ALL {
        assert_eq!(pick(p, &[], 7, 7), None);
        assert_eq!(pick(p, &[9], 7, u64::MAX), Some(0));
    }
}

#[test]
fn least_work_rotates_only_ties() {
    let turns: Vec<_> = (0..4).map(|t| pick(Policy::LeastWork, &[5, 1, 9, 1], t, 0).unwrap()).collect();
    assert_eq!(turns, [1, 3, 1, 3]);
}

#[test]
fn held_kv_counts_less_than_work() {
    let held = Candidate { held_tokens: 100, ..Candidate::default() };
    let busy = Candidate { work_tokens: 100, ..Candidate::default() };
    let free = Candidate { work_tokens: 29, ..Candidate::default() };
    assert_eq!(
        choose(Policy::LeastWork, &[busy, held], RequestFacts::default(), TieBreak::default()),
        Some(1)
    );
    assert_eq!(
        choose(Policy::LeastWork, &[free, held], RequestFacts::default(), TieBreak::default()),
        Some(0)
    );
}

#[test]
fn round_robin_visits_all_in_order() {
    let turns: Vec<_> = (0..5).map(|t| pick(Policy::RoundRobin, &[9, 0, 5], t, 0).unwrap()).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1]);
}

#[test]
fn power_of_two_compares_two_different_ones() {
    for random in 0..64u64 {
        let spread = random | (random.wrapping_mul(0x9e37_79b9) << 32);
        assert_eq!(pick(Policy::PowerOfTwo, &[7, 3], 0, spread), Some(1), "random {spread}");
    }
}

#[test]
fn the_best_standing_counts_before_any_load() {
    let all = ALL;
    let chosen = |standings: [Standing; 2], policy| {
        let mut c = loads(&[0, 50]);
        c.iter_mut().zip(standings).for_each(|(c, s)| c.standing = s);
        choose(policy, &c, RequestFacts::default(), TieBreak::default())
    };
    for p in all {
        assert_eq!(chosen([Standing::Resting, Standing::Good], p), Some(1), "{p:?}");
        assert_eq!(chosen([Standing::Tried, Standing::Resting], p), Some(1), "{p:?}");
    }
    assert_eq!(chosen([Standing::Tried, Standing::Tried], Policy::LeastWork), Some(0));
}

fn with(requests: u32, hit_tokens: u32, resident_tokens: u64) -> Candidate {
    Candidate { requests, hit_tokens, resident_tokens, ..Candidate::default() }
}

fn asked(prompt_tokens: u32, session: Option<u64>) -> RequestFacts {
    RequestFacts { prompt_tokens, session }
}

#[test]
fn the_reference_score_counts_requests_and_takes_the_first_of_equals() {
    let many = Candidate { requests: 3, work_tokens: 300, ..Candidate::default() };
    let one = Candidate { requests: 1, work_tokens: 5_000, ..Candidate::default() };
    let pick = |c: &[Candidate]| {
        choose(Policy::Reference, c, RequestFacts::default(), TieBreak { turn: 1, random: 0 })
    };
    assert_eq!(pick(&[many, one]), Some(1), "three requests of 100 tokens: 370; one of 5000: 292");
    assert_eq!(pick(&[one, one]), Some(0));
}

#[test]
fn cache_aware_follows_prefixes_until_loads_differ_much() {
    let pick = |c: &[Candidate]| choose(Policy::CacheAware, c, asked(100, None), TieBreak::default());
    assert_eq!(pick(&[with(40, 0, 5), with(50, 31, 9)]), Some(1), "the longest prefix");
    assert_eq!(pick(&[with(40, 0, 5), with(50, 30, 9)]), Some(0), "30 % are too little: the smallest tree");
    assert_eq!(pick(&[with(40, 0, 9), with(105, 99, 5)]), Some(0), "out of balance");
}

#[test]
fn a_session_stays_while_its_place_is_not_overloaded() {
    let at = |identity, requests| Candidate { identity, requests, ..Candidate::default() };
    let pick =
        |c: &[Candidate], s| choose(Policy::Session, c, asked(1, Some(s)), TieBreak::default()).unwrap();
    let five: Vec<Candidate> = (0..5).map(|n| at(n, 4)).collect();
    let mut moved = 0;
    for session in 0..500 {
        let home = pick(&five, session);
        let mut busy = five.clone();
        busy[home].requests = 60;
        assert_ne!(pick(&busy, session), home);
        let mut fewer = five.clone();
        let gone = fewer.remove(0);
        moved += usize::from(fewer[pick(&fewer, session)].identity != five[home].identity);
        assert_eq!(gone.identity, 0);
    }
    assert!((60..140).contains(&moved), "only those of the one that left move: {moved}");
}
