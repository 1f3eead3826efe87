//! Engines that leave their roles for a while: they sleep, or are moved. Sources that want them go
//! on wanting them, and decide if they come back.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, Instance, Owner, Removal, Role};

impl Fleet {
    /// Takes an engine out of the choice until it is put back. Lists that have it and lists that
    /// drop it count as before.
    pub fn set_aside(&self, role: Role, endpoint: &Endpoint) -> Removal {
        let mut roster = self.roster();
        if !self.members(role).iter().any(|it| it.endpoint() == endpoint) {
            return Removal::Unknown;
        }
        roster.set_aside(role, endpoint);
        self.leave(role, endpoint)
    }

    /// Notes that an operator wants an engine that can't serve yet: it is kept out until it is put
    /// back, and leaves where it is a member.
    pub fn add_aside(&self, role: Role, endpoint: &Endpoint) -> Arc<Instance> {
        let mut roster = self.roster();
        roster.claim(role, endpoint, Owner::Operator);
        roster.set_aside(role, endpoint);
        let known = self.members(role).iter().find(|it| it.endpoint() == endpoint).cloned();
        if known.is_some() {
            self.leave(role, endpoint);
        }
        known.unwrap_or_else(|| self.create(role, endpoint.clone()))
    }

    /// Takes such an engine in again. False if nobody wants it any more, or an operator has added
    /// or removed it since.
    pub fn put_back(&self, role: Role, endpoint: &Endpoint) -> bool {
        let mut roster = self.roster();
        roster.put_back(role, endpoint) && {
            self.enter(role, endpoint.clone());
            true
        }
    }

    /// True if a source wants this engine, and no operator has removed it.
    pub fn is_wanted(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.roster().is_wanted(role, endpoint)
    }
}
