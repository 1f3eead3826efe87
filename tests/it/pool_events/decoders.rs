//! The gateway listens to its decoders' events, too: what they hold of a prompt chooses the
//! decoder, and lets it compute the rest.

use std::net::{IpAddr, SocketAddr};

use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};

use super::gateway::{Known, blocks_of};
use super::publisher::{Ports, Publisher, nothing, removes, stores};
use crate::command::Process;
use crate::common::client::{self, get, post};
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

const COMPLETIONS: &str = "/v1/completions";
/// Whole blocks of a prompt, which has half a block more.
const BLOCKS: u32 = 40;

/// A gateway before a prefiller that publishes nothing and two decoders that tell where they do.
struct Setup {
    /// Ends with the test.
    _process: Process,
    gateway: SocketAddr,
    prefiller: Engine,
    decoders: Vec<Engine>,
    publishers: Vec<Publisher>,
}

async fn engine(role: Role, host: IpAddr, event_sources: String) -> Engine {
    let spec = EngineSpec { role, event_sources, prefill_tokens_per_s: 4_000.0, ..fast() };
    Engine::start(spec, SocketAddr::from((host, 0))).await.unwrap()
}

/// The token ids of a prompt that begins as no other one does.
fn prompt(first: u32) -> Vec<u32> {
    (0..BLOCKS * 16 + 8).map(|at| 1_000 * (first + 1) + 7 * at).collect()
}

fn body(prompt: &[u32]) -> String {
    json!({"model": "sim", "prompt": prompt, "max_tokens": 2}).to_string()
}

