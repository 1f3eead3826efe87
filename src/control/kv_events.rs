//! Wiring of `[events]`: one watch for each rank of each prefiller, as they come and go.
//!
//! An instance that left is removed from the index. One that is only out of reach keeps its blocks
//! for a while, and one that restarted begins empty; the watch itself does both.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Events;
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, Instance, InstanceId, Role};
use crate::obs::events::{RankMeter, RankState};
use crate::pool::events::index::{BlockIndex, IndexLimits, MAX_HOLDERS};
use crate::pool::events::status::{Count, State, Status};
use crate::pool::events::watch::{SharedIndex, Source, Times, Watch};
use crate::pool::events::zmtp::Address;
use crate::tokenization::Prompts;

/// Pause between comparisons with the fleet and updates of the metrics.
const LOOK: Duration = Duration::from_millis(250);

/// An empty index of KV events with the limits of its section.
pub fn index(events: &Events) -> SharedIndex {
    let limits = IndexLimits { holders: MAX_HOLDERS, blocks: events.blocks };
    Arc::new(RwLock::new(BlockIndex::new(limits)))
}

/// Follows the prefillers of a fleet.
#[derive(Debug)]
pub struct KvEventSubscriptions {
    publishers: Publishers,
    fleet: Arc<Fleet>,
    prompts: Arc<Prompts>,
    index: SharedIndex,
    subscriptions: HashMap<InstanceId, Subscription>,
    watches: JoinSet<()>,
}

/// Addresses at which prefillers publish their events.
#[derive(Debug)]
struct Publishers {
    port: u16,
    replay_port: u16,
    ranks: u16,
    topic: Box<str>,
    /// Publishers of prefillers with addresses of their own.
    elsewhere: HashMap<Endpoint, Publisher>,
}

/// Address at which rank 0 of a prefiller publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Publisher {
    events: Address,
    engine_connects: bool,
    replay: Option<Address>,
}

/// The watches of one prefiller. Dropping it ends them.
#[derive(Debug)]
struct Subscription {
    ranks: Vec<Rank>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Rank {
    instance: Arc<str>,
    status: Arc<Status>,
    meter: RankMeter,
    /// The differing block size, in tokens, that was last logged; 0 if its blocks have the size of
    /// the hashes.
    odd_tokens: u32,
}

impl KvEventSubscriptions {
    /// Creates it without subscriptions. It follows the prefillers of `fleet`, writes into `index`,
    /// and compares their blocks with those that `prompts` names.
    pub fn new(
        events: &Events,
        fleet: Arc<Fleet>,
        prompts: Arc<Prompts>,
        index: SharedIndex,
    ) -> KvEventSubscriptions {
        KvEventSubscriptions {
            publishers: Publishers::new(events),
            fleet,
            prompts,
            index,
            subscriptions: HashMap::new(),
            watches: JoinSet::new(),
        }
    }

    /// Follows the fleet for ever; dropped, all watches end.
    pub async fn run(mut self) {
        loop {
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
        let members = self.fleet.members(Role::Prefill);
        self.subscriptions.retain(|id, subscriptions| {
            let stays = members.iter().any(|member| member.id() == *id);
            if !stays {
                subscriptions.ranks.iter_mut().for_each(Rank::clear_gauges);
            }
            stays
        });
        for member in members.iter() {
            if !self.subscriptions.contains_key(&member.id()) {
                let subscriptions = self.subscribe(member);
                self.subscriptions.insert(member.id(), subscriptions);
            }
        }
    }

    fn subscribe(&mut self, member: &Instance) -> Subscription {
        let stop = CancellationToken::new();
        let name: Arc<str> = member.endpoint().to_string().into();
        let sources = self.publishers.sources(member.id(), member.endpoint(), &name);
        let listened: usize = self.subscriptions.values().map(|it| it.ranks.len()).sum();
        if listened + sources.len() > MAX_HOLDERS {
            tracing::warn!(engine = %name, role = Role::Prefill.name(), "more than {MAX_HOLDERS} ranks publish KV events: some are not counted");
        }
        let ranks = sources.into_iter().map(|source| {
            let meter = RankMeter::new(&name, source.rank, &Count::ALL.map(Count::name));
            let watch = Watch::new(source, Times::default(), self.index.clone());
            let status = watch.status();
            watch.spawn(&mut self.watches, stop.clone());
            Rank { instance: name.clone(), status, meter, odd_tokens: 0 }
        });
        Subscription { ranks: ranks.collect(), _stop: stop.clone().drop_guard() }
    }
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
            tracing::warn!(engine = %self.instance, role = Role::Prefill.name(), told_tokens = event_tokens, hash_tokens, "its KV events are of blocks of another size: they don't count");
        }
        self.odd_tokens = odd_tokens;
    }

