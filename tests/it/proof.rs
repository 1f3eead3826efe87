//! The proof at start: prompts count as exact when the engines make the same tokens and agree with
//! the configuration, and requests are served either way.
//!
//! Each gateway is a process of its own: so are its metrics.

mod again;
mod media;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pd_proxy::prompt::Today;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Process, run};
use crate::common::client::{self, Raw, get, post};
use crate::common::model;
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

/// The template does not print it.
const TODAY: Today = Today { year: 2026, month: 3, day: 7 };
const TEMPLATE: &str = "qwen3";
const CHAT: &str = "/v1/chat/completions";
const STREAM: &str =
    r#"{"model":"sim","messages":[{"role":"user","content":"Tell me."}],"max_tokens":8,"stream":true}"#;
/// Looks at the engines as often as the configuration allows.
const OFTEN: &str = "prompt.verify_interval_ms=100";

const PROVEN: &str = "pd_proxy_tokens_proven";
const NAMED: &str = "pd_proxy_block_names_known";
/// Names of blocks are of use, and shown.
const LISTENS: &str = "events.listen=true";

/// Tokens as they are.
fn same(_: &mut [u32]) {}

/// One token of each longer prompt is another.
fn changed(tokens: &mut [u32]) {
    if let Some(token) = tokens.get_mut(3) {
        *token += 1;
    }
}

/// An engine of the model whose files the gateway has, but for `change`.
fn spec(change: fn(&mut [u32])) -> EngineSpec {
    EngineSpec { tokenize: Some(model::tokenizing(TEMPLATE, TODAY, change)), ..fast() }
}

