//! `/instances/move`: engines that turn from one role to the other.

use pd_proxy::config::{DialectName, Secret};
use pd_proxy::sim::{Connector, Engine, EngineSpec, Fault, FaultKind, Role, RoleSwitch};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::{self, Raw, post};
use crate::common::stage::{Script, Stage, fast, slow};
use crate::common::time::eventually;

use super::{CHAT, body_of, change, chat, count, header, lone, name, remove_all};

const MOVE: &str = "/instances/move";
const SWITCH: &str = "/pd_role_switch";

fn order(engine: &str, to: &str) -> String {
    json!({"instance": engine, "to": to}).to_string()
}

/// Names of those that serve in each role.
async fn sides(front: &(impl AsyncFn(&str) -> Raw + ?Sized)) -> [Vec<String>; 2] {
    let status = front("/status").await.json();
    ["prefill_nodes", "decode_nodes"]
        .map(|side| serde_json::from_value(status[side].clone()).unwrap_or_default())
}

async fn moves(stage: &Stage) -> Value {
    stage.get("/instances").await.json()["moves"].clone()
}

async fn has(stage: &Stage, kind: &str, engine: &str) -> bool {
    let all = stage.get("/instances").await.json()["instances"].clone();
    all.as_array().unwrap().iter().any(|it| it["type"] == kind && it["instance"] == engine)
}

#[tokio::test]
async fn moved_engine_serves_in_the_other_role_alone() {
    let stage = Stage::new().await;
    let third = lone(fast(), "127.0.0.1:0").await;
    let t = name(&third);
    assert_eq!(stage.post("/instances/add", &change("prefill", json!(t))).await.status, 200);
    for again in [false, true] {
        let raw = stage.post(MOVE, &order(&t, "decode")).await;
        let said = json!({"instance": t, "from": "prefill", "to": "decode", "step": "joined"});
        assert_eq!((raw.status, raw.json()), (200, said), "again: {again}");
        assert!(has(&stage, "decode", &t).await && !has(&stage, "prefill", &t).await);
    }
    assert_eq!(moves(&stage).await, json!([]));
    remove_all(&stage, "decode", &stage.decoders).await;
    third.clear_seen();
    let raw = stage.post(CHAT, &chat("who decodes?").to_string()).await;
    assert_eq!((raw.status, count(&third)), (200, 1), "{}", raw.text());
    stage.end().await;
}

#[tokio::test]
async fn move_that_can_not_begin_changes_nothing() {
    let mut script = Script { prefillers: 1, ..Script::default() };
    script.config.server.admin_key = Some(Secret::new("k"));
    let stage = Stage::set(script).await;
    let (p, d) = (name(&stage.prefillers[0]), name(&stage.decoders[0]));
    let ask =
        async |body: &str| stage.send(&client::post_with(MOVE, &[("x-api-key", "k")], body.as_bytes())).await;
    assert_eq!(stage.post(MOVE, &order(&d, "prefill")).await.status, 401);
    let both = json!({"type": "prefill", "instances": [name(&stage.decoders[1])]}).to_string();
    let raw = stage.send(&client::post_with("/instances/add", &[("x-api-key", "k")], both.as_bytes())).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    for (body, word) in [
        (order("h:1", "decode"), "is no engine for prefill"),
        (order(&p, "encode"), "expected \"prefill\" or \"decode\""),
        (order(&p, "prefill "), "expected \"prefill\" or \"decode\""),
        (order("x y", "decode"), "`x y`"),
        (order(&name(&stage.decoders[1]), "prefill"), "is in both roles"),
        (json!({"instance": p, "to": "decode", "fleet": "x"}).to_string(), "there is no fleet `x`"),
        (json!({"instance": p, "to": "decode", "wait_ms": 3_600_001}).to_string(), "3600000"),
        (json!({"instance": p}).to_string(), "missing field `to`"),
        (json!({"instance": p, "to": "decode", "wait": 5}).to_string(), "unknown field `wait`"),
    ] {
        let raw = ask(&body).await;
        assert!(
            raw.status == 400 && raw.json()["error"]["message"].as_str().unwrap().contains(word),
            "{body} {}",
            raw.text()
        );
    }
    let forced = json!({"type": "prefill", "instances": [p], "force": true}).to_string();
    let in_query = format!("{MOVE}?wait_ms=5");
    for (path, body, word) in [
        ("/instances/add", &forced, "unknown field `force`"),
        ("/instances/remove", &forced, "unknown field `force`"),
        (in_query.as_str(), &order(&p, "decode"), "`wait_ms=5` in the query"),
    ] {
        let raw = stage.send(&client::post_with(path, &[("x-api-key", "k")], body.as_bytes())).await;
        assert!(raw.status == 400 && raw.text().contains(word), "{path} {}", raw.text());
    }
    stage.end().await;
}

