//! The member of the fleet behind a lane of the scheduler.

use std::sync::Arc;

use super::instance::{Instance, Rank};

/// A prefiller, or one of its ranks where the gateway chooses among them.
#[derive(Clone, Debug)]
pub struct Member {
    pub(super) instance: Arc<Instance>,
    pub(super) rank: Option<Rank>,
}

impl Member {
    /// As in [`Instance::place_name`]: written when somebody asks, not for each request.
    pub fn name(&self) -> String {
        self.instance.place_name(self.rank)
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        (self.instance.id(), self.rank) == (other.instance.id(), other.rank)
    }
}
