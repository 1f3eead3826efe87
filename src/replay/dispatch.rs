//! What the simulated gateways decide by.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Seconds;

/// A prefiller's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u16);

/// One request, as far as routing wants to know it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub blocks: Arc<[u64]>,
    pub block_tokens: u32,
    pub pool: PoolHits,
    pub session: Option<u64>,
}

/// Leading tokens of a prompt that a pool holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolHits {
    pub anywhere_tokens: u32,
    pub near: SmallVec<[(LaneId, u32); 4]>,
}

pub trait Sight {
    fn hbm_tokens(&self, job: &Job, out: &mut [u32]) -> bool;
}

/// A request that goes to a prefiller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// What [`Dispatch::arrive`] returned.
    pub ticket: u64,
    /// To be told to [`Dispatch::done`].
    pub booking: u64,
    /// Where to.
    pub lane: LaneId,
}

/// What one gateway has on a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeLoad {
    /// Answers under way.
    pub requests: u32,
    /// Tokens of context that they had at their beginning.
    pub context_tokens: u64,
}

/// The decisions of one gateway. Times are seconds since the run's start.
pub trait Dispatch {
    /// A request comes; returns its ticket.
    fn arrive(&mut self, now: Seconds, job: Arc<Job>) -> u64;
    /// A request that came at `since` failed on a prefiller and needs another one; returns its new ticket.
    fn again(&mut self, since: Seconds, job: Arc<Job>, failed: LaneId) -> u64;
    /// Those that go to a prefiller now.
    fn pump(&mut self, now: Seconds, sight: &dyn Sight, random: &mut dyn FnMut() -> u64) -> Vec<Sent>;
    /// When to pump though nothing happens until then.
    fn wake_s(&self) -> Option<Seconds>;
    /// A prefill is done, or failed.
    fn done(&mut self, now: Seconds, booking: u64, computed: bool);
    /// A prefiller is gone.
    fn close(&mut self, lane: LaneId);
    /// The position of the decoder for a request that is computed.
    fn decoder(&mut self, loads: &[DecodeLoad], job: &Job, random: u64) -> usize;
}
