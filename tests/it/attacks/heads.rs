//! Request lines and header lines: too many, too long, with bytes that would be lines of their own,
//! and naming hosts.

use std::time::Duration;

use super::{GOOD, PATH, PATIENCE, SMUGGLED, assert_serves, converse, reached, stage};

const QUIET: Duration = Duration::from_millis(400);

fn head(lines: &[u8]) -> Vec<u8> {
    let start = format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {}\r\n", GOOD.len());
    [start.as_bytes(), lines, b"\r\n\r\n", GOOD.as_bytes()].concat()
}

fn target(line: &str, host: &str) -> Vec<u8> {
    format!("{line}\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{GOOD}", GOOD.len())
        .into_bytes()
}

#[tokio::test]
async fn heads_too_large() {
    let stage = stage(|_| {}).await;
    let lines: String = (0..10_000).map(|n| format!("x-{n}: y\r\n")).collect();
    let line = format!("x-long: {}", "y".repeat(1 << 20));
    let name = format!("{}: y", "x".repeat(1 << 20));
    let url = format!("POST {PATH}?{} HTTP/1.1\r\nhost: gateway\r\n\r\n", "z".repeat(1 << 20));
    let method = format!("{} / HTTP/1.1\r\nhost: gateway\r\n\r\n", "M".repeat(1 << 20));
    for (name, bytes, statuses) in [
        ("10 000 lines", head(lines.trim_end().as_bytes()), &[431][..]),
        ("a line of a megabyte", head(line.as_bytes()), &[431]),
        ("a name of a megabyte", head(name.as_bytes()), &[431]),
        ("a URL of a megabyte", url.into_bytes(), &[414, 431]),
        ("a method of a megabyte", method.into_bytes(), &[400, 431]),
    ] {
        let said = converse(stage.gateway, &[&bytes], PATIENCE).await;
        // A reset may overtake the answer: what is still on its way is never read.
        assert!(said.statuses().iter().all(|status| statuses.contains(status)), "{name}: {}", said.text());
        assert!(said.statuses().len() <= 1 && said.closed, "{name}");
        assert_eq!(reached(&stage, name), 0, "{name}");
        assert_serves(&stage, name).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn bytes_that_do_not_belong_in_a_head() {
    let stage = stage(|_| {}).await;
    for (name, line) in [
        ("NUL in a value", &b"x-a: b\0c"[..]),
        ("NUL in the id", b"x-request-id: a\0b"),
        ("CR in a value", b"x-a: b\rsmuggled: 1"),
        ("CR in the id", b"x-request-id: a\rsmuggled: 1"),
        ("a space in a name", b"x a: b"),
        ("a space before the colon", b"x-a : b"),
        ("no name", b": b"),
        ("no colon", b"smuggled"),
        ("a folded line", b"x-a: b\r\n smuggled"),
        ("a name that is no ASCII", b"x-\xc3\xa4: b"),
        ("DEL in a value", b"x-a: b\x7fc"),
    ] {
        let said = converse(stage.gateway, &[&head(line)], QUIET).await;
        assert_eq!((said.statuses(), said.closed), (vec![400], true), "{name}: {}", said.text());
        assert_eq!(reached(&stage, name), 0, "{name}");
        assert_serves(&stage, name).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn ids_that_would_write_into_logs_and_heads_are_replaced() {
    let stage = stage(|_| {}).await;
    let long = "a".repeat(5_000);
    for id in ["a b", "\"quoted\"", "{\"json\":1}", "a%0d%0asmuggled:1", "\u{1b}[31m", "ä", long.as_str()] {
        let said = converse(stage.gateway, &[&head(format!("x-request-id: {id}").as_bytes())], QUIET).await;
        // An escape is refused with the whole head, the others are served under an id of our own.
        assert!(matches!(said.statuses()[..], [200 | 400]), "{id}: {}", said.text());
        assert!(!said.text().contains(id), "{id}: {}", said.text());
        for seen in stage.engines().flat_map(pd_proxy::sim::Engine::seen) {
            assert!(!format!("{seen:?}").contains(id), "{id}: {seen:?}");
        }
        stage.forget();
    }
    stage.end().await;
}

#[tokio::test]
async fn nothing_in_a_request_names_the_host_that_is_asked() {
    let stage = stage(|_| {}).await;
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let address = elsewhere.local_addr().unwrap();
    for (name, line, host, statuses) in [
        (
            "an absolute target",
            format!("POST http://{address}{PATH} HTTP/1.1"),
            "gateway".to_owned(),
            &[200][..],
        ),
        (
            "with a user",
            format!("POST http://user:{SMUGGLED}@{address}{PATH} HTTP/1.1"),
            "gateway".into(),
            &[400],
        ),
        ("another scheme", format!("POST ftp://{address}{PATH} HTTP/1.1"), "gateway".into(), &[200]),
        ("another host", format!("POST {PATH} HTTP/1.1"), address.to_string(), &[200]),
        ("a host that is none", format!("POST {PATH} HTTP/1.1"), format!("{SMUGGLED}/@?#"), &[400]),
        ("CONNECT", format!("CONNECT {address} HTTP/1.1"), address.to_string(), &[404, 400]),
        ("a target without a path", format!("POST {address} HTTP/1.1"), "gateway".into(), &[404, 400]),
        ("an asterisk", "OPTIONS * HTTP/1.1".into(), "gateway".into(), &[404, 400]),
        ("two slashes", format!("POST //{address}{PATH} HTTP/1.1"), "gateway".into(), &[404, 400]),
        ("dots", format!("POST /v1/models/../..{PATH} HTTP/1.1"), "gateway".into(), &[404, 400, 405]),
        ("no slash", format!("POST @{address}{PATH} HTTP/1.1"), "gateway".into(), &[404, 400]),
    ] {
        let said = converse(stage.gateway, &[&target(&line, &host)], QUIET).await;
        let answers = said.statuses();
        assert!(answers.len() == 1 && statuses.contains(&answers[0]), "{name}: {}", said.text());
        assert_eq!(reached(&stage, name), usize::from(answers == [200]), "{name}");
        assert!(elsewhere.accept().is_err(), "{name}: the gateway went where the client sent it");
        stage.forget();
    }
    let mut pairs = Vec::new();
    for name in [
        "forwarded",
        "x-forwarded-host",
        "x-original-url",
        "x-rewrite-url",
        "x-forwarded-for",
        "x-http-method-override",
    ] {
        pairs.push(format!("{name}: http://{address}/x"));
    }
    let said = converse(stage.gateway, &[&head(pairs.join("\r\n").as_bytes())], QUIET).await;
    assert_eq!(said.statuses(), [200], "{}", said.text());
    assert_eq!(reached(&stage, "headers"), 1);
    assert!(elsewhere.accept().is_err());
    stage.end().await;
}
