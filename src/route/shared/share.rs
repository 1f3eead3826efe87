//! State of one gateway among those that share a fleet.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::lanes::LaneNames;
use super::message::{Beat, Commitment, DecoderLoad, Message, Numbered, Place, ReplicaId, RequestId};
use super::peers::Peer;
use super::{FAR_S, SILENCE_S};
use crate::route::job::{Job, LaneId, Seconds};
use crate::route::scheduler::{Booking, Commit, Done, PrefillScheduler, Ticket};
use smallvec::SmallVec;

/// Numbers from here on are of requests that the leader was asked to place; those below are of
/// bookings of this gateway.
pub(super) const FIRST_ASK: u64 = 1 << 63;
/// Most requests and bookings of others that are remembered: more than they can have under way.
const MOST_ELSEWHERE: usize = 1 << 16;
/// Most decoders whose load one beat tells: 20 KB.
const MOST_DECODERS: usize = 1_024;
/// Weight of one observation of the time that a message takes.
const DELAY_STEP: f64 = 0.25;
/// Time that a message is taken to need before one was seen.
const DELAY_START_S: Seconds = 0.005;
/// The leader has so many times the time of a message there and back to give a sign.
const SIGN_FACTOR: f64 = 3.0;
/// And this much more: two turns of busy event loops.
const SIGN_MORE_S: Seconds = 0.005;

/// Standing of a gateway among those that share a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// It places the requests of all.
    Leads,
    /// Another gateway places its requests.
    Follows(ReplicaId),
    /// Nobody leads, or the leader is too far away: it places its own requests, and hears others.
    Alone,
    /// It hears nothing: it places its own requests by what it knows.
    Unconnected,
}

impl Standing {
    /// All words of it.
    pub const NAMES: [&str; 4] = ["leads", "follows", "alone", "unconnected"];

    /// Its word in metrics and on the status page.
    #[must_use]
    pub fn name(self) -> &'static str {
        let at = match self {
            Standing::Leads => 0,
            Standing::Follows(_) => 1,
            Standing::Alone => 2,
            Standing::Unconnected => 3,
        };
        Standing::NAMES[at]
    }
}

/// Counts of what was told since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that the leader was asked to place.
    pub asked: u64,
    /// Of these, requests that it placed.
    pub placed: u64,
    /// Of these, requests that were placed here in the end, since no sign of it came.
    pub lapsed: u64,
    /// Requests that were placed here at once.
    pub own: u64,
    /// Requests that were placed here for others.
    pub for_others: u64,
}

/// A request that waits at the leader.
#[derive(Debug)]
pub(super) struct OpenAsk {
    pub(super) job: Arc<Job>,
    pub(super) since_s: Seconds,
    pub(super) tried: SmallVec<[LaneId; 4]>,
    pub(super) sent_s: Seconds,
    /// The leader has said that it has it.
    pub(super) queued: bool,
}

/// Stage of another gateway's request, as far as it was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits in the line here.
    WaitsHere(Ticket),
    /// Its prefill is booked, on the prefiller of that name.
    Booked(Booking, u64),
}

#[derive(Debug)]
pub(super) struct Share {
    pub(super) me: ReplicaId,
    pub(super) names: LaneNames,
    pub(super) leads: bool,
    pub(super) connected: bool,
    pub(super) leader: Option<ReplicaId>,
    /// The leader gave no sign in time, and has not been heard since.
    pub(super) doubted: bool,
    /// Smoothed time from sending a message until all have it.
    pub(super) delay_s: Seconds,
    pub(super) last_number: u64,
    /// Requests of this gateway at the leader, by number.
    pub(super) asks: BTreeMap<u64, OpenAsk>,
    /// Those without a sign, in the order of their asking.
    pub(super) unsigned: VecDeque<u64>,
    /// Asked requests that wait in the line here instead.
    pub(super) moved: HashMap<u64, Ticket>,
    pub(super) moved_back: HashMap<Ticket, u64>,
    /// Numbers by which the others know bookings of this gateway.
    pub(super) told: HashMap<Booking, (u64, Arc<Commitment>)>,
    /// Requests of others.
    pub(super) elsewhere: HashMap<RequestId, Stage>,
    /// Of these, those that wait here.
    pub(super) waits_here: HashMap<Ticket, RequestId>,
    /// Of these, those that came since the last pass: the asker has no sign yet.
    pub(super) came: Vec<RequestId>,
    pub(super) peers: HashMap<ReplicaId, Peer>,
    /// Requests of this gateway that the leader placed since the last pass.
    pub(super) placed: Vec<Commit>,
    pub(super) traffic: Traffic,
    /// Number of the last message for all.
    said: u64,
    /// Time at which the others were last asked to say all anew.
    pub(super) asked_anew_s: Seconds,
    out: Vec<Numbered>,
    /// Messages that may wait for the next one for all.
    later: Vec<Numbered>,
}

