//! Looks prompts up once more when own prefills have stored them: under right names they are found,
//! under wrong ones a pool looks empty for ever.
//!
//! Prompts with whole blocks that were not cached are taken, a few at once, and few at all once one
//! was found.
//! A pool that evicts at once is told from wrong names in two ways: any block of a prompt that is
//! still there counts, and a pool that lists no key at all speaks against nobody's names. Where a
//! pool can't list its keys, nothing tells the two apart.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::endpoint::Endpoint;
use crate::fleet::{InstanceId, Role};
use crate::kvhash::keys::sample::judge;
use crate::pool::Remnant;
use crate::pool::misfit::misfits;
use crate::relay::Relay;
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::lookup::{Finder, HitSource, PoolQuery, PromptLookup};
use crate::route::name_trial::{EngineRun, NameTrial, NamesState};
use crate::route::{Job, Reported};

/// Prompts that are looked up at once. Others are left out: one prompt is as good as another.
const AT_ONCE: usize = 8;
/// Times of the lookups after the end of a prefill: engines store beside their work.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(2)];
/// The longest prefix that is looked up.
const MOST_TOKENS: usize = 64 << 10;
/// Between prompts when one was found.
const PAUSE_FOUND: Duration = Duration::from_secs(30);
/// Between prompts while names are wrong, to see when they are not.
const PAUSE_WRONG: Duration = Duration::from_secs(2);

/// A prompt of which a prefiller of ours has just computed whole blocks.
#[derive(Debug)]
pub struct StoredPrompt {
    run: EngineRun,
    /// Question to the pool.
    pool: Option<PoolQuery>,
    /// The prompt, where prefillers tell what they hold.
    told: Option<Arc<Job>>,
    at: Instant,
}

/// Outcome of looking a prompt up again. `None` = the source gave no answer.
struct LookedUp {
    run: EngineRun,
    pool: Option<bool>,
    /// The pool has some keys of its blocks, and of no block all.
    in_part: bool,
    events: Option<bool>,
}

/// Judgement on the names of blocks.
#[derive(Debug)]
pub struct NameCheck {
    queue: mpsc::Sender<StoredPrompt>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pool: SourceState,
    events: SourceState,
    /// No prompt is taken before.
    next: Option<Instant>,
}

#[derive(Debug, Default)]
struct SourceState {
    trial: NameTrial,
    /// State that was told last.
    told: NamesState,
}

impl NameCheck {
    /// Nothing is known yet. What the receiver gets is to be given to [`Relay::check_names`].
    pub fn new() -> (NameCheck, mpsc::Receiver<StoredPrompt>) {
        let (queue, stored) = mpsc::channel(1);
        (NameCheck { queue, state: Mutex::default() }, stored)
    }

    fn is_due(&self) -> bool {
        self.with(|state| state.next.is_none_or(|next| Instant::now() >= next))
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn of(&mut self, source: HitSource) -> &mut SourceState {
        match source {
            HitSource::Pool => &mut self.pool,
            HitSource::Events => &mut self.events,
        }
    }

    /// True if names may steer: they are wrong everywhere in no source, or have been found in one.
    fn steers(&self) -> bool {
        let all = [&self.pool, &self.events];
        all.iter().any(|it| it.trial.has_hit())
            || !all.iter().any(|it| it.trial.state() == NamesState::WrongEverywhere)
    }
}

impl Relay {
    /// Takes a prompt whose prefill has ended, if whole blocks of it were computed. Forgets the
    /// pool's answer from before.
    pub(super) fn prompt_stored(&self, ask: &Ask, ledger: &Ledger, reported: Reported) {
        let Some(finder) = &self.finder else { return };
        let lacked =
            ask.asked.as_ref().filter(|asked| asked.tokens_of_blocks() > ask.job.pool.anywhere_tokens);
        if let Some(asked) = lacked.filter(|_| ask.job.pool.asked) {
            finder.forget(asked);
        }
        let (Some(prefiller), Some(chosen)) = (ledger.prefilled_by(), ledger.chosen()) else { return };
        if !ask.job.named || !self.name_check.is_due() {
            return;
        }
        // One that does not tell is taken to have had cached what was sent to it before.
        let cached = reported.cached_tokens.unwrap_or_else(|| u64::from(chosen.terms.hit.hbm_tokens));
        // What the pool had before says nothing of what this prefiller stored.
        let pool = ask.asked.as_ref().filter(|_| ask.job.pool.asked && ask.job.pool.anywhere_tokens == 0);
        let pool = pool.filter(|asked| asked.has_new_unit(cached, MOST_TOKENS));
        let new_block = cached.saturating_add(u64::from(ask.job.block_tokens));
        let told = finder.events.is_some() && new_block < u64::from(ask.job.counted_tokens());
        if pool.is_none() && !told {
            return;
        }
        let prompt = StoredPrompt {
            run: EngineRun { engine: prefiller.id().0, restarts: prefiller.restarts() },
            pool: pool.map(|asked| asked.leading(MOST_TOKENS)),
            told: told.then(|| ask.job.clone()),
            at: Instant::now(),
        };
        // One that finds no room is left out.
        let _ = self.name_check.queue.try_send(prompt);
    }

