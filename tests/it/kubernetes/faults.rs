//! API servers that break, forget, refuse and are away.

use pd_proxy::sim::Role;

use super::api::{Api, Step, pod};
use super::{BY_LABELS, CHAT, Gateway, chat, engines};
use crate::common::client::{self, post};
use crate::common::time::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn half_a_list_is_not_taken() {
    let all: [_; 3] = engines(Role::Prefill).await;
    let api = Api::start().await;
    api.put((0..3).map(|n| pod(&format!("p-{n}"), "prefill", all[n].addr(), Step::Ready)));
    let gateway = Gateway::start(&api, &BY_LABELS);
    gateway.comes_to("prefill", &[&all[0], &all[1], &all[2]]).await;

    api.delete("p-0");
    gateway.comes_to("prefill", &[&all[1], &all[2]]).await;
    api.put([pod("p-0", "prefill", all[0].addr(), Step::Ready)]);
    gateway.comes_to("prefill", &[&all[0], &all[1], &all[2]]).await;

    // A list begins anew, and its second page never comes.
    api.pages_expire(true);
    let before = api.asked("continue");
    api.forget();
    eventually("lists broke off", async || api.asked("continue") >= before + 2).await;
    gateway.comes_to("prefill", &[&all[0], &all[1], &all[2]]).await;
    assert!(gateway.counted("failed").await > 0);

    api.pages_expire(false);
    api.delete("p-2");
    gateway.comes_to("prefill", &[&all[0], &all[1]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_watch_that_breaks_goes_on_where_it_was() {
    let [p0, p1] = engines(Role::Prefill).await;
    let api = Api::start().await;
    api.put([pod("p-0", "prefill", p0.addr(), Step::Ready)]);
    let mut gateway = Gateway::start(&api, &BY_LABELS);
    gateway.comes_to("prefill", &[&p0]).await;
    eventually("both watches", async || api.asked("watch") == 2).await;
    api.cut();
    api.put([pod("p-1", "prefill", p1.addr(), Step::Ready)]);
    api.delete("p-0");
    gateway.comes_to("prefill", &[&p1]).await;
    assert_eq!(api.asked("list"), 2, "nothing was listed again");
    assert_eq!(gateway.process.said("the fleet stays as it was"), 0, "and nobody need know");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_forgotten_version_is_a_new_list() {
    let [p0, p1] = engines(Role::Prefill).await;
    let api = Api::start().await;
    api.put([pod("p-0", "prefill", p0.addr(), Step::Ready)]);
    let mut gateway = Gateway::start(&api, &BY_LABELS);
    gateway.comes_to("prefill", &[&p0]).await;
    eventually("both watches", async || api.asked("watch") == 2).await;
    api.cut_while(|state| {
        state.delete("p-0");
        state.put(pod("p-1", "prefill", p1.addr(), Step::Ready));
        state.forget();
    });
    gateway.comes_to("prefill", &[&p1]).await;
    assert!(api.asked("list") > 2);
    assert_eq!(gateway.process.said("the fleet stays as it was"), 0, "it is part of a watch's life");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rights_that_are_missing_are_said_once_and_count_when_they_come() {
    let [p0] = engines(Role::Prefill).await;
    let [d0] = engines(Role::Decode).await;
    for (refusal, verb) in [("forbidden-list.403", "list"), ("forbidden-watch.403", "watch")] {
        let api = Api::start().await;
        api.refuse(Some(refusal));
        let flags = [
            "--decode",
            &d0.addr().to_string(),
            "--set",
            "discovery.kubernetes.prefill_selector=role=prefill",
        ];
        let mut gateway = Gateway::start(&api, &flags);
        let line = gateway.process.hear("the fleet stays as it was");
        for word in
            [&format!("no right to {verb} pods in namespace llm (403)"), "config/kubernetes/rbac.yaml"]
        {
            assert!(line.contains(word), "{word}: {line}");
        }
        eventually("it asks again and again", async || api.asked(verb) >= 3).await;
        assert_eq!(gateway.process.said("no right to"), 1);
        assert_eq!(gateway.process.said("kube"), 1, "the library is silent; our line names the file");
        api.refuse(None);
        api.put([pod("p-0", "prefill", p0.addr(), Step::Ready)]);
        gateway.comes_to("prefill", &[&p0]).await;
        gateway.process.wait_for("the API server answers again");
        eventually("its probes have told", async || gateway.ready().await == 200).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_is_away_changes_nothing() {
    let [p0, p1] = engines(Role::Prefill).await;
    let [d0] = engines(Role::Decode).await;
    let mut api = Api::start().await;
    api.put([pod("p-0", "prefill", p0.addr(), Step::Ready), pod("d-0", "decode", d0.addr(), Step::Ready)]);
    let mut gateway = Gateway::start(&api, &BY_LABELS);
    gateway.comes_to("prefill", &[&p0]).await;
    // A question that is cut off is another fault, and is told as one.
    eventually("both watches", async || api.asked("watch") == 2).await;
    api.away();
    let line = gateway.process.hear("the fleet stays as it was");
    assert!(line.contains("refused"), "{line}");
    gateway.comes_to("prefill", &[&p0]).await;
    assert_eq!(client::send(gateway.at, &post(CHAT, &chat("x").to_string())).await.status, 200);
    api.delete("p-0");
    api.put([pod("p-1", "prefill", p1.addr(), Step::Ready)]);
    api.back().await;
    gateway.comes_to("prefill", &[&p1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_gateway_starts_without_its_server() {
    let [p0] = engines(Role::Prefill).await;
    let mut api = Api::start().await;
    api.put([pod("p-0", "prefill", p0.addr(), Step::Ready)]);
    api.away();
    let gateway = Gateway::start(&api, &BY_LABELS);
    assert_eq!(gateway.ready().await, 503);
    api.back().await;
    gateway.comes_to("prefill", &[&p0]).await;
}
