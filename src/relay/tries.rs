//! Attempts at a leg: how many are left, and with whom it was tried.

use smallvec::SmallVec;

use crate::dialect::shape;
use crate::fleet::{Instance, InstanceId, Role};
use crate::relay::ask::Ask;
use crate::relay::failure::Failure;
use crate::relay::refusals::Refusals;
use crate::relay::vacancy::Passage;
use crate::relay::{Relay, pause};
use crate::util::rng;

/// Attempts at one leg of one request.
#[derive(Default)]
pub(super) struct Tries {
    pub(super) left: u32,
    pub(super) made: u32,
    pub(super) tried: SmallVec<[InstanceId; 4]>,
    /// Members that lack the model; they are among those that were tried.
    pub(super) lacking: SmallVec<[InstanceId; 4]>,
    /// Of decode attempts: whose hand-offs they failed with. It may be those that are wrong.
    pub(super) suspects: SmallVec<[InstanceId; 4]>,
    /// Of decode attempts: prefillers that failed with the request as a whole.
    pub(super) shunned: SmallVec<[InstanceId; 4]>,
    /// Refusals that no other engine has confirmed or contradicted yet; few requests meet one.
    pub(super) refusals: Option<Box<Refusals>>,
    /// Of decode attempts: the right to prefill while not every request may. Of prefill attempts:
    /// the place of a request that stood in line for a prefiller.
    pub(super) passage: Option<Passage>,
    /// Times that it stood in line after all engines had refused it as busy.
    pub(super) busy_rounds: u32,
    /// Some engine did nothing with it.
    pub(super) is_moved: bool,
    /// Of decode attempts: some prefiller did.
    pub(super) is_prefill_moved: bool,
}

impl Tries {
    pub(super) fn new(attempts: u32) -> Tries {
        Tries { left: attempts.max(1), ..Tries::default() }
    }

    /// Prefillers that are to prefill again only if there is no other. As a rule the decoder is to
    /// blame, and a prefiller that has the prompt cached is the cheapest; but the last attempt must
    /// not depend on one whose hand-offs all decoders failed with.
    pub(super) fn avoided(&self) -> &[InstanceId] {
        if self.left == 1 { &self.suspects } else { &[] }
    }

    /// Has members that lack the model of the request asked last.
    pub(super) fn avoid_lacking(&mut self, lacking: SmallVec<[InstanceId; 4]>) {
        self.tried.extend_from_slice(&lacking);
        self.lacking = lacking;
    }

    /// The last attempt does not count.
    pub(super) fn forgive(&mut self) {
        self.left += 1;
        self.made -= 1;
        self.tried.pop();
    }

    /// The same attempts for a task of their own, without the right to prefill.
    pub(super) fn copy(&self) -> Tries {
        let (tried, lacking) = (self.tried.clone(), self.lacking.clone());
        let (suspects, shunned) = (self.suspects.clone(), self.shunned.clone());
        let Tries { left, made, busy_rounds, is_moved, is_prefill_moved, .. } = *self;
        Tries {
            left,
            made,
            tried,
            lacking,
            suspects,
            shunned,
            refusals: None,
            passage: None,
            busy_rounds,
            is_moved,
            is_prefill_moved,
        }
    }

    pub(super) fn start(&mut self, instance: &Instance) {
        if self.passage.as_ref().is_some_and(Passage::ends_with_a_seat) {
            self.passage = None;
        }
        self.left -= 1;
        self.made += 1;
        self.tried.push(instance.id());
    }
}

/// True if no other decoder is asked: the leg does more than to answer, and may have begun with it.
pub(super) fn is_final(ask: &Ask, failure: &Failure) -> bool {
    failure.lasting() || failure.may_have_begun() && shape::acts(ask.api, &ask.body)
}

impl Relay {
    /// Pauses before a further attempt; false if there must be none, since retries have taken their
    /// share of the traffic.
    pub(super) async fn back_off(&self, role: Role, failure: &Failure, made: u32) -> bool {
        if !self.budget.allows() {
            self.meters.retry_denied(role.name());
            return false;
        }
        self.meters.retry(role.name(), failure.reason());
        let settings = self.settings.now();
        let pause = pause::jittered(settings.delay, settings.delay_max, made, rng::random());
        tokio::time::sleep(pause).await;
        true
    }
}
