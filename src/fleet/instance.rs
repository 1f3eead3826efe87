//! One engine, as the gateway sees it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use http::uri::Authority;

use crate::endpoint::Endpoint;
use crate::fleet::health::{Health, Rules};
use crate::obs::LegMeter;
use crate::route::{Candidate, DecodeCandidate, Standing};

/// What an engine is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Computes prompts.
    Prefill,
    /// Generates answers.
    Decode,
}

/// Identity of an engine as long as it is a member; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId(pub u64);

/// An engine, its load and its health.
#[derive(Debug)]
pub struct Instance {
    id: InstanceId,
    role: Role,
    endpoint: Endpoint,
    authority: Option<Authority>,
    load: Load,
    health: Health,
    draining: AtomicBool,
    /// Tokens of KV that fit, as it says itself; 0 = unknown.
    kv_capacity_tokens: AtomicU64,
    /// Requests and tokens of context that others gave it, as it says itself.
    foreign_requests: AtomicU32,
    foreign_tokens: AtomicU64,
    meter: LegMeter,
}

/// What the gateway has committed to an engine. Changed by seats alone.
#[derive(Debug, Default)]
pub struct Load {
    pub(super) work_tokens: AtomicU64,
    pub(super) held_tokens: AtomicU64,
    pub(super) requests: AtomicU32,
}

impl Role {
    /// `prefill` or `decode`, as in metrics and in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

impl Load {
    /// Legs on this engine that have not ended, and hand-offs that it still holds for us.
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
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

impl Instance {
    pub(super) fn new(id: InstanceId, role: Role, endpoint: Endpoint, rules: Rules) -> Instance {
        let label = endpoint.to_string();
        Instance {
            id,
            role,
            authority: label.parse().ok(),
            meter: LegMeter::new(role.name(), &label),
            endpoint,
            load: Load::default(),
            health: Health::new(rules),
            draining: AtomicBool::new(false),
            kv_capacity_tokens: AtomicU64::new(0),
            foreign_requests: AtomicU32::new(0),
            foreign_tokens: AtomicU64::new(0),
        }
    }

    /// Its identity.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// What it is there for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where it is, as part of a URI; `None` when the host name can't stand in one.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// What is committed to it.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Whether it works, as far as is known.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Its metrics.
    pub fn meter(&self) -> &LegMeter {
        &self.meter
    }

    /// Whether it is to be removed once its work is done.
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

    /// So many tokens of KV fit into it, and others gave it so many requests and tokens of context.
    pub fn told(&self, kv_capacity_tokens: u64, foreign_requests: f64, foreign_tokens: f64) {
        self.kv_capacity_tokens.store(kv_capacity_tokens, Ordering::Relaxed);
        self.foreign_requests.store(foreign_requests as u32, Ordering::Relaxed);
        self.foreign_tokens.store(foreign_tokens as u64, Ordering::Relaxed);
    }

    /// How willingly a request is given to it. `dice` is a random number of that request.
    pub(super) fn standing(&self, now_ms: u64, dice: u64, tried: bool) -> Standing {
        // Instances are independent: for each the same dice fall differently.
        let dice = dice.wrapping_add(self.id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if tried { Standing::Tried } else { self.health.standing(now_ms, dice) }
    }

    pub(super) fn candidate(&self, standing: Standing) -> Candidate {
        Candidate {
            work_tokens: self.load.work_tokens(),
            held_tokens: self.load.held_tokens(),
            requests: self.load.requests(),
            hit_tokens: 0,
            held_blocks: 0,
            identity: self.identity(),
            standing,
        }
    }

    pub(super) fn decode_candidate(&self, standing: Standing) -> DecodeCandidate {
        DecodeCandidate {
            running: self.load.requests() + self.foreign_requests.load(Ordering::Relaxed),
            kv_tokens: self.load.work_tokens() + self.foreign_tokens.load(Ordering::Relaxed),
            kv_capacity_tokens: self.kv_capacity_tokens.load(Ordering::Relaxed),
            identity: self.identity(),
            standing,
        }
    }

    /// The same in every gateway in front of it.
    pub(super) fn identity(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.endpoint.to_string().as_bytes())
    }
}
