//! A gateway and simulated engines without any socket between them: under a paused clock, in
//! virtual time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{Request, Uri};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use pd_proxy::app::App;
use pd_proxy::config::{Config, DialectName};
use pd_proxy::server;
use pd_proxy::sim::{Engine, EngineSpec, MemoryListener, Net, Role};
use pd_proxy::upstream::{Dial, Dialling, Pipe};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// The way of a gateway's legs into a network in memory.
#[derive(Debug)]
pub struct Over(pub Arc<Net>);

impl Dial for Over {
    fn dial(&self, to: &Uri) -> Dialling<Box<dyn Pipe>, io::Error> {
        let dialled = self.0.dial_host(to.host().unwrap_or(""), to.port_u16().unwrap_or(80));
        Box::pin(async move { dialled.map(|pipe| Box::new(pipe) as Box<dyn Pipe>) })
    }
}

/// Engines in memory, and a gateway that is asked through [`Memory::router`].
pub struct Memory {
    pub prefillers: Vec<Engine>,
    pub decoders: Vec<Engine>,
    /// For more engines.
    pub net: Arc<Net>,
    /// Holds the gateway's background work; dropping it ends it.
    pub app: App,
    pub router: Router,
}

impl Memory {
    /// `count` prefillers at 10.0.0.x:8000 and as many decoders at 10.0.1.x:8000, all like
    /// `engine`.
    pub async fn set(count: u8, engine: &EngineSpec, config: Config) -> Memory {
        Memory::uneven(count, count, engine, config).await
    }

    /// The same with other numbers of prefillers and decoders.
    pub async fn uneven(prefillers: u8, decoders: u8, engine: &EngineSpec, mut config: Config) -> Memory {
        let net = Arc::new(Net::default());
        let start = |role, third: u8, count: u8| -> Vec<Engine> {
            let at = |last| SocketAddr::from(([10, 0, third, last], 8000));
            let one = |last| Engine::start_in(EngineSpec { role, ..engine.clone() }, &net, at(last)).unwrap();
            (1..=count).map(one).collect()
        };
        let (prefillers, decoders) = (start(Role::Prefill, 0, prefillers), start(Role::Decode, 1, decoders));
        let names = |engines: &[Engine]| engines.iter().map(|e| e.addr().to_string()).collect();
        // Probes go over sockets: how 10.0.x.x answers is up to the network of the machine.
        config.health.probe_ms = 0;
        config.server.host = "127.0.0.1".into();
        config.server.port = 0;
        (config.fleet.prefill, config.fleet.decode) = (names(&prefillers), names(&decoders));
        // A simulated bootstrap server listens where its engine does.
        config.dialect.bootstraps = prefillers.iter().map(|e| format!("{0}={0}", e.addr())).collect();
        if config.dialect.name == DialectName::Auto {
            // Questions go over sockets, and there is nobody there.
            config.dialect.name = DialectName::KvTransfer;
        }
        let app = App::build_over(&config, Some(Arc::new(Over(net.clone())))).await.unwrap();
        let router = server::router(app.gateway());
        Memory { prefillers, decoders, net, app, router }
    }

    /// Status and body of one exchange with the gateway. A stream that breaks ends with what was
    /// said before.
    pub async fn post(&self, path: &str, body: impl Into<Body>) -> (u16, String) {
        self.exchange(Request::post(path).header("host", "gateway").body(body.into()).unwrap()).await
    }

    /// The same for a GET.
    pub async fn get(&self, path: &str) -> (u16, String) {
        self.exchange(Request::get(path).header("host", "gateway").body(Body::empty()).unwrap()).await
    }

    async fn exchange(&self, request: Request<Body>) -> (u16, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while let Some(Ok(frame)) = body.frame().await {
            text.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        (status, String::from_utf8_lossy(&text).into_owned())
    }

    /// Lets engines call the gateway at `at`, until what is returned is dropped.
    pub fn listen(&self, at: SocketAddr) -> JoinSet<()> {
        let dock = MemoryListener::bind(self.net.clone(), at).unwrap();
        let router = self.router.clone();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let io = TokioIo::new(dock.accept().await);
                let service = TowerToHyperService::new(router.clone());
                connections.spawn(async move {
                    // An engine that hangs up is nobody's trouble here.
                    let _ = http1::Builder::new().serve_connection(io, service).await;
                });
            }
        });
        listening
    }
}
