//! The gateway inside another program: two simulated engines, a gateway on any free port, one
//! request, shutdown.
//!
//! `cargo run --example embed`

use std::net::{Ipv4Addr, SocketAddr};

use pd_proxy::app::App;
use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let prefiller = Engine::start(EngineSpec { role: Role::Prefill, ..EngineSpec::default() }, any).await?;
    let decoder = Engine::start(EngineSpec { role: Role::Decode, ..EngineSpec::default() }, any).await?;

    let mut config = Config::default();
    config.server.port = 0;
    config.fleet.prefill = vec![prefiller.addr().to_string()];
    config.fleet.decode = vec![decoder.addr().to_string()];
    let app = App::build(&config).await?;
    let (address, stop) = (app.addresses()[0], app.stop());
    let mut serving = JoinSet::new();
    serving.spawn(app.serve());

    let answer = pd_proxy::tls::http()
        .build()?
        .post(format!("http://{address}/v1/completions"))
        .json(&serde_json::json!({"model": "sim", "prompt": "Hello", "max_tokens": 8}))
        .send()
        .await?;
    println!("{}: {}", answer.status(), answer.text().await?);
    println!("the prefiller's ledger: {:?}", prefiller.ledger());

    stop.cancel();
    serving.join_all().await;
    Ok(())
}
