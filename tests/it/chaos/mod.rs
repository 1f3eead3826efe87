//! Chaos in virtual time: whatever fails and whoever leaves, no client is lied to and nothing is
//! left behind.
//!
//! Each seed draws a fleet, requests and troubles. `CHAOS_RUNS` says how many seeds are tried (from
//! `CHAOS_SEED`, or 0, on); with `CHAOS_SEED` alone it is that one.

mod absence;
mod answer;
mod culprit;
mod plan;
mod world;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use plan::{Api, LATER, Plan, Request};

/// As many as a debug build does in some seconds.
const RUNS: u64 = 150;

/// Seeds that once found something.
const REGRESSIONS: [u64; 1] = [1106];

#[derive(Default)]
struct Words(HashMap<(Api, u64, u64, u32), String>);

impl Words {
    /// The answer to a request when nothing goes wrong.
    fn of(&mut self, request: &Request, answer_tokens: u32) -> String {
        let key = (request.api, request.words, request.tokens, answer_tokens);
        let calm = || world::in_virtual_time(world::undisturbed(request, answer_tokens)).0;
        self.0.entry(key).or_insert_with(calm).clone()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

fn run(plan: &Plan, seed: u64, words: &mut Words) {
    let right: Vec<String> =
        plan.requests.iter().map(|request| words.of(request, plan.answer_tokens)).collect();
    pd_proxy::util::rng::seed(seed);
    let played = catch_unwind(AssertUnwindSafe(|| {
        let ((), lines) = world::in_virtual_time(world::play(plan, &right));
        assert_eq!(lines, plan.requests.len(), "one line in the access log for each request");
    }));
    if let Err(failed) = played {
        eprintln!("again: CHAOS_SEED={seed} cargo test --test it chaos\n{plan:?}");
        std::panic::resume_unwind(failed);
    }
}

/// From `CHAOS_SEED` on, `CHAOS_RUNS` of them, or as many as usual. `CHAOS_LOG` prints the log.
fn seeds(usual: u64) -> impl Iterator<Item = u64> {
    let (first, runs) = (number("CHAOS_SEED"), number("CHAOS_RUNS"));
    let runs = runs.unwrap_or(if first.is_some() { 1 } else { usual });
    (0..runs).map(move |n| first.unwrap_or(0) + n)
}

#[test]
fn answers_are_true_and_nothing_is_stranded() {
    let mut words = Words::default();
    for seed in REGRESSIONS.into_iter().chain(seeds(RUNS)) {
        run(&Plan::draw(seed), seed, &mut words);
    }
}

#[test]
fn nor_in_dialects_that_came_later() {
    let mut words = Words::default();
    for seed in seeds(RUNS / LATER.len() as u64 / 5) {
        for spoken in LATER {
            run(&Plan { spoken, ..Plan::draw(seed) }, seed, &mut words);
        }
    }
}

#[test]
fn nor_where_the_one_at_fault_is_not_the_one_that_reports_it() {
    let mut words = Words::default();
    for seed in seeds(RUNS / 2) {
        run(&Plan::draw_with_blame(seed), seed, &mut words);
    }
}

#[test]
fn nor_where_answers_end_by_themselves() {
    let mut words = Words::default();
    for seed in seeds(RUNS / 3) {
        for answer_tokens in [3, 12] {
            run(&Plan { answer_tokens, ..Plan::draw(seed) }, seed, &mut words);
        }
    }
}
