//! A prefiller that joins with an empty cache, beside others that know their conversations.

use super::super::stats::quantile;
use super::super::{Cluster, Contender, Director, Faults, Pace, TraceRequest, Workload, trace};
use super::{Record, World};

/// Seconds after the joining that are looked at.
const SPAN_S: f64 = 60.0;

/// Requests of the time after the first prefiller has joined.
#[derive(Debug)]
struct Joined {
    /// Share of them that the newcomer was given.
    newcomers: f64,
    /// Their time to the first token, 90 % quantile.
    ttft_p90_s: f64,
}

fn run(trace: &[TraceRequest], policy: &str, load: f64) -> Joined {
    let cluster = Cluster { prefillers: 4, decoders: 8, ..Cluster::default() };
    let faults = Faults { joins: true, ..Faults::default() };
    let workload = Workload::new(trace, &cluster, Pace::Open, load, 1);
    let director = Director::new(Contender::named(policy).unwrap(), &cluster, &faults, 0);
    let run = World::new(&cluster, &faults, &workload, vec![director], 1).run().unwrap();
    let joined_s = run.records[run.records.len() / 2].came_s;
    let in_time = |record: &&Record| (joined_s..joined_s + SPAN_S).contains(&record.came_s);
    let seen: Vec<&Record> = run.records.iter().filter(in_time).collect();
    let mut ttft: Vec<f64> = seen.iter().map(|record| record.first_s - record.came_s).collect();
    ttft.sort_by(f64::total_cmp);
    let newcomers = seen.iter().filter(|record| record.lane == 0).count();
    Joined { newcomers: newcomers as f64 / seen.len() as f64, ttft_p90_s: quantile(&ttft, 0.9) }
}

/// Conversations that begin one after the other, of which each turn adds some blocks.
fn conversations() -> Vec<TraceRequest> {
    let mut turns: Vec<(u64, u64, u64)> = (0..1_200)
        .map(|n| (n / 10, n % 10))
        .map(|(chat, turn)| (5_000 * chat + 12_000 * turn, chat, turn))
        .collect();
    turns.sort_unstable();
    let line = |(at, chat, turn): &(u64, u64, u64)| {
        let ids: Vec<String> = (0..=4 * turn + 6).map(|block| (chat * 1_000 + block).to_string()).collect();
        let (tokens, ids) = (512 * (4 * turn + 6) + 100, ids.join(","));
        format!(
            r#"{{"timestamp": {at}, "input_length": {tokens}, "output_length": 100, "hash_ids": [{ids}]}}"#
        )
    };
    let text: Vec<String> = turns.iter().map(line).collect();
    trace::parse(&text.join("\n"), usize::MAX).unwrap()
}

/// Its fair share is a quarter. While others have room it gets less: a conversation is served
/// sooner where its cache is.
#[test]
fn newcomer_is_not_flooded_while_others_have_room() {
    let trace = conversations();
    let [ours, evenly] = ["predicted", "least-requests"].map(|policy| run(&trace, policy, 0.5));
    assert!(ours.newcomers > 0.0 && ours.newcomers < 0.25, "{ours:?}");
    assert!(ours.ttft_p90_s <= evenly.ttft_p90_s, "{ours:?}, by requests {evenly:?}");
}

#[test]
fn newcomer_is_not_starved_while_others_have_too_much_to_do() {
    let ours = run(&conversations(), "predicted", 6.0);
    assert!((0.1..0.5).contains(&ours.newcomers), "{ours:?}");
}
