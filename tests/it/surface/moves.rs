//! `/instances/move`: engines that turn from one role to the other.

use pd_proxy::config::{DialectName, Secret};
use pd_proxy::sim::Engine;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::{self, Raw, post};
use crate::common::raw_engine::{Front, RawEngine, answer};
use crate::common::stage::{Script, Stage, fast, slow};
use crate::common::time::eventually;

use super::{CHAT, change, chat, count, lone, name, remove_all};

const MOVE: &str = "/instances/move";
const SWITCH: &str = "/pd_role_switch";
const MODELS: &str = r#"{"object":"list","data":[{"id":"sim","object":"model"}]}"#;

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
    ] {
        let raw = ask(&body).await;
        assert!(
            raw.status == 400 && raw.json()["error"]["message"].as_str().unwrap().contains(word),
            "{body} {}",
            raw.text()
        );
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

/// Server whose answers are SGLang's (`srt/disaggregation/role_switch.py`): one to each switch, the
/// last of them to all that follow.
async fn sglang(switches: Vec<(u16, Value)>) -> RawEngine {
    let left = std::sync::Mutex::new(switches);
    RawEngine::start(move |asked| match asked.path() {
        SWITCH => {
            let mut left = left.lock().unwrap();
            let (status, body) = if left.len() > 1 { left.remove(0) } else { left[0].clone() };
            answer(status, &body.to_string())
        }
        "/v1/models" => answer(200, MODELS),
        _ => answer(404, "{}"),
    })
    .await
}

fn switched(success: bool, message: &str, safe: Option<bool>) -> Value {
    let mut said =
        json!({"success": success, "message": message, "old_role": "prefill", "new_role": "decode"});
    if let Some(safe) = safe {
        said["safe_to_restore"] = safe.into();
    }
    said
}

#[tokio::test]
async fn sglang_server_is_told_its_role_and_believed() {
    let done = (200, switched(true, "ok", None));
    let busy =
        (400, switched(false, "instance is not idle; drain all requests before switching", Some(true)));
    let broken =
        (400, switched(false, "role switch failed; instance unhealthy, restart required: x", Some(false)));
    for (first, status, word, places) in [
        (done.clone(), 200, "joined", [1, 2]),
        (
            busy,
            502,
            "serves for prefill again, as before: /pd_role_switch: status 400: instance is not idle",
            [2, 1],
        ),
        (broken, 502, "is in neither role now: /pd_role_switch: status 400: role switch failed", [1, 1]),
        ((404, json!({"detail": "Not Found"})), 502, "serves for prefill again", [2, 1]),
    ] {
        let turning = sglang(vec![first, done.clone()]).await;
        let (other, decoder) = (sglang(vec![done.clone()]).await, sglang(vec![done.clone()]).await);
        let front = Front::of(&[&turning, &other], &[&decoder], |config| {
            config.dialect.name = DialectName::Sglang;
            config.engine.api_key = Some(Secret::new("engines"));
            config.server.open_admin = true;
        })
        .await;
        let engine = turning.addr().to_string();
        let body =
            json!({"instance": engine, "to": "decode", "switch": {"decode_cuda_graph_memory_gb": 1.5}});
        let raw = front.post(MOVE, &body.to_string()).await;
        assert!(raw.status == status && raw.text().contains(word), "{word}: {} {}", raw.status, raw.text());
        let asked: Vec<_> = turning.seen().into_iter().filter(|asked| asked.path() == SWITCH).collect();
        assert_eq!(asked.len(), 1, "{word}");
        assert_eq!(asked[0].header("authorization"), Some("Bearer engines"));
        let told: Value = serde_json::from_slice(&asked[0].body).unwrap();
        assert_eq!(told, json!({"new_role": "decode", "decode_cuda_graph_memory_gb": 1.5}));
        let counted = sides(&async |path: &str| front.get(path).await).await.map(|side| side.len());
        assert_eq!(counted, places, "{word}");
        if places == [1, 1] {
            let lost = front.get("/instances").await.json()["moves"][0].clone();
            assert_eq!((&lost["step"], &lost["instance"]), (&json!("lost"), &json!(engine)));
            let shown = front.get("/status.json").await.json()["moves"][0].clone();
            assert_eq!(shown, lost, "the status page shows it");
            let again = front.post(MOVE, &order(&engine, "decode")).await;
            assert_eq!(again.status, 200, "it was restarted: {}", again.text());
            assert_eq!(front.get("/instances").await.json()["moves"], json!([]));
        }
        front.end().await;
    }
}
