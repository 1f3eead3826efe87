//! A store that keeps values and knows no other command: as much of a Redis server as stored
//! responses need.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pd_proxy::config::{Config, Secret};
use pd_proxy::sim::Engine;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::raw_engine::Front;
use super::stage::Stage;

/// The store, until dropped.
pub struct Store {
    pub at: SocketAddr,
    values: Arc<Values>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Values {
    kept: Mutex<HashMap<String, Vec<u8>>>,
    /// Names of keys that were asked for, each time.
    asked: Mutex<Vec<String>>,
    /// Answers to `GET` are not sent.
    silent: AtomicBool,
    /// Node of a cluster that has the values.
    moved_to: Mutex<Option<SocketAddr>>,
}

impl Store {
    pub async fn open() -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, values) = (listener.local_addr().unwrap(), Arc::<Values>::default());
        let (mut serving, shown) = (JoinSet::new(), values.clone());
        serving.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((link, _)) = listener.accept().await {
                links.spawn(serve(link, shown.clone()));
            }
        });
        Store { at, values, _serving: serving }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.at)
    }

    /// A gateway in front of the engines of a stage, which shares through the store.
    pub async fn front(&self, stage: &Stage, change: impl FnOnce(&mut Config)) -> Front {
        let at = |engines: &[Engine]| engines.iter().map(Engine::addr).collect::<Vec<_>>();
        Front::at(&at(&stage.prefillers), &at(&stage.decoders), |config| {
            config.share.url = Some(Secret::new(self.url()));
            change(config);
        })
        .await
    }

    /// Answers no question any more.
    pub fn fall_silent(&self) {
        self.values.silent.store(true, Ordering::Relaxed);
    }

    /// Is a node of a cluster in which another one has all values.
    pub fn move_to(&self, keeper: SocketAddr) {
        *self.values.moved_to.lock().unwrap() = Some(keeper);
    }

    /// True if each value's name begins so.
    pub fn names_begin_with(&self, prefix: &str) -> bool {
        self.values.kept.lock().unwrap().keys().all(|name| name.starts_with(prefix))
    }

    /// Number of times at which keys were asked for whose names have this part.
    pub fn asked(&self, part: &str) -> usize {
        self.values.asked.lock().unwrap().iter().filter(|name| name.contains(part)).count()
    }

    /// The values of keys whose names have this part.
    pub fn values(&self, part: &str) -> Vec<Vec<u8>> {
        let kept = self.values.kept.lock().unwrap();
        kept.iter().filter(|(name, _)| name.contains(part)).map(|(_, value)| value.clone()).collect()
    }
}

async fn serve(link: TcpStream, values: Arc<Values>) {
    let mut link = BufReader::new(link);
    while let Some(words) = command(&mut link).await {
        let answer = values.answer(&words);
        if link.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// The words of the next command; None when the link is closed.
async fn command(link: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let count = number(link, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(link, '$').await? + 2];
        link.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn number(link: &mut BufReader<TcpStream>, sign: char) -> Option<usize> {
    let mut line = String::new();
    link.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(sign)?.parse().ok()
}

impl Values {
    fn answer(&self, words: &[Vec<u8>]) -> Vec<u8> {
        let word = |at: usize| words.get(at).map(|word| String::from_utf8_lossy(word).into_owned());
        let name = word(1).unwrap_or_default();
        if word(0).as_deref() == Some("GET") {
            self.asked.lock().unwrap().push(name.clone());
        }
        let moved_to = *self.moved_to.lock().unwrap();
        match (word(0).as_deref(), moved_to) {
            (Some("SET" | "GET"), Some(keeper)) => format!("-MOVED 1 {keeper}\r\n").into_bytes(),
            (Some("SET"), None) => {
                let mut kept = self.kept.lock().unwrap();
                if words.last().is_some_and(|it| it == b"NX") && kept.contains_key(&name) {
                    return b"$-1\r\n".to_vec();
                }
                kept.insert(name, words[2].clone());
                b"+OK\r\n".to_vec()
            }
            (Some("GET"), None) if self.silent.load(Ordering::Relaxed) => Vec::new(),
            (Some("GET"), None) => match self.kept.lock().unwrap().get(&name) {
                None => b"$-1\r\n".to_vec(),
                Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
            },
            _ => b"-ERR unknown command\r\n".to_vec(),
        }
    }
}
