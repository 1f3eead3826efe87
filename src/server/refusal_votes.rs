//! Opinions of several engines about one request that one engine alone answers: see
//! [`crate::relay::refusals`].

use std::sync::Arc;

use http::StatusCode;

use crate::fleet::{Instance, Reservation};
use crate::relay::Relay;
use crate::relay::refusals::is_doubtful;
use crate::server::passthrough::Answer;

/// Refusals of one request by engines of one role.
#[derive(Default)]
pub(super) struct RefusalVotes {
    by: Vec<(Arc<Instance>, StatusCode)>,
    /// The latest refusal, unread, with the reservation on which it was given.
    answer: Option<(Answer, Reservation)>,
}

impl RefusalVotes {
    /// The answer, if it may go to the client: it is no refusal, or another engine gave the same,
    /// or nobody else can be asked (`alone`).
    pub(super) fn weigh(
        &mut self,
        (relay, id): (&Relay, &str),
        (answer, reservation): (Answer, Reservation),
        alone: bool,
    ) -> Option<(Answer, Reservation)> {
        let status = answer.status();
        if !is_doubtful(status) {
            for (by, status) in self.by.drain(..) {
                relay.contradicted(id, &by, status);
            }
            return Some((answer, reservation));
        }
        let before = self.by.iter().map(|(_, status)| *status);
        let stands = alone || relay.confirms(reservation.instance(), before, status);
        self.by.push((reservation.instance().clone(), status));
        self.answer = Some((answer, reservation));
        if stands { self.conclude(relay) } else { None }
    }

    /// The latest refusal, which stands: nobody contradicted it.
    pub(super) fn conclude(&mut self, relay: &Relay) -> Option<(Answer, Reservation)> {
        for (by, _) in self.by.drain(..) {
            relay.fleet.acquit(&by);
        }
        self.answer.take()
    }
}
