//! The members of the fleet behind the scheduler's lanes, found by lane, by instance and by host.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::HostNames;
use super::instance::InstanceId;
use super::member::Member;
use super::scheduler_handle::CacheReports;
use crate::route::{CacheView, Job, LaneId};

/// Members by lane, with indexes: a fleet may have thousands of lanes, and each request asks.
#[derive(Clone, Debug, Default)]
pub(super) struct LaneMembers {
    members: Vec<Option<Member>>,
    of_instance: HashMap<InstanceId, SmallVec<[LaneId; 2]>>,
    on_host: HashMap<String, SmallVec<[LaneId; 2]>>,
    /// Names that a pool has for hosts.
    pub(super) host_names: HostNames,
}

/// Tokens of one prompt that each lane told that it holds, looked up ahead of the scheduler's lock.
#[derive(Clone, Debug)]
pub(super) struct ToldByLanes(Vec<Option<u32>>);

impl LaneMembers {
    pub(super) fn put(&mut self, lane: LaneId, member: Member) {
        let at = usize::from(lane.0);
        if self.members.len() <= at {
            self.members.resize(at + 1, None);
        }
        self.of_instance.entry(member.instance.id()).or_default().push(lane);
        self.on_host.entry(member.instance.endpoint().host.clone()).or_default().push(lane);
        if let Some(place) = self.members.get_mut(at) {
            *place = Some(member);
        }
    }

    pub(super) fn remove(&mut self, id: InstanceId) {
        for lane in self.of_instance.remove(&id).unwrap_or_default() {
            let gone = self.members.get_mut(usize::from(lane.0)).and_then(Option::take);
            let Some(gone) = gone else { continue };
            let host = &gone.instance.endpoint().host;
            if let Some(lanes) = self.on_host.get_mut(host) {
                lanes.retain(|its| *its != lane);
                if lanes.is_empty() {
                    self.on_host.remove(host);
                }
            }
        }
    }

    /// The lanes of an instance.
    pub(super) fn of(&self, id: InstanceId) -> &[LaneId] {
        self.of_instance.get(&id).map_or(&[], |lanes| lanes.as_slice())
    }

    /// The lanes on what a pool calls a host.
    pub(super) fn on(&self, host: &str) -> &[LaneId] {
        let host = self.host_names.get(host).map_or(host, String::as_str);
        self.on_host.get(host).map_or(&[], |lanes| lanes.as_slice())
    }

    pub(super) fn get(&self, lane: LaneId) -> Option<&Member> {
        self.members.get(usize::from(lane.0))?.as_ref()
    }

    /// All lanes that have a member.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (LaneId, &Member)> {
        let members = (0u16..).map(LaneId).zip(&self.members);
        members.filter_map(|(lane, member)| Some((lane, member.as_ref()?)))
    }

    /// True if some prefiller does not drain.
    pub(super) fn serves(&self) -> bool {
        self.lanes().any(|(_, member)| !member.instance.draining())
    }

    /// Looks up what each lane told that it holds of a prompt.
    pub(super) fn told(&self, reports: &dyn CacheReports, job: &Job) -> ToldByLanes {
        let told = reports.held(job);
        let tokens = |Member { instance, rank }: &Member| {
            let first = told.partition_point(|it| it.instance < instance.id());
            let its = told.get(first..).unwrap_or_default().iter();
            let its = its.take_while(|it| it.instance == instance.id());
            // Of an engine that chooses among its ranks itself, the one that holds most counts.
            let those = its.filter(|it| rank.is_none_or(|rank| u32::from(rank) == it.rank));
            those.map(|it| it.tokens).max()
        };
        ToldByLanes(self.members.iter().map(|member| tokens(member.as_ref()?)).collect())
    }
}

impl CacheView for ToldByLanes {
    fn hbm_tokens(&self, _: &Job, out: &mut [Option<u32>]) {
        out.iter_mut().zip(&self.0).for_each(|(out, told)| *out = *told);
    }
}

/// A view that says nothing: what lanes tell is looked up ahead, and told apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedAhead;

impl CacheView for AskedAhead {
    fn hbm_tokens(&self, _: &Job, _: &mut [Option<u32>]) {}

    fn asks_again(&self) -> bool {
        false
    }
}
