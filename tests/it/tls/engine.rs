//! TLS towards engines: end to end, and engines that are not believed.

use pd_proxy::config::Config;
use pd_proxy::sim::Role;
use serde_json::json;

use super::authority::{Authority, Front, file};
use super::{Running, engine, pair};
use crate::command::Process;
use crate::common::client;

const STREAM: &str = r#"{"model":"sim","prompt":"one two three","max_tokens":8,"stream":true}"#;
const WHOLE: &str = r#"{"model":"sim","prompt":"one two three","max_tokens":8}"#;

fn https(front: &Front) -> String {
    format!("https://{}", front.at)
}

#[tokio::test]
async fn both_legs_and_control_calls_go_over_tls() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (engines, mut config) = pair().await;
    let signed = authority.sign("127.0.0.1");
    let fronts = [Front::of(&engines[0], &signed, None).await, Front::of(&engines[1], &signed, None).await];
    (config.fleet.prefill, config.fleet.decode) = (vec![https(&fronts[0])], vec![https(&fronts[1])]);
    config.engine.tls_ca = Some(file(dir.path(), "ca.pem", &authority.pem()));
    let gateway = Running::start(config).await.unwrap();

    let raw = client::send(gateway.at, &client::post("/v1/completions", STREAM)).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert!(raw.done(), "{}", raw.text());
    assert_eq!(client::send(gateway.at, &client::post("/v1/completions", WHOLE)).await.words(), raw.words());
    assert!(engines.iter().all(|e| !e.seen().is_empty()), "both engines were asked");
    let models = client::send(gateway.at, &client::get("/v1/models")).await;
    assert_eq!(models.status, 200, "{}", models.text());

    // Members are named as they were written, and can be removed and added by that name.
    let status = client::send(gateway.at, &client::get("/status")).await.json();
    assert_eq!(status["decode_nodes"], json!([https(&fronts[1])]));
    let change = json!({"type": "decode", "instances": [https(&fronts[1])]}).to_string();
    for (path, left) in [("/instances/remove", json!([])), ("/instances/add", json!([https(&fronts[1])]))] {
        let answer = client::send(gateway.at, &client::post(path, &change)).await.json();
        assert_eq!(answer["current_decode_instances"], left, "{answer}");
    }
    gateway.end().await;
}

#[tokio::test]
async fn an_engine_with_a_stranger_s_certificate_is_passed_over() {
    let (authority, stranger, dir) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (engines, mut config) = pair().await;
    let impostor = engine(Role::Prefill).await;
    let (good, bad) = (authority.sign("127.0.0.1"), stranger.sign("127.0.0.1"));
    let fronts = [Front::of(&engines[0], &good, None).await, Front::of(&impostor, &bad, None).await];
    config.fleet.prefill = fronts.iter().map(https).collect();
    config.engine.tls_ca = Some(file(dir.path(), "ca.pem", &authority.pem()));
    let gateway = Running::start(config).await.unwrap();
    for _ in 0..8 {
        let raw = client::send(gateway.at, &client::post("/v1/completions", STREAM)).await;
        assert_eq!((raw.status, raw.done()), (200, true), "{}", raw.text());
    }
    assert!(impostor.seen().is_empty(), "nothing was said to the impostor");
    // What it speaks is asked besides, as long as the other one does not say so.
    let asked = engines[0].seen().into_iter().filter(|seen| seen.path == "/v1/completions").count();
    assert_eq!(asked, 8);
    gateway.end().await;
}

#[tokio::test]
async fn untrusted_engines_give_an_error_without_internals() {
    let (authority, stranger, dir) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (engines, mut config) = pair().await;
    let front = Front::of(&engines[0], &stranger.sign("127.0.0.1"), None).await;
    config.fleet.prefill = vec![https(&front)];
    config.engine.tls_ca = Some(file(dir.path(), "ca.pem", &authority.pem()));
    let gateway = Running::start(config).await.unwrap();
    let raw = client::send(gateway.at, &client::post("/v1/completions", STREAM)).await;
    assert!(raw.status >= 500, "{}", raw.text());
    let text = raw.text();
    assert!(!text.contains("127.0.0.1") && !text.to_lowercase().contains("certificate"), "{text}");
    assert!(engines[0].seen().is_empty());
    gateway.end().await;
}

