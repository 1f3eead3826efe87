//! The demo: what it prints works, and its pool has the beginning of a second turn.

use crate::command::{Process, run};
use crate::common::client::{self, get, post};
use crate::common::time::eventually;

/// The body that a printed line sends.
fn body(line: &str) -> &str {
    line.split("-d '").nth(1).unwrap().trim_end_matches('\'')
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_turn_finds_the_first_in_the_pool() {
    let mut demo = Process::start(&["demo", "--port", "0", "--tokens-per-s", "5000"], &[]);
    let pool = demo.wait_for("a simulated Mooncake master on ");
    let mut words = pool.split(" master on ").nth(1).unwrap().split(' ');
    let rpc = words.next().unwrap();
    let admin = pool.split("http://").nth(1).unwrap().split(')').next().unwrap();
    let told = demo.wait_for("In a browser: http://");
    let first = demo.wait_for("curl ");
    let second = demo.wait_for("curl ");
    let gateway = first.split("http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    assert!(told.contains(&format!("In a browser: http://{gateway}/. ")), "{told}");
    let page = client::send(gateway, &get("/")).await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    for (line, pooled) in [(&first, "pooled_tokens=0"), (&second, "pooled_tokens=32")] {
        let raw = client::send(gateway, &post("/v1/chat/completions", body(line))).await;
        assert!(raw.status == 200 && raw.done(), "{}", raw.text());
        let said = demo.wait_for("INFO request");
        assert!(said.contains(pooled), "{pooled} in {said}");
    }
    let (addresses, admins) = (format!("pool.addresses={rpc}"), format!("pool.admins={admin}"));
    let sets = ["pool.kind=mooncake", &addresses, &admins, "key.preset=mooncake-store-0.30", "key.model=sim"];
    let more = [
        "prompt.tokens=engine",
        "hash.version=0.32.0",
        "hash.algo=sha256",
        "hash.seed=0",
        "hash.block_tokens=16",
    ];
    let line: Vec<&str> = sets.into_iter().chain(more).flat_map(|set| ["--set", set]).collect();
    let (code, out, err) = run(&[&["check"], &line[..]].concat(), &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("4 keys looked at are as mooncake-store-0.30"), "{out}");
    demo.signal("INT");
    assert!(demo.ended().success());
}

/// So that page, metrics and board have something to show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_is_served_by_every_engine() {
    let mut demo = Process::start(&["demo", "--port", "0", "--tokens-per-s", "5000", "--traffic"], &[]);
    let gateway = demo.address();
    demo.wait_for("A load of a few conversations is played");
    let ask = async |path| client::send(gateway, &get(path)).await;
    eventually("every engine has served, and something was found in caches", async || {
        let metrics = ask("/metrics").await.text();
        let served = metrics
            .lines()
            .filter(|line| line.starts_with("pd_proxy_leg_duration_seconds_count") && !line.ends_with(" 0"))
            .count();
        served == 4
            && metrics.lines().any(|line| {
                line.starts_with("pd_proxy_tokens_total{kind=\"cached\"} ") && !line.ends_with(" 0")
            })
    })
    .await;
    let inflight = ask("/status.json").await.json()["requests"]["inflight"].as_u64().unwrap();
    assert!(inflight <= 6, "the load is bounded: {inflight}");
    demo.signal("INT");
    assert!(demo.ended().success());
}
