//! Keys asked over the admin port, for those who want no effect on eviction: `GET
//! /batch_query_keys`, 0.3.9 and later.
//!
//! From 0.3.12 on nothing is touched, and keys are percent-decoded. Before, a lease is granted as
//! over RPC, and keys are taken as they are; such masters are refused unless that is allowed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::admin::{Admin, Page, read};
use super::wire::host_of;
use crate::kvhash::keys::KeyBatch;
use crate::pool::{Answer, KeyStore, MAX_HOSTS, Placement, PoolError, ReplicaPlace, Tier};

/// Keys that a master tells about within a millisecond.
const BATCH_KEYS: usize = 256;
/// Most bytes of path and query: the longest URI that HTTP clients here can write has 65 534.
const PATH_BYTES: usize = 60_000;
/// Parts of one question on the way at once.
const PARTS_AT_ONCE: usize = 4;
/// Longest answer: so much, and so much per key; some 300 bytes per key and replica are usual.
const ANSWER_BYTES: usize = 64 << 10;
const ANSWER_BYTES_PER_KEY: usize = 8 << 10;
const PATH: &str = "/batch_query_keys?keys=";
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Addresses of the masters, and their age.
#[derive(Clone, Debug, Default)]
pub struct MooncakeHttpConfig {
    /// Admin ports; the first that answers about keys is asked, which a standby does not.
    pub admins: Vec<Admin>,
    /// Ask masters before 0.3.12 too, although they grant a lease.
    pub allow_leases: bool,
}

/// Asks the admin port of a Mooncake master.
#[derive(Debug)]
pub struct MooncakeHttp {
    masters: Vec<Master>,
    allow_leases: bool,
    /// The one that answered last.
    begin: AtomicUsize,
}

#[derive(Debug)]
struct Master {
    admin: Admin,
    /// 0 until it is known, then [`DECODES`] or [`RAW`].
    spelling: AtomicU8,
}

/// A question to one master. Dropped while it is open, it has found that the master is silent: the
/// next question begins behind it.
struct OpenQuestion<'a> {
    begin: &'a AtomicUsize,
    /// Place where the question began, and where the next one is to.
    from: usize,
    next: usize,
    open: bool,
}

/// 0.3.12 and later.
const DECODES: u8 = 1;
/// 0.3.9 to 0.3.11.
const RAW: u8 = 2;

/// Answer, as `{"success":true,"data":{"key":{"ok":true,"values":[…],…},…}}`.
#[derive(Deserialize)]
struct LookupReply<'a> {
    #[serde(borrow, default)]
    data: HashMap<Cow<'a, str>, Entry<'a>>,
}

/// From 0.3.12 on all lists are there, null when empty.
#[derive(Deserialize)]
struct Entry<'a> {
    ok: bool,
    #[serde(borrow, default)]
    error: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    values: Option<Vec<Buffer<'a>>>,
    #[serde(default, deserialize_with = "present")]
    disk_values: bool,
    #[serde(borrow, default)]
    local_disk_values: Option<Vec<Buffer<'a>>>,
    #[serde(borrow, default)]
    nof_values: Option<Vec<Buffer<'a>>>,
}

#[derive(Deserialize)]
struct Buffer<'a> {
    #[serde(borrow, default, rename = "transport_endpoint_", alias = "transport_endpoint")]
    endpoint: Cow<'a, str>,
}

