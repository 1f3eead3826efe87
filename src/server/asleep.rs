//! Engines that are out of the choice because they were put to sleep or paused with `?drain_ms=`.
//!
//! vLLM ends the requests that an engine has when it is put to sleep (`mode=abort`, its default).
//! With a time to drain, an engine first leaves its roles and finishes them, and comes back once it
//! was woken and says itself that it neither sleeps nor pauses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::endpoint::Endpoint;
use crate::fleet::{Instance, Role};
use crate::server::fleets::ServedFleet;
use crate::server::instances::DRAIN_LOOK;
use crate::tokenization::exchange::{authorized, exchange};

/// Orders after which an engine serves nothing.
const RESTING: [&str; 4] = ["/sleep", "/release_memory_occupation", "/pause", "/pause_generation"];

/// Orders after which it may serve again.
const WAKING: [&str; 4] = ["/wake_up", "/resume_memory_occupation", "/resume", "/continue_generation"];

/// Questions by which an engine tells that it does not serve, with the member of the answer. SGLang
/// has none of them, and answers 404.
const STATES: [(&str, &str); 2] = [("/is_sleeping", "is_sleeping"), ("/is_paused", "is_paused")];

/// Bytes of such an answer that are read.
const STATE_BYTES: usize = 4 << 10;

/// True if an engine may be drained before this order.
pub(super) fn rests(path: &str) -> bool {
    RESTING.contains(&path)
}

/// True if engines may come back after this order.
pub(super) fn wakes(path: &str) -> bool {
    WAKING.contains(&path)
}

/// An engine and the roles that it left.
#[derive(Clone, Debug)]
pub(super) struct Rested {
    pub(super) instance: Arc<Instance>,
    pub(super) roles: Vec<Role>,
}

/// An engine that is out of the choice until it is woken.
#[derive(Debug)]
struct Absent {
    rested: Rested,
    /// True once it has done as it was told; before that it drains.
    is_asleep: bool,
}

/// Word of an engine that is to be added, about itself.
#[derive(Debug)]
pub(super) enum OwnWord {
    /// It does not list its models.
    Silent,
    /// It sleeps or pauses.
    Rests,
    /// It does not say that it rests. `was_asleep`: it did when it was asked, as far as was known.
    Serves { was_asleep: bool },
}

/// Engines that are out of the choice until they are woken, and those that are on their way.
#[derive(Debug, Default)]
pub struct Asleep {
    absent: Mutex<BTreeMap<Endpoint, Absent>>,
    /// Engines that an order with a time to drain is carried out at, true once they have drained
    /// and are told. Another order waits for its end.
    under_way: Mutex<BTreeMap<Endpoint, bool>>,
}

/// An order with a time to drain, carried out at one engine; its end lets the next one begin.
#[derive(Debug)]
pub(super) struct DrainedOrder<'a> {
    fleet: &'a ServedFleet,
    engine: &'a Endpoint,
    has_left: bool,
}

impl Drop for DrainedOrder<'_> {
    fn drop(&mut self) {
        self.fleet.asleep.under_way().remove(self.engine);
    }
}

impl DrainedOrder<'_> {
    /// Ends the order. An engine that has not done as it was told serves on, unless it slept
    /// before.
    pub(super) fn end(self, is_success: bool) {
        if !self.has_left {
            return;
        }
        match is_success {
            true => self.fleet.asleep.fell_asleep(self.engine),
            false => self.fleet.take_back(self.engine),
        }
    }
}

impl Asleep {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Endpoint, Absent>> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never taken by who has the list of those that are absent.
    fn under_way(&self) -> MutexGuard<'_, BTreeMap<Endpoint, bool>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that had one of these roles.
    pub(super) fn of_roles(&self, roles: &[Role]) -> Vec<Rested> {
        let has = |it: &&Absent| it.rested.roles.iter().any(|role| roles.contains(role));
        self.all().values().filter(has).map(|it| it.rested.clone()).collect()
    }

    /// Number of those that had this role and sleep.
    pub(super) fn count(&self, role: Role) -> usize {
        let all = self.all();
        all.values().filter(|it| it.is_asleep && it.rested.roles.contains(&role)).count()
    }

    /// True if this engine had this role and sleeps, or is on its way.
    pub(super) fn has(&self, role: Role, engine: &Endpoint) -> bool {
        self.all().get(engine).is_some_and(|it| it.rested.roles.contains(&role))
    }

