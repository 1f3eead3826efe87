//! The engine itself, without sockets or clock: a serial prefill, decoding streams, KV blocks,
//! leases.
//!
//! Time is an argument, in microseconds since the engine's start. Callers poll their job; `step`
//! brings everything up to date, and `take_woken` names the jobs whose answer to `poll` has
//! changed.

mod back;
pub use back::KeptBack;
mod pace;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::blocks::{BlockIds, Blocks};
use super::ledger::{Ledger, Pins, Release};
use super::pool::{Pool, ToStore};
use super::spec::{EngineSpec, Role};
use super::text::{self, Fingerprint};

/// A month: longer than any test.
const FOREVER_US: u64 = 30 * 24 * 3_600 * 1_000_000;

/// A job's number in the engine.
pub type JobId = u64;

/// One prompt to compute.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Tokens of the prompt.
    pub tokens: Arc<[u32]>,
    /// Hash of the cache salt; 0 without one. It keeps prefixes apart, it does not change the
    /// output.
    pub salt: u64,
    /// The KV is read from another engine instead of computed.
    pub remote: bool,
    /// Tokens that were read from another engine before, and are found in the cache.
    pub fetched: usize,
}

/// Reasons for which a job waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Ask again when woken, or at this time.
    Wait(Option<u64>),
    /// Read the content of the last `blocks` blocks from the other engine, then call
    /// [`Core::received`].
    Pull {
        /// Number of blocks that this engine has no KV for.
        blocks: usize,
    },
    /// The KV is there.
    Ready(Computed),
}

/// The state after prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Computed {
    /// State that the output continues from.
    pub print: Fingerprint,
    /// Prompt tokens found in this engine's prefix cache or in the pool.
    pub cached_tokens: usize,
    /// Tokens in whole blocks that were new to the prefix cache.
    pub created_tokens: usize,
}

/// Prompt tokens by where their KV came from, as vLLM's `prompt_tokens_by_source_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Tokens computed here.
    pub local_compute: u64,
    /// Tokens found in this engine's prefix cache.
    pub local_cache_hit: u64,
    /// From another engine or from the pool.
    pub external_kv_transfer: u64,
}

/// The engine's state.
#[derive(Debug)]
pub struct Core {
    pace: Pace,
    block_tokens: usize,
    kv_blocks: usize,
    pool: Option<Arc<Pool>>,
    fills_pool: bool,
    blocks: Blocks,
    jobs: HashMap<JobId, Job>,
    queue: VecDeque<JobId>,
    prefilling: Option<JobId>,
    prefill_free_us: u64,
    decoding: usize,
    pins: Pins,
    sources: Sources,
    woken: Vec<JobId>,
    next_id: JobId,
    dead: Option<String>,
    /// True while jobs stop after their first token.
    held: bool,
    /// Jobs whose blocks are to be written by another engine, by the name that it knows them by.
    expected: HashMap<String, JobId>,
    /// Prompts that are computed and not in the store yet.
    to_store: Vec<ToStore>,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    prefill_tokens_per_us: f64,
    tpot_us: f64,
    slope_us: f64,
    lease_us: u64,
}

#[derive(Debug)]
struct Job {
    prompt: Prompt,
    prints: Vec<u64>,
    keys: Vec<u64>,
    phase: Phase,
    arrived_us: u64,
    blocks: BlockIds,
    local_hits: usize,
    pool_hits: usize,
    written: usize,
    print: Fingerprint,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Queued,
    Receiving,
    Prefilling { end_us: u64 },
    Decoding { next_us: f64 },
}

impl Core {
    /// An idle engine.
    #[must_use]
    pub fn new(spec: &EngineSpec) -> Core {
        let pool = spec.pool.clone();
        Core {
            pace: Pace {
                prefill_tokens_per_us: spec.prefill_tokens_per_s / 1e6,
                tpot_us: spec.tpot_ms * 1e3,
                slope_us: spec.slope_ms * 1e3,
                lease_us: spec.lease_ms.saturating_mul(1000),
            },
            block_tokens: spec.block_tokens.max(1),
            kv_blocks: spec.kv_blocks,
            fills_pool: spec.role != Role::Decode,
            pool,
            blocks: Blocks::new(spec.kv_blocks),
            jobs: HashMap::new(),
            queue: VecDeque::new(),
            prefilling: None,
            prefill_free_us: 0,
            decoding: 0,
            pins: Pins::default(),
            sources: Sources::default(),
            woken: Vec::new(),
            next_id: 0,
            dead: None,
            held: false,
            expected: HashMap::new(),
            to_store: Vec::new(),
        }
    }

