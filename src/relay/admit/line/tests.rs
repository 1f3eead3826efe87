use std::collections::HashMap;

use super::*;

fn terms(flow: &str, weight: u64, cost_tokens: u64) -> Terms {
    Terms { flow: flow.into(), weight, share: usize::MAX, waiting: usize::MAX, cost_tokens }
}

/// Number of requests served for each flow, when each keeps so many in the line and one is served
/// at a time. `took` is the true cost of a flow's request.
fn served(
    offers: &[(&str, u64, usize)],
    rounds: usize,
    took: impl Fn(&str) -> u64,
) -> HashMap<String, usize> {
    const COST: u64 = 100;
    let mut line: Line<()> = Line::new(1, usize::MAX);
    assert_eq!(line.enter(&terms("first", 1, COST), || ()), Entered::In);
    let mut count = HashMap::new();
    let mut inside: Arc<str> = "first".into();
    for _ in 0..rounds {
        for (flow, weight, offered) in offers {
            let waiting = line.flows.get(*flow).map_or(0, |it| it.waiting.len());
            for _ in waiting..*offered {
                assert!(matches!(line.enter(&terms(flow, *weight, COST), || ()), Entered::Waits(_)));
            }
        }
        line.leave(&inside, COST, took(&inside));
        (inside, _, ()) = line.next().unwrap();
        *count.entry(inside.to_string()).or_default() += 1;
    }
    count
}

#[test]
fn ten_times_the_load_is_not_ten_times_the_service() {
    let count = served(&[("loud", 4, 10), ("quiet", 4, 1)], 1_000, |_| 100);
    assert_eq!((count["loud"], count["quiet"]), (500, 500));
}

#[test]
fn weights_share_and_nobody_starves() {
    let count = served(&[("high", 16, 9), ("normal", 4, 9), ("low", 1, 9)], 2_100, |_| 100);
    for (flow, share) in [("high", 1_600), ("normal", 400), ("low", 100)] {
        assert!(count[flow].abs_diff(share) <= 2, "{count:?}");
    }
}

#[test]
fn flow_pays_for_tokens_beyond_its_charge() {
    let count =
        served(&[("long", 1, 5), ("short", 1, 5)], 1_100, |flow| if flow == "long" { 1_000 } else { 100 });
    assert!(count["short"].abs_diff(1_000) <= 11, "ten short ones for each long one: {count:?}");
}

#[test]
fn service_that_nobody_else_wanted_is_not_held_against_anybody() {
    let mut line: Line<()> = Line::new(1, 100);
    for _ in 0..1_000 {
        assert_eq!(line.enter(&terms("busy", 1, 100), || ()), Entered::In);
        line.leave(&"busy".into(), 100, 100);
    }
    line.enter(&terms("busy", 1, 100), || ());
    for _ in 0..5 {
        line.enter(&terms("new", 1, 100), || ());
        line.enter(&terms("busy", 1, 100), || ());
    }
    let mut order = String::new();
    let mut inside: Arc<str> = "busy".into();
    for _ in 0..10 {
        line.leave(&inside, 100, 100);
        (inside, _, ()) = line.next().unwrap();
        order.push(char::from(inside.as_bytes()[0]));
    }
    let busy = order[..6].chars().filter(|it| *it == 'b').count();
    assert!((2..=4).contains(&busy), "in turn from the start: {order}");
}

/// A flow that was charged far too much, and gets it back when somebody else has come meanwhile.
#[test]
fn an_estimate_that_was_too_high_is_no_credit() {
    let mut line: Line<()> = Line::new(8, 100);
    for _ in 0..8 {
        assert_eq!(line.enter(&terms("loud", 1, 100_000), || ()), Entered::In);
    }
    for flow in ["loud", "quiet"].repeat(9) {
        assert!(matches!(line.enter(&terms(flow, 1, 100), || ()), Entered::Waits(_)));
    }
    let mut order = String::new();
    for _ in 0..8 {
        line.leave(&"loud".into(), 100_000, 10);
        let (who, cost, ()) = line.next().unwrap();
        assert_eq!(cost, 100);
        order.push(char::from(who.as_bytes()[0]));
    }
    assert!(order.matches('q').count() >= 4, "{order}");
}

#[test]
fn a_flow_has_its_share_of_the_line() {
    let mut line: Line<()> = Line::new(2, 4);
    let few = |flow: &str| Terms { waiting: 2, ..terms(flow, 1, 1) };
    let outcomes: Vec<Entered> = (0..5).map(|_| line.enter(&few("a"), || ())).collect();
    assert!(matches!(
        outcomes[..],
        [Entered::In, Entered::In, Entered::Waits(_), Entered::Waits(_), Entered::Refused(Full::Share)]
    ));
    assert!(matches!(line.enter(&few("b"), || ()), Entered::Waits(_)));
    assert!(matches!(line.enter(&few("b"), || ()), Entered::Waits(_)));
    assert_eq!(line.enter(&few("c"), || ()), Entered::Refused(Full::Line));
}

/// After any order of events nothing is lost, nothing is counted twice, and in the end nothing is
/// left.
#[test]
fn sums_return_to_zero() {
    let mut line: Line<()> = Line::new(3, 8);
    let mut inside: Vec<Arc<str>> = Vec::new();
    let mut waiting: Vec<(Arc<str>, Ticket)> = Vec::new();
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    };
    for _ in 0..10_000 {
        match random(4) {
            0 | 1 => {
                let terms = terms(["a", "b", "c", "d"][random(4)], 1 + random(3) as u64, random(500) as u64);
                match line.enter(&terms, || ()) {
                    Entered::In => inside.push(terms.flow),
                    Entered::Waits(ticket) => waiting.push((terms.flow, ticket)),
                    Entered::Refused(full) => assert_eq!((full, line.waiting()), (Full::Line, 8)),
                }
            }
            2 if !inside.is_empty() => {
                let who = inside.swap_remove(random(inside.len()));
                line.leave(&who, random(300) as u64, random(300) as u64);
            }
            _ if !waiting.is_empty() => {
                let (who, ticket) = waiting.swap_remove(random(waiting.len()));
                line.cancel(&who, ticket);
            }
            _ => {}
        }
        while let Some((who, _, ())) = line.next() {
            // The oldest ticket of the flow went in.
            let at = (0..waiting.len()).filter(|at| waiting[*at].0 == who).min_by_key(|at| waiting[*at].1);
            waiting.remove(at.unwrap());
            inside.push(who);
        }
        assert_eq!((line.inside(), line.waiting()), (inside.len(), waiting.len()));
        assert_eq!(line.ready.len(), line.flows.values().filter(|flow| !flow.waiting.is_empty()).count());
        assert!(line.waiting() == 0 || line.inside() == 3, "nobody waits beside a free place");
    }
    waiting.iter().for_each(|(who, ticket)| line.cancel(who, *ticket));
    inside.iter().for_each(|who| line.leave(who, 0, 0));
    assert_eq!((line.inside(), line.waiting(), line.ready.len()), (0, 0, 0));
    assert!(line.flows.values().all(|flow| flow.inside == 0 && flow.waiting.is_empty()));
}

#[test]
fn flows_are_forgotten() {
    let mut line: Line<()> = Line::new(1, 1);
    for n in 0..20_000 {
        let terms = terms(&n.to_string(), 1, 1_000);
        assert_eq!(line.enter(&terms, || ()), Entered::In);
        line.leave(&terms.flow, 1_000, 1_000);
    }
    assert!(line.flows.len() <= IDLE_FLOWS, "{}", line.flows.len());
}
