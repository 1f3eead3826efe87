//! Turns of conversations in a trace: the request that each one continues.

use super::cache::BlockMap;
use super::trace::TraceRequest;

/// A block that all prompts share says nothing, and the first often is a system prompt's.
const SHARED_BLOCKS: usize = 1;

/// The index of the request that each request continues, none for those that begin.
///
/// In a trace with sessions that is the session's request before; in others the latest one whose
/// prompt and answer both fit into this prompt, which begins with all of its full blocks.
#[must_use]
pub fn earlier_turns(trace: &[TraceRequest]) -> Vec<Option<u32>> {
    let mut latest: BlockMap<u32> = BlockMap::default();
    let mut sessions: BlockMap<u32> = BlockMap::default();
    let mut turns = Vec::with_capacity(trace.len());
    for (at, request) in trace.iter().enumerate() {
        let at = at as u32;
        turns.push(match request.session {
            Some(session) => sessions.insert(session, at),
            None => continued(trace, &latest, request),
        });
        if let Some(last) = request.blocks.get(SHARED_BLOCKS..).and_then(<[u64]>::last) {
            latest.insert(*last, at);
        }
    }
    turns
}

/// Ids of blocks are chained, so that the last full one stands for all of them.
fn continued(trace: &[TraceRequest], latest: &BlockMap<u32>, request: &TraceRequest) -> Option<u32> {
    let own = request.blocks.get(SHARED_BLOCKS..)?;
    let ends = own.iter().rev().filter_map(|block| latest.get(block).copied());
    let fits = |at: &u32| {
        trace.get(*at as usize).is_some_and(|earlier| {
            let held = u64::from(earlier.prompt_tokens) + u64::from(earlier.output_tokens);
            held <= u64::from(request.prompt_tokens)
        })
    };
    ends.into_iter().find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::trace::parse;

    fn turns(requests: &[(u32, u32, &str, &str)]) -> Vec<Option<u32>> {
        let line = |(prompt, output, ids, more): &(u32, u32, &str, &str)| {
            format!(
                r#"{{"timestamp": 0, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{ids}]{more}}}"#
            )
        };
        earlier_turns(&parse(&requests.iter().map(line).collect::<Vec<_>>().join("\n"), usize::MAX).unwrap())
    }

    #[test]
    fn a_turn_holds_the_prompt_and_the_answer_before() {
        let found = turns(&[
            (1_100, 50, "0, 1, 2", ""),
            (1_200, 50, "0, 1, 3", ""),
            (1_400, 50, "0, 1, 4", ""),
            (2_100, 50, "0, 1, 4, 5, 6", ""),
            (2_600, 50, "0, 7, 8, 9, 10", ""),
        ]);
        assert_eq!(found, [None, Some(0), Some(1), Some(2), None]);
        // Another question about the same text is no next turn: the answer is not in it.
        assert_eq!(turns(&[(1_100, 500, "0, 1, 2", ""), (1_150, 50, "0, 1, 3", "")]), [None, None]);
    }

    #[test]
    fn a_shared_system_prompt_joins_nobody() {
        assert_eq!(turns(&[(600, 9, "0, 1", ""), (1_700, 9, "0, 2, 3, 4", "")]), [None, None]);
    }

    #[test]
    fn sessions_that_the_trace_names_are_believed() {
        let (one, two) = (r#", "session": 1"#, r#", "session": 2"#);
        let found = turns(&[
            (1_100, 9, "0, 1, 2", one),
            (1_100, 9, "0, 1, 2", two),
            (600, 9, "0, 3", one),
            (2_000, 9, "0, 1, 4, 5", two),
        ]);
        assert_eq!(found, [None, None, Some(0), Some(1)]);
    }
}