impl Share {
    pub(super) fn new(me: ReplicaId) -> Share {
        Share {
            me,
            names: LaneNames::default(),
            leads: false,
            connected: false,
            leader: None,
            doubted: false,
            delay_s: DELAY_START_S,
            last_number: FIRST_ASK,
            asks: BTreeMap::new(),
            unsigned: VecDeque::new(),
            moved: HashMap::new(),
            moved_back: HashMap::new(),
            told: HashMap::new(),
            elsewhere: HashMap::new(),
            waits_here: HashMap::new(),
            came: Vec::new(),
            peers: HashMap::new(),
            placed: Vec::new(),
            traffic: Traffic::default(),
            said: 0,
            asked_anew_s: Seconds::NEG_INFINITY,
            out: Vec::new(),
            later: Vec::new(),
        }
    }

    /// Tells all others at once, and what has waited for that.
    pub(super) fn say(&mut self, message: Message) {
        self.say_later(message);
        self.say_rest();
    }

    /// Tells all others of something that changes nothing for them at the moment: with the next
    /// message for all, or when [`say_rest`](Self::say_rest) is called.
    pub(super) fn say_later(&mut self, message: Message) {
        if self.connected {
            self.said += 1;
            self.later.push(Numbered { number: self.said, to: None, message });
        }
    }

    /// Tells others what has waited for a later message.
    pub(super) fn say_rest(&mut self) {
        self.out.append(&mut self.later);
    }

    /// Tells all others of a booking or its end: later if one gateway decides for all and does not
    /// need to know, or else at once.
    fn report(&mut self, message: Message, is_needed: bool) {
        if !is_needed && (self.leads || self.asks_leader()) {
            self.say_later(message);
        } else {
            self.say(message);
        }
    }

    /// Tells one gateway alone.
    pub(super) fn say_to(&mut self, whom: ReplicaId, message: Message) {
        if !self.connected {
            return;
        }
        let peer = self.peers.entry(whom).or_default();
        peer.said += 1;
        self.out.push(Numbered { number: peer.said, to: Some(whom), message });
    }

    /// Drops what has not been taken.
    pub(super) fn drop_messages(&mut self) {
        self.out.clear();
        self.later.clear();
    }

    /// Messages to be sent, in their order.
    pub(super) fn take_messages(&mut self) -> Vec<Numbered> {
        std::mem::take(&mut self.out)
    }

    /// True if the leader is to place the next request.
    pub(super) fn asks_leader(&self) -> bool {
        !self.leads && self.connected && self.leader.is_some() && !self.doubted && 2.0 * self.delay_s <= FAR_S
    }

    /// Time within which the leader gives a sign.
    pub(super) fn sign_s(&self) -> Seconds {
        2.0 * self.delay_s * SIGN_FACTOR + SIGN_MORE_S
    }

    /// One of this gateway's own messages took so long until it was heard here.
    pub(super) fn observe_delay(&mut self, seconds: Seconds) {
        self.delay_s += DELAY_STEP * (seconds.max(0.0) - self.delay_s);
    }

    /// This gateway has placed a request of its own.
    pub(super) fn committed(&mut self, commit: &Commit) {
        let number = match self.moved_back.remove(&commit.ticket) {
            Some(number) => {
                self.moved.remove(&number);
                number
            }
            None => commit.booking.0,
        };
        self.traffic.own += 1;
        // The leader has not placed it, and may not know of it.
        let is_needed = !self.leads;
        if let Some(told) = self.remember_told(commit, number) {
            self.report(Message::Commit(told.as_ref().clone()), is_needed);
        }
    }

    /// Remembers under which number others know a booking, and what they are told of it.
    pub(super) fn remember_told(&mut self, commit: &Commit, number: u64) -> Option<Arc<Commitment>> {
        let terms = self.names.place_terms(&commit.terms)?;
        let prompt = self.names.facts(&commit.job, &[]);
        let told = Arc::new(Commitment { number, prompt, terms });
        self.told.insert(commit.booking, (number, told.clone()));
        Some(told)
    }

