//! Which blocks of a prompt exist already, and where: asked before it is routed.
//!
//! Two sources, each of which may be missing: the pool, which is asked, and what prefillers told in KV events, which is
//! looked up here and waits for nothing.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use crate::intake::{Naming, Prompts};
use crate::kvhash::BlockHash;
use crate::kvhash::keys::{Ask as Keys, KeyBatch, PromptBlocks};
use crate::obs::Meters;
use crate::obs::events::HeldMeter;
use crate::pool::events::held::{Heard, Held, heard};
use crate::pool::events::watch::SharedIndex;
use crate::pool::{Gate, Lookup, Question, Verdict};
use crate::prompt::{Prompt, Reason};
use crate::relay::ask::Ask;

/// Prompts above this take a millisecond and more to hash, in tokens: they are worked on beside the runtime.
const ASIDE_TOKENS: usize = 64 << 10;

/// What the gateway asks about prompts, and whom.
#[derive(Debug)]
pub struct Finder {
    /// Knows how blocks are named.
    pub prompts: Arc<Prompts>,
    /// The pool.
    pub pool: Option<Gate>,
    /// What prefillers told.
    pub events: Option<Arc<Told>>,
    /// Metrics.
    pub meters: Arc<Meters>,
}

/// What prefillers told in KV events, and the metrics of looking it up.
#[derive(Debug)]
pub struct Told {
    /// Their blocks; instances are numbered as in [`InstanceId`](crate::fleet::InstanceId).
    pub index: SharedIndex,
    /// Metrics.
    pub meter: HeldMeter,
}

/// What was found of a prompt.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The pool's answer; `None` when there is no pool, or the blocks have no keys.
    pub pool: Option<Lookup>,
    /// What prefillers hold in memory of their own, the longest in HBM first, by the number of their
    /// [`InstanceId`](crate::fleet::InstanceId); `None` when they are not listened to. One may have left the fleet a
    /// moment ago.
    pub held: Option<SmallVec<[Held; 4]>>,
    /// Leading tokens that prefillers put into a pool by their own word, which does not say what was evicted since.
    pub told_tokens: u32,
}

/// Who says what a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The pool, asked.
    Pool,
    /// Prefillers' events, as no pool is configured or it gave no answer.
    Events,
}

impl Teller {
    /// `pool` or `events`, as in the log.
    pub fn name(self) -> &'static str {
        match self {
            Teller::Pool => "pool",
            Teller::Events => "events",
        }
    }
}

impl Found {
    /// Leading tokens that a pool has, by the best source that spoke; `None` when none did.
    pub fn pooled(&self) -> Option<(u32, Teller)> {
        let answer = self.pool.as_ref().filter(|it| matches!(it.verdict, Verdict::Known | Verdict::Partial));
        let told = || (self.told_tokens > 0).then_some((self.told_tokens, Teller::Events));
        answer.map(|it| (it.presence.hit_tokens, Teller::Pool)).or_else(told)
    }

    /// The most leading tokens that a prefiller has in memory of its own; `None` when they are not listened to.
    pub fn best_held(&self) -> Option<u32> {
        self.held.as_ref().map(|held| best(held))
    }
}

/// A prompt's blocks, and what was told of them.
struct Named {
    /// For the pool; or why it can't be asked.
    question: Option<Result<Question, Reason>>,
    heard: Option<Heard>,
}

impl Finder {
    /// What exists of a request's prompt; `None` when its blocks can't be named.
    pub async fn look_up(&self, ask: &Ask, prompt: &Prompt) -> Option<Found> {
        let began = Instant::now();
        let unasked = |reason: Reason| self.meters.pool_unasked(reason.name());
        let Named { question, heard } = self.name(ask, prompt).await.map_err(unasked).ok()?;
        let pool = match (&self.pool, question) {
            (Some(gate), Some(Ok(question))) => {
                let lookup = gate.ask(Arc::new(question)).await;
                self.meters.pool(gate.name(), lookup.verdict.name(), began.elapsed());
                Some(lookup)
            }
            (_, Some(Err(reason))) => {
                unasked(reason);
                None
            }
            _ => None,
        };
        let told_tokens = heard.as_ref().map_or(0, |heard| heard.told_tokens);
        let held = heard.map(|heard| heard.held);
        Some(Found { pool, held, told_tokens })
    }

