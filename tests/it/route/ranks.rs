//! Engines with several data-parallel ranks behind one port.

use futures_util::future::join_all;
use pd_proxy::sim::{Engine, EngineSpec, ObservedRequest, Role};
use serde_json::Value;

use super::{CHAT, ask, chat, explained, number, script};
use crate::common::place;
use crate::common::raw_engine::Front;
use crate::common::stage::{Stage, fast};
use crate::common::time::eventually;

const RANK: &str = "x-data-parallel-rank";

fn asked(seen: &ObservedRequest) -> Option<&str> {
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

async fn engine(role: Role, ranks: u16) -> Engine {
    Engine::start(EngineSpec { role, ranks, ..fast() }, place::own_host()).await.unwrap()
}

/// The ranks of each member that serves, by its address.
async fn ranks(front: &Front) -> Vec<(String, u64)> {
    let told = front.get("/instances").await.json();
    let members = told["instances"].as_array().unwrap().iter().filter(|member| member["draining"] == false);
    let of =
        |member: &Value| (member["instance"].as_str().unwrap().to_owned(), member["ranks"].as_u64().unwrap());
    members.map(of).collect()
}

/// A rank that an engine has not is refused by it with a 400, which is the client's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_with_different_numbers_of_ranks_are_each_asked_for_their_own() {
    let (three, one, two) =
        (engine(Role::Prefill, 3).await, engine(Role::Prefill, 1).await, engine(Role::Decode, 2).await);
    for configured in [0, 4] {
        let front = Front::at(&[three.addr(), one.addr()], &[two.addr()], |config| {
            (config.fleet.prefill_ranks, config.fleet.decode_ranks) = (configured, configured);
            config.health.probe_ms = 50;
        })
        .await;
        let expected =
            [(three.addr(), 3), (one.addr(), 1), (two.addr(), 2)].map(|(at, ranks)| (at.to_string(), ranks));
        eventually("each has told", async || ranks(&front).await == expected).await;
        [&three, &one, &two].iter().for_each(|engine| engine.clear_seen());
        // All at once, so that every place gets some.
        join_all((0..24).map(|at| {
            let front = &front;
            async move { ask(front.at, &chat(at, 1, 40)).await }
        }))
        .await;
        let asked_for = |engine: &Engine| {
            let seen = engine.seen();
            // The gateway's own question, if chats may have token ids, names no rank.
            let is_ours = |seen: &&ObservedRequest| {
                seen.path == CHAT && seen.body.windows(4).any(|word| word == b"m00 ")
            };
            let ranks = seen.iter().filter(is_ours).map(|seen| asked(seen).map(str::to_owned));
            ranks.collect::<std::collections::BTreeSet<_>>()
        };
        let some = |ranks: &[&str]| ranks.iter().map(|rank| Some((*rank).to_owned())).collect();
        assert_eq!(asked_for(&three), some(&["0", "1", "2"]), "{configured}");
        assert!(asked_for(&one).is_subset(&[None].into()), "{configured}: {:?}", asked_for(&one));
        assert_eq!(asked_for(&two), some(&["0", "1"]), "{configured}");
        front.end().await;
    }
    for engine in [three, one, two] {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_has_the_ranks_that_it_is_configured_with() {
    let (p, d) = (engine(Role::Prefill, 3).await, engine(Role::Decode, 3).await);
    let named = format!("{}=2", p.addr());
    let front = Front::at(&[p.addr()], &[d.addr()], |config| {
        config.fleet.ranks = vec![named];
        config.health.probe_ms = 50;
    })
    .await;
    assert_eq!(ranks(&front).await, [(p.addr().to_string(), 2), (d.addr().to_string(), 1)]);
    ask(front.at, &chat(0, 1, 40)).await;
    assert!(
        p.seen().iter().filter(|seen| seen.path == CHAT).all(|seen| matches!(asked(seen), Some("0" | "1")))
    );
    front.end().await;
    p.stop().await;
    d.stop().await;
}
