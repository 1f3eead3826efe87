//! Asking simulated engines what they are and how they tokenise, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::endpoint::Endpoint;
use pd_proxy::prompt::{
    ChatEncoding, Exactness, MistralFormat, MistralVersion, PrefixCache, Prompter, Reason, Rules, Today,
    Topic, Topics,
};
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Tokenizing};
use pd_proxy::tokenization::{
    self, Asker, ComparedEngine, Comparison, Difference, EngineLimits, EngineTokenizer, Parity,
    TokenizeRequest, Verdict, facts,
};
use serde_json::Value;

use crate::common::model::{self, golden, prompter};
use crate::common::time::eventually;

const RENDER: &str = "/v1/chat/completions/render";
const TODAY: Today = Today { year: 2026, month: 3, day: 7 };
/// Longer than anything here takes that is not meant to be slow.
const GENEROUS: Duration = Duration::from_secs(30);

async fn engine(spec: EngineSpec) -> (Engine, Endpoint) {
    let engine = Engine::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let endpoint = Endpoint::parse(&engine.url()).unwrap();
    (engine, endpoint)
}

fn client() -> reqwest::Client {
    pd_proxy::tls::http().build().unwrap()
}

fn asker() -> Asker {
    Asker { client: client(), authorization: None, time: GENEROUS, answer_bytes: 1 << 20 }
}

fn limits(budget: Duration) -> EngineLimits {
    EngineLimits { budget, ..EngineLimits::default() }
}

fn object(body: &str) -> Object {
    Object::scan(Bytes::copy_from_slice(body.as_bytes()), ScanLimits::default()).unwrap()
}

fn chat(text: &str) -> Object {
    object(&format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#))
}

fn asked(engine: &Engine) -> usize {
    engine.seen().iter().filter(|seen| seen.path == "/tokenize").count()
}

#[tokio::test]
async fn an_engine_tells_what_it_is() {
    let spec = EngineSpec {
        version: "0.33.1".into(),
        root: Some("/weights/m".into()),
        hash_algo: "sha256_cbor".into(),
        prefix_caching: false,
        block_tokens: 64,
        api_key: Some("secret".into()),
        ..EngineSpec::default()
    };
    let (_engine, at) = engine(spec).await;
    let key = "Bearer secret".parse().unwrap();
    let facts = facts::fetch(&client(), &at, Some(&key), GENEROUS).await.unwrap();
    assert_eq!(facts.version.as_deref(), Some("0.33.1"));
    assert_eq!((facts.models[0].id.as_str(), facts.models[0].root.as_deref()), ("sim", Some("/weights/m")));
    let cache = facts.cache.unwrap().unwrap();
    assert_eq!((cache.block_tokens, cache.hash_algo.as_deref()), (Some(64), Some("sha256_cbor")));
    assert_eq!((cache.prefix_caching, cache.hash_block_tokens), (Some(false), None));
    assert_eq!(facts.gaps, []);
}

#[tokio::test]
async fn missing_facts_are_gaps_and_a_silent_engine_is_an_error() {
    let (engine, at) = engine(EngineSpec { api_key: Some("secret".into()), ..EngineSpec::default() }).await;
    let huge = Bytes::from(vec![b'x'; 8 << 10]);
    assert!(engine.inject(Fault::always(FaultKind::Status(200, Some(huge))).on_path("/version")));
    assert!(engine.inject(Fault::always(FaultKind::ResetBeforeHead).on_path("/metrics")));
    let facts = facts::fetch(&client(), &at, None, GENEROUS).await.unwrap();
    assert_eq!((facts.version, facts.models.len(), facts.cache), (None, 0, Ok(None)));
    let gaps: Vec<String> = facts.gaps.iter().map(ToString::to_string).collect();
    assert_eq!(gaps.len(), 3, "{gaps:?}");
    assert_eq!(gaps[0], "GET /version: its answer is larger than 4096 bytes");
    assert_eq!(gaps[1], "GET /v1/models: it answered with status 401");
    assert!(gaps[2].starts_with("GET /metrics: "), "{gaps:?}");
    engine.kill().await;
    let error = facts::fetch(&client(), &at, None, GENEROUS).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("{at} can't be asked what it is: ")), "{error}");
}

