//! The body of `/batch_query_keys`. The module is pure.

use std::borrow::Cow;

use serde::Deserialize;
use smallvec::SmallVec;

use super::ranks::RankHosts;
use crate::pool::store::{Placement, ReplicaPlace, Tier};
use crate::pool::{MAX_HOSTS, PoolError};

/// A replica that can be read. Versions before 1.2 don't tell.
const STATE_READABLE: u64 = 1;

#[derive(Deserialize)]
struct Reply<'a> {
    success: bool,
    #[serde(borrow, default)]
    data: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    valid: bool,
    #[serde(borrow, default)]
    blobs: Vec<Blob<'a>>,
}

#[derive(Deserialize)]
struct Blob<'a> {
    rank: u32,
    #[serde(borrow)]
    medium: Cow<'a, str>,
    state: Option<u64>,
}

/// Content of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MetaAnswer {
    /// One per key, in the order they were asked for.
    pub(super) placements: Vec<Placement>,
    /// Only 1.2 and later have states.
    pub(super) states: bool,
}

/// Reads the answer about `keys`.
///
/// # Errors
/// `Refused` when the service says so, `Protocol` for everything else that is not an answer about
/// exactly these keys.
pub(super) fn placements<'a>(
    body: &[u8],
    keys: impl ExactSizeIterator<Item = &'a str>,
    hosts: &RankHosts,
) -> Result<MetaAnswer, PoolError> {
    let reply: Reply<'_> =
        serde_json::from_slice(body).map_err(|error| PoolError::Protocol(error.to_string()))?;
    // Failures come with status 200.
    if !reply.success {
        return Err(PoolError::Refused("the service reports a failure".to_owned()));
    }
    if reply.data.len() != keys.len() {
        return Err(PoolError::Protocol(format!("{} entries for {} keys", reply.data.len(), keys.len())));
    }
    let states = reply.data.iter().flat_map(|entry| &entry.blobs).any(|blob| blob.state.is_some());
    let mut placements = Vec::with_capacity(reply.data.len());
    for (entry, key) in reply.data.iter().zip(keys) {
        if entry.key != key {
            return Err(PoolError::Protocol("an entry for another key".to_owned()));
        }
        placements.push(placement(entry, hosts));
    }
    Ok(MetaAnswer { placements, states })
}

/// `valid` alone says nothing: objects that are being written are valid too.
fn placement(entry: &Entry<'_>, hosts: &RankHosts) -> Placement {
    let readable = |blob: &&Blob<'_>| blob.state.is_none_or(|state| state == STATE_READABLE);
    let readable: SmallVec<[&Blob<'_>; 2]> = entry.blobs.iter().filter(readable).collect();
    if !entry.valid || readable.is_empty() {
        return Placement::default();
    }
    let place = |blob: &Blob<'_>| {
        let tier = match &*blob.medium {
            "HBM" => Tier::Hbm,
            "DRAM" => Tier::Memory,
            "SSD" => Tier::Disk,
            _ => return None,
        };
        Some(ReplicaPlace { host: hosts.get(blob.rank)?.clone(), tier })
    };
    Placement { present: true, places: readable.into_iter().filter_map(place).take(MAX_HOSTS).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 3] = ["key-0", "key-1", "nope"];

    fn read(body: &str) -> Result<MetaAnswer, PoolError> {
        let hosts = [(0, "10.0.0.1"), (3, "10.0.0.2")].into_iter().collect();
        placements(body.as_bytes(), KEYS.into_iter(), &hosts)
    }

    /// The recorded answer in a capture.
    fn recorded(capture: &'static str) -> String {
        let at = capture.find("{\"data\":[{\"blobs\"").unwrap();
        let line = capture[at..].lines().next().unwrap();
        line.trim_end_matches('\'').to_owned()
    }

    fn on(host: &str) -> Placement {
        let places = [ReplicaPlace { host: host.into(), tier: Tier::Memory }].into_iter().collect();
        Placement { present: true, places }
    }

    #[test]
    fn recorded_answers_are_understood() {
        let old = recorded(include_str!("../../../tests/captures/memcache-1.1.0.hex"));
        // Rank 1 has no host here.
        let wanted = vec![on("10.0.0.1"), Placement::somewhere(), Placement::default()];
        assert_eq!(read(&old), Ok(MetaAnswer { placements: wanted, states: false }));
        let captures = [
            include_str!("../../../tests/captures/memcache-1.2.1.hex"),
            include_str!("../../../tests/captures/memcache-1.3.0.hex"),
        ];
        for capture in captures {
            let text = recorded(capture);
            let wanted = vec![on("10.0.0.1"), on("10.0.0.2"), Placement::default()];
            assert_eq!(read(&text), Ok(MetaAnswer { placements: wanted.clone(), states: true }));
            for end in 0..text.len() {
                assert!(read(&text[..end]).is_err(), "cut at {end}");
            }
            let writing = text.replacen("\"state\":1", "\"state\":0", 1);
            let found = read(&writing).unwrap().placements;
            assert_eq!((found[0].present, &found[1]), (false, &wanted[1]));
        }
    }

    #[test]
    fn answers_to_another_question_are_refused() {
        let text = recorded(include_str!("../../../tests/captures/memcache-1.3.0.hex"));
        let failed = "{\"success\":false,\"message\":\"x\"}";
        assert!(matches!(read(failed), Err(PoolError::Refused(_))));
        for wrong in [
            text.replacen("key-0", "key-9", 1),
            "{\"data\":[],\"success\":true}".to_owned(),
            "[]".to_owned(),
            String::new(),
        ] {
            assert!(matches!(read(&wrong), Err(PoolError::Protocol(_))), "{wrong}");
        }
    }
}