async fn start(spec: EngineSpec, role: Role, at: SocketAddr) -> Engine {
    Engine::start(EngineSpec { role, ..spec }, at).await.unwrap()
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn prefiller(spec: EngineSpec) -> Engine {
    start(spec, Role::Prefill, anywhere()).await
}

/// A decoder is not asked for tokens. Its own number of them is another one than the model's, and
/// legs may be sent text or ids: one of its blocks has room for either, whatever its prefiller has.
async fn decoder() -> Engine {
    start(EngineSpec { block_tokens: 64, ..fast() }, Role::Decode, anywhere()).await
}

/// The flags of a gateway that tokenises, beside its engines.
fn local(dir: &TempDir) -> Vec<String> {
    let dir = dir.path().to_str().unwrap();
    let sets = ["prompt.tokens=local", "hash.seed=0", OFTEN, LISTENS].map(|set| ["--set", set]);
    ["--model-path", dir].iter().chain(sets.as_flattened()).map(|word| (*word).to_owned()).collect()
}

fn by_engine(more: &str) -> Vec<String> {
    ["--set", "prompt.tokens=engine", "--set", "hash.seed=0", "--set", more].map(str::to_owned).to_vec()
}

fn texts(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

fn gateway(prefill: &Engine, decode: &Engine, flags: &[String]) -> (Process, SocketAddr) {
    Process::gateway(prefill, decode, &texts(flags), &[])
}

async fn metrics(gateway: SocketAddr) -> BTreeMap<String, f64> {
    samples(&client::send(gateway, &get("/metrics")).await.text())
}

/// Waits until one sample has this value.
async fn becomes(gateway: SocketAddr, sample: &str, value: f64) {
    eventually(sample, async || metrics(gateway).await.get(sample) == Some(&value)).await;
}

/// Number of prompts that were read, by outcome; outcomes without any are left out.
async fn prompts(gateway: SocketAddr) -> Vec<(String, f64)> {
    let found = metrics(gateway).await;
    let label = |series: &str, name: &str| {
        series.split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned()
    };
    let ours =
        found.iter().filter(|(series, count)| series.starts_with("pd_proxy_prompts_total{") && **count > 0.0);
    ours.map(|(series, count)| (format!("{}/{}", label(series, "tokens"), label(series, "reason")), *count))
        .collect()
}

fn counts(expect: &[(&str, f64)]) -> Vec<(String, f64)> {
    expect.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn asked(engine: &Engine, path: &str) -> usize {
    engine.seen().iter().filter(|seen| seen.path == path).count()
}

async fn chat(gateway: SocketAddr) -> Raw {
    let raw = client::send(gateway, &post(CHAT, STREAM)).await;
    assert!(raw.status == 200 && raw.done(), "{}", raw.text());
    raw
}

async fn complete(gateway: SocketAddr, prompt: &Value) {
    let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 2}).to_string();
    let raw = client::send(gateway, &post("/v1/completions", &body)).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
}

/// The bodies that both engines received on generating routes, without the hand-off, which is new
/// each time.
fn legs(engines: [&Engine; 2]) -> Vec<Value> {
    let of = |engine: &Engine| {
        let seen = engine.seen().into_iter().filter(|seen| seen.path == CHAT);
        let bodies = seen.map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap());
        bodies.collect::<Vec<_>>()
    };
    let mut bodies: Vec<Value> = engines.into_iter().flat_map(of).collect();
    for body in &mut bodies {
        assert!(body.as_object_mut().unwrap().remove("kv_transfer_params").is_some(), "{body}");
    }
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_that_tokenise_alike_prove_it_and_are_sent_what_they_were_sent_before() {
    let dir = model::directory(TEMPLATE);
    let (prefill, decode) = (prefiller(spec(same)).await, decoder().await);
    let (_process, proven) = gateway(&prefill, &decode, &local(&dir));
    let found = metrics(proven).await;
    assert_eq!((found.get(PROVEN), found.get(NAMED)), (Some(&1.0), Some(&1.0)), "{found:?}");
    assert_eq!(found.get(r#"pd_proxy_token_parity_checks_total{verdict="same"}"#), Some(&1.0), "{found:?}");

    let with = chat(proven).await;
    assert_eq!(prompts(proven).await, counts(&[("exact/none", 1.0)]));
    assert_eq!(metrics(proven).await.get("pd_proxy_prompt_seconds_count"), Some(&1.0));
    let sent = legs([&prefill, &decode]);
    assert_eq!(sent.len(), 2);

    for engine in [&prefill, &decode] {
        engine.clear_seen();
    }
    let (_process, without) = gateway(&prefill, &decode, &[]);
    assert_eq!(chat(without).await.words(), with.words());
    assert_eq!(legs([&prefill, &decode]), sent);
    assert_eq!(prompts(without).await, [], "nobody reads prompts there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_other_token_turns_exactness_off_and_is_named_once() {
    let dir = model::directory(TEMPLATE);
    let (prefill, decode) = (prefiller(spec(changed)).await, decoder().await);
    let (prefill_at, decode_at) = (prefill.addr().to_string(), decode.addr().to_string());
    let base = ["--host", "127.0.0.1", "--port", "0", "--prefill", &prefill_at, "--decode", &decode_at];
    let flags = local(&dir);
    let mut process = Process::start(&[&base[..], &texts(&flags)].concat(), &[]);
    let line = process.wait_for("differ from the engine's");
    let ids = line.split("request \"ascii\" differ from the engine's: token 3 is ").nth(1);
    let mut ids = ids.unwrap_or_else(|| panic!("{line}")).split(';').next().unwrap().split(" here and ");
    let ours: u32 = ids.next().unwrap().parse().unwrap();
    assert_eq!(ids.next(), Some(format!("{} there", ours + 1).as_str()), "{line}");
    assert!(line.contains("ERROR") && line.contains(&format!("engine={prefill_at}")), "{line}");

    let gateway = process.address();
    chat(gateway).await;
    complete(gateway, &json!([1, 2, 3])).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0), ("unknown/refuted", 1.0)]));

    // It is asked again when it is another process; until then it is left alone, and the log, too.
    let looks = asked(&prefill, "/version");
    eventually("more looks", async || asked(&prefill, "/version") > looks + 2).await;
    let found = metrics(gateway).await;
    assert_eq!(found.get(PROVEN), Some(&0.0));
    let different = r#"pd_proxy_token_parity_checks_total{verdict="different"}"#;
    assert_eq!(found.get(different), Some(&1.0), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_that_can_not_be_compared_yet_serve_meanwhile() {
    let dir = model::directory(TEMPLATE);
    let (prefill, decode) = (prefiller(spec(same)).await, decoder().await);
    assert!(prefill.inject(Fault::always(FaultKind::Status(503, None)).on_path("/tokenize")));
    let (mut process, gateway) = gateway(&prefill, &decode, &local(&dir));
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("unknown/unproven", 1.0)]));
    eventually("more looks", async || asked(&prefill, "/tokenize") > 3).await;
    assert_eq!(metrics(gateway).await.get(PROVEN), Some(&0.0));

    prefill.clear_faults();
    becomes(gateway, PROVEN, 1.0).await;
    process.wait_for("our tokens are the engine's");
    assert_eq!(process.said("our tokens are not compared yet: it answered with status 503"), 1);
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0), ("unknown/unproven", 1.0)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_may_come_up_after_the_gateway() {
    let dir = model::directory(TEMPLATE);
    let decode = decoder().await;
    let at = place::own();
    let (prefill_at, decode_at) = (at.to_string(), decode.addr().to_string());
    let base = ["--host", "127.0.0.1", "--port", "0", "--prefill", &prefill_at, "--decode", &decode_at];
    let flags = local(&dir);
    let mut process = Process::start(&[&base[..], &texts(&flags)].concat(), &[]);
    let line = process.wait_for("can't be named yet");
    assert!(line.contains("hash.algo is not set, and no engine has said it (/metrics)"), "{line}");
    let gateway = process.address();
    assert_eq!(client::send(gateway, &get("/health")).await.status, 200);
    let raw = client::send(gateway, &post(CHAT, STREAM)).await;
    assert_eq!(raw.status, 502, "nobody computes prompts yet: {}", raw.text());
    assert_eq!(prompts(gateway).await, counts(&[("unknown/unproven", 1.0)]));
    let found = metrics(gateway).await;
    assert_eq!((found.get(PROVEN), found.get(NAMED)), (Some(&0.0), Some(&0.0)));

    let _prefill = start(spec(same), Role::Prefill, at).await;
    becomes(gateway, PROVEN, 1.0).await;
    becomes(gateway, NAMED, 1.0).await;
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0), ("unknown/unproven", 1.0)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_engine_that_joins_and_differs_turns_it_off() {
    let dir = model::directory(TEMPLATE);
    let (prefill, decode) = (prefiller(spec(same)).await, decoder().await);
    let (_process, gateway) = gateway(&prefill, &decode, &local(&dir));
    assert_eq!(metrics(gateway).await.get(PROVEN), Some(&1.0));
    // It differs in both ways.
    let other = prefiller(EngineSpec { block_tokens: 32, ..spec(changed) }).await;
    let body = json!({"type": "prefill", "instances": [other.addr().to_string()]}).to_string();
    assert_eq!(client::send(gateway, &post("/instances/add", &body)).await.status, 200);
    becomes(gateway, PROVEN, 0.0).await;
    becomes(gateway, NAMED, 0.0).await;
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("unknown/refuted", 1.0)]));

    // Without it the names are known again, and the tokens are those of all that are left.
    assert_eq!(client::send(gateway, &post("/instances/remove", &body)).await.status, 200);
    becomes(gateway, NAMED, 1.0).await;
    becomes(gateway, PROVEN, 1.0).await;
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0), ("unknown/refuted", 1.0)]));
}

