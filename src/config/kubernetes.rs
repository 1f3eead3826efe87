//! `[discovery.kubernetes]`: engines found through the API server of Kubernetes.

use super::Problem;
use super::error::Invalid;
use super::selector::{self, is_label};
use super::table::section;
use super::values::Scheme;
use crate::endpoint::engine_port;

/// Longest name of a namespace, a Service or one of its ports, bytes (RFC 1123).
const MAX_NAME_BYTES: usize = 63;
/// Most ports of a role: as many as there may be ranks in one pod.
const MAX_PORTS: usize = 64;

section! {
    /// `[discovery.kubernetes]`: which pods are engines. A role of which neither selector nor
    /// service is set is not looked for.
    Kubernetes = "discovery.kubernetes" {
        /// Place where they are; empty = where the gateway is, or as the kubeconfig says.
        namespace: String = String::new(), AfterRestart;
        /// Labels of the prefillers' pods, as for `kubectl get pods -l`.
        prefill_selector: String = String::new(), AfterRestart;
        /// The same of the decoders' pods.
        decode_selector: String = String::new(), AfterRestart;
        /// The Service in front of the prefillers, in place of their labels.
        prefill_service: String = String::new(), AfterRestart;
        /// The same for decoders.
        decode_service: String = String::new(), AfterRestart;
        /// Ports of a prefiller's pod, each with an engine behind it: numbers, or names of ports.
        prefill_ports: Vec<String> = vec!["8000".to_owned()], AfterRestart;
        /// The same of a decoder's pod.
        decode_ports: Vec<String> = vec!["8000".to_owned()], AfterRestart;
        /// Scheme of engines' addresses.
        scheme: Scheme = Scheme::Http, AfterRestart;
    }
}

/// The pods of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Kind of object by which they are found.
    pub by: By,
    /// Place where engines listen in each of them.
    pub ports: Vec<Port>,
    /// Engines speak TLS.
    pub tls: bool,
    /// The key that says how they are found.
    pub key: &'static str,
}

/// Kinds of objects by which pods are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// By their labels.
    Selector(String),
    /// By the Service in front of them.
    Service(String),
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// Number of the port.
    Number(u16),
    /// Its name: in a container, or in the Service.
    Name(String),
}

/// A key with its value.
struct Entry<T> {
    key: &'static str,
    value: T,
}

/// One role's keys.
struct RoleSource<'a> {
    selector: Entry<&'a str>,
    service: Entry<&'a str>,
    ports: Entry<&'a [String]>,
}

impl Port {
    /// Reads a number from 1 to 65535, or a name: lower-case letters, digits and `-`, with a letter
    /// among them.
    pub fn parse(text: &str) -> Option<Port> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return engine_port(text).ok().map(Port::Number);
        }
        let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let named = text.len() <= MAX_NAME_BYTES && text.bytes().all(lower);
        let good = named && is_label(text) && text.bytes().any(|byte| byte.is_ascii_lowercase());
        good.then(|| Port::Name(text.to_owned()))
    }
}

impl Kubernetes {
    /// The prefillers' pods; `None` = they are not looked for.
    pub fn prefill(&self) -> Option<Wanted> {
        self.wanted(&self.role_sources()[0])
    }

    /// The decoders' pods; `None` = they are not looked for.
    pub fn decode(&self) -> Option<Wanted> {
        self.wanted(&self.role_sources()[1])
    }

    fn role_sources(&self) -> [RoleSource<'_>; 2] {
        fn text<'a>(key: &'static str, value: &'a str) -> Entry<&'a str> {
            Entry { key, value: value.trim() }
        }
        [
            RoleSource {
                selector: text("discovery.kubernetes.prefill_selector", &self.prefill_selector),
                service: text("discovery.kubernetes.prefill_service", &self.prefill_service),
                ports: Entry { key: "discovery.kubernetes.prefill_ports", value: &self.prefill_ports },
            },
            RoleSource {
                selector: text("discovery.kubernetes.decode_selector", &self.decode_selector),
                service: text("discovery.kubernetes.decode_service", &self.decode_service),
                ports: Entry { key: "discovery.kubernetes.decode_ports", value: &self.decode_ports },
            },
        ]
    }

    fn wanted(&self, source: &RoleSource<'_>) -> Option<Wanted> {
        let RoleSource { selector, service, ports } = source;
        let (key, by) = match (selector.value, service.value) {
            ("", "") => return None,
            (labels, "") => (selector.key, By::Selector(labels.to_owned())),
            (_, name) => (service.key, By::Service(name.to_owned())),
        };
        let ports = ports.value.iter().filter_map(|text| Port::parse(text)).collect();
        Some(Wanted { by, ports, tls: self.scheme == Scheme::Https, key })
    }

