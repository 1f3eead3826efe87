//! Several fleets behind one gateway, each with a dialect and models of its own.

mod adapters;
mod aliases;
mod bad_days;
mod fallbacks;
mod faults;
mod hung;
mod limits;
mod models;
mod names;
mod operators;
mod routes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pd_proxy::app::App;
use pd_proxy::cli::{Command, parse_from};
use pd_proxy::config::{Config, Env};
use pd_proxy::control::reload::{Content, Source};
use pd_proxy::sim::{Connector, Engine, EngineSpec, ObservedRequest, Pool, Role};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::client::{self, Raw, get, post};
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;

const CHAT: &str = "/v1/chat/completions";

/// The dialects that a gateway serves side by side, with the connector of each.
const DIALECTS: [(&str, Connector); 5] = [
    ("kv_transfer", Connector::Handoff),
    ("pool", Connector::Pool),
    ("sglang", Connector::Sglang),
    ("layerwise", Connector::Layerwise),
    ("mooncake", Connector::Mooncake),
];

/// A prefiller and a decoder of one fleet.
struct Side {
    name: String,
    /// Model that they serve.
    model: String,
    prefiller: Engine,
    decoder: Engine,
}

/// Fleets `f0`, `f1` and so on, with the models `model-0` and so on, behind one gateway.
struct Fleets {
    sides: Vec<Side>,
    at: SocketAddr,
    file: PathBuf,
    _dir: tempfile::TempDir,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

/// Settings of a test beside the engines.
#[derive(Default)]
struct Settings<'a> {
    /// Text at the top level of the file, sections of the gateway.
    top: &'a str,
    /// Keys of `[fleet]` in the first fleets.
    fleet: &'a [&'a str],
}

impl Side {
    async fn start(at: usize, (_, connector): (&str, Connector)) -> Side {
        let model = format!("model-{at}");
        let pool = matches!(connector, Connector::Pool).then(|| Arc::new(Pool::new(4_096)));
        let spec = EngineSpec { model: model.clone(), connector, pool, ..fast() };
        let host = place::own_host();
        let start = |role| Engine::start(EngineSpec { role, ..spec.clone() }, host);
        let (prefiller, decoder) = (start(Role::Prefill).await.unwrap(), start(Role::Decode).await.unwrap());
        Side { name: format!("f{at}"), model, prefiller, decoder }
    }

    /// Its sections in the file.
    fn toml(&self, dialect: &str, more: &str) -> String {
        let (name, prefill, decode) = (&self.name, self.prefiller.addr(), self.decoder.addr());
        format!(
            "[fleets.{name}.fleet]\nprefill = [\"{prefill}\"]\ndecode = [\"{decode}\"]\n{more}\n\
             [fleets.{name}.dialect]\nname = \"{dialect}\"\nbootstraps = [\"{prefill}={prefill}\"]\n"
        )
    }

    /// Requests on generating routes that its engines got.
    fn generated(&self) -> usize {
        let seen = [self.prefiller.seen(), self.decoder.seen()].concat();
        let generates = |path: &str| path == CHAT || path.ends_with("/completions");
        seen.iter().filter(|seen| generates(&seen.path) && !is_gateways(seen)).count()
    }
}

