//! State of each role: counts of its members, kept up to date, and the fate of a request that finds
//! no member free.

use std::sync::{Arc, PoisonError};

use crate::endpoint::Endpoint;
use crate::fleet::health::State;
use crate::fleet::vacancy::{Bound, Counts};
use crate::fleet::{BusyAnswer, Fleet, Instance, InstanceId, Role, RoleOutlook, Vacancy};
use crate::route::Standing;
use smallvec::SmallVec;

impl Fleet {
    /// Some engine of `role`, for questions that any of them can answer; `random` spreads them. One
    /// that rests only when all do.
    pub fn any(&self, role: Role, random: u64) -> Option<Arc<Instance>> {
        let now_ms = self.now_ms();
        let members = self.role_members(role).members.load();
        let usable: SmallVec<[&Arc<Instance>; 16]> = members.iter().filter(|i| !i.draining()).collect();
        let good = |i: &&Arc<Instance>| i.standing(now_ms, random, false) == Standing::Good;
        let rested: SmallVec<[&Arc<Instance>; 16]> = usable.iter().copied().filter(good).collect();
        let from = if rested.is_empty() { usable } else { rested };
        let at = usize::try_from(random).unwrap_or(0).checked_rem(from.len())?;
        from.get(at).map(|instance| Arc::clone(instance))
    }

    /// True if some member of `role` takes requests. One look at two numbers.
    pub fn is_open(&self, role: Role) -> bool {
        self.role_members(role).vacancy.is_open()
    }

    /// State of `role` for a request that would need a member of it.
    pub fn outlook(&self, role: Role) -> RoleOutlook {
        self.role_members(role).vacancy.outlook()
    }

    /// The counts behind that, and who waits for them to change.
    pub fn vacancy(&self, role: Role) -> &Vacancy {
        &self.role_members(role).vacancy
    }

    /// Requests that wait for a prefiller, or for the first member of a role that has none.
    pub fn waiting(&self, role: Role) -> usize {
        let in_line = if role == Role::Prefill { self.scheduler.waiting() } else { 0 };
        in_line + self.vacancy(role).awaiting()
    }

    /// Takes an engine in, or back, and counts it.
    pub(super) fn enter(&self, role: Role, endpoint: Endpoint) -> bool {
        let entered = self.enter_uncounted(role, endpoint);
        self.count(role);
        entered
    }

    /// Counts the members of `role` anew, after one has come or left, or its breaker has opened or
    /// closed.
    pub(super) fn count(&self, role: Role) {
        self.count_members(role);
        self.update_pairs();
    }

    fn count_members(&self, role: Role) {
        let role_members = self.role_members(role);
        let mut state = role_members.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let (members, now_ms) = (role_members.members.load(), self.now_ms());
        let serves = |it: &&Arc<Instance>| !it.draining();
        let counts = Counts {
            members: members.len(),
            serving: members.iter().filter(serves).count(),
            accepting: members.iter().filter(serves).filter(|it| accepts(it, now_ms)).count(),
        };
        role_members.vacancy.set(counts, now_ms);
        self.note_role(role, &mut state, self.state_counts(role));
    }

    /// Notes that a member refused a request since it is busy; where all of its role did, requests
    /// stand in line from now on.
    pub(super) fn refused(&self, instance: &Instance, now_ms: u64) {
        // The request that it refused counts until its reservation is dropped.
        let running = instance.load().requests().saturating_sub(1);
        instance.health().capacity().refused(now_ms, running);
        let role_members = self.role_members(instance.role());
        let members = role_members.members.load();
        let mut accepting = members.iter().filter(|it| !it.draining() && accepts(it, now_ms)).peekable();
        let any = accepting.peek().is_some();
        if any && accepting.all(|it| it.health().capacity().is_busy(now_ms)) {
            self.crowd(instance.role());
        }
    }

    /// Name for lines of the log, where there are several fleets.
    pub fn log_name(&self) -> Option<&str> {
        self.settings.label.name()
    }

    /// Answer of the members of `role` that are busy, as one; `None` where none is.
    pub fn busy_answer(&self, role: Role) -> Option<BusyAnswer> {
        let (now_ms, members) = (self.now_ms(), self.members(role));
        let serving = members.iter().filter(|it| !it.draining());
        serving.filter_map(|it| it.health().capacity().busy_answer(now_ms)).reduce(BusyAnswer::or)
    }

    /// Notes that no member of `role` has room: requests stand in line from now on.
    pub fn crowd(&self, role: Role) {
        if self.role_members(role).vacancy.crowd(true) {
            let (fleet, role) = (self.log_name(), role.name());
            tracing::warn!(
                fleet,
                role,
                "role {role} is full: every engine is busy, and requests wait before their prefill"
            );
        }
    }

    /// True if there is a member of `role` that was not tried, serves, and is not known to be away.
    pub fn has_other(&self, role: Role, tried: &[InstanceId]) -> bool {
        self.any_untried(role, tried, |it, now_ms| it.health().state(now_ms) != State::Open)
    }

    /// True if there is a member of `role` that was not tried, takes requests, and has not said a
    /// moment ago that it is busy.
    pub fn has_idle_other(&self, role: Role, tried: &[InstanceId]) -> bool {
        self.any_untried(role, tried, |it, now_ms| {
            accepts(it, now_ms) && !it.is_full(now_ms) && !it.health().capacity().is_busy(now_ms)
        })
    }

