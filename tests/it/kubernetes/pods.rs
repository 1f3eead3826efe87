//! Pods come, are ready, are told to stop, and go.

use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::json;

use super::api::{Api, Step, pod};
use super::{BY_LABELS, CHAT, Gateway, chat, engines};
use crate::common::client::{self, post};
use crate::common::stage::slow;
use crate::common::time::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pod_serves_from_ready_until_it_is_told_to_stop() {
    let [p0, p1] = engines(Role::Prefill).await;
    let spec = EngineSpec { role: Role::Decode, tpot_ms: 20.0, ..slow() };
    let d0 = Engine::start(spec, ([127, 0, 0, 1], 0).into()).await.unwrap();
    let api = Api::start().await;
    api.put([pod("d-0", "decode", d0.addr(), Step::Ready), pod("p-0", "prefill", p0.addr(), Step::Pending)]);
    let gateway = Gateway::start(&api, &BY_LABELS);
    gateway.comes_to("decode", &[&d0]).await;
    assert_eq!(gateway.ready().await, 503);

    for (step, there) in
        [(Step::NotReady, false), (Step::Ready, true), (Step::NotReady, false), (Step::Ready, true)]
    {
        // What comes with another pod's change has been seen when that is.
        api.put([pod("p-0", "prefill", p0.addr(), step), pod("mark", "prefill", p1.addr(), Step::Ready)]);
        let (marked, unmarked) = if there { (vec![&p0, &p1], vec![&p0]) } else { (vec![&p1], vec![]) };
        gateway.comes_to("prefill", &marked).await;
        api.delete("mark");
        gateway.comes_to("prefill", &unmarked).await;
        let expected = if there { 200 } else { 503 };
        eventually("its probes have told", async || gateway.ready().await == expected).await;
    }
    assert_eq!(client::send(gateway.at, &post(CHAT, &chat("x").to_string())).await.status, 200);

    // A long answer goes on while its engines drain.
    let mut long = chat("a long one");
    (long["max_tokens"], long["stream"]) = (100.into(), true.into());
    let request = post(CHAT, &long.to_string());
    let answer = async { client::send(gateway.at, &request).await };
    let told = async {
        eventually("it is being answered", async || d0.ledger().running > 0).await;
        api.put([
            pod("d-0", "decode", d0.addr(), Step::Terminating),
            pod("p-0", "prefill", p0.addr(), Step::Terminating),
        ]);
        gateway.comes_to("decode", &[]).await;
        gateway.comes_to("prefill", &[]).await;
        assert_eq!(gateway.ready().await, 503);
        assert!(d0.ledger().running > 0, "it still answers");
        api.delete("d-0");
        api.delete("p-0");
    };
    let (answer, ()) = tokio::join!(answer, told);
    assert!(answer.status == 200 && answer.done(), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn pods_that_come_together_are_one_change() {
    let all: [Engine; 12] = engines(Role::Both).await;
    let api = Api::start().await;
    let mut gateway = Gateway::start(&api, &BY_LABELS);
    let before = gateway.counted("changed").await;
    api.put(all.iter().enumerate().map(|(n, it)| pod(&format!("p-{n}"), "prefill", it.addr(), Step::Ready)));
    gateway.comes_to("prefill", &all.iter().collect::<Vec<_>>()).await;
    // They are sent in one piece, and that is read within the time in which changes are gathered.
    assert!(gateway.counted("changed").await - before <= 2);
    assert!(gateway.process.said("the fleet changed") <= 2);
    assert_eq!(api.asked("list"), 2, "one list for each role, and no more questions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_port_that_a_pod_lacks_is_named() {
    let [p0, p1] = engines(Role::Prefill).await;
    let api = Api::start().await;
    let mut without = pod("p-1", "prefill", p1.addr(), Step::Ready);
    without["spec"]["containers"][0]["ports"] = json!([]);
    api.put([pod("p-0", "prefill", p0.addr(), Step::Ready), without]);
    let mut gateway = Gateway::start(&api, &BY_LABELS);
    gateway.comes_to("prefill", &[&p0]).await;
    gateway.process.hear("pod p-1 has no container port named http");
}
