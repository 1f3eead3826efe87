//! Flags → entries of the configuration. Nothing is converted here but what the spelling demands:
//! seconds, and hosts and ports that are given apart.

use super::ServeArgs;
use crate::config::load::{CollectedEntries, Entry, Given, Origin};
use crate::config::{ConfigError, Endpoint, Problem, duration, secrets};
use crate::endpoint::{HostError, engine_host, engine_port};

/// The engines of one role, as the flags give them.
struct Role<'a> {
    name: &'static str,
    key: &'static str,
    /// Port that the reference proxies assume when none is given.
    default_port: u16,
    hosts: &'a [String],
    ports: &'a [String],
    direct: (&'static str, &'a [String]),
}

const PREFILL: &str = "--prefill";

/// The host that is meant when only ports are given.
const DEFAULT_HOST: &str = "localhost";

impl ServeArgs {
    /// Adds what the flags set; `--set` comes last and so wins over named flags. Where
    /// vllm-ascend's proxy takes 0, for attempts and for the pause between probes, it means as
    /// little as there can be.
    pub(crate) fn overlay(&self, found: &mut CollectedEntries) {
        let texts = [
            ("--host", "server.host", &self.host),
            ("--port", "server.port", &self.port),
            ("--workers", "server.workers", &self.workers),
            ("--model", "fleet.model", &self.model),
            ("--layerwise", "dialect.name", &self.layerwise.then(|| "layerwise".to_owned())),
            ("--callback-url", "dialect.callback_url", &self.callback_url),
            ("--model-path", "prompt.model_path", &self.model_path),
            ("--block-size", "hash.block_tokens", &self.block_size),
            ("--roundrobin", "route.policy", &self.roundrobin.then(|| "round_robin".to_owned())),
            ("--policy", "route.policy", &self.policy),
            ("--max-retries", "retry.attempts", &self.max_retries.as_deref().map(at_least_once)),
            (
                "--max-waiting-retries",
                "fleet.probe_attempts",
                &self.max_waiting_retries.as_deref().map(at_least_once),
            ),
            ("--log-level", "log.level", &self.log_level),
            ("--log-format", "log.format", &self.log_format),
            ("--admin-host", "server.admin_host", &self.admin_host),
            ("--admin-port", "server.admin_port", &self.admin_port),
            ("--keys-file", "auth.keys_file", &self.keys_file),
            ("--tp", "key.tp", &self.tp),
            ("--seed", "hash.seed", &self.seed),
        ];
        for (flag, key, text) in texts {
            found.entries.extend(text.iter().map(|text| entry(key, Given::Text(text.clone()), flag)));
        }
        self.pool(found);
        for role in self.roles() {
            role.overlay(found);
        }
        if let Some(text) = &self.retry_delay {
            seconds("--retry-delay", "retry.delay_ms", text, found, toml::Value::Float);
        }
        if let Some(text) = &self.waiting_retry_interval {
            seconds("--waiting-retry-interval", "fleet.probe_interval_ms", text, found, whole_ms);
        }
        if let Some(text) = &self.lease {
            seconds("--lease", "engine.lease_ms", text, found, whole_ms);
        }
        for text in &self.set {
            set(text, found);
        }
    }

    fn roles(&self) -> [Role<'_>; 3] {
        // `disagg_epd_proxy.py` says so where its decoders compute the prompts, too: then they are
        // in both lists.
        let disabled =
            |word: &String| ["disable", "none"].contains(&word.trim().to_ascii_lowercase().as_str());
        let both = matches!(&self.prefill[..], [word] if disabled(word)) && !self.decode.is_empty();
        [
            Role {
                name: "prefiller",
                key: "fleet.prefill",
                default_port: 8001,
                hosts: &self.prefiller_hosts,
                ports: &self.prefiller_ports,
                direct: if both { ("--decode", &self.decode[..]) } else { (PREFILL, &self.prefill[..]) },
            },
            Role {
                name: "decoder",
                key: "fleet.decode",
                default_port: 8002,
                hosts: &self.decoder_hosts,
                ports: &self.decoder_ports,
                direct: ("--decode", &self.decode),
            },
            Role {
                name: "encoder",
                key: "fleet.encode",
                default_port: 8003,
                hosts: &self.encoder_hosts,
                ports: &self.encoder_ports,
                direct: ("--encode", &self.encode),
            },
        ]
    }
}

