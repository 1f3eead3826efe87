//! One fleet behind several gateways that decide as one.
//!
//! One of the gateways, the *leader*, places the requests of all: a request goes to it in one short
//! message, waits in its line, and its place comes back in another one. Then its gateway tells all
//! which place it has, together with what else happened within [`LATER_S`], so that each one's
//! scheduler has the whole picture: when the leader is gone, or far away, a gateway places its
//! requests itself by what it has heard, and tells the others. Compared in the replay, gateways
//! that always decide by themselves on the same picture have a p90 of the first token that is 5 to
//! 28 % longer than one gateway's at a delay of 20 ms, since two of them take the same open
//! prefiller, and neither knows the other's line; with a leader it is 0 to 3 %. Above [`FAR_S`]
//! that turns round.
//!
//! Without others this is the scheduler alone. Pure, as the scheduler is: messages come in by
//! [`SharedScheduler::hear`] and go out by [`SharedScheduler::take_messages`]; who leads is decided
//! elsewhere.

mod asks;
mod chain;
mod hear;
mod lanes;
pub mod message;
mod peers;
mod share;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::message::{DecoderLoad, Numbered, ReplicaId};
use self::share::Share;
use super::job::{LaneId, Seconds};
use super::lane::LaneSpec;
use super::scheduler::{
    Booking, CacheView, Commit, Done, NewRequest, PrefillScheduler, SchedulerSettings, Ticket,
};

pub use self::peers::PeerFacts;
pub use self::share::{Standing, Traffic};

/// A message there and back must not take longer than this, for the leader to be asked: beyond it
/// requests are served sooner by a choice of their own gateway.
pub const FAR_S: Seconds = 0.06;
/// Time without a beat after which the leader, or another gateway, is taken to be gone.
pub const SILENCE_S: Seconds = 0.35;
/// Time within which a gateway that missed messages asks others only once to say all anew.
pub const ASK_ANEW_S: Seconds = 0.5;
/// Time between two beats of a gateway.
pub const BEAT_S: Seconds = 0.1;
/// Longest time for which a gateway keeps what changes nothing for others at the moment, to tell it
/// with more: they need it when they decide for themselves, and it wakes each of them.
pub const LATER_S: Seconds = 0.025;

/// A prefill scheduler that may share its fleet with those of other gateways.
#[derive(Debug)]
pub struct SharedScheduler {
    board: PrefillScheduler,
    share: Option<Box<Share>>,
}

/// A moment, and the sources that a decision uses.
pub struct Sources<'a> {
    /// Time of the decision.
    pub now: Seconds,
    /// View of what prefillers tell of their caches.
    pub view: &'a dyn CacheView,
    /// Source of random numbers.
    pub random: &'a mut dyn FnMut() -> u64,
}

impl SharedScheduler {
    /// A scheduler of its own.
    pub fn new(settings: SchedulerSettings) -> SharedScheduler {
        SharedScheduler { board: PrefillScheduler::new(settings), share: None }
    }

    /// Shares the fleet with others from now on, as the gateway `me`.
    pub fn share(&mut self, me: ReplicaId) {
        let mut share = Share::new(me);
        for (lane, spec) in self.board.lane_specs() {
            share.names.open(lane, spec.identity);
        }
        self.share = Some(Box::new(share));
    }

    /// The scheduler, for what others need not know.
    pub fn board(&self) -> &PrefillScheduler {
        &self.board
    }

    /// The same, to change it.
    pub fn board_mut(&mut self) -> &mut PrefillScheduler {
        &mut self.board
    }

    /// A prefiller joins. None if there are too many already.
    pub fn join(&mut self, spec: LaneSpec) -> Option<LaneId> {
        let lane = self.board.join(spec)?;
        if let Some(share) = &mut self.share {
            share.names.open(lane, spec.identity);
        }
        Some(lane)
    }

    /// A prefiller joins, in a place of the caller's choice.
    pub fn open(&mut self, lane: LaneId, spec: LaneSpec) {
        self.board.open(lane, spec);
        if let Some(share) = &mut self.share {
            share.names.open(lane, spec.identity);
        }
    }

    /// A prefiller is gone.
    pub fn close(&mut self, lane: LaneId) {
        self.board.close(lane);
        if let Some(share) = &mut self.share {
            share.names.close(lane);
        }
    }

    /// Places a request that finds its prefiller free, or gives it a place in a line: here, or at
    /// the leader.
    ///
    /// # Errors
    /// The place in the line.
    pub fn try_assign(
        &mut self,
        mut new_request: NewRequest<'_>,
        sources: Sources<'_>,
    ) -> Result<Commit, Ticket> {
        if let Some(ticket) = self.ask(&mut new_request, &sources) {
            return Err(ticket);
        }
        let Sources { now, view, random } = sources;
        let commit = self.board.try_assign(new_request, now, view, random)?;
        if let Some(share) = &mut self.share {
            share.committed(&commit);
        }
        Ok(commit)
    }

    /// Gives a request a place in a line: here, or at the leader.
    pub fn return_to_line(&mut self, mut new_request: NewRequest<'_>, sources: Sources<'_>) -> Ticket {
        let asked = self.ask(&mut new_request, &sources);
        let NewRequest { since_s, job, tried } = new_request;
        asked.unwrap_or_else(|| self.board.return_to_line(since_s, job, tried))
    }

