//! `POST /directory/lookup` of LMCache's multi-process coordinator, as of LMCache 0.5.6. The module
//! is pure.
//!
//! The body is `{"token_ids":[…],"model_name":"m","world_size":2}`, with `cache_salt` where the
//! request has one. The answer is the number of whole chunks and, chunk by chunk, one result per
//! rank, each with the places of that object. There are more results where a chunk is stored in
//! several object groups: `{"chunks":n,"results":[{"key":{"chunk_hash_hex":"…","cache_salt":"",…},
//! "placements":[{"instance_id":"mp0","tier":"l1","shared":false,…}],…}]}`. A key that is nowhere
//! has no placements. The salt is a part of each key and of no hash. Objects that are not shared
//! are read by their instance alone, except those on tier `l1`, its memory: that is lent to peers
//! where servers have a `--p2p-advertise-url`.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{AnswerError, ChunkLookup, InstanceChunks};
use crate::pool::Tier;

/// Place where it is asked.
pub const PATH: &str = "/directory/lookup";
/// Place where it lists its instances' addresses.
pub const INSTANCES_PATH: &str = "/instances";

#[derive(Serialize)]
struct Question<'a> {
    token_ids: &'a [u32],
    model_name: &'a str,
    world_size: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    cache_salt: &'a str,
}

/// Parts of keys other than tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// The model as the servers name it.
    pub model: &'a str,
    /// Ranks that each have a part of every chunk.
    pub world_size: u32,
    /// `cache_salt`; empty for none.
    pub salt: &'a str,
}

#[derive(Deserialize)]
struct Answer<'a> {
    chunks: usize,
    #[serde(borrow)]
    results: Vec<Key<'a>>,
}

#[derive(Deserialize)]
struct Key<'a> {
    #[serde(borrow)]
    key: Name<'a>,
    #[serde(borrow)]
    placements: Vec<Placement<'a>>,
}

#[derive(Deserialize)]
struct Name<'a> {
    #[serde(borrow)]
    chunk_hash_hex: Cow<'a, str>,
    #[serde(borrow, default)]
    cache_salt: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Placement<'a> {
    #[serde(borrow)]
    instance_id: Cow<'a, str>,
    #[serde(borrow)]
    tier: Cow<'a, str>,
    /// In a pool of all instances: it is nobody's own.
    #[serde(default)]
    shared: bool,
}

/// The body of a question.
///
/// # Errors
/// None that these values can have; the serialiser's.
pub fn question(tokens: &[u32], scope: Scope<'_>) -> serde_json::Result<Vec<u8>> {
    let Scope { model, world_size, salt } = scope;
    serde_json::to_vec(&Question { token_ids: tokens, model_name: model, world_size, cache_salt: salt })
}

