//! The real program, as operators run it: its command lines, its words, its exit codes, its
//! signals.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pd_proxy::sim::{Engine, EngineSpec, Role};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::{self, get, post, post_with};
use crate::common::stage::{fast, slow};
use crate::common::time::{eventually, eventually_blocking};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pd-proxy");
/// Nothing here takes longer, unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Lines of the program that are shown of a test that has failed.
const LAST_WORDS: usize = 30;
const STREAM: &str =
    r#"{"model":"sim","messages":[{"role":"user","content":"Tell me."}],"max_tokens":60,"stream":true}"#;

/// A running program; it is killed when dropped.
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Process {
    /// Starts the program with nothing in its environment but `env`.
    pub fn start(arguments: &[&str], env: &[(&str, &str)]) -> Process {
        let mut child = Command::new(PROGRAM)
            .args(arguments)
            .env_clear()
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        listen(child.stdout.take().unwrap(), sender.clone());
        listen(child.stderr.take().unwrap(), sender);
        Process { child, lines, said: Vec::new() }
    }

    /// A gateway on a free port in front of `prefill` and `decode`, and where it listens.
    pub fn gateway(
        prefill: &Engine,
        decode: &Engine,
        more: &[&str],
        env: &[(&str, &str)],
    ) -> (Process, SocketAddr) {
        let (prefill, decode) = (prefill.addr().to_string(), decode.addr().to_string());
        let base = ["--host", "127.0.0.1", "--port", "0", "--prefill", &prefill, "--decode", &decode];
        let mut process = Process::start(&[&base, more].concat(), env);
        let address = process.address();
        (process, address)
    }

    /// The first line that contains `text`, also if another one was waited for since.
    pub fn hear(&mut self, text: &str) -> String {
        let before = self.said.iter().find(|line| line.contains(text)).cloned();
        before.unwrap_or_else(|| self.wait_for(text))
    }

    /// The next line that contains `text`.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("never said {text:?}, but:\n{}", self.said.join("\n"));
            };
            self.said.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Number of lines so far that contain `text`.
    pub fn said(&mut self, text: &str) -> usize {
        self.said.extend(self.lines.try_iter());
        self.said.iter().filter(|line| line.contains(text)).count()
    }

    /// Sends eight prompts, by their numbers, and eight more whenever the program has been silent
    /// for a while, until `text` was said so many times: the gateway may leave prompts out that it
    /// learns from. Returns how many were sent.
    pub async fn prompted(&mut self, text: &str, times: usize, mut send: impl AsyncFnMut(usize)) -> usize {
        /// Looks of five milliseconds each, longer than any lookup of a stored prompt takes.
        const SILENCE: usize = 800;
        let (mut looks, mut sent) = (0, 0);
        eventually(format!("{times} times {text:?}"), async || {
            if looks % SILENCE == 0 {
                for _ in 0..8 {
                    send(sent).await;
                    sent += 1;
                }
            }
            looks += 1;
            self.said(text) >= times
        })
        .await;
        sent
    }

    /// The address behind the next `http://`.
    pub fn address(&mut self) -> SocketAddr {
        let line = self.wait_for("http://");
        let rest = line.split("http://").nth(1).unwrap();
        let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || "[]:.".contains(c))).unwrap_or(rest.len());
        rest[..end].parse().unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to this very process.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let said = self.said.join("\n");
        let ended = || self.child.try_wait().unwrap();
        eventually_blocking(format!("the end of what said:\n{said}"), ended)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.said("");
            let from = self.said.len().saturating_sub(LAST_WORDS);
            println!("the last that pd-proxy said:\n{}", self.said[from..].join("\n"));
        }
    }
}