    /// Queues a prompt.
    pub fn submit(&mut self, now_us: u64, prompt: Prompt) -> JobId {
        self.next_id += 1;
        let id = self.next_id;
        let prints = text::block_prints(&prompt.tokens, self.block_tokens);
        let whole = prompt.tokens.len() / self.block_tokens;
        let keys: Vec<u64> =
            prints.iter().take(whole).map(|&print| Fingerprint(print).with(prompt.salt).0).collect();
        let job = Job {
            prompt,
            prints,
            keys,
            phase: Phase::Queued,
            arrived_us: now_us,
            blocks: Vec::new(),
            local_hits: 0,
            pool_hits: 0,
            written: 0,
            print: Fingerprint::default(),
        };
        self.jobs.insert(id, job);
        self.queue.push_back(id);
        self.step(now_us);
        id
    }

    /// Brings the engine up to `now_us`: ends leases, finishes and starts prefills.
    pub fn step(&mut self, now_us: u64) {
        while let Some(blocks) = self.pins.expire_one(now_us) {
            self.blocks.release(&blocks);
        }
        loop {
            let finished = self.finish_prefill(now_us);
            let started = self.start_queued(now_us);
            if !finished && !started {
                return;
            }
        }
    }

    /// Progress of job `id`.
    pub fn poll(&mut self, now_us: u64, id: JobId) -> Progress {
        self.step(now_us);
        let Some(job) = self.jobs.get(&id) else { return Progress::Wait(None) };
        match job.phase {
            Phase::Queued => Progress::Wait(self.pins.next_expiry_us()),
            Phase::Receiving => Progress::Pull { blocks: job.prints.len() - job.local_hits },
            Phase::Prefilling { end_us } => Progress::Wait(Some(end_us)),
            Phase::Decoding { .. } => Progress::Ready(job.computed(self.block_tokens)),
        }
    }