/// Reads the answer to a question of `asked` chunks.
///
/// # Errors
/// [`AnswerError`].
pub fn answer(body: &[u8], scope: Scope<'_>, asked: usize) -> Result<ChunkLookup, AnswerError> {
    let answer: Answer<'_> = serde_json::from_slice(body)?;
    if answer.chunks != asked {
        return Err(AnswerError::ChunkSize { found: answer.chunks, asked });
    }
    let chunks: Vec<&[Key<'_>]> =
        answer.results.chunk_by(|a, b| a.key.chunk_hash_hex == b.key.chunk_hash_hex).collect();
    let ranks = usize::try_from(scope.world_size).unwrap_or(usize::MAX);
    if chunks.len() != asked || chunks.iter().any(|keys| keys.len() < ranks) {
        return Err(AnswerError::Keys { chunks: answer.chunks, keys: answer.results.len() });
    }
    if answer.results.iter().any(|result| result.key.cache_salt != scope.salt) {
        return Err(AnswerError::Salt);
    }
    Ok(ChunkLookup {
        chunks: leading(&chunks, |_| true),
        shared: leading(&chunks, |placement| placement.shared),
        lent: leading(&chunks, |placement| placement.shared || placement.tier == "l1"),
        held: held(&chunks),
    })
}

/// Leading chunks whose keys all have a place of this kind.
fn leading(chunks: &[&[Key<'_>]], kind: impl Fn(&Placement<'_>) -> bool) -> usize {
    chunks.iter().take_while(|keys| keys.iter().all(|key| key.placements.iter().any(&kind))).count()
}

/// Instances that have leading chunks by themselves, the longest first.
fn held(chunks: &[&[Key<'_>]]) -> Vec<InstanceChunks> {
    let mut held = Vec::new();
    let mut leading = chunks.first().map(|keys| whole(keys)).unwrap_or_default();
    for (before, keys) in chunks.iter().enumerate().skip(1) {
        if leading.is_empty() {
            break;
        }
        let here = whole(keys);
        leading.retain(|instance, slowest| match here.get(instance) {
            Some(tier) => {
                *slowest = (*slowest).max(*tier);
                true
            }
            None => {
                held.push(InstanceChunks { instance: (*instance).into(), tier: *slowest, chunks: before });
                false
            }
        });
    }
    let to_the_end = leading.into_iter();
    held.extend(to_the_end.map(|(name, tier)| InstanceChunks {
        instance: name.into(),
        tier,
        chunks: chunks.len(),
    }));
    held.sort_by(|a, b| b.chunks.cmp(&a.chunks).then_with(|| a.instance.cmp(&b.instance)));
    held
}

/// Instances that have every key of one chunk, and the slowest tier of each.
fn whole<'a>(keys: &'a [Key<'_>]) -> HashMap<&'a str, Tier> {
    let mut all: Option<HashMap<&str, Tier>> = None;
    for key in keys {
        let mut here: HashMap<&str, Tier> = HashMap::new();
        for placement in key.placements.iter().filter(|placement| !placement.shared) {
            let tier = if placement.tier == "l1" { Tier::Memory } else { Tier::Disk };
            // Of one object's copies the fastest is read.
            here.entry(&placement.instance_id).and_modify(|best| *best = tier.min(*best)).or_insert(tier);
        }
        all = Some(match all {
            None => here,
            Some(before) => before
                .into_iter()
                .filter_map(|(name, slowest)| Some((name, slowest.max(*here.get(name)?))))
                .collect(),
        });
    }
    all.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leading chunks, and who has how many of them on what.
    type ChunkHolders = (usize, Vec<(String, Tier, usize)>);

    /// A result for one key; places are written `mp0/l1`, a closing `*` for a shared one.
    fn key(chunk: usize, places: &str) -> String {
        let placements: Vec<String> = places
            .split_whitespace()
            .map(|place| {
                let (name, tier) = place.trim_end_matches('*').split_once('/').unwrap();
                let shared = place.ends_with('*');
                format!(
                    r#"{{"instance_id":"{name}","incarnation":1,"tier":"{tier}","backend":"dram","size_bytes":1,"shared":{shared}}}"#
                )
            })
            .collect();
        let name = format!(
            r#"{{"chunk_hash_hex":"{chunk:064x}","model_name":"m","kv_rank":16777472,"object_group_id":0,"cache_salt":""}}"#
        );
        let places = placements.join(",");
        format!(r#"{{"key":{name},"placements":[{places}],"token_ids":[],"access_count":0}}"#)
    }

    fn scope(world_size: u32) -> Scope<'static> {
        Scope { model: "m", world_size, salt: "" }
    }

    /// Chunks in braces of `[…]`, keys of each.
    fn found(chunks: &[&[&str]], ranks: u32) -> Result<ChunkHolders, AnswerError> {
        let keys =
            chunks.iter().enumerate().flat_map(|(n, keys)| keys.iter().map(move |places| key(n, places)));
        let body =
            format!(r#"{{"chunks":{},"results":[{}]}}"#, chunks.len(), keys.collect::<Vec<_>>().join(","));
        let found = answer(body.as_bytes(), scope(ranks), chunks.len())?;
        let held = found.held.into_iter().map(|held| (held.instance.to_string(), held.tier, held.chunks));
        Ok((found.chunks, held.collect()))
    }

    fn had(name: &str, tier: Tier, chunks: usize) -> (String, Tier, usize) {
        (name.to_owned(), tier, chunks)
    }

    #[test]
    fn every_holder_is_told_with_what_it_has_from_the_start() {
        assert_eq!(found(&[], 1).unwrap(), (0, vec![]));
        assert_eq!(found(&[&[""], &["mp0/l1"]], 1).unwrap(), (0, vec![]), "leading chunks count");
        let told = found(&[&["mp0/l1 mp1/l1"], &["mp0/l1 mp1/l1"], &["mp0/l2"], &["mp2/l1"], &[""]], 1);
        assert_eq!(told.unwrap(), (4, vec![had("mp0", Tier::Disk, 3), had("mp1", Tier::Memory, 2)]));
        let both = found(&[&["mp0/l2 mp0/l1"]], 1);
        assert_eq!(both.unwrap(), (1, vec![had("mp0", Tier::Memory, 1)]), "the fastest copy is read");
        let shared = found(&[&["mp0/l2*"], &["mp0/l1"]], 1);
        assert_eq!(shared.unwrap(), (2, vec![]), "a shared copy is on no host");
    }

    #[test]
    fn shared_tiers_are_read_by_all_and_memory_by_peers() {
        let reach = |chunks: &[&str], ranks: u32| {
            let keys: Vec<String> = chunks.iter().enumerate().map(|(n, places)| key(n / 2, places)).collect();
            let body = format!(r#"{{"chunks":{},"results":[{}]}}"#, chunks.len() / 2, keys.join(","));
            let found = answer(body.as_bytes(), scope(ranks), chunks.len() / 2).unwrap();
            (found.chunks, found.shared, found.lent)
        };
        let all =
            ["mp0/l2*", "mp0/l2* mp1/l1", "mp0/l1", "mp0/l2*", "mp0/l2", "mp0/l1", "mp0/l2*", "mp0/l2*"];
        assert_eq!(reach(&all, 2), (4, 1, 2), "each rank of a chunk may be in another place");
        assert_eq!(reach(&all[..4], 2), (2, 1, 2));
        assert_eq!(reach(&["mp0/l2", "mp0/l2*"], 2), (1, 0, 0), "a disk is nobody else's");
    }

    #[test]
    fn a_chunk_needs_all_its_ranks() {
        let split = found(&[&["mp0/l1", "mp1/l1"], &["mp0/l1", "mp0/l2"], &["mp0/l1", ""]], 2);
        assert_eq!(split.unwrap(), (2, vec![]));
        let told = found(&[&["mp0/l1", "mp0/l2 mp1/l1"], &["mp0/l1", "mp0/l1", "mp0/l1"]], 2);
        assert_eq!(told.unwrap(), (2, vec![had("mp0", Tier::Disk, 2)]));
        assert!(matches!(found(&[&["mp0/l1"]], 2), Err(AnswerError::Keys { chunks: 1, keys: 1 })));
    }

    #[test]
    fn other_answers_are_errors() {
        assert!(matches!(answer(b"{}", scope(1), 0), Err(AnswerError::Json(_))));
        assert!(matches!(answer(br#"{"detail":"x"}"#, scope(1), 1), Err(AnswerError::Json(_))));
        let other_size = br#"{"chunks":2,"results":[]}"#;
        assert!(matches!(
            answer(other_size, scope(1), 1),
            Err(AnswerError::ChunkSize { found: 2, asked: 1 })
        ));
        assert!(matches!(answer(other_size, scope(1), 2), Err(AnswerError::Keys { chunks: 2, keys: 0 })));
    }

    #[test]
    fn questions_have_model_ranks_and_salt() {
        let scope = Scope { model: "a \"model\"", world_size: 2, salt: "" };
        let body = question(&[1, 2], scope).unwrap();
        assert_eq!(body, br#"{"token_ids":[1,2],"model_name":"a \"model\"","world_size":2}"#);
        let body = question(&[1], Scope { salt: "tenant", ..scope }).unwrap();
        assert_eq!(
            body,
            br#"{"token_ids":[1],"model_name":"a \"model\"","world_size":2,"cache_salt":"tenant"}"#
        );
    }

    #[test]
    fn other_salts_chunks_are_no_answer() {
        let salted = key(0, "mp0/l1").replace(r#""cache_salt":"""#, r#""cache_salt":"a""#);
        let body = format!(r#"{{"chunks":1,"results":[{salted}]}}"#);
        let with = |salt| answer(body.as_bytes(), Scope { salt, ..scope(1) }, 1);
        assert_eq!(with("a").unwrap().chunks, 1);
        assert!(matches!((with(""), with("b")), (Err(AnswerError::Salt), Err(AnswerError::Salt))));
        let old = body.replace(r#","cache_salt":"a""#, "");
        let with = |salt| answer(old.as_bytes(), Scope { salt, ..scope(1) }, 1);
        assert_eq!(with("").unwrap().chunks, 1);
        assert!(matches!(with("a"), Err(AnswerError::Salt)), "a coordinator that knows no salts");
    }
}
