//! The engines: who there is, how loaded each is, and who failed a moment ago.
//!
//! The list is an immutable snapshot that readers load without waiting; choosing an instance and
//! reserving room on it is one step under a short lock, so that two requests that arrive together
//! never both see the same free instance.

mod adapters;
mod append;
mod aside;
mod blame;
mod chat_ids;
mod commitment;
mod decoder_memory;
pub mod engine_protocol;
pub mod handoffs;
pub mod health;
mod hits;
pub mod instance;
mod keys;
mod lane_members;
mod links;
mod load_window;
mod member;
mod models;
mod occupancy;
mod pace;
pub mod peers;
pub mod pending_decodes;
mod ranks;
mod releases;
mod reports;
pub mod reservation;
mod role_load;
pub mod roster;
pub mod scheduler_handle;
mod standing;
mod transitions;
mod turns;
pub mod vacancy;
pub mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use std::sync::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::obs::{FleetLabel, LegMeter};
use crate::route::learn::DecodeLearner;
use crate::route::{
    self, Candidate, DecodeCandidate, DecodeCosts, Job, LaneSpec, Policy, RequestFacts, SchedulerSettings,
    TieBreak,
};
pub use append::{AppendNeed, AppendSeat, BestAppend};
pub use blame::FailedHandoff;
pub use chat_ids::AskedProcess;
pub use decoder_memory::{DecodeCounts, FoundByDecoder};
use decoder_memory::{DecoderMemory, LegMemory, PromptOnDecoder};
pub use engine_protocol::{EngineProtocol, LiveProtocol};
pub use health::capacity::BusyAnswer;
pub use health::handoffs::Verdict;
pub use hits::{HitTokens, Hits};
use instance::MemberParts;
pub use instance::{ExternalLoad, Instance, InstanceId, Rank, Role};
pub use links::NamedSlowLink;
pub use member::Member;
pub use pace::{Pace, Paces};
pub use pending_decodes::{PendingDecode, PendingDecodes};
use ranks::RankCounts;
pub use ranks::{EngineRanks, RankRule};
pub use reports::{Outcome, ProbeAnswer, Sign};
pub use reservation::Reservation;
use role_load::LoadRecord;
pub use role_load::{LoadTargets, RoleLoad};
pub use roster::Owner;
use roster::Roster;
pub use scheduler_handle::{CacheReports, Choice, Holding, Placement, SchedulerHandle};
pub use vacancy::{RoleOutlook, Vacancy};
pub use waiting::Waiting;

/// Everybody in one role, at one moment.
pub type Members = Arc<Vec<Arc<Instance>>>;

/// Result of the removal of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// No engine of the role has the address.
    Unknown,
    /// The engine has work left and leaves the list when it is done.
    Draining,
    /// The engine is in the list no more.
    Gone,
}

/// Settings of a fleet's decisions.
#[derive(Clone, Debug, Default)]
pub struct FleetSettings {
    /// Settings of the prefill scheduler.
    pub board: SchedulerSettings,
    /// Costs of decode steps that are assumed until more is known.
    pub decode: DecodeCosts,
    /// Tokens that fit into a prefiller's cache.
    pub cache_tokens: u64,
    /// Data-parallel ranks in each prefiller among which the gateway chooses.
    pub prefill_ranks: RankRule,
    /// The same in each decoder.
    pub decode_ranks: RankRule,
    /// Of random numbers.
    pub seed: u64,
    /// Rules of the breakers.
    pub health: health::Rules,
    /// Source of the key that engines get with requests.
    pub key_source: health::KeySource,
    /// True if engines are probed, so that a good answer can be waited for.
    pub probed: bool,
    /// True if the fleet is an API that answers alone: that it has no prefillers is no news.
    pub is_remote: bool,
    /// Label of the engines' metrics.
    pub label: FleetLabel,
    /// Latencies that the number of engines is to keep.
    pub load_targets: LoadTargets,
}

/// Names of hosts in a pool, with the names of the prefillers on them.
pub type HostNames = std::collections::HashMap<String, String>;