impl Role<'_> {
    fn overlay(&self, found: &mut CollectedEntries) {
        let (direct_flag, direct) = self.direct;
        let known = found.errors.len();
        let mut entries = self.paired(found);
        self.direct(&mut entries, found);
        // An incomplete list is not entered: what is wrong with it has been said.
        if found.errors.len() > known || entries.is_empty() {
            return;
        }
        let hosts_flag = format!("--{}-hosts", self.name);
        let ports_flag = format!("--{}-ports", self.name);
        let used =
            [(!self.hosts.is_empty(), hosts_flag.as_str()), (!self.ports.is_empty(), ports_flag.as_str())];
        let used = used.into_iter().chain([(!direct.is_empty(), direct_flag)]);
        let flags: Vec<&str> = used.filter_map(|(used, flag)| used.then_some(flag)).collect();
        let list = entries.into_iter().map(toml::Value::String).collect();
        found.entries.push(entry(self.key, Given::Value(toml::Value::Array(list)), &flags.join(" ")));
    }

    /// Hosts and ports given apart, joined; errors for those that do not fit.
    fn paired(&self, found: &mut CollectedEntries) -> Vec<String> {
        let hosts = self.read("hosts", self.hosts, engine_host, found);
        let ports = self.read("ports", self.ports, engine_port, found);
        let (host_count, port_count) = (self.hosts.len(), self.ports.len());
        if host_count == 0 && port_count == 0 {
            return Vec::new();
        }
        if host_count.max(1) != port_count.max(1) {
            let counts = Problem::Counts {
                role: self.name,
                hosts: counted(host_count, "host", DEFAULT_HOST),
                ports: counted(port_count, "port", &self.default_port.to_string()),
            };
            let flag = format!("--{}-{}", self.name, if host_count == 0 { "ports" } else { "hosts" });
            found.errors.push(ConfigError { origin: Origin::Flag(flag), problem: counts });
        }
        let hosts = if host_count == 0 { vec![DEFAULT_HOST.to_owned()] } else { hosts };
        let ports = if port_count == 0 { vec![self.default_port] } else { ports };
        hosts.into_iter().zip(ports).map(|(host, port)| Endpoint::new(host, port).to_string()).collect()
    }

    fn read<T>(
        &self,
        what: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, HostError>,
        found: &mut CollectedEntries,
    ) -> Vec<T> {
        let mut good = Vec::new();
        for text in texts {
            match parse(text.trim()) {
                Ok(value) => good.push(value),
                Err(why) => found.errors.push(ConfigError {
                    origin: Origin::Flag(format!("--{}-{what}", self.name)),
                    problem: Problem::Host { key: "", text: text.clone(), why },
                }),
            }
        }
        good
    }

    /// `--prefill` and `--decode`: kept as written and judged with the rest of the configuration,
    /// but for what other routers allow after a URL: a prefiller's bootstrap port, or `none` for no
    /// such port.
    fn direct(&self, entries: &mut Vec<String>, found: &mut CollectedEntries) {
        let (flag, texts) = self.direct;
        let mut before: Option<&str> = None;
        for text in texts.iter().map(|text| text.trim()) {
            let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            match before {
                Some(url) if number && flag == PREFILL => {
                    let pair = bootstrap(url, text);
                    let problem = Problem::BootstrapPort { url: url.to_owned(), port: text.to_owned(), pair };
                    found.errors.push(ConfigError { origin: Origin::Flag(flag.to_owned()), problem });
                }
                Some(url) if url.contains("://") && text == "none" => {}
                _ => entries.push(text.to_owned()),
            }
            before = Some(text);
        }
    }
}

/// Turns a bootstrap port after a prefiller's URL into an entry of `dialect.bootstraps`.
fn bootstrap(url: &str, port: &str) -> String {
    let pair = Endpoint::parse(url).ok().zip(port.parse::<u16>().ok());
    let pair = pair.map(|(engine, port)| format!("{engine}={}", Endpoint::new(engine.host.as_str(), port)));
    pair.unwrap_or_else(|| format!("host:port=host:{port}"))
}

/// The number of repetitions, at least 1: the reference proxies take 0 for once.
fn at_least_once(text: &str) -> String {
    if text.trim().parse::<u32>() == Ok(0) { "1".to_owned() } else { text.to_owned() }
}

/// A whole number of milliseconds, at least 1, as the reference proxies take 0. Saturates at what
/// no bound allows.
fn whole_ms(ms: f64) -> toml::Value {
    toml::Value::Integer((ms.round() as i64).max(1))
}

/// Enters a flag's seconds, or its time with a unit, under `key`, whose value `to_value` makes from
/// milliseconds.
fn seconds(
    flag: &str,
    key: &str,
    text: &str,
    found: &mut CollectedEntries,
    to_value: fn(f64) -> toml::Value,
) {
    let plain = text.trim().parse::<f64>().ok().map(|seconds| seconds * 1000.0);
    match plain.or_else(|| duration::ms(text)).filter(|ms| ms.is_finite() && *ms >= 0.0) {
        Some(ms) => {
            let value = to_value(ms);
            found.entries.push(entry(key, Given::Value(value), flag));
        }
        None => found.errors.push(ConfigError {
            origin: Origin::Flag(flag.to_owned()),
            problem: Problem::NotSeconds { text: text.to_owned() },
        }),
    }
}

fn set(text: &str, found: &mut CollectedEntries) {
    let origin = Origin::Flag("--set".to_owned());
    let Some((key, value)) = text.split_once('=') else {
        return found
            .errors
            .push(ConfigError { origin, problem: Problem::NotASetting { text: text.to_owned() } });
    };
    let key = key.trim();
    match secrets().into_iter().find(|(secret, _)| *secret == key) {
        Some((_, variable)) => {
            let problem = Problem::SecretInArguments { key: key.to_owned(), variable };
            found.errors.push(ConfigError { origin, problem });
        }
        None => found.entries.push(entry(key, Given::Text(value.trim().to_owned()), "--set")),
    }
}

fn entry(key: &str, given: Given, flag: &str) -> Entry {
    Entry { key: key.to_owned(), given, origin: Origin::Flag(flag.to_owned()) }
}

/// `2 hosts`, or `1 host (the default, localhost)` when none was given.
fn counted(count: usize, what: &str, default: &str) -> String {
    match count {
        0 => format!("1 {what} (the default, {default})"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