/// True if a member is there, whatever it holds.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl MooncakeHttp {
    /// Nothing is asked yet.
    pub fn new(config: MooncakeHttpConfig) -> MooncakeHttp {
        let master = |admin| Master { admin, spelling: AtomicU8::new(0) };
        let masters = config.admins.into_iter().map(master).collect();
        MooncakeHttp { masters, allow_leases: config.allow_leases, begin: AtomicUsize::new(0) }
    }

    async fn placements(&self, keys: &KeyBatch, indexes: &[u32]) -> Result<Vec<Placement>, PoolError> {
        if indexes.is_empty() {
            // The page refuses a list without keys.
            return Ok(Vec::new());
        }
        let begin = self.begin.load(Ordering::Relaxed);
        let mut why = PoolError::Unreachable("no master is known".into());
        for turn in 0..self.masters.len() {
            let at = begin.wrapping_add(turn) % self.masters.len();
            let Some(master) = self.masters.get(at) else { continue };
            let next = (at + 1) % self.masters.len();
            let mut turn = OpenQuestion { begin: &self.begin, from: begin, next, open: true };
            let answer = master.ask(keys, indexes, self.allow_leases).await;
            turn.open = false;
            match answer {
                Ok(placements) => {
                    self.begin.store(at, Ordering::Relaxed);
                    return Ok(placements);
                }
                Err(error @ PoolError::TooLarge(_)) => return Err(error),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

impl KeyStore for MooncakeHttp {
    fn name(&self) -> &'static str {
        "mooncake_http"
    }

    fn batch_keys(&self) -> usize {
        BATCH_KEYS
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        Box::pin(self.placements(keys, indexes))
    }
}

impl Master {
    async fn ask(
        &self,
        keys: &KeyBatch,
        indexes: &[u32],
        allow_leases: bool,
    ) -> Result<Vec<Placement>, PoolError> {
        let spelling = self.spelling().await?;
        if spelling == RAW && !allow_leases {
            return Err(PoolError::Refused(
                "a master before 0.3.12 grants a lease to every key it is asked about: use its RPC port, or allow that"
                    .into(),
            ));
        }
        let asked = paths(keys, indexes, spelling)?
            .into_iter()
            .map(|(path, part)| self.part(path, keys, indexes.get(part).unwrap_or_default(), spelling));
        let found: Result<Vec<Vec<Placement>>, PoolError> =
            stream::iter(asked).buffered(PARTS_AT_ONCE).try_collect().await;
        // Another version may have taken its place.
        let found = found.inspect_err(|error| {
            if !matches!(error, PoolError::Refused(_)) {
                self.spelling.store(0, Ordering::Relaxed);
            }
        });
        Ok(found?.into_iter().flatten().collect())
    }

    async fn part(
        &self,
        path: String,
        keys: &KeyBatch,
        indexes: &[u32],
        spelling: u8,
    ) -> Result<Vec<Placement>, PoolError> {
        let most = indexes.len().saturating_mul(ANSWER_BYTES_PER_KEY).saturating_add(ANSWER_BYTES);
        let page = self.admin.get(&path, most).await.and_then(Page::ok)?;
        placements(&page.body, keys, indexes, spelling)
    }

    async fn spelling(&self) -> Result<u8, PoolError> {
        let known = self.spelling.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(known);
        }
        let found = if self.admin.grants_leases().await? { RAW } else { DECODES };
        self.spelling.store(found, Ordering::Relaxed);
        Ok(found)
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        if self.open {
            // Unless another question has moved on already.
            let _ = self.begin.compare_exchange(self.from, self.next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The paths that ask about the keys, as few as there must be, and which of the keys each is about.
/// A comma stands between keys, so no key may have one.
fn paths(keys: &KeyBatch, indexes: &[u32], spelling: u8) -> Result<Vec<(String, Range<usize>)>, PoolError> {
    let (mut paths, mut path, mut begin) = (Vec::new(), String::from(PATH), 0);
    let mut spelled = String::new();
    for (place, index) in indexes.iter().enumerate() {
        spelled.clear();
        spell(key(keys, *index)?, spelling, &mut spelled)?;
        if PATH.len() + spelled.len() > PATH_BYTES {
            return Err(PoolError::TooLarge(format!("a key of {} bytes in a path", spelled.len())));
        }
        if path.len() + 1 + spelled.len() > PATH_BYTES {
            paths.push((path, begin..place));
            (path, begin) = (String::from(PATH), place);
        }
        if place > begin {
            path.push(',');
        }
        path.push_str(&spelled);
    }
    paths.push((path, begin..indexes.len()));
    Ok(paths)
}

/// Appends a key as this version reads it.
fn spell(key: &str, spelling: u8, into: &mut String) -> Result<(), PoolError> {
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'@' | b':' | b'/' => {
                into.push(char::from(byte));
            }
            b',' => {
                return Err(PoolError::TooLarge("a key with a comma can't be asked for over HTTP".into()));
            }
            _ if spelling == RAW => {
                let why = format!("masters before 0.3.12 can't be asked for a key with byte {byte:02x}");
                return Err(PoolError::TooLarge(why));
            }
            _ => {
                into.push('%');
                into.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
            }
        }
    }
    Ok(())
}

fn key(keys: &KeyBatch, index: u32) -> Result<&str, PoolError> {
    let key = usize::try_from(index).ok().and_then(|index| keys.get(index));
    key.ok_or_else(|| PoolError::Protocol(format!("no key {index} in the batch")))
}

fn placements(
    body: &[u8],
    keys: &KeyBatch,
    indexes: &[u32],
    spelling: u8,
) -> Result<Vec<Placement>, PoolError> {
    let found: LookupReply<'_> = read(body)?;
    let mut hosts: HashMap<&str, Option<Arc<str>>> = HashMap::new();
    let placement = |index: &u32| {
        let entry = found.data.get(key(keys, *index)?);
        let entry = entry.ok_or_else(|| PoolError::Protocol("an answer without one of the keys".into()))?;
        if spelling == DECODES && !entry.disk_values {
            return Err(PoolError::Protocol("an answer of a master before 0.3.12".into()));
        }
        match entry.error.as_deref() {
            _ if entry.ok => Ok(entry.placement(&mut hosts)),
            None | Some("OBJECT_NOT_FOUND" | "REPLICA_IS_NOT_READY") => Ok(Placement::default()),
            Some(error) => Err(PoolError::Refused(error.to_owned())),
        }
    };
    indexes.iter().map(placement).collect()
}

impl<'a> Entry<'a> {
    fn placement(&'a self, hosts: &mut HashMap<&'a str, Option<Arc<str>>>) -> Placement {
        let mut placement = Placement::somewhere();
        let disks = [&self.nof_values, &self.local_disk_values].map(|list| (list, Tier::Disk));
        for (list, tier) in std::iter::once((&self.values, Tier::Memory)).chain(disks) {
            for buffer in list.iter().flatten() {
                let endpoint = &*buffer.endpoint;
                let host = hosts.entry(endpoint).or_insert_with(|| host_of(endpoint.as_bytes())).clone();
                let Some(place) = host.map(|host| ReplicaPlace { host, tier }) else { continue };
                if placement.places.len() < MAX_HOSTS && !placement.places.contains(&place) {
                    placement.places.push(place);
                }
            }
        }
        placement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(keys: &[&str]) -> KeyBatch {
        let mut batch = KeyBatch::default();
        for key in keys {
            batch.push(0, key).unwrap();
        }
        batch
    }

    #[test]
    fn keys_are_spelled_as_the_version_reads_them() {
        let keys = batch(&["m@pcp0/x:1", "a b+é", "c,d"]);
        let one = |indexes, spelling| {
            let mut paths: Vec<String> =
                paths(&keys, indexes, spelling)?.into_iter().map(|(path, _)| path).collect();
            assert_eq!(paths.len(), 1);
            Ok(paths.remove(0))
        };
        let path = "/batch_query_keys?keys=a%20b%2B%C3%A9,m@pcp0/x:1";
        assert_eq!(one(&[1, 0], DECODES), Ok(path.to_owned()));
        assert_eq!(one(&[0], RAW), Ok("/batch_query_keys?keys=m@pcp0/x:1".to_owned()));
        assert!(matches!(one(&[1], RAW), Err(PoolError::TooLarge(_))));
        assert!(matches!(one(&[2], DECODES), Err(PoolError::TooLarge(_))));
        assert!(matches!(one(&[3], DECODES), Err(PoolError::Protocol(_))));
    }

    #[test]
    fn questions_are_cut_to_what_a_uri_takes() {
        let long: Vec<String> = (0..256).map(|n| format!("{n:03}{}", "ü".repeat(120))).collect();
        let keys = batch(&long.iter().map(String::as_str).collect::<Vec<_>>());
        let indexes: Vec<u32> = (0..256).rev().collect();
        let cut = paths(&keys, &indexes, DECODES).unwrap();
        assert!(cut.len() > 1 && cut.iter().all(|(path, _)| http::Uri::try_from(path).is_ok()));
        for (path, part) in &cut {
            assert_eq!(path.split(',').count(), part.len());
        }
        assert_eq!(
            cut.iter().flat_map(|(_, part)| part.clone()).collect::<Vec<_>>(),
            (0..256).collect::<Vec<_>>()
        );
        let huge = batch(&[&"k".repeat(PATH_BYTES)]);
        assert!(matches!(paths(&huge, &[0], DECODES), Err(PoolError::TooLarge(_))));
    }

    #[test]
    fn an_object_has_so_many_places_at_most() {
        let endpoints: Vec<String> =
            (0..40).map(|n| format!(r#"{{"transport_endpoint_":"10.0.0.{n}:80"}}"#)).collect();
        let body = format!(
            r#"{{"data":{{"a":{{"ok":true,"values":[{}],"disk_values":null}}}}}}"#,
            endpoints.join(",")
        );
        let found = placements(body.as_bytes(), &batch(&["a"]), &[0], DECODES).unwrap();
        assert_eq!(found[0].places.len(), MAX_HOSTS);
    }

    #[test]
    fn answers_are_sorted_by_key_and_read_in_the_order_of_the_question() {
        let keys = batch(&["zz", "b", "a"]);
        let body = br#"{"success":true,"data":{
            "a":{"ok":true,"error":null,"values":[{"size_":1,"transport_endpoint_":"10.0.0.1:80"},{"transport_endpoint_":"10.0.0.1:81"}],
                 "disk_values":null,"local_disk_values":[{"transport_endpoint":"[fd00::2]:9"}],"nof_values":null},
            "b":{"ok":true,"error":null,"values":null,"disk_values":[{"file_path":"/x"}],"local_disk_values":null,"nof_values":null},
            "zz":{"ok":false,"error":"OBJECT_NOT_FOUND","values":null,"disk_values":null}}}"#;
        let place = |host: &str, tier| ReplicaPlace { host: host.into(), tier };
        let first = Placement {
            present: true,
            places: [place("10.0.0.1", Tier::Memory), place("fd00::2", Tier::Disk)].into_iter().collect(),
        };
        let expected = [Placement::default(), Placement::somewhere(), first];
        assert_eq!(placements(body, &keys, &[0, 1, 2], DECODES).unwrap(), expected);
    }

    #[test]
    fn an_answer_of_an_older_master_is_noticed() {
        let keys = batch(&["a"]);
        let old = br#"{"success":true,"data":{"a":{"ok":true,"values":[{"transport_endpoint_":"h:1"}]}}}"#;
        assert!(placements(old, &keys, &[0], RAW).unwrap()[0].present);
        assert!(matches!(placements(old, &keys, &[0], DECODES), Err(PoolError::Protocol(_))));
        let lacking = br#"{"success":true,"data":{}}"#;
        assert!(matches!(placements(lacking, &keys, &[0], RAW), Err(PoolError::Protocol(_))));
        let refused = br#"{"data":{"a":{"ok":false,"error":"UNAVAILABLE_IN_CURRENT_STATUS"}}}"#;
        assert!(matches!(placements(refused, &keys, &[0], RAW), Err(PoolError::Refused(_))));
    }
}