impl Fleets {
    /// One fleet for each of these dialects, which have told their models.
    async fn set(dialects: &[(&'static str, Connector)], settings: Settings<'_>) -> Fleets {
        let fleets = Fleets::start(dialects, settings).await;
        for side in &fleets.sides {
            eventually("its model is known", async || fleets.chat(&side.model).await.status == 200).await;
        }
        fleets
    }

    /// One fleet for each of these dialects.
    async fn start(dialects: &[(&'static str, Connector)], settings: Settings<'_>) -> Fleets {
        let mut sides = Vec::new();
        for (at, dialect) in dialects.iter().enumerate() {
            sides.push(Side::start(at, *dialect).await);
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gateway.toml");
        let place = place::own();
        let head = head(place) + &format!("[dialect]\ncallback_url = \"http://{place}\"\n{}\n", settings.top);
        let more = |at: usize| settings.fleet.get(at).copied().unwrap_or_default();
        let fleets = sides.iter().enumerate().map(|(at, side)| side.toml(dialects[at].0, more(at)));
        std::fs::write(&file, fleets.fold(head, |text, fleet| text + &fleet)).unwrap();
        let (at, stop, serving) = serve(&file).await;
        Fleets { sides, at, file, _dir: dir, stop, serving }
    }

    async fn send(&self, request: &[u8]) -> Raw {
        client::send(self.at, request).await
    }

    async fn post(&self, path: &str, body: &Value) -> Raw {
        self.send(&post(path, &body.to_string())).await
    }

    async fn get(&self, path: &str) -> Raw {
        self.send(&get(path)).await
    }

    async fn chat(&self, model: &str) -> Raw {
        self.post(CHAT, &chat(model)).await
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
        for side in self.sides {
            side.prefiller.stop().await;
            side.decoder.stop().await;
        }
    }
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4})
}

/// True for the chat by which the gateway finds out whether engines take token ids.
fn is_gateways(seen: &ObservedRequest) -> bool {
    String::from_utf8_lossy(&seen.body).contains("The quick brown fox jumps")
}

/// Sections that every gateway here has.
fn head(at: SocketAddr) -> String {
    format!(
        "[server]\nhost = \"{}\"\nport = {}\ndrain_ms = 500\n[timeout]\nconnect_ms = 1000\n\
         [retry]\nbudget_floor_per_s = 1000\n",
        at.ip(),
        at.port()
    )
}

/// A gateway in this process that follows its file.
async fn serve(file: &std::path::Path) -> (SocketAddr, CancellationToken, JoinHandle<usize>) {
    let Ok(Command::Serve(args)) = parse_from(["pd-proxy", "--config", file.to_str().unwrap()]) else {
        panic!("flags of serve");
    };
    let files = vec![file.to_owned()];
    let content = Content::of(&files);
    let load = move || Config::load(&args, &Env::new());
    let loaded = load().unwrap_or_else(|errors| panic!("{errors}"));
    let mut app = App::build(&loaded.config).await.unwrap();
    let every = Some(Duration::from_millis(20));
    app.follow(Source { load: Arc::new(load), files, content, hangup: None, threshold: None, every }, loaded);
    let (at, stop) = (app.addresses()[0], app.stop());
    #[expect(clippy::disallowed_methods, reason = "it is waited for in `end`")]
    let serving = tokio::spawn(app.serve());
    (at, stop, serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_the_fleet_of_their_model_whatever_its_dialect() {
    let fleets = Fleets::set(&DIALECTS, Settings::default()).await;
    for side in &fleets.sides {
        side.prefiller.clear_seen();
        side.decoder.clear_seen();
    }
    for round in 0..4 {
        for (at, side) in fleets.sides.iter().enumerate() {
            let mut body = chat(&side.model);
            body["stream"] = json!(round % 2 == 1);
            let answer = fleets.post(CHAT, &body).await;
            assert_eq!(
                (answer.status, answer.complete),
                (200, true),
                "{}: {}",
                DIALECTS[at].0,
                answer.text()
            );
            let named = format!("\"model\":\"{}\"", side.model);
            assert!(answer.text().replace(": ", ":").contains(&named), "{}", answer.text());
            let body = json!({"model": side.model, "prompt": format!("once {round}"), "max_tokens": 3});
            let answer = fleets.post("/v1/completions", &body).await;
            assert_eq!(answer.status, 200, "{}: {}", DIALECTS[at].0, answer.text());
        }
    }
    for (at, side) in fleets.sides.iter().enumerate() {
        // A simulated engine refuses a model that it does not serve.
        assert_eq!(side.generated(), 16, "{}: both legs of 8 requests", DIALECTS[at].0);
        let text = json!({"model": side.model, "prompt": "a"});
        assert_eq!(fleets.post("/tokenize", &text).await.status, 200, "{}", DIALECTS[at].0);
    }
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_named_fleet_serves_as_one_without_a_name() {
    let fleets = Fleets::set(&DIALECTS[..1], Settings::default()).await;
    let without = json!({"prompt": "hello", "max_tokens": 2});
    assert_eq!(fleets.post("/v1/completions", &without).await.status, 200, "engines know their model");
    let metrics = fleets.get("/metrics").await.text();
    let own = metrics.lines().filter(|line| line.contains("fleet=\"f0\"")).count();
    assert!(own > 0, "its series have its name");
    fleets.end().await;
}