    /// Tells of new commitments, and returns those of this gateway, under the tickets that it has.
    pub(super) fn pumped(&mut self, commits: Vec<Commit>) -> Vec<Commit> {
        let mut own = std::mem::take(&mut self.placed);
        for mut commit in commits {
            if let Some(request) = self.waits_here.remove(&commit.ticket) {
                self.place_for(request, &commit);
                continue;
            }
            let asked = self.moved_back.get(&commit.ticket).copied();
            self.committed(&commit);
            if let Some(number) = asked {
                commit.ticket = Ticket(number);
            }
            own.push(commit);
        }
        let came = std::mem::take(&mut self.came);
        let waits = |id: &RequestId| matches!(self.elsewhere.get(id), Some(Stage::WaitsHere(_)));
        let queued: Vec<RequestId> = came.into_iter().filter(waits).collect();
        for (whom, queued) in by_gateway(queued) {
            self.say_to(whom, Message::Queued(queued));
        }
        own
    }

    fn place_for(&mut self, request: RequestId, commit: &Commit) {
        if let Some(stage) = self.elsewhere.get_mut(&request) {
            *stage = Stage::Booked(commit.booking, self.names.name(commit.terms.lane).unwrap_or(0));
        }
        self.traffic.for_others += 1;
        let waiting = u32::try_from(commit.waiting).unwrap_or(u32::MAX);
        if let Some(terms) = self.names.place_terms(&commit.terms) {
            self.say_to(request.replica, Message::Place(Place { request, terms, waiting }));
        }
    }

    /// A prefill of this gateway ended.
    pub(super) fn ended(&mut self, booking: Booking, end: Done) {
        if let Some((number, _)) = self.told.remove(&booking) {
            // Who waits at the leader may have the prefiller now.
            let waits = self.leader_has_line() || self.asks.values().any(|ask| ask.queued);
            self.report(Message::Ended { number, end }, waits && !self.leads);
        }
    }

    /// Remembers a request of another gateway, unless there are too many.
    pub(super) fn remember(&mut self, id: RequestId, stage: Stage) {
        if self.elsewhere.len() < MOST_ELSEWHERE {
            self.elsewhere.insert(id, stage);
        }
    }

    /// Forgets a request of another gateway; its prefill ended in this way.
    pub(super) fn forget(&mut self, board: &mut PrefillScheduler, now: Seconds, id: RequestId, end: Done) {
        match self.elsewhere.remove(&id) {
            Some(Stage::Booked(booking, _)) => board.done(now, booking, end),
            Some(Stage::WaitsHere(ticket)) => {
                self.waits_here.remove(&ticket);
                board.cancel(ticket);
            }
            None => {}
        }
    }

    /// Forgets a gateway that is gone, with all that it had under way.
    pub(super) fn forget_peer(&mut self, board: &mut PrefillScheduler, now: Seconds, gone: ReplicaId) {
        self.peers.remove(&gone);
        self.forget_requests(board, now, gone);
    }

    /// Forgets all requests of a gateway.
    pub(super) fn forget_requests(&mut self, board: &mut PrefillScheduler, now: Seconds, gone: ReplicaId) {
        let its: Vec<RequestId> = self.elsewhere.keys().filter(|id| id.replica == gone).copied().collect();
        for id in its {
            self.forget(board, now, id, Done::Unseen);
        }
    }

    /// Gateways that have not been heard for a while.
    pub(super) fn silent(&self, now: Seconds) -> SmallVec<[ReplicaId; 4]> {
        let silent = self.peers.iter().filter(|(_, peer)| now - peer.heard_s > SILENCE_S);
        silent.map(|(id, _)| *id).collect()
    }

    pub(super) fn beat(&mut self, board: &PrefillScheduler, now: Seconds, mut decoders: Vec<DecoderLoad>) {
        decoders.truncate(MOST_DECODERS);
        let waiting = u32::try_from(board.waiting()).unwrap_or(u32::MAX);
        let (leads, line_s) = (self.leads, board.line_s());
        self.say(Message::Beat(Beat { sent_s: now, leads, waiting, line_s, decoders }));
    }

    /// Number of requests of this gateway that wait at the leader.
    pub(super) fn asked(&self) -> usize {
        self.asks.len()
    }

    pub(super) fn standing(&self) -> Standing {
        match self.leader {
            _ if !self.connected => Standing::Unconnected,
            _ if self.leads => Standing::Leads,
            Some(leader) if self.asks_leader() => Standing::Follows(leader),
            _ => Standing::Alone,
        }
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }
}

/// Requests of each gateway, in their order.
fn by_gateway(requests: Vec<RequestId>) -> BTreeMap<ReplicaId, Vec<RequestId>> {
    let mut all: BTreeMap<ReplicaId, Vec<RequestId>> = BTreeMap::new();
    requests.into_iter().for_each(|it| all.entry(it.replica).or_default().push(it));
    all
}
