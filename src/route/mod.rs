//! The choice of the instance that serves a leg, and of the moment.
//!
//! No clock, no randomness, no I/O: the caller hands in the time, the loads and random numbers, so
//! that every decision can be replayed. [`scheduler::PrefillScheduler`] holds those who wait for a
//! prefiller and decides by predicted seconds ([`cost`], learned in [`learn`]); [`decode`] does the
//! same for decoders, [`append`] for prompts that a decoder computes alone; [`mod@choose`] has the
//! policies of others.

pub mod append;
pub mod chains;
pub mod choose;
pub mod cost;
pub mod decode;
pub mod decode_memory;
pub mod estimate;
pub mod job;
mod lane;
pub mod learn;
pub mod links;
pub mod name_trial;
pub mod popular;
pub mod resident;
pub mod saturation;
pub mod scheduler;
mod score;
pub mod shared;
pub mod trust;

pub use append::{Append, AppendCosts, AppendGrounds, AppendRules, choose_append};
pub use choose::{Candidate, Policy, RequestFacts, Rule, Standing, TieBreak, choose};
pub use cost::{DecodeCosts, PrefillCosts};
pub use decode::{DecodeCandidate, choose_decoder, handoff_s};
pub use decode_memory::{DecodeMemory, HeldPrompt, HeldVerdict};
pub use job::{History, Hit, Job, LaneId, MAX_LANES, PoolHits, Seconds};
pub use lane::{LaneHealth, LaneSpec};
pub use scheduler::{
    Beliefs, Bind, Booking, CacheView, Commit, Done, GivenBooking, NewRequest, PrefillScheduler, Reported,
    SchedulerSettings, Ticket, Workload,
};
pub use score::Terms;
