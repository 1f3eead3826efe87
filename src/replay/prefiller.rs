//! A prefiller: prompts in the order in which they came, computed in chunks, as many as a step has
//! room for.

use std::collections::VecDeque;

use super::Seconds;
use super::costs::Costs;
use super::link::Link;

/// The state of one prefiller.
#[derive(Debug)]
pub struct Prefiller {
    /// Link over which it restores blocks.
    pub inward: Link,
    /// Link over which it hands KV over.
    pub outward: Link,
    /// Link over which KV goes on from there to another rack.
    pub uplink: Link,
    ready: VecDeque<Work>,
    slowness: f64,
    computing: bool,
    busy_s: Seconds,
    turns: u64,
}

#[derive(Debug)]
struct Work {
    request: usize,
    turn: u64,
    prompt_tokens: u32,
    have_tokens: u32,
    cached_tokens: u32,
    started: bool,
}

/// A prompt that has been computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Computed {
    /// Index of the request.
    pub request: usize,
    /// Tokens of it that were there before.
    pub cached_tokens: u32,
}

impl Prefiller {
    /// An idle prefiller that takes `slowness` times what the costs say.
    #[must_use]
    pub fn new(slowness: f64) -> Prefiller {
        Prefiller {
            inward: Link::default(),
            outward: Link::default(),
            uplink: Link::default(),
            ready: VecDeque::new(),
            slowness,
            computing: false,
            busy_s: 0.0,
            turns: 0,
        }
    }

    /// Queues a hand-over that takes so long on its own link, and returns the time of its end. The
    /// way to another rack is slower by `far`, and holds up only what goes there, too.
    pub fn hand_over(&mut self, now: Seconds, takes_s: Seconds, far: Option<f64>) -> Seconds {
        let sent_s = self.outward.send(now, takes_s);
        match far {
            Some(factor) => self.uplink.send(sent_s - takes_s, takes_s * factor),
            None => sent_s,
        }
    }

    /// A request came: its turn, to be given to [`Prefiller::queue`].
    pub fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Queues a prompt of which `have_tokens` leading tokens are held for it. One whose blocks were
    /// restored meanwhile has kept its turn, as in vLLM: only what has been started goes before it.
    pub fn queue(&mut self, request: usize, turn: u64, prompt_tokens: u32, have_tokens: u32) {
        let have_tokens = have_tokens.min(prompt_tokens.saturating_sub(1));
        let work = Work { request, turn, prompt_tokens, have_tokens, cached_tokens: 0, started: false };
        let place = self.ready.partition_point(|other| other.started || other.turn < turn);
        self.ready.insert(place, work);
    }

    /// Starts a step if none is on and there is work, and says how long it takes. `known` tells how
    /// many leading tokens of a request's prompt the prefix cache has: engines look that up when
    /// they first schedule a prompt.
    pub fn begin(&mut self, costs: &Costs, known: impl Fn(usize) -> u32) -> Option<Seconds> {
        if self.computing || self.ready.is_empty() {
            return None;
        }
        let mut room = costs.chunk_tokens.max(1);
        let mut takes = costs.step_s;
        for work in &mut self.ready {
            if room == 0 {
                break;
            }
            if !work.started {
                work.started = true;
                let known = known(work.request).min(work.prompt_tokens.saturating_sub(1));
                work.have_tokens = work.have_tokens.max(known);
                work.cached_tokens = work.have_tokens;
            }
            let part = room.min(work.prompt_tokens - work.have_tokens);
            takes += costs.span(work.have_tokens, work.have_tokens + part);
            work.have_tokens += part;
            room -= part;
        }
        self.computing = true;
        self.busy_s += takes * self.slowness;
        Some(takes * self.slowness)
    }

    /// Ends the step, and says which prompts are through.
    pub fn end(&mut self) -> Vec<Computed> {
        self.computing = false;
        let through = |work: &&Work| work.started && work.have_tokens == work.prompt_tokens;
        let count = self.ready.iter().take_while(through).count();
        let computed = |work: Work| Computed { request: work.request, cached_tokens: work.cached_tokens };
        self.ready.drain(..count).map(computed).collect()
    }

    /// Dies: whatever it had to do is lost.
    pub fn die(&mut self) -> Vec<usize> {
        self.computing = false;
        self.ready.drain(..).map(|work| work.request).collect()
    }

    /// Seconds of all steps so far, the running one included.
    #[must_use]
    pub fn busy_s(&self) -> Seconds {
        self.busy_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs { chunk_tokens: 100, step_s: 1.0, token_s: 0.1, square_s: 0.0, ..Costs::default() }
    }

    fn ended(prefiller: &mut Prefiller) -> Vec<usize> {
        prefiller.end().into_iter().map(|done| done.request).collect()
    }

    fn step(prefiller: &mut Prefiller, known: u32) -> f64 {
        (prefiller.begin(&costs(), |_| known).unwrap() * 1e6).round() / 1e6
    }

    #[test]
    fn a_long_prompt_takes_several_steps_and_shares_the_last() {
        let mut prefiller = Prefiller::new(1.0);
        prefiller.queue(1, 1, 150, 0);
        prefiller.queue(2, 2, 30, 0);
        prefiller.queue(3, 3, 30, 0);
        assert_eq!(step(&mut prefiller, 0), 11.0);
        assert_eq!(prefiller.begin(&costs(), |_| 0), None, "one step at a time");
        assert!(ended(&mut prefiller).is_empty());
        assert_eq!(step(&mut prefiller, 0), 11.0);
        assert_eq!(ended(&mut prefiller), [1, 2]);
        assert_eq!(step(&mut prefiller, 0), 2.0);
        assert_eq!(ended(&mut prefiller), [3]);
        assert_eq!(prefiller.begin(&costs(), |_| 0), None);
        assert_eq!(prefiller.busy_s(), 24.0);
    }

    #[test]
    fn cached_tokens_are_skipped_but_never_the_last_one() {
        let mut prefiller = Prefiller::new(2.0);
        prefiller.queue(1, 1, 50, 20);
        assert_eq!(step(&mut prefiller, 30), 2.0 * 3.0);
        assert_eq!(prefiller.end(), [Computed { request: 1, cached_tokens: 30 }]);
        prefiller.queue(2, 2, 50, 50);
        assert_eq!(step(&mut prefiller, 0), 2.0 * 1.1);
        assert_eq!(prefiller.end(), [Computed { request: 2, cached_tokens: 49 }]);
    }

    #[test]
    fn restored_request_keeps_its_turn() {
        let mut prefiller = Prefiller::new(1.0);
        let turns: Vec<u64> = (0..4).map(|_| prefiller.turn()).collect();
        prefiller.queue(2, turns[2], 150, 0);
        step(&mut prefiller, 0);
        prefiller.queue(3, turns[3], 60, 0);
        prefiller.queue(1, turns[1], 60, 0);
        assert!(ended(&mut prefiller).is_empty());
        step(&mut prefiller, 0);
        assert_eq!(ended(&mut prefiller), [2]);
        step(&mut prefiller, 0);
        assert_eq!(ended(&mut prefiller), [1, 3]);
    }

    #[test]
    fn the_dead_lose_their_work() {
        let mut prefiller = Prefiller::new(1.0);
        (1..4).for_each(|request| prefiller.queue(request, request as u64, 10, 0));
        step(&mut prefiller, 0);
        assert_eq!(prefiller.die(), [1, 2, 3]);
        assert!(ended(&mut prefiller).is_empty());
    }
}
