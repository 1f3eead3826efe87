//! Which blocks of a prompt exist already, and where: asked before it is routed.
//!
//! Two sources, each of which may be missing: the pool, which is asked, and what prefillers told in KV events, which is
//! looked up here and waits for nothing.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::Semaphore;

use crate::intake::{Naming, Prompts};
use crate::kvhash::BlockHash;
use crate::kvhash::keys::batch::MAX_BATCH_KEYS;
use crate::kvhash::keys::{Ask as Keys, KeyBatch, KeyProfile, PromptBlocks};
use crate::obs::Meters;
use crate::obs::events::HeldMeter;
use crate::pool::events::held::{Heard, Held, heard};
use crate::pool::events::watch::SharedIndex;
use crate::pool::{Gate, Inquiry, Lookup, PoolError, Question, Verdict};
use crate::prompt::{Prompt, Reason};
use crate::relay::ask::Ask;

/// Work that takes a millisecond and more, in tokens to be hashed: it is done beside the runtime.
const ASIDE_TOKENS: usize = 64 << 10;
/// Writing a key takes as long as hashing so many tokens.
const KEY_TOKENS: usize = 9;

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
    /// Long prompts that are looked up beside the runtime, as many at once as there are cores.
    aside: Arc<Semaphore>,
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

/// Whose blocks are looked for.
#[derive(Clone)]
struct Sought {
    naming: Arc<Naming>,
    tokens: Arc<[u32]>,
    model: Option<String>,
    salt: Option<String>,
}

/// Hashes of a prompt's blocks, if they were computed already.
type Hashes = Option<Arc<[BlockHash]>>;

impl Finder {
    /// What exists of a request's prompt; `None` when its blocks can't be named.
    pub async fn look_up(&self, ask: &Ask, prompt: &Prompt) -> Option<Found> {
        let text = |key| ask.body.get(key).and_then(|value| value.as_str().map(Cow::into_owned));
        let Some(naming) = self.prompts.naming() else {
            self.meters.pool_unasked(Reason::Unnamed.name());
            return None;
        };
        let (model, salt) = (ask.shape.model.clone(), text("cache_salt"));
        let sought = Sought { naming, tokens: prompt.tokens.clone(), model, salt };
        // Where blocks can be named for one of both alone, the other goes without.
        if let Err(reason) = sought.naming.check(sought.model.as_deref()) {
            self.meters.pool_unasked(reason.name());
        }
        let (heard, hashes) = match &self.events {
            Some(told) => told.clone().look_up(&sought).await.unwrap_or_default(),
            None => (None, None),
        };
        let pool = self.ask_pool(sought, hashes).await;
        let told_tokens = heard.as_ref().map_or(0, |heard| heard.told_tokens);
        Some(Found { pool, held: heard.map(|heard| heard.held), told_tokens })
    }

    async fn ask_pool(&self, sought: Sought, hashes: Hashes) -> Option<Lookup> {
        let (gate, began) = (self.pool.as_ref()?, Instant::now());
        sought.naming.check(sought.model.as_deref()).ok()?;
        let Ok(inquiry) = sought.inquiry(hashes) else {
            self.meters.pool_unasked(Reason::TooLong.name());
            return None;
        };
        let lookup = gate.ask(inquiry).await;
        self.meters.pool(gate.name(), lookup.verdict.name(), began.elapsed());
        Some(lookup)
    }
}

impl Sought {
    /// What a pool is to be asked, not yet formed: that takes time, and the gate knows whether it is worth it.
    fn inquiry(self, hashes: Hashes) -> Result<Inquiry, Reason> {
        let keys = self.naming.keys.as_ref().map_or(0, |profile| keys_of(profile, self.tokens.len()));
        if keys > MAX_BATCH_KEYS {
            return Err(Reason::TooLong);
        }
        let hashed = if hashes.is_some() { 0 } else { self.tokens.len() };
        let aside = hashed.saturating_add(keys.saturating_mul(KEY_TOKENS)) > ASIDE_TOKENS;
        let (tokens, context) = (self.tokens.clone(), [self.model.clone(), self.salt.clone()]);
        let form = move || {
            let (tokens, salt) = (self.tokens, self.salt.as_deref());
            let name = || self.naming.hashes(&tokens, self.model.as_deref(), salt);
            let refused = |reason: Reason| PoolError::Refused(reason.name().to_owned());
            let hashes = hashes.map_or_else(|| name().map(Arc::from), Ok).map_err(refused)?;
            let keys = Arc::new(keys_with(&self.naming, &hashes, (tokens.len(), salt))?);
            Ok(Question { tokens, hashes, keys })
        };
        Ok(Inquiry { tokens, context, aside, form: Box::new(form) })
    }
}

impl Told {
    /// Nothing was told yet.
    pub fn new(index: SharedIndex) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { index, meter: HeldMeter::new(), aside: Arc::new(Semaphore::new(cores)) }
    }

    /// What was told of a prompt, and its hashes if a pool names its blocks alike. None when they can't be named, or too
    /// many long prompts are being looked up.
    async fn look_up(self: Arc<Self>, sought: &Sought) -> Option<(Option<Heard>, Hashes)> {
        if sought.tokens.len() <= ASIDE_TOKENS {
            return self.heard(sought);
        }
        let permit = self.aside.clone().try_acquire_owned().ok()?;
        let sought = sought.clone();
        // The closure holds the permit: nothing ends it before it is done.
        tokio::task::spawn_blocking(move || (self.heard(&sought), permit).0).await.ok()?
    }

    fn heard(&self, sought: &Sought) -> Option<(Option<Heard>, Hashes)> {
        let Sought { naming, tokens, model, salt } = sought;
        let (model, salt) = (model.as_deref(), salt.as_deref());
        let of_engine = naming.engine_hashes(tokens, model, salt).ok()?;
        let alike = of_engine.is_none();
        let hashes: Arc<[BlockHash]> = match of_engine {
            Some(hashes) => hashes.into(),
            None => naming.hashes(tokens, model, salt).ok()?.into(),
        };
        let began = Instant::now();
        let found = heard(&self.index, &hashes, naming.engine_hasher().block_tokens());
        self.meter.looked_up(best(&found.held), found.told_tokens, began.elapsed());
        Some((Some(found), alike.then_some(hashes)))
    }
}

/// The most tokens that one of them holds.
fn best(held: &[Held]) -> u32 {
    held.iter().map(|it| it.own_tokens).max().unwrap_or(0)
}

/// The keys of a prompt of `tokens` tokens, whose blocks have these hashes; none for a pool without keys.
fn keys_with(
    naming: &Naming,
    hashes: &[BlockHash],
    (tokens, salt): (usize, Option<&str>),
) -> Result<KeyBatch, PoolError> {
    let mut keys = KeyBatch::default();
    if let Some(profile) = &naming.keys {
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let blocks = PromptBlocks { salt: salt.unwrap_or(""), ..PromptBlocks::new(hashes, prompt_tokens) };
        // More bytes than any batch takes, or a hash that is not the profile's, which the start has ruled out.
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
