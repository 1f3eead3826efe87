//! Knowledge of who holds which part of a prompt: believed by history, or told by others.

use std::sync::Arc;

use super::line::{Ticket, Waiting};
use super::{Beliefs, CacheView, PrefillScheduler};
use crate::route::job::{Hit, Job, LaneId, Seconds};

/// A source of what prefillers hold, and the time at which it is asked.
pub(super) struct Sight<'a> {
    pub(super) now: Seconds,
    pub(super) view: &'a dyn CacheView,
}

impl PrefillScheduler {
    /// Brings up to date what is believed of who holds what of a prompt.
    pub(super) fn look(&self, waiting: &mut Waiting) {
        let (lanes, seen) = (self.lanes.len(), &mut waiting.seen);
        if seen.version == Some(self.residents.version()) && seen.own_tokens.len() == lanes {
            return;
        }
        seen.version = Some(self.residents.version());
        seen.own_tokens.resize(lanes, 0);
        self.residents.leading(waiting.job.chain(), &mut seen.own_tokens);
        for tokens in &mut seen.own_tokens {
            *tokens = tokens.saturating_mul(waiting.job.chain_tokens());
        }
    }

    /// Those in front of whom it is long ago that others were asked about their prompts.
    pub fn stale(&self, now: Seconds, most: usize) -> Vec<(Ticket, Arc<Job>)> {
        let stale = |told_s: Seconds| now - told_s > self.settings.sight_s;
        let front =
            self.line.front(most).filter(|it| !it.job.is_elsewhere() && it.seen.told_s.is_none_or(stale));
        front.map(|it| (it.ticket, it.job.clone())).collect()
    }

    /// Takes over what others tell about the prompt of one who waits.
    pub fn tell(&mut self, ticket: Ticket, now: Seconds, view: &dyn CacheView) {
        let mut line = std::mem::take(&mut self.line);
        if let Some(waiting) = line.turn(ticket).and_then(|turn| line.get_mut(turn)) {
            self.ask(waiting, Sight { now, view });
        }
        self.line = line;
    }

    /// Asks others what each lane holds of a prompt.
    pub(super) fn ask(&mut self, waiting: &mut Waiting, Sight { now, view }: Sight<'_>) {
        let mut told = std::mem::take(&mut self.told);
        told.clear();
        told.resize(self.lanes.len(), None);
        view.hbm_tokens(&waiting.job, &mut told);
        // Of prompts whose blocks have no names of the engines' nobody can tell.
        let is_few = self.large.is_none();
        if waiting.job.named
            && !waiting.job.is_elsewhere()
            && (is_few || now - self.tells_s > self.settings.sight_s)
        {
            self.tells_s = now;
            for (lane, told) in self.lanes.iter_mut().zip(&told) {
                if let Some(lane) = lane {
                    lane.tells = told.is_some();
                }
            }
        }
        waiting.seen.take(&told, is_few, now);
        self.told = told;
    }
}

/// Work that a lane can spare a request, by what is known of it.
pub(super) fn hit(waiting: &Waiting, lane: usize, beliefs: Beliefs) -> Hit {
    let id = LaneId(u16::try_from(lane).unwrap_or(u16::MAX));
    let told = waiting.seen.held_tokens(lane).filter(|_| beliefs.named).unwrap_or(0);
    let own = waiting.seen.own_tokens.get(lane).copied().filter(|_| beliefs.history).unwrap_or(0);
    Hit::of(&waiting.job, id, told.max(own), beliefs.named)
}
