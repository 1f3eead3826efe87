//! A request's prompt, by whoever tokenises: the gateway, an engine, or the client.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::block_naming::BlockNaming;
use super::engine::EngineTokenizer;
use super::source::{BaseModels, Source, Trust, engine_may_know};
use super::tokenize_request::tokenize_request_under;
use crate::codec::json::Object;
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::prompt::{
    CacheStats, EffortMap, Exactness, Prompt, PromptSource, Prompter, Reason, Rules, SharedRules, Stop,
    Today, most_tokens,
};

/// Bodies above this take a millisecond and more to tokenise, in bytes: they are worked on beside
/// the runtime.
const ASIDE_BYTES: usize = 256 << 10;
/// Bodies with more quotation marks take as long to render. 512 messages of a few words have that
/// number, and each takes two to ten microseconds; as many parts, calls and tools have it, too.
const ASIDE_QUOTES: usize = 4 << 10;
/// The longest that a large body waits for a place, behind others: they take some tens of
/// milliseconds each, and prefilling it takes seconds. If many come at once, some are routed by
/// their size.
const PLACE_TIME: Duration = Duration::from_millis(250);
/// The longest that one in its place is waited for: the largest that is read, of 64 MiB, takes a
/// second or a few.
const WORK_TIME: Duration = Duration::from_secs(5);

/// So close to midnight the engines' clocks may show the other day, in seconds.
const DOUBT_S: u32 = 5;
const DAY_S: u32 = 24 * 3600;
const QUARTER_S: u64 = 15 * 60;

/// Reader of prompts. One per gateway, shared by all requests.
pub struct Prompts {
    source: Source,
    /// Trust in the tokens of texts that are prompts as they are.
    texts: AtomicU8,
    /// Trust in those of chats, which a template makes prompts of.
    chats: AtomicU8,
    naming: ArcSwapOption<BlockNaming>,
    /// Tokens of the engines' blocks, whether or not these can be named; 0 = not known.
    engine_block_tokens: AtomicUsize,
    /// Engines encode chats by code of their own.
    encoder: AtomicBool,
    rules: SharedRules,
    /// The engines' `--reasoning-effort-map`.
    efforts: Arc<EffortMap>,
    /// The engines' offset from UTC, in seconds.
    utc_offset_s: Option<i32>,
    /// The engines' models that are no adapters.
    base_models: ArcSwap<BaseModels>,
    /// So many dear bodies at once: one per core.
    aside: Arc<Semaphore>,
}