#[tokio::test]
async fn an_engine_that_is_silent_is_given_up() {
    let (engine, at) = engine(EngineSpec::default()).await;
    assert!(engine.inject(Fault::always(FaultKind::StallBeforeHead)));
    let error = facts::fetch(&client(), &at, None, Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.why, "no whole answer within 50 ms");
}

#[tokio::test]
async fn equal_questions_share_one_exchange_and_its_answer_is_kept() {
    let (engine, at) = engine(EngineSpec::default()).await;
    assert!(engine.inject(Fault::always(FaultKind::Delay(Duration::from_millis(50))).on_path("/tokenize")));
    let tokenizer = EngineTokenizer::new(asker(), limits(GENEROUS), 7);
    let body = chat("Hi");
    let all = join_all((0..20).map(|_| tokenizer.tokens(&at, Api::Chat, &body, 0))).await;
    let tokens = all[0].clone().unwrap();
    assert!(!tokens.is_empty());
    assert!(all.iter().all(|answer| answer.as_ref() == Ok(&tokens)), "{all:?}");
    assert_eq!(asked(&engine), 1);
    assert_eq!(tokenizer.tokens(&at, Api::Chat, &body, 0).await, Ok(tokens.clone()));
    assert_eq!(asked(&engine), 1);
    let stats = tokenizer.stats();
    assert_eq!((stats.asked, stats.joined, stats.cached), (1, 19, 1));
    assert_eq!(stats.held_tokens, tokens.len());
    assert_ne!(tokenizer.tokens(&at, Api::Chat, &chat("Ho"), 0).await, Ok(tokens));
    assert_eq!(asked(&engine), 2);
}

#[tokio::test]
async fn no_request_waits_beyond_the_budget_and_late_answers_are_kept() {
    let (engine, at) = engine(EngineSpec::default()).await;
    assert!(engine.inject(Fault::always(FaultKind::Delay(Duration::from_secs(1))).on_path("/tokenize")));
    let tokenizer = EngineTokenizer::new(asker(), limits(Duration::from_millis(10)), 7);
    let body = chat("Hi");
    let start = Instant::now();
    assert_eq!(tokenizer.tokens(&at, Api::Chat, &body, 0).await, Err(Reason::EngineSlow));
    assert!(start.elapsed() < Duration::from_secs(1));
    eventually("the exchange ends", async || tokenizer.stats().held_tokens > 0).await;
    assert!(tokenizer.tokens(&at, Api::Chat, &body, 0).await.is_ok());
    assert_eq!(asked(&engine), 1);
}