#[tokio::test]
async fn last_engine_of_a_role_moves_only_by_force() {
    let stage = Stage::set(Script { prefillers: 1, ..Script::default() }).await;
    let p = name(&stage.prefillers[0]);
    let raw = stage.post(MOVE, &order(&p, "decode")).await;
    assert!(raw.status == 400 && raw.text().contains("is the last engine for prefill"), "{}", raw.text());
    assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200);
    let forced = json!({"instance": p, "to": "decode", "force": true}).to_string();
    assert_eq!(stage.post(MOVE, &forced).await.status, 200);
    assert!(has(&stage, "decode", &p).await && !has(&stage, "prefill", &p).await);
    stage.end().await;
}

/// A stage with a stream under way, and the decoder that writes it.
pub(super) async fn busy_decoder() -> (Stage, TcpStream, usize) {
    let stage = Stage::set(Script { engine: slow(), ..Script::default() }).await;
    let mut body = chat("A long one");
    body["max_tokens"] = 400.into();
    body["stream"] = true.into();
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&post(CHAT, &body.to_string())).await.unwrap();
    let runs = |decoder: &Engine| decoder.ledger().running > 0;
    eventually("a decoder writes", async || stage.decoders.iter().any(runs)).await;
    let at = usize::from(!runs(&stage.decoders[0]));
    (stage, socket, at)
}

#[tokio::test]
async fn engine_with_work_left_moves_once_it_is_done_whoever_asks() {
    let (stage, mut socket, at) = busy_decoder().await;
    let leaving = name(&stage.decoders[at]);
    let (there, forth) = (order(&leaving, "prefill"), order(&leaving, "decode"));
    let others = async {
        let draining = async || moves(&stage).await[0]["step"] == "draining";
        eventually("it drains", draining).await;
        let back = stage.post(MOVE, &forth).await;
        assert!(back.status == 400 && back.text().contains("is being moved to prefill"), "{}", back.text());
        for path in ["/instances/add", "/instances/remove"] {
            let raw = stage.post(path, &change("decode", json!([leaving]))).await;
            assert!(raw.status == 400 && raw.text().contains("is being moved"), "{path} {}", raw.text());
        }
        let raw = stage.post("/sleep?role=decode&drain_ms=0", "").await;
        assert!(raw.text().contains("is being moved to prefill"), "{}", raw.text());
        assert_eq!(moves(&stage).await[0]["step"], "draining");
        client::read(&mut socket).await
    };
    let (one, two, stream) = tokio::join!(stage.post(MOVE, &there), stage.post(MOVE, &there), others);
    assert!(stream.complete && stream.done(), "{}", stream.text());
    for raw in [one, two] {
        assert_eq!((raw.status, &raw.json()["step"]), (200, &json!("joined")), "{}", raw.text());
    }
    assert!(has(&stage, "prefill", &leaving).await && !has(&stage, "decode", &leaving).await);
    stage.end().await;
}