fn listen(from: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

/// Runs the program to its end: exit code, standard output, standard error.
pub fn run(arguments: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let (out, err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let child = Command::new(PROGRAM)
        .args(arguments)
        .env_clear()
        .envs(env.iter().copied())
        .stdout(out.try_clone().unwrap())
        .stderr(err.try_clone().unwrap())
        .spawn()
        .unwrap();
    let mut process = Process { child, lines: mpsc::channel().1, said: Vec::new() };
    let code = process.ended().code().unwrap();
    let text = |mut file: File| {
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    };
    (code, text(out), text(err))
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

async fn engine(spec: EngineSpec, role: Role) -> Engine {
    Engine::start(EngineSpec { role, ..spec }, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
}

/// A prefiller and a decoder.
pub async fn pair(spec: EngineSpec) -> (Engine, Engine) {
    (engine(spec.clone(), Role::Prefill).await, engine(spec, Role::Decode).await)
}

#[test]
fn all_faults_of_a_command_line_are_reported() {
    for (line, message) in [
        (
            "--prefiller-hosts 10.0.0.1 10.0.0.2 --prefiller-ports 8100",
            "flag --prefiller-hosts: --prefiller-hosts names 2 hosts and --prefiller-ports 1 port: give one port for each host",
        ),
        (
            "--decoder-hosts 10.0.0.1 --decoder-ports 8100 8101",
            "flag --decoder-hosts: --decoder-hosts names 1 host and --decoder-ports 2 ports: give one port for each host",
        ),
        (
            "--prefiller-hosts 192.0.0.3192.0.0.3 --prefiller-ports 8100",
            "flag --prefiller-hosts: `192.0.0.3192.0.0.3` is no IP address: it looks like two entries run together, is a \
             space missing between them (before a line continuation)?",
        ),
        (
            "--decode grpc://10.0.0.1:8100",
            "flag --decode: fleet.decode: `grpc://10.0.0.1:8100` has an unknown scheme: use host:port, http://host:port or https://host:port",
        ),
        (
            "--config /nowhere/pd-proxy.toml",
            "file /nowhere/pd-proxy.toml: cannot be read: No such file or directory (os error 2)",
        ),
        ("--config /", "file /: cannot be read: Is a directory (os error 21)"),
        (
            "--prefill localhost:8000",
            "flag --prefill: fleet.prefill: `localhost:8000` is this gateway itself (server.host, server.port): give the engine's \
             port, or another --port",
        ),
        ("--set limit.inflght=3", "flag --set: unknown key limit.inflght: did you mean limit.inflight?"),
        ("--port 65536", "flag --port: server.port = 65536: expected a whole number from 0 to 65535"),
        (
            "--policy fastest",
            "flag --policy: route.policy = \"fastest\": expected one of predicted, least_work, least_requests, round_robin, random, power_of_two, reference, cache_aware, session",
        ),
    ] {
        for command in [None, Some("serve"), Some("check")] {
            let arguments: Vec<&str> = command.into_iter().chain(words(line)).collect();
            let (code, out, err) = run(&arguments, &[]);
            assert_eq!((code, out.as_str(), err.trim_end()), (1, "", message), "{arguments:?}");
        }
    }
}

#[test]
fn configuration_errors_name_file_or_variable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.toml");
    let path = path.to_str().unwrap();
    for (text, message) in [
        ("[route]\npolcy = \"random\"\n", "unknown key route.polcy: did you mean route.policy?"),
        (
            "[retry]\nattempts = \"many\"\n",
            "retry.attempts = \"many\": expected a whole number from 0 to 4294967295",
        ),
        ("[engine]\napi_key = 7\n", "engine.api_key = ***: expected a string"),
        ("route = 1\n", "`route` is a section: set its keys, as in [route] or route.key = value"),
    ] {
        std::fs::write(path, text).unwrap();
        let (code, _, err) = run(&["check", "--config", path], &[]);
        assert_eq!((code, err.trim_end()), (1, format!("file {path}: {message}").as_str()), "{text}");
    }
    let (code, _, err) = run(&["check"], &[("PD_PROXY__LIMIT__QEUE", "1")]);
    let message = "env PD_PROXY__LIMIT__QEUE: unknown key limit.qeue: did you mean limit.queue?";
    assert_eq!((code, err.trim_end()), (1, message));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let (code, out, err) = run(&["--host", host, "--port", &port.to_string()], &[]);
        let message = format!(
            "pd-proxy: cannot listen on {host}:{port} (server.host, server.port): Address already in use (os error 98); \
             choose another --host or --port, or stop what uses it"
        );
        assert!(!out.contains("listening"), "{out}");
        assert_eq!((code, err.trim_end()), (1, message.as_str()));
    }
}

/// Clients of `localhost` that try IPv6 first would reach the other program.
#[test]
fn localhost_is_taken_when_one_of_its_addresses_is() {
    let Ok(taken) = std::net::TcpListener::bind("[::1]:0") else {
        return; // This machine has no IPv6.
    };
    let port = taken.local_addr().unwrap().port();
    let (code, _, err) = run(&["--port", &port.to_string()], &[]);
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with(&format!("pd-proxy: cannot listen on localhost:{port} ")), "{err}");
}

#[test]
fn check_knows_that_two_listeners_need_two_places() {
    let line = "check --offline --host 127.0.0.1 --port 9000 --set server.admin_host=127.0.0.1 --set server.admin_port=9000";
    let (code, _, err) = run(&words(line), &[]);
    let words = ["server.port", "server.admin_port", "9000"];
    assert_eq!((code, words.iter().all(|word| err.contains(word))), (1, true), "{err}");
}

#[test]
fn check_prints_values_origins_and_no_secret() {
    let env =
        [("OPENAI_API_KEY", "sk-engine"), ("ADMIN_API_KEY", "sk-admin"), ("PD_PROXY__RETRY__ATTEMPTS", "7")];
    let line = "check --offline --show --port 9000 --prefiller-hosts 10.0.0.1 --prefiller-ports 8100 --set route.policy=random";
    let (code, out, err) = run(&words(line), &env);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<String> =
        out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        "port = 9_000 # flag --port",
        "host = \"localhost\" # default",
        "prefill = [\"10.0.0.1:8100\"] # flag --prefiller-hosts --prefiller-ports",
        "decode = [\"localhost:8002\"] # default",
        "policy = \"random\" # flag --set",
        "attempts = 7 # env PD_PROXY__RETRY__ATTEMPTS",
        "api_key = \"***\" # env OPENAI_API_KEY",
        "admin_key = \"***\" # env ADMIN_API_KEY",
    ] {
        assert!(lines.iter().any(|l| l == expected), "{expected} in\n{out}");
    }
    assert!(!out.contains("sk-"), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn experimental_settings_are_reported_at_start_and_by_check() {
    let note = "dialect.name = \"moriio\" is experimental: ";
    let spec = EngineSpec { connector: pd_proxy::sim::Connector::Moriio, ..fast() };
    let (prefill, decode) = pair(spec).await;
    let (mut process, _) = Process::gateway(&prefill, &decode, &["--set", "dialect.name=moriio"], &[]);
    process.hear(note);
    for (setting, note) in [
        ("dialect.name=moriio", note),
        ("dialect.bidirectional=true", "dialect.bidirectional is experimental: "),
    ] {
        let (code, out, err) = run(&["check", "--offline", "--set", setting], &[]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.lines().any(|line| line.starts_with(&format!("# note {note}"))), "{setting}: {out}");
    }
    let (_, out, _) = run(&["check", "--offline"], &[]);
    assert!(!out.contains("is experimental"), "{out}");
}

/// The command lines of runbooks, with an address and a port that are free here.
#[tokio::test]
async fn the_command_lines_of_runbooks_start_a_gateway() {
    for (line, prefill, decode) in [
        (
            "--host 127.0.0.1 --port 0 --workers 2 --prefiller-hosts 10.0.0.1 10.0.0.2 --prefiller-ports 8100 8101 \
             --decoder-hosts 10.0.0.3 10.0.0.4 --decoder-ports 8200 8201",
            vec!["10.0.0.1:8100", "10.0.0.2:8101"],
            vec!["10.0.0.3:8200", "10.0.0.4:8201"],
        ),
        (
            "--port 0 --host 127.0.0.1 --prefiller-hosts H --prefiller-ports 7100 --decoder-hosts H --decoder-ports 7100",
            vec!["h:7100"],
            vec!["h:7100"],
        ),
        (
            "--model /path --prefill 10.0.0.1:8100 --decode 10.0.0.2:8200 --port 0",
            vec!["10.0.0.1:8100"],
            vec!["10.0.0.2:8200"],
        ),
        (
            "--port 0 --host 127.0.0.1 --prefiller-host ::1,[fe80::1] --prefiller-port 1,2 --decoder-host a \
             --decoder-port 3 --max-retries 3 --retry-delay 0.001 --max-waiting-retries 3 \
             --waiting-retry-interval 10 --workers 1 --log-level INFO",
            vec!["[::1]:1", "[fe80::1]:2"],
            vec!["a:3"],
        ),
        ("--port 0 --host 127.0.0.1", vec!["localhost:8001"], vec!["localhost:8002"]),
    ] {
        let mut process = Process::start(&words(line), &[]);
        let address = process.address();
        assert_eq!(client::send(address, &get("/health")).await.status, 200, "{line}");
        let status = client::send(address, &get("/status")).await.json();
        assert_eq!(status["prefill_nodes"], serde_json::json!(prefill), "{line}");
        assert_eq!(status["decode_nodes"], serde_json::json!(decode), "{line}");
        process.signal("TERM");
        assert_eq!(process.ended().code(), Some(0), "{line}");
    }
}

#[tokio::test]
async fn localhost_answers_on_both_loopbacks() {
    let mut process = Process::start(&["--port", "0"], &[]);
    let first = process.address();
    assert!(first.ip().is_ipv4(), "{first}");
    assert_eq!(client::send(first, &get("/health")).await.status, 200);
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        let second = process.address();
        assert_eq!(second, format!("[::1]:{}", first.port()).parse().unwrap());
        assert_eq!(client::send(second, &get("/health")).await.status, 200);
    }
}

/// A stream whose first event is here, unread.
pub async fn open_stream(gateway: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    socket.write_all(&post("/v1/chat/completions", STREAM)).await.unwrap();
    let mut seen = vec![0; 4096];
    eventually("an event", async || {
        let n = socket.peek(&mut seen).await.unwrap();
        String::from_utf8_lossy(&seen[..n]).contains("data: ")
    })
    .await;
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_signal_lets_a_stream_finish() {
    for signal in ["TERM", "INT"] {
        let (prefill, decode) = pair(slow()).await;
        let (mut process, address) = Process::gateway(&prefill, &decode, &[], &[]);
        let mut stream = open_stream(address).await;
        process.signal(signal);
        process.wait_for("shutting down");
        let raw = client::read(&mut stream).await;
        assert!(raw.complete && raw.done(), "{signal}: {}", raw.text());
        let finish = raw.events().iter().filter(|e| e["choices"][0]["finish_reason"] == "length").count();
        assert_eq!(finish, 1, "{signal}");
        assert_eq!(process.ended().code(), Some(0), "{signal}");
        assert!(TcpStream::connect(address).await.is_err(), "{signal}: nobody listens any more");
        assert_eq!((prefill.ledger().pinned_handoffs, decode.ledger().running), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn keys_from_the_environment_take_effect() {
    let (prefill, decode) = pair(EngineSpec { api_key: Some("sk-engine".into()), ..fast() }).await;
    let env = [("OPENAI_API_KEY", "sk-engine"), ("ADMIN_API_KEY", "sk-admin")];
    let (mut process, address) = Process::gateway(&prefill, &decode, &[], &env);
    process.wait_for("engines are sent engine.api_key (env OPENAI_API_KEY)");
    let raw = client::send(address, &post("/v1/chat/completions", STREAM)).await;
    assert!(raw.status == 200 && raw.done(), "{}", raw.text());
    assert_eq!(client::send(address, &get("/v1/models")).await.status, 200);

    let change = format!(r#"{{"type":"decode","instances":"{}"}}"#, decode.addr());
    let with = |key| post_with("/instances/add", &[("X-API-Key", key)], change.as_bytes());
    assert_eq!(client::send(address, &with("sk-engine")).await.status, 401);
    assert_eq!(client::send(address, &with("sk-admin")).await.status, 200);
}

/// Engines are on the cluster's own network; the variables are there for what leaves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_web_proxy_in_the_environment_stands_in_no_engine_s_way() {
    let (prefill, decode) = pair(fast()).await;
    let env = [
        ("HTTP_PROXY", "http://127.0.0.1:1"),
        ("http_proxy", "http://127.0.0.1:1"),
        ("ALL_PROXY", "http://127.0.0.1:1"),
    ];
    let (_process, address) = Process::gateway(&prefill, &decode, &[], &env);
    assert_eq!(client::send(address, &post("/v1/chat/completions", STREAM)).await.status, 200);
    assert_eq!(client::send(address, &get("/v1/models")).await.status, 200);
    assert_eq!(client::send(address, &post("/reset_prefix_cache", "")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_simulator_starts_and_answers() {
    let line = "sim --port 0 --role decode --model toy --tpot-ms 0 --slope-ms 0 --api-key-env SIM_KEY";
    let mut process = Process::start(&words(line), &[("SIM_KEY", "sk-sim")]);
    let address = process.address();
    assert_eq!(client::send(address, &get("/v1/models")).await.status, 401);
    let body = br#"{"model":"toy","prompt":"a","max_tokens":3}"#;
    let raw =
        client::send(address, &post_with("/v1/completions", &[("authorization", "Bearer sk-sim")], body))
            .await;
    assert_eq!((raw.status, raw.json()["usage"]["completion_tokens"].as_u64()), (200, Some(3)));
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));

    let (code, _, err) = run(&words("sim --port 0 --api-key-env NO_SUCH_KEY"), &[]);
    assert_eq!(
        (code, err.trim_end()),
        (1, "--api-key-env NO_SUCH_KEY: there is no such environment variable")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_demo_prints_where_it_is_and_what_to_try() {
    let mut process = Process::start(&words("demo --port 0 --tokens-per-s 1000"), &[]);
    let address = process.address();
    let line = process.wait_for("curl -N");
    assert!(line.contains(&format!("http://{address}/v1/chat/completions")), "{line}");
    let raw = client::send(address, &post("/v1/chat/completions", STREAM)).await;
    assert!(raw.status == 200 && raw.done() && !raw.words().is_empty(), "{}", raw.text());
    process.signal("INT");
    assert_eq!(process.ended().code(), Some(0));
}