/// The comparison would take as long as an exchange may, and with several engines as often.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_that_hang_do_not_hold_up_the_start() {
    let dir = model::directory(TEMPLATE);
    let (prefill, decode) = (prefiller(spec(same)).await, decoder().await);
    assert!(prefill.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/tokenize")));
    let (mut process, gateway) = gateway(&prefill, &decode, &local(&dir));
    assert_eq!(process.said("not compared yet"), 0, "no exchange has ended");
    assert_eq!(process.said("our tokens are compared with theirs later"), 1);
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("unknown/unproven", 1.0)]));
}

/// Starts a gateway that must not start, and returns what it said last.
fn refused(prefill: &[&Engine], more: &[&str]) -> String {
    let addresses: Vec<String> = prefill.iter().map(|engine| engine.addr().to_string()).collect();
    let mut line = vec!["--host", "127.0.0.1", "--port", "0", "--prefill"];
    line.extend(addresses.iter().map(String::as_str));
    line.extend(["--set", "prompt.tokens=engine", "--set", "hash.seed=0"]);
    line.extend(more.iter().flat_map(|setting| ["--set", setting]));
    let (code, out, err) = run(&line, &[]);
    assert_eq!((code, out.as_str()), (1, ""), "{more:?}: {err}");
    err.lines().last().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_contradiction_stops_the_start_and_names_both() {
    let engine = prefiller(fast()).await;
    let at = engine.addr();
    let end = ": they must be the same, or the gateway and the engines hash differently";
    for (setting, message) in [
        (
            "hash.block_tokens=128",
            format!(
                "the block size: the configuration (hash.block_tokens) says 128, but engine {at} (/metrics) says 16"
            ),
        ),
        (
            "hash.algo=sha256_cbor",
            format!(
                "the hash algorithm: the configuration (hash.algo) says sha256_cbor, but engine {at} (/metrics) says sha256"
            ),
        ),
        (
            "hash.version=0.30.0",
            format!(
                "vLLM's release: the configuration (hash.version) says 0.30.0, but engine {at} (/version) says 0.32.0"
            ),
        ),
        (
            "key.model=/weights/M key.preset=mooncake-store-0.30",
            format!(
                "the model: the configuration (key.model) says /weights/M, but engine {at} (/v1/models) says /models/sim"
            ),
        ),
    ] {
        let settings: Vec<&str> = setting.split(' ').collect();
        assert_eq!(refused(&[&engine], &settings), format!("pd-proxy: {message}{end}"), "{setting}");
    }
}

/// As they do while they are upgraded one by one: nobody is refused for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_that_contradict_each_other_leave_blocks_unnamed_until_they_agree() {
    for (other, what) in [
        (EngineSpec { block_tokens: 32, ..fast() }, "the block size"),
        (EngineSpec { hash_algo: "sha256_cbor".into(), ..fast() }, "the hash algorithm"),
        (EngineSpec { version: "0.30.0".into(), ..fast() }, "vLLM's release"),
    ] {
        let (engine, other) = (prefiller(fast()).await, prefiller(other).await);
        let decode = decoder().await;
        let (engine_at, other_at) = (engine.addr().to_string(), other.addr().to_string());
        let line = ["--host", "127.0.0.1", "--port", "0", "--prefill", &engine_at, &other_at];
        let decode_at = decode.addr().to_string();
        let sets =
            ["--set", "prompt.tokens=engine", "--set", "hash.seed=0", "--set", OFTEN, "--set", LISTENS];
        let mut process = Process::start(&[&line[..], &["--decode", &decode_at], &sets[..]].concat(), &[]);
        let gateway = process.address();
        process.wait_for("ready");
        let said = process.said(&format!("blocks can't be named: {what}"));
        assert_eq!(said, 1, "{what}");
        becomes(gateway, NAMED, 0.0).await;
        chat(gateway).await;
        other.stop().await;
        becomes(gateway, NAMED, 1.0).await;
    }
}