impl Prompts {
    /// Tokens by `source`; local ones count only once they are [`Trust::Proven`]. `utc_offset_s` is
    /// the engines', in seconds, if it is known.
    pub fn new(source: Source, utc_offset_s: Option<i32>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            source,
            texts: AtomicU8::new(Trust::Unproven as u8),
            chats: AtomicU8::new(Trust::Unproven as u8),
            naming: ArcSwapOption::empty(),
            engine_block_tokens: AtomicUsize::new(0),
            encoder: AtomicBool::new(false),
            rules: SharedRules::new(Rules::ANY_EDITION),
            efforts: Arc::default(),
            utc_offset_s,
            base_models: ArcSwap::default(),
            aside: Arc::new(Semaphore::new(cores)),
        }
    }

    /// With the engines' `--reasoning-effort-map`, for questions to them.
    #[must_use]
    pub fn with_efforts(mut self, efforts: EffortMap) -> Self {
        self.efforts = Arc::new(efforts);
        self
    }

    /// Sets the engines' models that are no adapters.
    pub fn set_base_models(&self, models: BaseModels) {
        if **self.base_models.load() != models {
            self.base_models.store(Arc::new(models));
        }
    }

    /// True if a prompt of so many tokens for this model, `None` for the engines' default, may be
    /// sent as tokens. One for an adapter may have tokens of its own there. One that no engine has
    /// room for is refused in other words than its text.
    pub fn may_send_ids(&self, model: Option<&str>, tokens: usize) -> bool {
        let models = self.base_models.load();
        let has_room = models.context_tokens.is_none_or(|context| tokens as u64 <= context);
        has_room && model.is_none_or(|model| models.names.iter().any(|name| name == model))
    }

    /// The engines' `--reasoning-effort-map`.
    pub fn efforts(&self) -> &EffortMap {
        &self.efforts
    }

    /// The local tokenizer and template, if they are in use.
    pub fn local(&self) -> Option<&Arc<Prompter>> {
        self.source.local()
    }

    /// True if an engine is asked for tokens that are not known here.
    pub fn asks_engines(&self) -> bool {
        self.source.asks_engines()
    }

    /// Trust in local tokens of requests of this API.
    pub fn trust_in(&self, api: Api) -> Trust {
        let trust = match api {
            Api::Completions | Api::Generate => &self.texts,
            Api::Chat | Api::Responses | Api::Messages => &self.chats,
        };
        match trust.load(Ordering::Relaxed) {
            1 => Trust::Proven,
            2 => Trust::Refuted,
            _ => Trust::Unproven,
        }
    }

    /// True if local tokens count, whatever the API.
    pub fn is_proven(&self) -> bool {
        [Api::Completions, Api::Chat].iter().all(|api| self.trust_in(*api) == Trust::Proven)
    }

    /// Sets the trust in local tokens of all requests.
    pub fn set_trust(&self, trust: Trust) {
        self.set_trusts(trust, trust);
    }

    /// Sets the trust in those of texts that are prompts as they are, and in those of chats.
    pub fn set_trusts(&self, texts: Trust, chats: Trust) {
        self.texts.store(texts as u8, Ordering::Relaxed);
        self.chats.store(chats as u8, Ordering::Relaxed);
    }

    /// BlockNaming of blocks; `None` while it is not known, or contradicted.
    pub fn naming(&self) -> Option<Arc<BlockNaming>> {
        self.naming.load_full()
    }

    /// Sets what [`naming`](Self::naming) answers.
    pub fn set_naming(&self, naming: Option<BlockNaming>) {
        self.naming.store(naming.map(Arc::new));
    }

    /// Tokens of the engines' blocks, whether or not these can be named.
    pub fn engine_block_tokens(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(self.engine_block_tokens.load(Ordering::Relaxed))
    }

    /// Sets what [`engine_block_tokens`](Self::engine_block_tokens) answers.
    pub fn set_engine_block_tokens(&self, tokens: Option<u32>) {
        let tokens = tokens.map_or(0, |tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
        self.engine_block_tokens.store(tokens, Ordering::Relaxed);
    }

    /// Sets if engines encode this model's chats by code of their own: then no chat is exact,
    /// unless that code is followed here.
    pub fn set_chats_encoded_elsewhere(&self, is_so: bool) {
        self.encoder.store(is_so, Ordering::Relaxed);
    }

    /// From now on no chat is exact that depends on more than these rules, which all engines share.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.set(rules);
        self.local().iter().for_each(|prompter| prompter.set_rules(rules));
    }

    /// The engines' date; `None` when it is not known, or changes about now.
    pub fn today(&self) -> Option<Today> {
        let local =
            OffsetDateTime::now_utc().checked_add(time::Duration::seconds(self.utc_offset_s?.into()))?;
        let of_day_s =
            u32::from(local.hour()) * 3600 + u32::from(local.minute()) * 60 + u32::from(local.second());
        if !(DOUBT_S..DAY_S - DOUBT_S).contains(&of_day_s) {
            return None;
        }
        let date = local.date();
        Some(Today { year: u16::try_from(date.year()).ok()?, month: date.month().into(), day: date.day() })
    }

    /// Counters of the local prefix cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.local().map(|prompter| prompter.cache_stats()).unwrap_or_default()
    }

    /// The prompt of a request; `engine` is asked where engines tokenise.
    pub async fn prompt(&self, api: Api, body: &Object, engine: Option<Endpoint>) -> Prompt {
        let is_followed = self.local().is_some_and(|prompter| !prompter.needs().is_empty());
        let is_chat = !matches!(api, Api::Completions | Api::Generate);
        if is_chat && self.encoder.load(Ordering::Relaxed) && !is_followed {
            return unknown(Reason::Encoder);
        }
        let is_proven = self.trust_in(api) == Trust::Proven;
        match &self.source {
            Source::Local(local) if is_proven => self.by_files(local, api, body).await,
            Source::Local(_) => {
                let refuted = self.trust_in(api) == Trust::Refuted;
                let doubt = if refuted { Reason::Refuted } else { Reason::Unproven };
                self.work(body, move |body, _| given(api, body, doubt)).await.unwrap_or_else(unknown)
            }
            Source::Engine(tokenizer) => self.by_engine(tokenizer, api, body, engine).await,
            Source::Either { local, engine: tokenizer } if is_proven => {
                let prompt = self.by_files(local, api, body).await;
                if !prompt.reason().is_some_and(engine_may_know) {
                    return prompt;
                }
                let told = self.by_engine(tokenizer, api, body, engine).await;
                // A beginning is better than nothing.
                if told.is_exact() || prompt.tokens.is_empty() { told } else { prompt }
            }
            Source::Either { engine: tokenizer, .. } => self.by_engine(tokenizer, api, body, engine).await,
        }
    }

    /// The prompt of a request by the gateway's own tokenizer.
    async fn by_files(&self, local: &Arc<Prompter>, api: Api, body: &Object) -> Prompt {
        let (prompter, today) = (local.clone(), self.today());
        let read = move |body: &Object, stop: &Stop| prompter.prompt_until(api, body, today, stop);
        self.work(body, read).await.unwrap_or_else(unknown)
    }

    /// The prompt of a request by an engine's `/tokenize`.
    async fn by_engine(
        &self,
        tokenizer: &EngineTokenizer,
        api: Api,
        body: &Object,
        engine: Option<Endpoint>,
    ) -> Prompt {
        let asked = async {
            let engine = engine.ok_or(Reason::EngineUnreachable)?;
            let (rules, efforts) = (self.rules.now(), self.efforts.clone());
            let question = move |body: &Object, _: &Stop| tokenize_request_under(api, body, rules, &efforts);
            let question = self.work(body, question).await??;
            tokenizer.answer(&engine, question, quarter()).await
        };
        asked.await.map_or_else(unknown, exact)
    }

    /// Runs `read` on the body: here, or beside the runtime if it is dear. It is told to stop when
    /// nobody waits for it.
    ///
    /// # Errors
    /// [`Reason::Limit`] if that takes too long.
    async fn work<T: Send + 'static>(
        &self,
        body: &Object,
        read: impl FnOnce(&Object, &Stop) -> T + Send + 'static,
    ) -> Result<T, Reason> {
        let left = StopOnDrop(Stop::default());
        if !is_dear(body.bytes()) {
            return Ok(read(body, &left.0));
        }
        // Closed never, so what is missing is time.
        let place = timeout(PLACE_TIME, self.aside.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(Reason::Limit) };
        // Bytes and spans: the copy shares the text.
        let (body, stop) = (body.clone(), left.0.clone());
        let work = tokio::task::spawn_blocking(move || {
            // It belongs to the work, which ends a little later than who waits for it.
            let _place = place;
            read(&body, &stop)
        });
        timeout(WORK_TIME, work).await.map_err(|_| Reason::Limit)?.map_err(|_| Reason::Tokenizer)
    }
}