#[tokio::test]
async fn engines_may_want_a_certificate_of_us_and_have_another_name() {
    let (authority, clients, dir) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (engines, config) = pair().await;
    let front = Front::of(&engines[0], &authority.sign("engines.example"), Some(&clients)).await;
    let status = async |change: fn(&mut Config)| {
        let mut config = config.clone();
        config.fleet.prefill = vec![https(&front)];
        config.engine.tls_ca = Some(file(dir.path(), "ca.pem", &authority.pem()));
        let (cert, key) = clients.sign("gateway").write(dir.path(), "ours");
        (config.engine.tls_cert, config.engine.tls_key) = (Some(cert), Some(key));
        config.engine.tls_name = Some("engines.example".into());
        change(&mut config);
        let gateway = Running::start(config).await.unwrap();
        let raw = client::send(gateway.at, &client::post("/v1/completions", STREAM)).await;
        gateway.end().await;
        raw.status
    };
    assert_eq!(status(|_| {}).await, 200);
    assert!(status(|config| config.engine.tls_name = None).await >= 500, "the name is another");
    let without = |config: &mut Config| (config.engine.tls_cert, config.engine.tls_key) = (None, None);
    assert!(status(without).await >= 500, "we show nothing");
}

/// A system without authorities and no file of them: such a fleet does not start, and can't be
/// changed into one.
#[tokio::test]
async fn engine_without_authorities_is_refused_however_added() {
    const WORDS: &str = "engine.tls_ca is not set";
    let (engines, dir) = (pair().await.0, tempfile::tempdir().unwrap());
    let [config, list, none] = ["gateway.toml", "engines", "none"].map(|name| dir.path().join(name));
    std::fs::write(&none, "").unwrap();
    let [prefill, decode] = [engines[0].addr(), engines[1].addr()];
    let configured = |engines: &str| {
        let text = format!(
            "[server]\nhost = \"127.0.0.1\"\nport = 0\n[fleet]\n{engines}\ndecode = [\"{decode}\"]\n\
             [discovery]\nfile = \"{}\"\ninterval_ms = 100\n",
            list.display()
        );
        std::fs::write(&config, text).unwrap();
    };
    let env = [("SSL_CERT_FILE", none.to_str().unwrap())];
    let start = || Process::start(&["--config", config.to_str().unwrap()], &env);
    std::fs::write(&list, format!("decode {decode}\n")).unwrap();

    let good = format!("prefill = [\"{prefill}\"]");
    let bad = r#"prefill = ["https://127.0.0.1:9"]"#;
    let encoder = format!("{good}\nencode = [\"https://127.0.0.1:9\"]");
    for engines in [bad, encoder.as_str()] {
        configured(engines);
        let mut process = start();
        process.wait_for(WORDS);
        assert!(!process.ended().success(), "{engines}");
    }

    configured(&good);
    let mut process = start();
    let at = process.address();
    let change = json!({"type": "prefill", "instances": "https://127.0.0.1:9"}).to_string();
    let said = client::send(at, &client::post("/instances/add", &change)).await;
    assert_eq!((said.status, said.text().contains(WORDS)), (400, true), "{}", said.text());

    std::fs::write(&list, format!("decode {decode}\nprefill https://127.0.0.1:9\n")).unwrap();
    let line = process.wait_for(WORDS);
    assert!(line.contains("nothing changes") && line.contains("127.0.0.1:9"), "{line}");
    std::fs::write(&list, format!("decode {decode}\n")).unwrap();

    configured(bad);
    process.signal("HUP");
    let line = process.wait_for("the configuration is refused");
    assert!(line.contains(WORDS), "{line}");

    let status = client::send(at, &client::get("/status")).await.json();
    assert_eq!(status["prefill_nodes"], json!([prefill.to_string()]));
    let raw = client::send(at, &client::post("/v1/completions", WHOLE)).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
}