#[tokio::test]
async fn only_so_many_exchanges_are_under_way() {
    let (engine, at) = engine(EngineSpec::default()).await;
    assert!(engine.inject(Fault::once(FaultKind::StallBeforeHead).on_path("/tokenize")));
    let limits = EngineLimits { in_flight: 1, ..limits(Duration::from_millis(10)) };
    let tokenizer = EngineTokenizer::new(asker(), limits, 7);
    assert_eq!(tokenizer.tokens(&at, Api::Chat, &chat("1"), 0).await, Err(Reason::EngineSlow));
    assert_eq!(tokenizer.tokens(&at, Api::Chat, &chat("2"), 0).await, Err(Reason::EngineBusy));
    let ids = object(r#"{"prompt":[1,2]}"#);
    assert_eq!(tokenizer.tokens(&at, Api::Completions, &ids, 0).await.as_deref(), Ok(&[1, 2][..]));
}

#[tokio::test]
async fn a_failed_exchange_has_a_reason_and_does_not_block_the_next() {
    let (engine, at) = engine(EngineSpec::default()).await;
    let tokenizer = EngineTokenizer::new(asker(), limits(GENEROUS), 7);
    let body = chat("Hi");
    for (what, reason) in [
        (FaultKind::Status(404, None), Reason::EngineRefused),
        (FaultKind::Status(200, Some(Bytes::from_static(b"{}"))), Reason::EngineUnreachable),
        (FaultKind::Status(200, Some(Bytes::from(vec![b' '; 2 << 20]))), Reason::EngineUnreachable),
        (FaultKind::ResetBeforeHead, Reason::EngineUnreachable),
    ] {
        engine.clear_faults();
        assert!(engine.inject(Fault::always(what.clone()).on_path("/tokenize")));
        assert_eq!(tokenizer.tokens(&at, Api::Chat, &body, 0).await, Err(reason), "{what:?}");
    }
    engine.clear_faults();
    assert!(tokenizer.tokens(&at, Api::Chat, &body, 0).await.is_ok());
}

/// An engine that tokenises as `template` does, after `change`.
async fn tokenising(template: &str, change: fn(&mut [u32])) -> (Engine, Endpoint) {
    let tokenize = Some(model::tokenizing(template, TODAY, change));
    engine(EngineSpec { tokenize, ..EngineSpec::default() }).await
}

async fn compare(at: &Endpoint, prompter: &Prompter) -> Parity {
    compare_under(at, prompter, Rules::OF_32).await
}

async fn compare_under(at: &Endpoint, prompter: &Prompter, rules: Rules) -> Parity {
    let engine = ComparedEngine { engine: at, model: Some("sim"), rules };
    tokenization::compare(&asker(), engine, prompter, Some(TODAY)).await
}

#[tokio::test]
async fn equal_files_are_at_parity_with_every_template() {
    for template in ["qwen3", "llama3", "deepseek_v31", "mistral", "gemma3", "kimi_k2"] {
        let (engine, at) = tokenising(template, |_| ()).await;
        let parity = compare(&at, &prompter(template)).await;
        assert_eq!(parity.verdict, Verdict::Same, "{template}");
        assert_eq!(parity.compared + parity.skipped.values().sum::<usize>(), 47, "{template}: {parity:?}");
        assert!(parity.compared >= 38, "{template}: {parity:?}");
        let rendered = engine.seen().iter().filter(|seen| seen.path == RENDER).count();
        assert_eq!(asked(&engine) + rendered, parity.compared, "{template}");
        assert_eq!(rendered, 9, "{template}: efforts, documents and reasoning_content");
        assert_eq!(parity.topics.different, Topics::NONE, "{template}");
    }
}

#[tokio::test]
async fn the_first_different_token_is_named() {
    let (_engine, at) = tokenising("qwen3", |tokens| {
        if let Some(token) = tokens.get_mut(3) {
            *token += 1;
        }
    })
    .await;
    let parity = compare(&at, &prompter("qwen3")).await;
    let Verdict::Different(Difference { canary: "ascii", is_chat: false, found }) = parity.verdict else {
        panic!("{parity:?}")
    };
    let Comparison::Token { at: 3, ours: Some(ours), theirs: Some(theirs) } = found else {
        panic!("{found:?}")
    };
    assert_eq!(ours + 1, theirs);
}

#[tokio::test]
async fn another_template_and_a_refusal_are_differences() {
    let (_engine, at) = tokenising("llama3", |_| ()).await;
    let parity = compare(&at, &prompter("qwen3")).await;
    assert!(
        matches!(parity.verdict, Verdict::Different(Difference { canary: "one turn", is_chat: true, .. })),
        "{parity:?}"
    );
    let refuses = EngineSpec { tokenize: Some(Tokenizing(Arc::new(|_| None))), ..EngineSpec::default() };
    let (_engine, at) = engine(refuses).await;
    let parity = compare(&at, &prompter("qwen3")).await;
    let expect = Difference { canary: "ascii", is_chat: false, found: Comparison::Refused(400) };
    assert_eq!((parity.verdict, parity.compared), (Verdict::Different(expect), 1));
}

#[tokio::test]
async fn nothing_compared_or_nobody_reached_is_no_parity() {
    let (engine, at) = tokenising("qwen3", |_| ()).await;
    let blind = Prompter::new(None, None, PrefixCache::off());
    let parity = compare(&at, &blind).await;
    assert_eq!((parity.verdict, parity.compared), (Verdict::Untested, 0));
    assert_eq!(parity.skipped.get(Reason::NoTokenizer.name()), Some(&46));
    for what in [FaultKind::Status(404, None), FaultKind::Status(503, None), FaultKind::ResetBeforeHead] {
        engine.clear_faults();
        assert!(engine.inject(Fault::always(what).on_path("/tokenize")));
        let parity = compare(&at, &prompter("qwen3")).await;
        assert!(matches!(parity.verdict, Verdict::Unknown(_)), "{parity:?}");
        assert_eq!(parity.compared, 0);
    }
}

#[tokio::test]
async fn an_engine_that_finds_no_token_in_a_prompt_has_not_answered() {
    let nothing = Tokenizing(Arc::new(|_: &[u8]| Some(Vec::new())));
    let (_engine, at) = engine(EngineSpec { tokenize: Some(nothing), ..EngineSpec::default() }).await;
    let parity = compare(&at, &prompter("qwen3")).await;
    assert!(matches!(parity.verdict, Verdict::Unknown(_)), "{parity:?}");
}

/// Of a newer release, what its answers show.
#[tokio::test]
async fn the_topics_that_an_engine_reads_as_we_do_are_told() {
    let tokenize = Some(model::tokenizing("everything", TODAY, |_| ()));
    let older = EngineSpec { renders: false, tokenize, ..EngineSpec::default() };
    let (_engine, at) = engine(older.clone()).await;
    let parity = compare_under(&at, &prompter("everything"), Rules::OF_33).await;
    let hidden = [Topic::OlderReasoning, Topic::Effort, Topic::Documents].into_iter();
    let hidden = hidden.fold(Topics::NONE, Topics::with);
    // The chats of a template have no code, and this one has no special token before an image. The
    // simulator renders chats alone.
    let unshown = [Topic::Encoding, Topic::Media, Topic::Messages, Topic::Responses].into_iter();
    let all = Topics::ALL.without(unshown.fold(Topics::NONE, Topics::with));
    assert_eq!(parity.topics.same, all.without(hidden), "it has no /render");
    let (_engine, at) = engine(EngineSpec { renders: true, ..older }).await;
    let parity = compare_under(&at, &prompter("everything"), Rules::OF_33).await;
    assert_eq!((parity.topics.same, parity.topical), (all, None));
}

#[tokio::test]
async fn a_topic_that_an_engine_reads_in_another_way_leaves_the_others() {
    let prompter = prompter("everything");
    let inner = model::tokenizing("everything", TODAY, |_| ());
    let odd = Tokenizing(Arc::new(move |body: &[u8]| {
        let has = |word: &[u8]| body.windows(word.len()).any(|part| part == word);
        let mut tokens = (inner.0)(body)?;
        tokens.truncate(tokens.len() - usize::from(has(b"developer") || has(b"medium")));
        Some(tokens)
    }));
    let (_engine, at) = engine(EngineSpec { tokenize: Some(odd), ..EngineSpec::default() }).await;
    let parity = compare(&at, &prompter).await;
    assert_eq!(parity.verdict, Verdict::Same);
    let different = Topics::NONE.with(Topic::Developer).with(Topic::Effort);
    assert_eq!(parity.topics.different, different);
    assert_eq!(parity.topics.names(), "reasoning_effort, developer");
    assert_eq!(parity.topical.map(|difference| difference.canary), Some("effort medium"));
}

/// A model whose chats are rendered by code, with the tokenizer of the others.
fn encoded(encoding: ChatEncoding) -> Prompter {
    prompter("mistral").with_encoding(encoding)
}

#[tokio::test]
async fn chats_by_code_count_once_an_engine_has_shown_one() {
    let encodings = [
        ChatEncoding::DeepseekV32,
        ChatEncoding::DeepseekV4,
        ChatEncoding::DeepseekV41,
        ChatEncoding::Mistral(MistralFormat::new(MistralVersion::V3, None).unwrap()),
    ];
    for encoding in encodings {
        let tokenize = Some(model::tokenizing_by(encoded(encoding), TODAY, |_| ()));
        let spec = EngineSpec { renders: false, tokenize, ..EngineSpec::default() };
        let (_engine, at) = engine(spec).await;
        let parity = compare(&at, &encoded(encoding)).await;
        assert_eq!(parity.verdict, Verdict::Same, "{encoding:?}: {parity:?}");
        let seen = parity.topics;
        assert!(seen.same.covers(Topics::NONE.with(Topic::Encoding)), "{encoding:?}: {parity:?}");
        assert_eq!(seen.unseen_chats(), "", "{encoding:?}");
    }
    // Before 0.33 only /render shows gpt-oss's, and this engine has none.
    let tokenize = Some(model::tokenizing("mistral", TODAY, |_| ()));
    let (engine, at) = engine(EngineSpec { renders: false, tokenize, ..EngineSpec::default() }).await;
    let parity = compare(&at, &encoded(ChatEncoding::Harmony)).await;
    assert_eq!(parity.verdict, Verdict::Same, "of the texts");
    assert_eq!(parity.topics.different, Topics::NONE.with(Topic::Encoding));
    assert!(parity.topics.unseen_chats().contains("--enable-scale-out"));
    assert_eq!(asked(&engine), parity.compared, "no chat is asked by /tokenize");
}

#[tokio::test]
async fn an_engine_that_renders_by_other_code_refutes_chats() {
    let (_engine, at) = tokenising("mistral", |_| ()).await;
    let parity = compare(&at, &encoded(ChatEncoding::DeepseekV4)).await;
    let Verdict::Different(Difference { canary: "one turn", is_chat: true, .. }) = parity.verdict else {
        panic!("{parity:?}")
    };
}

/// Members that `/tokenize` of vLLM 0.32 knows; it ignores everything else.
const TOKENIZE_MEMBERS: [&str; 7] = [
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "messages",
    "model",
    "tools",
];

#[test]
fn a_question_is_the_same_prompt_said_with_the_members_of_tokenize() {
    let chats: Value = serde_json::from_str(&golden("chat.json")).unwrap();
    let prompters = ["qwen3", "deepseek_v31", "glm45", "everything"].map(|name| (name, prompter(name)));
    let (mut same, mut unasked) = (0, Vec::new());
    for (name, request) in chats["requests"].as_object().unwrap() {
        let body = match tokenization::tokenize_request(Api::Chat, &object(&request.to_string())) {
            Ok(TokenizeRequest::Ask(body)) => Object::scan(body, ScanLimits::default()).unwrap(),
            Ok(known) => panic!("{name}: {known:?}"),
            Err(reason) => {
                unasked.push((name.as_str(), reason));
                continue;
            }
        };
        assert!(body.members().all(|(key, _)| TOKENIZE_MEMBERS.contains(&&*key)), "{name}");
        let messages: Vec<Value> = serde_json::from_slice(body.get("messages").unwrap().raw()).unwrap();
        let older = |m: &Value| m.get("reasoning_content").is_some() && m.get("reasoning").is_none();
        assert!(!messages.iter().any(older), "{name}: /tokenize does not look at reasoning_content");
        if name.starts_with("documents") {
            // Among the variables they are an engine's to read, not ours.
            assert!(body.get("chat_template_kwargs").unwrap().object().unwrap().contains("documents"));
            continue;
        }
        for (template, prompter) in &prompters {
            let expect = &chats["families"][*template]["results"][name]["ids"];
            let Ok(expect) = serde_json::from_value::<Vec<u32>>(expect.clone()) else { continue };
            let prompt = prompter.prompt(Api::Chat, &body, TODAY);
            assert_eq!(
                (prompt.exactness, &prompt.tokens[..]),
                (Exactness::Exact, &expect[..]),
                "{template}/{name}"
            );
            same += 1;
        }
    }
    assert!(same > 150, "only {same} prompts were compared");
    let expect = [
        ("continue_and_generate", Reason::Shape),
        ("tool_choice_none", Reason::Constraint),
        ("bad_effort", Reason::Shape),
        ("bad_no_tools", Reason::Shape),
        ("bad_documents", Reason::Shape),
        ("bad_empty", Reason::Shape),
    ];
    assert_eq!(unasked, expect);
}
