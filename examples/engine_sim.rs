//! A simulated prefiller that fails on purpose: what scripted faults look like from a client's
//! side.
//!
//! `cargo run --example engine_sim`

use std::net::{Ipv4Addr, SocketAddr};

use pd_proxy::sim::{ConnectionEnd, Engine, EngineSpec, Fault, FaultKind};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let engine = Engine::start(EngineSpec { lease_ms: 2_000, ..EngineSpec::default() }, any).await?;
    let body = serde_json::json!({"prompt": "a prompt", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    let faults = [
        None,
        Some(FaultKind::Status(503, None)),
        Some(FaultKind::ResetBeforeHead),
        Some(FaultKind::CutAfterBytes { bytes: 40, how: ConnectionEnd::Close }),
    ];
    for fault in faults {
        if let Some(what) = fault.clone() {
            engine.inject(Fault::once(what));
        }
        let url = format!("{}/v1/completions", engine.url());
        let said = match pd_proxy::tls::http().build()?.post(url).json(&body).send().await {
            Ok(answer) => {
                format!("{}, {} bytes", answer.status(), answer.text().await.map_or(0, |t| t.len()))
            }
            Err(e) => format!("no answer ({e})"),
        };
        println!("{fault:?}: {said}; pinned hand-offs: {}", engine.ledger().pinned_handoffs);
    }
    engine.stop().await;
    Ok(())
}
