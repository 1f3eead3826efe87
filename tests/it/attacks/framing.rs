//! The end of one request and the begin of the next: gateway and engines must agree on it.

use std::time::Duration;

use super::{GOOD, PATH, SMUGGLED, assert_serves, converse, reached, stage};

/// Silence after which nothing more is expected on a connection that stays open.
const QUIET: Duration = Duration::from_millis(400);

struct Probe {
    name: &'static str,
    bytes: Vec<u8>,
    /// The answers that are right; then the connection is closed if the last is not 200.
    statuses: &'static [u16],
}

fn probe(name: &'static str, bytes: impl Into<Vec<u8>>, statuses: &'static [u16]) -> Probe {
    Probe { name, bytes: bytes.into(), statuses }
}

/// A head with these lines, and what follows it.
fn raw(lines: &str, rest: &str) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{lines}\r\n\r\n{rest}"
    )
}

/// A request that must not be seen as one.
fn hidden() -> String {
    let body = format!(r#"{{"prompt":"{SMUGGLED}"}}"#);
    raw(&format!("content-length: {}", body.len()), &body)
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

const TE: &str = "transfer-encoding: chunked";

async fn probe_all(probes: Vec<Probe>) {
    let stage = stage(|_| {}).await;
    for Probe { name, bytes, statuses } in probes {
        let said = converse(stage.gateway, &[&bytes], QUIET).await;
        assert_eq!(said.statuses(), statuses, "{name}: {}", said.text());
        if statuses.last() != Some(&200) {
            assert!(said.closed, "{name}: nothing can be trusted to follow it");
        }
        let served = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(reached(&stage, name), served, "{name}");
        assert_serves(&stage, name).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn lengths_that_contradict_or_are_no_numbers() {
    let n = GOOD.len();
    let two = |a: String, b: String| raw(&format!("content-length: {a}\r\ncontent-length: {b}"), GOOD);
    let one = |value: String| raw(&format!("content-length: {value}"), GOOD);
    probe_all(vec![
        probe("two lengths", two(n.to_string(), (n + 1).to_string()), &[400]),
        probe("two lengths, the first short", two("5".into(), n.to_string()), &[400]),
        probe("the same length twice", two(n.to_string(), n.to_string()), &[200]),
        probe("a list", one(format!("{n}, {n}")), &[400]),
        probe("a list that contradicts", one(format!("{n}, 5")), &[400]),
        probe("a plus", one(format!("+{n}")), &[400]),
        probe("a minus", one(format!("-{n}")), &[400]),
        probe("hexadecimal", one(format!("{n:#x}")), &[400]),
        probe("nothing", one(String::new()), &[400]),
        probe("a fraction", one(format!("{n}.0")), &[400]),
        probe("white space within", one("4 7".into()), &[400]),
        probe("more than 64 bits", one("99999999999999999999999".into()), &[400]),
        probe("64 bits", one(u64::MAX.to_string()), &[431]),
    ])
    .await;
}

#[tokio::test]
async fn length_and_chunks_together() {
    let n = GOOD.len();
    let hidden = hidden();
    let good = chunked(GOOD);
    // By its length the body ends before the hidden request, by its chunks behind it, or the other
    // way round.
    let all = n + hidden.len();
    probe_all(vec![
        probe("chunks win", raw(&format!("content-length: 5\r\n{TE}"), &good), &[200]),
        probe("in the other order", raw(&format!("{TE}\r\ncontent-length: 5"), &good), &[200]),
        probe("CL.TE", raw(&format!("content-length: {all}\r\n{TE}"), &format!("{good}{hidden}")), &[200]),
        probe("TE.CL", raw(&format!("{TE}\r\ncontent-length: {all}"), &format!("{good}{hidden}")), &[200]),
        probe(
            "CL.TE without a body",
            raw(&format!("content-length: {all}\r\n{TE}"), &format!("0\r\n\r\n{hidden}")),
            &[400],
        ),
        probe(
            "within a body",
            raw(
                &format!("connection: close\r\ncontent-length: {}", hidden.len()),
                &hidden.replace(SMUGGLED, "innocent"),
            ),
            &[400],
        ),
    ])
    .await;
}

#[tokio::test]
async fn transfer_encodings_that_are_not_quite_chunked() {
    let good = chunked(GOOD);
    let te = |value: &str| raw(&format!("transfer-encoding: {value}"), &good);
    probe_all(vec![
        probe("xchunked", te("xchunked"), &[400]),
        probe("chunked first", te("chunked, identity"), &[400]),
        probe("identity", te("identity"), &[400]),
        probe("gzip", te("gzip"), &[400]),
        probe("with a parameter", te("chunked;x=1"), &[400]),
        probe("in quotes", te("\"chunked\""), &[400]),
        probe("a tab before it", te("\tchunked"), &[200]),
        probe("a vertical tab before it", te("\x0bchunked"), &[400]),
        probe("in capitals", te("CHUNKED"), &[200]),
        probe("a folded line", raw("transfer-encoding:\r\n chunked", &good), &[400]),
        probe("a folded line with a length", raw("x: y\r\n content-length: 3", &good), &[400]),
        probe("a space before the colon", raw("transfer-encoding : chunked", &good), &[400]),
        probe(
            "two, the last one chunked",
            raw("transfer-encoding: identity\r\ntransfer-encoding: chunked", &good),
            &[501],
        ),
        // RFC 9112, section 6.1: a coding that is not understood is 501; the chunks hold no JSON
        // text.
        probe("gzip within chunks", te("gzip, chunked"), &[501]),
        probe(
            "gzip and chunks in two lines",
            raw("transfer-encoding: gzip\r\ntransfer-encoding: chunked", &good),
            &[501],
        ),
        probe("chunked twice", te("chunked, chunked"), &[501]),
        probe(
            "what follows is not read",
            raw("transfer-encoding: gzip, chunked", &format!("{good}{}", hidden())),
            &[501],
        ),
        probe(
            "two, the first one chunked",
            raw("transfer-encoding: chunked\r\ntransfer-encoding: identity", &good),
            &[400],
        ),
        probe("in HTTP/1.0", te("chunked").replace("HTTP/1.1", "HTTP/1.0"), &[400]),
    ])
    .await;
}

#[tokio::test]
async fn chunks_that_lie() {
    let te = |rest: String| raw(TE, &rest);
    let n = GOOD.len();
    probe_all(vec![
        probe("more than 64 bits", te(format!("10000000000000000\r\n{GOOD}")), &[400]),
        probe("a minus", te(format!("-1\r\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("a prefix", te(format!("0x{n:x}\r\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("no size", te(format!("\r\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("a space first", te(format!(" {n:x}\r\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("LF only behind the size", te(format!("{n:x}\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("LF only behind the data", te(format!("{n:x}\r\n{GOOD}\n0\r\n\r\n")), &[400]),
        probe("LF in an extension", te(format!("{n:x};a\nb\r\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("data beyond the size", te(format!("5\r\n{GOOD}\r\n0\r\n\r\n")), &[400]),
        probe("an extension", te(format!("{n:x};name=value\r\n{GOOD}\r\n0\r\n\r\n")), &[200]),
        probe("a megabyte of extension", te(format!("{n:x};{}\r\n{GOOD}\r\n0\r\n\r\n", "x".repeat(1 << 20))), &[400]),
        probe("a megabyte of trailers", te(format!("{n:x}\r\n{GOOD}\r\n0\r\nx: {}\r\n\r\n", "y".repeat(1 << 20))), &[400]),
        probe(
            "trailers that frame",
            te(format!("{n:x}\r\n{GOOD}\r\n0\r\ncontent-length: 5\r\ntransfer-encoding: gzip\r\nhost: {SMUGGLED}\r\n\r\n")),
            &[200],
        ),
    ])
    .await;
}

#[tokio::test]
async fn chunks_that_never_end() {
    let stage = stage(|s| {
        s.config.timeout.body_ms = 300;
        s.config.limit.body_bytes = 10_000;
    })
    .await;
    let n = GOOD.len();
    for (name, rest, statuses) in [
        ("64 bits of size", format!("FFFFFFFFFFFFFFFF\r\n{GOOD}"), [408]),
        ("the last line is missing", format!("{n:x}\r\n{GOOD}\r\n0\r\n"), [408]),
        ("the last chunk is missing", format!("{n:x}\r\n{GOOD}\r\n"), [408]),
        (
            "64 bits of size and more than may be",
            format!("FFFFFFFFFFFFFFFF\r\n{}", "x".repeat(20_000)),
            [413],
        ),
    ] {
        let said = converse(stage.gateway, &[raw(TE, &rest).as_bytes()], 5 * QUIET).await;
        assert_eq!(said.statuses(), statuses, "{name}: {}", said.text());
        assert!(said.closed, "{name}");
        assert_eq!(reached(&stage, name), 0, "{name}");
        assert_serves(&stage, name).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_turn() {
    let one = raw(&format!("content-length: {}", GOOD.len()), GOOD);
    let last = raw(&format!("connection: close\r\ncontent-length: {}", GOOD.len()), GOOD);
    probe_all(vec![
        probe("three at once", format!("{one}{one}{last}"), &[200, 200, 200]),
        probe("what comes after the last is not read", format!("{one}{last}{}", hidden()), &[200, 200]),
        probe("a bad one in between", format!("{one}NOT HTTP\r\n\r\n{}", hidden()), &[200, 400]),
        probe(
            "refused by its length",
            format!("{one}{}{}", raw("content-length: 99999999999", ""), hidden()),
            &[200, 413],
        ),
    ])
    .await;
}
