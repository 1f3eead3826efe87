//! Every decoder is away for a while: nothing is prefilled for nobody meanwhile, and nothing is
//! stranded afterwards.

use std::time::Duration;

use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind};
use tokio::time::Instant;

use super::plan::{Api, DECODER_FIRST, LATER, Request, Rng};
use super::world::{GATEWAY, exchange, in_virtual_time, spec};
use crate::common::memory::Memory;
use crate::common::time::pass;
use crate::dialects::{SPOKEN, Spoken};

/// Leases outlive the absence: what was handed over before it can only be gone if it was released.
const LEASE_MS: u64 = 60_000;
/// Requests that come meanwhile.
const MEANWHILE: u64 = 20;

fn config(spoken: Spoken) -> Config {
    let mut config = Config::default();
    config.dialect.name = spoken.0;
    config.dialect.callback_url = (spoken == DECODER_FIRST).then(|| format!("http://{GATEWAY}"));
    config.engine.lease_ms = LEASE_MS;
    config.timeout.connect_ms = 200;
    // Probes go over sockets.
    config.health.probe_ms = 0;
    config
}

fn request(n: u64) -> Request {
    Request {
        api: Api::Completions,
        stream: n.is_multiple_of(2),
        words: 20 + n,
        tokens: 5,
        at_ms: 0,
        stays_ms: None,
    }
}

fn prompts(engines: &[Engine]) -> usize {
    engines.iter().flat_map(Engine::seen).filter(|seen| seen.path.starts_with("/v1/completions")).count()
}

async fn play(spoken: Spoken, decoders: u8, rng: &mut Rng) {
    let spec = EngineSpec { connector: spoken.1, lease_ms: LEASE_MS, ..spec(0) };
    let memory = Memory::uneven(2, decoders, &spec, config(spoken)).await;
    let _listening = (spoken == DECODER_FIRST).then(|| memory.listen(GATEWAY.parse().unwrap()));
    let ask = async |n: u64| exchange(memory.router.clone(), &request(n), format!("r{n}")).await.unwrap();
    let when = format!("{spoken:?}, {decoders} decoders");
    let calm = ask(0).await;
    assert_eq!(calm.status, 200, "{when}: {calm:?}");
    memory.decoders.iter().for_each(|it| assert!(it.inject(Fault::always(FaultKind::Refuse))));
    let before = prompts(&memory.prefillers);
    for n in 1..=MEANWHILE {
        pass(Duration::from_millis(rng.between(10, 200))).await;
        let answer = ask(n).await;
        assert!(matches!(answer.status, 502 | 503), "{when}: {answer:?}");
        assert!(n < 4 || answer.ours.as_deref() == Some("no_decoder"), "{when}: {answer:?}");
    }
    let spent = prompts(&memory.prefillers) - before;
    assert!(spent <= usize::from(decoders), "{when}: {spent} prefills for nobody");
    memory.decoders.iter().for_each(Engine::clear_faults);
    let back = Instant::now();
    for n in 100.. {
        if ask(n).await.status == 200 {
            break;
        }
        assert!(back.elapsed() < Duration::from_secs(1), "{when}: it is not back");
        pass(Duration::from_millis(50)).await;
    }
    pass(Duration::from_secs(10)).await;
    for engine in memory.prefillers.iter().chain(&memory.decoders) {
        let ledger = engine.ledger();
        let held = ledger.pinned_handoffs + ledger.pinned_blocks + ledger.running + ledger.waiting;
        assert_eq!((held, ledger.expired, ledger.dead.as_deref()), (0, 0, None), "{when}: {ledger:?}");
    }
    assert!(!memory.app.gateway().fleets().first().relay.releases.pending(), "{when}");
}

#[test]
fn decoders_that_are_away_cost_no_prefills_and_strand_nothing() {
    for seed in 0..4 {
        for spoken in SPOKEN.into_iter().chain(LATER).chain([DECODER_FIRST]) {
            for decoders in [1, 3] {
                pd_proxy::util::rng::seed(seed);
                in_virtual_time(play(spoken, decoders, &mut Rng(seed)));
            }
        }
    }
}