    /// Asks the leader to place a request, if there is one to be asked; returns its ticket. Where
    /// the fleet is shared the request is known by its chain from here on.
    fn ask(&mut self, new_request: &mut NewRequest<'_>, sources: &Sources<'_>) -> Option<Ticket> {
        let share = self.share.as_mut()?;
        new_request.job = chain::with_chain(&new_request.job);
        share.asks_leader().then(|| share.ask(&self.board, new_request, sources))
    }

    /// Commits those whose prefiller is about to be free, and returns those of this gateway. To be
    /// called as that of the scheduler, and after each message.
    pub fn pump(&mut self, sources: Sources<'_>) -> Vec<Commit> {
        let commits = self.board.pump(sources.now, sources.view, sources.random);
        match &mut self.share {
            None => commits,
            Some(share) => share.pumped(commits),
        }
    }

    /// A prefill of this gateway ended.
    pub fn done(&mut self, now: Seconds, booking: Booking, done: Done) {
        self.board.done(now, booking, done);
        if let Some(share) = &mut self.share {
            share.ended(booking, done);
        }
    }

    /// A request of this gateway does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) {
        let ticket = match &mut self.share {
            None => Some(ticket),
            Some(share) => share.cancel(ticket),
        };
        if let Some(ticket) = ticket {
            self.board.cancel(ticket);
        }
    }

    /// Takes over what another gateway says. What follows from it is told by
    /// [`pump`](Self::pump).
    pub fn hear(&mut self, now: Seconds, from: ReplicaId, message: &Numbered) {
        if let Some(share) = &mut self.share {
            share.hear(&mut self.board, now, from, message);
        }
    }

    /// This gateway leads, or does so no longer, as the lease of all says.
    pub fn lead(&mut self, leads: bool, now: Seconds) {
        if let Some(share) = &mut self.share {
            share.lead(&mut self.board, leads, now);
        }
    }

    /// Others can be heard from now on, or no longer. Without them all is decided here.
    pub fn connect(&mut self, connected: bool, now: Seconds) {
        if let Some(share) = &mut self.share {
            share.connect(&mut self.board, connected, now);
        }
    }

    /// Lets time pass: requests that got no sign from the leader are placed here, and gateways that
    /// are silent are forgotten.
    pub fn pass(&mut self, now: Seconds) {
        if let Some(share) = &mut self.share {
            share.pass(&mut self.board, now);
        }
    }

    /// The next moment at which to let time pass for requests that wait for a sign.
    pub fn next_pass_s(&self) -> Option<Seconds> {
        self.share.as_ref().and_then(|share| share.next_lapse_s())
    }

    /// Says that this gateway is there, and what load it has on decoders. To be called each
    /// [`BEAT_S`].
    pub fn beat(&mut self, now: Seconds, decoders: Vec<DecoderLoad>) {
        if let Some(share) = &mut self.share {
            share.beat(&self.board, now, decoders);
        }
    }

    /// Says what has waited for a later message. To be called each [`LATER_S`].
    pub fn tell_rest(&mut self) {
        if let Some(share) = &mut self.share {
            share.say_rest();
        }
    }

    /// Loads that the other gateways have on decoders, by name, as their last beats told.
    pub fn decoders_elsewhere(&self) -> HashMap<u64, DecoderLoad> {
        self.share.as_ref().map(|share| share.decoders_elsewhere()).unwrap_or_default()
    }

    /// A prefiller has so many requests that this gateway did not send it, as its own metrics tell.
    /// Those of gateways that are heard are known by their messages.
    pub fn set_external_requests(&mut self, now: Seconds, lane: LaneId, requests: f64) {
        let told = self.share.as_ref().map_or(0, |share| share.booked_elsewhere(lane));
        let unknown = (requests - f64::from(told)).max(0.0);
        self.board.set_external_requests(now, lane, unknown);
    }

    /// Messages to be sent to others, in their order. Those for all go before those for one.
    pub fn take_messages(&mut self) -> Vec<Numbered> {
        self.share.as_mut().map(|share| share.take_messages()).unwrap_or_default()
    }

    /// Number of requests that wait, those of this gateway at the leader included.
    pub fn waiting(&self) -> usize {
        self.board.waiting() + self.share.as_ref().map_or(0, |share| share.asked())
    }

    /// Predicted seconds of work of those who wait, for each prefiller, wherever they wait.
    pub fn line_s(&self) -> Seconds {
        self.board.line_s() + self.share.as_ref().map_or(0.0, |share| share.leaders_line_s())
    }

    /// Standing among the other gateways; none where the fleet is not shared.
    pub fn standing(&self) -> Option<Standing> {
        self.share.as_ref().map(|share| share.standing())
    }

    /// Number of this gateway among others, and facts of those that are heard; none where the fleet
    /// is not shared.
    pub fn gateways(&self, now: Seconds) -> Option<(ReplicaId, Vec<PeerFacts>)> {
        self.share.as_ref().map(|share| (share.me, share.peer_facts(now)))
    }

    /// Number of gateways of the fleet that are heard, this one included; none where the fleet is
    /// not shared.
    pub fn heard_gateways(&self) -> Option<usize> {
        self.share.as_ref().map(|share| share.heard() + 1)
    }

    /// Counts of what was told since the start; none where the fleet is not shared.
    pub fn traffic(&self) -> Option<Traffic> {
        self.share.as_ref().map(|share| share.traffic())
    }
}

impl std::fmt::Debug for Sources<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("now", &self.now).finish_non_exhaustive()
    }
}
