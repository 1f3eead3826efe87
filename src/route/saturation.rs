//! Load of a role in engines: the number that would bear what comes, and how near the present
//! number is to its limit.
//!
//! Prefillers and encoders are servers of a queue, each with one piece of work at a time. Work
//! that comes at random times is late if it waits longer than a target; a role bears a load when
//! at most [`LATE_SHARE`] of the pieces are late. That share is Erlang's probability of waiting,
//! times that of waiting longer than the target, which is taken to fall exponentially, with the
//! mean of a queue with general service times (Allen and Cunneen's approximation of M/G/c, exact
//! for M/M/c).
//!
//! A decoder has all its streams at once, and each makes the steps of the others longer. It bears
//! as many as keep its steps within a target, its KV in memory, and its own limit of requests. A
//! step of one stream alone is the same on any number of decoders: a target near that or below it
//! is raised to [`LONE_STEPS`] of it. How long it is can't be told from steps of one number of
//! streams alone: then the target stays, and where they are longer than it each stream is taken to
//! add as much.

use super::decode::FULL;
use super::job::Seconds;
use super::learn::LearnedSteps;

/// Share of the pieces of work that may wait longer than the target: that of the replay's SLO.
pub const LATE_SHARE: f64 = 0.1;
/// The shortest target of a decoder, in steps of one stream alone. More decoders shorten only what
/// other streams add to a step, so that these may always add a quarter.
pub const LONE_STEPS: f64 = 1.25;
/// Most servers that are counted, which bounds the loops.
const MAX_SERVERS: u32 = 1 << 16;
/// Steps of a bisection: 2^-40 of the range is far below what can be told apart.
const HALVINGS: u32 = 40;
/// Shortest time that the tail is divided by, so that work of no length does not divide by zero.
const LEAST_S: Seconds = 1e-9;

/// Pieces of work: their number, the sum of their seconds and that of the squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkSum {
    /// Number of pieces.
    pub pieces: f64,
    /// Sum of the seconds that each takes an engine.
    pub seconds: Seconds,
    /// Sum of the squares of these seconds.
    pub squares: f64,
}

impl WorkSum {
    /// Adds one piece of work. Seconds that are no number are left out.
    pub fn add(&mut self, seconds: Seconds) {
        if seconds.is_finite() && seconds >= 0.0 {
            self.pieces += 1.0;
            self.seconds += seconds;
            self.squares += seconds * seconds;
        }
    }

    /// The pieces that were added since `before` was copied.
    #[must_use]
    pub fn since(self, before: WorkSum) -> WorkSum {
        WorkSum {
            pieces: (self.pieces - before.pieces).max(0.0),
            seconds: (self.seconds - before.seconds).max(0.0),
            squares: (self.squares - before.squares).max(0.0),
        }
    }

    /// Mean seconds of a piece; 0 without pieces.
    #[must_use]
    pub fn mean_s(&self) -> Seconds {
        if self.pieces > 0.0 { self.seconds / self.pieces } else { 0.0 }
    }

    /// Mean seconds that are left of a piece which is met under way: half of a piece where all are
    /// alike, more where long ones are among them.
    #[must_use]
    pub fn residual_s(&self) -> Seconds {
        if self.seconds > 0.0 { self.squares / (2.0 * self.seconds) } else { 0.0 }
    }
}

/// Load on servers that each do one piece of work at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueLoad {
    /// Seconds of work that come per second: the number of servers that it keeps busy.
    pub busy: f64,
    /// Mean seconds that are left of a piece which is met under way.
    pub residual_s: Seconds,
    /// Time for which a piece may wait without being late.
    pub wait_s: Seconds,
}

impl QueueLoad {
    /// Share of the pieces that are late with this number of servers.
    #[must_use]
    pub fn late_share(&self, servers: u32) -> f64 {
        let blocked = (1..=servers).fold(1.0, |blocked, server| self.blocked_with(blocked, server));
        self.late_of(blocked, servers)
    }

    /// The least number of servers with which enough pieces are in time; 0 without load.
    #[must_use]
    pub fn servers_needed(&self) -> u32 {
        if self.busy.is_nan() || self.busy <= 0.0 {
            return 0;
        }
        let mut blocked = 1.0;
        for servers in 1..MAX_SERVERS {
            blocked = self.blocked_with(blocked, servers);
            if self.late_of(blocked, servers) <= LATE_SHARE {
                return servers;
            }
        }
        MAX_SERVERS
    }

    /// This load as a share of the largest one of the same kind of work that so many servers bear;
    /// 1 = just borne.
    #[must_use]
    pub fn saturation(&self, servers: u32) -> f64 {
        let servers = servers.clamp(1, MAX_SERVERS);
        let (mut borne, mut too_much) = (0.0, f64::from(servers));
        for _ in 0..HALVINGS {
            let busy = f64::midpoint(borne, too_much);
            let is_borne = QueueLoad { busy, ..*self }.late_share(servers) <= LATE_SHARE;
            *(if is_borne { &mut borne } else { &mut too_much }) = busy;
        }
        self.busy.max(0.0) / too_much
    }

