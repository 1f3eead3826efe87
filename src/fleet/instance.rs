//! One engine, as the gateway sees it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::uri::Authority;

use crate::dialect::Peer;
use crate::endpoint::Endpoint;
use crate::fleet::chat_ids::ChatIds;
use crate::fleet::decoder_memory::DecoderLanes;
use crate::fleet::handoffs::Handoffs;
use crate::fleet::health::Health;
use crate::fleet::hits::Hits;
use crate::fleet::occupancy::Occupancy;
use crate::fleet::pace::Paces;
use crate::obs::LegMeter;
use crate::route::saturation::DecodePlace;
use crate::route::{Candidate, DecodeCandidate, Standing};
use crate::util::swap::Live;

/// Roles of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It computes prompts.
    Prefill,
    /// It generates answers.
    Decode,
    /// Encodes the images, sounds and films of a prompt, before it is computed.
    Encode,
}

/// Identity of an engine as long as it is a member; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

/// An engine, its load and its health.
#[derive(Debug)]
pub struct Instance {
    id: InstanceId,
    role: Role,
    endpoint: Endpoint,
    authority: Option<Authority>,
    /// Hashes of its name, and of those of its ranks.
    identities: Box<[u64]>,
    load: Load,
    external: ReportedLoad,
    /// Its data-parallel ranks, where the gateway chooses among them; else none, and the engine
    /// chooses.
    ranks: Box<[(Load, ReportedLoad)]>,
    health: Health,
    hits: Hits,
    /// Places of a decoder where it is remembered what its caches hold.
    decoder_lanes: OnceLock<DecoderLanes>,
    paces: Paces,
    /// Legs for which it has not called for a prefill yet, where decoders are asked first.
    uncalled: AtomicU32,
    handoffs: Handoffs,
    /// Names of its models, as it listed them last; none = it has not said.
    models: Live<Vec<String>>,
    /// Its release, as it told it last.
    release: Live<Option<Arc<str>>>,
    /// Those that it listed before, if it lists none of them any more.
    former_models: Live<Vec<String>>,
    pub(super) chat_ids: ChatIds,
    draining: AtomicBool,
    /// Restarts of its process that were noticed.
    restarts: AtomicU32,
    meter: LegMeter,
    /// Address by which decoders reach this prefiller, in dialects that need one; learned from it.
    peer: Live<Option<Arc<Peer>>>,
}

/// A data-parallel rank of an engine, from 0: a scheduler and a cache of its own behind the same
/// port.
pub type Rank = u16;

/// A leg whose decoder has not called yet.
#[derive(Debug)]
pub struct AwaitedCall<'a>(&'a AtomicU32);

impl Drop for AwaitedCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Work that the gateway has committed to an engine. Changed by reservations alone.
#[derive(Debug, Default)]
pub struct Load {
    pub(super) work_tokens: AtomicU64,
    pub(super) held_tokens: AtomicU64,
    pub(super) requests: AtomicU32,
    pub(super) leases: AtomicU32,
    /// Predicted time of computing the prompts that it computes beside its streams, in µs.
    pub(super) appends_us: AtomicU64,
    /// Requests and their tokens over time, of decoders alone.
    pub(super) occupancy: Occupancy,
}

/// Load that an engine, or one rank of it, reports.
#[derive(Debug, Default)]
struct ReportedLoad {
    /// Tokens of KV that fit; 0 = unknown.
    kv_capacity_tokens: AtomicU64,
    /// Requests and tokens of context that others gave it.
    requests: AtomicU32,
    tokens: AtomicU64,
    /// Requests and tokens of context that other gateways told that they gave it.
    told_requests: AtomicU32,
    told_tokens: AtomicU64,
}

impl ReportedLoad {
    /// Requests that others gave it: as it says itself, or as they tell, whichever is more.
    fn all_requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed).max(self.told_requests.load(Ordering::Relaxed))
    }

    /// Their tokens of context, likewise.
    fn all_tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed).max(self.told_tokens.load(Ordering::Relaxed))
    }
}

