//! An engine that writes raw bytes: what the simulated ones would never answer, and a record of
//! what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use pd_proxy::app::App;
use pd_proxy::config::{Config, DialectName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::client::{self, Raw};
use super::place;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub target: String,
    /// All lines of the head, the first one included.
    pub head: String,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

type Script = Arc<dyn Fn(&Asked) -> Vec<u8> + Send + Sync>;

/// One engine; it is gone when dropped.
pub struct RawEngine {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Asked>>>,
    _serving: JoinSet<()>,
}

/// A whole answer.
pub fn answer(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl RawEngine {
    /// An engine that answers by `script`; it hangs up where that is empty, and behind an answer
    /// without a length.
    pub async fn start(script: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> RawEngine {
        let listener = TcpListener::bind(place::own_host()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let script: Script = Arc::new(script);
        let mut serving = JoinSet::new();
        let log = Arc::clone(&seen);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, script.clone(), log.clone()));
            }
        });
        RawEngine { addr, seen, _serving: serving }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The requests that it received, except for its models and its health.
    pub fn seen(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().clone()
    }

    pub fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

async fn serve(mut socket: TcpStream, script: Script, log: Arc<Mutex<Vec<Asked>>>) {
    let mut bytes = Vec::new();
    loop {
        let Some(asked) = read(&mut socket, &mut bytes).await else { return };
        log.lock().unwrap().push(asked.clone());
        let answer = script(&asked);
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let closes = !text.contains("content-length") || text.contains("connection: close");
        if answer.is_empty() || socket.write_all(&answer).await.is_err() || closes {
            return;
        }
    }
}

async fn read(socket: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Asked> {
    let mut piece = [0; 16 << 10];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut words = head.split(' ');
            let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
            let mut asked = Asked { method, target, head, body: Vec::new() };
            let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                asked.body = bytes[end + 4..end + 4 + length].to_vec();
                bytes.drain(..end + 4 + length);
                return Some(asked);
            }
        }
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
        }
    }
}

/// A gateway in front of raw engines.
pub struct Front {
    pub at: SocketAddr,
    /// A gateway whose operators have a listener of their own.
    pub admin: Option<SocketAddr>,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

impl Front {
    /// In front of these engines, with a changed configuration.
    pub async fn of(
        prefill: &[&RawEngine],
        decode: &[&RawEngine],
        change: impl FnOnce(&mut Config),
    ) -> Front {
        let at = |engines: &[&RawEngine]| engines.iter().map(|engine| engine.addr()).collect::<Vec<_>>();
        Front::at(&at(prefill), &at(decode), change).await
    }

    /// In front of the engines at these addresses.
    pub async fn at(
        prefill: &[SocketAddr],
        decode: &[SocketAddr],
        change: impl FnOnce(&mut Config),
    ) -> Front {
        let mut config = Config::default();
        config.server.host = "127.0.0.1".into();
        config.server.port = 0;
        config.server.drain_ms = 500;
        config.retry.budget_floor_per_s = 1_000;
        config.health.probe_ms = 0;
        config.dialect.name = DialectName::KvTransfer;
        let names = |engines: &[SocketAddr]| engines.iter().map(SocketAddr::to_string).collect();
        (config.fleet.prefill, config.fleet.decode) = (names(prefill), names(decode));
        change(&mut config);
        let app = App::build(&config).await.expect("the gateway starts");
        let (at, stop) = (app.addresses()[0], app.stop());
        let admin = app.admin_addresses().first().copied();
        #[expect(clippy::disallowed_methods, reason = "the front owns it and waits for it in `end`")]
        let serving = tokio::spawn(app.serve());
        Front { at, admin, stop, serving }
    }

    pub async fn send(&self, request: &[u8]) -> Raw {
        client::send(self.at, request).await
    }

    pub async fn post(&self, path: &str, body: &str) -> Raw {
        self.send(&client::post(path, body)).await
    }

    pub async fn get(&self, path: &str) -> Raw {
        self.send(&client::get(path)).await
    }

    pub async fn end(self) {
        self.stop.cancel();
        self.serving.await.expect("the gateway did not panic");
    }
}
