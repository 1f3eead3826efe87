//! Tokens per minute of one key, on one gateway of several that share the key's budget.
//!
//! The budget is one bucket in a store. A gateway takes slices out of it ahead of its requests, and
//! gives back at each exchange what it has not spent. So a request is admitted by what is in this
//! process alone. A slice is a part of what is left, so slices shrink as the budget runs out. A
//! request that is larger than the slice is admitted once on credit, if the store had enough for it
//! when it was last heard: the next exchange pays. All gateways together exceed the budget by one
//! slice or one request each, which later requests wait for.
//!
//! Without the store each gateway goes on with its part: the budget divided by the number of
//! gateways. When the store is back, it is told what was taken from the part. Pure: time is an
//! argument.

use std::time::Duration;

use tokio::time::Instant;

use super::cell::Told;
use super::{Budget, Level};

/// Time without a request after which a gateway gives its slice back, for others to spend.
const IDLE: Duration = Duration::from_secs(1);
/// A gateway takes this fraction of its even part of what is left, so that others find some.
const CAUTION: f64 = 2.0;
/// Tokens so few are nothing: amounts are fractions.
const NOTHING: f64 = 0.5;

/// Token budget of one key on this gateway.
#[derive(Debug)]
pub struct KeyBudget {
    per_minute: u64,
    /// Bucket of this gateway, which decides while there is no slice. It has the gateway's part.
    own: Budget,
    /// Bucket in the store, as last heard.
    store: Budget,
    /// Gateways that share the budget, as last counted.
    gateways: u32,
    /// Account with the store, while that is connected.
    slice: Option<Slice>,
    /// A request came, or ended, since the last exchange.
    touched: bool,
}

/// Account of a gateway with the store.
#[derive(Debug)]
struct Slice {
    /// Tokens taken from the store and not spent; a debt if negative.
    held: f64,
    /// Tokens reserved since the last exchange.
    reserved: f64,
    /// Tokens of the slice that the next exchange asks for.
    wanted: f64,
    /// Tokens that an exchange under way gives back.
    returning: Option<f64>,
    last_touch: Instant,
}

/// One side of an exchange: what a gateway tells the store about one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SliceRequest {
    /// Tokens per minute of the key, and the most that its bucket holds.
    pub per_minute: f64,
    /// Tokens that go back into the bucket; a debt that is paid if negative.
    pub returned: f64,
    /// Most tokens of the new slice.
    pub wanted: f64,
    /// The slice is at most what is left divided by this.
    pub parts: f64,
    /// Level of the bucket if the store has none: it was flushed, or has dropped it.
    pub level: f64,
}

/// The other side of an exchange: what the store gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SliceGrant {
    /// Tokens of the new slice.
    pub slice: f64,
    /// Level of the bucket after that.
    pub level: f64,
}

impl KeyBudget {
    /// A full budget of a gateway that shares it with no other.
    pub fn full(per_minute: u64) -> KeyBudget {
        let (own, store) = (Budget::full(per_minute), Budget::full(per_minute));
        KeyBudget { per_minute: per_minute.max(1), own, store, gateways: 1, slice: None, touched: false }
    }

    /// Another size from now on; what is left stays, as far as it fits.
    pub fn set_per_minute(&mut self, per_minute: u64) {
        self.per_minute = per_minute.max(1);
        self.own.set_per_minute(self.part());
        self.store.set_per_minute(self.per_minute);
    }

    /// Takes `tokens` out.
    ///
    /// # Errors
    /// The time until they will be there, if they are not; nothing is taken then.
    pub fn take(&mut self, tokens: u64, now: Instant) -> Result<(), Duration> {
        self.touched = true;
        let parts = self.parts();
        let Some(slice) = &mut self.slice else { return self.own.take(tokens, now) };
        slice.last_touch = now;
        let (level, needed) = (self.store.tokens(now), tokens.min(self.per_minute) as f64);
        let from_own_part = needed <= slice.held + level.max(0.0) / parts;
        let on_credit = slice.held >= 0.0 && needed <= slice.held + level;
        if !from_own_part && !on_credit {
            return Err(self.store.time_for(needed - slice.held - level));
        }
        slice.held -= tokens as f64;
        slice.reserved += tokens as f64;
        Ok(())
    }

