//! Consequences of messages from others, and of their silence.

use super::ASK_ANEW_S;
use super::message::{Ask, Beat, Commitment, Message, Numbered, ReplicaId, RequestId};
use super::share::{Share, Stage};
use crate::route::job::{LaneId, Seconds};
use crate::route::scheduler::{Done, GivenBooking, PrefillScheduler};
use smallvec::SmallVec;

/// A number that no message follows.
const UNKNOWN: u64 = u64::MAX - 1;

impl Share {
    pub(super) fn hear(
        &mut self,
        board: &mut PrefillScheduler,
        now: Seconds,
        from: ReplicaId,
        Numbered { number, to, message }: &Numbered,
    ) {
        if to.is_some_and(|to| to != self.me) {
            return;
        }
        if from == self.me {
            if let Message::Beat(beat) = message {
                self.observe_delay(now - beat.sent_s);
            }
            return;
        }
        self.note_number(now, from, *number, to.is_some());
        let id = |number: &u64| RequestId { replica: from, number: *number };
        match message {
            Message::Ask(ask) if self.leads => self.hear_ask(board, now, id(&ask.number), ask),
            // Who asked gets no sign of a gateway that leads no more.
            Message::Ask(_) => {}
            Message::Queued(requests) => {
                let me = self.me;
                let mine = requests.iter().filter(|request| request.replica == me);
                mine.for_each(|request| self.signed(request.number));
            }
            Message::Place(place) if place.request.replica == self.me => self.placed(board, now, place),
            Message::Place(_) => {}
            Message::Commit(commitment) => self.hear_commit(board, now, id(&commitment.number), commitment),
            Message::Ended { number, end } => self.forget(board, now, id(number), *end),
            Message::Left { number } => self.hear_left(board, now, id(number)),
            Message::Beat(beat) => self.hear_beat(board, now, from, beat),
            Message::Hello => {
                self.peers.entry(from).or_default().last_to_me = 0;
                self.tell_all(now);
            }
            Message::Anew => self.forget_requests(board, now, from),
        }
    }

    /// Notes that a gateway is there, and asks for all anew if a message of it was missed.
    fn note_number(&mut self, now: Seconds, from: ReplicaId, number: u64, to_me: bool) {
        let peer = self.peers.entry(from).or_default();
        peer.heard_s = now;
        let last = std::mem::replace(peer.last_mut(to_me), number);
        let missed = last != 0 && number != last + 1;
        if missed && now - self.asked_anew_s > ASK_ANEW_S {
            self.asked_anew_s = now;
            self.say(Message::Hello);
            self.tell_all(now);
        } else if missed {
            // Asked for a moment ago: the next number tells it once more.
            *self.peers.entry(from).or_default().last_mut(to_me) = UNKNOWN;
        }
    }

    fn hear_ask(&mut self, board: &mut PrefillScheduler, now: Seconds, id: RequestId, ask: &Ask) {
        match self.elsewhere.get(&id).copied() {
            // A gateway that asks again has not heard of its place.
            Some(Stage::Booked(..)) => self.forget(board, now, id, Done::Failed),
            Some(Stage::WaitsHere(_)) => return self.came.push(id),
            None => {}
        }
        let job = self.names.job(&ask.prompt);
        let tried: SmallVec<[LaneId; 4]> =
            ask.tried.iter().filter_map(|name| self.names.lane(*name)).collect();
        let ticket = board.return_to_line(now - ask.waited_s.max(0.0), job, &tried);
        board.tell(ticket, now, &self.names.told(&ask.prompt));
        self.waits_here.insert(ticket, id);
        self.came.push(id);
        self.remember(id, Stage::WaitsHere(ticket));
    }

    fn hear_commit(
        &mut self,
        board: &mut PrefillScheduler,
        now: Seconds,
        id: RequestId,
        commitment: &Commitment,
    ) {
        match self.elsewhere.get(&id).copied() {
            Some(Stage::Booked(_, lane)) if lane == commitment.terms.lane => return,
            // The leader's place for it came too late.
            Some(Stage::Booked(..)) => self.forget(board, now, id, Done::Failed),
            Some(_) | None => self.forget(board, now, id, Done::Unseen),
        }
        let Some(terms) = self.names.terms(&commitment.terms) else { return };
        let job = self.names.job(&commitment.prompt);
        let given = GivenBooking { ticket: None, since_s: now, job, terms };
        let stage = Stage::Booked(board.book(now, given).booking, commitment.terms.lane);
        self.remember(id, stage);
    }

    /// A request waits no more. What is booked for it ends when its gateway says so.
    fn hear_left(&mut self, board: &mut PrefillScheduler, now: Seconds, id: RequestId) {
        if !matches!(self.elsewhere.get(&id), Some(Stage::Booked(..))) {
            self.forget(board, now, id, Done::Unseen);
        }
    }

    fn hear_beat(&mut self, board: &mut PrefillScheduler, now: Seconds, from: ReplicaId, beat: &Beat) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.beat = beat.clone();
        }
        if beat.leads && !self.leads {
            self.doubted = false;
            if !self.follows(from) {
                self.leader = Some(from);
                self.ask_again(now);
            }
        } else if !beat.leads && self.follows(from) {
            self.leader = None;
            self.move_all_here(board);
        }
    }

    /// Tells one who has just come what this gateway has under way.
    fn tell_all(&mut self, now: Seconds) {
        self.say(Message::Anew);
        let commitments: Vec<Commitment> =
            self.told.values().map(|(_, told)| told.as_ref().clone()).collect();
        commitments.into_iter().for_each(|told| self.say(Message::Commit(told)));
        self.ask_again(now);
    }

    pub(super) fn lead(&mut self, board: &mut PrefillScheduler, leads: bool, now: Seconds) {
        if leads == self.leads {
            return;
        }
        self.leads = leads;
        self.leader = None;
        if leads {
            // Whoever asked the leader before asks again when it hears of this one.
            self.move_all_here(board);
        } else {
            let waiting: Vec<RequestId> = self.waits_here.values().copied().collect();
            waiting.into_iter().for_each(|id| self.forget(board, now, id, Done::Unseen));
        }
        self.beat(board, now, Vec::new());
    }

    pub(super) fn connect(&mut self, board: &mut PrefillScheduler, connected: bool, now: Seconds) {
        if connected == self.connected {
            return;
        }
        self.connected = connected;
        let known: Vec<ReplicaId> = self.peers.keys().copied().collect();
        known.into_iter().for_each(|peer| self.forget_peer(board, now, peer));
        if connected {
            self.asked_anew_s = now;
            self.say(Message::Hello);
            self.tell_all(now);
            self.beat(board, now, Vec::new());
            return;
        }
        self.drop_messages();
        self.leads = false;
        self.leader = None;
        self.move_all_here(board);
    }

    pub(super) fn pass(&mut self, board: &mut PrefillScheduler, now: Seconds) {
        self.lapse(board, now);
        for gone in self.silent(now) {
            if self.follows(gone) {
                self.leader = None;
                self.move_all_here(board);
            }
            self.forget_peer(board, now, gone);
        }
    }
}
