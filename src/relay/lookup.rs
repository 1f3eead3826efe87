//! The blocks of a prompt that exist already, and their places: asked before it is routed.
//!
//! Two sources, each of which may be missing: the pool, which is asked within its deadline, and
//! what prefillers told in KV events, which is looked up here and waits for nothing. Both know
//! blocks by their hashes, which are made once.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::fleet::{self, Holding, InstanceId};
use crate::kvhash::BlockHash;
use crate::kvhash::keys::batch::MAX_BATCH_KEYS;
use crate::kvhash::keys::{Ask as Keys, KeyBatch, KeyProfile, PromptBlocks};
use crate::obs::Meters;
use crate::obs::events::HeldMeter;
use crate::pool::events::held::{Heard, HeldPrefix, heard, tellers};
use crate::pool::events::watch::SharedIndex;
use crate::pool::listing::KeyListing;
use crate::pool::{Gate, Inquiry, Lookup, PoolError, Presence, Question};
use crate::prompt::{Prompt, Reason};
use crate::relay::ask::ReceivedRequest;
use crate::relay::pool_wait::StoreWaitPolicy;
use crate::route::Job;
use crate::tokenization::{BlockNaming, Prompts};

/// Work that takes a millisecond and more, in tokens to be hashed: it is done beside the runtime.
const ASIDE_TOKENS: usize = 64 << 10;
/// The longest that a long prompt waits for a place beside the runtime.
const PLACE_TIME: Duration = Duration::from_millis(5);
/// Writing a key takes as long as hashing so many tokens.
const KEY_TOKENS: usize = 9;

/// Lookup of prompts' blocks: the sources that are asked.
#[derive(Debug)]
pub struct Finder {
    /// Knows how blocks are named.
    pub prompts: Arc<Prompts>,
    /// The pool, if one is configured.
    pub pool: Option<Gate>,
    /// KV events of prefillers.
    pub events: Option<Arc<KvEventView>>,
    /// Metrics of lookups.
    pub meters: Arc<Meters>,
    /// Long prompts hashed beside the runtime, as many at once as this has places.
    pub aside: Arc<Semaphore>,
    /// Place where the pool lists its keys, if it does.
    pub listing: Option<KeyListing>,
    /// Decides if waiting is worth it until a pool has the KV that was computed.
    pub store_wait: StoreWaitPolicy,
}

/// KV events of prefillers, and the metrics of looking them up.
#[derive(Debug)]
pub struct KvEventView {
    /// Their blocks; instances are numbered as in [`InstanceId`].
    pub index: SharedIndex,
    /// Metrics of these lookups.
    pub meter: HeldMeter,
}

/// Result of looking a prompt up.
#[derive(Clone, Debug, Default)]
pub struct PromptLookup {
    /// The prompt's blocks, as engines know them; empty where they can't be named.
    pub blocks: Blocks,
    /// The pool's answer; `None` when there is no pool, or the blocks have no keys.
    pub pool: Option<Lookup>,
    /// Tokens that prefillers hold in memory of their own, the longest in HBM first, by the number
    /// of their [`InstanceId`]; `None` when KV events are not received. A prefiller may have left
    /// the fleet a moment ago.
    pub held: Option<SmallVec<[HeldPrefix; 4]>>,
    /// Leading tokens that prefillers put into a pool by their own word, which does not say what
    /// was evicted since.
    pub told_tokens: u32,
    /// Question to the pool, to be repeated; `None` when it was not asked.
    pub asked: Option<PoolQuery>,
}

/// A prompt, as far as a pool is asked about it.
#[derive(Clone, Debug)]
pub struct PoolQuery {
    naming: Arc<BlockNaming>,
    tokens: Arc<[u32]>,
    hashes: Arc<[BlockHash]>,
    salt: Option<String>,
}

/// The full blocks of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Their 64-bit hashes, as in KV events.
    pub hashes: Arc<[u64]>,
    /// Tokens of each.
    pub tokens: u32,
}

