//! Requests in flight of one key, on one gateway of several that share the key's limit.
//!
//! Each gateway holds places in a store: those of its requests under way, and some more by what it
//! lacked of late. A request is admitted by what is in this process alone: it may take a place that
//! is held, or one of those that were free when the gateway last heard: as many as make an even
//! part of the limit, or else one. For more it asks an exchange later, when others have told what
//! they took. All gateways together exceed the limit only where several take free places at once.
//!
//! Without the store each gateway goes on with the limit divided by the number of gateways, and so
//! it does for a moment with a store that came back empty. Pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::cell::Told;

/// Time after which a key is exchanged of which nothing is new: others forget places of which they
/// do not hear, and what this gateway knows of theirs gets old. Less than the second between looks.
pub const RENEWAL: Duration = Duration::from_millis(800);
/// More places than this are no limit.
const MOST: usize = u32::MAX as usize;

/// Places of one key on this gateway.
#[derive(Debug)]
pub struct KeyPlaces {
    /// Requests at once over all gateways; None = any number.
    limit: Option<u32>,
    /// Requests under way here.
    inside: u32,
    /// Gateways that share the limit, as last counted.
    gateways: u32,
    /// Account with the store, while that is connected.
    account: Option<Account>,
    /// A request came, or ended, since the last exchange.
    touched: bool,
}

/// Account of a gateway with the store.
#[derive(Debug, Default)]
struct Account {
    /// Last word of the store, if there was one.
    heard: Option<PlacesGrant>,
    /// Requests that were refused since the last exchange.
    refused: u32,
    /// Places beyond those in use that the next exchange asks for.
    spare: u32,
    /// Time at which the last exchange began.
    asked: Option<Instant>,
    /// An exchange is under way.
    is_asking: bool,
}

/// One side of an exchange: what a gateway tells the store about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesRequest {
    /// Requests at once over all gateways.
    pub limit: u32,
    /// Requests under way on this gateway.
    pub inside: u32,
    /// Most places beyond those.
    pub spare: u32,
    /// Of the free places, the gateway gets at most this part.
    pub parts: u32,
}

/// The other side of an exchange: what the store gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacesGrant {
    /// Places that the gateway holds.
    pub held: u32,
    /// Places that nobody holds.
    pub free: u32,
    /// The store came back empty a moment ago: some gateways may not have told yet what they hold.
    pub young: bool,
}

impl KeyPlaces {
    /// Places of a gateway that shares them with no other.
    pub fn new(limit: Option<usize>) -> KeyPlaces {
        let (limit, account) = (bounded(limit), None);
        KeyPlaces { limit, inside: 0, gateways: 1, account, touched: false }
    }

    /// Another limit from now on; requests under way stay.
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = bounded(limit);
    }

    /// True if a request would be admitted now.
    pub fn is_free(&self) -> bool {
        self.limit.is_none_or(|limit| self.inside < self.allowed(limit))
    }

    /// Takes a place; false if there is none.
    pub fn take(&mut self) -> bool {
        let is_free = self.is_free();
        self.touched |= self.limit.is_some();
        if let Some(account) = self.account.as_mut().filter(|_| !is_free) {
            account.refused = account.refused.saturating_add(1);
        }
        self.inside += u32::from(is_free);
        is_free
    }

    /// Gives a place back.
    pub fn leave(&mut self) {
        self.touched |= self.limit.is_some();
        self.inside = self.inside.saturating_sub(1);
    }

    /// Most requests that may be here at once.
    fn allowed(&self, limit: u32) -> u32 {
        let even = limit / self.gateways;
        match self.account.as_ref().and_then(|account| account.heard) {
            None => even.max(1),
            Some(PlacesGrant { held, free, young: true }) => even.max(1).min(held.saturating_add(free)),
            Some(PlacesGrant { held, free: 0, .. }) => held,
            Some(PlacesGrant { held, free, .. }) => {
                held.saturating_add(1).max(even.min(held.saturating_add(free)))
            }
        }
    }

    /// The store is there, and so many gateways use it.
    pub fn join(&mut self, gateways: u32) {
        self.gateways = gateways.max(1);
        self.account.get_or_insert_default();
    }

    /// The store is gone: this gateway goes on with its part.
    pub fn part(&mut self) {
        self.account = None;
    }

    /// The next exchange with the store, if it is time for one; it is under way then.
    pub fn next_exchange(&mut self, now: Instant) -> Option<PlacesRequest> {
        let account = self.account.as_mut().filter(|account| !account.is_asking)?;
        let limit = self.limit?;
        let is_old = account.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= RENEWAL);
        if !(self.touched || is_old) {
            return None;
        }
        self.touched = false;
        let spare = account.spare;
        account.spare = account.refused.saturating_mul(2).max(spare / 2);
        (account.refused, account.asked, account.is_asking) = (0, Some(now), true);
        Some(PlacesRequest { limit, inside: self.inside, spare, parts: self.gateways })
    }

    /// The exchange is over.
    pub fn end_exchange(&mut self, grant: PlacesGrant) {
        if let Some(account) = self.account.as_mut().filter(|account| account.is_asking) {
            (account.heard, account.is_asking) = (Some(grant), false);
        }
    }
}

impl Told for KeyPlaces {
    fn is_touched(&self) -> bool {
        self.touched
    }
}

#[expect(clippy::cast_possible_truncation, reason = "bounded by what fits")]
fn bounded(limit: Option<usize>) -> Option<u32> {
    limit.filter(|limit| *limit < MOST).map(|limit| limit as u32)
}

#[cfg(test)]
mod tests;
