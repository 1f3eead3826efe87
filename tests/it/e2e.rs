//! The bench of the whole way (`benches/e2e`): that it runs, and that it sees bad answers.

#[path = "../../benches/e2e/rig/mod.rs"]
#[expect(dead_code, reason = "only the bench itself binds processes to cores")]
mod rig;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use clap::Parser;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use rig::answer::Events;
use rig::client::Connection;
use rig::command::{Command, CommandError, Places};
use rig::trouble::Trouble;
use rig::{Cores, Options, Usage};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn options(words: &[&str]) -> Result<Options, String> {
    let all = ["e2e", "--seconds", "0.2"].iter().chain(words);
    let usage = Usage::try_parse_from(all).map_err(|e| e.to_string())?;
    Options::try_from(usage).map_err(|e| e.to_string())
}

fn good(words: &[&str]) -> bool {
    rig::run_on(&options(words).unwrap(), &Cores::undivided()).unwrap()
}

#[test]
fn every_scenario_is_answered_well() {
    assert!(good(&["--scenarios", "small,prompts:70000,instances:6,streams:3,cores:2,idle:3"]));
}

#[test]
fn a_proxy_of_another_command_is_measured_beside_ours() {
    let other =
        "other={exe} --port {port} --prefill 127.0.0.1:{p0} --decode 127.0.0.1:{d1} --log-level warning";
    assert!(good(&["--scenarios", "small", "--reps", "2", "--compare", other]));
}

#[test]
fn a_proxy_that_does_not_run_is_no_result() {
    assert!(!good(&["--scenarios", "small", "--cmd", "sh -c 'exit 3' {port}"]));
    assert!(!good(&["--scenarios", "small", "--cmd", "/nowhere/proxy {port}"]));
    assert!(!good(&["--scenarios", "small", "--exe", "/nowhere/pd-proxy"]));
}

/// An engine alone takes the place of a gateway that runs already.
#[test]
fn streams_and_answers_that_are_cut_are_errors() {
    let runtime = Runtime::new().unwrap();
    let engine = runtime.block_on(Engine::start(EngineSpec::default(), ANY)).unwrap();
    let pid = std::process::id().to_string();
    let url = engine.url();
    let there = ["--url", &url, "--pid", &pid, "--scenarios", "small,streams:3"];
    assert!(good(&there));
    for what in [FaultKind::CloseWithoutDone, FaultKind::ErrorEvent] {
        engine.inject(Fault::always(what).on_path("/v1/chat"));
        assert!(!good(&there));
        engine.clear_faults();
    }
    engine.inject(Fault::always(FaultKind::Status(503, None)).on_path("/v1/completions"));
    assert!(!good(&there));
}

#[test]
fn bad_options_are_named_with_what_would_do() {
    for (words, said) in [
        (&["--scenarios", "smal"][..], "'smal': no such scenario: choose of small, prompts"),
        (&["--scenarios", "streams:none"], "'streams:none': none is no size: give a number from 1 to 100000"),
        (&["--seconds", "0"], "--seconds 0: not from 0.1 to 600"),
        (&["--reps", "0"], "invalid value '0' for '--reps <N>'"),
        (&["--cmd", "proxy --port 80"], "--cmd 'proxy --port 80': no {port}"),
        (&["--compare", "proxy {port}"], "--compare 'proxy {port}': no name"),
        (&["--compare", "pd-proxy=a {port}"], "this name is taken"),
        (
            &["--url", "http://127.0.0.1:1/v1", "--pid", "1"],
            "--url 'http://127.0.0.1:1/v1': not http://HOST:PORT",
        ),
        (&["--url", "http://127.0.0.1:1"], "--pid <PID>"),
    ] {
        let mut all = vec!["e2e"];
        all.extend(words);
        let refused = Usage::try_parse_from(all).map_err(|e| e.to_string());
        let refused = refused.and_then(|usage| Options::try_from(usage).map_err(|e| e.to_string()));
        let refused = refused.unwrap_err();
        assert!(refused.contains(said), "{words:?}: {refused}");
    }
}