/// Sources of a pool's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitSource {
    /// The pool, asked.
    Pool,
    /// Prefillers' events, as no pool is configured or it gave no answer.
    Events,
}

impl HitSource {
    /// `pool` or `events`, as in the log.
    pub fn name(self) -> &'static str {
        match self {
            HitSource::Pool => "pool",
            HitSource::Events => "events",
        }
    }
}

impl PromptLookup {
    /// Leading tokens that a pool has, by the best source that spoke; `None` when none did.
    pub fn pooled(&self) -> Option<(u32, HitSource)> {
        let told = || (self.told_tokens > 0).then_some((self.told_tokens, HitSource::Events));
        self.answer().map(|presence| (presence.hit_tokens, HitSource::Pool)).or_else(told)
    }

    /// Of these, what every engine can load, wherever it runs. What events tell of a pool is taken
    /// to be everybody's.
    pub fn fetchable_tokens(&self) -> u32 {
        self.answer().map_or(self.told_tokens, Presence::fetchable_tokens)
    }

    /// The pool's answer, if it gave one.
    pub fn answer(&self) -> Option<&Presence> {
        self.pool.as_ref().filter(|it| it.verdict.is_answer()).map(|it| &it.presence)
    }

    /// The most leading tokens that a prefiller has in memory of its own; `None` when they are not
    /// listened to.
    pub fn best_held(&self) -> Option<u32> {
        self.held.as_ref().map(|held| best(held))
    }
}

impl Finder {
    /// Looks up the blocks of a request's prompt; `None` when they can't be named.
    pub async fn look_up(&self, ask: &ReceivedRequest, prompt: &Prompt) -> Option<PromptLookup> {
        let unasked = |reason: Reason| self.meters.pool_unasked(reason.name());
        let naming = self.prompts.naming().ok_or(Reason::Unnamed).map_err(unasked).ok()?;
        let work = Work {
            naming: naming.clone(),
            prompt: prompt.clone(),
            model: ask.shape.model.clone(),
            salt: ask.body.get("cache_salt").and_then(|salt| salt.as_str().map(Cow::into_owned)),
            told: self.events.clone(),
        };
        let salt = work.salt.clone();
        let Named { hashes, blocks, heard } = if prompt.tokens.len() <= ASIDE_TOKENS {
            work.run()
        } else {
            // The place belongs to the work, which goes on when its client leaves. Nobody waits
            // long for one: where many long prompts come at once, some go without.
            let place = tokio::time::timeout(PLACE_TIME, self.aside.clone().acquire_owned()).await;
            let Ok(Ok(place)) = place else {
                unasked(Reason::Limit);
                return None;
            };
            let aside = tokio::task::spawn_blocking(move || {
                let named = work.run();
                drop(place);
                named
            });
            aside.await.map_err(|_| unasked(Reason::Limit)).ok()?
        };
        let asked = hashes.map(|hashes| {
            let tokens = match prompt.is_exact() {
                true => prompt.tokens.clone(),
                false => prompt
                    .tokens
                    .iter()
                    .take(hashes.len() * naming.hasher.block_tokens().get())
                    .copied()
                    .collect(),
            };
            PoolQuery { naming, tokens, hashes, salt }
        });
        let question = asked.as_ref().map_err(|reason| *reason).and_then(PoolQuery::inquiry);
        let pool = match (&self.pool, question) {
            (Some(gate), Ok(inquiry)) => {
                let began = Instant::now();
                let lookup = gate.ask(inquiry).await;
                self.meters.pool(gate.name(), lookup.verdict.name(), began.elapsed());
                Some(lookup)
            }
            (_, Err(reason)) => {
                unasked(reason);
                None
            }
            (None, Ok(_)) => None,
        };
        let told_tokens = heard.as_ref().map_or(0, |heard| heard.told_tokens);
        let held = heard.map(|heard| heard.held);
        let asked = asked.ok().filter(|_| pool.is_some());
        Some(PromptLookup { blocks, pool, held, told_tokens, asked })
    }

