//! Sources that want members: the configuration, a file, the DNS, a cluster, an operator. The
//! module is pure.
//!
//! An instance is a member as long as any source wants it, so no source takes away what another one
//! brought. An operator's removal counts against all of them, until the source that wants it stops
//! wanting it and begins anew.

use std::collections::{BTreeMap, BTreeSet};

use crate::endpoint::Endpoint;
use crate::fleet::Role;

/// Sources of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// `fleet.prefill`, `fleet.decode`, `fleet.encode`.
    Configuration,
    /// The file `discovery.file`.
    File,
    /// Names: `discovery.prefill_dns`, `discovery.decode_dns`.
    Dns,
    /// A cluster: `[discovery.kubernetes]`.
    Kubernetes,
    /// An operator: `/instances/add`.
    Operator,
}

/// The last list of each source.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// By role, prefill first.
    wants: [BTreeMap<Owner, BTreeSet<Endpoint>>; Role::ALL.len()],
    /// The part of it that counts: an operator may have removed some.
    held: [BTreeMap<Endpoint, BTreeSet<Owner>>; Role::ALL.len()],
    /// Members that are kept out for a while, whoever wants them.
    aside: [BTreeSet<Endpoint>; Role::ALL.len()],
}

/// Changes that follow from a source's list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Members that are wanted from now on, without those that are kept out.
    pub(super) came: Vec<Endpoint>,
    /// Wanted by nobody any more.
    pub(super) gone: Vec<Endpoint>,
}

impl Roster {
    /// `owner` wants exactly these.
    pub(super) fn want(&mut self, owner: Owner, role: Role, endpoints: &[Endpoint]) -> Change {
        let now: BTreeSet<Endpoint> = endpoints.iter().cloned().collect();
        let before = self.wants[at(role)].insert(owner, now.clone()).unwrap_or_default();
        let mut change = Change::default();
        for endpoint in before.difference(&now) {
            if self.release(role, endpoint, owner) {
                change.gone.push(endpoint.clone());
            }
        }
        // In the order in which they are listed, which is that in which they are asked for models.
        for endpoint in endpoints.iter().filter(|endpoint| !before.contains(endpoint)) {
            let is_new = self.held[at(role)].entry(endpoint.clone()).or_default().insert(owner);
            if is_new && !self.aside[at(role)].contains(endpoint) {
                change.came.push(endpoint.clone());
            }
        }
        change
    }

    /// `owner` wants this one, too.
    pub(super) fn claim(&mut self, role: Role, endpoint: &Endpoint, owner: Owner) {
        self.wants[at(role)].entry(owner).or_default().insert(endpoint.clone());
        self.held[at(role)].entry(endpoint.clone()).or_default().insert(owner);
        self.aside[at(role)].remove(endpoint);
    }

    /// Keeps a member out until it is put back, claimed or forgotten; sources go on wanting it.
    pub(super) fn set_aside(&mut self, role: Role, endpoint: &Endpoint) {
        self.aside[at(role)].insert(endpoint.clone());
    }

    /// Keeps a member out no longer. True if a source still wants it.
    pub(super) fn put_back(&mut self, role: Role, endpoint: &Endpoint) -> bool {
        self.aside[at(role)].remove(endpoint) && self.is_wanted(role, endpoint)
    }

    /// True if a source wants it, and no operator has removed it.
    pub(super) fn is_wanted(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.held[at(role)].contains_key(endpoint)
    }

    /// True if a source other than an operator wants it, removed by an operator or not.
    pub(super) fn is_listed(&self, role: Role, endpoint: &Endpoint) -> bool {
        let mut sources = self.wants[at(role)].iter().filter(|(owner, _)| **owner != Owner::Operator);
        sources.any(|(_, wanted)| wanted.contains(endpoint))
    }

    /// Nobody's wish for it counts any more. An operator does not go on wanting what an operator
    /// removed.
    pub(super) fn forget(&mut self, role: Role, endpoint: &Endpoint) {
        self.held[at(role)].remove(endpoint);
        self.aside[at(role)].remove(endpoint);
        if let Some(wanted) = self.wants[at(role)].get_mut(&Owner::Operator) {
            wanted.remove(endpoint);
        }
    }

    /// True if nobody wants it any more.
    fn release(&mut self, role: Role, endpoint: &Endpoint, owner: Owner) -> bool {
        let held = &mut self.held[at(role)];
        let Some(owners) = held.get_mut(endpoint) else { return false };
        owners.remove(&owner);
        let gone = owners.is_empty();
        if gone {
            held.remove(endpoint);
        }
        gone
    }
}

fn at(role: Role) -> usize {
    match role {
        Role::Prefill => 0,
        Role::Decode => 1,
        Role::Encode => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_member_keeps_its_place_and_is_added_once() {
        let all: Vec<Endpoint> = ["b:1", "a:1", "b:1"].map(|text| Endpoint::parse(text).unwrap()).into();
        let mut roster = Roster::default();
        let change = roster.want(Owner::File, Role::Decode, &all);
        assert_eq!(change, Change { came: all[..2].to_vec(), gone: vec![] });
        assert_eq!(roster.want(Owner::Dns, Role::Decode, &all[..1]).gone, []);
        assert_eq!(roster.want(Owner::File, Role::Decode, &[]).gone, all[1..2]);
        assert_eq!(roster.want(Owner::Dns, Role::Decode, &[]).gone, all[..1]);
    }

    #[test]
    fn member_that_is_set_aside_comes_back_if_its_source_still_wants_it() {
        let all = [Endpoint::new("a", 1)];
        let (mut roster, of) = (Roster::default(), Role::Decode);
        roster.want(Owner::File, of, &all);
        roster.set_aside(of, &all[0]);
        assert!(roster.put_back(of, &all[0]));
        assert!(!roster.put_back(of, &all[0]), "it is back already");
        roster.set_aside(of, &all[0]);
        assert_eq!(roster.want(Owner::File, of, &[]).gone, all);
        assert_eq!(roster.want(Owner::File, of, &all).came, [], "it is still kept out");
        assert_eq!(roster.want(Owner::File, of, &[]).gone, all);
        assert!(!roster.put_back(of, &all[0]), "nobody wants it");
        assert_eq!(roster.want(Owner::File, of, &all).came, all);
        for forgets in [true, false] {
            roster.set_aside(of, &all[0]);
            match forgets {
                true => roster.forget(of, &all[0]),
                false => roster.claim(of, &all[0], Owner::Operator),
            }
            assert!(!roster.put_back(of, &all[0]), "an operator has the last word");
            assert_eq!(roster.is_wanted(of, &all[0]), !forgets);
        }
    }
}