    /// Sources in which nothing is found of what some prefiller stores: `pool`, `events`.
    pub fn unfound_names(&self) -> Vec<&'static str> {
        self.name_check.with(|state| {
            let unfound = |source: &HitSource| state.of(*source).told != NamesState::Plausible;
            [HitSource::Pool, HitSource::Events].into_iter().filter(unfound).map(HitSource::name).collect()
        })
    }

    /// A lookup for a request has found blocks: its names are somebody's.
    pub(super) fn names_hit(&self, found: &PromptLookup) {
        let pool = found.answer().is_some_and(|presence| presence.has_any());
        let events = found.best_held().is_some_and(|tokens| tokens > 0);
        for (source, hit) in [(HitSource::Pool, pool), (HitSource::Events, events)] {
            let news = hit
                && self.name_check.with(|state| {
                    let of = state.of(source);
                    let news = !of.trial.has_hit();
                    of.trial.hit();
                    news
                });
            if news {
                self.tell_names(source, None);
            }
        }
    }

    /// Looks up prompts that were stored, for ever.
    pub async fn check_names(self: Arc<Self>, mut stored: mpsc::Receiver<StoredPrompt>) {
        let Some(finder) = &self.finder else { return };
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(prompt) = stored.recv(), if open.len() < AT_ONCE => open.push(look_again(finder, prompt)),
                Some(looked) = open.next(), if !open.is_empty() => self.judge_names(finder, &looked).await,
                else => return,
            }
        }
    }

    async fn judge_names(&self, finder: &Finder, looked: &LookedUp) {
        let LookedUp { pool, events, .. } = looked;
        tracing::debug!(pool, events, "a prompt that was stored was looked up again");
        let members = self.fleet.members(Role::Prefill);
        let is_member = |engine: u64| members.iter().any(|it| it.id().0 == engine);
        let mut pause = Duration::ZERO;
        for (source, found) in [(HitSource::Pool, looked.pool), (HitSource::Events, looked.events)] {
            let Some(found) = found else { continue };
            let [before, now] = self.name_check.with(|state| {
                let of = state.of(source);
                of.trial.retain(is_member);
                of.trial.looked_up(looked.run, found);
                [of.told, of.trial.state()]
            });
            let mut likely = None;
            if before == NamesState::Plausible && now != before && source == HitSource::Pool {
                match contents(finder, looked.in_part).await {
                    PoolContents::Empty => self.name_check.with(|state| state.of(source).trial.acquit()),
                    PoolContents::Keys(words) => likely = Some(words),
                }
            }
            let now = self.tell_names(source, likely);
            pause = pause.max(match now {
                NamesState::Plausible if found => PAUSE_FOUND,
                NamesState::Plausible => Duration::ZERO,
                _ => PAUSE_WRONG,
            });
        }
        self.name_check.with(|state| state.next = Some(Instant::now() + pause));
    }

    /// Tells a change of the state of the names in one source: the log, the metric, routing.
    fn tell_names(&self, source: HitSource, likely: Option<String>) -> NamesState {
        let (before, now, prompts, steers) = self.name_check.with(|state| {
            let steers = state.steers();
            let of = state.of(source);
            let (before, now) = (of.told, of.trial.state());
            of.told = now;
            (before, now, of.trial.unfound(), steers)
        });
        if before == now {
            return now;
        }
        self.affinity.set_names_plausible(steers);
        self.meters.names_unfound(source.name(), now != NamesState::Plausible);
        let place = match source {
            HitSource::Pool => "the pool",
            HitSource::Events => "KV events",
        };
        let likely = likely.unwrap_or_else(|| UNTOLD.to_owned());
        match now {
            NamesState::Plausible => {
                tracing::info!(
                    source = source.name(),
                    "{place}: blocks that prefillers stored are found by their names"
                );
            }
            NamesState::WrongEverywhere => tracing::warn!(
                source = source.name(),
                prompts,
                "{place}: nothing that prefillers stored is found by its names, which do not steer until it is: {likely}"
            ),
            NamesState::WrongAt(engine) => {
                let engine = self.engine_name(engine);
                let engine = engine.as_ref().map_or_else(|| "?".to_owned(), Endpoint::to_string);
                tracing::warn!(
                    source = source.name(),
                    %engine,
                    role = Role::Prefill.name(),
                    "engine {engine} (prefill): nothing that it stored is found in {place} by its names, and what others stored \
                     is: compare its PYTHONHASHSEED, model path and parallel sizes with theirs"
                );
            }
        }
        now
    }

    fn engine_name(&self, engine: u64) -> Option<Endpoint> {
        let members = self.fleet.members(Role::Prefill);
        members.iter().find(|it| it.id() == InstanceId(engine)).map(|it| it.endpoint().clone())
    }
}

