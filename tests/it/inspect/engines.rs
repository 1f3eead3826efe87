//! Engines that are as the configuration says, differ, or are away; whether there is a pool or not.

use axum::Router;
use axum::routing::get;
use pd_proxy::auth::Digest;
use pd_proxy::prompt::Today;
use pd_proxy::sim::{Connector, Engine, EngineSpec, Fault, FaultKind, Role};
use tokio::task::JoinSet;

use super::{anywhere, check, check_with, expect, set};
use crate::common::model;
use crate::common::stage::fast;

async fn engine(role: Role, change: impl FnOnce(&mut EngineSpec)) -> Engine {
    let mut spec = EngineSpec { role, ..fast() };
    change(&mut spec);
    Engine::start(spec, anywhere()).await.unwrap()
}

/// A prefiller as changed, and a decoder.
async fn pair(change: impl FnOnce(&mut EngineSpec)) -> [Engine; 2] {
    [engine(Role::Prefill, change).await, engine(Role::Decode, |_| ()).await]
}

fn named([prefill, decode]: &[Engine; 2], more: &[&str]) -> Vec<String> {
    let mut sets = vec![set("fleet.prefill", prefill.addr()), set("fleet.decode", decode.addr())];
    sets.extend(more.iter().map(|one| (*one).to_owned()));
    sets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_as_configured_are_described() {
    let both = pair(|_| ()).await;
    let (prefill, decode) = (both[0].addr(), both[1].addr());
    let found = check(&named(&both, &["fleet.model=sim"]));
    expect(
        &found,
        0,
        &[
            &format!(
                "ok   prefiller {prefill}: vLLM 0.32.0, model /models/sim, served as sim, blocks of 16 tokens, hash sha256"
            ),
            &format!("ok   decoder {decode}: vLLM 0.32.0"),
            &format!("ok   prefiller {prefill}: dialect kv_transfer"),
            "ok   blocks can be named: 16 tokens each",
            "open files: at most ",
            "localhost:8000 (server.port)",
        ],
    );
    assert!(!found.1.contains("BAD") && !found.1.contains("clock"), "{}", found.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_away_is_bad_and_a_default_that_nobody_named_is_not() {
    let both = pair(|_| ()).await;
    let sets = named(&both, &[]);
    let (dead, decode) = (both[0].addr(), both[1].addr());
    let [prefill, _decode] = both;
    prefill.stop().await;
    let words = format!("BAD  prefiller {dead} can't be asked: Connection refused");
    expect(
        &check(&sets),
        3,
        &[&words, "is it up, and is this its port?", "ok   decoder", "pd-proxy: engines or the pool are not"],
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("prefill {dead}\ndecode {decode}\n")).unwrap();
    expect(&check(&[set("discovery.file", file.path().display())]), 3, &[&words, "ok   decoder"]);
    std::fs::write(file.path(), "half a").unwrap();
    expect(
        &check(&[set("discovery.file", file.path().display())]),
        3,
        &["(discovery.file): ", "no prefiller"],
    );
    let found = check(&[set("fleet.decode", decode)]);
    expect(&found, 0, &["warn prefiller localhost:8001 is the default, since fleet.prefill names none"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_without_a_partner_of_their_release_are_named_where_that_is_compared() {
    let release = |name: &'static str| move |spec: &mut EngineSpec| name.clone_into(&mut spec.version);
    let both = pair(release("0.33.0")).await;
    let (prefill, decode) = (both[0].addr(), both[1].addr());
    let words =
        format!("BAD  no prefiller and decoder are of one release ({prefill} of 0.33.0; {decode} of 0.32.0)");
    expect(&check(&named(&both, &[])), 3, &[&words]);
    let partner = engine(Role::Prefill, |_| ()).await;
    let all = named(&both, &[&set("fleet.prefill", format!("{prefill},{}", partner.addr()))]);
    let words =
        format!("warn prefillers that no decoder of their release reads get no prompts: {prefill} of 0.33.0");
    let found = check(&all);
    assert!(found.1.contains(&words), "{}", found.1);

    let mooncake = |name| {
        move |spec: &mut EngineSpec| {
            release(name)(spec);
            spec.connector = Connector::Mooncake;
        }
    };
    let both =
        [engine(Role::Prefill, mooncake("0.33.0")).await, engine(Role::Decode, mooncake("0.32.0")).await];
    let found = check(&named(&both, &[]));
    assert!(!found.1.contains("one release ("), "Mooncake compares none: {}", found.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_models_are_named() {
    let both = pair(|spec| spec.model = "blue".to_owned()).await;
    let (prefill, decode) = (both[0].addr(), both[1].addr());
    let words =
        format!("BAD  decoder {decode} serves sim, but prefiller {prefill} serves blue: a request names");
    expect(&check(&named(&both, &[])), 3, &[&words]);
    let words = format!("BAD  decoder {decode}: fleet.model = \"blue\", but it serves sim: set fleet.model");
    let found = check(&named(&both, &["fleet.model=blue"]));
    expect(&found, 3, &[&words]);
    assert_eq!(found.1.matches("BAD").count(), 2, "the line, and the last word: {}", found.1);
}

/// A request has one of the names, so all engines must have that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_may_be_named_by_its_folder_but_not_differently_by_two_engines() {
    let both = pair(|_| ()).await;
    let found = check(&named(&both, &["fleet.model=/data/models/sim"]));
    assert_eq!((found.0, found.1.contains("BAD")), (0, false), "{}", found.1);

    let both = pair(|spec| spec.model = "hub/sim".to_owned()).await;
    let (prefill, decode) = (both[0].addr(), both[1].addr());
    let words =
        format!("BAD  decoder {decode} serves sim, but prefiller {prefill} serves hub/sim: a request names");
    expect(&check(&named(&both, &["fleet.model=sim"])), 3, &[&words]);
}

/// Any web server answers; an engine has at least one of the paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_a_non_engine_as_bad() {
    let both = pair(|_| ()).await;
    let prefill = both[0].addr();
    let lacks = |path: &str| {
        assert!(both[0].inject(Fault::always(FaultKind::Status(404, None)).on_path(path)));
    };
    lacks("/version");
    lacks("/metrics");
    expect(&check(&named(&both, &[])), 0, &["an engine that does not tell its release, model /models/sim"]);
    lacks("/v1/models");
    let words = format!("BAD  prefiller {prefill} answers, but has none of an engine's /version");
    expect(&check(&named(&both, &[])), 3, &[&words, "is an engine behind this port?"]);
}

/// The gateway takes no such server for an engine: its probes are answered so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_a_server_that_redirects_everything_as_bad() {
    let both = pair(|_| ()).await;
    assert!(both[1].inject(Fault::always(FaultKind::Status(302, None))));
    let words = format!("BAD  decoder {} answers, but has none of an engine's /version", both[1].addr());
    expect(&check(&named(&both, &[])), 3, &[&words, "is an engine behind this port?"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_judges_the_answer_to_a_probe_as_the_gateway_does() {
    for status in [302, 404, 503] {
        let both = pair(|_| ()).await;
        assert!(both[1].inject(Fault::always(FaultKind::Status(status, None)).on_path("/health")));
        let decoder = both[1].addr();
        let words = format!("BAD  decoder {decoder}: GET /health is answered with status {status}");
        expect(&check(&named(&both, &[])), 3, &[&words]);
        if status != 503 {
            expect(&check(&named(&both, &["health.probe_ms=0"])), 0, &["ok   decoder"]);
        }
    }
}

/// With a pool whose keys have no preset, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_another_size_are_bad() {
    let both = pair(|spec| spec.block_tokens = 32).await;
    let words = [
        "BAD  the block size: the configuration (hash.block_tokens) says 16, but engine ",
        "a gateway does not start beside this engine",
        "has blocks of tokens: 16, and prefiller",
    ];
    expect(&check(&named(&both, &[])), 3, &words);
    let pool = ["pool.kind=ems", "hash.scheme=ems", "pool.addresses=127.0.0.1:1"];
    expect(&check(&named(&both, &pool)), 3, &words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_dialect_is_told_with_the_right_one() {
    let both = pair(|_| ()).await;
    expect(
        &check(&named(&both, &["dialect.name=sglang"])),
        3,
        &["BAD ", "set dialect.name = \"kv_transfer\""],
    );
    expect(&check(&named(&both, &["dialect.name=pool"])), 0, &["dialect pool, as configured"]);
    let both = pair(|spec| spec.connector = Connector::Sglang).await;
    expect(&check(&named(&both, &["dialect.name=mooncake"])), 3, &["set dialect.name = \"sglang\""]);
    expect(&check(&named(&both, &["dialect.name=auto"])), 0, &["dialect sglang: it is SGLang"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_off_is_told_and_names_the_engine() {
    let routes = Router::new()
        .route("/health", get(async || [("date", "Sun, 06 Nov 1994 08:49:37 GMT")]))
        .route("/version", get(async || r#"{"version":"0.32.0"}"#));
    let listener = tokio::net::TcpListener::bind(anywhere()).await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let words = format!("warn decoder {at}: its clock is ");
    expect(&check(&[set("fleet.decode", at)]), 0, &[&words, " s behind ours; certificates, leases and logs"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_caching_that_is_off_is_bad_where_events_are_listened_to() {
    let both = pair(|spec| spec.prefix_caching = false).await;
    let words = format!("prefiller {}: it has prefix caching off", both[0].addr());
    expect(&check(&named(&both, &[])), 0, &[&format!("warn {words}")]);
    expect(
        &check(&named(&both, &["events.listen=true"])),
        3,
        &[&format!("BAD  {words}, and publishes no KV")],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_keys_ranks_and_tls_are_told_in_words() {
    let both = pair(|spec| spec.ranks = 2).await;
    let (prefill, decode) = (both[0].addr(), both[1].addr());
    assert!(both[1].inject(Fault::always(FaultKind::Status(503, None)).on_path("/health")));
    let found = check(&named(&both, &["fleet.decode_ranks=4"]));
    let words = format!("BAD  decoder {decode}: GET /health is answered with status 503");
    expect(&found, 3, &[&words, "fleet.decode_ranks = 4, but it tells of 1 data-parallel rank:"]);
    let secure = [format!("fleet.prefill=https://{prefill}"), set("fleet.decode", prefill)];
    expect(
        &check(&secure),
        3,
        &["BAD  prefiller https://", "it does not speak TLS: write http:// before it"],
    );
    let guarded = pair(|spec| spec.api_key = Some("sk-right".to_owned())).await;
    let sets = named(&guarded, &[]);
    expect(&check(&sets), 0, &["warn prefiller", "it wants a key: set engine.api_key"]);
    let keys = tempfile::NamedTempFile::new().unwrap();
    let digest = Digest::of(b"sk-a");
    std::fs::write(keys.path(), format!("[[key]]\nname = \"a\"\nsha256 = \"{digest}\"\n")).unwrap();
    let sets_with_keys = [sets.clone(), vec![set("auth.keys_file", keys.path().display())]].concat();
    expect(
        &check(&sets_with_keys),
        3,
        &["BAD  prefiller", "clients' keys end at the gateway: set engine.api_key"],
    );
    for (key, code, words) in
        [("sk-wrong", 3, "it does not take engine.api_key"), ("sk-right", 0, "served as sim")]
    {
        let found = check_with(&sets, &[("OPENAI_API_KEY", key)]);
        expect(&found, code, &[words]);
        assert!(!found.1.contains(key), "{}", found.1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_tokens_are_compared_and_the_models_files_opened() {
    const TODAY: Today = Today { year: 2026, month: 3, day: 7 };
    fn same(_: &mut [u32]) {}
    fn changed(tokens: &mut [u32]) {
        tokens.iter_mut().skip(3).take(1).for_each(|token| *token += 1);
    }
    let dir = model::directory("qwen3");
    let path = set("prompt.model_path", dir.path().display());
    for (change, code, words) in [
        (same as fn(&mut [u32]), 0, "our tokens are its own ("),
        (
            changed as fn(&mut [u32]),
            3,
            "are the tokenizer's files, the chat template and prompt.template_kwargs",
        ),
    ] {
        let both = pair(|spec| spec.tokenize = Some(model::tokenizing("qwen3", TODAY, change))).await;
        expect(&check(&named(&both, &["prompt.tokens=local", &path])), code, &[words]);
    }
    let nowhere = ["prompt.tokens=local", "prompt.model_path=/nowhere"].map(str::to_owned);
    let found = check(&nowhere);
    expect(&found, 1, &["pd-proxy: prompt.model_path: /nowhere/tokenizer.json: No such file"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_answers_nothing_is_bad_with_the_question_and_the_time() {
    // The kernel accepts connections that nobody takes.
    let silent = std::net::TcpListener::bind(anywhere()).unwrap();
    let at = silent.local_addr().unwrap();
    let decoder = engine(Role::Decode, |_| ()).await;
    let sets =
        [set("fleet.prefill", at), set("fleet.decode", decoder.addr()), "timeout.models_ms=200".into()];
    let words = format!("BAD  prefiller {at} can't be asked: GET /health: no answer within 200 ms");
    expect(&check(&sets), 3, &[&words]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_answers_its_health_alone_is_bad_after_the_time_of_the_others() {
    let both = pair(|_| ()).await;
    for path in ["/version", "/v1/models", "/metrics"] {
        assert!(both[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path(path)));
    }
    let found = check(&named(&both, &["timeout.models_ms=200"]));
    expect(&found, 3, &["GET /version, /v1/models and /metrics: no whole answer within 200 ms (after "]);
    let (_, rest) = found.1.split_once("no whole answer within 200 ms (after ").unwrap();
    let after_ms: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(after_ms >= 200, "{}", found.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_answers_all_but_prompts_or_all_but_its_models_is_bad() {
    for (path, words) in [
        (
            "/v1/completions",
            "a prompt of one word (POST /v1/completions) was not answered: no whole answer within 1000 ms",
        ),
        ("/v1/models", "GET /v1/models: no whole answer within 200 ms"),
    ] {
        for role in [Role::Prefill, Role::Decode] {
            let both = pair(|_| ()).await;
            let hangs = if role == Role::Prefill { &both[0] } else { &both[1] };
            assert!(hangs.inject(Fault::always(FaultKind::StallBeforeHead).on_path(path)));
            let who = if role == Role::Prefill { "prefiller" } else { "decoder" };
            let found = check(&named(&both, &["timeout.models_ms=200"]));
            expect(&found, 3, &[&format!("BAD  {who} {}", hangs.addr()), words]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_elsewhere_is_not_asked_and_is_no_fault() {
    let both = pair(|_| ()).await;
    let api = engine(Role::Decode, |_| ()).await;
    let sets = [
        set("fleets.chat.fleet.prefill", format!("[\"{}\"]", both[0].addr())),
        set("fleets.chat.fleet.decode", format!("[\"{}\"]", both[1].addr())),
        set("fleets.cloud.fleet.remote", format!("http://{}/v1", api.addr())),
        set("fleets.cloud.fleet.model", "cloud"),
    ];
    let found = check(&sets);
    expect(&found, 0, &["note cloud: fleet.remote is an API elsewhere: it is not asked"]);
    assert!(api.seen().is_empty(), "{:?}", api.seen());
}
