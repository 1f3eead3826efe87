//! The engines that a pod has. The fields are those of the core/v1 API. The module is pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::Kind;
use super::inventory::{ListedEngine, ObjectEngines};
use crate::config::kubernetes::{Port, Wanted};
use crate::endpoint::Endpoint;

impl Kind for Pod {
    const RESOURCE: &'static str = "pods";
    const GROUP: &'static str = "core";

    fn found(&self, wanted: &Wanted) -> ObjectEngines {
        let mut found = ObjectEngines::default();
        let Some(ip) = self.status.as_ref().and_then(|status| status.pod_ip.as_deref()) else { return found };
        if !serves(self) {
            return found;
        }
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let Some(host) = host(ip) else {
            found.lacks.push(format!("pod {name}: `{ip}` is no address"));
            return found;
        };
        for port in &wanted.ports {
            match number(self, port) {
                Ok(port) => found.places.push(ListedEngine {
                    engine: Endpoint { tls: wanted.tls, ..Endpoint::new(host.clone(), port) },
                    pod: None,
                }),
                Err(port) => found.lacks.push(format!("pod {name} has no container port named {port}")),
            }
        }
        found
    }
}

/// An address as an engine's host; an IPv4 address in IPv6's clothes is the same engine.
pub(super) fn host(ip: &str) -> Option<String> {
    ip.parse::<IpAddr>().ok().map(|ip| ip.to_canonical().to_string())
}

/// It runs, it is ready, and nobody told it to stop.
fn serves(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    pod.metadata.deletion_timestamp.is_none() && status.phase.as_deref() == Some("Running") && ready
}

/// A port's number; its name if the pod has none of that name.
fn number<'a>(pod: &Pod, port: &'a Port) -> Result<u16, &'a str> {
    let name = match port {
        Port::Number(number) => return Ok(*number),
        Port::Name(name) => name,
    };
    let spec = pod.spec.as_ref().ok_or(name.as_str())?;
    // An init container that is always restarted runs beside the others: a sidecar.
    let sidecar = |it: &&Container| it.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|it| it.ports.iter().flatten());
    let tcp = |protocol: &Option<String>| protocol.as_deref().is_none_or(|it| it == "TCP");
    ports
        .filter(|it| it.name.as_ref() == Some(name) && tcp(&it.protocol))
        .find_map(|it| u16::try_from(it.container_port).ok().filter(|port| *port > 0))
        .ok_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::kubernetes::By;

    fn engines(pod: &Value, ports: &[&str]) -> (Vec<String>, Vec<String>) {
        let ports = ports.iter().map(|text| Port::parse(text).unwrap()).collect();
        let wanted = Wanted { by: By::Selector("a=b".to_owned()), ports, tls: false, key: "" };
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let found = pod.found(&wanted);
        (found.places.iter().map(|place| place.engine.to_string()).collect(), found.lacks)
    }

    /// As a kubelet would leave it, with what is looked at.
    fn pod() -> Value {
        json!({
            "metadata": {"name": "p-0"},
            "spec": {
                "initContainers": [
                    {"name": "fetch", "ports": [{"name": "http", "containerPort": 1}]},
                    {"name": "router", "restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 9000}]},
                ],
                "containers": [
                    {"name": "engine", "ports": [
                        {"name": "http", "containerPort": 8, "protocol": "UDP"},
                        {"name": "http", "containerPort": 8100, "protocol": "TCP"},
                        {"name": "rank1", "containerPort": 8101},
                    ]},
                    {"name": "other"},
                ],
            },
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
            },
        })
    }

    fn none() -> (Vec<String>, Vec<String>) {
        (vec![], vec![])
    }

    #[test]
    fn a_pod_has_an_engine_for_each_port() {
        let (found, lacks) = engines(&pod(), &["http", "rank1", "side", "7000"]);
        assert_eq!(found, ["10.0.0.1:8100", "10.0.0.1:8101", "10.0.0.1:9000", "10.0.0.1:7000"]);
        assert_eq!(lacks, [""; 0]);
        let (found, lacks) = engines(&pod(), &["grpc", "7000"]);
        assert_eq!(found, ["10.0.0.1:7000"], "what is there is taken");
        assert_eq!(lacks, ["pod p-0 has no container port named grpc"]);
    }

    #[test]
    fn only_pods_that_serve_have_engines() {
        let change = |change: fn(&mut Value)| {
            let mut pod = pod();
            change(&mut pod);
            engines(&pod, &["8000"])
        };
        assert_eq!(change(|_| {}).0, ["10.0.0.1:8000"]);
        for without in [
            change(|pod| pod["metadata"]["deletionTimestamp"] = "2026-11-22T18:00:00Z".into()),
            change(|pod| pod["status"]["phase"] = "Pending".into()),
            change(|pod| pod["status"]["phase"] = "Succeeded".into()),
            change(|pod| pod["status"]["conditions"][1]["status"] = "False".into()),
            change(|pod| pod["status"]["conditions"][1]["status"] = "Unknown".into()),
            change(|pod| pod["status"]["conditions"][1]["type"] = "ContainersReady".into()),
            change(|pod| pod["status"]["conditions"] = Value::Null),
            change(|pod| pod["status"]["podIP"] = Value::Null),
            change(|pod| pod["status"] = Value::Null),
        ] {
            assert_eq!(without, none());
        }
    }

    #[test]
    fn addresses_of_both_families_are_taken() {
        let mut pod = pod();
        for (ip, engine) in [("fd00::1", "[fd00::1]:8000"), ("::ffff:10.0.0.7", "10.0.0.7:8000")] {
            pod["status"]["podIP"] = ip.into();
            assert_eq!(engines(&pod, &["8000"]).0, [engine]);
        }
        pod["status"]["podIP"] = "nowhere".into();
        assert_eq!(engines(&pod, &["8000"]).1, ["pod p-0: `nowhere` is no address"]);
    }
}
