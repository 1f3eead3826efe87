//! Traces through the decision code in virtual time: what `pd-proxy replay` measures without
//! engines.
//!
//! A discrete-event simulation. Gateways decide by the very code that serves requests
//! ([`crate::route`]); the engines around them are models ([`costs`] has their constants and
//! reasons): prefillers that compute in chunks and keep a prefix cache ([`prefiller`], [`cache`]),
//! a pool ([`store`]), links that transfers queue on ([`link`]), decoders with continuous batching
//! ([`decoder`]), which may keep prefix caches, too, and compute the rest of a prompt. [`world`]
//! lets time pass, [`outcome`] says what came of it, [`search`] finds the load that is just borne,
//! [`table`] prints and [`plot`] draws; [`peers`] has formulas of other gateways. Pure: no clock,
//! no sockets, and all randomness comes from a seed.
//!
//! Not modelled: preemption, KV that waits on a prefiller and takes room from its prefix cache,
//! contention on the decoders' side of hand-offs, and everything that the decisions themselves
//! cost.

pub mod arrivals;
pub mod cache;
pub mod costs;
pub mod decoder;
pub mod dispatch;
pub mod events;
pub mod experiment;
pub mod holders;
pub mod link;
pub mod outcome;
pub mod peers;
pub mod plot;
pub mod prefiller;
pub mod random;
pub mod search;
pub mod stats;
pub mod store;
pub mod table;
pub mod trace;
pub mod turns;
pub mod world;

pub use arrivals::{Arrival, Follow, Pace, Workload};
pub use costs::Costs;
pub use dispatch::{CONTENDERS, Contender, Director};
pub use experiment::Experiment;
pub use outcome::{Measures, Slo};
pub use store::PoolKind;
pub use table::{Capacity, Trial};
pub use trace::{TraceError, TraceRequest};
pub use world::{Run, RunError, World};

use crate::route::AppendRules;

/// Seconds of virtual time, or of its differences.
pub type Seconds = f64;

/// The machines of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Prefillers, 1 to [`holders::MACHINES_MAX`].
    pub prefillers: u16,
    /// Decoders, at least 1.
    pub decoders: u16,
    /// Pool that they share.
    pub pool: PoolKind,
    /// True if prefillers publish KV events of their prefix caches to the gateways.
    pub kv_events: bool,
    /// True if decoders have prefix caches, of what they were handed and generated, and can compute
    /// the rest of a prompt.
    pub decode_cache: bool,
    /// Bounds that the gateways keep when they let decoders do so.
    pub append: AppendRules,
    /// Costs of their work.
    pub costs: Costs,
    /// Factor by which KV goes slower from a prefiller to every second decoder, as to another rack.
    pub far_links: f64,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Share of requests, 0 to 1, for which the pool gives no answer.
    pub pool_missing: f64,
    /// Age of the pool's answers, seconds.
    pub pool_stale_s: Seconds,
    /// Factor on the costs that a gateway assumes at its start.
    pub cost_factor: f64,
    /// Gateways that share the requests.
    pub gateways: u16,
    /// Time that a message between gateways takes, seconds; none when they know nothing of each
    /// other.
    pub share_s: Option<Seconds>,
    /// Share of these messages, 0 to 1, that is lost.
    pub share_lost: f64,
    /// Factor by which the first prefiller is slower.
    pub slowness: f64,
    /// The first prefiller dies when half of the requests have come.
    pub dies: bool,
    /// The first prefiller joins, with an empty cache, when half of the requests have come.
    pub joins: bool,
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster {
            prefillers: 16,
            decoders: 16,
            pool: PoolKind::None,
            kv_events: false,
            decode_cache: false,
            append: AppendRules::default(),
            costs: Costs::default(),
            far_links: 1.0,
        }
    }
}

impl Cluster {
    /// True if KV goes the long way from this prefiller to this decoder: those of even numbers are
    /// in one rack, those of odd numbers in another.
    #[must_use]
    pub fn is_far(&self, prefiller: u16, decoder: u16) -> bool {
        self.far_links > 1.0 && (prefiller + decoder) % 2 == 1
    }
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            pool_missing: 0.0,
            pool_stale_s: 0.0,
            cost_factor: 1.0,
            gateways: 1,
            share_s: None,
            share_lost: 0.0,
            slowness: 1.0,
            dies: false,
            joins: false,
        }
    }
}