impl Setup {
    async fn new(append_gap_ms: u32) -> Setup {
        let (mut decoders, mut publishers) = (Vec::new(), Vec::new());
        let prefiller = engine(Role::Prefill, [127, 0, 0, 1].into(), "{}".into()).await;
        let mut flags: Vec<String> = ["--host", "127.0.0.1", "--port", "0"].map(str::to_owned).to_vec();
        flags.extend(["--prefill".to_owned(), prefiller.addr().to_string()]);
        for _ in 0..2 {
            let port = Ports::free();
            let host = port.events.ip();
            let decoder = engine(Role::Decode, host, Known::Told.answer(host, port)).await;
            publishers.push(Publisher::start(port, true).await);
            flags.extend(["--decode".to_owned(), decoder.addr().to_string()]);
            decoders.push(decoder);
        }
        let append = format!("route.append_gap_ms={append_gap_ms}");
        for set in ["prompt.tokens=engine", "hash.seed=0", "events.listen=true", &append] {
            flags.extend(["--set".to_owned(), set.to_owned()]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut process = Process::start(&flags, &[]);
        let gateway = process.address();
        let mut setup = Setup { _process: process, gateway, prefiller, decoders, publishers };
        setup.is_heard(0).await;
        setup.is_heard(1).await;
        setup
    }

    async fn sample(&self, decoder: usize, name: &str, label: &str) -> f64 {
        let parts = [&format!("engine=\"{}\"", self.decoders[decoder].addr()), label];
        let all = samples(&client::send(self.gateway, &get("/metrics")).await.text());
        let is_it = |series: &str| series.starts_with(name) && parts.iter().all(|it| series.contains(it));
        all.iter().find(|(series, _)| is_it(series)).map_or(0.0, |(_, value)| *value)
    }

    /// Speaks until it is heard: a subscription takes its time to be known.
    async fn is_heard(&mut self, decoder: usize) {
        let mut looks = 0;
        eventually(&format!("decoder {decoder} is heard"), async || {
            if looks % 10 == 0 {
                self.publishers[decoder].publish(nothing()).await;
            }
            looks += 1;
            self.sample(decoder, "pd_proxy_events_total{", "what=\"batches\"").await > 0.0
        })
        .await;
    }

    /// Publishes, and waits until the decoder is known to hold so many blocks.
    async fn tell(&mut self, decoder: usize, batch: Vec<u8>, known: usize) {
        self.publishers[decoder].publish(batch).await;
        eventually(&format!("{known} blocks of decoder {decoder} are known"), async || {
            self.sample(decoder, "pd_proxy_events_blocks{", "place=\"own\"").await == known as f64
        })
        .await;
    }

    /// Requests that the prefiller, and each decoder, were sent.
    fn served(&self) -> [usize; 3] {
        [&self.prefiller, &self.decoders[0], &self.decoders[1]]
            .map(|engine| engine.seen().iter().filter(|seen| seen.path == COMPLETIONS).count())
    }

    /// Sends a prompt. Returns the answer, and the record of its append, if it was one.
    async fn ask(&self, prompt: &[u32]) -> (Value, Value) {
        let raw = client::send(self.gateway, &post(COMPLETIONS, &body(prompt))).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
        let path = format!("/debug/route/{}", raw.header("x-request-id").unwrap());
        let told = client::send(self.gateway, &get(&path)).await.json();
        (raw.json(), told["appends"][0].clone())
    }

    async fn end(self) {
        for engine in self.decoders.into_iter().chain([self.prefiller]) {
            engine.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoder_that_tells_of_a_prompt_is_given_it_until_it_tells_that_it_is_gone() {
    let mut setup = Setup::new(0).await;
    let mut known = [0, 0];
    let mut expected = [0, 0, 0];
    // In no order that turns or chance would take.
    for (at, holder) in [0, 0, 1, 1, 1, 0, 1, 0, 0].into_iter().enumerate() {
        let prompt = prompt(at as u32);
        known[holder] += BLOCKS as usize;
        setup.tell(holder, stores(&blocks_of(&prompt)), known[holder]).await;
        let (_, append) = setup.ask(&prompt).await;
        assert_eq!(append, Value::Null, "it may not compute prompts");
        (expected[0], expected[1 + holder]) = (expected[0] + 1, expected[1 + holder] + 1);
        assert_eq!(setup.served(), expected, "prompt {at}");
    }
    // The first one was given to the first decoder, and would be remembered to be there.
    let moved = blocks_of(&prompt(0));
    setup.tell(0, removes(&moved), known[0] - moved.len()).await;
    setup.tell(1, stores(&moved), known[1] + moved.len()).await;
    setup.ask(&prompt(0)).await;
    assert_eq!(setup.served()[1..], [expected[1], expected[2] + 1]);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoder_that_tells_of_a_prompt_computes_the_rest_of_it() {
    let mut setup = Setup::new(100).await;
    let held = BLOCKS * 16;
    for (at, holder) in [1, 0, 1].into_iter().enumerate() {
        let prompt = prompt(at as u32);
        // Somebody else had it computed there, past this gateway.
        client::send(setup.decoders[holder].addr(), &post(COMPLETIONS, &body(&prompt))).await;
        let known = BLOCKS as usize * if at == 2 { 2 } else { 1 };
        setup.tell(holder, stores(&blocks_of(&prompt)), known).await;
        let before = setup.served();
        let (answer, append) = setup.ask(&prompt).await;
        let mut after = before;
        after[1 + holder] += 1;
        assert_eq!(setup.served(), after, "no prefiller is asked");
        let engine = setup.decoders[holder].addr().to_string();
        assert_eq!((&append["decoder"], &append["held_tokens"]), (&json!(engine), &json!(held)), "{append}");
        let found = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!((found, &append["cached_tokens"]), (&json!(held), &json!(held)));
    }
    let gone = blocks_of(&prompt(1));
    setup.tell(0, removes(&gone), 0).await;
    let before = setup.served();
    let (_, append) = setup.ask(&prompt(1)).await;
    assert_eq!(append, Value::Null, "it was computed there, but told to be gone");
    assert_eq!(setup.served()[0], before[0] + 1);
    setup.end().await;
}
