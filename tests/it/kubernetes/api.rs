//! A stub of an API server: lists in pages and watches of one kind of object, over a real socket,
//! with the faults that real ones have. Pods and refusals are those that a real one answered
//! (`tests/captures/kubernetes`), under other names and addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::common::place;

/// Objects in one answer, whatever is asked for.
const PAGE: usize = 2;

/// One step of the recorded pod's life.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Pending,
    NotReady,
    Ready,
    Terminating,
}

/// The server; what it was told lives on while nobody listens.
pub struct Api {
    at: SocketAddr,
    world: Arc<World>,
    listening: Option<JoinSet<()>>,
    dir: tempfile::TempDir,
}

struct World {
    state: Mutex<State>,
    /// Told whenever something has changed.
    changed: watch::Sender<()>,
}

/// The objects that exist, and their changes.
#[derive(Default)]
pub struct State {
    objects: BTreeMap<String, Value>,
    /// Events by their versions.
    log: Vec<(u64, Value)>,
    version: u64,
    /// Versions before this one are forgotten.
    oldest: u64,
    /// Watches that began before are cut.
    epoch: u64,
    refusal: Option<&'static str>,
    /// Second pages are refused: their list is too old.
    pages_expire: bool,
    asked: Vec<String>,
}

/// An answer that was recorded: status and body.
fn captured(name: &str) -> (u16, String) {
    let path = captures().join(format!("{name}.json"));
    let status = name.rsplit('.').next().unwrap().parse().unwrap();
    (status, std::fs::read_to_string(path).unwrap())
}

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/kubernetes")
}

/// The recorded pod in one step of its life, as another pod: its name, its role and where its
/// engine listens.
pub fn pod(name: &str, role: &str, engine: SocketAddr, step: Step) -> Value {
    let text = std::fs::read_to_string(captures().join("watch.jsonl")).unwrap();
    let line = text.lines().nth(step as usize).unwrap();
    let mut pod = serde_json::from_str::<Value>(line).unwrap()["object"].take();
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["labels"]["role"] = role.into();
    pod["spec"]["containers"][0]["ports"][0]["containerPort"] = engine.port().into();
    if pod["status"]["podIP"].is_string() {
        pod["status"]["podIP"] = engine.ip().to_string().into();
    }
    pod
}

impl Api {
    /// Listens, and knows nothing.
    pub async fn start() -> Api {
        let world = World { state: Mutex::default(), changed: watch::channel(()).0 };
        let at = place::own_host();
        let dir = tempfile::tempdir().unwrap();
        let mut api = Api { at, world: Arc::new(world), listening: None, dir };
        api.state(|state| state.version = 100);
        api.back().await;
        api
    }

    /// Nobody listens any more, and open watches break.
    pub fn away(&mut self) {
        self.listening = None;
    }

