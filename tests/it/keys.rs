//! `pd-proxy keys` as people and scripts run it. What it must print was made by the engines' and
//! connectors' own code: rows of `tests/vectors`, and the golden chats.

use std::net::SocketAddr;

use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind};
use serde_json::{Value, json};

use crate::command::run;
use crate::common::model::{self, golden};
use crate::common::stage::fast;

/// The row of this name in a file of golden vectors.
fn row(file: &str, name: &str) -> Value {
    let path = format!("{}/tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    rows.into_iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {file}"))
}

/// A row's token ids as `--tokens` takes them.
fn ids(row: &Value) -> String {
    let ids: Vec<String> = row["token_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

/// The settings that an engine would be asked for; `set` reaches the others.
fn hashing<'a>(block_size: &'a str, version: &'a str) -> Vec<&'a str> {
    let mut flags = vec!["--block-size", block_size];
    for setting in ["hash.seed=0", "hash.algo=sha256", version] {
        flags.extend(["--set", setting]);
    }
    flags
}

fn keys(arguments: &[&str], more: &[&str]) -> (i32, String, String) {
    run(&[&["keys"], arguments, more].concat(), &[])
}

/// The JSON that it prints for a prompt that is known.
fn listed(arguments: &[&str], more: &[&str]) -> Value {
    let (code, out, err) = keys(&[&["--format", "json"], arguments].concat(), more);
    assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}: {out}");
    let listing: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&listing["exact"], &listing["reason"]), (&json!(true), &Value::Null), "{arguments:?}");
    listing
}