    /// Corrects the level: `reserved` tokens were taken, and `used` were needed.
    pub fn settle(&mut self, reserved: u64, used: u64, now: Instant) {
        self.touched = true;
        match &mut self.slice {
            None => self.own.settle(reserved, used, now),
            Some(slice) => {
                slice.last_touch = now;
                slice.held += reserved as f64 - used as f64;
            }
        }
    }

    /// A prompt in a body of so many bytes had so many tokens.
    pub fn learn(&mut self, bytes: usize, tokens: u64) {
        self.own.learn(bytes, tokens);
    }

    /// Tokens of the prompt in a body of so many bytes, by those before; `None` where there were
    /// none.
    pub fn expected(&self, bytes: u64) -> Option<u64> {
        self.own.expected(bytes)
    }

    /// Level of the budget at `now`: that of all gateways, or of this one's part without the store.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and saturates")]
    pub fn level(&mut self, now: Instant) -> Level {
        let limit = self.per_minute;
        let Some(slice) = &self.slice else { return Level { limit, ..self.own.level(now) } };
        let left = (slice.held + self.store.tokens(now)).min(limit as f64);
        let full_in = self.store.time_for(limit as f64 - left);
        Level { limit, remaining: left.max(0.0) as u64, full_in }
    }

    /// The store is there, and so many gateways use it. What was taken from the own part before is
    /// a debt now.
    pub fn join(&mut self, gateways: u32, now: Instant) {
        if self.slice.is_none() {
            // The store's bucket went on filling as if nobody took anything. So did this gateway's
            // part of it, and what is missing from the part was taken.
            let untouched = self.store.tokens(now) / f64::from(self.gateways);
            let held = self.own.tokens(now) - untouched;
            let account = Slice { held, reserved: 0.0, wanted: 0.0, returning: None, last_touch: now };
            self.slice = Some(account);
        }
        self.gateways = gateways.max(1);
    }

    /// The store is gone: this gateway goes on with its part. A slice whose exchange was under way
    /// may be in the store again, and is not spent.
    pub fn leave(&mut self, now: Instant) {
        let Some(slice) = self.slice.take() else { return };
        let held = slice.held - slice.returning.unwrap_or(0.0).max(0.0);
        let even = self.store.tokens(now) / f64::from(self.gateways);
        self.own.reset(self.part(), held + even, now);
    }

    /// The next exchange with the store, if there is anything to be told; it is under way then.
    pub fn next_exchange(&mut self, now: Instant) -> Option<SliceRequest> {
        let (parts, level) = (self.parts(), self.store.tokens(now));
        let slice = self.slice.as_mut().filter(|slice| slice.returning.is_none())?;
        let is_idle = now.saturating_duration_since(slice.last_touch) >= IDLE;
        if !(self.touched || is_idle && slice.held.abs() > NOTHING) {
            return None;
        }
        slice.wanted = match self.touched {
            true => (CAUTION * slice.reserved).max(slice.wanted / 2.0),
            false => 0.0,
        };
        (slice.reserved, self.touched) = (0.0, false);
        slice.returning = Some(slice.held);
        let (per_minute, returned, wanted) = (self.per_minute as f64, slice.held, slice.wanted);
        Some(SliceRequest { per_minute, returned, wanted, parts, level })
    }

    /// The exchange that began at `asked` is over.
    pub fn end_exchange(&mut self, grant: SliceGrant, asked: Instant) {
        let Some(slice) = &mut self.slice else { return };
        let Some(returned) = slice.returning.take() else { return };
        slice.held += grant.slice - returned;
        self.store.reset(self.per_minute, grant.level, asked);
    }

    /// Tokens per minute of this gateway's part.
    fn part(&self) -> u64 {
        self.per_minute / u64::from(self.gateways)
    }

    /// A slice is what is left divided by this.
    fn parts(&self) -> f64 {
        CAUTION * f64::from(self.gateways)
    }
}

impl Told for KeyBudget {
    fn is_touched(&self) -> bool {
        self.touched
    }
}

#[cfg(test)]
mod tests;
