//! Engines whose address leads back to the gateway: it asks itself no second time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pd_proxy::app::App;
use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, Role};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{CHAT, Gateway, anywhere, chat, engine, is_member};
use crate::common::client::{self, get, post};
use crate::common::stage::Script;

/// A proxy in front of a gateway, with an address of its own.
struct Balancer {
    at: SocketAddr,
    to: watch::Sender<Option<SocketAddr>>,
    connections: Arc<AtomicUsize>,
    _running: JoinSet<()>,
}

impl Balancer {
    async fn start() -> Balancer {
        let listener = TcpListener::bind(anywhere()).await.unwrap();
        let (at, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let (to, mut known) = watch::channel(None);
        let (counted, mut running) = (connections.clone(), JoinSet::new());
        running.spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                let to: SocketAddr = known.wait_for(Option::is_some).await.unwrap().unwrap();
                carried.spawn(async move {
                    let mut far = TcpStream::connect(to).await.unwrap();
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Balancer { at, to, connections, _running: running }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn behind(balancer: &Balancer, prefiller: &Engine, decoders: &[SocketAddr]) -> Gateway {
    let mut config: Config = Script::default().config;
    config.fleet.prefill = vec![prefiller.addr().to_string()];
    config.fleet.decode = decoders.iter().map(SocketAddr::to_string).collect();
    let gateway = Gateway::run(App::build(&config).await.unwrap());
    balancer.to.send_replace(Some(gateway.at));
    gateway
}

#[tokio::test]
async fn a_gateway_that_is_its_only_decoder_says_so_at_once() {
    let (balancer, prefiller) = (Balancer::start().await, engine(Role::Prefill, anywhere()).await);
    let gateway = behind(&balancer, &prefiller, &[balancer.at]).await;
    let answer = client::send(gateway.at, &post(CHAT, &chat("Who are you?"))).await;
    assert_eq!((answer.status, answer.header("x-pd-error")), (502, Some("decode_failed")), "{answer:?}");
    let attempts = Config::default().retry.attempts as usize;
    assert!(balancer.connections() <= attempts, "{} connections", balancer.connections());
    gateway.end().await;
}

#[tokio::test]
async fn with_another_decoder_clients_see_nothing_of_it() {
    let (balancer, prefiller) = (Balancer::start().await, engine(Role::Prefill, anywhere()).await);
    let decoder = engine(Role::Decode, anywhere()).await;
    let gateway = behind(&balancer, &prefiller, &[balancer.at, decoder.addr()]).await;
    for turn in 0..8 {
        let answer = client::send(gateway.at, &post(CHAT, &chat(&format!("Turn {turn}?")))).await;
        assert_eq!((answer.status, answer.words().is_empty()), (200, false), "{answer:?}");
    }
    assert!((1..=8).contains(&balancer.connections()), "{} connections", balancer.connections());
    gateway.end().await;
}

#[tokio::test]
async fn nor_does_it_join_its_own_engines() {
    let (balancer, prefiller) = (Balancer::start().await, engine(Role::Prefill, anywhere()).await);
    let decoder = engine(Role::Decode, anywhere()).await;
    let gateway = behind(&balancer, &prefiller, &[decoder.addr()]).await;
    for own in [gateway.at, balancer.at] {
        let add = json!({"type": "decode", "instances": [own.to_string()]}).to_string();
        let answer = client::send(gateway.at, &post("/instances/add", &add)).await;
        assert!(answer.text().contains("waiting to be added"), "{answer:?}");
        assert!(!is_member(gateway.at, "decode", own).await);
    }
    // Whoever else is asked by that way answers as ever.
    assert_eq!(client::send(balancer.at, &get("/v1/models")).await.status, 200);
    gateway.end().await;
}
