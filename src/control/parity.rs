//! Looking at the engines again and again: are our tokens theirs, and do their facts and the
//! configuration agree?
//!
//! Nothing that is found here stops the gateway once it serves. Facts in doubt are not used:
//! without naming or proven tokens, requests are routed by load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use http::HeaderValue;

use crate::config::Config;
use crate::control::findings::{Doubt, Finding, Findings, TokenTrust};
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, Role};
use crate::naming_config::{self, Published, Trouble};
use crate::obs::Meters;
use crate::prompt::{Rules, Topics};
use crate::tokenization::{
    Asker, BaseModels, ComparedEngine, EngineRules, Facts, Parity, Prompts, TopicsSeen, Trust, Verdict,
    compare, compare_routes, facts,
};
use crate::util::swap::Live;

/// The longest that the start waits for comparisons: several times what engines take that are not
/// overloaded. The others are compared later.
const START_TIME: Duration = Duration::from_secs(3);

/// Compares the gateway with the engines.
pub struct ParityChecker {
    config: Config,
    handles: ParityHandles,
    seen: Observations,
}

/// Parts of the gateway that are compared with the engines, and learn the outcome.
#[derive(Clone, Debug)]
pub struct ParityHandles {
    /// Engines that are asked.
    pub fleet: Arc<Fleet>,
    /// Reader of prompts, which is told if its tokens are theirs, and how blocks are named.
    pub prompts: Arc<Prompts>,
    /// The client for tokenizing, with its limits.
    pub asker: Asker,
    /// Limit for a question about an engine's facts.
    pub time: Arc<Live<Duration>>,
    /// Metrics of the comparisons.
    pub meters: Arc<Meters>,
    /// True if a pool or KV events are asked by the names of blocks.
    pub needs_names: bool,
}

/// Facts that are known of the engines. They are kept while engines are away.
#[derive(Default)]
struct Observations {
    facts: BTreeMap<Endpoint, Facts>,
    /// Those that answered in the last round.
    present: BTreeSet<Endpoint>,
    /// Outcomes of the comparisons.
    findings: Findings,
    /// Topics of chats that they were asked about.
    topics: BTreeMap<Endpoint, TopicsSeen>,
    /// Restarts of each when it was asked last.
    restarts: BTreeMap<Endpoint, u32>,
    /// Tokens of the blocks that were named last.
    block_tokens: Option<usize>,
    /// Reason why an engine is not compared, as it was logged last, to log changes only.
    doubts: BTreeMap<Endpoint, String>,
    /// The last line logged about naming, so that only changes are logged.
    naming: Option<String>,
}

impl Observations {
    /// Forgets what comparing with an engine showed, whose process is another one.
    fn forget_comparison(&mut self, engine: &Endpoint) {
        self.topics.remove(engine);
        self.findings.doubt(engine, Doubt::Restarted);
    }
}

impl ParityChecker {
    /// Nothing is asked yet.
    pub fn new(config: &Config, handles: ParityHandles) -> Self {
        if !config.prompt.verify {
            handles.prompts.set_trust(Trust::Proven);
        }
        Self { config: config.clone(), handles, seen: Observations::default() }
    }

    /// One look at all engines, before the gateway serves: some seconds at most. Engines that are
    /// not up yet are no trouble, nor are those that contradict each other, as they do while they
    /// are upgraded one by one.
    ///
    /// # Errors
    /// The fact in which the configuration and an engine contradict each other.
    pub async fn check_at_start(&mut self) -> Result<(), Trouble> {
        self.fetch_facts().await;
        if let Err(trouble) = self.update_naming()
            && trouble.is_configured()
        {
            return Err(trouble);
        }
        if tokio::time::timeout(START_TIME, self.compare_tokens()).await.is_err() {
            let fleet = self.handles.fleet.log_name();
            tracing::warn!(
                fleet,
                "the engines are slow to tokenise: our tokens are compared with theirs later"
            );
        }
        Ok(())
    }

