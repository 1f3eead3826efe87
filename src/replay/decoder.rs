//! A decoder: continuous batching, a token for every request at each step, steps one after the
//! other.
//!
//! Nothing but arithmetic happens between a request's joining or leaving and the next one's, so
//! that is one event: within such a *stretch* each step takes the same time more than the one
//! before, as every context grows by a token.

use std::collections::VecDeque;

use super::Seconds;
use super::costs::Costs;

/// The state of one decoder.
#[derive(Debug, Default)]
pub struct Decoder {
    running: Vec<Stream>,
    waiting: VecDeque<Stream>,
    /// Tokens of context of those that run.
    context_tokens: u64,
    /// Tokens that those that run will have at their end.
    reserved_tokens: u64,
    stretch: StepRun,
}

#[derive(Debug)]
struct Stream {
    request: usize,
    tokens_left: u32,
    reserved_tokens: u64,
    prompt_tokens: u64,
    first_s: Option<Seconds>,
    worst_gap_s: Seconds,
}

/// An answer that is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Index of the request.
    pub request: usize,
    /// Time at which its first token was there.
    pub first_s: Seconds,
    /// Time at which its last token was there.
    pub last_s: Seconds,
    /// The longest time between two of its tokens; 0 if it has one.
    pub worst_gap_s: Seconds,
}

/// Steps with the same requests in them: the n-th, from 0, takes `first_s + n * slope_s`.
#[derive(Clone, Copy, Debug, Default)]
struct StepRun {
    start_s: Seconds,
    first_s: Seconds,
    slope_s: Seconds,
}

/// Tolerance between two ways to the same time.
const EPSILON_S: Seconds = 1e-9;

impl StepRun {
    /// Time at which the first `steps` are through.
    fn after(&self, steps: u32) -> Seconds {
        let n = f64::from(steps);
        self.start_s + n * self.first_s + self.slope_s * n * (n - 1.0) / 2.0
    }

    /// Steps that are through at `now`.
    fn through(&self, now: Seconds) -> u32 {
        let elapsed = now + EPSILON_S - self.start_s;
        if elapsed < self.first_s {
            return 0;
        }
        // The root of half the slope n² + (first - half the slope) n - elapsed, in the form that is
        // exact for no slope.
        let linear = self.first_s - self.slope_s / 2.0;
        let root = (linear * linear + 2.0 * self.slope_s * elapsed).sqrt();
        let mut steps = (2.0 * elapsed / (linear + root)) as u32;
        while self.after(steps) > now + EPSILON_S {
            steps -= 1;
        }
        while self.after(steps + 1) <= now + EPSILON_S {
            steps += 1;
        }
        steps
    }
}

impl Decoder {
    /// Queues a request whose KV has arrived, with the number of tokens of its answer. It joins at
    /// the end of a step, when there is room for all the KV that it will have: no request is
    /// preempted.
    pub fn queue(&mut self, request: usize, prompt_tokens: u32, output_tokens: u32) {
        let output_tokens = output_tokens.max(1);
        self.waiting.push_back(Stream {
            request,
            tokens_left: output_tokens,
            reserved_tokens: u64::from(prompt_tokens) + u64::from(output_tokens),
            prompt_tokens: u64::from(prompt_tokens),
            first_s: None,
            worst_gap_s: 0.0,
        });
    }

    /// Time at which to call [`Decoder::turn`] next, as things are.
    #[must_use]
    pub fn next(&self, now: Seconds, costs: &Costs) -> Option<Seconds> {
        let Some(shortest) = self.running.iter().map(|stream| stream.tokens_left).min() else {
            return (!self.waiting.is_empty()).then_some(now);
        };
        let steps = if self.admits(costs) { self.stretch.through(now) + 1 } else { shortest };
        Some(self.stretch.after(steps.min(shortest)))
    }

