//! The guard of a hand-off.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Left, Lost, ReleaseQueue};
use crate::dialect::lease::{LEAST_LEASE, told_lease};
use crate::fleet::{Instance, Reservation};
use crate::obs::Handoff;
use crate::relay::ask::Ask;
use crate::relay::prefill_report::{Answered, PrefillReport};
use crate::upstream::Written;
use crate::util::boot_clock::BootInstant;

/// A hand-off is used within this share of its lease: the decoder still needs time to fetch.
const LEASE_SHARE: f64 = 0.8;

/// Guard of a hand-off: KV that a prefiller keeps for us, and the obligation to free it.
#[derive(Debug)]
pub struct HandoffGuard {
    pub(super) ask: Arc<Ask>,
    handoff: Option<Bytes>,
    /// Other facts in the prefiller's answer, until they are booked.
    receipt: Option<PrefillReport>,
    /// Keeps the held tokens on the prefiller's account.
    reservation: Reservation,
    pub(super) born: BootInstant,
    /// Of the decode request that has the hand-off.
    written: Option<Written>,
    state: State,
    pub(super) releases: ReleaseQueue,
}

/// Owners of the hand-off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// We, or a decode request that is on its way.
    Open,
    /// A decoder has fetched the KV, or told the prefiller that it will not.
    Settled,
    /// A decoder, or something in front of it, turned the request away before it could fetch.
    Refused,
    /// A decoder failed with it: nobody knows.
    Lost,
}

impl HandoffGuard {
    /// Takes over what a prefiller has just promised.
    pub fn new(
        ask: Arc<Ask>,
        handoff: Option<Bytes>,
        reservation: Reservation,
        releases: ReleaseQueue,
    ) -> HandoffGuard {
        let (born, state) = (BootInstant::now(), State::Open);
        HandoffGuard { ask, handoff, receipt: None, reservation, born, written: None, state, releases }
    }

    /// The same, with what else the prefiller's answer says.
    pub(in crate::relay) fn with(mut self, receipt: PrefillReport) -> HandoffGuard {
        self.receipt = Some(receipt);
        self
    }

    /// The request, as the prefiller knows it.
    pub fn ask(&self) -> &Arc<Ask> {
        &self.ask
    }

    /// The prefiller that it is of.
    pub fn prefiller(&self) -> &Arc<Instance> {
        self.reservation.instance()
    }

    /// Parameters for the decoder.
    pub fn handoff(&self) -> Option<&Bytes> {
        self.handoff.as_ref()
    }

    /// Books what the prefiller's answer says beside its hand-off; the first time, whoever calls is
    /// told of it. No decoder needs that, so it is best done while one is at work; where nobody
    /// does it, it is done in the end.
    pub(in crate::relay) fn book(&mut self) -> Option<Answered> {
        Some(self.receipt.take()?.book(&self.ask, self.handoff.as_ref(), &mut self.reservation))
    }

    /// True if the hand-off is too old to be used. `configured`: the lease of one that tells none.
    pub fn stale(&self, configured: Duration) -> bool {
        let Some(handoff) = &self.handoff else { return false };
        let age = self.born.elapsed();
        // Most are given to a decoder at once, and need not be read for that.
        age >= configured.min(LEAST_LEASE).mul_f64(LEASE_SHARE)
            && age >= lease(handoff, configured).mul_f64(LEASE_SHARE)
    }

    /// Gives the hand-off to a decode request, whose progress `written` tells.
    pub fn give(&mut self, written: &Written) -> Option<&Bytes> {
        self.written = Some(written.clone());
        self.handoff.as_ref()
    }

    /// A decoder has answered: it has fetched the KV, or refused and told the prefiller so.
    pub fn used(&mut self) {
        self.state = State::Settled;
    }

    /// The hand-off was turned away unread. What fetches it now may find that its blocks are gone,
    /// so it is good for a release only, whose answer nobody reads, and whose blocks nobody finds
    /// in a cache.
    pub fn refused(&mut self) {
        self.state = State::Refused;
    }

    /// The hand-off is good for another decoder: what turned it away was in front of the engine.
    pub(in crate::relay) fn take_back(&mut self) {
        (self.state, self.written) = (State::Open, None);
    }

    /// A decoder that had the whole request failed. It may have fetched the KV or not, and it may
    /// have died of this very hand-off: no other decoder gets it.
    pub fn lost(&mut self) {
        // It may be that the prefiller is not who it was.
        self.reservation.instance().forget_peer();
        self.state = State::Lost;
    }
}

impl Drop for HandoffGuard {
    fn drop(&mut self) {
        self.book();
        let Some(handoff) = self.handoff.take() else {
            return;
        };
        let written = self.written.as_ref().is_some_and(Written::get);
        match self.state {
            State::Settled => self.releases.meters.handoff(Handoff::Used),
            State::Lost => self.releases.meters.handoff(Handoff::Expired),
            // The client left while a decoder had the request: hung up on, it frees both sides.
            State::Open if written => self.releases.meters.handoff(Handoff::Used),
            State::Open | State::Refused => {
                let late = self.state == State::Refused;
                let prefiller = self.prefiller().id();
                self.ask.ids.forget();
                let lost = Lost { ask: self.ask.clone(), handoff, prefiller, born: self.born, late };
                self.releases.submit(Left::Handoff(lost));
            }
        }
    }
}

/// Time for which the prefiller keeps the KV: what the hand-off tells, else what is configured.
pub(super) fn lease(handoff: &Bytes, configured: Duration) -> Duration {
    told_lease(handoff).unwrap_or(configured)
}