#[test]
fn configuration_errors_are_refused_by_start_and_check() {
    let long = format!("key.model={}", "m".repeat(250));
    for (settings, message) in [
        (
            vec!["key.preset=mooncake"],
            "key.preset = \"mooncake\": there is no key preset `mooncake`: did you mean `mooncake-store-0.30`?",
        ),
        (
            vec!["hash.algo=xxhash"],
            "[hash]: without PYTHONHASHSEED, xxhash block hashes differ in every engine process: set it",
        ),
        (
            vec!["hash.version=0.9"],
            "hash.version = \"0.9\": block hashes of vLLM 0.9.0 are unknown: 0.10.2 is the oldest",
        ),
        (vec!["hash.scheme=ucm"], "hash.release is not set, and engines don't publish it: UCM needs it"),
        (
            vec!["key.preset=ascend-0.26", "key.store=memcache", &long],
            "key.preset = \"ascend-0.26\": keys of 398 bytes: MemCache takes at most 256",
        ),
        (
            vec!["key.preset=ucm-posix", "hash.release=0.4", "key.roots=/kv"],
            "key.store = \"mooncake\": the keys of key.preset = \"ucm-posix\" begin with a directory: set key.store = \"files\" and \
             key.roots, which is not read otherwise",
        ),
        (
            vec!["key.preset=ucm-posix", "hash.release=0.4", "key.store=files"],
            "key.roots = \"\": the keys of key.preset = \"ucm-posix\" begin with a directory of the store: name it",
        ),
        (
            vec!["key.preset=ascend-0.26", "key.groups=64:windowed"],
            "key.groups = \"64:windowed\": the kind is one of full, mla, window, mamba",
        ),
    ] {
        let sets: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        for command in ["serve", "check"] {
            let (code, out, err) = run(&[&[command, "--port", "0"], &sets[..]].concat(), &[]);
            assert_eq!(
                (code, err.trim_end()),
                (1, format!("pd-proxy: {message}").as_str()),
                "{command} {settings:?}"
            );
            assert!(!out.contains("listening"), "{out}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn engines_may_tokenise_for_the_gateway() {
    let (prefill, decode) = (prefiller(fast()).await, decoder().await);
    let (_process, gateway) = gateway(&prefill, &decode, &by_engine("prompt.budget_ms=20000"));
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0)]));
    assert_eq!(asked(&prefill, "/tokenize"), 1);
    chat(gateway).await;
    complete(gateway, &json!([1, 2, 3])).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 3.0)]));
    assert_eq!(asked(&prefill, "/tokenize"), 1, "known answers and the client's own ids need no engine");
}