/// Load that an engine, or one rank of it, reports beyond the gateway's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExternalLoad {
    /// Tokens of KV that fit; 0 = unknown.
    pub kv_capacity_tokens: u64,
    /// Requests of others.
    pub requests: f64,
    /// Their tokens of context.
    pub tokens: f64,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Prefill, Role::Decode, Role::Encode];

    /// `prefill`, `decode` or `encode`, as in metrics and in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Encode => "encode",
        }
    }

    /// One engine of it, in words: `prefiller`, `decoder` or `encoder`.
    pub fn who(self) -> &'static str {
        match self {
            Role::Prefill => "prefiller",
            Role::Decode => "decoder",
            Role::Encode => "encoder",
        }
    }
}

impl Load {
    /// Legs on this engine that have not ended, and hand-offs that it still holds for us.
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Acquire)
    }

    /// Of these, hand-offs that it still holds for us.
    pub fn leases(&self) -> u32 {
        self.leases.load(Ordering::Relaxed)
    }

    /// And those at which it still works, as it counts them itself.
    pub fn working(&self) -> u32 {
        self.requests().saturating_sub(self.leases())
    }

    /// Tokens of work committed and not seen finished.
    pub fn work_tokens(&self) -> u64 {
        self.work_tokens.load(Ordering::Relaxed)
    }

    /// Tokens of KV kept for decoders that have not begun to answer.
    pub fn held_tokens(&self) -> u64 {
        self.held_tokens.load(Ordering::Relaxed)
    }
}

/// Role of a new member, and what it begins with.
#[derive(Debug)]
pub(super) struct MemberParts {
    pub(super) role: Role,
    /// Number of ranks among which the gateway chooses; with 0 or 1 it chooses none.
    pub(super) ranks: Rank,
    pub(super) health: Health,
    pub(super) meter: LegMeter,
}

impl Instance {
    /// A new member without load.
    pub(super) fn new(id: InstanceId, endpoint: Endpoint, parts: MemberParts) -> Instance {
        let MemberParts { role, ranks, health, meter } = parts;
        let ranks = if ranks > 1 { ranks } else { 0 };
        let label = endpoint.to_string();
        let identities = (0..ranks).map(|rank| identity(&place_name(&endpoint, Some(rank))));
        let identities = std::iter::once(identity(&label)).chain(identities).collect();
        Instance {
            id,
            role,
            authority: endpoint.authority().parse().ok(),
            meter,
            endpoint,
            identities,
            load: Load::default(),
            external: ReportedLoad::default(),
            ranks: (0..ranks).map(|_| Default::default()).collect(),
            health,
            hits: Hits::default(),
            decoder_lanes: OnceLock::new(),
            paces: Paces::default(),
            uncalled: AtomicU32::new(0),
            handoffs: Handoffs::default(),
            models: Live::new(Vec::new()),
            release: Live::new(None),
            former_models: Live::new(Vec::new()),
            chat_ids: ChatIds::default(),
            draining: AtomicBool::new(false),
            restarts: AtomicU32::new(0),
            peer: Live::new(None),
        }
    }

