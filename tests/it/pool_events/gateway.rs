//! The gateway listens to its prefillers' events: what they hold of a prompt is known before it is
//! routed.

use std::net::{IpAddr, SocketAddr};

use pd_proxy::kvhash::{Algo, BlockContext, BlockHash, BlockHasher, HashProfile, Seed};
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::json;

use super::publisher::{Ports, Publisher, nothing, puts, removes, stores};
use crate::command::Process;
use crate::common::client::{self, get, post};
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

const BLOCK: usize = 16;
/// The end of the line that tells of wrong names.
const NOTHING_FOUND: &str = "KV events: nothing that prefillers stored is found by its names";

struct Setup {
    process: Process,
    gateway: SocketAddr,
    prefillers: Vec<Engine>,
    decoder: Engine,
    publishers: Vec<Publisher>,
    ports: Vec<Ports>,
}

async fn engine(role: Role, host: IpAddr, event_sources: String) -> Engine {
    let spec = EngineSpec { role, event_sources, ..fast() };
    Engine::start(spec, SocketAddr::from((host, 0))).await.unwrap()
}

/// Ways in which the gateway learns where prefillers publish.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// `events.endpoints` has each.
    Listed,
    /// The engines tell, and no address is configured.
    Told,
    /// `events.port` and `events.replay_port`; the engines know no such question.
    Ports,
}

impl Known {
    /// The answer to `GET /kv_event_sources` of an engine on `host`.
    pub(super) fn answer(self, host: IpAddr, port: Ports) -> String {
        if self == Known::Ports {
            return String::new();
        }
        // One that is listed tells what is not so.
        let wrong = u16::from(self == Known::Listed);
        let told = |at: SocketAddr| match at.ip() == host {
            true => format!("tcp://*:{}", at.port() ^ wrong),
            false => format!("tcp://{at}"),
        };
        let publisher = json!({"enable_kv_cache_events": true, "publisher": "zmq",
            "endpoint": told(port.events), "replay_endpoint": told(port.replay),
            "buffer_steps": 10_000, "hwm": 100_000, "max_queue_size": 100_000, "topic": ""});
        json!({"0": publisher}).to_string()
    }

    /// The gateway's settings for prefillers at these places.
    fn settings(self, prefillers: &[(SocketAddr, Ports)], replay: bool) -> Vec<String> {
        match (self, prefillers) {
            (Known::Ports, [(_, port), ..]) => {
                vec![format!("events.port={}", port.events.port()), "events.replay_port=0".to_owned()]
            }
            (Known::Listed, _) => {
                let replay =
                    |port: &Ports| if replay { format!(" {}", port.replay()) } else { String::new() };
                let listed: Vec<String> = prefillers
                    .iter()
                    .map(|(at, port)| format!("{at}={}{}", port.events(), replay(port)))
                    .collect();
                vec![format!("events.endpoints={}", listed.join(","))]
            }
            _ => Vec::new(),
        }
    }
}

/// The token ids of a prompt of eight blocks and a half.
fn prompt() -> Vec<u32> {
    (0..136).map(|at| 1_000 + 7 * at).collect()
}

/// The numbers of its blocks in events.
fn blocks() -> Vec<u64> {
    blocks_of(&prompt())
}

/// The numbers of a prompt's whole blocks in events.
pub(super) fn blocks_of(prompt: &[u32]) -> Vec<u64> {
    let profile = HashProfile {
        version: "0.32.0".parse().unwrap(),
        algo: Algo::Sha256,
        seed: Seed::Text("0".into()),
        block_tokens: BLOCK,
        lookahead_tokens: 0,
    };
    let hasher = BlockHasher::new(&profile).unwrap();
    hasher.chain(prompt, BlockContext::default()).map(|hash: BlockHash| hash.event_u64()).collect()
}

impl Setup {
    /// A gateway with `members` of the prefillers, all of which publish.
    async fn new(prefillers: usize, members: usize, replay: bool) -> Setup {
        Setup::known(Known::Listed, (prefillers, members), replay).await
    }

