//! The line of requests that wait to be let in, fair between flows. Pure; a flow is the requests of
//! one key.
//!
//! Each flow has an account of the tokens that it was served, divided by its weight, and the flow
//! with the smallest account is next. A request is charged an estimate when it is let in, and the
//! rest when it is over, so long answers count as what they are. A flow that did not wait for a
//! while starts at the account of those who do, less what is estimated in it: service that nobody
//! else wanted is not held against anybody, none is saved up, and an estimate that was too high is
//! no credit against those who came meanwhile. (Virtual token counters: Sheng et al., "Fairness in
//! Serving Large Language Models", OSDI 2024.)

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;

/// Tokens are multiplied by this before they are divided by a weight, so that little is lost to
/// rounding.
const SCALE: u64 = 16;

/// Flows with nobody inside and nobody waiting are forgotten beyond this many.
const IDLE_FLOWS: usize = 4096;

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Limits of one flow, and the charge of its request.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// Name of the flow.
    pub(super) flow: Arc<str>,
    /// Service relative to others'.
    pub(super) weight: u64,
    /// Of its requests inside; more of them wait.
    pub(super) share: usize,
    /// Of its requests that wait.
    pub(super) waiting: usize,
    /// Estimated tokens of this request.
    pub(super) cost_tokens: u64,
}

/// Outcomes of a request's arrival.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It is inside.
    In,
    /// It waits in the line.
    Waits(Ticket),
    /// It can't be let in, and can't wait.
    Refused(Full),
}

/// Reasons for a full line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// Everybody's places are taken.
    Line,
    /// Its flow has no more.
    Share,
}

/// The line; `T` is how whoever waits is told.
#[derive(Debug)]
pub(super) struct Line<T> {
    places: usize,
    length: usize,
    inside: usize,
    waiting: usize,
    tickets: u64,
    /// The largest account, estimates left out, of a flow when a request of it was let in.
    clock: u64,
    /// By the names of keys, which operators choose.
    flows: HashMap<Arc<str>, Flow<T>, FixedState>,
    /// Flows that wait and may have another one inside, by their accounts.
    ready: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct Flow<T> {
    account: u64,
    /// Estimated part of the account: of requests that are inside.
    estimated: u64,
    weight: u64,
    inside: usize,
    share: usize,
    /// By ticket, with what each is charged.
    waiting: BTreeMap<Ticket, (u64, T)>,
}

impl<T> Line<T> {
    /// So many at once, and so many waiting.
    pub(super) fn new(places: usize, length: usize) -> Line<T> {
        let (flows, ready) = (HashMap::default(), BTreeSet::new());
        Line { places, length, inside: 0, waiting: 0, tickets: 0, clock: 0, flows, ready }
    }

