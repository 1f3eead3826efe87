//! The log has no prompts, answers or keys, also where things go wrong.

use std::net::SocketAddr;

use pd_proxy::sim::{ConnectionEnd, Engine, EngineSpec, Fault, FaultKind, Role};

use super::PATH;
use crate::command::Process;
use crate::common::client::{self, post, post_with};
use crate::common::stage::fast;

const PROMPT: &str = "Xenolith-prompt";
const KEYS: [&str; 3] = ["client-Quagga-key", "engine-Quokka-key", "admin-Axolotl-key"];

#[tokio::test]
async fn the_log_has_neither_prompts_nor_keys() {
    let key = KEYS[1].to_owned();
    let engine = async |role| {
        let spec = EngineSpec { role, api_key: Some(key.clone()), ..fast() };
        Engine::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
    };
    let (prefill, decode): (Engine, Engine) = (engine(Role::Prefill).await, engine(Role::Decode).await);
    let env = [("OPENAI_API_KEY", KEYS[1]), ("ADMIN_API_KEY", KEYS[2])];
    let (mut process, gateway) = Process::gateway(&prefill, &decode, &["--log-level", "trace"], &env);
    let body =
        format!(r#"{{"model":"sim","prompt":"{PROMPT}","max_tokens":4,"stream":true,"user":"{PROMPT}"}}"#);
    let bearer = format!("Bearer {}", KEYS[0]);
    let headers = [("authorization", bearer.as_str()), ("x-api-key", KEYS[0]), ("cookie", KEYS[0])];
    let ask = async || client::send(gateway, &post_with(PATH, &headers, body.as_bytes())).await;
    let answer = ask().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let faults = [
        FaultKind::Status(500, Some(format!("{{\"error\":\"{PROMPT}\"}}").into())),
        FaultKind::Status(400, Some(format!("{{\"error\":\"{PROMPT}\"}}").into())),
        FaultKind::Status(200, Some(PROMPT.into())),
        FaultKind::ResetBeforeHead,
        FaultKind::CutAfterBytes { bytes: 900, how: ConnectionEnd::Reset },
    ];
    for engine in [&prefill, &decode] {
        for fault in &faults {
            assert!(engine.inject(Fault::always(fault.clone())));
            ask().await;
            engine.clear_faults();
        }
    }
    for bad in [
        format!("{{\"prompt\":\"{PROMPT}\""),
        PROMPT.to_owned(),
        format!(r#"{{"model":3,"prompt":["{PROMPT}"]}}"#),
    ] {
        client::send(gateway, &post(PATH, &bad)).await;
    }
    client::send(gateway, &post_with("/instances/add", &[("x-api-key", KEYS[2])], PROMPT.as_bytes())).await;
    client::send(gateway, &post_with("/instances/add", &[("x-api-key", KEYS[0])], b"{}")).await;
    process.signal("TERM");
    process.ended();
    assert!(process.said("request") > 0, "it logs");
    assert!(process.said("DEBUG") > 0, "it logs steps");
    // Libraries tell of sockets and frames, with whatever is in them.
    for theirs in ["connecting to", "pooling idle", "TRACE"] {
        assert_eq!(process.said(theirs), 0, "{theirs}: {}", process.wait_for(theirs));
    }
    for word in [&KEYS[..], &[PROMPT]].concat() {
        assert_eq!(process.said(word), 0, "{word} is in the log: {}", process.wait_for(word));
    }
}
