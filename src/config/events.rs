//! `[events]`: where prefillers publish their KV events, unless they tell it themselves.

use std::collections::BTreeSet;

use super::bounds::{count, port, ranks};
use super::error::Invalid;
use super::table::section;
use super::{Config, Problem, Tokens};
use crate::endpoint::Endpoint;

section! {
    /// `[events]`: what prefillers publish about the blocks that each holds (vLLM's
    /// `--kv-events-config`).
    Events = "events" {
        /// True if they are listened to.
        listen: bool = false, AfterRestart;
        /// Port of their `endpoint`, of engines that don't tell it; data-parallel rank r has this
        /// one plus r.
        port: u16 = 5_557, AfterRestart, port(1);
        /// Port of their `replay_endpoint`, counted up likewise; 0 = they have none.
        replay_port: u16 = 5_558, AfterRestart, port(0);
        /// Data-parallel ranks of each prefiller that publish for themselves, where it doesn't
        /// tell.
        ranks: u32 = 1, AfterRestart, ranks(1);
        /// Beginning of the topics to listen to; empty for all.
        topic: String = String::new(), AfterRestart;
        /// Prefillers that publish elsewhere, each `host:port=EVENTS` or `host:port=EVENTS REPLAY`.
        endpoints: Vec<String> = Vec::new(), AfterRestart;
        /// Most blocks remembered of a rank, and as many again that it put into a pool.
        blocks: usize = 131_072, AfterRestart, count(1);
    }
}

/// An entry of `events.endpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher<'a> {
    /// The prefiller, as in `fleet.prefill`.
    pub instance: Endpoint,
    /// `tcp://host:port` or `ipc://path`, as vLLM writes it; `tcp://*:port` where the engine
    /// connects to the gateway.
    pub events: &'a str,
    /// The same of its replay socket, if it has one.
    pub replay: Option<&'a str>,
}

impl Events {
    /// `endpoints`, read; entries that are none, which a loaded configuration cannot hold, are left
    /// out.
    pub fn publishers(&self) -> impl Iterator<Item = Publisher<'_>> {
        self.endpoints.iter().filter_map(|text| publisher(text))
    }

    /// Checks the section beyond the bounds of its numbers.
    pub(super) fn validate(&self, config: &Config, invalid: &mut Vec<Invalid>) {
        let mut seen = BTreeSet::new();
        for text in &self.endpoints {
            let problem = match publisher(text) {
                None => Problem::NotAPublisher { text: text.clone() },
                Some(publisher) if !seen.insert(publisher.instance.clone()) => {
                    let endpoint = publisher.instance.to_string();
                    Problem::Duplicate { key: "events.endpoints", endpoint }
                }
                Some(_) => continue,
            };
            invalid.push(("events.endpoints", problem));
        }
        if self.listen && config.prompt.tokens == Tokens::Off {
            let needs = Problem::Needs { key: "events.listen", value: "true", needed: "prompt.tokens" };
            invalid.push(("events.listen", needs));
        }
        let apart = u64::from(self.port.abs_diff(self.replay_port));
        if self.replay_port != 0 && apart < u64::from(self.ranks) {
            let problem = Problem::PortsOverlap {
                port: self.port,
                replay_port: self.replay_port,
                ranks: u64::from(self.ranks),
            };
            invalid.push(("events.replay_port", problem));
        }
        let last = |port: u16| u64::from(port) + u64::from(self.ranks.saturating_sub(1));
        for (key, port) in [("events.port", self.port), ("events.replay_port", self.replay_port)] {
            if last(port) > u64::from(u16::MAX) {
                let max = u64::from(u16::MAX).saturating_sub(last(0));
                let (value, min) = (port.to_string(), 1);
                invalid.push((key, Problem::OutOfRange { key, value, min, max }));
            }
        }
    }
}

fn publisher(text: &str) -> Option<Publisher<'_>> {
    let (instance, addresses) = text.split_once('=')?;
    let mut addresses = addresses.split_whitespace();
    let (events, replay, more) = (addresses.next()?, addresses.next(), addresses.next());
    let replay_is_one = replay.is_none_or(|replay| is_address(replay) && !replay.starts_with(BIND));
    let instance = Endpoint::parse(instance).ok()?;
    let fine = is_address(events) && replay_is_one && more.is_none();
    fine.then_some(Publisher { instance, events, replay })
}

/// Beginning of an address at which the gateway is to listen.
const BIND: &str = "tcp://*:";

fn is_address(text: &str) -> bool {
    if let Some(port) = text.strip_prefix(BIND) {
        return port.parse::<u16>().is_ok_and(|port| port > 0);
    }
    if let Some(path) = text.strip_prefix("ipc://") {
        return !path.is_empty();
    }
    text.strip_prefix("tcp://").is_some_and(|rest| !rest.contains('/') && Endpoint::parse(rest).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(events: Events) -> Vec<String> {
        let mut config = Config { events, ..Config::default() };
        config.prompt.tokens = Tokens::Engine;
        config.validate().into_iter().map(|(_, problem)| problem.to_string()).collect()
    }

    fn listed(endpoints: &[&str]) -> Events {
        let endpoints = endpoints.iter().map(|text| (*text).to_owned()).collect();
        Events { listen: true, endpoints, ..Events::default() }
    }

    #[test]
    fn prefillers_may_publish_anywhere() {
        let events = listed(&[
            "a:8001=tcp://a:5600 tcp://a:5700",
            "[::1]:8001=tcp://[::1]:5600",
            "b:8001=tcp://*:5601",
            "c:8001=ipc:///run/c/events ipc:///run/c/replay",
        ]);
        assert_eq!(problems(events.clone()), Vec::<String>::new());
        let read: Vec<Publisher<'_>> = events.publishers().collect();
        assert_eq!(read[0].instance, Endpoint::new("a", 8001));
        assert_eq!((read[0].events, read[0].replay), ("tcp://a:5600", Some("tcp://a:5700")));
        assert_eq!((read[2].events, read[2].replay), ("tcp://*:5601", None));
        assert_eq!(read.len(), 4);
    }

    #[test]
    fn entries_that_are_none_are_named() {
        for text in [
            "a:8001",
            "a=tcp://a:1",
            "a:8001=",
            "a:8001=a:5600",
            "a:8001=tcp://a",
            "a:8001=tcp://a:1/x",
            "a:8001=tcp://a:1 tcp://*:2",
            "a:8001=tcp://a:1 tcp://a:2 tcp://a:3",
            "a:8001=ipc://",
        ] {
            let found = problems(listed(&[text]));
            assert_eq!(found.len(), 1, "{text}");
            assert!(
                found[0].starts_with(&format!("events.endpoints: `{text}` is no prefiller")),
                "{found:?}"
            );
        }
        let twice = problems(listed(&["a:1=tcp://a:1", "A:1=tcp://a:2"]));
        assert_eq!(twice, ["events.endpoints: `a:1` is listed twice"]);
    }

    #[test]
    fn ranks_need_ports_and_hashes_need_tokens() {
        let events = Events { listen: true, port: 65_535, replay_port: 0, ranks: 2, ..Events::default() };
        assert_eq!(problems(events), ["events.port = 65535: expected 1 to 65534"]);
        let mut config = Config::default();
        config.events.listen = true;
        assert!(config.validate().is_empty() && config.tokens() == Tokens::Auto);
        config.prompt.tokens = Tokens::Off;
        let found: Vec<String> = config.validate().into_iter().map(|(_, it)| it.to_string()).collect();
        assert_eq!(found, ["events.listen = true needs prompt.tokens"]);
    }
}
