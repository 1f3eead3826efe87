//! One gateway that takes over from another one on the same address.

use std::net::SocketAddr;

use pd_proxy::app::{App, PassedSockets};
use pd_proxy::config::Config;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::client::{self, get};
use crate::common::time::eventually;

struct Running {
    at: SocketAddr,
    ending: CancellationToken,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

fn config(port: u16) -> Config {
    let mut config = Config::default();
    config.server.host = "127.0.0.1".into();
    config.server.port = port;
    config.server.drain_ms = 60_000;
    config.health.probe_ms = 0;
    config.fleet.prefill = vec!["127.0.0.1:1".into()];
    config.fleet.decode = vec!["127.0.0.1:2".into()];
    config
}

fn running(app: App) -> Running {
    let (at, stop, ending) = (app.addresses()[0], app.stop(), app.gateway().ending.clone());
    #[expect(clippy::disallowed_methods, reason = "the test owns it and waits for its end")]
    let serving = tokio::spawn(app.serve());
    Running { at, ending, stop, serving }
}

impl Running {
    async fn end(self) {
        self.stop.cancel();
        assert_eq!(self.serving.await.unwrap(), 0, "no connection is cut");
    }
}

#[tokio::test]
async fn passed_sockets_are_served_by_one_gateway_after_the_other() {
    let sockets: Vec<_> = (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let pass = || PassedSockets {
        clients: vec![sockets[0].try_clone().unwrap()],
        operators: vec![sockets[1].try_clone().unwrap()],
    };
    let mut config = config(0);
    config.server.admin_host = Some("127.0.0.1".into());
    let first = running(App::build_on(&config, pass()).await.unwrap());
    assert_eq!(first.at, sockets[0].local_addr().unwrap(), "not where the configuration says");
    let operators = sockets[1].local_addr().unwrap();
    assert_eq!(client::send(operators, &get("/metrics")).await.status, 200);
    let second = running(App::build_on(&config, pass()).await.unwrap());
    // Connected, and silent until after the first one's end: whoever has it answers it.
    let mut early = TcpStream::connect(first.at).await.unwrap();
    let at = first.at;
    let (_, raw) = tokio::join!(first.end(), async {
        early.write_all(&get("/health")).await.unwrap();
        client::read(&mut early).await
    });
    assert_eq!(raw.status, 200);
    for _ in 0..8 {
        assert_eq!(client::send(at, &get("/health")).await.status, 200);
    }
    second.end().await;
    // Nobody serves: the connection waits in the socket, which is still there.
    let mut waiting = TcpStream::connect(at).await.unwrap();
    waiting.write_all(&get("/health")).await.unwrap();
    let third = running(App::build_on(&config, pass()).await.unwrap());
    assert_eq!(client::read(&mut waiting).await.status, 200);
    third.end().await;
}

#[tokio::test]
async fn operators_socket_needs_a_listener_of_operators() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let passed = PassedSockets { clients: Vec::new(), operators: vec![socket] };
    let error = App::build_on(&config(0), passed).await.unwrap_err().to_string();
    assert!(error.contains("server.admin_host is not set"), "{error}");
}

#[tokio::test]
async fn two_gateways_share_a_port_where_both_say_so() {
    let mut shared = config(0);
    shared.server.reuse_port = true;
    let first = running(App::build(&shared).await.unwrap());
    shared.server.port = first.at.port();
    let refused = App::build(&config(first.at.port())).await.unwrap_err().to_string();
    assert!(refused.contains("cannot listen on 127.0.0.1"), "{refused}");
    let second = running(App::build(&shared).await.unwrap());
    assert_eq!(second.at, first.at);
    let at = first.at;
    first.end().await;
    for _ in 0..8 {
        assert_eq!(client::send(at, &get("/health")).await.status, 200);
    }
    second.end().await;
}

#[tokio::test]
async fn gateway_that_takes_its_leave_ends_connections_with_their_answers() {
    let gateway = running(App::build(&config(0)).await.unwrap());
    let mut kept = TcpStream::connect(gateway.at).await.unwrap();
    let asked = b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n";
    for leaves in [false, true] {
        if leaves {
            gateway.ending.cancel();
        }
        kept.write_all(asked).await.unwrap();
        let mut head = Vec::new();
        eventually("the head of the answer", async || {
            kept.readable().await.unwrap();
            let mut piece = [0; 4_096];
            let read = kept.try_read(&mut piece).unwrap_or_default();
            head.extend_from_slice(&piece[..read]);
            head.windows(4).any(|window| window == b"\r\n\r\n")
        })
        .await;
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        assert_eq!(head.contains("connection: close"), leaves, "{head}");
    }
    gateway.end().await;
}
