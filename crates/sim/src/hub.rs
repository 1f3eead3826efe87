//! State that the connections, the streams and the handle of one engine share.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::core::{Core, JobId, Progress, Prompt};
use super::faults::{Fault, FaultKind, Script};
use super::handoff::Source;
use super::ledger::{Ledger, Release};
use super::pool::ToStore;
use super::role_switch::RoleState;
use super::side;
use super::socket::Entry;
use super::spec::{EngineSpec, Role};

/// Statuses [`super::Engine::heard`] remembers.
const HEARD_STATUSES: usize = 4096;
/// Bytes of the bodies that [`super::Engine::seen`] remembers.
const SEEN_BYTES: usize = 64 << 20;
/// Stands for the store in faults of KV that an engine puts there.
const STORE_PATH: &str = "/sim/kv/store";
/// Chores that may wait; beyond it a release is left to the lease.
pub const CHORES: usize = 8192;

/// A request the engine has read.
#[derive(Clone, Debug)]
pub struct ObservedRequest {
    /// Method of HTTP.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in order, names in lower case; values that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Bytes,
}

/// State that every connection must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Phase of the engine.
    pub phase: Phase,
    /// Connections accepted before the gate was closed so often are reset.
    pub closings: u64,
}

/// Phases of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It serves requests.
    Up,
    /// It takes nothing new and lets requests finish.
    Draining,
    /// Every connection is reset.
    Killed,
}

/// Work that outlives the request it comes from.
#[derive(Debug)]
pub enum Chore {
    /// Give a hand-off back to its prefiller.
    Release(Source, Release),
    /// Call a metaserver, and say this.
    Call(String, serde_json::Value),
    /// Put a prompt into the store, after so long.
    Store(ToStore, Duration),
    /// The engine has died: close after the answer had time to leave.
    Die,
}

/// One engine's shared state.
#[derive(Debug)]
pub struct Hub {
    /// Specification of the engine.
    pub spec: EngineSpec,
    /// NIXL engine id, new on every start.
    pub engine_id: String,
    /// Address at which it is reached.
    pub gate: Entry,
    /// The scripted faults.
    pub faults: Script,
    /// Told to every connection.
    pub status: watch::Sender<Status>,
    chores: mpsc::Sender<Chore>,
    epoch: Instant,
    turn: AtomicU16,
    state: Mutex<State>,
    seen: Mutex<SeenLog>,
    heard: Mutex<VecDeque<u16>>,
    adapters: Mutex<Vec<String>>,
    role: Mutex<RoleState>,
    /// Tokens per second that come from an engine, where the link to it is no fast one.
    links: Mutex<HashMap<SocketAddr, f64>>,
}

#[derive(Debug)]
struct State {
    core: Core,
    bells: HashMap<JobId, Arc<Notify>>,
}

#[derive(Debug, Default)]
struct SeenLog {
    requests: VecDeque<ObservedRequest>,
    bytes: usize,
}

impl Hub {
    /// A hub at time zero.
    #[must_use]
    pub fn new(spec: EngineSpec, gate: Entry, chores: mpsc::Sender<Chore>) -> Hub {
        let core = Core::new(&spec);
        let adapters = Mutex::new(spec.adapters.clone());
        let role = Mutex::new(RoleState { role: spec.role, is_broken: false });
        Hub {
            spec,
            engine_id: uuid::Uuid::new_v4().to_string(),
            gate,
            faults: Script::default(),
            status: watch::Sender::new(Status { phase: Phase::Up, closings: 0 }),
            chores,
            epoch: Instant::now(),
            turn: AtomicU16::new(0),
            state: Mutex::new(State { core, bells: HashMap::new() }),
            seen: Mutex::default(),
            heard: Mutex::default(),
            adapters,
            role,
            links: Mutex::default(),
        }
    }

    /// Sets the speed of the link from another engine.
    pub fn set_link(&self, from: SocketAddr, tokens_per_s: f64) {
        lock(&self.links).insert(from, tokens_per_s);
    }

    /// Time in which so many tokens' KV comes from the engine of a hand-off.
    pub fn transfer_time(&self, source: &Source, tokens: usize) -> Duration {
        let from = source.host.parse().map(|host| SocketAddr::new(host, source.port));
        let rate = from.ok().and_then(|from| lock(&self.links).get(&from).copied());
        rate.map_or(Duration::ZERO, |rate| {
            Duration::try_from_secs_f64(tokens as f64 / rate).unwrap_or_default()
        })
    }

