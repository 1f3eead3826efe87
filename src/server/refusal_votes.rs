//! Opinions of several engines about one request that one engine alone answers: see
//! [`crate::relay::refusals`].

use std::sync::Arc;

use http::StatusCode;

use crate::fleet::Instance;
use crate::relay::Relay;
use crate::server::one_engine::EngineAnswer;

/// Refusals of one request by engines of one role.
#[derive(Default)]
pub(super) struct RefusalVotes {
    by: Vec<(Arc<Instance>, StatusCode)>,
    /// The latest refusal.
    answer: Option<EngineAnswer>,
}

impl RefusalVotes {
    /// The answer, if it may go to the client: it is no refusal, or another engine gave the same,
    /// or nobody else can be asked (`alone`).
    pub(super) fn weigh(
        &mut self,
        relay: &Relay,
        id: &str,
        answer: EngineAnswer,
        alone: bool,
    ) -> Option<EngineAnswer> {
        let status = answer.answer.status();
        if !answer.is_doubtful {
            for (by, refused) in self.by.drain(..) {
                relay.compare_refusal(id, status, &by, refused);
            }
            return Some(answer);
        }
        let before = self.by.iter().map(|(_, status)| *status);
        let stands = alone || relay.confirms(answer.reservation.instance(), before, status);
        self.by.push((answer.reservation.instance().clone(), status));
        self.answer = Some(answer);
        if stands { self.conclude(relay) } else { None }
    }

    /// The latest refusal, which stands: nobody contradicted it.
    pub(super) fn conclude(&mut self, relay: &Relay) -> Option<EngineAnswer> {
        for (by, _) in self.by.drain(..) {
            relay.fleet.acquit(&by);
        }
        self.answer.take()
    }
}
