//! `POST /lookup` of `lmcache_controller`, as of LMCache 0.5.6. The module is pure.
//!
//! `{"tokens":[…]}` is answered with
//! `{"event_id":"…","layout_info":{"p0":["LocalCPUBackend",512]}}`: for each instance the end of
//! the last chunk, in tokens, that was found there. A chunk is found at the first instance that has
//! it, in the order in which they registered. So of several instances only the first in the answer
//! is known to have anything from the start. That is the first chunk, or all up to its end if no
//! other's comes before.
//!
//! Instances report the chunks in their own memory and on their own disks, which no other one
//! reads. But with `enable_p2p` one that lacks the first chunk asks the instance that is told here
//! for the chunks in its memory.

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{AnswerError, ChunkLookup, InstanceChunks};
use crate::pool::Tier;

/// Place where it is asked.
pub const PATH: &str = "/lookup";
/// Place where it lists its instances' addresses.
pub const INSTANCES_PATH: &str = "/controller/workers";

#[derive(Serialize)]
struct Question<'a> {
    tokens: &'a [u32],
}

#[derive(Deserialize)]
struct Answer {
    /// In the order of the answer.
    layout_info: Map<String, serde_json::Value>,
}

/// The body of a question.
///
/// # Errors
/// None that these values can have; the serialiser's.
pub fn question(tokens: &[u32]) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Question { tokens })
}

/// Reads the answer to a question of `asked` chunks.
///
/// # Errors
/// [`AnswerError::Json`], [`AnswerError::ChunkSize`].
pub fn answer(body: &[u8], chunk_tokens: usize, asked: usize) -> Result<ChunkLookup, AnswerError> {
    let answer: Answer = serde_json::from_slice(body)?;
    let mut all = Vec::with_capacity(answer.layout_info.len());
    for (instance, layout) in answer.layout_info {
        let (location, end): (String, usize) = serde_json::from_value(layout)?;
        let chunks = end / chunk_tokens.max(1);
        if end % chunk_tokens.max(1) != 0 || chunks > asked {
            return Err(AnswerError::ChunkSize { found: end.div_ceil(chunk_tokens.max(1)), asked });
        }
        all.push(InstanceChunks { instance: instance.into(), tier: tier(&location), chunks });
    }
    let chunks = all.iter().map(|held| held.chunks).max().unwrap_or(0);
    let least = all.iter().map(|held| held.chunks).min().unwrap_or(0);
    all.truncate(1);
    for first in &mut all {
        first.chunks = if first.chunks == least { least } else { 1 };
    }
    let lent = all.first().filter(|first| first.tier == Tier::Memory).map_or(0, |first| first.chunks);
    Ok(ChunkLookup { chunks, shared: 0, lent, held: all })
}

/// By the name of LMCache's backend.
fn tier(location: &str) -> Tier {
    if location.contains("CPU") { Tier::Memory } else { Tier::Disk }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leading chunks, and who has how many of them on what.
    type ChunkHolders = (usize, Vec<(String, Tier, usize)>);

    fn found(layout: &str) -> Result<ChunkHolders, AnswerError> {
        let body = format!(r#"{{"event_id":"Lookup8be154e5","layout_info":{layout}}}"#);
        let found = answer(body.as_bytes(), 256, 64)?;
        let held = found.held.into_iter().map(|held| (held.instance.to_string(), held.tier, held.chunks));
        Ok((found.chunks, held.collect()))
    }

    #[test]
    fn recorded_controller_answers_are_read() {
        assert_eq!(found("{}").unwrap(), (0, vec![]));
        let p0 = |tier, chunks| vec![("p0".to_owned(), tier, chunks)];
        assert_eq!(found(r#"{"p0":["LocalCPUBackend",16384]}"#).unwrap(), (64, p0(Tier::Memory, 64)));
        let shared = r#"{"p0":["LocalDiskBackend",512],"p1":["LocalCPUBackend",16384]}"#;
        assert_eq!(found(shared).unwrap(), (64, p0(Tier::Disk, 2)), "what p1 has at the start is not said");
        let holes = r#"{"p0":["LocalCPUBackend",1024],"p1":["LocalCPUBackend",512]}"#;
        assert_eq!(found(holes).unwrap(), (4, p0(Tier::Memory, 1)), "the second chunk was found at p1");
    }

    #[test]
    fn only_the_first_instance_lends_and_only_its_memory() {
        let lent = |layout: &str| {
            let body = format!(r#"{{"event_id":"Lookup8be154e5","layout_info":{layout}}}"#);
            let found = answer(body.as_bytes(), 256, 64).unwrap();
            (found.shared, found.lent)
        };
        assert_eq!(lent("{}"), (0, 0));
        assert_eq!(lent(r#"{"p0":["LocalCPUBackend",16384]}"#), (0, 64));
        assert_eq!(lent(r#"{"p0":["LocalCPUBackend",512],"p1":["LocalCPUBackend",16384]}"#), (0, 2));
        assert_eq!(lent(r#"{"p0":["LocalDiskBackend",512],"p1":["LocalCPUBackend",16384]}"#), (0, 0));
    }

    #[test]
    fn other_answers_are_errors() {
        for wrong in ["[]", "null", r#"{"p0":["a"]}"#, r#"{"p0":["a",-1]}"#, r#"{"p0":[256,"a"]}"#] {
            assert!(matches!(found(wrong), Err(AnswerError::Json(_))), "{wrong}");
        }
        assert!(matches!(found(r#"{"p0":["a",100]}"#), Err(AnswerError::ChunkSize { .. })));
        assert!(matches!(
            found(r#"{"p0":["a",16640]}"#),
            Err(AnswerError::ChunkSize { found: 65, asked: 64 })
        ));
    }

    #[test]
    fn questions_are_tokens() {
        assert_eq!(question(&[1, 70_000]).unwrap(), br#"{"tokens":[1,70000]}"#);
    }
}
