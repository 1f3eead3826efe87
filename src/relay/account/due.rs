//! Charges of a request: its admission permit, its caller's tokens, and its place in the caller's
//! counts.

use std::sync::Arc;

use tokio::time::Instant;

use crate::auth::{ANYONE, Caller, Priority, TokenReservation};
use crate::dialect::usage::TokenCounts;
use crate::obs::Meters;
use crate::relay::account::End;
use crate::relay::admit::Pass;

/// Charges that are held of a request's caller until it is over.
#[derive(Debug, Default)]
pub struct Due {
    pass: Option<Pass>,
    caller: Option<Arc<Caller>>,
    /// Reservation of its caller's tokens per minute.
    reserved: Option<TokenReservation>,
}

impl Due {
    /// The request was let in; its pass is given back when this is dropped.
    pub fn admitted(&mut self, pass: Pass) {
        self.pass = Some(pass);
    }

    /// Sets the caller of the request.
    pub fn called_by(&mut self, caller: Arc<Caller>) {
        self.caller = Some(caller);
    }

    /// So much is set aside for it.
    pub fn reserved(&mut self, reserved: Option<TokenReservation>) {
        self.reserved = reserved;
    }

    /// Priority class of its caller.
    pub fn priority(&self) -> Priority {
        self.caller.as_ref().map(|caller| caller.grants.priority).unwrap_or_default()
    }

    /// The name of its key, as logged; None where none are asked for.
    pub fn key_name(&self) -> Option<&str> {
        self.caller.as_ref().map(|caller| &*caller.name).filter(|name| *name != ANYONE)
    }

    /// The request is over with this status and reason, and took so many tokens of prompt and
    /// output.
    pub fn settle(&mut self, meters: &Meters, end: End, taken: TokenCounts) {
        if let Some(pass) = &mut self.pass {
            pass.took(taken.prompt + taken.output);
        }
        if let Some(reserved) = self.reserved.take() {
            reserved.settle(taken.prompt + taken.output, Instant::now());
        }
        meters.of_key(self.key_name().unwrap_or(ANYONE), end.status, end.reason, taken);
    }
}