/// Prefillers, decoders and encoders.
#[derive(Debug)]
pub struct Fleet {
    prefill: RoleMembers,
    decode: RoleMembers,
    encode: RoleMembers,
    settings: FleetSettings,
    /// Ranks of single engines, where they are configured or were told.
    ranks: RankCounts,
    scheduler: Arc<SchedulerHandle>,
    decode_learner: Arc<Mutex<DecodeLearner>>,
    /// Sums from which loads of roles are computed.
    loads: LoadRecord,
    /// Beliefs about what decoders hold of prompts.
    decoder_memory: Arc<DecoderMemory>,
    next_id: AtomicU64,
    pending_decodes: PendingDecodes,
    /// Outcomes of hand-offs, by pair.
    handoffs: blame::Handoffs,
    /// Paces of hand-offs, by pair.
    links: links::FleetLinks,
    /// True if members list different models, as with adapters that only some have.
    lists_differ: AtomicBool,
    /// Time at which all were last asked for their lists at once, ms; 0 = never.
    lists_asked_ms: AtomicU64,
    /// Told when an engine has given its list, or failed to.
    list_read: Notify,
    /// Releases of the members, as far as they matter.
    releases: releases::Releases,
    /// Sources and the members that they want. Held while the list changes; taken before a
    /// role's lock.
    roster: Mutex<Roster>,
    /// True once the fleet has left and its time is over: all that is open is ended.
    is_cut: AtomicBool,
    /// Number of restarts of engines, for those who look at them again.
    restarts: watch::Sender<u64>,
    /// Health is kept in milliseconds since then.
    born: Instant,
}

/// Members of one role, and the locks around them.
#[derive(Debug)]
struct RoleMembers {
    members: ArcSwap<Vec<Arc<Instance>>>,
    /// Held while choosing and reserving, and while changing the list. Never across an await.
    turn: Mutex<u64>,
    vacancy: Vacancy,
    /// State of the role when its members were last counted; held while they are, so that the last
    /// count is of the last change.
    counting: Mutex<health::EngineState>,
    /// True once some member has answered a probe or a request well.
    answered: AtomicBool,
}

/// Demands of a leg on the instance that serves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need<'a> {
    /// Tokens to reserve: of the prompt, and for decoders of the answer as well.
    pub tokens: u64,
    /// Instances on which this request failed already: taken only when there are no others.
    pub tried: &'a [InstanceId],
    /// A random number for the policies that choose at random.
    pub random: u64,
    /// The same for requests that belong together.
    pub session: Option<u64>,
    /// Facts of the prompt, for a decoder that is to be remembered to hold it.
    pub job: Option<&'a Arc<Job>>,
    /// The prefiller that has the KV, for a decoder that fetches it.
    pub producer: Option<InstanceId>,
    /// The engine that alone has the state that the request is about, whether it drains or not.
    /// If it is gone, any engine is as good. The caller asks no other engine after it.
    pub keeper: Option<InstanceId>,
    /// It is under way, and has KV that only an instance of this role can fetch: where all that are
    /// left drain, one of them will do.
    pub under_way: bool,
}

impl RoleMembers {
    fn new(rest_ms: u64) -> RoleMembers {
        RoleMembers {
            members: ArcSwap::from_pointee(Vec::new()),
            turn: Mutex::new(0),
            vacancy: Vacancy::new(rest_ms),
            counting: Mutex::default(),
            answered: AtomicBool::new(false),
        }
    }

