//! Engines with several data-parallel ranks behind one port.

use futures_util::future::join_all;
use pd_proxy::sim::{EngineSpec, Seen};

use super::{CHAT, chat, explained, number, script};
use crate::common::stage::Stage;

const RANK: &str = "x-data-parallel-rank";

fn asked(seen: &Seen) -> Option<&str> {
    seen.headers.iter().find(|(name, _)| name == RANK).map(|(_, rank)| rank.as_str())
}

/// A stage whose engines have two ranks each, among which the gateway chooses if `ours`.
async fn stage(ours: bool) -> Stage {
    let mut script = script(2, 4_000.0);
    script.engine = EngineSpec { ranks: 2, ..script.engine };
    if ours {
        (script.config.fleet.prefill_ranks, script.config.fleet.decode_ranks) = (2, 2);
    }
    Stage::set(script).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_go_back_to_the_rank_that_has_them() {
    let stage = stage(true).await;
    // They begin together, so that they spread; each goes on when nobody is in its way.
    let first = async |conversation| explained(stage.gateway, &chat(conversation, 1, 160)).await;
    join_all((0..8).map(first)).await;
    for conversation in 0..8 {
        for turn in 1..3 {
            let said = explained(stage.gateway, &chat(conversation, 2 * turn + 1, 160)).await;
            let (predicted, found) = (number(&said, "any_tokens"), number(&said, "cached_tokens"));
            assert!((predicted - found).abs() <= 16.0, "turn {turn}: predicted {predicted}, found {found}");
            assert!(found > 100.0, "turn {turn} finds {found}");
            assert!(said["prefiller"].contains('@'), "the rank is named: {said:?}");
        }
    }
    let mut places = std::collections::BTreeSet::new();
    for (at, engine) in stage.prefillers.iter().enumerate() {
        for seen in stage.seen(std::slice::from_ref(engine)).iter().filter(|seen| seen.path == CHAT) {
            places.insert((at, asked(seen).map(str::to_owned)));
        }
    }
    let rank = |rank: &str| Some(rank.to_owned());
    let all = [(0, rank("0")), (0, rank("1")), (1, rank("0")), (1, rank("1"))];
    assert_eq!(places.into_iter().collect::<Vec<_>>(), all, "eight conversations on four ranks");
    for seen in stage.seen(&stage.decoders) {
        assert!(matches!(asked(&seen), Some("0" | "1")));
    }
    stage.assert_nothing_left("ranks").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_choose_their_ranks_themselves_unless_told_otherwise() {
    let stage = stage(false).await;
    explained(stage.gateway, &chat(0, 1, 160)).await;
    for seen in stage.seen(&stage.prefillers).iter().chain(&stage.seen(&stage.decoders)) {
        assert_eq!(asked(seen), None);
    }
    stage.end().await;
}