    /// LoRA adapters that are loaded now.
    pub fn adapters(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.adapters)
    }

    /// The role that it serves in now.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role_state().role
    }

    /// Its role, to be changed.
    pub fn role_state(&self) -> MutexGuard<'_, RoleState> {
        lock(&self.role)
    }

    /// This engine, as it reads the KV of others.
    pub fn kv_reader(&self) -> side::KvReader<'_> {
        side::KvReader { net: self.gate.net(), version: &self.spec.version }
    }

    /// The data-parallel rank of a request that asks for none.
    pub fn next_rank(&self, ranks: u16) -> u16 {
        self.turn.fetch_add(1, Ordering::Relaxed) % ranks
    }

    /// Microseconds since the start.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Sleeps until `us` after the start.
    pub fn sleep_until_us(&self, us: u64) -> tokio::time::Sleep {
        tokio::time::sleep_until(self.epoch + Duration::from_micros(us))
    }

    /// Runs `work` on the engine at the present time, then wakes whoever it concerns.
    pub fn with<R>(&self, work: impl FnOnce(&mut Core, u64) -> R) -> R {
        let now_us = self.now_us();
        let mut state = lock(&self.state);
        let result = work(&mut state.core, now_us);
        for id in state.core.take_woken() {
            if let Some(bell) = state.bells.get(&id) {
                bell.notify_one();
            }
        }
        let computed = state.core.take_to_store();
        self.store(computed);
        result
    }

    fn store(&self, computed: Vec<ToStore>) {
        let delay = Duration::from_millis(self.spec.store_delay_ms);
        for prompt in computed {
            if delay.is_zero() {
                self.put(&prompt);
            } else {
                self.chore(Chore::Store(prompt, delay));
            }
        }
    }

    /// Puts a prompt into the store, if there is one.
    pub fn put(&self, prompt: &ToStore) {
        let Some(pool) = &self.spec.pool else { return };
        prompt.store(pool);
        if self.faults.loses_kv(STORE_PATH) {
            pool.spoil(&prompt.keys);
        }
    }

    /// Queues a prompt; the bell rings when [`Hub::poll`] has news.
    pub fn submit(&self, prompt: Prompt) -> (JobId, Arc<Notify>) {
        let id = self.with(|core, now_us| core.submit(now_us, prompt));
        let bell = Arc::new(Notify::new());
        lock(&self.state).bells.insert(id, bell.clone());
        (id, bell)
    }

    /// Progress of a job.
    pub fn poll(&self, id: JobId) -> Progress {
        self.with(|core, now_us| core.poll(now_us, id))
    }

    /// Ends a job, finished or not.
    pub fn end(&self, id: JobId) {
        self.with(|core, now_us| core.end(now_us, id));
        lock(&self.state).bells.remove(&id);
    }

    /// The state in numbers.
    pub fn ledger(&self) -> Ledger {
        self.with(|core, now_us| core.ledger(now_us))
    }

    /// The engine dies: nobody new gets in, and when the answer had time to leave every connection
    /// is reset.
    pub fn die(&self, reason: &str) {
        self.with(|core, _| core.die(reason));
        self.gate.close();
        self.chore(Chore::Die);
    }

    /// Changes the phase and tells the connections.
    pub fn enter(&self, phase: Phase) {
        if phase != Phase::Up {
            self.gate.close();
        }
        self.status.send_modify(|status| status.phase = phase);
    }

    /// Adds a fault to the script; false if that is full.
    pub fn inject(&self, fault: Fault) -> bool {
        if matches!(fault.what, FaultKind::Refuse) {
            let closings = self.gate.close();
            self.status.send_modify(|status| status.closings = closings);
            return true;
        }
        self.faults.add(fault)
    }

    /// Forgets all faults and listens again.
    pub fn clear_faults(&self) {
        self.faults.clear();
        if self.status.borrow().phase == Phase::Up && !self.with(|core, _| core.is_dead()) {
            // If another process has taken the port meanwhile, the engine stays away.
            let _ = self.gate.open();
        }
    }

    /// Hands work to the engine's own task.
    pub fn chore(&self, chore: Chore) {
        // A full queue or a stopped engine loses the chore; the lease on the other side covers
        // that.
        let _ = self.chores.try_send(chore);
    }

    /// Remembers a request.
    pub fn remember(&self, request: ObservedRequest) {
        let mut log = lock(&self.seen);
        log.bytes += request.body.len();
        log.requests.push_back(request);
        while log.requests.len() > self.spec.seen_requests || log.bytes > SEEN_BYTES {
            let Some(old) = log.requests.pop_front() else { break };
            log.bytes -= old.body.len();
        }
    }

    /// Remembers the status of a metaserver's answer.
    pub fn hear(&self, status: u16) {
        let mut heard = lock(&self.heard);
        heard.push_back(status);
        if heard.len() > HEARD_STATUSES {
            heard.pop_front();
        }
    }

    /// The statuses remembered, newest last.
    #[must_use]
    pub fn heard(&self) -> Vec<u16> {
        lock(&self.heard).iter().copied().collect()
    }

    /// The requests remembered, newest last.
    #[must_use]
    pub fn seen(&self) -> Vec<ObservedRequest> {
        lock(&self.seen).requests.iter().cloned().collect()
    }

    /// Forgets the requests that were seen.
    pub fn clear_seen(&self) {
        *lock(&self.seen) = SeenLog::default();
    }
}

/// Locks; a panic elsewhere does not take the simulator down.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