    fn sleeps(&self, engine: &Endpoint) -> bool {
        self.all().get(engine).is_some_and(|it| it.is_asleep)
    }

    /// Keeps an engine out of a role until it is woken.
    fn keep_out(&self, instance: Arc<Instance>, role: Role) {
        let mut all = self.all();
        let rested = Rested { instance: instance.clone(), roles: Vec::new() };
        let absent = all.entry(instance.endpoint().clone()).or_insert(Absent { rested, is_asleep: true });
        if !absent.rested.roles.contains(&role) {
            absent.rested.roles.push(role);
        }
    }

    /// Forgets a role of an engine: an operator removed it there. True if it was asleep.
    pub(super) fn forget(&self, role: Role, engine: &Endpoint) -> bool {
        let mut all = self.all();
        let Some(absent) = all.get_mut(engine) else { return false };
        let before = absent.rested.roles.len();
        absent.rested.roles.retain(|it| *it != role);
        let (is_known, is_gone) = (absent.rested.roles.len() < before, absent.rested.roles.is_empty());
        if is_gone {
            all.remove(engine);
        }
        is_known
    }

    /// True while an order with a time to drain is carried out at an engine.
    pub(super) fn is_ordered(&self, engine: &Endpoint) -> bool {
        self.under_way().contains_key(engine)
    }

    /// True while an engine that has drained for such an order is told.
    pub(super) fn is_told(&self, engine: &Endpoint) -> bool {
        self.under_way().get(engine) == Some(&true)
    }

    fn fell_asleep(&self, engine: &Endpoint) {
        if let Some(it) = self.all().get_mut(engine) {
            it.is_asleep = true;
        }
    }

    /// The list for `/instances` and the status page.
    pub(super) fn to_json(&self) -> Vec<Value> {
        let shown = |it: &Absent| {
            let roles: Vec<&str> = it.rested.roles.iter().map(|role| role.name()).collect();
            json!({ "instance": it.rested.instance.endpoint().to_string(), "roles": roles })
        };
        self.all().values().filter(|it| it.is_asleep).map(shown).collect()
    }
}

