//! Addresses at which prefillers publish KV events: those of `events.endpoints`, else as the engine
//! tells them, else by the ports that are configured.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::config::Events;
use crate::dialect::event_sources::ToldPublisher;
use crate::endpoint::Endpoint;
use crate::fleet::InstanceId;
use crate::pool::events::watch::Source;
use crate::pool::events::zmtp::Address;

/// Addresses at which prefillers publish their events.
#[derive(Debug)]
pub(super) struct Publishers {
    port: u16,
    replay_port: u16,
    ranks: u16,
    topic: Box<str>,
    /// Publishers of prefillers with addresses of their own.
    elsewhere: HashMap<Endpoint, Publisher>,
}

/// A prefiller whose events are listened to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) id: InstanceId,
    pub(super) endpoint: &'a Endpoint,
    pub(super) name: &'a Arc<str>,
}

/// Address of a publisher, and of its replay socket.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Publisher {
    events: Address,
    engine_connects: bool,
    replay: Option<Address>,
}

impl Publishers {
    /// Those of the section.
    pub(super) fn new(events: &Events) -> Publishers {
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

    /// True if `events.endpoints` has an entry for this prefiller: it is not asked.
    pub(super) fn lists(&self, instance: &Endpoint) -> bool {
        self.elsewhere.contains_key(instance)
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

    /// A source for each rank that is configured.
    pub(super) fn sources(&self, member: Member<'_>) -> Vec<Source> {
        let Some(publisher) = self.of(member.endpoint) else { return Vec::new() };
        let source = |rank: u16| {
            // Rank 0 publishes at the address itself.
            let of_rank = |it: &Address| if rank == 0 { Some(it.clone()) } else { it.of_rank(rank) };
            let replay = match &publisher.replay {
                Some(replay) => Some(of_rank(replay)?),
                None => None,
            };
            let engine_connects = publisher.engine_connects;
            let publisher = Publisher { events: of_rank(&publisher.events)?, engine_connects, replay };
            Some(self.source(member, rank.into(), publisher))
        };
        (0..self.ranks).filter_map(source).collect()
    }

    /// A source for each rank that the engine told; `None` where one of them can't be reached.
    pub(super) fn told_sources(&self, member: Member<'_>, told: &[ToldPublisher]) -> Option<Vec<Source>> {
        let host = &member.endpoint.host;
        let source = |it: &ToldPublisher| {
            let replay = it.replay.as_deref().map(|replay| reachable(replay, host));
            let replay = match replay {
                Some(replay) => Some(replay?),
                None => None,
            };
            let publisher =
                Publisher { events: reachable(&it.events, host)?, engine_connects: false, replay };
            Some(self.source(member, it.rank, publisher))
        };
        told.iter().map(source).collect()
    }

    fn source(&self, member: Member<'_>, rank: u32, publisher: Publisher) -> Source {
        let Publisher { events, engine_connects, replay } = publisher;
        Source {
            instance: member.id.0,
            name: member.name.clone(),
            rank,
            events,
            engine_connects,
            replay,
            topic: self.topic.clone(),
        }
    }
}

/// An address that an engine on `host` told, as the gateway reaches it. `None`: it is of the
/// engine's process or machine alone, or a name, to which the engine connects.
fn reachable(told: &str, host: &str) -> Option<Address> {
    let own: Option<IpAddr> = host.parse().ok();
    if told.starts_with("ipc://") {
        let is_here = host == "localhost" || own.is_some_and(|own| own.is_loopback());
        return is_here.then(|| told.parse().ok()).flatten();
    }
    let (at, port) = told.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    let at = at.trim_start_matches('[').trim_end_matches(']');
    let ip: Option<IpAddr> = at.parse().ok();
    let everywhere = at == "*" || ip.is_some_and(|ip| ip.is_unspecified());
    let reached = match ip {
        _ if everywhere => host,
        Some(_) => at,
        None => return None,
    };
    format!("tcp://{}", Endpoint::new(reached.to_owned(), port)).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Shown = (u32, String, Option<String>, bool);

    fn shown(found: Vec<Source>) -> Vec<Shown> {
        let of = |it: Source| {
            assert_eq!((it.instance, &*it.name), (3, "it"));
            (it.rank, it.events.to_string(), it.replay.map(|it| it.to_string()), it.engine_connects)
        };
        found.into_iter().map(of).collect()
    }

    fn sources(events: &Events, instance: &str) -> Vec<Shown> {
        let (endpoint, name) = (Endpoint::parse(instance).unwrap(), "it".into());
        let member = Member { id: InstanceId(3), endpoint: &endpoint, name: &name };
        shown(Publishers::new(events).sources(member))
    }

    fn told(instance: &str, events: &str, replay: Option<&str>) -> Option<Vec<Shown>> {
        let (endpoint, name) = (Endpoint::parse(instance).unwrap(), "it".into());
        let member = Member { id: InstanceId(3), endpoint: &endpoint, name: &name };
        let told = ToldPublisher { rank: 2, events: events.to_owned(), replay: replay.map(str::to_owned) };
        Publishers::new(&Events::default()).told_sources(member, &[told]).map(shown)
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

    #[test]
    fn told_publishers_are_reached_on_their_engine() {
        let one = |events: &str, replay: Option<&str>| {
            Some(vec![(2, events.to_owned(), replay.map(str::to_owned), false)])
        };
        let wanted = one("tcp://p1:5559", Some("tcp://p1:5659"));
        assert_eq!(told("p1:8001", "tcp://*:5559", Some("tcp://*:5659")), wanted);
        assert_eq!(told("[fd00::1]:8001", "tcp://[::]:5559", None), one("tcp://[fd00::1]:5559", None));
        // Bound to a port of the system's choice, the engine tells its own address.
        assert_eq!(told("p1:8001", "tcp://10.0.0.3:40123", None), one("tcp://10.0.0.3:40123", None));
        assert_eq!(told("127.0.0.1:8001", "ipc:///run/kv", None), one("ipc:///run/kv", None));
    }

    #[test]
    fn told_publishers_that_are_out_of_reach_count_as_untold() {
        for events in [
            "inproc://kv_dp2",
            "ipc:///run/kv",
            "tcp://gateway:5600",
            "tcp://*:0",
            "tcp://*",
            "tcp://*:x",
            "udp://*:5557",
            "",
        ] {
            assert_eq!(told("p1:8001", events, None), None, "{events}");
        }
        assert_eq!(told("p1:8001", "tcp://*:5557", Some("inproc://replay")), None);
    }
}