    pub(super) fn inside(&self) -> usize {
        self.inside
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// A request comes; `waiter` is kept while it waits.
    pub(super) fn enter(&mut self, terms: &Terms, waiter: impl FnOnce() -> T) -> Entered {
        if let Some(full) = self.full(terms) {
            return Entered::Refused(full);
        }
        let (free, clock) = (self.is_free(terms), self.clock);
        let first = self.ready.first().and_then(|(_, who)| self.flows.get(who));
        let least = first.map_or(clock, Flow::settled);
        let flow = self.flows.entry(terms.flow.clone()).or_insert_with(Flow::new);
        (flow.weight, flow.share) = (terms.weight.max(1), terms.share.max(1));
        if flow.waiting.is_empty() {
            flow.account = flow.account.max(least);
        }
        if free {
            self.inside += 1;
            self.clock = clock.max(flow.settled());
            flow.inside += 1;
            flow.charge(terms.cost_tokens);
            return Entered::In;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        flow.waiting.insert(ticket, (terms.cost_tokens, waiter()));
        if flow.is_ready() {
            self.ready.insert((flow.account, terms.flow.clone()));
        }
        self.waiting += 1;
        Entered::Waits(ticket)
    }

    /// Reason why a request of these terms would be refused now; None when it would be let in, or
    /// could wait.
    pub(super) fn full(&self, terms: &Terms) -> Option<Full> {
        let waiting = self.flows.get(&terms.flow).map_or(0, |flow| flow.waiting.len());
        if self.is_free(terms) {
            None
        } else if self.waiting >= self.length {
            Some(Full::Line)
        } else {
            (waiting >= terms.waiting).then_some(Full::Share)
        }
    }

    /// True if a request would be let in at once: there is a place, nobody waits who could have it,
    /// and its flow has no more than its share.
    fn is_free(&self, terms: &Terms) -> bool {
        let own = self.flows.get(&terms.flow);
        let may = own.is_none_or(|flow| flow.waiting.is_empty() && flow.inside < terms.share.max(1));
        may && self.inside < self.places && self.ready.is_empty()
    }

    /// Somebody who waits leaves the line; who was let in has left it already.
    pub(super) fn cancel(&mut self, who: &Arc<str>, ticket: Ticket) {
        let Some(flow) = self.flows.get_mut(who) else { return };
        if flow.waiting.remove(&ticket).is_some() {
            self.waiting -= 1;
            if flow.waiting.is_empty() {
                self.ready.remove(&(flow.account, who.clone()));
            }
        }
        self.forget(who);
    }

    /// Somebody who was inside is done. It was charged so many tokens and took so many.
    pub(super) fn leave(&mut self, who: &Arc<str>, charged_tokens: u64, took_tokens: u64) {
        let Some(flow) = self.flows.get_mut(who) else { return };
        self.inside = self.inside.saturating_sub(1);
        flow.inside = flow.inside.saturating_sub(1);
        self.ready.remove(&(flow.account, who.clone()));
        flow.settle(charged_tokens, took_tokens);
        if flow.is_ready() {
            self.ready.insert((flow.account, who.clone()));
        }
        self.forget(who);
    }

    /// The next who is let in and what it is charged, if there is a place and somebody waits.
    pub(super) fn next(&mut self) -> Option<(Arc<str>, u64, T)> {
        if self.inside >= self.places {
            return None;
        }
        let (_, who) = self.ready.pop_first()?;
        let flow = self.flows.get_mut(&who)?;
        let (_, (cost, waiter)) = flow.waiting.pop_first()?;
        self.clock = self.clock.max(flow.settled());
        self.waiting -= 1;
        self.inside += 1;
        flow.inside += 1;
        flow.charge(cost);
        if flow.is_ready() {
            self.ready.insert((flow.account, who.clone()));
        }
        Some((who, cost, waiter))
    }

    /// A flow that is gone and owes nothing needs no account; with very many flows, none that is
    /// gone keeps one.
    fn forget(&mut self, who: &Arc<str>) {
        let (clock, crowded) = (self.clock, self.flows.len() > IDLE_FLOWS);
        let idle = |flow: &Flow<T>| {
            flow.inside == 0 && flow.waiting.is_empty() && (crowded || flow.account <= clock)
        };
        if self.flows.get(who).is_some_and(idle) {
            self.flows.remove(who);
        }
    }
}

impl<T> Flow<T> {
    fn new() -> Flow<T> {
        Flow { account: 0, estimated: 0, weight: 1, inside: 0, share: usize::MAX, waiting: BTreeMap::new() }
    }

    /// True if one of its requests waits and could be let in.
    fn is_ready(&self) -> bool {
        !self.waiting.is_empty() && self.inside < self.share
    }

    /// The account without what is only estimated.
    fn settled(&self) -> u64 {
        self.account.saturating_sub(self.estimated)
    }

    fn charge(&mut self, tokens: u64) {
        let cost = self.cost(tokens);
        self.account = self.account.saturating_add(cost);
        self.estimated = self.estimated.saturating_add(cost);
    }

    fn settle(&mut self, charged_tokens: u64, took_tokens: u64) {
        let charged = self.cost(charged_tokens);
        self.estimated = self.estimated.saturating_sub(charged);
        self.account = self.account.saturating_sub(charged).saturating_add(self.cost(took_tokens));
    }

    fn cost(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(SCALE) / self.weight
    }
}

#[cfg(test)]
mod tests;