fn column(listing: &Value, name: &str) -> Vec<Value> {
    listing["blocks"].as_array().unwrap().iter().map(|block| block[name].clone()).collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn people_read_blocks_hashes_and_keys() {
    let row = row("vllm_plain_sha256.json", "sha256.bs2.tiny@0.10.2");
    let tokens = ids(&row);
    let more = ["--profile", "mooncake-store-0.30", "--set", "key.model=/models/Qwen3-8B"];
    let (code, out, err) =
        keys(&["--tokens", &tokens], &[&hashing("2", "hash.version=0.32.0"), &more[..]].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let mut expect = format!("tokens {}: {}\n", array(&row["token_ids"]).len(), tokens.replace(',', " "));
    for (index, (hash, event)) in
        array(&row["expect"]).iter().zip(array(&row["expect_event_u64"])).enumerate()
    {
        let (hash, start, end) = (hash.as_str().unwrap(), 2 * index, 2 * index + 2);
        expect.push_str(&format!(
            "block {index}  tokens {start}..{end}  hash {hash}  event {event}\n    \
             Qwen3-8B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{hash}\n"
        ));
    }
    assert_eq!(out, expect);
}

#[test]
fn programs_read_the_keys_of_all_ranks() {
    let row = row("ascend_store_keys_1.json", "keys.tp2.bs64@0.26.0rc1");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ids");
    std::fs::write(&file, format!("[{}]\n", ids(&row))).unwrap();
    let tokens = format!("@{}", file.display());
    let model = format!("key.model={}", row["params"]["model"].as_str().unwrap());
    let more = ["--profile", "ascend-0.26", "--set", &model, "--set", "key.tp=2", "--set", "key.kv_heads=8"];
    let listing =
        listed(&["--tokens", &tokens], &[&hashing("64", "hash.version=0.26.0"), &more[..]].concat());
    assert_eq!(listing["tokens"], row["token_ids"]);
    assert_eq!(listing["block_tokens"], 64);
    assert_eq!(column(&listing, "hash"), array(&row["block_hashes"]));
    assert_eq!(column(&listing, "keys"), array(&row["expect"]));
    assert_eq!(column(&listing, "start_token"), [0, 64, 128]);
}

#[test]
fn a_salt_enters_the_hashes_by_flag_or_request() {
    let row = row("vllm_extra_sha256.json", "sha256.salt@0.31.0");
    let salt = row["params"]["cache_salt"].as_str().unwrap();
    let more = hashing("16", "hash.version=0.32.0");
    let tokens = ids(&row);
    let by_flag = listed(&["--tokens", &tokens, "--cache-salt", salt], &more);
    let request = json!({"prompt": row["token_ids"], "cache_salt": salt}).to_string();
    let by_request = listed(&["--messages", &request], &more);
    for listing in [by_flag, by_request] {
        assert_eq!(column(&listing, "hash"), array(&row["expect"]));
        assert_eq!(column(&listing, "event"), array(&row["expect_event_u64"]));
        assert_eq!(column(&listing, "keys"), [json!([]), json!([])], "no pool is configured");
    }
}

#[test]
fn texts_and_chats_are_tokenised_by_the_models_files() {
    let chats: Value = serde_json::from_str(&golden("chat.json")).unwrap();
    let model = model::directory("qwen3");
    let hashing = hashing("16", "hash.version=0.32.0");
    let more = [&hashing[..], &["--model-path", model.path().to_str().unwrap()]].concat();
    let text = array(&chats["completions"]).iter().max_by_key(|case| case["ids"].as_array().unwrap().len());
    let text = text.unwrap();
    // As it stands; an @ at its beginning would name a file.
    let listing = listed(&["--prompt", text["prompt"].as_str().unwrap()], &more);
    assert_eq!(listing["tokens"], text["ids"]);

    let result = |name: &str| &chats["families"]["qwen3"]["results"][name]["ids"];
    let messages = chats["requests"]["turns"]["messages"].to_string();
    assert_eq!(listed(&["--messages", &messages], &more)["tokens"], *result("turns"));
    for name in ["tools", "thinking_off"] {
        let file = model.path().join("request.json");
        std::fs::write(&file, chats["requests"][name].to_string()).unwrap();
        let whole = format!("@{}", file.display());
        assert_eq!(listed(&["--messages", &whole], &more)["tokens"], *result(name), "{name}");
    }
}

#[test]
fn a_chat_with_an_image_is_listed_up_to_it_and_is_a_failure() {
    let more = hashing("2", "hash.version=0.32.0");
    let chat = r#"[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/a.png"}}]}]"#;
    let model = model::directory("qwen3");
    let more = [&more[..], &["--model-path", model.path().to_str().unwrap()]].concat();
    let (code, out, _) = keys(&["--messages", chat], &more);
    let lines: Vec<&str> = out.lines().collect();
    let known = lines[0].strip_prefix("tokens after the first ").unwrap();
    let (count, reason) = known.split_once(" unknown: ").unwrap();
    assert_eq!((code, reason), (1, "media"), "{out}");
    let count: usize = count.parse().unwrap();
    assert!(lines[1].starts_with(&format!("first tokens {count}: ")), "{out}");
    let blocks = lines.iter().filter(|line| line.starts_with("block ")).count();
    assert!(blocks > 2 && blocks == count / 2, "no block that reaches beyond them: {out}");
}

#[test]
fn a_prompt_that_can_not_be_known_is_a_failure_with_its_reason() {
    let more = hashing("16", "hash.version=0.32.0");
    let file = r#"[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]"#;
    let model = model::directory("qwen3");
    let files = ["--model-path", model.path().to_str().unwrap()];
    for (arguments, files, reason) in [
        (["--prompt", "a"], &[][..], "no_tokenizer"),
        (["--messages", file], &files, "media"),
        (["--messages", r#"{"prompt":"a","suffix":"b"}"#], &files, "shape"),
    ] {
        let more = [&more[..], files].concat();
        let (code, out, err) = keys(&arguments, &more);
        assert_eq!(
            (code, out.as_str()),
            (1, format!("tokens unknown: {reason}\n").as_str()),
            "{arguments:?}"
        );
        assert_eq!(err.trim_end(), "the prompt's tokens can't be known here");
        let (code, out, _) = keys(&arguments, &[&more[..], &["--format", "json"]].concat());
        let listing: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &listing["reason"], &listing["tokens"]), (1, &json!(reason), &json!([])));
    }
}

#[test]
fn wrong_input_is_named() {
    let more = hashing("16", "hash.version=0.32.0");
    let once = "give the prompt once: --prompt TEXT, --messages JSON or --tokens 1,2,3";
    let ids = "--tokens: expected token ids with commas between them, as in 1,2,3";
    for (arguments, message) in [
        (&[][..], once),
        (&["--prompt", "a", "--tokens", "1"], once),
        (&["--tokens", "1,x"], ids),
        (&["--tokens", "1 2"], ids),
        (&["--tokens", "-1"], ids),
        (&["--tokens", "4294967296"], ids),
        (&["--messages", "3"], "--messages: expected a list of messages, or a whole request"),
        (&["--messages", "[{]"], "--messages: key must be a string at line 1 column 3"),
        (
            &["--prompt", "@/nowhere/prompt"],
            "--prompt @/nowhere/prompt: No such file or directory (os error 2)",
        ),
        (
            &["--prompt", "a", "--profile", "mooncake"],
            "key.preset = \"mooncake\": there is no key preset `mooncake`: did you mean `mooncake-store-0.30`?",
        ),
        (
            &["--prompt", "a", "--model-path", "/nowhere"],
            "prompt.model_path: /nowhere/tokenizer.json: No such file or directory (os error 2)",
        ),
    ] {
        let (code, out, err) = keys(arguments, &more);
        assert_eq!(
            (code, out.as_str(), err.trim_end()),
            (1, "", format!("pd-proxy: {message}").as_str()),
            "{arguments:?}"
        );
    }
    let (code, _, err) = keys(&["--tokens", "1", "--block-size", "16"], &[]);
    let message = "pd-proxy: hash.algo is not set, and no engine has said it (/metrics)";
    assert_eq!((code, err.trim_end()), (1, message), "without an engine's name none is asked");
    let (code, _, err) = keys(&["--tokens", "1"], &["--block-size", "x"]);
    let message =
        "flag --block-size: hash.block_tokens = \"x\": expected a whole number from 0 to 4294967295";
    assert_eq!((code, err.trim_end()), (1, message));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_named_prefiller_is_asked_for_what_is_not_set() {
    let row = row("vllm_plain_sha256.json", "sha256.bs16.len50@0.10.2");
    let engine = Engine::start(
        EngineSpec { root: Some("/models/Qwen3-8B".into()), ..fast() },
        SocketAddr::from(([127, 0, 0, 1], 0)),
    )
    .await
    .unwrap();
    let at = engine.addr().to_string();
    let asked = ["--prefill", &at, "--set", "hash.seed=0", "--profile", "mooncake-store-0.30"];
    let listing = listed(&["--tokens", &ids(&row)], &asked);
    assert_eq!(column(&listing, "hash"), array(&row["expect"]));
    let first =
        format!("Qwen3-8B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{}", row["expect"][0].as_str().unwrap());
    assert_eq!(listing["blocks"][0]["keys"], json!([first]));

    // Its word and the command line's must be the same.
    let (code, _, err) = keys(&["--tokens", "1"], &[&asked[..], &["--block-size", "32"]].concat());
    assert_eq!(code, 1);
    assert!(err.contains(&format!("says 32, but engine {at} (/metrics) says 16")), "{err}");

    // It tokenises, too, if it is told to.
    let by_engine = [&asked[..], &["--set", "prompt.tokens=engine"]].concat();
    let listing = listed(&["--prompt", "Tell me everything about blocks and their hashes."], &by_engine);
    assert!(!array(&listing["tokens"]).is_empty());
    assert_eq!(engine.seen().iter().filter(|seen| seen.path == "/tokenize").count(), 1);
    assert!(engine.inject(Fault::always(FaultKind::Status(400, None)).on_path("/tokenize")));
    let (code, out, _) = keys(&["--prompt", "b"], &by_engine);
    assert_eq!((code, out.as_str()), (1, "tokens unknown: engine_refused\n"));

    engine.kill().await;
    let (code, out, err) = keys(&["--tokens", "1"], &asked);
    assert_eq!((code, out.as_str()), (1, ""));
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines[0], "pd-proxy: key.model is not set, and no engine has said it (/v1/models)");
    assert!(lines[1].starts_with(&format!("{at} can't be asked what it is: ")), "{err}");
}