    /// Identity of the member.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// Restarts of its process that were noticed.
    pub fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Notes a restart of its process.
    pub(super) fn note_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.forget_chat_ids();
    }

    /// Role of the engine.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Place where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Place where it is, as part of a URI; `None` when the host name can't stand in one.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// Work that is committed to it.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Health of the engine, as far as it is known.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Cache hits that it reported, and those that were predicted.
    pub fn hits(&self) -> &Hits {
        &self.hits
    }

    pub(super) fn decoder_lanes(&self) -> Option<&DecoderLanes> {
        self.decoder_lanes.get()
    }

    /// Sets its places among the decoders, once.
    pub(super) fn set_decoder_lanes(&self, lanes: DecoderLanes) {
        let _ = self.decoder_lanes.set(lanes);
    }

    /// Time for which its legs take until their first byte.
    pub fn paces(&self) -> &Paces {
        &self.paces
    }

    /// Counts a leg for which it has not called yet, until that is dropped.
    pub fn await_call(&self) -> AwaitedCall<'_> {
        self.uncalled.fetch_add(1, Ordering::Relaxed);
        AwaitedCall(&self.uncalled)
    }

    /// True if it has not called for any of our legs on it.
    pub fn has_only_uncalled(&self) -> bool {
        self.load.requests() <= self.uncalled.load(Ordering::Relaxed)
    }

    /// Counts of a prefiller's prompts with and without a hand-off.
    pub fn handoffs(&self) -> &Handoffs {
        &self.handoffs
    }

    /// Names of the models that it serves, as it listed them last.
    pub fn models(&self) -> Arc<Vec<String>> {
        self.models.now()
    }

    /// Names that it listed before, if it lists none of them any more.
    pub(super) fn former_models(&self) -> Arc<Vec<String>> {
        self.former_models.now()
    }

    pub(super) fn set_models(&self, names: Vec<String>) {
        let before = self.models();
        if names.iter().any(|name| self.former_models().contains(name)) {
            self.former_models.set(Vec::new());
        } else if !names.is_empty() && !before.is_empty() && !names.iter().any(|it| before.contains(it)) {
            self.former_models.set(before.to_vec());
        }
        self.models.set(names);
    }

    /// Its release, as `GET /version` told it last.
    pub fn release(&self) -> Option<Arc<str>> {
        (*self.release.now()).clone()
    }

    pub(super) fn set_release(&self, release: Option<Arc<str>>) {
        self.release.set(release);
        self.forget_chat_ids();
    }

    /// Requests and tokens of context that others gave it, as it says.
    pub fn external_load(&self) -> (u32, u64) {
        (self.external.requests.load(Ordering::Relaxed), self.external.tokens.load(Ordering::Relaxed))
    }

    /// Its identity for decoders, as far as that is known.
    pub fn peer(&self) -> Option<Arc<Peer>> {
        (*self.peer.now()).clone()
    }

    /// Remembers who it is.
    pub fn know(&self, peer: Arc<Peer>) {
        self.peer.set(Some(peer));
    }

    /// It may be another process by now.
    pub fn forget_peer(&self) {
        self.peer.set(None);
    }

    /// Metrics of the engine.
    pub fn meter(&self) -> &LegMeter {
        &self.meter
    }

    /// True if it is to be removed once its work is done.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Back into service; `false` when it was not draining.
    pub(super) fn undrain(&self) -> bool {
        self.draining.swap(false, Ordering::Relaxed)
    }

    /// Number of ranks among which the gateway chooses; 1 = the engine does, or has only one.
    pub fn rank_count(&self) -> Rank {
        Rank::try_from(self.ranks.len()).unwrap_or(Rank::MAX).max(1)
    }

    /// The ranks that the gateway chooses among; None alone = the engine chooses, or has only one.
    pub fn ranks(&self) -> impl Iterator<Item = Option<Rank>> + use<> {
        let count = self.ranks.len();
        let whole = (count == 0).then_some(None);
        whole.into_iter().chain((0..count).map(|rank| Rank::try_from(rank).ok()))
    }

    /// Work that is committed to one of its ranks, or to all of it.
    pub fn load_of(&self, rank: Option<Rank>) -> &Load {
        self.part(rank).map_or(&self.load, |(load, _)| load)
    }

    fn part(&self, rank: Option<Rank>) -> Option<&(Load, ReportedLoad)> {
        self.ranks.get(usize::from(rank?))
    }

    /// Takes over the load that one of its ranks, or all of it, reports.
    pub fn set_external_load(&self, rank: Option<Rank>, reported: ExternalLoad) {
        let external = self.part(rank).map_or(&self.external, |(_, external)| external);
        external.kv_capacity_tokens.store(reported.kv_capacity_tokens, Ordering::Relaxed);
        external.requests.store(reported.requests as u32, Ordering::Relaxed);
        external.tokens.store(reported.tokens as u64, Ordering::Relaxed);
    }

    /// Takes over the load that other gateways told that they have on one of its ranks, or on it.
    pub(super) fn set_told_load(&self, rank: Option<Rank>, requests: u32, tokens: u64) {
        let external = self.part(rank).map_or(&self.external, |(_, external)| external);
        external.told_requests.store(requests, Ordering::Relaxed);
        external.told_tokens.store(tokens, Ordering::Relaxed);
    }

    /// Standing of the engine for a request. `random` is a random number of that request.
    pub(super) fn standing(&self, now_ms: u64, random: u64, tried: bool) -> Standing {
        // Instances are independent: for each the same number means something else.
        let random = random.wrapping_add(self.id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if tried {
            return Standing::Tried;
        }
        let standing = self.health.standing(now_ms, random);
        if self.is_full(now_ms) { standing.max(Standing::Full) } else { standing }
    }

    /// True if it has as many requests as it took when it last said, a while ago, that it is busy.
    pub(super) fn is_full(&self, now_ms: u64) -> bool {
        self.health.capacity().is_full(now_ms, self.load.requests())
    }

    pub(super) fn candidate(&self, standing: Standing) -> Candidate {
        Candidate {
            work_tokens: self.load.work_tokens(),
            held_tokens: self.load.held_tokens(),
            requests: self.load.requests(),
            hit_tokens: 0,
            resident_tokens: 0,
            identity: self.identity(None),
            standing,
        }
    }

    pub(super) fn decode_candidate(&self, rank: Option<Rank>, standing: Standing) -> DecodeCandidate {
        let (load, external) =
            self.part(rank).map_or((&self.load, &self.external), |(load, external)| (load, external));
        DecodeCandidate {
            running: load.requests() + external.all_requests(),
            kv_tokens: load.work_tokens() + external.all_tokens(),
            kv_capacity_tokens: external.kv_capacity_tokens.load(Ordering::Relaxed),
            held_tokens: 0,
            appends_s: load.appends_us.load(Ordering::Relaxed) as f64 / 1e6,
            late_s: 0.0,
            identity: self.identity(rank),
            standing,
        }
    }

    /// Streams that this gateway gave it, or one of its ranks, and that others tell of.
    pub(super) fn decode_place(&self, rank: Option<Rank>) -> DecodePlace {
        let (load, external) =
            self.part(rank).map_or((&self.load, &self.external), |(load, external)| (load, external));
        let told = external.told_requests.load(Ordering::Relaxed);
        let tokens = load.work_tokens() + external.told_tokens.load(Ordering::Relaxed);
        let most = self.health.capacity().most().filter(|most| *most > 0);
        DecodePlace {
            streams: f64::from(load.requests() + told),
            kv_tokens: tokens as f64,
            kv_capacity_tokens: external.kv_capacity_tokens.load(Ordering::Relaxed) as f64,
            most_streams: most.map(|most| f64::from(most) / f64::from(self.rank_count())),
        }
    }

    /// Name of it, or of one of its ranks, in explanations: `host:port`, with `@rank` where there
    /// are several.
    pub fn place_name(&self, rank: Option<Rank>) -> String {
        place_name(&self.endpoint, rank)
    }

    /// The same in every gateway in front of it. A rank that it does not have is none.
    pub(super) fn identity(&self, rank: Option<Rank>) -> u64 {
        let at = rank.map_or(0, |rank| 1 + usize::from(rank));
        self.identities.get(at).or(self.identities.first()).copied().unwrap_or_default()
    }
}

fn place_name(endpoint: &Endpoint, rank: Option<Rank>) -> String {
    match rank {
        None => endpoint.to_string(),
        Some(rank) => format!("{endpoint}@{rank}"),
    }
}

fn identity(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
