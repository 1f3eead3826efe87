//! Engines that take requests and do nothing with them.

use std::time::Duration;

use axum::body::Body;
use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt;
use pd_proxy::fleet::health::State;
use pd_proxy::fleet::{ProbeAnswer, Role};
use pd_proxy::sim::{Engine, Fault, FaultKind, Match};
use tokio::time::Instant;
use tower::ServiceExt;

use super::{COMPLETIONS, DIALECTS, breakers, config, in_dialect, post, working};
use crate::common::memory::Memory;
use crate::common::time::pass;

fn stream(n: usize) -> String {
    let prompt = format!("request {n} {}", "has some words ".repeat(8));
    format!(r#"{{"model":"sim","prompt":"{prompt}","max_tokens":3,"stream":true}}"#)
}

/// Eight clients for so long; how many requests were answered, and the longest time that one took.
async fn streams(memory: &Memory, time: Duration) -> (usize, Duration) {
    let end = Instant::now() + time;
    let clients = join_all((0..8).map(|client| async move {
        let (mut served, mut longest) = (0, Duration::ZERO);
        while Instant::now() < end {
            let sent = Instant::now();
            let (status, text) = post(memory, COMPLETIONS, stream(client)).await;
            assert_eq!(status, 200, "{text}");
            longest = longest.max(sent.elapsed());
            served += 1;
            pass(Duration::from_millis(50)).await;
        }
        (served, longest)
    }));
    let all = clients.await;
    (all.iter().map(|(served, _)| served).sum(), all.iter().map(|(_, longest)| *longest).max().unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_never_begins_loses_its_legs_to_its_peers() {
    let memory = Memory::set(2, &working(), config()).await;
    streams(&memory, Duration::from_secs(1)).await;
    assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
    let (served, longest) = streams(&memory, Duration::from_secs(9)).await;
    assert!(longest < Duration::from_secs(9), "one waited {longest:?}");
    assert!(served > 20, "{served}");
    assert_ne!(breakers(&memory, Role::Decode)[0], State::Closed, "it rests");
    assert_eq!(breakers(&memory, Role::Decode)[1], State::Closed);
}

/// Decoders that are asked first never call here.
#[tokio::test(start_paused = true)]
async fn nor_does_one_keep_them_in_dialects_where_it_waits_for_kv() {
    for spoken in &DIALECTS {
        let (memory, _listening) = in_dialect(*spoken, 2).await;
        streams(&memory, Duration::from_secs(1)).await;
        assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
        let (_, longest) = streams(&memory, Duration::from_secs(12)).await;
        assert!(longest < Duration::from_secs(15), "{spoken:?}: one waited {longest:?}");
        assert_ne!(breakers(&memory, Role::Decode)[0], State::Closed, "{spoken:?}: it rests");
        assert_eq!(breakers(&memory, Role::Decode)[1], State::Closed, "{spoken:?}");
        assert_eq!(breakers(&memory, Role::Prefill), [State::Closed; 2], "{spoken:?}");
    }
}

/// The time that one request takes whose engine answers others after it was sent, and then nobody.
async fn stranded_for(memory: &Memory, prefills: bool, stream: bool) -> Duration {
    let engines = if prefills { &memory.prefillers } else { &memory.decoders };
    let body =
        |prompt: String| format!(r#"{{"model":"sim","prompt":"{prompt}","max_tokens":5,"stream":{stream}}}"#);
    let ask = async |prompt| assert_eq!(post(memory, COMPLETIONS, body(prompt)).await.0, 200);
    for n in 0..20 {
        ask(format!("before {n}")).await;
        pass(Duration::from_millis(50)).await;
    }
    let on = Match { path: Some("/v1/".into()), contains: Some("stranded".into()), ..Match::default() };
    for engine in engines {
        assert!(engine.inject(Fault { on: on.clone(), ..Fault::once(FaultKind::StallBeforeHead) }));
    }
    let has_it =
        |engine: &&Engine| engine.seen().iter().any(|seen| seen.body.windows(8).any(|it| it == b"stranded"));
    let sent = Instant::now();
    let others = async {
        pass(Duration::from_millis(5)).await;
        join_all((0..6).map(|n| ask(format!("served meanwhile {n}")))).await;
        engines.iter().filter(|it| !has_it(it)).for_each(Engine::clear_faults);
        let hanging: Vec<_> = engines.iter().filter(has_it).collect();
        assert_eq!(hanging.len(), 1);
        assert!(hanging[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
        let clients = (0..4).map(async |client| {
            for n in 0.. {
                ask(format!("client {client} asks {n}")).await;
                pass(Duration::from_millis(300)).await;
            }
        });
        join_all(clients).await
    };
    tokio::select! {
        () = ask("stranded".into()) => sent.elapsed(),
        _ = others => unreachable!("they never end"),
    }
}

/// Its last answer came after the request: the engine hangs at work, not from the first on.
#[tokio::test(start_paused = true)]
async fn requests_that_an_engine_has_when_it_stops_are_moved_as_well() {
    for spoken in &DIALECTS {
        for (prefills, stream) in [(true, true), (true, false), (false, true), (false, false)] {
            let (memory, _listening) = in_dialect(*spoken, 2).await;
            let took = stranded_for(&memory, prefills, stream).await;
            let when = format!("{spoken:?}, prefills {prefills}, stream {stream}");
            assert!(took < Duration::from_secs(40), "{when}: it took {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_slow_as_a_whole_is_waited_for() {
    let memory = Memory::set(2, &working(), config()).await;
    for decoder in &memory.decoders {
        assert!(decoder.inject(Fault::always(FaultKind::Delay(Duration::from_secs(40))).on_path("/v1/")));
    }
    let all = join_all((0..4).map(|n| post(&memory, COMPLETIONS, stream(n)))).await;
    assert!(all.iter().all(|(status, _)| *status == 200), "{all:?}");
    assert!(breakers(&memory, Role::Decode).iter().all(|it| *it == State::Closed));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_no_probe_keeps_no_client_waiting() {
    let memory = Memory::set(2, &working(), config()).await;
    assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead)));
    let fleet = memory.app.gateway().fleets().first().relay.fleet.clone();
    let silent = fleet.members(Role::Decode)[0].clone();
    let sent = Instant::now();
    let asked = join_all((0..4).map(|n| post(&memory, COMPLETIONS, stream(n))));
    let probed = async {
        pass(Duration::from_millis(1_500)).await;
        (0..3).for_each(|_| fleet.probed(&silent, ProbeAnswer::Bad("no answer")));
    };
    let (all, ()) = tokio::join!(asked, probed);
    assert!(all.iter().all(|(status, _)| *status == 200), "{all:?}");
    assert!(sent.elapsed() < Duration::from_secs(4), "{:?}", sent.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_repeatable_request_leaves_an_engine_that_does_nothing_while_its_peers_serve() {
    let memory = Memory::set(2, &working(), config()).await;
    streams(&memory, Duration::from_secs(1)).await;
    assert!(memory.prefillers[0].inject(Fault::always(FaultKind::StallBeforeHead)));
    let began = Instant::now();
    let clients = (0..4).map(async |client| {
        for n in 0..60 {
            let body = format!(r#"{{"model":"sim","input":"text {client} {n}"}}"#);
            let (status, text) = post(&memory, "/v1/embeddings", body).await;
            assert_eq!(status, 200, "client {client}, {n}, after {:?}: {text}", began.elapsed());
            pass(Duration::from_millis(200)).await;
        }
    });
    join_all(clients).await;
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
    assert_ne!(breakers(&memory, Role::Prefill)[0], State::Closed, "it rests");
}

#[tokio::test(start_paused = true)]
async fn a_decoder_that_generates_alone_for_long_keeps_its_request() {
    let memory = Memory::set(3, &working(), config()).await;
    streams(&memory, Duration::from_secs(1)).await;
    for decoder in &memory.decoders {
        for what in [FaultKind::Delay(Duration::from_secs(30)), FaultKind::Status(200, Some("{}".into()))] {
            assert!(decoder.inject(Fault::always(what).on_path(BATCH)));
        }
    }
    let body = r#"{"model":"sim","messages":[[{"role":"user","content":"a"}]],"max_tokens":3}"#;
    let meanwhile = async {
        for n in 0..400 {
            let (status, text) = post(&memory, COMPLETIONS, stream(n)).await;
            assert_eq!(status, 200, "{text}");
            pass(Duration::from_millis(100)).await;
        }
    };
    let ((status, text), ()) = tokio::join!(post(&memory, BATCH, body.to_owned()), meanwhile);
    assert_eq!(status, 200, "{text}");
    let sent = memory.decoders.iter().flat_map(|it| it.seen()).filter(|seen| seen.path == BATCH).count();
    assert_eq!(sent, 1, "it is not asked for twice");
    assert_eq!(breakers(&memory, Role::Decode), [State::Closed; 3]);
}

/// A request that is not streamed, and whose answer no `max_tokens` bounds.
async fn whole(memory: &Memory, text: &str) -> (u16, String) {
    post(memory, COMPLETIONS, format!(r#"{{"model":"sim","prompt":"{text}"}}"#)).await
}

#[tokio::test(start_paused = true)]
async fn an_unbounded_answer_is_waited_for_as_others_take_and_not_as_long_as_any_could() {
    let memory = Memory::set(2, &working(), config()).await;
    for n in 0..8 {
        assert_eq!(whole(&memory, &format!("before {n}")).await.0, 200);
    }
    assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
    let ask_all = async |client: usize, times: usize| {
        let mut longest = Duration::ZERO;
        for n in 0..times {
            let sent = Instant::now();
            let (status, text) = whole(&memory, &format!("client {client} asks {n}")).await;
            assert_eq!(status, 200, "{text}");
            longest = longest.max(sent.elapsed());
            pass(Duration::from_millis(500)).await;
        }
        longest
    };
    // Others ask for as long as anybody waits: a fleet that serves nobody is waited for.
    let longest = tokio::select! {
        all = join_all((0..4).map(|client| ask_all(client, 40))) => all.into_iter().max().unwrap(),
        _ = join_all((10..14).map(|client| ask_all(client, usize::MAX))) => unreachable!("they never end"),
    };
    assert!(longest < Duration::from_secs(60), "one waited {longest:?}");
    assert_ne!(breakers(&memory, Role::Decode)[0], State::Closed, "it rests");
    assert_eq!(breakers(&memory, Role::Decode)[1], State::Closed);
}

/// The first answer of its length looks like a hang: it is begun once more, and then waited for.
#[tokio::test(start_paused = true)]
async fn an_unbounded_answer_that_is_longer_than_all_before_is_moved_once_at_most() {
    let memory = Memory::set(3, &working(), config()).await;
    for n in 0..9 {
        assert_eq!(whole(&memory, &format!("before {n}")).await.0, 200);
    }
    for decoder in &memory.decoders {
        let long = Fault::always(FaultKind::Delay(Duration::from_secs(100)));
        let on =
            Match { path: Some("/v1/".into()), contains: Some("tell me all".into()), ..Match::default() };
        assert!(decoder.inject(Fault { on, ..long }));
    }
    let meanwhile = async {
        for n in 0..600 {
            assert_eq!(whole(&memory, &format!("short {n}")).await.0, 200);
            pass(Duration::from_millis(500)).await;
        }
    };
    let ((status, text), ()) = tokio::join!(whole(&memory, "tell me all"), meanwhile);
    assert_eq!(status, 200, "{text}");
    let is_long = |body: &[u8]| body.windows(11).any(|it| it == b"tell me all");
    let sent = memory.decoders.iter().flat_map(|it| it.seen()).filter(|seen| is_long(&seen.body)).count();
    assert!(sent <= 2, "it was begun {sent} times");
}

const BATCH: &str = "/v1/chat/completions/batch";
const AUDIO: &str = "/v1/audio/transcriptions";

/// A request that a decoder answers alone, by generating.
async fn alone(memory: &Memory, path: &str) -> (u16, String) {
    let (kind, body) = match path {
        BATCH => ("application/json", r#"{"model":"sim","messages":[[{"role":"user","content":"a"}]]}"#.to_owned()),
        _ => (
            "multipart/form-data; boundary=x",
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--x--\r\n".to_owned(),
        ),
    };
    let request = Request::post(path).header("host", "gateway").header("content-type", kind);
    let response = memory.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_decoder_alone_leave_one_that_hangs() {
    for path in [BATCH, AUDIO] {
        let memory = Memory::set(2, &working(), config()).await;
        streams(&memory, Duration::from_secs(1)).await;
        for decoder in &memory.decoders {
            let good = FaultKind::Status(200, Some(r#"{"text":"a"}"#.into()));
            assert!(decoder.inject(Fault::always(good).on_path(path)));
        }
        for _ in 0..4 {
            assert_eq!(alone(&memory, path).await.0, 200);
        }
        memory.decoders[0].clear_faults();
        assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
        let asked = async {
            for _ in 0..6 {
                let sent = Instant::now();
                let asked = join_all((0..4).map(|_| alone(&memory, path))).await;
                assert!(asked.iter().all(|(status, _)| *status == 200), "{path}: {asked:?}");
                assert!(sent.elapsed() < Duration::from_secs(60), "{path}: {:?}", sent.elapsed());
            }
        };
        let others = (0..3).map(async |client| {
            for n in 0.. {
                assert_eq!(whole(&memory, &format!("client {client} asks {n}")).await.0, 200);
                pass(Duration::from_secs(1)).await;
            }
        });
        tokio::select! {
            () = asked => {}
            _ = join_all(others) => unreachable!("they never end"),
        }
        assert_ne!(breakers(&memory, Role::Decode)[0], State::Closed, "{path}: it rests");
    }
}

/// Nothing else is asked for, so that nothing but requests of the kind can tell.
#[tokio::test(start_paused = true)]
async fn nor_does_it_need_other_requests_for_that() {
    for path in [BATCH, AUDIO] {
        let memory = Memory::set(2, &working(), config()).await;
        for decoder in &memory.decoders {
            let good = FaultKind::Status(200, Some(r#"{"text":"a"}"#.into()));
            assert!(decoder.inject(Fault::always(good).on_path(path)));
        }
        for _ in 0..4 {
            assert_eq!(alone(&memory, path).await.0, 200);
        }
        memory.decoders[0].clear_faults();
        assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
        pass(Duration::from_secs(1)).await;
        let ask_all = async |times: usize| {
            for _ in 0..times {
                let sent = Instant::now();
                let (status, text) = alone(&memory, path).await;
                assert_eq!(status, 200, "{path} after {:?}: {text}", sent.elapsed());
                assert!(sent.elapsed() < Duration::from_secs(60), "{path}: {:?}", sent.elapsed());
                pass(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            _ = join_all((0..4).map(|_| ask_all(40))) => {}
            _ = join_all((0..4).map(|_| ask_all(usize::MAX))) => unreachable!("they never end"),
        }
    }
}

/// One prefiller and one decoder, one of which has answered, then failed, and rests.
async fn resting(prefills: bool) -> Memory {
    let memory = Memory::set(1, &working(), config()).await;
    streams(&memory, Duration::from_secs(1)).await;
    let engine = if prefills { &memory.prefillers[0] } else { &memory.decoders[0] };
    assert!(engine.inject(Fault::always(FaultKind::Status(500, None)).on_path("/v1/")));
    for n in 0.. {
        assert_ne!(post(&memory, COMPLETIONS, stream(n)).await.0, 200);
        if breakers(&memory, if prefills { Role::Prefill } else { Role::Decode })[0] != State::Closed {
            break;
        }
        pass(Duration::from_secs(1)).await;
    }
    engine.clear_faults();
    pass(Duration::from_secs(2)).await;
    memory
}

#[tokio::test(start_paused = true)]
async fn a_trial_of_the_only_engine_of_a_role_ends_when_no_prompt_takes_so_long() {
    for prefills in [true, false] {
        let memory = resting(prefills).await;
        let engine = if prefills { &memory.prefillers[0] } else { &memory.decoders[0] };
        assert!(engine.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
        let sent = Instant::now();
        let (status, text) = post(&memory, COMPLETIONS, stream(1_000)).await;
        assert_eq!(status, 504, "prefills {prefills}: {text}");
        assert!(sent.elapsed() < Duration::from_secs(120), "prefills {prefills}: {:?}", sent.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_takes_its_time_is_waited_for() {
    for prefills in [true, false] {
        let memory = resting(prefills).await;
        let engine = if prefills { &memory.prefillers[0] } else { &memory.decoders[0] };
        let slow = FaultKind::Delay(Duration::from_secs(18));
        assert!(engine.inject(Fault::always(slow).on_path("/v1/")));
        let (status, text) = post(&memory, COMPLETIONS, stream(1_000)).await;
        assert_eq!(status, 200, "prefills {prefills}: {text}");
        let seen = engine.seen();
        let bodies = seen.iter().map(|seen| String::from_utf8_lossy(&seen.body));
        let tries: Vec<_> = bodies.filter(|body| body.contains("request 1000 ")).collect();
        assert_eq!(tries.len(), 1, "prefills {prefills}: {tries:?}");
    }
}

/// The longest time that one of a client's requests takes, one after the other, half of which are
/// streamed.
async fn alone_for(memory: &Memory, count: usize, when: &str) -> Duration {
    let mut longest = Duration::ZERO;
    for n in 0..count {
        let sent = Instant::now();
        let (status, text) = match n % 2 {
            0 => whole(memory, &format!("a client alone asks {n}")).await,
            _ => post(memory, COMPLETIONS, stream(n)).await,
        };
        assert_eq!(status, 200, "{when}: {n}: {text}");
        longest = longest.max(sent.elapsed());
        pass(Duration::from_secs(1)).await;
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_alone_leaves_a_decoder_that_hangs() {
    for spoken in &DIALECTS {
        for before in [0, 8] {
            let when = format!("{spoken:?} after {before}");
            let (memory, _listening) = in_dialect(*spoken, 2).await;
            alone_for(&memory, before, &when).await;
            assert!(memory.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
            let longest = alone_for(&memory, 12, &when).await;
            assert!(longest < Duration::from_secs(90), "{when}: one waited {longest:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn so_does_it_leave_a_prefiller_that_hangs() {
    for before in [0, 8] {
        let memory = Memory::set(2, &working(), config()).await;
        alone_for(&memory, before, "before").await;
        assert!(memory.prefillers[0].inject(Fault::always(FaultKind::StallBeforeHead).on_path("/v1/")));
        let longest = alone_for(&memory, 12, &format!("after {before}")).await;
        assert!(longest < Duration::from_secs(40), "after {before}: one waited {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_alone_waits_for_engines_that_are_slow_as_a_whole() {
    let memory = Memory::set(2, &working(), config()).await;
    for decoder in &memory.decoders {
        assert!(decoder.inject(Fault::always(FaultKind::Delay(Duration::from_secs(150))).on_path("/v1/")));
    }
    let (status, text) = whole(&memory, "a client alone").await;
    assert_eq!(status, 200, "{text}");
    let asked = memory.decoders.iter().flat_map(|it| it.seen());
    let is_prompt = |body: &[u8]| body.windows(14).any(|it| it == b"a client alone");
    assert!(asked.filter(|seen| is_prompt(&seen.body)).count() <= 2, "it is moved once at most");
}
