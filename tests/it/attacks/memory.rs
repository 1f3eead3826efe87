//! The process as a whole: what it takes of memory while it is sent what is large, and what engines
//! get of bodies that are crafted.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{GOOD, PATH, converse, stage};
use crate::command::Process;
use crate::common::client::{self, post};
use crate::common::stage::fast;
use crate::common::time::eventually;

const QUIET: Duration = Duration::from_secs(20);
/// Generous: each attack sends or announces much more.
const MORE_BYTES: u64 = 48 << 20;

/// The most that the process ever had in memory.
fn peak_bytes(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

async fn engine(role: Role) -> Engine {
    Engine::start(EngineSpec { role, ..fast() }, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
}

#[tokio::test]
async fn oversized_body_is_not_kept() {
    let (prefill, decode) = (engine(Role::Prefill).await, engine(Role::Decode).await);
    let more = ["--set", "limit.body_bytes=1000000"];
    let (process, gateway) = Process::gateway(&prefill, &decode, &more, &[]);
    assert_eq!(client::send(gateway, &post(PATH, GOOD)).await.status, 200);
    let before = peak_bytes(&process);

    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = [b"100000\r\n", " ".repeat(1 << 20).as_bytes(), b"\r\n"].concat();
    let pieces: Vec<&[u8]> =
        std::iter::once(head.as_bytes()).chain(std::iter::repeat_n(&chunk[..], 100)).collect();
    for _ in 0..4 {
        let said = converse(gateway, &pieces, QUIET).await;
        assert!(said.closed && matches!(said.statuses()[..], [] | [413]), "{}", said.text());
    }
    // Announced in full and never sent.
    let mut waiting = Vec::new();
    for _ in 0..300 {
        let mut socket = TcpStream::connect(gateway).await.unwrap();
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{{");
        socket.write_all(head.as_bytes()).await.unwrap();
        waiting.push(socket);
    }
    // Each announces 16 exabytes in one chunk.
    for _ in 0..100 {
        let mut socket = TcpStream::connect(gateway).await.unwrap();
        let more = format!("{head}FFFFFFFFFFFFFFF\r\n{{");
        socket.write_all(more.as_bytes()).await.unwrap();
        waiting.push(socket);
    }
    assert_eq!(client::send(gateway, &post(PATH, GOOD)).await.status, 200);
    let more = peak_bytes(&process) - before;
    assert!(more < MORE_BYTES, "{} MB more", more >> 20);
}

#[tokio::test]
async fn bodies_that_grow_when_they_are_read() {
    let (prefill, decode) = (engine(Role::Prefill).await, engine(Role::Decode).await);
    let (process, gateway) = Process::gateway(&prefill, &decode, &[], &[]);
    assert_eq!(client::send(gateway, &post(PATH, GOOD)).await.status, 200);
    let before = peak_bytes(&process);
    let n = 10 << 20;
    for (name, body, statuses) in [
        ("a string of escapes", format!(r#"{{"prompt":"{}"}}"#, r"\u0041".repeat(n / 6)), &[200, 400][..]),
        ("a name of escapes", format!(r#"{{"prompt":"x","{}":1}}"#, r"\u0041".repeat(n / 6)), &[200, 400]),
        ("a million levels", format!(r#"{{"prompt":{}"#, "[".repeat(1 << 20)), &[400]),
        ("a million levels of objects", r#"{"a":"#.repeat(1 << 20), &[400]),
        ("a million members", format!(r#"{{{}"prompt":"x"}}"#, r#""a":1,"#.repeat(1 << 20)), &[400]),
        ("a million elements", format!(r#"{{"prompt":"x","x":[{}1]}}"#, "1,".repeat(1 << 20)), &[200, 400]),
        (
            "a number of a megabyte",
            format!(r#"{{"prompt":"x","max_tokens":{}}}"#, "9".repeat(1 << 20)),
            &[400],
        ),
    ] {
        let raw = client::send(gateway, &post(PATH, &body)).await;
        assert!(statuses.contains(&raw.status), "{name}: {} {:.300}", raw.status, raw.text());
    }
    let more = peak_bytes(&process) - before;
    assert!(more < 4 * MORE_BYTES, "{} MB more", more >> 20);
}

/// Memory of the process at present, in bytes.
fn resident_bytes(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn memory_goes_back_after_a_burst_of_large_bodies() {
    const BODIES: usize = 12;
    let (prefill, decode) = (engine(Role::Prefill).await, engine(Role::Decode).await);
    let (process, gateway) = Process::gateway(&prefill, &decode, &[], &[]);
    assert_eq!(client::send(gateway, &post(PATH, GOOD)).await.status, 200);
    let before = resident_bytes(&process);
    let body = format!(r#"{{"model":"sim","prompt":"x","max_tokens":1,"user":"{}"}}"#, "u".repeat(8 << 20));
    let request = post(PATH, &body);
    let sent = join_all((0..BODIES).map(|_| client::send(gateway, &request))).await;
    assert!(
        sent.iter().all(|raw| raw.status == 200),
        "{:?}",
        sent.iter().map(|raw| raw.status).collect::<Vec<_>>()
    );
    let more = || resident_bytes(&process).saturating_sub(before);
    eventually("an idle process keeps nothing of them", async || {
        let more = more();
        if more < MORE_BYTES { Ok(()) } else { Err(more >> 20) }
    })
    .await;
}

#[tokio::test]
async fn members_that_are_there_twice_say_nothing_to_engines() {
    let stage = stage(|_| {}).await;
    let theirs = r#"{"do_remote_prefill":true,"remote_host":"10.9.8.7","remote_port":1}"#;
    for body in [
        format!(
            r#"{{"prompt":"x","max_tokens":3,"kv_transfer_params":{theirs},"kv_transfer_params":{theirs}}}"#
        ),
        format!(
            r#"{{"kv_transfer_params":null,"prompt":"x","max_tokens":3,"kv_transfer_para\u006ds":{theirs}}}"#
        ),
        format!(r#"{{"prompt":"x","max_tokens":3,"max_t\u006fkens":3,"\u006bv_transfer_params":{theirs}}}"#),
        r#"{"prompt":"x","stream":false,"max_tokens":3,"stream":true,"max_tokens":3}"#.to_owned(),
    ] {
        let raw = stage.post(PATH, &body).await;
        assert!(matches!(raw.status, 200 | 400), "{body}: {}", raw.text());
        for seen in stage.seen(&stage.prefillers) {
            let text = String::from_utf8_lossy(&seen.body).into_owned();
            assert!(!text.contains("10.9.8.7"), "{body} became {text}");
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                (&value["max_tokens"], value["stream"].as_bool().unwrap_or(false)),
                (&1.into(), false),
                "{text}"
            );
        }
        for seen in stage.seen(&stage.decoders) {
            let text = String::from_utf8_lossy(&seen.body).into_owned();
            assert!(!text.contains("10.9.8.7"), "{body} became {text}");
        }
        stage.forget();
    }
    stage.end().await;
}
