//! Requests of this gateway that the leader is asked to place, and those that come back.

use super::Sources;
use super::message::{Ask, Message, Place, ReplicaId};
use super::share::{FIRST_ASK, OpenAsk, Share};
use crate::route::job::Seconds;
use crate::route::scheduler::{Done, GivenBooking, NewRequest, PrefillScheduler, Ticket};

impl Share {
    /// Asks the leader to place a request; returns its ticket.
    pub(super) fn ask(
        &mut self,
        board: &PrefillScheduler,
        new: &NewRequest<'_>,
        sources: &Sources<'_>,
    ) -> Ticket {
        self.last_number += 1;
        let number = self.last_number;
        let NewRequest { since_s, job, tried } = new;
        let told = board.told(job, sources.view);
        let ask = Ask {
            number,
            waited_s: sources.now - since_s,
            tried: tried.iter().filter_map(|lane| self.names.name(*lane)).collect(),
            prompt: self.names.facts(job, &told),
        };
        if let Some(leader) = self.leader {
            self.say_to(leader, Message::Ask(ask));
        }
        let (job, tried) = (job.clone(), (*tried).into());
        let open = OpenAsk { job, since_s: *since_s, tried, sent_s: sources.now, queued: false };
        self.asks.insert(number, open);
        self.unsigned.push_back(number);
        self.traffic.asked += 1;
        Ticket(number)
    }

    /// A request of this gateway leaves. Returns its ticket in the line here, if it stands there.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Option<Ticket> {
        let number = ticket.0;
        if number < FIRST_ASK {
            return Some(ticket);
        }
        if self.asks.remove(&number).is_some() {
            self.say(Message::Left { number });
        }
        let moved = self.moved.remove(&number)?;
        self.moved_back.remove(&moved);
        Some(moved)
    }

    /// The leader has these requests of this gateway in its line.
    pub(super) fn signed(&mut self, number: u64) {
        if let Some(ask) = self.asks.get_mut(&number) {
            ask.queued = true;
        }
    }

    /// The leader has placed a request of this gateway.
    pub(super) fn placed(&mut self, board: &mut PrefillScheduler, now: Seconds, place: &Place) {
        let number = place.request.number;
        let Some(ask) = self.asks.remove(&number) else {
            // It waits here meanwhile, is placed here, or has left.
            let told = self.told.values().find(|(told, _)| *told == number).map(|(_, told)| told.clone());
            match told {
                // Two have placed it, as long as both took themselves for the leader.
                Some(told) => self.say(Message::Commit(told.as_ref().clone())),
                None if self.moved.contains_key(&number) => {}
                None => self.say(Message::Ended { number, end: Done::Failed }),
            }
            return;
        };
        let Some(terms) = self.names.terms(&place.terms) else {
            // A prefiller that is not known here, or is gone.
            self.say(Message::Ended { number, end: Done::Failed });
            self.move_here(board, number, ask);
            return;
        };
        self.traffic.placed += 1;
        let given = GivenBooking { ticket: Some(Ticket(number)), since_s: ask.since_s, job: ask.job, terms };
        let mut commit = board.book(now, given);
        commit.waiting = usize::try_from(place.waiting).unwrap_or(usize::MAX);
        if let Some(told) = self.remember_told(&commit, number) {
            self.say_later(Message::Commit(told.as_ref().clone()));
        }
        self.placed.push(commit);
    }

    fn move_here(&mut self, board: &mut PrefillScheduler, number: u64, ask: OpenAsk) {
        let ticket = board.return_to_line(ask.since_s, ask.job, &ask.tried);
        self.moved.insert(number, ticket);
        self.moved_back.insert(ticket, number);
    }

    /// Places all requests here that wait at a leader which is not there.
    pub(super) fn move_all_here(&mut self, board: &mut PrefillScheduler) {
        self.unsigned.clear();
        for (number, ask) in std::mem::take(&mut self.asks) {
            self.say(Message::Left { number });
            self.move_here(board, number, ask);
        }
    }

    /// Asks once more for all that wait, at a leader that may not know them.
    pub(super) fn ask_again(&mut self, now: Seconds) {
        self.unsigned = self.asks.keys().copied().collect();
        let mut asks = Vec::with_capacity(self.asks.len());
        for (number, ask) in &mut self.asks {
            (ask.sent_s, ask.queued) = (now, false);
            asks.push(Ask {
                number: *number,
                waited_s: now - ask.since_s,
                tried: ask.tried.iter().filter_map(|lane| self.names.name(*lane)).collect(),
                prompt: self.names.facts(&ask.job, &[]),
            });
        }
        let Some(leader) = self.leader else { return };
        asks.into_iter().for_each(|ask| self.say_to(leader, Message::Ask(ask)));
    }

    /// The next moment at which a request has waited too long for a sign.
    pub(super) fn next_lapse_s(&self) -> Option<Seconds> {
        let first = self.unsigned.iter().find_map(|number| self.asks.get(number))?;
        Some(first.sent_s + self.sign_s())
    }

    /// Places here what got no sign in time.
    pub(super) fn lapse(&mut self, board: &mut PrefillScheduler, now: Seconds) {
        let late_s = self.sign_s();
        while let Some(number) = self.unsigned.front().copied() {
            match self.asks.get(&number) {
                Some(ask) if !ask.queued && now - ask.sent_s < late_s => break,
                Some(ask) if !ask.queued => {
                    self.doubted = true;
                    let Some(ask) = self.asks.remove(&number) else { break };
                    self.traffic.lapsed += 1;
                    self.say(Message::Left { number });
                    self.move_here(board, number, ask);
                }
                _ => {}
            }
            self.unsigned.pop_front();
        }
    }

    /// True if the leader is this one.
    pub(super) fn follows(&self, whom: ReplicaId) -> bool {
        self.leader == Some(whom)
    }
}