    /// Sets its gauges to zero as it has left; its counters stay for a while.
    fn clear_gauges(&mut self) {
        self.meter.show(RankState::default(), Count::ALL.iter().map(|what| self.status.count(*what)));
    }
}

impl Publishers {
    fn new(events: &Events) -> Publishers {
        let elsewhere = events.publishers().filter_map(|it| {
            let replay = it.replay.map(str::parse).transpose().ok()?;
            let engine_connects = it.events.starts_with("tcp://*:");
            Some((it.instance, Publisher { events: it.events.parse().ok()?, engine_connects, replay }))
        });
        Publishers {
            port: events.port,
            replay_port: events.replay_port,
            ranks: u16::try_from(events.ranks).unwrap_or(u16::MAX),
            topic: events.topic.as_str().into(),
            elsewhere: elsewhere.collect(),
        }
    }

    fn of(&self, instance: &Endpoint) -> Option<Publisher> {
        if let Some(publisher) = self.elsewhere.get(instance) {
            return Some(publisher.clone());
        }
        let at = |port: u16| -> Option<Address> {
            format!("tcp://{}", Endpoint::new(instance.host.clone(), port)).parse().ok()
        };
        let replay = (self.replay_port > 0).then(|| at(self.replay_port)).flatten();
        Some(Publisher { events: at(self.port)?, engine_connects: false, replay })
    }

    /// A source for each rank.
    fn sources(&self, id: InstanceId, instance: &Endpoint, name: &Arc<str>) -> Vec<Source> {
        let Some(publisher) = self.of(instance) else { return Vec::new() };
        let source = |rank: u16| {
            // Rank 0 publishes at the address itself.
            let of_rank = |it: &Address| if rank == 0 { Some(it.clone()) } else { it.of_rank(rank) };
            let replay = match &publisher.replay {
                Some(replay) => Some(of_rank(replay)?),
                None => None,
            };
            Some(Source {
                instance: id.0,
                name: name.clone(),
                rank: rank.into(),
                events: of_rank(&publisher.events)?,
                engine_connects: publisher.engine_connects,
                replay,
                topic: self.topic.clone(),
            })
        };
        (0..self.ranks).filter_map(source).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(events: &Events, instance: &str) -> Vec<(u32, String, Option<String>, bool)> {
        let endpoint = Endpoint::parse(instance).unwrap();
        let found = Publishers::new(events).sources(InstanceId(3), &endpoint, &"it".into());
        let of = |it: Source| {
            assert_eq!((it.instance, &*it.name), (3, "it"));
            (it.rank, it.events.to_string(), it.replay.map(|it| it.to_string()), it.engine_connects)
        };
        found.into_iter().map(of).collect()
    }

    #[test]
    fn each_rank_publishes_on_the_next_port() {
        let events = Events { ranks: 2, ..Events::default() };
        let at = |rank: u16| {
            let port = |first: u16| format!("tcp://[::1]:{}", first + rank);
            (u32::from(rank), port(5557), Some(port(5558)), false)
        };
        assert_eq!(sources(&events, "[::1]:8001"), [at(0), at(1)]);
        let events = Events { replay_port: 0, ..events };
        assert_eq!(sources(&events, "p:8001")[1], (1, "tcp://p:5558".to_owned(), None, false));
    }

    #[test]
    fn some_publish_elsewhere_and_some_connect() {
        let endpoints = ["a:1=tcp://b:7000 tcp://b:7100", "a:2=tcp://*:7200"].map(str::to_owned).to_vec();
        let events = Events { endpoints, ..Events::default() };
        let replay = Some("tcp://b:7100".to_owned());
        assert_eq!(sources(&events, "a:1"), [(0, "tcp://b:7000".to_owned(), replay, false)]);
        assert_eq!(sources(&events, "a:2"), [(0, "tcp://0.0.0.0:7200".to_owned(), None, true)]);
        assert_eq!(sources(&events, "a:3")[0].1, "tcp://a:5557");
    }
}
