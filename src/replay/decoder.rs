//! A decoder: continuous batching, a token for every request at each step, steps one after the
//! other.
//!
//! Nothing but arithmetic happens between a request's joining or leaving and the next one's, so
//! that is one event: within such a *stretch* each step takes the same time more than the one
//! before, as every context grows by a token.
//!
//! A prompt of which it lacks a part is computed between: as in vLLM, each step has a budget of
//! tokens that answers take first and such prompts then, in the order in which they came. A step
//! takes what its answers take, and what computing its chunk takes beside the weights that are read
//! once. Vidur's profiles of Llama-2-70B on eight A100 (`data/profiling` of `microsoft/vidur`, the
//! linear layers and all-reduces) say the same: 256 tokens more in a step of eight take 27 ms more,
//! 512 take 57 ms; by the costs here 29 and 57, and 7 for whatever there is once in such a step.

use std::collections::VecDeque;

use super::Seconds;
use super::costs::Costs;

/// The state of one decoder.
#[derive(Debug, Default)]
pub struct Decoder {
    running: Vec<Stream>,
    waiting: VecDeque<Stream>,
    /// Those that have room, and of whose prompts a part is still to be computed.
    computing: VecDeque<Stream>,
    /// Requests whose prompts were computed here since they were last taken.
    computed: Vec<usize>,
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
    /// Leading tokens of the prompt that are there, at the end of the step under way.
    have_tokens: u32,
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
        self.queue_append(request, prompt_tokens, prompt_tokens, output_tokens);
    }

    /// Queues a request of whose prompt only `have_tokens` leading tokens are here; the rest is
    /// computed here, and its end gives the first token.
    pub fn queue_append(&mut self, request: usize, have_tokens: u32, prompt_tokens: u32, output_tokens: u32) {
        let output_tokens = output_tokens.max(1);
        self.waiting.push_back(Stream {
            request,
            tokens_left: output_tokens,
            reserved_tokens: u64::from(prompt_tokens) + u64::from(output_tokens),
            prompt_tokens: u64::from(prompt_tokens),
            have_tokens,
            first_s: None,
            worst_gap_s: 0.0,
        });
    }

    /// Requests whose prompts have been computed here since the last call.
    pub fn take_computed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.computed)
    }

    /// Time at which to call [`Decoder::turn`] next, as things are.
    #[must_use]
    pub fn next(&self, now: Seconds, costs: &Costs) -> Option<Seconds> {
        let Some(most) = self.most_steps() else {
            return (!self.waiting.is_empty()).then_some(now);
        };
        let steps = if self.admits(costs) { self.stretch.through(now) + 1 } else { most };
        Some(self.stretch.after(steps.min(most)))
    }

    /// Steps of the stretch under way: as far as the next answer ends, or a chunk.
    fn most_steps(&self) -> Option<u32> {
        let shortest = self.running.iter().map(|stream| stream.tokens_left).min();
        if self.computing.is_empty() { shortest } else { Some(1) }
    }

    /// Ends a step at which a request leaves or joins, at the time that [`Decoder::next`] returned.
    pub fn turn(&mut self, now: Seconds, costs: &Costs) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut start_s = now;
        if let Some(most) = self.most_steps() {
            let steps = self.stretch.through(now).min(most);
            start_s = self.stretch.after(steps);
            self.give(steps, &mut answers);
        }
        while self.admits(costs) {
            let Some(stream) = self.waiting.pop_front() else { break };
            self.reserved_tokens += stream.reserved_tokens;
            if u64::from(stream.have_tokens) < stream.prompt_tokens {
                self.computing.push_back(stream);
                continue;
            }
            self.context_tokens += stream.prompt_tokens;
            self.running.push(stream);
        }
        let chunk_s = self.compute_chunk(costs);
        let first_s = costs.decode(self.running.len(), self.context_tokens) + chunk_s;
        let slope_s = costs.decode_token_s * self.running.len() as f64;
        self.stretch = StepRun { start_s, first_s, slope_s };
        answers
    }

    /// Gives the budget that answers leave in the next step to prompts, and returns the seconds
    /// that it takes longer for them.
    fn compute_chunk(&mut self, costs: &Costs) -> Seconds {
        if self.computing.is_empty() {
            return 0.0;
        }
        let answers = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let mut room = costs.decode_chunk_tokens.saturating_sub(answers).max(1);
        let mut takes_s = (costs.step_s - costs.decode_step_s).max(0.0);
        for stream in &mut self.computing {
            let end = u32::try_from(stream.prompt_tokens).unwrap_or(u32::MAX);
            let part = room.min(end - stream.have_tokens);
            takes_s += costs.span(stream.have_tokens, stream.have_tokens + part);
            stream.have_tokens += part;
            room -= part;
        }
        takes_s
    }

    /// Those whose prompts are through at the end of a step have their first token.
    fn begin_answers(&mut self, now: Seconds, answers: &mut Vec<Answer>) {
        let is_through = |stream: &&Stream| u64::from(stream.have_tokens) == stream.prompt_tokens;
        let through = self.computing.iter().take_while(is_through).count();
        for mut stream in self.computing.drain(..through) {
            self.computed.push(stream.request);
            stream.first_s = Some(now);
            stream.tokens_left -= 1;
            if stream.tokens_left == 0 {
                self.reserved_tokens -= stream.reserved_tokens;
                answers.push(Answer { request: stream.request, first_s: now, last_s: now, worst_gap_s: 0.0 });
                continue;
            }
            self.context_tokens += stream.prompt_tokens + 1;
            self.running.push(stream);
        }
    }

    /// Every running request gets `steps` tokens, and the chunk of the step is computed.
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
        self.begin_answers(last_s, answers);
    }

    /// True if the first of those that wait can join. An answer that never fits runs alone.
    fn admits(&self, costs: &Costs) -> bool {
        let Some(stream) = self.waiting.front() else { return false };
        let fits = self.reserved_tokens + stream.reserved_tokens <= costs.decode_kv_tokens;
        let requests = self.running.len() + self.computing.len();
        requests == 0 || (fits && requests < costs.decode_requests)
    }
}

#[cfg(test)]
mod tests;