    /// It listens where it did.
    pub async fn back(&mut self) {
        let listener = TcpListener::bind(self.at).await.unwrap();
        self.at = listener.local_addr().unwrap();
        let world = self.world.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                clients.spawn(serve(socket, world.clone()));
            }
        });
        self.listening = Some(tasks);
    }

    /// A kubeconfig that leads here.
    pub fn kubeconfig(&self) -> String {
        let path = self.dir.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": format!("http://{}", self.at)}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "llm"}}],
            "users": [{"name": "it", "user": {"token": "t"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Adds or replaces these, one event each.
    pub fn put(&self, objects: impl IntoIterator<Item = Value>) {
        self.state(|state| objects.into_iter().for_each(|object| state.put(object)));
    }

    /// Deletes one object.
    pub fn delete(&self, name: &str) {
        self.state(|state| state.delete(name));
    }

    /// Cuts all watches.
    pub fn cut(&self) {
        self.cut_while(|_| {});
    }

    /// Cuts all watches; before any of them can come back, all this has happened.
    pub fn cut_while(&self, change: impl FnOnce(&mut State)) {
        self.state(|state| {
            state.epoch += 1;
            change(state);
        });
    }

    /// Forgets all versions but the last, as after a compaction.
    pub fn forget(&self) {
        self.state(State::forget);
    }

    /// Refuses everything as recorded; `None` = no more.
    pub fn refuse(&self, refusal: Option<&'static str>) {
        self.state(|state| state.refusal = refusal);
    }

    /// Lists of several pages break off after the first.
    pub fn pages_expire(&self, they_do: bool) {
        self.state(|state| state.pages_expire = they_do);
    }

    /// Number of requests so far that contain `text`.
    pub fn asked(&self, text: &str) -> usize {
        self.state(|state| state.asked.iter().filter(|line| line.contains(text)).count())
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.world.state.lock().unwrap());
        self.world.changed.send_replace(());
        result
    }
}

impl State {
    /// Adds or replaces one.
    pub fn put(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let kind = if self.objects.contains_key(&name) { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, json!({"type": kind, "object": object})));
        self.objects.insert(name, object);
    }

    /// Deletes one object.
    pub fn delete(&mut self, name: &str) {
        self.version += 1;
        let mut object = self.objects.remove(name).unwrap();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log.push((self.version, json!({"type": "DELETED", "object": object})));
    }

    /// Forgets all versions but the last.
    pub fn forget(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.log.clear();
    }

    /// Those with the labels that are asked for; all, with none.
    fn matching(&self, wanted: &str) -> Vec<&Value> {
        self.objects.values().filter(|object| matches(object, wanted)).collect()
    }

    /// A page: status and body.
    fn list(&self, query: &BTreeMap<String, String>) -> (u16, String) {
        let from = query.get("continue").map_or(0, |token| token.parse().unwrap());
        if from > 0 && self.pages_expire {
            return captured("expired-continue.410");
        }
        let all = self.matching(query.get("labelSelector").map_or("", String::as_str));
        let items: Vec<&&Value> = all.iter().skip(from).take(PAGE).collect();
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if from + items.len() < all.len() {
            metadata["continue"] = (from + items.len()).to_string().into();
        }
        (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string())
    }

    /// Events from a version on, as lines, and the version that they lead to.
    fn events(&self, from: u64, wanted: &str) -> (String, u64) {
        let since =
            self.log.iter().filter(|(version, event)| *version > from && matches(&event["object"], wanted));
        (since.map(|(_, event)| format!("{event}\n")).collect(), self.version)
    }
}

fn matches(object: &Value, wanted: &str) -> bool {
    let pairs = wanted.split(',').filter(|pair| !pair.is_empty());
    let labels = &object["metadata"]["labels"];
    pairs.map(|pair| pair.split_once('=').unwrap()).all(|(key, value)| labels[key] == value)
}

async fn serve(mut socket: TcpStream, world: Arc<World>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = socket.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap().to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let decoded = |text: &str| text.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/");
    let query: BTreeMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), decoded(v)))
        .collect();
    let watching = query.get("watch").is_some_and(|it| it == "true");
    let (status, body) = {
        let mut state = world.state.lock().unwrap();
        let verb = if watching { "watch" } else { "list" };
        state.asked.push(format!("{verb} {path} {query:?}"));
        match state.refusal.filter(|name| !name.contains("watch") || watching) {
            Some(name) => captured(name),
            None if watching => (0, String::new()),
            None => state.list(&query),
        }
    };
    if status > 0 {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        // Who asked may have left.
        let _ = socket.write_all(format!("{head}{body}").as_bytes()).await;
        return;
    }
    let _ = send_events(&mut socket, &world, &query).await;
}

/// A watch: a chunk for what has happened, again and again.
async fn send_events(
    socket: &mut TcpStream,
    world: &World,
    query: &BTreeMap<String, String>,
) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await?;
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let mut version: u64 = query["resourceVersion"].parse().unwrap();
    let wanted = query.get("labelSelector").map_or("", String::as_str);
    let mut changed = world.changed.subscribe();
    let epoch = world.state.lock().unwrap().epoch;
    loop {
        let (text, now, over) = {
            let state = world.state.lock().unwrap();
            let (text, now) = state.events(version, wanted);
            (text, now, (version < state.oldest, state.epoch != epoch))
        };
        match over {
            (_, true) => return Ok(()),
            (true, _) => {
                let gone = std::fs::read_to_string(captures().join("expired-watch.jsonl")).unwrap();
                return socket.write_all(format!("{}0\r\n\r\n", chunk(&gone)).as_bytes()).await;
            }
            _ if !text.is_empty() => socket.write_all(chunk(&text).as_bytes()).await?,
            _ => {}
        }
        version = now;
        let mut byte = [0];
        tokio::select! {
            told = changed.changed() => if told.is_err() { return Ok(()) },
            _ = socket.read(&mut byte) => return Ok(()),
        }
    }
}
