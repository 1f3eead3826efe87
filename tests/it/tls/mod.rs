//! TLS on either side, over real sockets, with certificates made on the spot; and the listener of
//! operators.

mod admin;
pub mod authority;
mod bodies;
mod engine;
mod listener;
mod page;

use std::net::SocketAddr;

use pd_proxy::app::{App, StartError};
use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::stage::fast;

/// A gateway that runs.
struct Running {
    at: SocketAddr,
    admin: Option<SocketAddr>,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

impl Running {
    async fn start(mut config: Config) -> Result<Running, StartError> {
        config.server.host = "127.0.0.1".into();
        config.server.port = 0;
        config.server.drain_ms = 500;
        config.timeout.connect_ms = 1_000;
        let app = App::build(&config).await?;
        let (at, admin, stop) = (app.addresses()[0], app.admin_addresses().first().copied(), app.stop());
        #[expect(clippy::disallowed_methods, reason = "the test owns it and waits for it in `end`")]
        let serving = tokio::spawn(app.serve());
        Ok(Running { at, admin, stop, serving })
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

async fn engine(role: Role) -> Engine {
    let spec = EngineSpec { role, ..fast() };
    Engine::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
}

/// A prefiller and a decoder, and the configuration that names them.
async fn pair() -> ([Engine; 2], Config) {
    let engines = [engine(Role::Prefill).await, engine(Role::Decode).await];
    let mut config = Config::default();
    config.dialect.name = pd_proxy::config::DialectName::KvTransfer;
    config.fleet.prefill = vec![engines[0].addr().to_string()];
    config.fleet.decode = vec![engines[1].addr().to_string()];
    (engines, config)
}
