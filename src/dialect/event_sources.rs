//! Publishers of KV events as an engine tells them: `GET /kv_event_sources`, in vLLM from 0.32 on.
//! The answer has each data-parallel rank whose publisher runs, with the addresses that it bound or
//! connects to; a rank's port is counted up already. The module is pure.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Path of the question.
pub const PATH: &str = "/kv_event_sources";

/// Most ranks that are read of one engine.
const MOST_RANKS: usize = 64;

/// Publisher of one data-parallel rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldPublisher {
    /// The data-parallel rank itself.
    pub rank: u32,
    /// Address of its events, as `tcp://*:5557`.
    pub events: String,
    /// Address of its replay socket, if it has one.
    pub replay: Option<String>,
}

#[derive(Deserialize)]
struct Told {
    endpoint: String,
    replay_endpoint: Option<String>,
}

/// Reads the answer. `None` if it is none; empty if nothing is published.
pub fn read(answer: &[u8]) -> Option<Vec<ToldPublisher>> {
    let told: BTreeMap<u32, Told> = serde_json::from_slice(answer).ok()?;
    let publisher = |(rank, told): (u32, Told)| ToldPublisher {
        rank,
        events: told.endpoint,
        replay: told.replay_endpoint.filter(|address| !address.is_empty()),
    };
    Some(told.into_iter().take(MOST_RANKS).map(publisher).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.32 and 0.33 write it, a rank with a replay socket and one without.
    const ANSWER: &str = r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",
        "replay_endpoint":"tcp://*:5657","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""},
        "1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.0.0.3:40123",
        "replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv"}}"#;

    #[test]
    fn publishers_are_read_by_rank() {
        let told = |rank, events: &str, replay: Option<&str>| ToldPublisher {
            rank,
            events: events.to_owned(),
            replay: replay.map(str::to_owned),
        };
        let first = told(0, "tcp://*:5557", Some("tcp://*:5657"));
        assert_eq!(read(ANSWER.as_bytes()), Some(vec![first, told(1, "tcp://10.0.0.3:40123", None)]));
        assert_eq!(read(b"{}"), Some(Vec::new()), "nothing is published");
    }

    #[test]
    fn other_answers_tell_nothing() {
        for answer in
            ["", "null", "[]", r#"{"a":{"endpoint":"x"}}"#, r#"{"0":{}}"#, r#"{"detail":"Not Found"}"#]
        {
            assert_eq!(read(answer.as_bytes()), None, "{answer}");
        }
    }
}