    /// Takes the content of the blocks that [`Progress::Pull`] asked for, in order.
    pub fn received(&mut self, now_us: u64, id: JobId, contents: &[u64]) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.phase == Phase::Receiving) else { return };
        for (i, &print) in contents.iter().enumerate() {
            let place = job.local_hits + i;
            if let Some(&block) = job.blocks.get(place) {
                self.blocks.fill(block, print, job.keys.get(place).copied());
            }
        }
        let cached = job.local_hits * self.block_tokens;
        self.sources.external_kv_transfer += (job.prompt.tokens.len() - cached) as u64;
        self.sources.local_cache_hit += cached as u64;
        self.begin_decode(id, now_us);
    }

    /// The blocks of job `id` will be written by another engine, which knows it as `name`: they,
    /// and how many tokens of them are there already.
    pub fn expect(&mut self, id: JobId, name: &str) -> (BlockIds, usize) {
        let Some(job) = self.jobs.get(&id) else { return (Vec::new(), 0) };
        self.expected.insert(name.to_owned(), id);
        (job.blocks.clone(), job.local_hits * self.block_tokens)
    }

    /// Another engine has written `contents` into these blocks, whoever they belong to, and is done
    /// with `name`; false if that is nobody.
    pub fn written(&mut self, now_us: u64, name: &str, ids: &[u32], contents: &[u64]) -> bool {
        for (&id, &print) in ids.iter().zip(contents) {
            self.blocks.fill(id, print, None);
        }
        let Some(id) = self.expected.remove(name) else {
            return self.release(now_us, name, Release::Read);
        };
        let held = self.contents(id);
        let missing = self.jobs.get(&id).map_or(0, |job| job.local_hits);
        self.received(now_us, id, held.get(missing..).unwrap_or_default());
        true
    }

    /// Content of the blocks of a job's prompt.
    #[must_use]
    pub fn contents(&self, id: JobId) -> Vec<u64> {
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        let ids: BlockIds = job.blocks.iter().copied().take(job.prints.len()).collect();
        self.blocks.read(&ids).unwrap_or_default()
    }

    /// Keeps the blocks of a job that ends while they are still to be written.
    fn strand(&mut self, now_us: u64, id: JobId) {
        let found = self.expected.iter().find(|(_, expected)| **expected == id);
        let Some(name) = found.map(|(name, _)| name.clone()) else { return };
        self.expected.remove(&name);
        if let Some(job) = self.jobs.get(&id) {
            self.blocks.hold(&job.blocks);
            self.pins.add(name, job.blocks.clone(), now_us.saturating_add(FOREVER_US));
        }
    }

    /// Ends a job, finished or not, and frees its blocks.
    pub fn end(&mut self, now_us: u64, id: JobId) {
        self.strand(now_us, id);
        let Some(job) = self.jobs.remove(&id) else { return };
        match job.phase {
            Phase::Queued => self.queue.retain(|&queued| queued != id),
            Phase::Receiving => {}
            Phase::Prefilling { .. } => {
                self.prefilling = None;
                self.prefill_free_us = now_us;
            }
            Phase::Decoding { .. } => self.decoding -= 1,
        }
        self.blocks.release(&job.blocks);
        self.step(now_us);
    }

    /// Pins the prompt blocks of job `id` for a decoder, under `request_id`; gives their ids.
    pub fn pin(&mut self, now_us: u64, id: JobId, request_id: &str) -> BlockIds {
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        let ids: BlockIds = job.blocks.iter().copied().take(job.prints.len()).collect();
        self.blocks.hold(&ids);
        self.pins.add(request_id.to_owned(), ids.clone(), now_us.saturating_add(self.pace.lease_us));
        ids
    }

    /// Content of the blocks at this moment: like a remote read, it does not ask whose they are.
    #[must_use]
    pub fn read(&self, ids: &[u32]) -> Option<Vec<u64>> {
        self.blocks.read(ids)
    }

    /// The blocks that are kept under a name, and whether they were until their lease ended.
    pub fn kept(&mut self, now_us: u64, name: &str) -> (Option<BlockIds>, bool) {
        self.step(now_us);
        (self.pins.blocks(name), self.pins.has_expired(name))
    }

    /// Gives a hand-off back; false if it is not held (any more).
    pub fn release(&mut self, now_us: u64, request_id: &str, why: Release) -> bool {
        self.step(now_us);
        let Some(blocks) = self.pins.release(request_id, why) else { return false };
        self.blocks.release(&blocks);
        self.step(now_us);
        true
    }

    /// True if the engine is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// The engine is dead from now on, for `reason`; the first reason stays.
    pub fn die(&mut self, reason: &str) {
        self.dead.get_or_insert_with(|| reason.to_owned());
    }

    /// Forgets the prefix cache.
    pub fn reset_cache(&mut self) {
        self.blocks.reset_cache();
    }

    /// Jobs to poll again, since the last call.
    pub fn take_woken(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.woken)
    }

    /// Blocks that were computed since the last call and are to be stored.
    pub fn take_to_store(&mut self) -> Vec<ToStore> {
        std::mem::take(&mut self.to_store)
    }

    /// The state in numbers.
    pub fn ledger(&mut self, now_us: u64) -> Ledger {
        self.step(now_us);
        let running = self.decoding + usize::from(self.prefilling.is_some());
        let mut ledger = Ledger {
            running,
            waiting: self.jobs.len() - running,
            used_blocks: self.blocks.used(),
            dead: self.dead.clone(),
            ..Ledger::default()
        };
        self.pins.report(&mut ledger);
        ledger
    }

    /// Prompt tokens by source, and the used share of the KV blocks (0 to 1).
    #[must_use]
    pub fn usage(&self) -> (Sources, f64) {
        (self.sources, self.blocks.used() as f64 / self.kv_blocks.max(1) as f64)
    }

    fn finish_prefill(&mut self, now_us: u64) -> bool {
        let Some(id) = self.prefilling else { return false };
        let Some(job) = self.jobs.get(&id) else { return false };
        let Phase::Prefilling { end_us } = job.phase else { return false };
        if end_us > now_us {
            return false;
        }
        self.prefilling = None;
        self.prefill_free_us = end_us;
        for place in job.local_hits..job.prints.len() {
            if let (Some(&block), Some(&print)) = (job.blocks.get(place), job.prints.get(place)) {
                self.blocks.fill(block, print, job.keys.get(place).copied());
            }
        }
        if self.pool.is_some() && self.fills_pool {
            let (tokens, salt) = (job.prompt.tokens.clone(), job.prompt.salt);
            self.to_store.push(ToStore { tokens, salt, keys: job.keys.clone(), prints: job.prints.clone() });
        }
        let (local, external) = (job.local_hits * self.block_tokens, job.pool_hits * self.block_tokens);
        let fetched = job.prompt.fetched.min(local);
        let (local, external) = (local - fetched, external + fetched);
        self.sources.local_cache_hit += local as u64;
        self.sources.external_kv_transfer += external as u64;
        self.sources.local_compute += (job.prompt.tokens.len() - local - external) as u64;
        self.begin_decode(id, end_us);
        true
    }

    fn begin_decode(&mut self, id: JobId, at_us: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let held = self.blocks.read(&job.blocks).unwrap_or_default();
        job.print = text::continue_from(&job.prints, &held);
        job.phase = Phase::Decoding { next_us: at_us as f64 };
        self.decoding += 1;
        self.woken.push(id);
    }

    /// Starts what can start: one local prefill at a time, remote reads at once, nobody past a
    /// prompt short of blocks.
    fn start_queued(&mut self, now_us: u64) -> bool {
        let mut started = false;
        let mut place = 0;
        while let Some(&id) = self.queue.get(place) {
            let remote = self.jobs.get(&id).is_some_and(|job| job.prompt.remote);
            if !remote && self.prefilling.is_some() {
                place += 1;
                continue;
            }
            if !self.allocate(id) {
                // It starts no sooner than blocks are found for it.
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.arrived_us = now_us;
                }
                break;
            }
            self.queue.remove(place);
            self.start(id);
            started = true;
        }
        started
    }

    fn allocate(&mut self, id: JobId) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return true };
        // The last token is always computed, so that there is something to sample from.
        let most = job.prompt.tokens.len().saturating_sub(1) / self.block_tokens;
        let keys = job.keys.get(..most.min(job.keys.len())).unwrap_or_default();
        let hits = self.blocks.hits(keys);
        let cached = keys.get(..hits).unwrap_or_default();
        let Some(blocks) = self.blocks.take(cached, job.prints.len() - hits) else { return false };
        let found = match (&self.pool, job.prompt.remote) {
            (Some(pool), false) => pool.leading(keys),
            _ => Vec::new(),
        };
        job.blocks = blocks;
        job.local_hits = hits;
        job.pool_hits = found.len().saturating_sub(hits);
        true
    }

    fn start(&mut self, id: JobId) {
        let free_us = self.prefill_free_us;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.woken.push(id);
        if job.prompt.remote {
            job.phase = Phase::Receiving;
            return;
        }
        let cached = (job.local_hits + job.pool_hits) * self.block_tokens;
        let compute = (job.prompt.tokens.len() - cached) as f64;
        let took_us = (compute / self.pace.prefill_tokens_per_us).ceil() as u64;
        job.phase = Phase::Prefilling { end_us: free_us.max(job.arrived_us).saturating_add(took_us) };
        self.prefilling = Some(id);
    }
}

impl Job {
    fn computed(&self, block_tokens: usize) -> Computed {
        let cached = self.local_hits + self.pool_hits;
        Computed {
            print: self.print,
            cached_tokens: cached * block_tokens,
            created_tokens: self.keys.len().saturating_sub(cached) * block_tokens,
        }
    }
}

#[cfg(test)]
mod tests;