    fn any_untried(&self, role: Role, tried: &[InstanceId], is_fit: impl Fn(&Instance, u64) -> bool) -> bool {
        let (now_ms, members) = (self.now_ms(), self.members(role));
        members.iter().any(|it| !it.draining() && !tried.contains(&it.id()) && is_fit(it, now_ms))
    }

    /// Lets the head of the line go, if a member has room for it, or may be asked whether it has.
    /// Ends the line when it is the last in it and nobody has been busy for a while.
    pub fn leave_line(&self, role: Role) -> Option<Bound> {
        let (role_members, now_ms) = (self.role_members(role), self.now_ms());
        let (members, vacancy) = (role_members.members.load(), &role_members.vacancy);
        let accepting = || members.iter().filter(|it| !it.draining() && accepts(it, now_ms));
        let bound = u32::try_from(vacancy.bound()).unwrap_or(u32::MAX);
        let most =
            accepting().try_fold(0u32, |sum, it| Some(sum.saturating_add(it.health().capacity().most()?)));
        let has_room = most.is_none_or(|most| {
            let running = accepting().fold(bound, |sum, it| sum.saturating_add(it.load().requests()));
            // Which of them is asked is decided later: the latest refusal's pause is that of all.
            let next_ms = accepting().map(|it| it.health().capacity().next_ms()).max().unwrap_or(0);
            running < most || bound == 0 && now_ms >= next_ms
        });
        if !has_room {
            return None;
        }
        if vacancy.waiting() <= 1 && accepting().all(|it| it.health().capacity().is_calm(now_ms)) {
            members.iter().for_each(|it| it.health().capacity().forget());
            vacancy.crowd(false);
        }
        Some(vacancy.bind())
    }
}

fn accepts(instance: &Instance, now_ms: u64) -> bool {
    instance.health().state(now_ms) == State::Closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Need, Outcome, Reservation};
    use crate::route::Policy;

    fn fleet(decoders: u16) -> Fleet {
        let fleet = Fleet::new(Policy::LeastRequests);
        for port in 1..=decoders {
            fleet.add(Role::Decode, Endpoint::new("d", port));
        }
        fleet
    }

    fn reservation(fleet: &Fleet) -> Reservation {
        fleet.pick(Role::Decode, Need::default()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn outlook_follows_breakers_and_members() {
        let fleet = fleet(2);
        let all = fleet.members(Role::Decode);
        assert!(fleet.is_open(Role::Decode));
        fleet.report(&all[0], Outcome::Unreachable);
        assert!(fleet.is_open(Role::Decode), "one is left");
        fleet.report(&all[1], Outcome::Unreachable);
        assert_eq!(fleet.outlook(Role::Decode), RoleOutlook::Resting);
        fleet.report(&all[0], Outcome::Served);
        assert_eq!(fleet.outlook(Role::Decode), RoleOutlook::Open);
        fleet.remove(Role::Decode, &Endpoint::new("d", 1));
        assert_eq!(fleet.outlook(Role::Decode), RoleOutlook::Resting, "the other one still rests");
        fleet.remove(Role::Decode, &Endpoint::new("d", 2));
        assert_eq!(
            (fleet.outlook(Role::Decode), fleet.outlook(Role::Prefill)),
            (RoleOutlook::Empty, RoleOutlook::Empty)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn line_begins_when_all_are_busy_and_lets_as_many_go_as_there_is_room_for() {
        let fleet = fleet(1);
        let mut running: Vec<Reservation> = (0..3).map(|_| reservation(&fleet)).collect();
        {
            let refused = reservation(&fleet);
            fleet.report(refused.instance(), Outcome::Busy(BusyAnswer::default()));
        }
        assert_eq!(fleet.outlook(Role::Decode), RoleOutlook::Crowded);
        assert!(fleet.leave_line(Role::Decode).is_none(), "it takes three, and has them");
        running.pop();
        let bound = fleet.leave_line(Role::Decode);
        assert!(bound.is_some() && fleet.leave_line(Role::Decode).is_none(), "one has ended");
        drop(bound);
        running.push(reservation(&fleet));
        tokio::time::advance(std::time::Duration::from_millis(200)).await;
        let asks = fleet.leave_line(Role::Decode);
        assert!(asks.is_some() && fleet.leave_line(Role::Decode).is_none(), "one may ask for more");
        drop(asks);
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        assert!(
            fleet.leave_line(Role::Decode).is_some() && fleet.is_open(Role::Decode),
            "the line has ended"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_member_with_room_is_enough() {
        let fleet = fleet(2);
        let all = fleet.members(Role::Decode);
        fleet.report(&all[0], Outcome::Busy(BusyAnswer::default()));
        assert!(fleet.is_open(Role::Decode));
        fleet.report(&all[1], Outcome::Busy(BusyAnswer::default()));
        assert_eq!(fleet.outlook(Role::Decode), RoleOutlook::Crowded);
        fleet.add(Role::Decode, Endpoint::new("d", 3));
        assert!(fleet.leave_line(Role::Decode).is_some(), "nothing is known of the third");
    }
}