    /// Forgets the pool's answer about a prompt that has been stored since.
    pub fn forget(&self, asked: &PoolQuery) {
        if let (Some(gate), Ok(inquiry)) = (&self.pool, asked.inquiry()) {
            gate.forget(&inquiry);
        }
    }

    /// Asks the pool about a prompt for nobody's request; `None` when it gives no answer.
    pub async fn check(&self, asked: &PoolQuery) -> Option<Presence> {
        let lookup = self.pool.as_ref()?.ask_anew(asked.inquiry().ok()?).await;
        lookup.verdict.is_answer().then_some(lookup.presence)
    }

    /// Asks the pool about a prompt once more, as it is now; `None` when it can't be asked.
    pub async fn ask_anew(&self, asked: &PoolQuery) -> Option<Lookup> {
        let gate = self.pool.as_ref()?;
        let began = Instant::now();
        let lookup = gate.ask_anew(asked.inquiry().ok()?).await;
        self.meters.pool(gate.name(), lookup.verdict.name(), began.elapsed());
        Some(lookup)
    }
}

/// The work on one prompt before anybody is asked.
struct Work {
    naming: Arc<BlockNaming>,
    prompt: Prompt,
    model: Option<String>,
    salt: Option<String>,
    told: Option<Arc<KvEventView>>,
}

/// A prompt's blocks, and what was told of them.
struct Named {
    /// As `[hash]` says; or why they have none.
    hashes: Result<Arc<[BlockHash]>, Reason>,
    blocks: Blocks,
    heard: Option<Heard>,
}

impl Work {
    /// Place where blocks can be named for one of both sources alone, the other goes without.
    fn run(self) -> Named {
        let (naming, model, salt) = (&self.naming, self.model.as_deref(), self.salt.as_deref());
        let hashes: Result<Arc<[BlockHash]>, Reason> =
            naming.prompt_hashes(&self.prompt, model, salt).map(Into::into);
        let of_engine = naming.engine_hashes(&self.prompt, model, salt);
        let of_engine: Option<&[BlockHash]> = match &of_engine {
            Ok(Some(own)) => Some(own),
            Ok(None) => hashes.as_deref().ok(),
            Err(_) => None,
        };
        let tokens = u32::try_from(naming.engine_hasher().block_tokens().get()).unwrap_or(u32::MAX);
        let blocks = of_engine
            .map(|hashes| Blocks { hashes: hashes.iter().map(BlockHash::event_u64).collect(), tokens });
        let heard = self.told.as_ref().zip(of_engine).map(|(told, hashes)| told.heard(naming, hashes));
        Named { blocks: blocks.unwrap_or_default(), hashes, heard }
    }
}

impl KvEventView {
    fn heard(&self, naming: &BlockNaming, hashes: &[BlockHash]) -> Heard {
        let began = Instant::now();
        let found = heard(&self.index, hashes, naming.engine_hasher().block_tokens());
        self.meter.looked_up(best(&found.held), found.told_tokens, began.elapsed());
        found
    }
}

impl KvEventView {
    /// True if `prefiller` tells that it has the beginning of this prompt in memory of its own;
    /// `None` if it tells of no blocks of this size.
    pub fn holds(&self, prefiller: InstanceId, job: &Job) -> Option<bool> {
        let own = |it: &HeldPrefix| it.instance == prefiller.0;
        let block_tokens = NonZeroUsize::new(job.block_tokens as usize)?;
        let told = tellers(&self.index, &job.blocks, block_tokens);
        let held = |it: &HeldPrefix| it.own_tokens > 0;
        told.iter().any(own).then(|| told.iter().filter(|it| own(it)).any(held))
    }
}

impl fleet::CacheReports for KvEventView {
    fn held(&self, job: &Job) -> Vec<Holding> {
        holdings(&self.index, job)
    }
}

/// KV events of decoders: what each of them told that it holds.
#[derive(Debug)]
pub struct DecoderEventView {
    /// Blocks that they told of.
    pub index: SharedIndex,
}