    async fn name(&self, ask: &Ask, prompt: &Prompt) -> Result<Named, Reason> {
        let naming = self.prompts.naming().ok_or(Reason::Unnamed)?;
        let text = |key| ask.body.get(key).and_then(|value| value.as_str().map(std::borrow::Cow::into_owned));
        let job = Job {
            naming,
            tokens: prompt.tokens.clone(),
            model: ask.shape.model.clone(),
            salt: text("cache_salt"),
            pooled: self.pool.is_some(),
            told: self.events.clone(),
        };
        if prompt.tokens.len() <= ASIDE_TOKENS {
            return Ok(job.run());
        }
        tokio::task::spawn_blocking(|| job.run()).await.map_err(|_| Reason::Limit)
    }
}

/// The work on one prompt.
struct Job {
    naming: Arc<Naming>,
    tokens: Arc<[u32]>,
    model: Option<String>,
    salt: Option<String>,
    pooled: bool,
    told: Option<Arc<Told>>,
}

impl Job {
    /// Where blocks can be named for one of both alone, the other goes without.
    fn run(self) -> Named {
        let (naming, model, salt) = (&self.naming, self.model.as_deref(), self.salt.as_deref());
        let needed = self.pooled || naming.engine_hasher.is_none();
        let hashes = if needed { naming.hashes(&self.tokens, model, salt) } else { Ok(Vec::new()) };
        let heard = self.told.as_ref().and_then(|told| {
            let of_engine = naming.engine_hashes(&self.tokens, model, salt).ok()?;
            let same = || hashes.as_deref().ok();
            of_engine.as_deref().or_else(same).map(|hashes| told.heard(naming, hashes))
        });
        let question = match hashes {
            Ok(hashes) => self.pooled.then(|| question(naming, self.tokens, hashes, salt)),
            Err(reason) => Some(Err(reason)),
        };
        Named { question, heard }
    }
}

impl Told {
    fn heard(&self, naming: &Naming, hashes: &[BlockHash]) -> Heard {
        let began = Instant::now();
        let found = heard(&self.index, hashes, naming.engine_hasher().block_tokens());
        self.meter.looked_up(best(&found.held), found.told_tokens, began.elapsed());
        found
    }
}

/// The most tokens that one of them holds.
fn best(held: &[Held]) -> u32 {
    held.iter().map(|it| it.own_tokens).max().unwrap_or(0)
}

/// Hashes and keys of a prompt, for the pool.
fn question(
    naming: &Naming,
    tokens: Arc<[u32]>,
    hashes: Vec<BlockHash>,
    salt: Option<&str>,
) -> Result<Question, Reason> {
    let mut keys = KeyBatch::default();
    if let Some(profile) = &naming.keys {
        let prompt_tokens = u32::try_from(tokens.len()).map_err(|_| Reason::TooLong)?;
        let salt = salt.unwrap_or("");
        let blocks = PromptBlocks { salt, ..PromptBlocks::new(&hashes, prompt_tokens) };
        // More keys than any batch takes, or a hash that is not the profile's, which the start has ruled out.
        profile.keys_of_prompt(&blocks, Keys::Needed, &mut keys).map_err(|_| Reason::TooLong)?;
    }
    Ok(Question { tokens, hashes: hashes.into(), keys: Arc::new(keys) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Presence;

    #[test]
    fn what_was_told_of_a_pool_counts_where_the_pool_gave_no_answer() {
        let presence = Presence { hit_tokens: 32, ..Presence::default() };
        let pool = |verdict| Some(Lookup { verdict, presence: presence.clone() });
        let found = |pool, told_tokens| Found { pool, told_tokens, held: None }.pooled();
        assert_eq!(found(pool(Verdict::Known), 64), Some((32, Teller::Pool)));
        assert_eq!(found(pool(Verdict::Partial), 0), Some((32, Teller::Pool)));
        assert_eq!(found(pool(Verdict::TimedOut), 64), Some((64, Teller::Events)));
        assert_eq!(found(None, 64), Some((64, Teller::Events)));
        assert_eq!((found(None, 0), found(pool(Verdict::Off), 0)), (None, None));
    }

    #[test]
    fn the_best_holder_is_the_one_with_most_in_any_own_memory() {
        let held = |hbm_tokens, own_tokens| Held { instance: 1, rank: 0, hbm_tokens, own_tokens };
        let best = |held: &[Held]| Found { held: Some(held.into()), ..Found::default() }.best_held();
        assert_eq!(best(&[held(32, 32), held(16, 48)]), Some(48));
        assert_eq!((best(&[]), Found::default().best_held()), (Some(0), None));
    }
}