#[tokio::test]
async fn engine_that_does_not_drain_in_time_stays() {
    let (stage, mut socket, at) = busy_decoder().await;
    let staying = name(&stage.decoders[at]);
    let hasty = json!({"instance": staying, "to": "prefill", "wait_ms": 1}).to_string();
    let raw = stage.post(MOVE, &hasty).await;
    assert!(raw.status == 502 && raw.text().contains("serves for decode again"), "{}", raw.text());
    assert!(has(&stage, "decode", &staying).await && !has(&stage, "prefill", &staying).await);
    let kept = moves(&stage).await[0].clone();
    assert_eq!((&kept["instance"], &kept["step"]), (&json!(staying), &json!("kept")));
    let stream = client::read(&mut socket).await;
    assert!(stream.complete && stream.done(), "it lost nothing");
    stage.end().await;
}

#[tokio::test]
async fn last_engine_that_is_not_down_moves_only_by_force() {
    let mut script = Script::default();
    script.config.health.probe_ms = 20;
    let stage = Stage::set(script).await;
    let [d0, d1] = [0, 1].map(|at: usize| name(&stage.decoders[at]));
    assert!(stage.decoders[0].inject(Fault::always(FaultKind::Status(500, None))));
    let is_down = async || {
        let all = stage.get("/instances").await.json()["instances"].clone();
        all.as_array().unwrap().iter().any(|it| it["instance"] == d0 && it["state"] == "down")
    };
    eventually("one is down", is_down).await;
    let raw = stage.post(MOVE, &order(&d1, "prefill")).await;
    assert!(raw.status == 400 && raw.text().contains("is the last engine for decode"), "{}", raw.text());
    assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200);
    stage.end().await;
}

/// Simulated engines of SGLang, two prefillers and a decoder, that answer the order to take the
/// other role like this.
fn sglang(role_switch: RoleSwitch) -> Script {
    let engine = EngineSpec { connector: Connector::Sglang, role_switch, ..fast() };
    let mut script = Script { decoders: 1, engine, ..Script::default() };
    script.config.dialect.name = DialectName::Sglang;
    script.config.engine.api_key = Some(Secret::new("engines"));
    script
}

/// Numbers of engines that serve in each role.
async fn counts(stage: &Stage) -> [usize; 2] {
    sides(&async |path: &str| stage.get(path).await).await.map(|side| side.len())
}

#[tokio::test]
async fn sglang_engine_is_told_its_role_and_serves_in_it() {
    let stage = Stage::set(sglang(RoleSwitch::Enabled)).await;
    let ask = async || {
        let raw = stage.post(CHAT, &chat("who is there?").to_string()).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
        raw.json()["choices"][0]["message"]["content"].clone()
    };
    let before = ask().await;
    let turning = name(&stage.prefillers[0]);
    let body = json!({"instance": turning, "to": "decode", "switch": {"decode_cuda_graph_memory_gb": 1.5}});
    let raw = stage.post(MOVE, &body.to_string()).await;
    assert!(raw.status == 200 && raw.text().contains("joined"), "{} {}", raw.status, raw.text());
    let seen = stage.prefillers[0].seen();
    let asked: Vec<_> = seen.iter().filter(|asked| asked.path == SWITCH).collect();
    assert_eq!((asked.len(), header(asked[0], "authorization").as_deref()), (1, Some("Bearer engines")));
    assert_eq!(body_of(asked[0]), json!({"new_role": "decode", "decode_cuda_graph_memory_gb": 1.5}));
    // Text that is right was written from KV of the other prefiller.
    remove_all(&stage, "decode", &stage.decoders).await;
    assert_eq!(ask().await, before, "it decodes");
    let decoder = change("decode", json!([name(&stage.decoders[0])]));
    assert_eq!(stage.post("/instances/add", &decoder).await.status, 200);
    assert_eq!(stage.post(MOVE, &order(&turning, "prefill")).await.status, 200);
    remove_all(&stage, "prefill", &stage.prefillers[1..]).await;
    assert_eq!(ask().await, before, "it prefills");
    stage.end().await;
}