/// True if a body is long, or of many values.
fn is_dear(body: &[u8]) -> bool {
    body.len() > ASIDE_BYTES || memchr::memchr_iter(b'"', body).count() > ASIDE_QUOTES
}

/// A request that leaves, or has waited long enough, ends what was begun for it.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.now();
    }
}

/// Token ids that the client brought need no proof.
fn given(api: Api, body: &Object, doubt: Reason) -> Prompt {
    let brought = matches!(api, Api::Completions | Api::Generate)
        .then(|| PromptSource::read(api, body))
        .and_then(Result::ok);
    match (brought, most_tokens(body)) {
        (Some(PromptSource::TokenIds(ids)), Ok(most)) if most.is_none_or(|most| ids.len() <= most) => {
            exact(ids)
        }
        _ => unknown(doubt),
    }
}

/// Quarters of an hour since 1970: dates change between two of them, in every time zone.
fn quarter() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or(0) / QUARTER_S
}

impl fmt::Debug for Prompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.source.local().is_some();
        f.debug_struct("Prompts")
            .field("local", &local)
            .field("proven", &self.is_proven())
            .finish_non_exhaustive()
    }
}

fn exact(tokens: Arc<[u32]>) -> Prompt {
    Prompt { tokens, exactness: Exactness::Exact }
}

