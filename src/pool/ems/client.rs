//! The pool behind one or more lookup servers.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::server::Server;
use crate::endpoint::Endpoint;
use crate::kvhash::{BlockHash, ems};
use crate::pool::{Answer, KvPool, LoadableBy, Near, PoolError, Presence, Question, Remnant, Tier, by_host};

/// Bytes of an EMS hash.
const HASH_BYTES: usize = size_of::<i64>();

/// The operator's settings of an EMS deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmsSettings {
    /// The lookup servers, one per prefiller, each on its prefiller's host.
    pub servers: Vec<Endpoint>,
    /// Tokens per block: `--block-size`.
    pub block_tokens: NonZeroUsize,
    /// `EMS_ENABLE_READ_LOCAL_ONLY=1`: every server answers for its own host, whose engines alone
    /// load what is there. All are asked, and the answers say where blocks are. Otherwise each
    /// answers for the whole pool, and one is asked.
    pub reads_local: bool,
    /// Engines load nothing below this many tokens (`EMS_NUM_MIN_REUSE_TOKENS`): it counts as
    /// nothing.
    pub least_tokens: u32,
}

/// An EMS pool.
#[derive(Debug)]
pub struct Ems {
    servers: Box<[Server]>,
    settings: EmsSettings,
    /// Index of the next server, where one answers for all.
    next: AtomicUsize,
}

impl Ems {
    /// Nothing is connected yet.
    pub fn new(settings: EmsSettings) -> Self {
        let servers = settings.servers.iter().cloned().map(Server::new).collect();
        Self { servers, settings, next: AtomicUsize::new(0) }
    }

    /// The hashes to ask for: those that the engine would, which never loads the block of the last
    /// token.
    fn hashes(&self, question: &Question) -> Result<Vec<i64>, PoolError> {
        let wanted = ems::lookup_blocks(question.tokens.len(), self.settings.block_tokens);
        let hashes = question.hashes.get(..wanted).unwrap_or(&question.hashes);
        if hashes.iter().any(|hash| hash.as_bytes().len() != HASH_BYTES) {
            return Err(PoolError::Refused("the block hashes are not EMS's".to_owned()));
        }
        Ok(hashes.iter().map(BlockHash::leading_u64).map(u64::cast_signed).collect())
    }

    /// The first answer of a server that has one to give, beginning with another one each time.
    async fn ask_one(&self, hashes: &[i64]) -> Result<Presence, PoolError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(self.servers.len()).unwrap_or(0);
        let (before, from) = self.servers.split_at(first);
        let mut trouble = None;
        for server in from.iter().chain(before) {
            match server.ask(hashes).await {
                Ok(blocks) => {
                    let (hit_tokens, whole) = (self.tokens(blocks), blocks >= hashes.len());
                    return Ok(Presence { hit_tokens, whole, ..Presence::default() });
                }
                Err(error) => trouble = worse(trouble, error),
            }
        }
        Err(trouble.unwrap_or_else(|| PoolError::Refused("there is no EMS lookup server".to_owned())))
    }

    /// Blocks that each server has; servers that give no answer have none.
    async fn ask_all(&self, hashes: &[i64]) -> Result<Presence, PoolError> {
        let (mut near, mut trouble) = (SmallVec::<[Near; 4]>::new(), None);
        let (mut answered, mut whole) = (false, false);
        let answers = join_all(self.servers.iter().map(|server| server.ask(hashes))).await;
        for (server, answer) in self.servers.iter().zip(answers) {
            whole |= matches!(answer, Ok(blocks) if blocks >= hashes.len());
            match answer.map(|blocks| self.tokens(blocks)) {
                Ok(0) => answered = true,
                Ok(tokens) => near.push(Near { host: server.host.clone(), tier: Tier::Memory, tokens }),
                Err(error) => trouble = worse(trouble, error),
            }
        }
        near.sort_by_key(|near| std::cmp::Reverse(near.tokens));
        // There are no more hosts than servers, and what is left out would count nowhere.
        let near = by_host(near, usize::MAX);
        match (near.first(), trouble) {
            (None, Some(error)) if !answered => Err(error),
            (longest, _) => {
                let hit_tokens = longest.map_or(0, |near| near.tokens);
                let reach = self.reach();
                Ok(Presence { hit_tokens, reach, near, sampled: false, whole, remnant: Remnant::Nothing })
            }
        }
    }

    fn reach(&self) -> LoadableBy {
        if self.settings.reads_local { LoadableBy::Own { fetchable_tokens: 0 } } else { LoadableBy::All }
    }

    fn tokens(&self, blocks: usize) -> u32 {
        let tokens =
            u32::try_from(blocks.saturating_mul(self.settings.block_tokens.get())).unwrap_or(u32::MAX);
        if tokens < self.settings.least_tokens { 0 } else { tokens }
    }
}

/// Asks one server the smallest question, whose answer is known and which leaves nothing behind.
/// `Ok` when it says so.
///
/// # Errors
/// [`PoolError`]; there is no limit to the time, which is the caller's.
pub async fn check(server: &Endpoint) -> Result<(), PoolError> {
    Server::new(server.clone()).ask(&[]).await.map(drop)
}

impl KvPool for Ems {
    fn name(&self) -> &'static str {
        "ems"
    }

    fn lookup<'a>(&'a self, question: &'a Question) -> Answer<'a, Presence> {
        Box::pin(async move {
            let hashes = self.hashes(question)?;
            if hashes.is_empty() {
                return Ok(Presence { reach: self.reach(), whole: true, ..Presence::default() });
            }
            if self.settings.reads_local { self.ask_all(&hashes).await } else { self.ask_one(&hashes).await }
        })
    }
}

/// Of two servers' troubles, the one that says more: that one was busy or left alone is the least.
fn worse(known: Option<PoolError>, new: PoolError) -> Option<PoolError> {
    let rank = |error: &PoolError| match error {
        PoolError::Busy => 0,
        PoolError::Refused(_) | PoolError::TooLarge(_) => 1,
        PoolError::Protocol(_) => 2,
        PoolError::Unreachable(_) => 3,
    };
    Some(known.filter(|known| rank(known) >= rank(&new)).unwrap_or(new))
}