    /// A poisoned lock is taken all the same: what it guards is a counter and an atomic swap.
    fn lock(&self) -> std::sync::MutexGuard<'_, u64> {
        self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Fleet {
    /// A fleet with nobody in it.
    pub fn new(policy: Policy) -> Fleet {
        let board = SchedulerSettings { policy, ..SchedulerSettings::default() };
        Fleet::with(FleetSettings { board, ..FleetSettings::default() })
    }

    /// The same, with everything set.
    pub fn with(settings: FleetSettings) -> Fleet {
        Fleet {
            prefill: RoleMembers::new(settings.health.rest_ms),
            decode: RoleMembers::new(settings.health.rest_ms),
            encode: RoleMembers::new(settings.health.rest_ms),
            ranks: RankCounts::default(),
            scheduler: Arc::new(SchedulerHandle::new(settings.board, settings.seed)),
            decode_learner: Arc::new(Mutex::new(DecodeLearner::new(settings.decode))),
            decoder_memory: Arc::default(),
            settings,
            loads: LoadRecord::default(),
            next_id: AtomicU64::new(0),
            pending_decodes: PendingDecodes::default(),
            handoffs: blame::Handoffs::default(),
            links: links::FleetLinks::default(),
            lists_differ: AtomicBool::new(false),
            lists_asked_ms: AtomicU64::new(0),
            list_read: Notify::new(),
            releases: releases::Releases::default(),
            roster: Mutex::default(),
            is_cut: AtomicBool::new(false),
            restarts: watch::Sender::new(0),
            born: Instant::now(),
        }
    }

    /// Place where requests wait for a prefiller.
    pub fn scheduler(&self) -> &Arc<SchedulerHandle> {
        &self.scheduler
    }

    fn role_members(&self, role: Role) -> &RoleMembers {
        match role {
            Role::Prefill => &self.prefill,
            Role::Decode => &self.decode,
            Role::Encode => &self.encode,
        }
    }

    /// Everyone in `role`, including those that drain.
    pub fn members(&self, role: Role) -> Members {
        self.role_members(role).members.load_full()
    }

    /// Adds an engine on the word of an operator, or takes it back into service if it drains.
    /// `false` when it serves already.
    pub fn add(&self, role: Role, endpoint: Endpoint) -> bool {
        let mut roster = self.roster();
        roster.claim(role, &endpoint, Owner::Operator);
        self.enter(role, endpoint)
    }

    /// True if a source other than an operator wants this engine: the configuration or a discovery.
    pub fn is_listed(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.roster().is_listed(role, endpoint)
    }

    /// Sets the members of `role` that `owner` wants. Those that it wanted before and nobody else
    /// wants are drained. Returns how many came and went.
    pub fn want(&self, owner: Owner, role: Role, endpoints: &[Endpoint]) -> (usize, usize) {
        let mut roster = self.roster();
        let change = roster.want(owner, role, endpoints);
        // First those who come: where all others go, whoever waits would be turned away in between.
        let came = change.came.into_iter().filter(|endpoint| self.enter(role, endpoint.clone())).count();
        for endpoint in &change.gone {
            self.leave(role, endpoint);
        }
        (came, change.gone.len())
    }

    fn roster(&self) -> std::sync::MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds an engine, or ends its draining; false if it serves already. To be followed by
    /// [`Fleet::count`].
    fn enter_uncounted(&self, role: Role, endpoint: Endpoint) -> bool {
        let role_members = self.role_members(role);
        let _lock = role_members.lock();
        let members = role_members.members.load_full();
        if let Some(known) = members.iter().find(|i| i.endpoint() == &endpoint) {
            let back = known.undrain();
            if back && role == Role::Prefill {
                self.scheduler.drain(known.id(), false);
            }
            return back;
        }
        let mut grown = members.as_ref().clone();
        let instance = self.create(role, endpoint);
        grown.push(instance.clone());
        // A member that serves has its lanes.
        match role {
            Role::Prefill => self.join_scheduler(&instance),
            Role::Decode => self.decoder_memory.join(&instance, self.settings.cache_tokens),
            Role::Encode => {}
        }
        role_members.members.store(Arc::new(grown));
        true
    }

    fn create(&self, role: Role, endpoint: Endpoint) -> Arc<Instance> {
        let id = InstanceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let ranks = self.ranks.of(&endpoint, self.rank_rule(role));
        let health = health::Health::new(self.settings.health, self.settings.key_source);
        let meter = LegMeter::new(role.name(), &endpoint.to_string(), &self.settings.label);
        Arc::new(Instance::new(id, endpoint, MemberParts { role, ranks, health, meter }))
    }

    /// Adds a new prefiller, each of its ranks, to the scheduler.
    fn join_scheduler(&self, instance: &Arc<Instance>) {
        let cache_tokens = self.settings.cache_tokens;
        for rank in instance.ranks() {
            let spec = LaneSpec { class: 0, cache_tokens, identity: instance.identity(rank) };
            self.scheduler.join(instance, rank, spec);
        }
    }

    /// Takes an engine out of the choice, whoever wanted it: at once when nothing runs on it, else
    /// as soon as [`Fleet::sweep`] finds that nothing does any more.
    pub fn remove(&self, role: Role, endpoint: &Endpoint) -> Removal {
        let mut roster = self.roster();
        roster.forget(role, endpoint);
        self.leave(role, endpoint)
    }

    fn leave(&self, role: Role, endpoint: &Endpoint) -> Removal {
        let known = {
            // The flag and the scheduler change together, or an addition in between would be undone
            // by half.
            let _turn = self.role_members(role).lock();
            let found = self.members(role).iter().find(|i| i.endpoint() == endpoint).cloned();
            let Some(known) = found else { return Removal::Unknown };
            known.drain();
            if role == Role::Prefill {
                self.scheduler.drain(known.id(), true);
            }
            known
        };
        self.note_state(&known);
        self.count(role);
        self.sweep(role);
        match self.members(role).iter().any(|i| i.id() == known.id()) {
            true => Removal::Draining,
            false => Removal::Gone,
        }
    }

    /// Drops the drained engines that have no work left; returns how many still drain.
    pub fn sweep(&self, role: Role) -> usize {
        let role_members = self.role_members(role);
        let _turn = role_members.lock();
        let members = role_members.members.load_full();
        let awaited =
            role == Role::Decode && self.pending_decodes.any() && members.iter().all(|i| i.draining());
        let stays = |i: &Instance| !i.draining() || i.load().requests() > 0 || awaited;
        if !members.iter().all(|i| stays(i)) {
            let (left, gone): (Vec<_>, Vec<_>) = members.iter().cloned().partition(|i| stays(i));
            role_members.members.store(Arc::new(left));
            match role {
                Role::Prefill => gone.iter().for_each(|gone| self.scheduler.leave(gone.id())),
                Role::Decode => gone.iter().for_each(|gone| self.decoder_memory.leave(gone)),
                Role::Encode => {}
            }
            gone.iter().for_each(|gone| gone.meter().left());
            gone.iter().for_each(|gone| self.links.forget(gone.id()));
            self.count(role);
        }
        role_members.members.load().iter().filter(|i| i.draining()).count()
    }

    /// Work under way that will want a decoder.
    pub fn pending_decodes(&self) -> &PendingDecodes {
        &self.pending_decodes
    }

    /// Ends what is still open, each at the next look at it.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// True if what is still open is to be ended.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Engines of `role` that may be chosen.
    pub fn serving(&self, role: Role) -> usize {
        self.role_members(role).members.load().iter().filter(|i| !i.draining()).count()
    }

    /// Chooses an instance and reserves room on it, in one step. Prefill legs wait at the
    /// [`scheduler`](Fleet::scheduler) instead.
    pub fn pick(&self, role: Role, need: Need<'_>) -> Option<Reservation> {
        let now_ms = self.now_ms();
        let role_members = self.role_members(role);
        let mut turn = role_members.lock();
        let members = role_members.members.load();
        let keeps = |i: &&Arc<Instance>| need.keeper == Some(i.id()) && !need.tried.contains(&i.id());
        let serves = |i: &&Arc<Instance>| !i.draining();
        let usable: SmallVec<[&Arc<Instance>; 16]> = match members.iter().find(keeps) {
            Some(keeper) => SmallVec::from_iter([keeper]),
            None if need.under_way && !members.iter().any(|i| serves(&i)) => members.iter().collect(),
            None => members.iter().filter(serves).collect(),
        };
        let tie_break = TieBreak { turn: *turn, random: need.random };
        let policy = self.settings.board.policy;
        let standing = |i: &Instance| i.standing(now_ms, need.random, need.tried.contains(&i.id()));
        let reservation = if role == Role::Decode {
            let places = || usable.iter().flat_map(|i| i.ranks().map(move |rank| (*i, rank)));
            let held = need.job.map(|job| self.decoder_memory.held(job)).unwrap_or_default();
            let late = self.late_decoders(&need);
            let candidates: SmallVec<[DecodeCandidate; 16]> = places()
                .map(|(i, rank)| {
                    let held_tokens = held.of(i, rank).tokens;
                    let load = i.decode_candidate(rank, standing(i));
                    late.delay(i, DecodeCandidate { held_tokens, ..load })
                })
                .collect();
            let prompt_tokens = u32::try_from(need.tokens).unwrap_or(u32::MAX);
            let unknown = || Arc::new(Job { prompt_tokens, session: need.session, ..Job::default() });
            let job = need.job.cloned().unwrap_or_else(unknown);
            let chosen = route::choose_decoder(policy, &self.decode_costs(), &candidates, &job, tie_break)?;
            let (instance, rank) = places().nth(chosen)?;
            let leg = PromptOnDecoder { job: &job, held: held.of(instance, rank) };
            let memory = LegMemory::new(&self.decoder_memory, instance, rank, leg);
            self.paced(instance, rank, need.tokens).fetching(need.producer, &leg).remembered(memory)
        } else {
            let candidates: SmallVec<[Candidate; 16]> =
                usable.iter().map(|i| i.candidate(standing(i))).collect();
            let asked = RequestFacts { session: need.session, ..RequestFacts::default() };
            let chosen = route::choose(policy, &candidates, asked, tie_break)?;
            Reservation::take(usable[chosen].clone(), None, need.tokens)
        };
        *turn = turn.wrapping_add(1);
        reservation.instance().health().taken(now_ms);
        Some(reservation)
    }

    /// A decoder's reservation on the engine that is also this prefiller; `None` where it is not.
    pub fn twin(&self, prefiller: &Instance, tokens: u64) -> Option<Reservation> {
        let role_members = self.role_members(Role::Decode);
        let members = role_members.members.load();
        let same = |i: &&Arc<Instance>| i.endpoint() == prefiller.endpoint() && !i.draining();
        let instance = members.iter().find(same)?;
        // Its ranks are caches of their own: a rank of the one role need not be that of the other.
        instance.ranks().all(|rank| rank.is_none()).then(|| self.paced(instance, None, tokens))
    }

    /// Milliseconds since the fleet was set up: the clock of its members' health.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
