//! Engines and APIs over a limit of requests (429 with `Retry-After`): a client is told when to
//! come back, and who was asked.

use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::{Value, json};

use super::{CHAT, DIALECTS, Fleets, Settings, Side, chat};
use crate::common::client::Raw;
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;

const EMBEDDINGS: &str = "/v1/embeddings";

/// Requests do not wait for room, nor are busy engines taken for broken ones.
const AT_ONCE: &str = "[limit]\nqueue_ms = 50\n";

/// The wait of the default.
const PATIENT: &str = "[limit]\nqueue_ms = 30000\n";

/// A gateway with two fleets and an API elsewhere, which take over from each other.
struct Chain {
    fleets: Fleets,
    cloud: Engine,
}

impl Chain {
    async fn start(limit: &str) -> Chain {
        let spec = EngineSpec { role: Role::Decode, model: "big-model".into(), ..fast() };
        let cloud = Engine::start(spec, place::own_host()).await.unwrap();
        let top = format!(
            "{limit}[models]\nfallback = [\"model-0=f1 cloud\"]\n\
             [fleets.cloud.fleet]\nremote = \"http://{}/v1\"\nmodel = \"big-model\"\n",
            cloud.addr()
        );
        let own = ["model = \"model-0\"", "model = \"model-1\""];
        let fleets = Fleets::set(&DIALECTS[..2], Settings { top: &top, fleet: &own }).await;
        Chain { fleets, cloud }
    }

    fn fleet(&self, at: usize) -> [&Engine; 2] {
        let Side { prefiller, decoder, .. } = &self.fleets.sides[at];
        [prefiller, decoder]
    }

    async fn end(self) {
        self.fleets.end().await;
        self.cloud.stop().await;
    }
}

fn strike(engines: &[&Engine], kind: &FaultKind) {
    assert!(engines.iter().all(|engine| engine.inject(Fault::always(kind.clone()).on_path("/v1/"))));
}

/// Status, code, `Retry-After` and `x-pd-route` of a refusal.
fn said(answer: &Raw) -> (u16, &str, u64, &str) {
    let header = |name| answer.header(name).unwrap_or_default();
    let seconds = header("retry-after").parse().unwrap_or_default();
    (answer.status, header("x-pd-error"), seconds, header("x-pd-route"))
}