    /// Ends a step at which a request leaves or joins, at the time that [`Decoder::next`] returned.
    pub fn turn(&mut self, now: Seconds, costs: &Costs) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut start_s = now;
        if let Some(shortest) = self.running.iter().map(|stream| stream.tokens_left).min() {
            let steps = self.stretch.through(now).min(shortest);
            start_s = self.stretch.after(steps);
            self.give(steps, &mut answers);
        }
        while self.admits(costs) {
            let Some(stream) = self.waiting.pop_front() else { break };
            self.reserved_tokens += stream.reserved_tokens;
            self.context_tokens += stream.prompt_tokens;
            self.running.push(stream);
        }
        let first_s = costs.decode(self.running.len(), self.context_tokens);
        let slope_s = costs.decode_token_s * self.running.len() as f64;
        self.stretch = StepRun { start_s, first_s, slope_s };
        answers
    }

    /// Every running request gets `steps` tokens.
    fn give(&mut self, steps: u32, answers: &mut Vec<Answer>) {
        if steps == 0 {
            return;
        }
        let stretch = self.stretch;
        let last_s = stretch.after(steps);
        let worst_s = stretch.first_s + stretch.slope_s * f64::from(steps - 1);
        self.context_tokens += u64::from(steps) * self.running.len() as u64;
        for stream in &mut self.running {
            stream.tokens_left -= steps;
            // The first token ends no gap between tokens.
            if stream.first_s.is_some() || steps > 1 {
                stream.worst_gap_s = stream.worst_gap_s.max(worst_s);
            }
            let first_s = *stream.first_s.get_or_insert_with(|| stretch.after(1));
            if stream.tokens_left == 0 {
                self.context_tokens -= stream.reserved_tokens;
                self.reserved_tokens -= stream.reserved_tokens;
                let worst_gap_s = stream.worst_gap_s;
                answers.push(Answer { request: stream.request, first_s, last_s, worst_gap_s });
            }
        }
        self.running.retain(|stream| stream.tokens_left > 0);
    }

    /// True if the first of those that wait can join. An answer that never fits runs alone.
    fn admits(&self, costs: &Costs) -> bool {
        let Some(stream) = self.waiting.front() else { return false };
        let fits = self.reserved_tokens + stream.reserved_tokens <= costs.decode_kv_tokens;
        self.running.is_empty() || (fits && self.running.len() < costs.decode_requests)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs() -> Costs {
        Costs {
            decode_step_s: 1.0,
            decode_request_s: 0.1,
            decode_token_s: 0.001,
            decode_kv_tokens: 1_000,
            decode_requests: 3,
            ..Costs::default()
        }
    }

    /// Lets it run with arrivals of (time, prompt, output), the request being the position.
    fn run(arrivals: &[(f64, u32, u32)]) -> Vec<Answer> {
        let (costs, mut decoder, mut answers) = (costs(), Decoder::default(), Vec::new());
        let (mut at, mut next): (usize, Option<f64>) = (0, None);
        loop {
            match (arrivals.get(at), next) {
                (Some((time, prompt, output)), planned) if planned.is_none_or(|planned| *time < planned) => {
                    decoder.queue(at, *prompt, *output);
                    at += 1;
                    next = decoder.next(*time, &costs);
                }
                (_, Some(time)) => {
                    answers.extend(decoder.turn(time, &costs));
                    next = decoder.next(time, &costs);
                }
                (_, None) => break,
            }
        }
        answers.sort_by_key(|answer| answer.request);
        answers
    }

    /// The same, token by token.
    fn naive(arrivals: &[(f64, u32, u32)]) -> Vec<Answer> {
        struct NaiveStream {
            request: usize,
            context: u64,
            left: u32,
            need: u64,
            first: Option<f64>,
            last: f64,
            worst: f64,
        }
        let costs = costs();
        let (mut now, mut at) = (0.0, 0);
        let (mut waiting, mut running, mut answers) =
            (VecDeque::new(), Vec::<NaiveStream>::new(), Vec::new());
        while answers.len() < arrivals.len() {
            while at < arrivals.len() && (arrivals[at].0 < now || (running.is_empty() && waiting.is_empty()))
            {
                waiting.push_back((at, arrivals[at]));
                now = f64::max(now, arrivals[at].0);
                at += 1;
            }
            while let Some((request, (_, prompt, output))) = waiting.front().copied() {
                let need = u64::from(prompt + output);
                let held: u64 = running.iter().map(|one| one.need).sum();
                let fits = held + need <= costs.decode_kv_tokens && running.len() < costs.decode_requests;
                if !(running.is_empty() || fits) {
                    break;
                }
                waiting.pop_front();
                let context = u64::from(prompt);
                running.push(NaiveStream {
                    request,
                    context,
                    left: output,
                    need,
                    first: None,
                    last: 0.0,
                    worst: 0.0,
                });
            }
            now += costs.decode(running.len(), running.iter().map(|one| one.context).sum());
            for one in &mut running {
                (one.left, one.context) = (one.left - 1, one.context + 1);
                if one.first.is_some() {
                    one.worst = one.worst.max(now - one.last)
                }
                one.first.get_or_insert(now);
                one.last = now;
            }
            let ended = running.extract_if(.., |one| one.left == 0);
            answers.extend(ended.map(|one| Answer {
                request: one.request,
                first_s: one.first.unwrap(),
                last_s: now,
                worst_gap_s: one.worst,
            }));
        }
        answers.sort_by_key(|answer| answer.request);
        answers
    }

    #[test]
    fn a_lone_request_gets_a_token_each_step() {
        let answers = run(&[(5.0, 100, 3)]);
        let steps = [1.2, 1.201, 1.202];
        let expected = (5.0 + steps[0], 5.0 + steps.iter().sum::<f64>(), steps[2]);
        let Answer { first_s, last_s, worst_gap_s, .. } = answers[0];
        for (got, want) in [(first_s, expected.0), (last_s, expected.1), (worst_gap_s, expected.2)] {
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
    }

    #[test]
    fn oversized_request_waits_for_room() {
        let answers = run(&[(0.0, 600, 10), (0.5, 600, 2), (0.6, 5_000, 2)]);
        assert!(answers[1].first_s > answers[0].last_s);
        assert!(answers[2].first_s > answers[1].last_s, "runs alone, since it never fits");
    }

    proptest! {
        #[test]
        fn stretches_equal_single_steps(
            mut arrivals in proptest::collection::vec((0.0f64..60.0, 1u32..400, 1u32..30), 1..25),
        ) {
            arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (fast, slow) = (run(&arrivals), naive(&arrivals));
            prop_assert_eq!(fast.len(), arrivals.len());
            for (fast, slow) in fast.iter().zip(&slow) {
                prop_assert_eq!(fast.request, slow.request);
                prop_assert!((fast.first_s - slow.first_s).abs() < 1e-6, "{:?} {:?}", fast, slow);
                prop_assert!((fast.last_s - slow.last_s).abs() < 1e-6, "{:?} {:?}", fast, slow);
                prop_assert!((fast.worst_gap_s - slow.worst_gap_s).abs() < 1e-6, "{:?} {:?}", fast, slow);
            }
        }
    }
}