impl fleet::CacheReports for DecoderEventView {
    fn held(&self, job: &Job) -> Vec<Holding> {
        holdings(&self.index, job)
    }
}

fn holdings(index: &SharedIndex, job: &Job) -> Vec<Holding> {
    let block_tokens = NonZeroUsize::new(job.block_tokens as usize).filter(|_| job.named);
    let Some(block_tokens) = block_tokens else { return Vec::new() };
    let holding =
        |it: &HeldPrefix| Holding { instance: InstanceId(it.instance), rank: it.rank, tokens: it.own_tokens };
    tellers(index, &job.blocks, block_tokens).iter().map(holding).collect()
}

/// The most tokens that one of them holds.
fn best(held: &[HeldPrefix]) -> u32 {
    held.iter().map(|it| it.own_tokens).max().unwrap_or(0)
}

impl PoolQuery {
    /// Tokens of the prompt's blocks.
    pub fn tokens_of_blocks(&self) -> u32 {
        let tokens = self.hashes.len().saturating_mul(self.naming.hasher.block_tokens().get());
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// True if after `cached` tokens the least that is stored and found at once begins and ends
    /// within the first `most_tokens`.
    pub fn has_new_unit(&self, cached: u64, most_tokens: usize) -> bool {
        let block = self.naming.hasher.block_tokens().get();
        let unit = self.naming.keys.as_ref().map_or(0, |keys| keys.unit_tokens() as usize).max(block);
        let whole = (self.tokens.len().min(most_tokens) / unit).saturating_mul(unit);
        let cached = usize::try_from(cached).unwrap_or(usize::MAX);
        !self.hashes.is_empty() && cached.saturating_add(unit) <= whole
    }

    /// The same about the first blocks alone, of at most `most_tokens` tokens, and one at least.
    pub fn leading(&self, most_tokens: usize) -> PoolQuery {
        let block = self.naming.hasher.block_tokens().get();
        let blocks = (most_tokens / block).max(1);
        match (self.hashes.get(..blocks), self.tokens.get(..blocks.saturating_mul(block))) {
            (Some(hashes), Some(tokens)) => {
                PoolQuery { hashes: hashes.into(), tokens: tokens.into(), ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// Question to the pool. Its keys are not written yet: that takes time, and the gate knows if
    /// it is worth it.
    fn inquiry(&self) -> Result<Inquiry, Reason> {
        let PoolQuery { naming, tokens, hashes, salt } = self.clone();
        let keys = naming.keys.as_ref().map_or(0, |profile| keys_of(profile, tokens.len()));
        if keys > MAX_BATCH_KEYS {
            return Err(Reason::TooLong);
        }
        let aside = keys.saturating_mul(KEY_TOKENS) > ASIDE_TOKENS;
        // The last hash stands for all that hashes depend on: the adapter, and the salt where they
        // separate it.
        let last = hashes.last().map(|hash| hash.to_string());
        let context = [last, salt.clone()];
        let named = tokens.clone();
        let form = move || {
            let keys = Arc::new(keys_with(&naming, &hashes, named.len(), salt.as_deref())?);
            Ok(Question { tokens: named, hashes, keys, salt: salt.as_deref().unwrap_or_default().into() })
        };
        Ok(Inquiry { tokens, context, aside, form: Box::new(form) })
    }
}

/// The keys of a prompt of `tokens` tokens, whose blocks have these hashes; none for a pool without
/// keys.
fn keys_with(
    naming: &BlockNaming,
    hashes: &[BlockHash],
    tokens: usize,
    salt: Option<&str>,
) -> Result<KeyBatch, PoolError> {
    let mut keys = KeyBatch::default();
    if let Some(profile) = &naming.keys {
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let blocks = PromptBlocks { salt: salt.unwrap_or(""), ..PromptBlocks::new(hashes, prompt_tokens) };
        // More bytes than any batch takes, or a hash that is not the profile's, which the start has
        // ruled out.
        let written = profile.keys_of_prompt(&blocks, Keys::Needed, &mut keys);
        written.map_err(|error| PoolError::TooLarge(error.to_string()))?;
    }
    Ok(keys)
}

/// About how many keys a prompt of `tokens` tokens has.
fn keys_of(profile: &KeyProfile, tokens: usize) -> usize {
    let blocks = tokens.checked_div(profile.block_tokens() as usize).unwrap_or(0);
    blocks.saturating_mul(profile.keys_per_block())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvhash::lmcache::ServerAlgo;
    use crate::kvhash::scheme::{Hasher, Scheme};
    use crate::pool::{LoadableBy, Verdict};

    #[test]
    fn told_pool_blocks_count_without_a_pool_answer() {
        let presence = Presence { hit_tokens: 32, ..Presence::default() };
        let pool = |verdict| Some(Lookup { verdict, presence: presence.clone() });
        let found =
            |pool, told_tokens| PromptLookup { pool, told_tokens, ..PromptLookup::default() }.pooled();
        assert_eq!(found(pool(Verdict::Answered), 64), Some((32, HitSource::Pool)));
        assert_eq!(found(pool(Verdict::Partial), 0), Some((32, HitSource::Pool)));
        assert_eq!(found(pool(Verdict::TimedOut), 64), Some((64, HitSource::Events)));
        assert_eq!(found(None, 64), Some((64, HitSource::Events)));
        assert_eq!((found(None, 0), found(pool(Verdict::Off), 0)), (None, None));
    }

    #[test]
    fn host_local_kv_is_pooled_and_not_fetchable() {
        let found = |reach, verdict, told_tokens| {
            let presence = Presence { hit_tokens: 32, reach, ..Presence::default() };
            let found = PromptLookup {
                pool: Some(Lookup { verdict, presence }),
                told_tokens,
                ..PromptLookup::default()
            };
            (found.pooled().map(|(tokens, _)| tokens), found.fetchable_tokens())
        };
        let own = |fetchable_tokens| LoadableBy::Own { fetchable_tokens };
        assert_eq!(found(LoadableBy::All, Verdict::Answered, 64), (Some(32), 32));
        assert_eq!(found(own(0), Verdict::Answered, 64), (Some(32), 0));
        assert_eq!(found(own(16), Verdict::Partial, 0), (Some(32), 16));
        assert_eq!(found(own(48), Verdict::Answered, 0), (Some(32), 32), "of what is there");
        assert_eq!(found(own(0), Verdict::TimedOut, 64), (Some(64), 64), "it gave no answer");
        assert_eq!(found(own(0), Verdict::Off, 0), (None, 0));
    }

    #[test]
    fn a_pool_that_makes_its_own_keys_is_told_the_salt() {
        let scheme = Scheme::LmcacheServer { algo: ServerAlgo::Blake3, chunk_tokens: 4 };
        let hasher = Hasher::new(&scheme).unwrap();
        let naming = BlockNaming {
            hasher,
            engine_hasher: None,
            keys: None,
            key_config: None,
            version: None,
            models: None,
        };
        let tokens: Arc<[u32]> = (0..8).collect();
        let hashes = naming.hashes(&tokens, None, None).unwrap().into();
        let asked = PoolQuery { naming: Arc::new(naming), tokens, hashes, salt: Some("tenant".to_owned()) };
        let salt = |asked: PoolQuery| (asked.inquiry().unwrap().form)().unwrap().salt;
        assert_eq!((&*salt(asked.clone()), &*salt(PoolQuery { salt: None, ..asked })), ("tenant", ""));
    }

    #[test]
    fn the_best_holder_is_the_one_with_most_in_any_own_memory() {
        let held = |hbm_tokens, own_tokens| HeldPrefix { instance: 1, rank: 0, hbm_tokens, own_tokens };
        let best = |held: &[HeldPrefix]| {
            PromptLookup { held: Some(held.into()), ..PromptLookup::default() }.best_held()
        };
        assert_eq!(best(&[held(32, 32), held(16, 48)]), Some(48));
        assert_eq!((best(&[]), PromptLookup::default().best_held()), (Some(0), None));
    }
}