    /// Checks the section's values.
    pub(super) fn validate(&self, invalid: &mut Vec<Invalid>) {
        let wrong = |key: &'static str, text: &str, expected: &str| {
            let (name, value, expected) = (String::from(key), format!("\"{text}\""), expected.to_owned());
            (key, Problem::WrongType { key: name, value, expected })
        };
        let named = |text: &str| is_label(text) && text.len() <= MAX_NAME_BYTES && !text.contains(['.', '_']);
        let namespace = self.namespace.trim();
        if !namespace.is_empty() && !named(namespace) {
            invalid.push(wrong("discovery.kubernetes.namespace", namespace, "the name of a namespace"));
        }
        for RoleSource { selector, service, ports } in self.role_sources() {
            if let Some(why) = selector::wrong(selector.value).filter(|_| !selector.value.is_empty()) {
                let expected = format!("a label selector, as in app=engine,role in (a,b): {why}");
                invalid.push(wrong(selector.key, selector.value, &expected));
            }
            if !service.value.is_empty() && !named(service.value) {
                invalid.push(wrong(service.key, service.value, "the name of a Service in that namespace"));
            }
            let bad = ports.value.iter().find(|text| Port::parse(text).is_none());
            if let Some(text) = bad {
                let expected = "a port from 1 to 65535, or the name of a port, as in \"8000\" or \"http\"";
                invalid.push(wrong(ports.key, text, expected));
            }
            if ports.value.is_empty() || ports.value.len() > MAX_PORTS {
                let problem = Problem::Ports { key: ports.key, count: ports.value.len(), max: MAX_PORTS };
                invalid.push((ports.key, problem));
            }
        }
        for RoleSource { selector, service, .. } in self.role_sources() {
            if !selector.value.is_empty() && !service.value.is_empty() {
                invalid.push((selector.key, Problem::OneOf { one: selector.key, other: service.key }));
            }
        }
        if cfg!(not(feature = "kubernetes"))
            && let Some(wanted) = self.prefill().or_else(|| self.decode())
        {
            invalid.push((wanted.key, Problem::NoKubernetes { key: wanted.key }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn messages(change: impl FnOnce(&mut Kubernetes)) -> Vec<String> {
        let mut config = Config::default();
        change(&mut config.discovery.kubernetes);
        config.validate().into_iter().map(|(_, problem)| problem.to_string()).collect()
    }

    #[test]
    fn a_role_is_found_by_labels_or_by_a_service() {
        let wanted = |change: fn(&mut Kubernetes)| {
            let mut kubernetes = Kubernetes::default();
            change(&mut kubernetes);
            (kubernetes.prefill().map(|it| (it.by, it.key)), kubernetes.decode().map(|it| (it.by, it.tls)))
        };
        assert_eq!(wanted(|_| {}), (None, None));
        let (prefill, decode) = wanted(|it| {
            it.prefill_selector = " role=prefill ".to_owned();
            it.decode_service = "decoders".to_owned();
            it.scheme = Scheme::Https;
        });
        let by = By::Selector("role=prefill".to_owned());
        assert_eq!(prefill, Some((by, "discovery.kubernetes.prefill_selector")));
        assert_eq!(decode, Some((By::Service("decoders".to_owned()), true)));
    }

    #[test]
    fn discovered_role_needs_no_list() {
        let mut config = Config::default();
        config.fleet.prefill = vec![];
        assert_eq!(config.validate().len(), 1);
        config.discovery.kubernetes.prefill_selector = "a=b".to_owned();
        assert_eq!(config.discovery.looks_for(), [true, false]);
        assert_eq!(config.validate().len(), usize::from(cfg!(not(feature = "kubernetes"))));
    }

    #[test]
    fn ports_are_numbers_or_names() {
        assert_eq!(Port::parse(" 8000 "), Some(Port::Number(8000)));
        assert_eq!(Port::parse("http"), Some(Port::Name("http".to_owned())));
        for bad in ["", "0", "65536", "-1", "Http", "a_b", "-a", "a-", "a.b", &"a".repeat(64)] {
            assert_eq!(Port::parse(bad), None, "{bad}");
        }
    }

    #[cfg(feature = "kubernetes")]
    #[test]
    fn errors_name_the_fault_and_its_fix() {
        let found = messages(|it| {
            it.namespace = "No.Such".to_owned();
            it.prefill_selector = "role in prefill".to_owned();
            it.decode_selector = "role=decode".to_owned();
            it.decode_service = "decoders".to_owned();
            it.prefill_ports = vec!["99999".to_owned()];
            it.decode_ports = vec![];
        });
        assert_eq!(
            found,
            [
                "discovery.kubernetes.namespace = \"No.Such\": expected the name of a namespace",
                "discovery.kubernetes.prefill_selector = \"role in prefill\": expected a label selector, as in app=engine,role in (a,b): \
                 `in` and `notin` are followed by values in parentheses",
                "discovery.kubernetes.prefill_ports = \"99999\": expected a port from 1 to 65535, or the name of a port, as in \"8000\" or \
                 \"http\"",
                "discovery.kubernetes.decode_ports lists 0 ports: expected 1 to 64, as in [\"8000\"]",
                "discovery.kubernetes.decode_selector and discovery.kubernetes.decode_service are both set: pods are found by one of \
                 them, leave out the other",
            ]
        );
    }

    #[cfg(not(feature = "kubernetes"))]
    #[test]
    fn a_build_without_it_says_so() {
        let found = messages(|it| it.decode_selector = "role=decode".to_owned());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("built without the feature `kubernetes`"), "{found:?}");
    }
}