/// The likely cause where the keys of a pool can't be compared.
const UNTOLD: &str = "most likely hash.seed is not the engines' PYTHONHASHSEED; else hash.algo, prompt.chat_template, \
                      or key.model, key.tp, key.kv_heads, key.prefix (pd-proxy check compares), or nothing is kept there";
/// The likely cause where keys are spelled as ours.
const HASH_ALONE: &str = "the pool's keys are spelled as ours, so that their hashes differ: most likely hash.seed is not \
                          the engines' PYTHONHASHSEED; else hash.algo, or prompt.chat_template";
/// The likely cause where some keys of each block are there.
const KEYS_ALONE: &str = "each block lacks some of the keys that are asked for: key.tp, key.kv_heads, key.pp or key.layers are \
                          larger than the engines'";

/// Content of a pool in which nothing of ours was found.
enum PoolContents {
    /// It has no key.
    Empty,
    /// The likely reason.
    Keys(String),
}

/// Compares the pool's keys with those that are asked for.
async fn contents(finder: &Finder, in_part: bool) -> PoolContents {
    let naming = finder.prompts.naming();
    let keys = naming.and_then(|naming| naming.key_config.clone());
    let listed = match &finder.listing {
        Some(listing) => listing.sample().await,
        None => None,
    };
    let (Some(keys), Some(listed)) = (keys, listed) else {
        return PoolContents::Keys(if in_part { KEYS_ALONE } else { UNTOLD }.to_owned());
    };
    if listed.seen == 0 {
        return PoolContents::Empty;
    }
    // Hundreds of foreign keys take a good part of a second, for which streams must not wait.
    let work = spawn_blocking(move || {
        judge(&keys, &listed.keys, !listed.more).map(|judged| misfits(&keys, &judged))
    });
    PoolContents::Keys(match work.await {
        Ok(Ok(words)) if !words.is_empty() => words.join("; "),
        _ if in_part => KEYS_ALONE.to_owned(),
        _ => HASH_ALONE.to_owned(),
    })
}

/// Looks a prompt up until it is found, or the last time has come.
async fn look_again(finder: &Finder, prompt: StoredPrompt) -> LookedUp {
    let StoredPrompt { run, pool, told, at } = prompt;
    let mut looked = LookedUp { run, pool: None, in_part: false, events: None };
    for look in LOOKS {
        sleep_until(at + look).await;
        if let Some(query) = pool.as_ref().filter(|_| looked.pool != Some(true)) {
            // A pool that has gone meanwhile may have had the prompt: the last look counts.
            let presence = finder.check(query).await;
            looked.pool = presence.as_ref().map(|presence| presence.has_any());
            looked.in_part = presence.is_some_and(|presence| presence.remnant == Remnant::Keys);
        }
        if let (Some(events), Some(job)) = (&finder.events, &told)
            && looked.events != Some(true)
        {
            looked.events = events.holds(InstanceId(run.engine), job).or(looked.events);
        }
        let is_open = |asked: bool, found: Option<bool>| asked && found != Some(true);
        if !is_open(pool.is_some(), looked.pool) && !is_open(told.is_some(), looked.events) {
            break;
        }
    }
    looked
}