fn unknown(reason: Reason) -> Prompt {
    Prompt { tokens: Arc::default(), exactness: Exactness::Inexact(reason) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;
    use crate::codec::json::ScanLimits;
    use crate::prompt::PrefixCache;

    fn object(text: String) -> Object {
        Object::scan(Bytes::from(text), ScanLimits::default()).unwrap()
    }

    #[tokio::test]
    async fn local_tokens_count_when_they_are_proven_and_the_clients_own_always() {
        let prompts =
            Prompts::new(Source::Local(Arc::new(Prompter::new(None, None, PrefixCache::off()))), None);
        let text = object(r#"{"prompt":"a"}"#.to_owned());
        let ids = object(r#"{"prompt":[1,2]}"#.to_owned());
        let reason = async |body: &Object| prompts.prompt(Api::Completions, body, None).await.exactness;
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::Unproven));
        assert_eq!(reason(&ids).await, Exactness::Exact);
        prompts.set_trust(Trust::Proven);
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::NoTokenizer));
        prompts.set_trusts(Trust::Proven, Trust::Refuted);
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::NoTokenizer), "chats alone are refuted");
        assert!(prompts.trust_in(Api::Chat) == Trust::Refuted && !prompts.is_proven());
        prompts.set_trust(Trust::Refuted);
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::Refuted));
        assert_eq!(reason(&ids).await, Exactness::Exact);
    }

    #[tokio::test]
    async fn large_bodies_are_read_beside_the_runtime_with_the_same_result() {
        let prompts =
            Prompts::new(Source::Local(Arc::new(Prompter::new(None, None, PrefixCache::off()))), None);
        prompts.set_trust(Trust::Proven);
        let ids: Vec<u32> = (0..100_000).collect();
        let body = object(format!(r#"{{"prompt":{ids:?}}}"#));
        assert!(body.bytes().len() > ASIDE_BYTES);
        let prompt = prompts.prompt(Api::Completions, &body, None).await;
        assert_eq!((&prompt.tokens[..], prompt.exactness), (&ids[..], Exactness::Exact));
    }

    fn large() -> (Arc<Prompts>, Object) {
        let prompts =
            Prompts::new(Source::Local(Arc::new(Prompter::new(None, None, PrefixCache::off()))), None);
        prompts.set_trust(Trust::Proven);
        let ids: Vec<u32> = (0..100_000).collect();
        (Arc::new(prompts), object(format!(r#"{{"prompt":{ids:?}}}"#)))
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_do_not_delay_others_for_long() {
        let (prompts, body) = large();
        let places = prompts.aside.available_permits();
        let others = prompts.aside.clone().acquire_many_owned(places as u32).await.unwrap();
        let began = tokio::time::Instant::now();
        let prompt = prompts.prompt(Api::Completions, &body, None).await;
        assert_eq!((prompt.exactness, began.elapsed()), (Exactness::Inexact(Reason::Limit), PLACE_TIME));
        drop(others);
        assert_eq!(prompts.prompt(Api::Completions, &body, None).await.exactness, Exactness::Exact);
    }

    #[tokio::test]
    async fn a_client_that_leaves_gives_its_place_in_line_back() {
        let (prompts, body) = large();
        let places = prompts.aside.available_permits();
        let others = prompts.aside.clone().acquire_many_owned(places as u32).await.unwrap();
        assert!(prompts.prompt(Api::Completions, &body, None).now_or_never().is_none());
        drop(others);
        assert_eq!(prompts.aside.available_permits(), places);
    }

    #[tokio::test(start_paused = true)]
    async fn many_messages_are_read_beside_the_runtime_as_a_long_one_is() {
        let (prompts, _) = large();
        let chat = |count: usize, text: &str| {
            let message = format!(r#"{{"role":"user","content":"{text}"}}"#);
            object(format!(r#"{{"messages":[{}]}}"#, vec![message; count].join(",")))
        };
        let places = prompts.aside.available_permits();
        let _others = prompts.aside.clone().acquire_many_owned(places as u32).await.unwrap();
        for (body, reason) in [
            (chat(600, "a"), Reason::Limit),
            (chat(1, &"a".repeat(256 << 10)), Reason::Limit),
            (chat(1, &"a".repeat(255 << 10)), Reason::NoTokenizer),
            (chat(500, "a"), Reason::NoTokenizer),
        ] {
            let prompt = prompts.prompt(Api::Chat, &body, None).await;
            assert_eq!(prompt.exactness, Exactness::Inexact(reason), "{} bytes", body.bytes().len());
        }
    }

    /// A body's work that ends when it is told to, and says then that it was told.
    async fn begun(prompts: Arc<Prompts>, body: Object, ended: tokio::sync::oneshot::Sender<bool>) -> Reason {
        let read = move |_: &Object, stop: &Stop| {
            let long = std::time::Instant::now() + 10 * WORK_TIME;
            while !stop.is_told() && std::time::Instant::now() < long {
                std::thread::yield_now();
            }
            ended.send(stop.is_told())
        };
        prompts.work(&body, read).await.err().unwrap()
    }

    #[tokio::test]
    async fn work_that_was_begun_for_a_client_that_left_ends() {
        let (prompts, body) = large();
        let (sender, ended) = tokio::sync::oneshot::channel();
        assert!(begun(prompts.clone(), body, sender).now_or_never().is_none());
        assert_eq!(ended.await, Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_takes_too_long_is_not_waited_for() {
        let (prompts, body) = large();
        let (sender, ended) = tokio::sync::oneshot::channel();
        // A clock that stands still goes on by itself only while nothing is at work beside the
        // runtime.
        let (reason, ()) =
            tokio::join!(begun(prompts.clone(), body, sender), tokio::time::advance(2 * WORK_TIME));
        assert_eq!((reason, ended.await), (Reason::Limit, Ok(true)));
    }
}