#[tokio::test]
async fn sglang_engine_that_refuses_serves_on_and_one_that_breaks_is_left_out() {
    let broken = "instance is unhealthy after a failed role switch; restart required";
    for (role_switch, word, places) in [
        (RoleSwitch::Absent, "serves for prefill again, as before: /pd_role_switch: status 404", [2, 1]),
        (RoleSwitch::Disabled, "status 400: --enable-pd-role-switch is not set", [2, 1]),
        (
            RoleSwitch::Breaks,
            "is in neither role now: /pd_role_switch: status 400: role switch failed",
            [1, 1],
        ),
    ] {
        let mut stage = Stage::set(sglang(role_switch)).await;
        let there = order(&name(&stage.prefillers[0]), "decode");
        let raw = stage.post(MOVE, &there).await;
        assert!(raw.status == 502 && raw.text().contains(word), "{word}: {} {}", raw.status, raw.text());
        assert_eq!(counts(&stage).await, places, "{word}");
        assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200, "{word}");
        if places == [1, 1] {
            let again = stage.post(MOVE, &there).await;
            assert!(again.status == 502 && again.text().contains(broken), "{}", again.text());
            let lost = moves(&stage).await[0].clone();
            assert_eq!((&lost["step"], &lost["to"]), (&json!("lost"), &json!("decode")));
            let shown = stage.get("/status.json").await.json()["moves"][0].clone();
            assert_eq!(shown, lost, "the status page shows it");
            let back = stage.post(MOVE, &order(&name(&stage.prefillers[0]), "prefill")).await;
            assert!(back.status == 502 && back.text().contains(broken), "{}", back.text());
            assert_eq!(counts(&stage).await, places, "it is in no role");
            let old = stage.prefillers.remove(0);
            let at = old.addr();
            old.stop().await;
            // One that refuses says that it is as it was, which nobody knows.
            let refusing = EngineSpec { role: Role::Decode, ..sglang(RoleSwitch::Disabled).engine };
            let refusing = Engine::start(refusing, at).await.unwrap();
            let refused = stage.post(MOVE, &there).await;
            let is_lost = refused.text().contains("is in neither role now");
            assert!(refused.status == 502 && is_lost, "{}", refused.text());
            assert_eq!(counts(&stage).await, places);
            refusing.stop().await;
            let spec = EngineSpec { role: Role::Decode, ..sglang(RoleSwitch::Enabled).engine };
            stage.decoders.push(Engine::start(spec, at).await.unwrap());
            let restarted = stage.post(MOVE, &there).await;
            assert_eq!(restarted.status, 200, "it was restarted: {}", restarted.text());
            assert_eq!((moves(&stage).await, counts(&stage).await), (json!([]), [1, 2]));
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn sglang_engine_that_works_for_somebody_else_serves_on() {
    let stage = Stage::set(sglang(RoleSwitch::Enabled)).await;
    let turning = &stage.prefillers[0];
    let there = order(&name(turning), "decode");
    let mut body = chat("of another gateway");
    body["bootstrap_room"] = 7.into();
    let mut socket = TcpStream::connect(turning.addr()).await.unwrap();
    socket.write_all(&post(CHAT, &body.to_string())).await.unwrap();
    eventually("it keeps KV", async || turning.ledger().pinned_handoffs > 0).await;
    let raw = stage.post(MOVE, &there).await;
    let word = "serves for prefill again, as before: /pd_role_switch: status 400: instance is not idle";
    assert!(raw.status == 502 && raw.text().contains(word), "{} {}", raw.status, raw.text());
    assert_eq!(counts(&stage).await, [2, 1]);
    drop(socket);
    let is_idle = async || {
        let ledger = turning.ledger();
        ledger.pinned_handoffs + ledger.running == 0
    };
    eventually("it is idle", is_idle).await;
    let raw = stage.post(MOVE, &there).await;
    assert_eq!((raw.status, counts(&stage).await), (200, [1, 2]), "{}", raw.text());
    stage.end().await;
}
