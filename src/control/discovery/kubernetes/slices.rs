//! The engines that an endpoint slice has. The fields are those of the discovery.k8s.io/v1 API. The
//! module is pure.

use k8s_openapi::api::discovery::v1::{Endpoint as Entry, EndpointSlice};

use super::Kind;
use super::inventory::{ListedEngine, ObjectEngines};
use super::pods::host;
use crate::config::kubernetes::{Port, Wanted};
use crate::endpoint::Endpoint;

impl Kind for EndpointSlice {
    const RESOURCE: &'static str = "endpointslices";
    const GROUP: &'static str = "discovery.k8s.io";

    fn found(&self, wanted: &Wanted) -> ObjectEngines {
        let mut found = ObjectEngines::default();
        let name = self.metadata.name.as_deref().unwrap_or_default();
        if !["IPv4", "IPv6"].contains(&self.address_type.as_str()) {
            found.lacks.push(format!(
                "endpoint slice {name} has addresses of type {}, which are not supported: IPv4 and IPv6 are",
                self.address_type
            ));
            return found;
        }
        let mut numbers = Vec::new();
        for port in &wanted.ports {
            match number(self, port) {
                Ok(number) => numbers.push(number),
                Err(port) => found.lacks.push(format!("endpoint slice {name} has no port named {port}")),
            }
        }
        for entry in self.endpoints.iter().flatten().filter(|entry| serves(entry)) {
            // No meaning is defined for the addresses behind the first.
            let Some(text) = entry.addresses.first() else { continue };
            let Some(host) = host(text) else {
                found.lacks.push(format!("endpoint slice {name}: `{text}` is no address"));
                continue;
            };
            let pod = entry.target_ref.as_ref().and_then(|it| it.uid.clone().or_else(|| it.name.clone()));
            found.places.extend(numbers.iter().map(|port| ListedEngine {
                engine: Endpoint { tls: wanted.tls, ..Endpoint::new(host.clone(), *port) },
                pod: pod.clone(),
            }));
        }
        found
    }
}

/// Nothing said of its readiness means that it is ready, and nothing of its end that it goes on.
fn serves(entry: &Entry) -> bool {
    let conditions = entry.conditions.as_ref();
    let ready = conditions.and_then(|it| it.ready).unwrap_or(true);
    ready && !conditions.and_then(|it| it.terminating).unwrap_or(false)
}

/// A port's number on the pods; its name if the slice has none of that name.
fn number<'a>(slice: &EndpointSlice, port: &'a Port) -> Result<u16, &'a str> {
    let name = match port {
        Port::Number(number) => return Ok(*number),
        Port::Name(name) => name,
    };
    let tcp = |protocol: &Option<String>| protocol.as_deref().is_none_or(|it| it == "TCP");
    let mut named =
        slice.ports.iter().flatten().filter(|it| it.name.as_ref() == Some(name) && tcp(&it.protocol));
    named
        .find_map(|it| it.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0))
        .ok_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::kubernetes::By;

    fn found(slice: Value, ports: &[&str]) -> (Vec<(String, Option<String>)>, Vec<String>) {
        let ports = ports.iter().map(|text| Port::parse(text).unwrap()).collect();
        let wanted = Wanted { by: By::Service("engines".to_owned()), ports, tls: true, key: "" };
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        let found = slice.found(&wanted);
        let places = found.places.into_iter().map(|place| (place.engine.to_string(), place.pod));
        (places.collect(), found.lacks)
    }

    fn slice(kind: &str, endpoints: Value) -> Value {
        json!({
            "metadata": {"name": "engines-x"},
            "addressType": kind,
            "ports": [{"name": "http", "port": 8100, "protocol": "TCP"}, {"name": "any"}],
            "endpoints": endpoints,
        })
    }

    #[test]
    fn endpoints_that_serve_are_engines() {
        let endpoints = json!([
            {"addresses": ["10.0.0.1", "10.9.9.9"], "targetRef": {"kind": "Pod", "name": "p-0", "uid": "u-0"}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": true, "serving": true, "terminating": false}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": false, "terminating": false}},
            // As with publishNotReadyAddresses.
            {"addresses": ["10.0.0.4"], "conditions": {"ready": true, "serving": true, "terminating": true}},
            {"addresses": ["10.0.0.5"], "conditions": {"serving": true}},
        ]);
        let (places, lacks) = found(slice("IPv4", endpoints), &["http", "9000"]);
        let expected = ["1:8100", "1:9000", "2:8100", "2:9000", "5:8100", "5:9000"];
        let engines: Vec<&str> = places.iter().map(|(engine, _)| engine.as_str()).collect();
        assert_eq!(engines, expected.map(|end| format!("https://10.0.0.{end}")));
        assert_eq!((places[0].1.as_deref(), places[2].1.as_deref()), (Some("u-0"), None));
        assert_eq!(lacks, [""; 0]);
    }

    #[test]
    fn unusable_address_is_reported() {
        let one = json!([{"addresses": ["fd00::1"]}]);
        let (places, lacks) = found(slice("IPv6", one.clone()), &["any", "grpc", "8000"]);
        assert_eq!(places, [("https://[fd00::1]:8000".to_owned(), None)]);
        let lack = |port| format!("endpoint slice engines-x has no port named {port}");
        assert_eq!(lacks, [lack("any"), lack("grpc")], "a port without a number means every port");
        let (places, lacks) = found(slice("FQDN", json!([{"addresses": ["engine.example"]}])), &["8000"]);
        assert_eq!((places.len(), lacks.len()), (0, 1), "{lacks:?}");
        assert_eq!(found(slice("IPv4", Value::Null), &["8000"]), (vec![], vec![]));
    }
}
