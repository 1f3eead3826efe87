//! The prefill scheduler alone, with a standing line: a simulation of lanes that compute what they
//! are given, in virtual time, which measures what the decisions take.
//!
//! `cargo bench --bench scheduler [-- systems|parts|chats LANES:WAITING[:SECONDS] …]` prints a row
//! for each size. Lanes are kept busy by a line that is filled up again whenever a prompt is
//! computed. CPU times have the simulation's own share in them; p50, p99 and max are
//! time as it passes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pd_proxy::route::{
    Booking, Commit, Done, Job, LaneId, LaneSpec, NewRequest, PrefillScheduler, Reported, SchedulerSettings,
};

/// Tokens of a prompt, in the mean.
const PROMPT_TOKENS: u64 = 8_000;
const BLOCK_TOKENS: u32 = 16;
const SYSTEM_PROMPTS: u64 = 20;
const SYSTEM_BLOCKS: u64 = 125;
/// Sizes that are measured unless others are named: lanes and requests that wait.
const SIZES: [(usize, usize); 12] = [
    (64, 500),
    (64, 2_000),
    (64, 10_000),
    (256, 500),
    (256, 2_000),
    (256, 10_000),
    (1_024, 500),
    (1_024, 4_000),
    (1_024, 10_000),
    (4_096, 500),
    (4_096, 2_000),
    (4_096, 10_000),
];
/// Virtual seconds of a row, unless it says others, and the most that a row may take.
const SECONDS: f64 = 8.0;
const MOST: Duration = Duration::from_secs(30);

/// Steps between looks for idle lanes.
const LOOK_STEPS: usize = 64;

/// Kinds of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prompts {
    /// Each begins with one of 20 system prompts.
    Systems,
    /// A quarter of each, whatever its length, is a part of one of these: they part in hundreds of
    /// places.
    Parts,
    /// Each is a conversation that has grown; its next turn comes after the answer.
    Chats,
}

/// A source of repeatable numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    /// Between 0 and 1.
    fn share(&mut self) -> f64 {
        (self.next() & 0xffff_ffff) as f64 / 4_294_967_296.0
    }
}

/// A fleet in virtual time, with the time that its scheduler took.
struct Fleet {
    board: PrefillScheduler,
    prompts: Prompts,
    numbers: Numbers,
    ties: Numbers,
    now: f64,
    /// Ends of prefills, in nanoseconds, with their bookings.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    /// Time at which each lane has computed all that it has.
    free_s: Vec<f64>,
    /// Turns of each conversation, and those that nobody waits for.
    turns: Vec<u64>,
    idle_chats: Vec<u64>,
    /// Conversations under way, by ticket or booking.
    chats: BTreeMap<u64, u64>,
    requests: u64,
    decisions: Vec<Duration>,
    waited_s: f64,
    hit_tokens: u64,
    prompt_tokens: u64,
    done: u64,
}

impl Fleet {
    fn new(lanes: usize, waiting: usize, prompts: Prompts) -> Fleet {
        let chats = 2 * waiting + 16 * lanes;
        let mut board = PrefillScheduler::new(SchedulerSettings::default());
        for identity in 0..lanes as u64 {
            board.join(LaneSpec { class: 0, cache_tokens: 2_000_000, identity });
        }
        Fleet {
            board,
            prompts,
            numbers: Numbers(7),
            ties: Numbers(99),
            now: 0.0,
            ends: BinaryHeap::new(),
            free_s: vec![0.0; lanes],
            turns: vec![0; chats],
            idle_chats: (0..chats as u64).collect(),
            chats: BTreeMap::new(),
            requests: 0,
            decisions: Vec::new(),
            waited_s: 0.0,
            hit_tokens: 0,
            prompt_tokens: 0,
            done: 0,
        }
    }

    /// A new prompt, and the conversation that it is a turn of.
    fn job(&mut self) -> (Arc<Job>, Option<u64>) {
        self.requests += 1;
        let (blocks, shared, system, own) = match self.prompts {
            Prompts::Systems | Prompts::Parts => {
                let tokens = PROMPT_TOKENS as f64 * (0.3 + 1.4 * self.numbers.share());
                let blocks = tokens as u64 / u64::from(BLOCK_TOKENS);
                let shared = if self.prompts == Prompts::Parts { blocks / 4 } else { SYSTEM_BLOCKS };
                (blocks, shared, self.numbers.next() % SYSTEM_PROMPTS, self.requests)
            }
            Prompts::Chats => {
                let at = self.numbers.next() % self.idle_chats.len().max(1) as u64;
                let chat = self.idle_chats.swap_remove(at as usize);
                let turn = &mut self.turns[chat as usize];
                *turn = (*turn + 1) % 40;
                (PROMPT_TOKENS / 32 + *turn * 25, 64, 0, chat)
            }
        };
        let block = |at: u64| {
            let of = if at < shared { system + 1 } else { own + 1_000 };
            of * 1_000_000_007 + at
        };
        let job = Job {
            prompt_tokens: u32::try_from(blocks).unwrap_or(0) * BLOCK_TOKENS + 5,
            output_tokens: 200,
            blocks: (0..blocks).map(block).collect(),
            block_tokens: BLOCK_TOKENS,
            exact: true,
            ..Job::default()
        };
        (Arc::new(job), (self.prompts == Prompts::Chats).then_some(own))
    }

    fn take(&mut self, commit: &Commit) {
        let free_s = &mut self.free_s[usize::from(commit.terms.lane.0)];
        *free_s = free_s.max(self.now) + commit.terms.prefill_s * (0.8 + 0.4 * self.numbers.share());
        self.ends.push(Reverse(((*free_s * 1e9) as u64, commit.booking.0)));
        if let Some(chat) = self.chats.remove(&commit.ticket.0) {
            self.chats.insert(commit.booking.0, chat);
        }
        self.waited_s += commit.waited_s;
        self.hit_tokens += u64::from(commit.terms.hit.any_tokens);
        self.prompt_tokens += u64::from(commit.tokens);
    }

