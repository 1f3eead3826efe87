//! Number of data-parallel ranks of each engine, where the gateway chooses among them: as
//! configured, or as the engine tells.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::endpoint::Endpoint;
use crate::fleet::health::EngineState;
use crate::fleet::{Fleet, Instance, Rank, Role};

/// The most ranks of one engine among which is chosen: each is a place of its own in every choice.
const MAX_RANKS: Rank = 64;

/// Facts about the ranks of a role's engines that are known beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankRule {
    /// Each engine chooses among its own.
    #[default]
    ByEngine,
    /// The gateway chooses; an engine that does not tell has so many.
    ByGateway(Rank),
}

impl RankRule {
    /// From a number of the configuration: 0 = as each engine tells, 1 = the engine chooses.
    pub fn of(configured: u32) -> RankRule {
        match configured {
            1 => RankRule::ByEngine,
            0 => RankRule::ByGateway(1),
            ranks => RankRule::ByGateway(Rank::try_from(ranks).unwrap_or(MAX_RANKS).min(MAX_RANKS)),
        }
    }
}

/// Ranks of single engines.
#[derive(Debug, Default)]
pub(super) struct RankCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By the configuration, which is not contradicted.
    configured: HashMap<Endpoint, Rank>,
    /// By the engine's own word; members only.
    told: HashMap<Endpoint, Rank>,
}

impl RankCounts {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranks of this engine among which the gateway chooses; 1 = the engine does, or has only one.
    pub(super) fn of(&self, engine: &Endpoint, rule: RankRule) -> Rank {
        let counts = self.counts();
        match (counts.configured.get(engine), rule) {
            (Some(ranks), _) => *ranks,
            (None, RankRule::ByEngine) => 1,
            (None, RankRule::ByGateway(ranks)) => counts.told.get(engine).copied().unwrap_or(ranks),
        }
    }
}

/// Number of data-parallel ranks that the configuration gives one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineRanks {
    /// The engine, without a rank.
    pub engine: Endpoint,
    /// Its ranks, at least 1.
    pub ranks: Rank,
}

impl Fleet {
    /// Engines that have another number of ranks than their role's others.
    pub fn configure_ranks(&self, engines: impl IntoIterator<Item = EngineRanks>) {
        let counts = engines.into_iter().map(|one| (one.engine, one.ranks));
        self.ranks.counts().configured.extend(counts);
    }

    pub(super) fn rank_rule(&self, role: Role) -> RankRule {
        match role {
            Role::Prefill => self.settings.prefill_ranks,
            Role::Decode => self.settings.decode_ranks,
            Role::Encode => RankRule::ByEngine,
        }
    }

    /// `instance` tells that it has so many ranks. Where the gateway chooses among them and took it
    /// to have others, a new member takes its place, and what runs on the old one ends there.
    pub fn tells_ranks(&self, instance: &Instance, ranks: Rank) {
        let (role, engine) = (instance.role(), instance.endpoint());
        if self.rank_rule(role) == RankRule::ByEngine {
            return;
        }
        {
            let members = self.members(role);
            let mut counts = self.ranks.counts();
            counts.told.retain(|told, _| members.iter().any(|member| member.endpoint() == told));
            counts.told.insert(engine.clone(), ranks.clamp(1, MAX_RANKS));
        }
        let now = self.ranks.of(engine, self.rank_rule(role));
        if now == instance.rank_count() || instance.draining() {
            return;
        }
        self.replace(instance);
        tracing::info!(role = role.name(), %engine, ranks = now, before = instance.rank_count(), "data-parallel ranks");
    }

    /// Lets `old` drain, and takes the same engine in as a new member, before it in the list: what
    /// looks for an engine finds the new one.
    fn replace(&self, old: &Instance) {
        let role = old.role();
        {
            let role_members = self.role_members(role);
            let _turn = role_members.lock();
            let members = role_members.members.load_full();
            let Some(at) = members.iter().position(|member| member.id() == old.id() && !member.draining())
            else {
                return;
            };
            let mut changed = members.as_ref().clone();
            let fresh = self.create(role, old.endpoint().clone());
            if old.health().has_answered() {
                fresh.health().answered_well();
                fresh.health().record().set(self.now_ms(), EngineState::Up);
            }
            let gone = std::mem::replace(&mut changed[at], fresh.clone());
            changed.push(gone);
            // First the one that comes: where there is no other, whoever waits would be turned away
            // in between.
            self.join_scheduler(&fresh);
            role_members.members.store(Arc::new(changed));
            old.drain();
            if role == Role::Prefill {
                self.scheduler.drain(old.id(), true);
            }
        }
        self.sweep(role);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{FleetSettings, Need};

    fn fleet(prefill: RankRule) -> Fleet {
        Fleet::with(FleetSettings { prefill_ranks: prefill, ..FleetSettings::default() })
    }

    fn engine(port: u16) -> Endpoint {
        Endpoint::new("p", port)
    }

    fn counts(fleet: &Fleet) -> Vec<(u16, Rank)> {
        let members = fleet.members(Role::Prefill);
        members.iter().map(|member| (member.endpoint().port, member.rank_count())).collect()
    }

    fn told(fleet: &Fleet, port: u16, ranks: Rank) {
        let members = fleet.members(Role::Prefill);
        let member = members.iter().find(|member| member.endpoint().port == port && !member.draining());
        fleet.tells_ranks(member.unwrap(), ranks);
    }

    #[test]
    fn each_engine_has_the_ranks_that_it_tells_of_or_is_configured_with() {
        let fleet = fleet(RankRule::of(2));
        fleet.configure_ranks([EngineRanks { engine: engine(3), ranks: 8 }]);
        for port in [1, 2, 3, 4] {
            fleet.add(Role::Prefill, engine(port));
        }
        assert_eq!(counts(&fleet), [(1, 2), (2, 2), (3, 8), (4, 2)]);
        told(&fleet, 1, 4);
        told(&fleet, 2, 2);
        told(&fleet, 3, 4);
        told(&fleet, 4, 1);
        assert_eq!(counts(&fleet), [(1, 4), (2, 2), (3, 8), (4, 1)]);
        fleet.remove(Role::Prefill, &engine(1));
        fleet.add(Role::Prefill, engine(1));
        assert_eq!(
            counts(&fleet),
            [(2, 2), (3, 8), (4, 1), (1, 4)],
            "it is remembered while others are asked"
        );
    }

    #[test]
    fn engines_that_choose_themselves_are_left_alone_unless_named() {
        let fleet = fleet(RankRule::of(1));
        fleet.configure_ranks([EngineRanks { engine: engine(2), ranks: 4 }]);
        fleet.add(Role::Prefill, engine(1));
        fleet.add(Role::Prefill, engine(2));
        told(&fleet, 1, 4);
        assert_eq!(counts(&fleet), [(1, 1), (2, 4)]);
    }

    #[test]
    fn running_work_ends_on_the_old_member() {
        let fleet = fleet(RankRule::of(0));
        fleet.add(Role::Prefill, engine(1));
        let reservation = fleet.pick(Role::Prefill, Need { tokens: 5, ..Need::default() }).unwrap();
        told(&fleet, 1, 2);
        let members = fleet.members(Role::Prefill);
        let shown: Vec<_> = members.iter().map(|member| (member.rank_count(), member.draining())).collect();
        assert_eq!(shown, [(2, false), (1, true)]);
        assert_eq!((fleet.serving(Role::Prefill), reservation.instance().load().work_tokens()), (1, 5));
        drop(reservation);
        assert_eq!(fleet.sweep(Role::Prefill), 0);
        assert_eq!(counts(&fleet), [(1, 2)]);
    }
}
