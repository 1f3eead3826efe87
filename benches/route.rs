//! Costs of routing: a decision among 8, 64 and 256 prefillers over a prompt of 1 000 blocks. Also
//! measured is all work of the scheduler for a request, from its arrival to the end of its prefill,
//! alone and in front of a line that never empties (two decisions; `scheduler.rs` measures more of
//! that).

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use pd_proxy::route::{Done, Reported};

#[path = "inputs/route.rs"]
mod inputs;

use inputs::{StandingLine, board, job};

fn decide(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    for lanes in [8u64, 64, 256] {
        let board = board(lanes);
        // A second turn of one of them, and a prompt of which all know the beginning.
        for (name, asked) in [("second turn", job(3, 200)), ("new", job(1 << 30, 200))] {
            group.bench_with_input(BenchmarkId::new(name, lanes), &asked, |b, asked| {
                b.iter(|| {
                    let all = board.weigh(1e6, black_box(asked), &());
                    black_box(all.into_iter().min_by(|a, b| a.score_s.total_cmp(&b.score_s)))
                });
            });
        }
    }
    group.finish();
}

fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("request");
    for lanes in [8u64, 64, 256, 1_024] {
        let mut board = board(lanes);
        let (mut now, own) = (1e6, std::cell::Cell::new(1u64 << 31));
        group.bench_function(BenchmarkId::new("arrive, pump, done", lanes), |b| {
            b.iter_batched(
                || {
                    own.set(own.get() + 1);
                    job(own.get(), 200)
                },
                |job| {
                    now += 10.0;
                    board.arrive(now, job);
                    for commit in board.pump(now, &(), &mut || own.get()) {
                        board.done(now + 1.0, commit.booking, Done::Computed(Reported::default()));
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn standing(c: &mut Criterion) {
    let mut group = c.benchmark_group("standing line");
    for (lanes, waiting) in
        [(64u64, 500), (64, 10_000), (256, 2_000), (1_024, 4_000), (4_096, 2_000), (4_096, 10_000)]
    {
        let mut line = StandingLine::new(lanes, waiting);
        group.bench_function(
            BenchmarkId::new("end and arrival", format!("{lanes} lanes, {waiting} wait")),
            |b| {
                b.iter(|| line.step());
            },
        );
    }
    group.finish();
}

criterion_group!(benches, decide, whole, standing);
criterion_main!(benches);