    /// Makes one decision, and takes its time.
    fn decide<T>(&mut self, decision: impl FnOnce(&mut PrefillScheduler, f64, &mut Numbers) -> T) -> T {
        let begun = Instant::now();
        let decided = decision(&mut self.board, self.now, &mut self.ties);
        self.decisions.push(begun.elapsed());
        decided
    }

    fn pump(&mut self) {
        let commits = self.decide(|board, now, ties| board.pump(now, &(), &mut || ties.next()));
        commits.iter().for_each(|commit| self.take(commit));
    }

    fn fill(&mut self, waiting: usize) {
        while self.board.waiting() < waiting {
            let (job, chat) = self.job();
            let (ticket, commits) = self.decide(|board, now, ties| {
                let new_request = NewRequest { since_s: now, job, tried: &[] };
                match board.try_assign(new_request, now, &(), &mut || ties.next()) {
                    Ok(commit) => (commit.ticket, vec![commit]),
                    Err(ticket) => (ticket, board.pump(now, &(), &mut || ties.next())),
                }
            });
            if let Some(chat) = chat {
                self.chats.insert(ticket.0, chat);
            }
            commits.iter().for_each(|commit| self.take(commit));
        }
    }

    /// The next prefill ends, or time opens a lane.
    fn step(&mut self) {
        let ends = self.ends.peek().map(|Reverse((at, _))| *at as f64 / 1e9);
        let wakes = self.board.wake_s().filter(|wake_s| *wake_s > self.now);
        if let Some(wake_s) = wakes.filter(|wake_s| ends.is_none_or(|end_s| *wake_s < end_s)) {
            self.now = wake_s;
            return self.pump();
        }
        let Some(Reverse((_, booking))) = self.ends.pop() else {
            self.now += 0.01;
            return self.pump();
        };
        self.now = ends.unwrap_or(self.now).max(self.now);
        self.done += 1;
        self.idle_chats.extend(self.chats.remove(&booking));
        let commits = self.decide(|board, now, ties| {
            board.done(now, Booking(booking), Done::Computed(Reported::default()));
            board.pump(now, &(), &mut || ties.next())
        });
        commits.iter().for_each(|commit| self.take(commit));
    }

    fn idle(&self) -> usize {
        let lanes = (0u16..).take(self.free_s.len());
        lanes.filter(|lane| self.board.load(LaneId(*lane), self.now).is_some_and(|(_, n)| n == 0)).count()
    }
}

/// CPU time of this thread, by the scheduler's own count: others share the machine.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

fn row(lanes: usize, waiting: usize, seconds: f64, prompts: Prompts) {
    let begun = Instant::now();
    let mut fleet = Fleet::new(lanes, waiting, prompts);
    let cpu = cpu_time();
    let (mut idle, mut most_idle, mut looks, mut steps) = (0, 0, 0usize, 0usize);
    while fleet.now < seconds && begun.elapsed() < MOST {
        fleet.fill(waiting);
        fleet.step();
        steps += 1;
        if !steps.is_multiple_of(LOOK_STEPS) {
            continue;
        }
        let now_idle = fleet.idle();
        (idle, most_idle, looks) = (idle + now_idle, most_idle.max(now_idle), looks + 1);
    }
    let all = cpu_time().saturating_sub(cpu);
    fleet.decisions.sort_unstable();
    let count = fleet.decisions.len().max(1);
    let us = |it: Duration| it.as_secs_f64() * 1e6;
    println!(
        "| {lanes} / {waiting} {prompts:?} | {:.1} | {:.1} | {:.1} | {:.0} | {:.3} | {:.1} | {most_idle} | {:.0} | {:.1} | {:.2} | {:.1} |",
        us(all) / count as f64,
        us(fleet.decisions[count / 2]),
        us(fleet.decisions[count * 99 / 100]),
        us(fleet.decisions[count - 1]),
        all.as_secs_f64() / fleet.now.max(1e-9),
        idle as f64 / looks.max(1) as f64,
        fleet.done as f64 / fleet.now.max(1e-9),
        100.0 * fleet.hit_tokens as f64 / fleet.prompt_tokens.max(1) as f64,
        fleet.waited_s / fleet.done.max(1) as f64,
        fleet.now,
    );
}

fn main() {
    println!(
        "| lanes / waiting | CPU us per decision | p50 | p99 | max | CPU-s per s | idle | max | prefills/s | hits % | waited s | of s |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let all = [("systems", Prompts::Systems), ("parts", Prompts::Parts), ("chats", Prompts::Chats)];
    let asked = |kind: &str| named.iter().any(|name| name == kind);
    let any = all.iter().any(|(kind, _)| asked(kind));
    let prompts: Vec<Prompts> =
        all.iter().filter(|(kind, _)| !any || asked(kind)).map(|(_, it)| *it).collect();
    if !named.iter().any(|name| name.contains(':')) {
        for (lanes, waiting) in SIZES {
            prompts.iter().for_each(|prompts| row(lanes, waiting, SECONDS, *prompts));
        }
    }
    for name in &named {
        let parts: Vec<f64> = name.split(':').filter_map(|part| part.parse().ok()).collect();
        let [lanes, waiting, rest @ ..] = &parts[..] else { continue };
        let seconds = rest.first().copied().unwrap_or(SECONDS);
        prompts.iter().for_each(|prompts| row(*lanes as usize, *waiting as usize, seconds, *prompts));
    }
}
