//! Attempts at a leg: how many are left, and with whom it was tried.

use smallvec::SmallVec;

use crate::fleet::{Instance, InstanceId};
use crate::relay::refusals::Refusals;

/// Attempts at one leg of one request.
#[derive(Clone, Default)]
pub(super) struct Tries {
    pub(super) left: u32,
    pub(super) made: u32,
    pub(super) tried: SmallVec<[InstanceId; 4]>,
    /// Of decode attempts: whose hand-offs they failed with. It may be those that are wrong.
    pub(super) suspects: SmallVec<[InstanceId; 4]>,
    /// Of decode attempts: prefillers that failed with the request as a whole.
    pub(super) shunned: SmallVec<[InstanceId; 4]>,
    /// Refusals that no other engine has confirmed or contradicted yet; few requests meet one.
    pub(super) refusals: Option<Box<Refusals>>,
}

impl Tries {
    pub(super) fn new(attempts: u32) -> Tries {
        Tries { left: attempts.max(1), ..Tries::default() }
    }

    /// Who is to prefill again only if there is nobody else. As a rule the decoder is to blame, and a prefiller that has the
    /// prompt cached is the cheapest; but the last attempt must not depend on one whose hand-offs all decoders failed with.
    pub(super) fn avoided(&self) -> &[InstanceId] {
        if self.left == 1 { &self.suspects } else { &[] }
    }

    /// The last attempt does not count.
    pub(super) fn forgive(&mut self) {
        self.left += 1;
        self.made -= 1;
        self.tried.pop();
    }

    pub(super) fn start(&mut self, instance: &Instance) {
        self.left -= 1;
        self.made += 1;
        self.tried.push(instance.id());
    }
}
