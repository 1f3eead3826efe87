//! Wiring of `[events]`: one watch for each rank of each prefiller, as they come and go, and of
//! each decoder that tells where it publishes, or is listed.
//!
//! An instance that left is removed from the index. One that is only out of reach keeps its blocks
//! for a while, and one that restarted begins empty; the watch itself does both. Each process is
//! asked where it publishes before it is listened to, and asked again while it is not heard.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Events;
use crate::control::dialect_detect::SignClient;
use crate::control::event_sources::{Member, Publishers};
use crate::dialect::event_sources::{self, ToldPublisher};
use crate::fleet::{Fleet, Instance, InstanceId, Role};
use crate::obs::events::{RankMeter, RankState};
use crate::pool::events::index::{BlockIndex, IndexLimits, MAX_HOLDERS};
use crate::pool::events::status::{Count, State, Status};
use crate::pool::events::watch::{SharedIndex, Source, Times, Watch};
use crate::tokenization::Prompts;

/// Pause between comparisons with the fleet and updates of the metrics.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between two questions to a prefiller that did not answer, or whose events don't come.
const ASK_PAUSE: Duration = Duration::from_secs(2);
/// Prefillers that are asked at a time.
const AT_ONCE: usize = 32;

/// An empty index of KV events with the limits of its section.
pub fn index(events: &Events) -> SharedIndex {
    let limits = IndexLimits { holders: MAX_HOLDERS, blocks: events.blocks };
    Arc::new(RwLock::new(BlockIndex::new(limits)))
}

/// A role whose engines are listened to, and what they told.
#[derive(Clone, Debug)]
pub struct FollowedRole {
    /// Prefillers, or decoders.
    pub role: Role,
    /// Blocks that they told of.
    pub index: SharedIndex,
}

/// Follows the engines of one role of a fleet.
#[derive(Debug)]
pub struct KvEventSubscriptions {
    role: Role,
    publishers: Publishers,
    fleet: Arc<Fleet>,
    prompts: Arc<Prompts>,
    index: SharedIndex,
    subscriptions: HashMap<InstanceId, Subscription>,
    watches: JoinSet<()>,
    client: SignClient,
    questions: HashMap<InstanceId, Question>,
    answers: JoinSet<PublisherAnswer>,
}

/// Question to one process of a prefiller, where it publishes.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// Restarts of the engine when it was asked.
    restarts: u32,
    /// Time of the last answer, or of the failure to get one; `None` while it is awaited.
    ended: Option<Instant>,
    is_answered: bool,
}

/// An engine's answer to where it publishes.
#[derive(Debug)]
struct PublisherAnswer {
    engine: InstanceId,
    word: PublisherWord,
}

/// An engine's word on its publishers.
#[derive(Debug)]
enum PublisherWord {
    /// It did not answer, or is not ready to.
    Silence,
    /// It knows no such question, or does not answer the gateway.
    Unknown,
    Told(Vec<ToldPublisher>),
}

/// The watches of one prefiller. Dropping it ends them.
#[derive(Debug)]
struct Subscription {
    ranks: Vec<Rank>,
    sources: Vec<Source>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Rank {
    role: Role,
    instance: Arc<str>,
    status: Arc<Status>,
    meter: RankMeter,
    /// The differing block size, in tokens, that was last logged; 0 if its blocks have the size of
    /// the hashes.
    odd_tokens: u32,
}

impl KvEventSubscriptions {
    /// Creates it without subscriptions. It follows the engines of a role of `fleet`, and compares
    /// their blocks with those that `prompts` names; `client` asks them.
    pub fn new(
        events: &Events,
        fleet: Arc<Fleet>,
        prompts: Arc<Prompts>,
        FollowedRole { role, index }: FollowedRole,
        client: SignClient,
    ) -> KvEventSubscriptions {
        KvEventSubscriptions {
            role,
            publishers: Publishers::new(events),
            fleet,
            prompts,
            index,
            subscriptions: HashMap::new(),
            watches: JoinSet::new(),
            client,
            questions: HashMap::new(),
            answers: JoinSet::new(),
        }
    }