/// Requests for the model of the first fleet on routes that fall back.
fn requests() -> [(&'static str, Value); 3] {
    let mut stream = chat("model-0");
    stream["stream"] = true.into();
    [
        (CHAT, chat("model-0")),
        (CHAT, stream),
        (EMBEDDINGS, json!({"model": "model-0", "input": "hello there"})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_that_is_over_its_limits_says_when_the_first_has_room() {
    let chain = Chain::start(AT_ONCE).await;
    strike(&chain.fleet(0), &FaultKind::RateLimit(900));
    strike(&chain.fleet(1), &FaultKind::RateLimit(700));
    strike(&[&chain.cloud], &FaultKind::RateLimit(800));
    for round in 0..2 {
        for (path, body) in requests() {
            let refused = chain.fleets.post(path, &body).await;
            let (status, code, seconds, route) = said(&refused);
            let what = format!("{round} {path}: {}", refused.text());
            assert_eq!((status, code), (429, "overloaded"), "{what}");
            assert!((500..=700).contains(&seconds), "{what}: {seconds}");
            assert_eq!(route, "cloud;from=f0;reason=overloaded;from=f1;reason=overloaded", "{what}");
        }
    }
    chain.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_that_names_a_time_beyond_the_wait_is_asked_once() {
    let chain = Chain::start(PATIENT).await;
    let engines = [chain.fleet(0)[0], chain.fleet(1)[0], &chain.cloud];
    strike(&engines, &FaultKind::RateLimit(900));
    engines.iter().for_each(|engine| engine.clear_seen());
    let refused = chain.fleets.chat("model-0").await;
    assert_eq!((refused.status, said(&refused).1), (429, "overloaded"), "{}", refused.text());
    for engine in engines {
        let seen = engine.seen();
        let asked =
            seen.iter().filter(|seen| String::from_utf8_lossy(&seen.body).contains("hello there")).count();
        assert_eq!(asked, 1, "{}", engine.addr());
    }
    chain.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn want_of_room_that_passes_goes_before_what_may_not() {
    let chain = Chain::start(AT_ONCE).await;
    let limit = FaultKind::RateLimit(900);
    let of_key = FaultKind::Status(401, None);
    let full = FaultKind::Status(503, None);
    let broken = FaultKind::Status(500, None);
    // Faults of the three; the status, the least and the longest time.
    for (faults, status, wait) in [
        ([&broken, &broken, &limit], 429, 500..=900),
        ([&limit, &broken, &of_key], 429, 500..=900),
        ([&limit, &limit, &full], 503, 1..=1),
        ([&full, &limit, &of_key], 503, 1..=1),
    ] {
        for (path, body) in requests() {
            strike(&chain.fleet(0), faults[0]);
            strike(&chain.fleet(1), faults[1]);
            strike(&[&chain.cloud], faults[2]);
            let refused = chain.fleets.post(path, &body).await;
            let (got, code, seconds, route) = said(&refused);
            let what = format!("{faults:?} {path}: {}", refused.text());
            assert_eq!((got, code), (status, "overloaded"), "{what}");
            assert!(wait.contains(&seconds), "{what}: {seconds}");
            assert!(route.starts_with("cloud;from=f0;reason="), "{what}: {route}");
            let engines = [chain.fleet(0), chain.fleet(1)].concat();
            engines.iter().chain(&[&chain.cloud]).for_each(|engine| engine.clear_faults());
            for model in ["model-0", "model-1"] {
                let own = if model == "model-0" { "f0" } else { "" };
                let serves = async || {
                    let answer = chain.fleets.chat(model).await;
                    answer.status == 200 && answer.header("x-pd-route").unwrap_or_default() == own
                };
                eventually("its own fleet serves again", serves).await;
            }
        }
    }
    chain.end().await;
}

/// A prefiller or a decoder alone, or both; a role whose engines name other times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_alone_says_what_its_engines_say() {
    let fleets = Fleets::set(&DIALECTS[..1], Settings { top: AT_ONCE, fleet: &[] }).await;
    let Side { prefiller, decoder, .. } = &fleets.sides[0];
    let spec = EngineSpec { role: Role::Decode, model: "model-0".into(), ..fast() };
    let second = Engine::start(spec, place::own_host()).await.unwrap();
    let change = json!({"type": "decode", "fleet": "f0", "instances": [second.addr().to_string()]});
    assert_eq!(fleets.post("/instances/add", &change).await.status, 200);
    let late = FaultKind::RateLimit(900);
    for (struck, kinds, status, wait) in [
        (vec![prefiller], [&late, &late], 429, 500..=900),
        (vec![decoder, &second], [&late, &FaultKind::RateLimit(700)], 429, 500..=700),
        (vec![decoder, &second], [&late, &FaultKind::Status(503, None)], 503, 1..=1),
    ] {
        for (engine, kind) in struck.iter().zip(kinds) {
            strike(&[engine], kind);
        }
        for stream in [false, true] {
            let mut body = chat("model-0");
            body["stream"] = stream.into();
            // Both of a role have to have said so: a request may be refused by one alone.
            let refused = async || {
                let refused = fleets.post(CHAT, &body).await;
                let (got, code, seconds, route) = said(&refused);
                assert_eq!((code, route), ("overloaded", ""), "{kinds:?}: {}", refused.text());
                got == status && wait.contains(&seconds)
            };
            eventually("they say when there is room", refused).await;
        }
        for engine in struck {
            engine.clear_faults();
        }
        eventually("it serves again", async || fleets.chat("model-0").await.status == 200).await;
    }
    second.stop().await;
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_and_refusal_of_a_shared_model_name_their_fleet() {
    // With comments a stream takes another way to its answer.
    for keep_alive in ["", "[stream]\nkeep_alive_ms = 3600000\n"] {
        let top = format!("{keep_alive}{AT_ONCE}[models]\ntargets = [\"gpt-4o=f0:1 f1:0\"]\n");
        let own = ["model = \"model-0\"", "model = \"model-1\""];
        let fleets = Fleets::set(&DIALECTS[..2], Settings { top: &top, fleet: &own }).await;
        let Side { prefiller, decoder, .. } = &fleets.sides[0];
        for status in [200, 502] {
            for stream in [false, true] {
                let mut body = chat("gpt-4o");
                body["stream"] = stream.into();
                let answer = fleets.post(CHAT, &body).await;
                let what = format!("{keep_alive} {stream}: {}", answer.text());
                assert_eq!((answer.status == 200, said(&answer).3), (status == 200, "f0"), "{what}");
            }
            strike(&[prefiller, decoder], &FaultKind::Status(500, None));
        }
        fleets.end().await;
    }
}
