//! `pd-proxy check` before API servers with and without engines and rights.

use pd_proxy::sim::Role;

use super::api::{Api, Step, pod};
use super::engines;
use crate::inspect::{check_with, expect, set};

fn sets() -> Vec<String> {
    vec![
        set("discovery.kubernetes.prefill_selector", "role=prefill"),
        set("discovery.kubernetes.decode_selector", "role=decode"),
        set("discovery.kubernetes.prefill_ports", "http"),
        set("discovery.kubernetes.decode_ports", "http"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn check_lists_discovered_pods() {
    let [p0, p1, p2] = engines(Role::Prefill).await;
    let [d0] = engines(Role::Decode).await;
    let api = Api::start().await;
    let kubeconfig = api.kubeconfig();
    let check = || check_with(&sets(), &[("KUBECONFIG", &kubeconfig)]);
    let words = [
        "BAD  discovery.kubernetes.prefill_selector: no pods match in namespace llm",
        "BAD  there is no decoder",
    ];
    expect(&check(), 3, &words);

    api.put([
        pod("p-0", "prefill", p0.addr(), Step::Ready),
        pod("p-1", "prefill", p1.addr(), Step::Ready),
        pod("p-2", "prefill", p2.addr(), Step::NotReady),
        pod("d-0", "decode", d0.addr(), Step::Terminating),
    ]);
    let prefill =
        "ok   discovery.kubernetes.prefill_selector: 2 prefillers ready, of 3 pods in namespace llm";
    let decode = "BAD  discovery.kubernetes.decode_selector: no decoder is ready, of 1 pods in namespace llm";
    expect(&check(), 3, &[prefill, decode]);
    assert!(api.asked("watch") > 0, "the right to watch was tried");

    for (refusal, words) in [
        ("forbidden-list.403", "no right to list pods in namespace llm (403)"),
        ("forbidden-watch.403", "no right to watch pods in namespace llm (403)"),
        ("unauthorized.401", "does not know this token (401)"),
    ] {
        api.refuse(Some(refusal));
        expect(&check(), 3, &[words]);
    }
    let nowhere = check_with(&sets(), &[("KUBECONFIG", "/nonexistent/kubeconfig")]);
    expect(
        &nowhere,
        3,
        &["no API server is known: run in a pod with a service account's token, or set KUBECONFIG"],
    );
}