    /// Erlang's B with one server more than `before` was of.
    fn blocked_with(&self, before: f64, server: u32) -> f64 {
        let offered = self.busy * before;
        offered / (f64::from(server) + offered)
    }

    /// Share of late pieces with Erlang's B of this number of servers.
    fn late_of(&self, blocked: f64, servers: u32) -> f64 {
        let spare = f64::from(servers) - self.busy;
        if spare <= 0.0 {
            return 1.0;
        }
        let waits = f64::from(servers) * blocked / (spare + self.busy * blocked);
        waits * (-spare * self.wait_s / self.residual_s.max(LEAST_S)).exp()
    }
}

/// Streams on a decoder, or on one data-parallel rank of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodePlace {
    /// Number of streams.
    pub streams: f64,
    /// Tokens of context that they have and will have.
    pub kv_tokens: f64,
    /// Tokens that fit; 0 = unknown.
    pub kv_capacity_tokens: f64,
    /// Most streams that it takes, where it has said so.
    pub most_streams: Option<f64>,
}

/// Load of decoders, in those that would just keep the target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeLoad {
    /// Number of places that would bear the streams.
    pub places_needed: f64,
    /// Streams of all places, each as the part of a place that it takes.
    pub streams_in_places: f64,
}

impl DecodeLoad {
    /// Load of these places, whose steps should take no longer than `per_token_s`, or than
    /// [`LONE_STEPS`] of a stream alone where that is more.
    #[must_use]
    pub fn of(places: &[DecodePlace], steps: &LearnedSteps, per_token_s: Seconds) -> DecodeLoad {
        let streams: f64 = places.iter().map(|place| place.streams).sum();
        let kv_tokens: f64 = places.iter().map(|place| place.kv_tokens).sum();
        let context_tokens = if streams > 0.0 { kv_tokens / streams } else { 0.0 };
        let mut load = DecodeLoad::default();
        for place in places.iter().filter(|place| place.streams > 0.0) {
            for line in StepLine::likely(steps, place.streams, context_tokens, per_token_s) {
                let most = place.most_streams(&line, context_tokens);
                let part = line.share * place.streams / most;
                // With fewer streams in it a step is shorter, and each stream is over sooner: so
                // many on this place are more of them on fewer places.
                let full_step_s = line.lone_s + line.each_s * (most - 1.0);
                let step_s = steps.costs.step(place.streams, place.kv_tokens);
                load.places_needed += part * (full_step_s / step_s.max(LEAST_S)).max(1.0);
                load.streams_in_places += part;
            }
        }
        load
    }
}

/// Length of a step by the number of its streams.
#[derive(Clone, Copy, Debug)]
struct StepLine {
    /// A step of one stream alone.
    lone_s: Seconds,
    /// Seconds that each further stream adds.
    each_s: Seconds,
    /// Longest step that is to be.
    target_s: Seconds,
    /// Share of the belief that this is the line.
    share: f64,
}

impl StepLine {
    /// Lines that steps with so many streams of this mean context may be on: the learned one, as
    /// far as its split is known. As far as it is not, it is not known either that a step alone is
    /// too long: the target stays, and where steps are longer than it each stream is taken to add
    /// as much as the first. Where steps are as long as the target, either line is a load of one.
    fn likely(
        steps: &LearnedSteps,
        streams: f64,
        context_tokens: f64,
        per_token_s: Seconds,
    ) -> [StepLine; 2] {
        let LearnedSteps { costs, split_known } = steps;
        let each_s = costs.per_request_s + costs.per_token_s * context_tokens;
        let (lone_s, step_s) = (costs.base_s + each_s, costs.base_s + each_s * streams);
        let target_s = per_token_s.max(LONE_STEPS * lone_s);
        let learned = StepLine { lone_s, each_s, target_s, share: *split_known };
        let guess = StepLine { target_s: per_token_s, share: 1.0 - split_known, ..learned };
        if step_s <= per_token_s {
            return [learned, guess];
        }
        let each_s = step_s / streams.max(1.0);
        [learned, StepLine { lone_s: each_s, each_s, ..guess }]
    }
}

impl DecodePlace {
    /// Streams of this mean context that it bears, one at least.
    fn most_streams(&self, line: &StepLine, context_tokens: f64) -> f64 {
        let in_time = 1.0 + (line.target_s - line.lone_s) / line.each_s.max(LEAST_S);
        let in_memory = match self.kv_capacity_tokens > 0.0 && context_tokens > 0.0 {
            true => FULL * self.kv_capacity_tokens / context_tokens,
            false => f64::INFINITY,
        };
        in_time.min(in_memory).min(self.most_streams.unwrap_or(f64::INFINITY)).max(1.0)
    }
}

#[cfg(test)]
pub(crate) mod tests;