/// The engine never answers. Waiting for the end of the exchange would show as another reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_silent_tokenizer_costs_no_more_than_the_budget() {
    let (prefill, decode) = (prefiller(fast()).await, decoder().await);
    assert!(prefill.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/tokenize")));
    let (_process, gateway) = gateway(&prefill, &decode, &by_engine("prompt.budget_ms=20"));
    chat(gateway).await;
    assert_eq!(prompts(gateway).await, counts(&[("unknown/engine_slow", 1.0)]));
    assert_eq!(asked(&prefill, "/tokenize"), 1);
    complete(gateway, &json!([1, 2, 3])).await;
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0), ("unknown/engine_slow", 1.0)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn large_bodies_are_exact_too() {
    let dir = model::directory(TEMPLATE);
    let large = EngineSpec { kv_blocks: 65_536, ..spec(same) };
    let prefill = prefiller(large.clone()).await;
    let decode = start(EngineSpec { tokenize: None, ..large }, Role::Decode, anywhere()).await;
    let (_process, gateway) = gateway(&prefill, &decode, &local(&dir));
    let content = "Blocks of a long prompt. ".repeat(12_000);
    let body = json!({"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 2});
    let body = body.to_string();
    assert!(body.len() > 256 << 10);
    let raw = client::send(gateway, &post(CHAT, &body)).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0)]));
}

/// The use of some members by the chat endpoint of an older release is not known, whatever its
/// `/tokenize` says.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn chats_that_releases_treat_differently_are_in_doubt_until_the_engine_is_upgraded() {
    let dir = model::directory(TEMPLATE);
    // One that is newer than all is taken for the newest, since it reads all canaries as that one.
    for (flags, upgraded) in
        [(local(&dir), "0.34.0"), (by_engine(OFTEN), "0.33.0"), (by_engine(OFTEN), "0.34.0")]
    {
        let release = |version: &str| EngineSpec {
            version: version.to_owned(),
            compares_versions: false,
            ..spec(same)
        };
        let (older, decode) = (prefiller(release("0.20.2")).await, decoder().await);
        let at = older.addr();
        let (_process, gateway) = gateway(&older, &decode, &flags);
        let ask = async |role: &str| {
            let messages = json!([{"role": role, "content": "a"}, {"role": "user", "content": "b"}]);
            let body = json!({"model": "sim", "messages": messages, "max_tokens": 2}).to_string();
            client::send(gateway, &post(CHAT, &body)).await.status
        };
        assert_eq!((ask("user").await, ask("developer").await), (200, 200));
        assert_eq!(prompts(gateway).await, counts(&[("exact/none", 1.0), ("unknown/release", 1.0)]));
        older.stop().await;
        let _newer = start(release(upgraded), Role::Prefill, at).await;
        eventually("it is asked again", async || {
            ask("developer").await == 200 && prompts(gateway).await.contains(&("exact/none".to_owned(), 2.0))
        })
        .await;
    }
}