impl ServedFleet {
    /// Takes an engine out of all of its roles, which one process serves, and waits until it has no
    /// work left. It may be out of them already, because it sleeps or was removed.
    ///
    /// # Errors
    /// It still had work after `limit`, and serves on; another order is still under way, or a move;
    /// or somebody has added, removed or woken it meanwhile; or the gateway's own end cuts its
    /// requests.
    pub(super) async fn rest<'a>(
        &'a self,
        instance: &'a Arc<Instance>,
        limit: Duration,
    ) -> Result<DrainedOrder<'a>, String> {
        let (engine, until) = (instance.endpoint(), Instant::now() + limit);
        while !self.begin_order(engine) {
            if Instant::now() >= until {
                return Err(format!(
                    "another order with drain_ms was still under way after {} ms (drain_ms)",
                    limit.as_millis()
                ));
            }
            sleep(DRAIN_LOOK).await;
        }
        let mut order = DrainedOrder { fleet: self, engine, has_left: false };
        if let Some(refusal) = self.moves.make_way(engine) {
            return Err(refusal.to_string());
        }
        let roles: Vec<Role> = Role::ALL.into_iter().filter(|role| self.serves(*role, engine)).collect();
        order.has_left = !roles.is_empty();
        let members = &self.relay.fleet;
        if order.has_left {
            // Before it leaves: a change by an operator while it drains is the last word.
            let rested = Rested { instance: instance.clone(), roles: roles.clone() };
            self.asleep.all().insert(engine.clone(), Absent { rested, is_asleep: false });
        }
        for role in &roles {
            members.set_aside(*role, engine);
        }
        if !self.drained(&Role::ALL, &[engine], until.saturating_duration_since(Instant::now())).await {
            let cause = self.busy_cause(engine);
            self.take_back(engine);
            return Err(format!("{cause} after {} ms (drain_ms)", limit.as_millis()));
        }
        // Its requests were cut, not finished: it may not be told in the gateway's last moment.
        if self.relay.meters.cuts() {
            self.take_back(engine);
            return Err("the gateway shuts down: it was not told".to_owned());
        }
        let is_wanted = || roles.iter().any(|role| members.is_wanted(*role, engine));
        let is_free = || !order.has_left || self.asleep.all().contains_key(engine) && is_wanted();
        if !self.begin_telling(engine, is_free) {
            self.take_back(engine);
            return Err("it was added, removed or woken while it drained".to_owned());
        }
        Ok(order)
    }

    /// Begins an order with a time to drain. False if one is under way at this engine.
    fn begin_order(&self, engine: &Endpoint) -> bool {
        let mut under_way = self.asleep.under_way();
        let begins = !under_way.contains_key(engine);
        if begins {
            under_way.insert(engine.clone(), false);
        }
        begins
    }

    /// Notes that an engine is told from now on, if it may be; no addition comes in between.
    fn begin_telling(&self, engine: &Endpoint, may_be: impl FnOnce() -> bool) -> bool {
        let mut under_way = self.asleep.under_way();
        let begins = may_be();
        if begins {
            under_way.insert(engine.clone(), true);
        }
        begins
    }

    /// Takes in an engine that an operator adds and that lists its models. One that rests stays out
    /// until it is woken; so does one that was told to rest since it was asked.
    pub(super) fn take_in(&self, role: Role, engine: &Endpoint, word: &OwnWord) {
        // No order begins to tell it before this is done.
        let under_way = self.asleep.under_way();
        let is_told = under_way.get(engine) == Some(&true);
        let fell_asleep = match word {
            OwnWord::Serves { was_asleep } => !was_asleep && self.asleep.sleeps(engine),
            OwnWord::Silent | OwnWord::Rests => true,
        };
        let members = &self.relay.fleet;
        if is_told || fell_asleep {
            self.asleep.keep_out(members.add_aside(role, engine), role);
        } else {
            self.take_back(engine);
            members.add(role, engine.clone());
        }
        drop(under_way);
    }

    /// Takes an engine in again that left its roles, unless an operator has changed it since, or
    /// nobody wants it any more.
    fn take_back(&self, engine: &Endpoint) {
        let found = self.asleep.all().remove(engine);
        for role in found.iter().flat_map(|it| &it.rested.roles) {
            self.relay.fleet.put_back(*role, engine);
        }
    }

    /// Takes an engine in again if it was asleep, and is awake by its own word.
    pub(super) async fn wake(&self, engine: &Endpoint) {
        if !self.asleep.all().contains_key(engine) || !self.is_awake(engine).await {
            return;
        }
        // Somebody else may have woken it, or taken it out, or told it to rest, while it was asked.
        let under_way = self.asleep.under_way();
        if under_way.get(engine) != Some(&true) {
            self.take_back(engine);
        }
        drop(under_way);
    }

    async fn is_awake(&self, engine: &Endpoint) -> bool {
        self.rests(engine).await == Some(false) && self.answers(engine).await
    }

    /// Asks an engine that is to be added what it is.
    pub(super) async fn own_word(&self, engine: &Endpoint) -> OwnWord {
        if !self.answers(engine).await {
            return OwnWord::Silent;
        }
        let was_asleep = self.asleep.sleeps(engine);
        match self.rests(engine).await {
            Some(true) => OwnWord::Rests,
            _ => OwnWord::Serves { was_asleep },
        }
    }

    /// True if an engine says that it sleeps or pauses; None if it does not tell.
    async fn rests(&self, engine: &Endpoint) -> Option<bool> {
        let told = join_all(STATES.map(|(path, member)| self.ask_state(engine, path, member))).await;
        match told.contains(&Some(true)) {
            true => Some(true),
            false => told.into_iter().collect::<Option<Vec<bool>>>().map(|_| false),
        }
    }

    /// Answer of an engine to one of [`STATES`]; None if it has none.
    async fn ask_state(&self, engine: &Endpoint, path: &str, member: &str) -> Option<bool> {
        let access = self.access.now();
        let call = authorized(self.control.get(engine.url(path)), access.authorization.as_ref());
        match exchange(call.timeout(access.probe_time), access.probe_time, STATE_BYTES).await {
            Ok((StatusCode::OK, body)) => {
                let told: Value = serde_json::from_slice(&body).unwrap_or_default();
                Some(told.get(member).and_then(Value::as_bool) == Some(true))
            }
            Ok((StatusCode::NOT_FOUND, _)) => Some(false),
            _ => None,
        }
    }
}