    /// Follows the fleet for ever; dropped, all watches end.
    pub async fn run(mut self) {
        loop {
            self.take_answers();
            self.sync_with_fleet();
            self.show();
            while let Some(ended) = self.watches.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "a listener to KV events failed");
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Shows the state of the subscriptions in the metrics, and odd ones in the log.
    fn show(&mut self) {
        let naming = self.prompts.naming();
        for rank in self.subscriptions.values_mut().flat_map(|it| &mut it.ranks) {
            rank.show();
            if let Some(naming) = &naming {
                rank.compare(naming.engine_hasher().block_tokens().get());
            }
        }
    }

    /// Subscribes to new prefillers, and ends the subscriptions of those that left. One that drains
    /// still counts: it may come back.
    fn sync_with_fleet(&mut self) {
        let members = self.followed();
        self.subscriptions.retain(|id, subscriptions| {
            let stays = members.iter().any(|member| member.id() == *id);
            if !stays {
                // Its last events count.
                subscriptions.ranks.iter_mut().for_each(Rank::show);
            }
            stays
        });
        self.questions.retain(|id, _| members.iter().any(|member| member.id() == *id));
        for member in members.iter() {
            if !self.publishers.lists(member.endpoint()) {
                self.ask_if_due(member);
            } else if !self.subscriptions.contains_key(&member.id()) {
                self.follow(member, None);
            }
        }
    }

    /// Engines of the role. What is a prefiller, too, is listened to as that.
    fn followed(&self) -> Vec<Arc<Instance>> {
        let mut members = self.fleet.members(self.role).to_vec();
        if self.role != Role::Prefill {
            let prefillers = self.fleet.members(Role::Prefill);
            members.retain(|it| !prefillers.iter().any(|other| other.endpoint() == it.endpoint()));
        }
        members
    }

    /// Asks a prefiller where it publishes, if its process was not asked yet, or is not heard.
    fn ask_if_due(&mut self, member: &Arc<Instance>) {
        let (id, restarts) = (member.id(), member.restarts());
        let is_heard = self.subscriptions.get(&id).is_some_and(Subscription::is_heard);
        let is_due = self.questions.get(&id).is_none_or(|it| {
            let may_again = it.restarts != restarts || it.ended.is_some_and(|at| at.elapsed() >= ASK_PAUSE);
            it.ended.is_some() && may_again && !(it.is_answered && it.restarts == restarts && is_heard)
        });
        if !is_due || self.answers.len() >= AT_ONCE {
            return;
        }
        self.questions.insert(id, Question { restarts, ended: None, is_answered: false });
        let (client, endpoint) = (self.client.clone(), member.endpoint().clone());
        self.answers.spawn(async move {
            let word = match client.ask_event_sources(&endpoint).await {
                None => PublisherWord::Silence,
                Some((status, _)) if status.is_server_error() => PublisherWord::Silence,
                Some((status, body)) if status == StatusCode::OK => {
                    event_sources::read(&body).map_or(PublisherWord::Unknown, PublisherWord::Told)
                }
                Some(_) => PublisherWord::Unknown,
            };
            PublisherAnswer { engine: id, word }
        });
    }

    /// Follows the engines that have answered. Without an answer there is nobody to listen to, and
    /// what was listened to stays.
    fn take_answers(&mut self) {
        while let Some(Ok(PublisherAnswer { engine, word })) = self.answers.try_join_next() {
            let Some(question) = self.questions.get_mut(&engine) else { continue };
            let is_answered = !matches!(word, PublisherWord::Silence);
            (question.ended, question.is_answered) = (Some(Instant::now()), is_answered);
            let members = self.followed();
            let Some(member) = members.iter().find(|it| it.id() == engine) else { continue };
            match word {
                PublisherWord::Silence => {}
                PublisherWord::Unknown => self.follow(member, None),
                PublisherWord::Told(told) => self.follow(member, Some(&told)),
            }
        }
    }

    /// Listens to a prefiller where it told, or where it is configured to publish; anew only if
    /// that changed.
    fn follow(&mut self, member: &Instance, told: Option<&[ToldPublisher]>) {
        let is_listed = self.publishers.lists(member.endpoint());
        let is_told = told.is_some_and(|told| !told.is_empty());
        // Decoders publish if somebody wants it: where they do not say, nobody does.
        if self.role != Role::Prefill && !is_listed && !is_told {
            return;
        }
        let name: Arc<str> = member.endpoint().to_string().into();
        let place = Member { id: member.id(), endpoint: member.endpoint(), name: &name };
        let by_word =
            told.filter(|told| !told.is_empty()).map(|told| self.publishers.told_sources(place, told));
        let sources = by_word.clone().flatten().unwrap_or_else(|| self.publishers.sources(place));
        if self.subscriptions.get(&member.id()).is_some_and(|it| it.sources == sources) {
            return;
        }
        let (engine, role) = (&name, self.role.name());
        match by_word {
            Some(Some(_)) => {
                tracing::info!(%engine, role, at = shown(&sources), "tells where it publishes KV events")
            }
            Some(None) => {
                tracing::warn!(%engine, role, ?told, at = shown(&sources), "tells addresses of KV events that can't be reached from here: those that are configured count")
            }
            None if told.is_some() => {
                tracing::warn!(%engine, role, "tells that it publishes no KV events: start it with --kv-events-config")
            }
            None if !self.subscriptions.contains_key(&member.id()) => {
                tracing::info!(%engine, role, at = shown(&sources), "does not tell where it publishes KV events: it is listened to where events.port or events.endpoints say")
            }
            None => {}
        }
        self.subscriptions.remove(&member.id());
        let subscription = self.subscribe(name, sources);
        self.subscriptions.insert(member.id(), subscription);
    }

    fn subscribe(&mut self, name: Arc<str>, sources: Vec<Source>) -> Subscription {
        let stop = CancellationToken::new();
        let listened: usize = self.subscriptions.values().map(|it| it.ranks.len()).sum();
        if listened + sources.len() > MAX_HOLDERS {
            tracing::warn!(engine = %name, role = self.role.name(), "more than {MAX_HOLDERS} ranks publish KV events: some are not counted");
        }
        let role = self.role;
        let ranks = sources.iter().cloned().map(|source| {
            let meter = RankMeter::new(&name, source.rank, &Count::ALL.map(Count::name));
            let watch = Watch::new(source, Times::default(), self.index.clone());
            let status = watch.status();
            watch.spawn(&mut self.watches, stop.clone());
            Rank { role, instance: name.clone(), status, meter, odd_tokens: 0 }
        });
        Subscription { ranks: ranks.collect(), sources, _stop: stop.clone().drop_guard() }
    }
}

impl Subscription {
    /// True if the engine's publishers are connected.
    fn is_heard(&self) -> bool {
        self.ranks.iter().all(|rank| rank.status.state() != State::Lost)
    }
}

/// Addresses for the log.
fn shown(sources: &[Source]) -> String {
    sources.iter().map(|it| it.events.to_string()).collect::<Vec<_>>().join(" ")
}

impl Rank {
    fn show(&mut self) {
        let state = RankState {
            connected: self.status.state() != State::Lost,
            complete: self.status.is_complete(),
            blocks: self.status.blocks(),
        };
        self.meter.show(state, Count::ALL.iter().map(|what| self.status.count(*what)));
    }

    /// Logs a block size other than that of the hashes: such blocks would never be found.
    fn compare(&mut self, hash_tokens: usize) {
        let event_tokens = self.status.block_tokens();
        let odd_tokens = if event_tokens as usize == hash_tokens { 0 } else { event_tokens };
        if odd_tokens != 0 && odd_tokens != self.odd_tokens {
            tracing::warn!(engine = %self.instance, role = self.role.name(), told_tokens = event_tokens, hash_tokens, "its KV events are of blocks of another size: they don't count");
        }
        self.odd_tokens = odd_tokens;
    }
}
