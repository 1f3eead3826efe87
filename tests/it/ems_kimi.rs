//! The guide of EMS as it stands, with a small model of Kimi's form: the gateway starts, its tokens
//! are the engine's, and what EMS has of a prompt is known before it is routed.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;

use pd_proxy::kvhash::ems;
use pd_proxy::prompt::Today;
use pd_proxy::sim::{EmsLookup, Engine, EngineSpec, Role};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::Process;
use crate::common::client::{self, post};
use crate::common::model::{self, golden};
use crate::common::stage::fast;

const TODAY: Today = Today { year: 2026, month: 3, day: 7 };
/// The engines' block size in the guide.
const BLOCK: NonZeroUsize = NonZeroUsize::new(128).unwrap();
const PREFILLER: &str = "10.0.0.1:7100";
const DECODER: &str = "10.0.0.2:7100";
const LOOKUP: &str = "10.0.0.1:60687";
const MODEL: &str = "/models/kimi_k25";

/// The configurations of the guide: the gateway's, and what is laid over it to ask EMS.
fn configurations() -> [String; 2] {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/ems-kthena.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    let found = [blocks.next().unwrap(), blocks.next().unwrap()];
    assert!(found[0].contains(PREFILLER) && found[0].contains(DECODER), "{}", found[0]);
    assert!(found[1].contains(MODEL) && found[1].contains(LOOKUP), "{}", found[1]);
    found
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The guide's deployment, with one service of EMS for each data-parallel rank of the prefiller.
struct Site {
    lookups: Vec<EmsLookup>,
    engines: [Engine; 2],
    files: TempDir,
    model: TempDir,
}

impl Site {
    async fn new(ranks: u16, model: TempDir) -> Site {
        let mut lookups = Vec::new();
        for _ in 0..ranks {
            lookups.push(EmsLookup::start(anywhere()).await.unwrap());
        }
        let tokenize = Some(model::tokenizing_by(model::prompter_of(model::kimi().path()), TODAY, |_| ()));
        let prefill =
            EngineSpec { role: Role::Prefill, tokenize, block_tokens: BLOCK.get(), ranks, ..fast() };
        let prefill = Engine::start(prefill, anywhere()).await.unwrap();
        let decode =
            Engine::start(EngineSpec { role: Role::Decode, block_tokens: BLOCK.get(), ..fast() }, anywhere())
                .await
                .unwrap();
        Site { lookups, engines: [prefill, decode], files: tempfile::tempdir().unwrap(), model }
    }

    /// A gateway by the guide's files, with the addresses of this site in them.
    fn gateway(&self, more: &[&str]) -> Process {
        let [prefill, decode] = self.engines.each_ref().map(|engine| engine.addr().to_string());
        let lookups: Vec<String> = self.lookups.iter().map(|lookup| lookup.addr().to_string()).collect();
        let [gateway, lookup] = configurations();
        let gateway = gateway.replace(PREFILLER, &prefill).replace(DECODER, &decode);
        let lookup = lookup.replace(MODEL, &self.model.path().display().to_string());
        let lookup = lookup.replace(LOOKUP, &lookups.join("\", \""));
        let names = [("ems.toml", gateway), ("lookup.toml", lookup)].map(|(name, text)| {
            let path = self.files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        });
        let [gateway, lookup] = &names;
        let line = ["--config", gateway, "--config", lookup, "--host", "127.0.0.1", "--port", "0"];
        Process::start(&[&line[..], more].concat(), &[])
    }

    async fn end(self) {
        for engine in self.engines {
            engine.stop().await;
        }
    }
}

async fn chat(gateway: SocketAddr, messages: &Value) {
    let body = json!({"model": "sim", "messages": messages, "max_tokens": 2}).to_string();
    let raw = client::send(gateway, &post("/v1/chat/completions", &body)).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pooled_tokens_of_the_guide_are_those_that_ems_has() {
    let long: Value = serde_json::from_str(&golden("tokenizers/chats.json")).unwrap();
    let (messages, ids) = (&long["long"]["messages"], &long["long"]["ids"]);
    let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
    let hashes: Vec<i64> = ems::chain(ems::START, &ids, BLOCK).collect();
    let site = Site::new(2, model::kimi()).await;
    // What EMS holds is changed here at once: an answer of before is never what is meant.
    let set = ["fleet.prefill_ranks=2", "pool.deadline_ms=2000", "pool.fresh_ms=0"];
    let mut gateway = site.gateway(&set.map(|key| ["--set", key]).concat());
    let address = gateway.address();
    gateway.hear("our tokens are the engine's");
    // The guide's engines load nothing below 2048 tokens.
    for (held, pooled) in
        [(0, 0), (17, 17 * BLOCK.get()), (15, 0), (hashes.len(), (ids.len() - 1) / BLOCK * BLOCK.get())]
    {
        site.lookups.iter().for_each(|lookup| lookup.hold(hashes[..held].to_vec()));
        chat(address, messages).await;
        gateway.wait_for(&format!("pooled_tokens={pooled} "));
    }
    let asked = site.lookups.iter().flat_map(EmsLookup::seen).next_back().unwrap();
    assert_eq!(asked[..hashes.len()], hashes[..], "these are the hashes of the library's tokens");
    site.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_of_the_guide_starts_without_the_model_s_files() {
    let site = Site::new(1, tempfile::tempdir().unwrap()).await;
    let set = ["pool.deadline_ms=2000", "prompt.budget_ms=10000"];
    let mut gateway = site.gateway(&set.map(|key| ["--set", key]).concat());
    let said = gateway.wait_for("prompts are tokenised by engines");
    assert!(said.contains("tokenizer.json: No such file"), "{said}");
    let address = gateway.address();
    chat(address, &json!([{"role": "user", "content": "Hello"}])).await;
    gateway.wait_for("pooled_tokens=0 ");
    let mut strict = site.gateway(&["--set", "prompt.tokens=local"]);
    strict.wait_for("prompt.model_path: ");
    assert_eq!(strict.ended().code(), Some(1));
    site.end().await;
}