    /// Repeats the checks for ever, and at once when an engine has restarted.
    pub async fn run(mut self) {
        let pause = Duration::from_millis(self.config.prompt.verify_interval_ms);
        let mut restarts = self.handles.fleet.watch_restarts();
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = restarts.changed() => {}
            }
            self.fetch_facts().await;
            // The error is logged; the next round may find it fixed.
            let _ = self.update_naming();
            self.compare_tokens().await;
            let cache = self.handles.prompts.cache_stats();
            self.handles.meters.prompt_cache(cache.hits, cache.misses);
        }
    }

    /// The prefillers: they compute what the pool holds.
    fn engines(&self) -> Vec<Endpoint> {
        let members = self.handles.fleet.members(Role::Prefill);
        members.iter().filter(|engine| !engine.draining()).map(|engine| engine.endpoint().clone()).collect()
    }

    async fn fetch_facts(&mut self) {
        let engines = self.engines();
        self.note_restarts();
        self.seen.facts.retain(|engine, _| engines.contains(engine));
        self.seen.findings.retain(&engines);
        self.seen.topics.retain(|engine, _| engines.contains(engine));
        self.seen.doubts.retain(|engine, _| engines.contains(engine));
        self.seen.present.retain(|engine| engines.contains(engine));
        let authorization: Option<&HeaderValue> = self.handles.asker.authorization.as_ref();
        let time = *self.handles.time.now();
        let asked = engines
            .iter()
            .map(|engine| facts::fetch(&self.handles.asker.client, engine, authorization, time));
        for (engine, answer) in engines.iter().zip(join_all(asked).await) {
            match answer {
                Ok(facts) => {
                    let facts = match self.seen.facts.get(engine) {
                        Some(before) => facts.or_before(before),
                        None => facts,
                    };
                    self.record_facts(engine, &facts);
                    let before = self.seen.facts.get(engine);
                    if before.is_some_and(|before| before.version != facts.version) {
                        // Upgraded between two looks: what it is now has yet to be compared.
                        self.seen.forget_comparison(engine);
                    }
                    self.seen.facts.insert(engine.clone(), facts);
                    self.seen.present.insert(engine.clone());
                }
                Err(error) => {
                    tracing::debug!(%engine, %error, "not asked");
                    self.seen.present.remove(engine);
                    // It may come back with other files.
                    self.seen.findings.doubt(engine, Doubt::Away);
                }
            }
        }
        self.handles.prompts.set_engine_block_tokens(self.engines_block_tokens());
        self.handles.prompts.set_base_models(self.base_models());
        let encodes = self.seen.facts.values().any(Facts::encodes_chats_itself);
        self.handles.prompts.set_chats_encoded_elsewhere(encodes);
        self.update_rules();
        if self.config.prompt.verify {
            self.trust_by_findings();
        }
    }

    /// Decides what of a chat engines read as it is done here. Without comparing, the files and the
    /// engines are trusted in all but their edition.
    fn update_rules(&self) {
        let of = |(engine, facts): (&Endpoint, &Facts)| {
            facts.rules().after(self.seen.topics.get(engine).copied().unwrap_or_default())
        };
        let shared = self.seen.facts.iter().map(of).reduce(Rules::shared_with);
        let shared = shared.unwrap_or(Rules::EVERY_RELEASE);
        let topics = if self.config.prompt.verify { shared.topics } else { Topics::ALL };
        self.handles.prompts.set_rules(Rules { topics, ..shared });
    }

    /// The engines' models that are no adapters.
    fn base_models(&self) -> BaseModels {
        let models = self.seen.facts.values().flat_map(|facts| &facts.models);
        let models = || models.clone().filter(|model| model.parent.is_none());
        let names: BTreeSet<String> = models().map(|model| model.id.clone()).collect();
        let context_tokens = models().filter_map(|model| model.max_model_len).min();
        BaseModels { names: names.into_iter().collect(), context_tokens }
    }

    /// Tokens of the engines' blocks, the largest where they differ: who has smaller ones finds no
    /// less than is predicted.
    fn engines_block_tokens(&self) -> Option<u32> {
        let told = self.seen.facts.values().filter_map(|facts| facts.cache.as_ref().ok()?.as_ref());
        told.filter_map(|cache| cache.block_tokens).max()
    }

    /// Forgets what engines said that have restarted since: theirs may be another release, block
    /// size or model.
    fn note_restarts(&mut self) {
        let members = self.handles.fleet.members(Role::Prefill);
        self.seen.restarts.retain(|engine, _| members.iter().any(|it| it.endpoint() == engine));
        for member in members.iter().filter(|it| !it.draining()) {
            let engine = member.endpoint();
            let before = self.seen.restarts.insert(engine.clone(), member.restarts());
            if before.is_some_and(|before| before != member.restarts()) {
                self.seen.facts.remove(engine);
                self.seen.forget_comparison(engine);
            }
        }
    }

    /// Decides how blocks are named.
    fn update_naming(&mut self) -> Result<(), Trouble> {
        // Facts of an engine out of reach count only if all are out of reach.
        let counts = |engine: &Endpoint| self.seen.present.is_empty() || self.seen.present.contains(engine);
        let published: Vec<Published> = self
            .seen
            .facts
            .iter()
            .filter(|(engine, _)| counts(engine))
            .map(|(engine, facts)| Published { engine: engine.clone(), facts: facts.clone() })
            .collect();
        let named = naming_config::naming(&self.config, &published);
        let said = named.as_ref().err().map(ToString::to_string);
        let news = said != self.seen.naming || (said.is_none() && self.handles.prompts.naming().is_none());
        self.seen.naming = said;
        if self.handles.needs_names {
            self.handles.meters.block_names_known(named.is_ok());
        }
        let fleet = self.handles.fleet.log_name();
        match named {
            Ok(naming) => {
                let block_tokens = naming.hasher.block_tokens().get();
                if news {
                    tracing::info!(fleet, block_tokens, pool = naming.keys.is_some(), "blocks can be named");
                }
                if let Some(before) =
                    self.seen.block_tokens.replace(block_tokens).filter(|it| *it != block_tokens)
                {
                    tracing::warn!(
                        fleet,
                        block_tokens,
                        before,
                        "blocks have {block_tokens} tokens now, and had {before}: what was stored under their names is not found any more"
                    );
                }
                self.handles.prompts.set_naming(Some(naming));
                Ok(())
            }
            Err(trouble) => {
                self.handles.prompts.set_naming(None);
                let waits = trouble.may_pass();
                match (news, waits) {
                    (false, _) => {}
                    (true, true) => tracing::warn!(fleet, "blocks can't be named yet: {trouble}"),
                    (true, false) => tracing::error!(fleet, "blocks can't be named: {trouble}"),
                }
                if waits { Ok(()) } else { Err(trouble) }
            }
        }
    }

    /// Compares the gateway's tokens with each engine that was not compared yet, or may be another
    /// process since.
    async fn compare_tokens(&mut self) {
        let verify = self.config.prompt.verify;
        if verify && self.handles.prompts.local().is_none() {
            return self.compare_newer_engines().await;
        }
        let (true, Some(prompter)) = (verify, self.handles.prompts.local().cloned()) else {
            return;
        };
        let known: Vec<(Endpoint, Option<String>, EngineRules)> = self
            .seen
            .facts
            .iter()
            .filter(|(engine, _)| self.seen.findings.is_due(engine))
            .map(|(engine, facts)| {
                (engine.clone(), facts.models.first().map(|model| model.id.clone()), facts.rules())
            })
            .collect();
        // All are compared at once, and each is recorded when it is done, so that one that hangs
        // does not delay the others.
        let (asker, prompter, today) = (self.handles.asker.clone(), &prompter, self.handles.prompts.today());
        let mut comparing: FuturesUnordered<_> = known
            .iter()
            .map(|(engine, model, rules)| {
                let (asker, rules) = (&asker, rules.compared());
                let of = ComparedEngine { engine, model: model.as_deref(), rules };
                async move { (engine, compare(asker, of, prompter, today).await) }
            })
            .collect();
        while let Some((engine, parity)) = comparing.next().await {
            self.record_parity(engine, &parity);
        }
        self.update_rules();
    }

    /// Looks at what engines of unknown newer releases make of the topics, for a gateway that has
    /// no tokenizer of its own.
    async fn compare_newer_engines(&mut self) {
        let seen = &self.seen;
        let newer = seen.facts.iter().filter(|(engine, _)| !seen.topics.contains_key(engine));
        let newer = newer.filter(|(_, facts)| matches!(facts.rules(), EngineRules::Newer(_)));
        let (asker, efforts) = (&self.handles.asker, self.handles.prompts.efforts());
        let asked = newer.map(|(engine, facts)| async move {
            let model = facts.models.first().map(|model| model.id.as_str());
            let compared = ComparedEngine { engine, model, rules: facts.rules().compared() };
            (engine.clone(), compare_routes(asker, compared, efforts).await)
        });
        for (engine, topics) in join_all(asked).await {
            if let Some(topics) = topics {
                self.seen.topics.insert(engine, topics);
            }
        }
        self.update_rules();
    }

    /// Takes over facts of an engine other than those about block names.
    fn record_facts(&mut self, engine: &Endpoint, facts: &Facts) {
        let uncached = matches!(&facts.cache, Ok(Some(cache)) if cache.prefix_caching == Some(false));
        if uncached && !self.seen.facts.contains_key(engine) {
            tracing::warn!(%engine, "it has prefix caching off: it will not use blocks again");
        }
    }

    fn record_parity(&mut self, engine: &Endpoint, parity: &Parity) {
        let (compared, skipped) = (parity.compared, &parity.skipped);
        self.handles.meters.parity(parity.verdict.name());
        match &parity.verdict {
            Verdict::Same => {
                if self.seen.findings.record(engine, Finding::Same) {
                    tracing::info!(%engine, compared, ?skipped, "our tokens are the engine's");
                }
                let before = self.seen.topics.insert(engine.clone(), parity.topics);
                let unseen = parity.topics.unseen_chats();
                if !unseen.is_empty() && before != Some(parity.topics) {
                    tracing::warn!(%engine, "{unseen}; chats are routed by load while this engine is there");
                }
                if let Some(difference) = parity.topical.filter(|_| before != Some(parity.topics)) {
                    let (topics, cause) = (parity.topics.names(), parity.topics.likely_cause());
                    tracing::warn!(
                        %engine, topics,
                        "{difference}{cause} Chats with these topics are routed by load while this engine is there"
                    );
                }
                self.seen.doubts.remove(engine);
            }
            Verdict::Different(difference) => {
                let finding = Finding::of(difference, compared.saturating_sub(1));
                if self.seen.findings.record(engine, finding) {
                    let what = if finding == Finding::OtherChats { "Chats" } else { "Prompts" };
                    match self.handles.prompts.asks_engines() {
                        true => tracing::error!(
                            %engine, compared,
                            "{difference} {what} are tokenised by engines until the engine is restarted with other files, or the gateway is"
                        ),
                        false => tracing::error!(
                            %engine, compared,
                            "{difference} {what} are routed by load until the engine is restarted with other files, or the gateway is"
                        ),
                    }
                }
                self.seen.doubts.remove(engine);
            }
            Verdict::Untested => {
                let why = "our tokens can't be compared with the engine's".to_owned();
                self.log_doubt(engine, why, &parity.skipped);
            }
            Verdict::Unknown(why) => {
                let why = format!("our tokens are not compared yet: {why}");
                self.log_doubt(engine, why, &parity.skipped);
            }
        }
        self.trust_by_findings();
    }

    fn trust_by_findings(&self) {
        let prompts = &self.handles.prompts;
        let before =
            TokenTrust { texts: prompts.trust_in(Api::Completions), chats: prompts.trust_in(Api::Chat) };
        let TokenTrust { texts, chats } = self.seen.findings.trust(before);
        prompts.set_trusts(texts, chats);
        if prompts.local().is_some() {
            self.handles.meters.tokens_proven(prompts.is_proven());
        }
    }

    /// Logs why an engine is not compared, once for each reason.
    fn log_doubt(&mut self, engine: &Endpoint, why: String, skipped: &BTreeMap<&'static str, usize>) {
        if self.seen.doubts.get(engine) != Some(&why) {
            tracing::warn!(%engine, ?skipped, "{why}");
            self.seen.doubts.insert(engine.clone(), why);
        }
    }
}
