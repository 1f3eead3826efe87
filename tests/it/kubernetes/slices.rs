//! Endpoint slices of Services. The documents follow the API's reference (discovery.k8s.io/v1):
//! nothing here was recorded.

use std::net::SocketAddr;

use pd_proxy::sim::Role;
use serde_json::{Value, json};

use super::api::Api;
use super::{Gateway, engines};
use crate::common::time::eventually;

/// A slice of a Service with these endpoints at one port.
fn slice(name: &str, service: &str, port: u16, endpoints: &Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "llm",
            "labels": {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        "endpoints": endpoints,
    })
}

fn endpoint(engine: SocketAddr, ready: bool, terminating: bool) -> Value {
    json!({
        "addresses": [engine.ip().to_string()],
        "conditions": {"ready": ready, "serving": ready || terminating, "terminating": terminating},
        "targetRef": {"kind": "Pod", "namespace": "llm", "name": format!("p-{}", engine.port()), "uid": engine.to_string()},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_endpoints_of_a_service_are_engines() {
    let [p0, p1] = engines(Role::Prefill).await;
    let api = Api::start().await;
    let of = |engine: SocketAddr, ready, terminating| json!([endpoint(engine, ready, terminating)]);
    api.put([
        slice("prefill-a", "prefill", p0.addr().port(), &of(p0.addr(), true, false)),
        slice("other-a", "other", p1.addr().port(), &of(p1.addr(), true, false)),
    ]);
    let flags = ["--decode", &p1.addr().to_string(), "--set", "discovery.kubernetes.prefill_service=prefill"];
    let mut gateway = Gateway::start(&api, &flags);
    gateway.comes_to("prefill", &[&p0]).await;
    assert!(api.asked("list /apis/discovery.k8s.io/v1/namespaces/llm/endpointslices") == 1);

    // Listed in two slices while it moves from one to the other, it is one engine.
    api.put([slice("prefill-b", "prefill", p0.addr().port(), &of(p0.addr(), true, false))]);
    api.put([slice("prefill-c", "prefill", p1.addr().port(), &of(p1.addr(), true, false))]);
    gateway.comes_to("prefill", &[&p0, &p1]).await;
    api.delete("prefill-a");
    api.put([slice("prefill-c", "prefill", p1.addr().port(), &of(p1.addr(), false, true))]);
    gateway.comes_to("prefill", &[&p0]).await;

    let mut named = slice("prefill-d", "prefill", 1, &json!([{"addresses": ["engine.example"]}]));
    named["addressType"] = "FQDN".into();
    api.put([named]);
    gateway.process.hear("endpoint slice prefill-d has addresses of type FQDN");
    gateway.comes_to("prefill", &[&p0]).await;
    api.delete("prefill-b");
    gateway.comes_to("prefill", &[]).await;
    assert_eq!(gateway.ready().await, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_api_server_without_slices_is_told_from_one_without_rights() {
    let [p0] = engines(Role::Prefill).await;
    let api = Api::start().await;
    api.refuse(Some("no-such-resource.404"));
    let flags = ["--decode", &p0.addr().to_string(), "--set", "discovery.kubernetes.prefill_service=prefill"];
    let mut gateway = Gateway::start(&api, &flags);
    let line = gateway.process.hear("the fleet stays as it was");
    assert!(line.contains("Kubernetes 1.21"), "{line}");
    eventually("it asks again", async || api.asked("list") >= 2).await;
}
