//! Engines that prefill and decode: a request stays on one where that is the best prefiller, in
//! mixed fleets too.

use std::net::SocketAddr;

use pd_proxy::app::App;
use pd_proxy::config::{Config, DialectName};
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{chat, completion};
use crate::common::client::{self, Raw};
use crate::common::stage::slow;
use crate::common::time::eventually;

struct Mixed {
    /// A prefiller, a decoder, and one that is both; the first two may be missing.
    pair: Vec<Engine>,
    both: Engine,
    gateway: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

impl Mixed {
    async fn new(with_pair: bool) -> Mixed {
        let roles: &[Role] = if with_pair { &[Role::Prefill, Role::Decode] } else { &[] };
        Mixed::with(roles).await
    }

    /// Two that are both.
    async fn twins() -> Mixed {
        Mixed::with(&[Role::Both]).await
    }

    async fn with(roles: &[Role]) -> Mixed {
        let start = async |role| {
            let spec = EngineSpec { role, lease_ms: 2_000, ..slow() };
            Engine::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
        };
        let both = start(Role::Both).await;
        let mut pair = Vec::new();
        for role in roles {
            pair.push(start(*role).await);
        }
        let mut config = Config::default();
        (config.server.host, config.server.port) = ("127.0.0.1".into(), 0);
        config.dialect.name = DialectName::KvTransfer;
        config.health.probe_ms = 0;
        let name = |engine: &Engine| engine.addr().to_string();
        let of = |role: Role| {
            let mine = pair.iter().zip(roles).filter(|(_, it)| **it == role || **it == Role::Both);
            mine.map(|(engine, _)| engine).chain([&both]).map(name).collect()
        };
        (config.fleet.prefill, config.fleet.decode) = (of(Role::Prefill), of(Role::Decode));
        let app = App::build(&config).await.unwrap();
        let (gateway, stop) = (app.addresses()[0], app.stop());
        #[expect(clippy::disallowed_methods, reason = "it is waited for in `end`")]
        let serving = tokio::spawn(app.serve());
        Mixed { pair, both, gateway, stop, serving }
    }

    async fn post(&self, (path, body): (&str, String)) -> Raw {
        client::send(self.gateway, &client::post(path, &body)).await
    }

    /// Requests that an engine was sent: all, and those that name another engine.
    fn seen(engine: &Engine) -> (usize, usize) {
        let seen: Vec<_> = engine.seen().into_iter().filter(|seen| seen.method == "POST").collect();
        let with =
            |text: &str| seen.iter().filter(|s| String::from_utf8_lossy(&s.body).contains(text)).count();
        (seen.len(), with("kv_transfer_params"))
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
        for engine in self.pair.into_iter().chain([self.both]) {
            // A decoder that died with a hand-off may have read it: such blocks are free when their
            // lease ends.
            let left = async || (engine.ledger().pinned_blocks, engine.ledger().running) == (0, 0);
            eventually("nothing is left", left).await;
            assert_eq!(engine.ledger().dead, None);
            engine.stop().await;
        }
    }
}

#[tokio::test]
async fn an_engine_that_does_both_is_asked_once() {
    let mixed = Mixed::new(false).await;
    for (round, ask) in [completion(false), completion(true), chat(false), chat(true)].into_iter().enumerate()
    {
        let answer = mixed.post(ask).await;
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        assert_eq!(Mixed::seen(&mixed.both), (round + 1, 0), "one request each, which names nobody");
    }
    mixed.end().await;
}

#[tokio::test]
async fn in_a_mixed_fleet_requests_go_whole_or_in_two_legs_and_read_the_same() {
    let mixed = Mixed::new(true).await;
    let alone = mixed.post(completion(false)).await.words();
    let answers = futures_util::future::join_all((0..12).map(|_| mixed.post(completion(true)))).await;
    for answer in &answers {
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        assert_eq!(answer.words(), alone);
    }
    let ((prefills, asked), (decodes, given)) = (Mixed::seen(&mixed.pair[0]), Mixed::seen(&mixed.pair[1]));
    let (both, named) = Mixed::seen(&mixed.both);
    assert!(prefills > 0 && asked == prefills, "the prefiller had its share");
    assert!(both > named, "some were served whole: {both} {named}");
    assert_eq!(given + named, prefills, "what was handed over came to a decoder, of either kind");
    assert_eq!(decodes, given, "the decoder computed no prompt itself");
    mixed.end().await;
}

#[tokio::test]
async fn pair_serves_after_a_combined_engine_fails() {
    let mixed = Mixed::new(true).await;
    let words = mixed.post(completion(false)).await.words();
    for what in [FaultKind::Status(500, None), FaultKind::ResetBeforeHead, FaultKind::Refuse] {
        assert!(mixed.both.inject(Fault::always(what.clone()).on_path("/v1/")));
        for _ in 0..4 {
            let answer = mixed.post(completion(true)).await;
            assert_eq!((answer.status, answer.words()), (200, words.clone()), "{what:?}: {}", answer.text());
        }
        mixed.both.clear_faults();
    }
    mixed.end().await;
}

/// An engine that failed a request is not asked for it again while there is another, though it be
/// the cheapest.
#[tokio::test]
async fn one_of_two_that_do_both_may_be_dead() {
    for what in [
        FaultKind::Refuse,
        FaultKind::Status(500, None),
        FaultKind::Status(503, None),
        FaultKind::ResetBeforeHead,
    ] {
        let mixed = Mixed::twins().await;
        let words = mixed.post(completion(false)).await.words();
        // The first one has the prompt in memory, or the other has.
        let has_it = Mixed::seen(&mixed.both).0 == 1;
        let dead = if has_it { &mixed.both } else { &mixed.pair[0] };
        assert!(dead.inject(Fault::always(what.clone()).on_path("/v1/")));
        for stream in [false, true, false, true] {
            let answer = mixed.post(completion(stream)).await;
            assert_eq!((answer.status, answer.words()), (200, words.clone()), "{what:?}: {}", answer.text());
        }
        mixed.end().await;
    }
}
