//! Watching an engine that loses batches, restarts, talks nonsense and goes away.

use std::sync::{Arc, RwLock};

use pd_proxy::kvhash::BlockHash;
use pd_proxy::pool::events::index::{BlockIndex, IndexLimits};
use pd_proxy::pool::events::status::{Count, State, Status};
use pd_proxy::pool::events::watch::{SharedIndex, Source, Times, Watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::publisher::{Ports, Publisher, nothing, removes, stores};
use crate::common::time::eventually;

const TIMES: Times = Times {
    connect_ms: 2_000,
    retry_ms: 10,
    retry_max_ms: 50,
    replay_quiet_ms: 2_000,
    replay_ms: 10_000,
    lost_ms: 60_000,
};

struct Listening {
    index: SharedIndex,
    status: Arc<Status>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Listening {
    fn to(source: Source, times: Times) -> Self {
        let index: SharedIndex = Arc::new(RwLock::new(BlockIndex::new(IndexLimits::default())));
        let watch = Watch::new(source, times, Arc::clone(&index));
        let (status, stop, mut tasks) = (watch.status(), CancellationToken::new(), JoinSet::new());
        watch.spawn(&mut tasks, stop.clone());
        Self { index, status, stop, tasks }
    }

    /// Leading blocks of these that the engine has in HBM.
    fn has(&self, hashes: impl IntoIterator<Item = u64>) -> u32 {
        let hashes: Vec<BlockHash> = hashes.into_iter().map(|it| BlockHash::from(it.to_be_bytes())).collect();
        self.index.read().unwrap().prefixes(&hashes, 16).holders.first().map_or(0, |it| it.hbm_blocks)
    }

    fn held(&self) -> usize {
        let index = self.index.read().unwrap();
        index.find(1, 0).map_or(0, |holder| index.held_blocks(holder).0)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let state = || Err(format!("{:?}, {} blocks", self.status, self.held()));
        eventually(what, async || if holds(self) { Ok(()) } else { state() }).await;
    }

    /// Publishes batches that say nothing until this holds: a subscription takes its time to be
    /// known.
    async fn while_it_speaks(&self, engine: &mut Publisher, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut looks = 0;
        eventually(what, async || {
            if holds(self) {
                return Ok(());
            }
            // Not at every look: a word takes its time, too.
            if looks % 5 == 0 {
                engine.publish(nothing()).await;
            }
            looks += 1;
            Err(format!("{:?}, {} blocks", self.status, self.held()))
        })
        .await;
    }

    /// Until batches come live.
    async fn hears(&self, engine: &mut Publisher) {
        let so_far = self.status.count(Count::Batches);
        self.while_it_speaks(engine, "heard", |it| {
            it.status.state() == State::Live && it.status.count(Count::Batches) > so_far
        })
        .await;
    }

    async fn ends(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        assert_eq!(
            (self.held(), self.index.read().unwrap().entries()),
            (0, 0),
            "what nobody keeps up to date"
        );
        assert_eq!(self.status.state(), State::Lost);
    }
}

fn source(ports: Ports, replay: bool) -> Source {
    Source {
        instance: 1,
        name: "engine".into(),
        rank: 0,
        events: ports.events(),
        engine_connects: false,
        replay: replay.then(|| ports.replay()),
        topic: "kv".into(),
    }
}

#[tokio::test]
async fn late_subscriber_gets_all_events() {
    for topics in [true, false] {
        let ports = Ports::free();
        let mut engine = Publisher::start(ports, topics).await;
        engine.publish(stores(&[1, 2, 3])).await;
        engine.publish(removes(&[3])).await;
        let listening = Listening::to(source(ports, true), TIMES);
        listening.until("caught up", |it| it.has([1, 2]) == 2 && it.held() == 2).await;
        listening.until("live", |it| it.status.state() == State::Live).await;
        assert!(listening.status.is_complete());
        listening.hears(&mut engine).await;
        engine.publish(stores(&[7, 8])).await;
        listening.until("up to date", |it| it.has([1, 2, 7, 8]) == 4).await;
        assert_eq!(listening.status.count(Count::Emptied), 0);
        listening.ends().await;
    }
}

#[tokio::test]
async fn batches_before_the_replay_port_are_requested_later() {
    let ports = Ports::free();
    let mut engine = Publisher::start_half(ports, true).await;
    engine.miss(stores(&[1, 2]));
    engine.miss(removes(&[2]));
    let listening = Listening::to(source(ports, true), TIMES);
    // Live batches come first, and none of the older ones.
    listening.hears(&mut engine).await;
    engine.publish(stores(&[3])).await;
    listening.until("heard", |it| it.has([3]) == 1).await;
    assert_eq!((listening.held(), listening.status.is_complete()), (1, false));
    engine.open_replay(ports).await;
    listening.until("whole", |it| it.has([1, 3]) == 2 && it.has([2]) == 0).await;
    listening.until("live", |it| it.status.state() == State::Live).await;
    assert_eq!((engine.asked()[0], listening.status.is_complete()), (0, true));
    engine.publish(stores(&[4])).await;
    listening.until("up to date", |it| it.has([1, 3, 4]) == 3).await;
    listening.ends().await;
}

#[tokio::test]
async fn lost_batches_are_replayed() {
    let ports = Ports::free();
    let mut engine = Publisher::start(ports, true).await;
    let listening = Listening::to(source(ports, true), TIMES);
    engine.publish(stores(&[1, 2])).await;
    listening.while_it_speaks(&mut engine, "there", |it| it.has([1, 2]) == 2).await;
    listening.hears(&mut engine).await;
    let missed = engine.miss(stores(&[3]));
    engine.miss(removes(&[1]));
    engine.leave_out(missed + 1);
    engine.publish(stores(&[4])).await;
    listening.until("whole again", |it| it.has([2, 3, 4]) == 3 && it.has([1]) == 0).await;
    assert_eq!(listening.status.count(Count::Gaps), 1);
    assert_eq!(engine.asked()[engine.asked().len() - 2..], [missed, missed + 1]);
    assert_eq!((listening.status.count(Count::Emptied), listening.status.is_complete()), (0, true));
    listening.ends().await;
}

#[tokio::test]
async fn unreplayable_loss_empties_the_index() {
    for replay in [true, false] {
        let ports = Ports::free();
        let mut engine = Publisher::start(ports, true).await;
        let listening = Listening::to(source(ports, replay), TIMES);
        listening.hears(&mut engine).await;
        engine.publish(stores(&[1, 2])).await;
        listening.until("there", |it| it.has([1, 2]) == 2).await;
        engine.keep(1);
        engine.miss(removes(&[1]));
        engine.publish(stores(&[2])).await;
        listening.until("what is known", |it| it.held() == 1 && it.has([2]) == 1).await;
        assert_eq!(listening.status.count(Count::Emptied), 1);
        assert!(!listening.status.is_complete());
        listening.ends().await;
    }
}

#[tokio::test]
async fn a_restarted_engine_begins_anew() {
    for batches in [1, 40] {
        let ports = Ports::free();
        let mut engine = Publisher::start(ports, true).await;
        engine.publish(stores(&[1, 2])).await;
        (0..9).for_each(|_| assert!(engine.miss(nothing()) > 0));
        let listening = Listening::to(source(ports, true), TIMES);
        listening.until("there", |it| it.has([1, 2]) == 2 && it.status.state() == State::Live).await;
        drop(engine);
        listening.until("lost", |it| it.status.state() == State::Lost).await;
        assert_eq!(listening.has([1, 2]), 2, "a short loss forgets nothing");
        let mut engine = Publisher::start(ports, true).await;
        // With 40 it is farther than the old one was, and has a batch of the same number.
        (0..batches).for_each(|it| assert_eq!(engine.miss(stores(&[100 + it])), it));
        listening.until("another engine's", |it| it.has([100]) == 1 && it.has([1]) == 0).await;
        let all = u32::try_from(batches).unwrap();
        listening.until("all of it", |it| it.has((0..batches).map(|it| 100 + it)) == all).await;
        assert_eq!(listening.status.count(Count::Restarts), 1);
        listening.hears(&mut engine).await;
        assert!(listening.status.is_complete());
        listening.ends().await;
    }
}

#[tokio::test]
async fn without_a_replay_numbers_that_go_back_tell_of_a_restart() {
    let ports = Ports::free();
    let mut engine = Publisher::start(ports, true).await;
    let listening = Listening::to(source(ports, false), TIMES);
    listening.hears(&mut engine).await;
    engine.publish(stores(&[1])).await;
    listening.until("there", |it| it.has([1]) == 1).await;
    engine.send(0, stores(&[2])).await;
    listening.until("anew", |it| it.has([2]) == 1 && it.has([1]) == 0).await;
    assert_eq!(listening.status.count(Count::Restarts), 1);
    listening.ends().await;
}

#[tokio::test]
async fn nonsense_is_counted_and_skipped() {
    let ports = Ports::free();
    let mut engine = Publisher::start(ports, true).await;
    let listening = Listening::to(source(ports, true), TIMES);
    listening.hears(&mut engine).await;
    engine.publish(vec![0xc1, 1, 2]).await;
    engine.frames(&[b"kv-events".to_vec()]).await;
    engine.frames(&[b"kv-events".to_vec(), vec![1, 2], nothing()]).await;
    engine.frames(&[b"kv-events".to_vec(), vec![255; 8], nothing()]).await;
    engine.frames(&[b"other".to_vec(), vec![0; 8], stores(&[9])]).await;
    engine.publish(stores(&[5])).await;
    listening.until("there", |it| it.has([5]) == 1).await;
    assert_eq!(listening.status.count(Count::Malformed), 4);
    assert_eq!((listening.has([9]), listening.status.count(Count::Gaps)), (0, 0));
    assert!(!listening.status.is_complete());
    listening.ends().await;
}

#[tokio::test]
async fn an_engine_that_stays_away_has_nothing() {
    let ports = Ports::free();
    let mut engine = Publisher::start(ports, true).await;
    engine.publish(stores(&[1])).await;
    let listening = Listening::to(source(ports, true), Times { lost_ms: 200, ..TIMES });
    listening.until("there", |it| it.has([1]) == 1 && it.status.state() == State::Live).await;
    drop(engine);
    listening.until("forgotten", |it| it.held() == 0).await;
    assert_eq!((listening.status.state(), listening.status.is_complete()), (State::Lost, false));
    let mut engine = Publisher::start(ports, true).await;
    engine.publish(stores(&[2])).await;
    listening.until("back", |it| it.has([2]) == 1 && it.status.is_complete()).await;
    listening.ends().await;
}

#[tokio::test]
async fn engines_that_connect_are_listened_for() {
    let ports = Ports::free();
    let of = Source { engine_connects: true, ..source(ports, false) };
    let listening = Listening::to(of, TIMES);
    let mut first = Publisher::towards(ports.events).await;
    listening.hears(&mut first).await;
    first.publish(stores(&[1])).await;
    listening.until("there", |it| it.has([1]) == 1).await;
    // A newer one takes its place, though the old one never said good-bye.
    let mut second = Publisher::towards(ports.events).await;
    listening.until("taken over", |it| it.status.count(Count::Connections) == 2).await;
    second.publish(nothing()).await;
    listening.while_it_speaks(&mut second, "anew", |it| it.has([1]) == 0).await;
    second.publish(stores(&[2])).await;
    listening.until("there", |it| it.has([2]) == 1).await;
    listening.ends().await;
}