    async fn known(known: Known, (prefillers, members): (usize, usize), replay: bool) -> Setup {
        let (mut engines, mut publishers, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        let mut flags: Vec<String> = ["--host", "127.0.0.1", "--port", "0"].map(str::to_owned).to_vec();
        let mut places = Vec::new();
        for at in 0..prefillers {
            let port = Ports::free();
            let host = port.events.ip();
            let engine = engine(Role::Prefill, host, known.answer(host, port)).await;
            publishers.push(Publisher::start(port, true).await);
            places.push((engine.addr(), port));
            if at < members {
                flags.extend(["--prefill".to_owned(), engine.addr().to_string()]);
            }
            engines.push(engine);
            ports.push(port);
        }
        let decoder = engine(Role::Decode, [127, 0, 0, 1].into(), String::new()).await;
        flags.extend(["--decode".to_owned(), decoder.addr().to_string()]);
        let always = ["prompt.tokens=engine", "hash.seed=0", "events.listen=true"].map(str::to_owned);
        for set in always.into_iter().chain(known.settings(&places, replay)) {
            flags.extend(["--set".to_owned(), set]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut process = Process::start(&flags, &[]);
        let gateway = process.address();
        Setup { process, gateway, prefillers: engines, decoder, publishers, ports }
    }

    /// A sample of a prefiller's events; 0 when there is none.
    async fn sample(&self, prefiller: usize, name: &str, label: &str) -> f64 {
        let instance = format!("engine=\"{}\"", self.prefillers[prefiller].addr());
        let all = samples(&client::send(self.gateway, &get("/metrics")).await.text());
        let is_it = |series: &str| {
            series.starts_with(&format!("{name}{{"))
                && [instance.as_str(), "rank=\"0\"", label].iter().all(|part| series.contains(part))
        };
        all.iter().find(|(series, _)| is_it(series)).map_or(0.0, |(_, value)| *value)
    }

    async fn becomes(&self, prefiller: usize, (name, label): (&str, &str), value: f64) {
        let what = format!("{name} {label} of prefiller {prefiller} is {value}");
        eventually(&what, async || self.sample(prefiller, name, label).await == value).await;
    }

    async fn holds(&self, prefiller: usize, blocks: f64) {
        self.becomes(prefiller, ("pd_proxy_events_blocks", "place=\"own\""), blocks).await;
    }

    async fn connected(&self, prefiller: usize, connected: f64) {
        self.becomes(prefiller, ("pd_proxy_events_connected", ""), connected).await;
    }

    /// Speaks until it is heard: a subscription takes its time to be known.
    async fn is_heard(&mut self, prefiller: usize) {
        self.connected(prefiller, 1.0).await;
        let batches = ("pd_proxy_events_total", "what=\"batches\"");
        let before = self.sample(prefiller, batches.0, batches.1).await;
        let mut looks = 0;
        eventually(&format!("prefiller {prefiller} is heard"), async || {
            // Not at every look: a word takes its time, too.
            if looks % 10 == 0 {
                self.publishers[prefiller].publish(nothing()).await;
            }
            looks += 1;
            self.sample(prefiller, batches.0, batches.1).await > before
        })
        .await;
    }

    /// Its log line has all of these.
    async fn logged(&mut self, fields: &[&str]) {
        let body = json!({"model": "sim", "prompt": prompt(), "max_tokens": 2}).to_string();
        let raw = client::send(self.gateway, &post("/v1/completions", &body)).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
        let line = self.process.hear(&format!("request id={} ", raw.header("x-request-id").unwrap()));
        assert!(fields.iter().all(|field| line.contains(field)), "{fields:?} in {line}");
    }

    async fn outcome(&self, outcome: &str) -> f64 {
        let all = samples(&client::send(self.gateway, &get("/metrics")).await.text());
        all[&format!("pd_proxy_events_lookups_total{{outcome=\"{outcome}\"}}")]
    }

    async fn change(&self, what: &str, prefiller: usize) {
        let body = json!({"type": "prefill", "instances": self.prefillers[prefiller].addr().to_string()});
        let raw = client::send(self.gateway, &post(&format!("/instances/{what}"), &body.to_string())).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
    }

    async fn end(self) {
        for engine in self.prefillers.into_iter().chain([self.decoder]) {
            engine.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefillers_blocks_are_known_and_departed_ones_hold_none() {
    let mut setup = Setup::new(2, 2, true).await;
    let blocks = blocks();
    assert_eq!(blocks.len(), 8);
    // What is published just when somebody begins to listen gets lost, and is only missed with the
    // next batch.
    setup.is_heard(0).await;
    setup.is_heard(1).await;
    setup.publishers[0].publish(stores(&blocks[..4])).await;
    setup.publishers[1].publish(stores(&blocks[..2])).await;
    setup.holds(0, 4.0).await;
    setup.holds(1, 2.0).await;
    setup.becomes(0, ("pd_proxy_events_complete", ""), 1.0).await;
    setup.logged(&["held_tokens=64 "]).await;
    // What is put into a pool counts where no pool is asked.
    setup.is_heard(1).await;
    setup.publishers[1].publish(puts(&blocks[..6])).await;
    setup.becomes(1, ("pd_proxy_events_blocks", "place=\"pool\""), 6.0).await;
    setup.logged(&["held_tokens=64 ", "pooled_tokens=96 ", "pooled_by=\"events\""]).await;
    assert_eq!((setup.outcome("hit").await, setup.outcome("miss").await), (2.0, 0.0));
    // A batch gets lost, and is replayed.
    setup.is_heard(0).await;
    let gaps = setup.sample(0, "pd_proxy_events_total", "what=\"gaps\"").await;
    setup.publishers[0].miss(removes(&blocks[3..4]));
    setup.publishers[0].publish(nothing()).await;
    setup.holds(0, 3.0).await;
    setup.becomes(0, ("pd_proxy_events_total", "what=\"gaps\""), gaps + 1.0).await;
    setup.logged(&["held_tokens=48 "]).await;
    setup.change("remove", 0).await;
    setup.connected(0, 0.0).await;
    setup.holds(0, 0.0).await;
    setup.logged(&["held_tokens=32 "]).await;
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefiller_that_restarts_or_joins_begins_anew() {
    let mut setup = Setup::new(2, 1, true).await;
    let blocks = blocks();
    setup.is_heard(0).await;
    setup.publishers[0].publish(stores(&blocks[..5])).await;
    setup.publishers[1].publish(stores(&blocks[..7])).await;
    setup.holds(0, 5.0).await;
    setup.logged(&["held_tokens=80 "]).await;
    assert_eq!(setup.sample(1, "pd_proxy_events_connected", "").await, 0.0);
    setup.publishers.remove(0).stop().await;
    let mut restarted = Publisher::start(setup.ports[0], true).await;
    restarted.publish(stores(&blocks[..1])).await;
    setup.publishers.insert(0, restarted);
    setup.holds(0, 1.0).await;
    // By the replay, which is another's, or since there was none at first: either way what was
    // known is forgotten.
    setup.becomes(0, ("pd_proxy_events_total", "what=\"emptied\""), 1.0).await;
    setup.logged(&["held_tokens=16 "]).await;
    setup.change("add", 1).await;
    setup.holds(1, 7.0).await;
    setup.logged(&["held_tokens=112 "]).await;
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replay_socket_what_was_before_stays_unknown() {
    let mut setup = Setup::new(1, 1, false).await;
    let blocks = blocks();
    setup.publishers[0].miss(stores(&blocks[..4]));
    setup.is_heard(0).await;
    setup.publishers[0].publish(stores(&blocks[4..])).await;
    setup.holds(0, 4.0).await;
    assert_eq!(setup.sample(0, "pd_proxy_events_complete", "").await, 0.0);
    setup.logged(&["held_tokens=0 "]).await;
    assert_eq!(setup.outcome("miss").await, 1.0);
    setup.publishers[0].publish(stores(&blocks[..4])).await;
    setup.holds(0, 8.0).await;
    setup.logged(&["held_tokens=128 "]).await;
    setup.end().await;
}

/// Two on one host, whose ports nobody configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefillers_are_listened_to_where_they_tell_that_they_publish() {
    let mut setup = Setup::known(Known::Told, (2, 2), true).await;
    let blocks = blocks();
    setup.is_heard(0).await;
    setup.is_heard(1).await;
    setup.publishers[0].publish(stores(&blocks[..4])).await;
    setup.publishers[1].publish(stores(&blocks[..7])).await;
    setup.holds(0, 4.0).await;
    setup.holds(1, 7.0).await;
    setup.becomes(0, ("pd_proxy_events_complete", ""), 1.0).await;
    setup.logged(&["held_tokens=112 "]).await;
    // A new process publishes on other ports.
    let old = setup.prefillers.remove(0);
    let at = old.addr();
    old.stop().await;
    setup.publishers.remove(0).stop().await;
    setup.ports[0] = Ports::free();
    setup.publishers.insert(0, Publisher::start(setup.ports[0], true).await);
    let spec = EngineSpec {
        role: Role::Prefill,
        event_sources: Known::Told.answer(at.ip(), setup.ports[0]),
        ..fast()
    };
    setup.prefillers.insert(0, Engine::start(spec, at).await.unwrap());
    setup.publishers[0].publish(stores(&blocks[..2])).await;
    setup.holds(0, 2.0).await;
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefillers_that_tell_nothing_publish_on_the_ports_that_are_configured() {
    let mut setup = Setup::known(Known::Ports, (1, 1), false).await;
    setup.is_heard(0).await;
    setup.publishers[0].publish(stores(&blocks()[..3])).await;
    setup.holds(0, 3.0).await;
    setup.end().await;
}

/// Other names than ours in all that a prefiller tells: a seed that is not its own, for example.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_are_never_ours_are_warned_of() {
    let mut setup = Setup::new(1, 1, true).await;
    setup.is_heard(0).await;
    setup.publishers[0].publish(stores(&[11, 12, 13])).await;
    setup.holds(0, 3.0).await;
    let gateway = setup.gateway;
    let ask_one = async |number: usize| {
        let mut tokens = prompt();
        tokens[0] = 90_000 + u32::try_from(number).unwrap();
        let body = json!({"model": "sim", "prompt": tokens, "max_tokens": 2}).to_string();
        let raw = client::send(gateway, &post("/v1/completions", &body)).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
    };
    setup.process.prompted(NOTHING_FOUND, 1, ask_one).await;
    let line = setup.process.hear(NOTHING_FOUND);
    assert!(line.contains("WARN") && line.contains("hash.seed"), "{line}");
    let all = samples(&client::send(setup.gateway, &get("/metrics")).await.text());
    assert_eq!(all["pd_proxy_block_names_unfound{source=\"events\"}"], 1.0);
    // It tells of a prompt of ours after all, which is found when it is asked for.
    setup.publishers[0].publish(stores(&blocks())).await;
    setup.holds(0, 11.0).await;
    setup.logged(&["held_tokens=128 "]).await;
    setup.process.hear("KV events: blocks that prefillers stored are found by their names");
    setup.end().await;
}