#[test]
fn commands_have_places_and_repetitions() {
    let places = Places {
        named: [("port", "80"), ("d0", "3"), ("cores", "2")]
            .map(|(name, at)| (name.into(), at.into()))
            .into(),
        prefill: vec![1, 2],
        decode: vec![3],
    };
    let filled = |text: &str| Command::parse(text).unwrap().fill(&places, Path::new("/")).unwrap().join("|");
    assert_eq!(filled("a --port {port} 'b {cores}' \\'c \"\" {d7}"), "a|--port|80|b 2|'c||{d7}");
    assert_eq!(
        filled("{port} [--prefill http://h:{p*}] [x:{d*}] y"),
        "80|--prefill|http://h:1|--prefill|http://h:2|x:3|y"
    );
    for (text, why) in [
        ("a", CommandError::NoPort),
        ("a '{port}", CommandError::Quote),
        ("a {port} [--x {p*}", CommandError::Bracket),
        ("a {port} [--x]", CommandError::NoStar),
    ] {
        assert_eq!(Command::parse(text).unwrap_err(), why, "{text}");
    }
}

#[test]
fn files_of_a_command_are_copied_with_the_same_places() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.conf");
    std::fs::write(&file, "listen {port}; {other}").unwrap();
    let work = tempfile::tempdir().unwrap();
    let places = Places { named: vec![("port".into(), "80".into())], ..Places::default() };
    let text = format!("nginx -c={{file:{}}}", file.display());
    let words = Command::parse(&text).unwrap().fill(&places, work.path()).unwrap();
    let copy = work.path().join("a.conf");
    assert_eq!(words, ["nginx".to_owned(), format!("-c={}", copy.display())]);
    assert_eq!(std::fs::read_to_string(copy).unwrap(), "listen 80; {other}");
}

const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

#[test]
fn a_stream_is_whole_or_its_trouble_is_named() {
    let judged = |stream: &str, step: usize| {
        let mut events = Events::default();
        stream.as_bytes().chunks(step).try_for_each(|piece| events.feed(piece).map(|_| ()))?;
        events.finish(2)
    };
    let done = "data: [DONE]\n\n";
    for step in [1, 7, 1000] {
        assert_eq!(judged(&[": hello\n\n", TOKEN, TOKEN, done].concat(), step), Ok(()));
        assert_eq!(judged(&[TOKEN, done].concat(), step), Err(Trouble::Short));
        assert_eq!(judged(&[TOKEN, TOKEN].concat(), step), Err(Trouble::NoDone));
        assert_eq!(judged(&[TOKEN, done, TOKEN].concat(), step), Err(Trouble::AfterDone));
        assert_eq!(
            judged(&[&TOKEN.replace("\"a\"", "\"\"").repeat(2), done].concat(), step),
            Err(Trouble::Empty)
        );
        assert_eq!(
            judged("data: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n", step),
            Err(Trouble::ErrorEvent)
        );
    }
}

/// The client's view of a server that answers with `bytes` and closes: status and body.
async fn read(bytes: &'static str) -> Result<(u16, String), Trouble> {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let to = listener.local_addr().unwrap();
    let server = async {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut asked = [0; 4];
        tcp.read_exact(&mut asked).await.unwrap();
        tcp.write_all(bytes.as_bytes()).await.unwrap();
    };
    let client = async {
        let mut connection = Connection::open(to).await?;
        let mut answer = connection.ask(b"GET ").await?;
        let body = answer.whole(100).await?;
        Ok((answer.status, String::from_utf8(body).unwrap()))
    };
    tokio::join!(server, client).1
}

#[tokio::test]
async fn an_answer_ends_where_its_framing_says() {
    let ok = |status, body: &str| Ok((status, body.to_owned()));
    assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd").await, ok(200, "abc"));
    assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab").await, Err(Trouble::Cut));
    assert_eq!(read("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await, ok(503, ""));
    assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nabc").await, ok(200, "abc"));
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: u\r\n\r\n";
    assert_eq!(read(chunked).await, ok(200, "abc"));
    assert_eq!(read(chunked.strip_suffix("0\r\nt: u\r\n\r\n").unwrap()).await, Err(Trouble::Cut));
    assert_eq!(
        read("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n").await,
        Err(Trouble::NotHttp)
    );
    assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n").await, Err(Trouble::Cut));
    assert_eq!(read("").await, Err(Trouble::Cut));
}
