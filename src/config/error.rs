//! Faults of a configuration. All of them are found at once and take one line each.

use super::fleet_error::FleetProblem;
use super::load::Origin;
use super::model_rules_error::ModelsProblem;
use crate::endpoint::HostError;
use std::fmt;
use thiserror::Error;

/// A key and the fault of its value.
pub(crate) type Invalid = (&'static str, Problem);

/// Everything that is wrong, in the order in which it was found; never empty.
#[derive(Debug)]
pub struct ConfigErrors(pub(crate) Vec<ConfigError>);

/// One thing that is wrong and where it came from.
#[derive(Debug, Error)]
#[error("{origin}: {problem}")]
pub struct ConfigError {
    /// The file, variable or flag to correct.
    pub origin: Origin,
    /// Description of the fault.
    pub problem: Problem,
}

/// Description of a fault; reads after the origin and a colon. Values of secret keys are never
/// quoted.
#[derive(Debug, Error)]
pub enum Problem {
    /// The file could not be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// The file is longer than any configuration.
    #[error("is longer than {limit_bytes} bytes: is this the right file?")]
    TooLong {
        /// The longest file that is read.
        limit_bytes: u64,
    },
    /// The file is no TOML.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Character in that line, from 1.
        column: usize,
        /// The parser's words, on one line.
        message: String,
    },
    /// The merged tree as a whole cannot be read, though each of its values can.
    #[error("the settings do not fit together: {message}")]
    Misfit {
        /// The reader's words.
        message: String,
    },
    /// A value stands where a section belongs.
    #[error("`{section}` is a section: set its keys, as in [{section}] or {section}.key = value")]
    NotASection {
        /// The section's name.
        section: String,
    },
    /// No such key.
    #[error("unknown key {key}{}", hint(nearest.as_deref()))]
    UnknownKey {
        /// The key as given, `section.key`.
        key: String,
        /// The known key it resembles.
        nearest: Option<String>,
    },
    /// A key, or a value of one, that an earlier release took.
    #[error("{given} is no longer taken: {instead}")]
    Removed {
        /// The key, or the key with its value, as given.
        given: String,
        /// The reason, and what to use instead.
        instead: &'static str,
    },
    /// `--set` without `key=value`.
    #[error("`{text}` is no setting: write section.key=value, as in route.policy=round_robin")]
    NotASetting {
        /// The text given; it has no `=`.
        text: String,
    },
    /// A secret among the arguments, where every user of the machine can read it.
    #[error(
        "{key} must not stand on a command line, where `ps` shows it: use the variable {variable} or a file"
    )]
    SecretInArguments {
        /// The secret's key.
        key: String,
        /// The environment variable that sets it.
        variable: &'static str,
    },
    /// A value of the wrong type or outside its type's range.
    #[error("{key} = {value}: expected {expected}")]
    WrongType {
        /// Name of the configuration key.
        key: String,
        /// The value as TOML.
        value: String,
        /// Description of a right value.
        expected: String,
    },
    /// A number outside its bounds.
    #[error("{key} = {value}: expected {min} to {max}")]
    OutOfRange {
        /// Name of the configuration key.
        key: &'static str,
        /// Number as it was given.
        value: String,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// A text that is no time, for a key in milliseconds.
    #[error(
        "{key} = {text:?}: expected milliseconds, or a time with a unit (ms, s, m, h, d), as in 60_000 or \"60s\""
    )]
    NotATime {
        /// Name of the configuration key.
        key: String,
        /// The text given.
        text: String,
    },
    /// A flag in seconds that is no length of time.
    #[error(
        "`{text}` is no length of time: expected seconds, or a time with a unit, as in 0.5, 500ms or 30s"
    )]
    NotSeconds {
        /// The text given.
        text: String,
    },
    /// Hosts and ports that do not pair up.
    #[error("--{role}-hosts names {hosts} and --{role}-ports {ports}: give one port for each host")]
    Counts {
        /// `prefiller` or `decoder`.
        role: &'static str,
        /// Hosts given, as words.
        hosts: String,
        /// Ports given, as words.
        ports: String,
    },
    /// A part of the URL of `--pool` that can't be used.
    #[error("`{value}` in --pool: {fix}")]
    PoolUrl {
        /// The part that is wrong.
        value: String,
        /// Fault of that part, and a right one.
        fix: String,
    },
    /// A bootstrap port after a prefiller's URL.
    #[error(
        "`{port}` after `{url}` looks like a bootstrap port: leave it out, and set dialect.bootstrap_port = {port} where all \
         prefillers have it, else dialect.bootstraps = [\"{pair}\"] (on a command line by --set)"
    )]
    BootstrapPort {
        /// The URL before it.
        url: String,
        /// Number as it was given.
        port: String,
        /// Both, as an entry of `dialect.bootstraps`.
        pair: String,
    },
    /// A host, port or endpoint that cannot be used.
    #[error("{}`{text}` {why}", of(key))]
    Host {
        /// The key, where it is not clear from the flag.
        key: &'static str,
        /// The text given.
        text: String,
        /// Reason why not.
        why: HostError,
    },
    /// The same endpoint twice in one role.
    #[error("{key}: `{endpoint}` is listed twice")]
    Duplicate {
        /// Name of the configuration key.
        key: &'static str,
        /// Endpoint as it was given.
        endpoint: String,
    },
    /// An engine where the gateway itself is to listen.
    #[error(
        "{key}: `{endpoint}` is this gateway itself (server.host, server.port): give the engine's port, or another --port"
    )]
    Itself {
        /// Name of the configuration key.
        key: &'static str,
        /// Endpoint as it was given.
        endpoint: String,
    },
    /// Two listeners in one place.
    #[error(
        "server.admin_port = {port}: at `{host}` (server.admin_host) clients are served at this port already (server.host, server.port): give operators another port"
    )]
    OnePlace {
        /// The port of both.
        port: u16,
        /// Value of `server.admin_host`.
        host: String,
    },
    /// Fewer connections than requests may take.
    #[error(
        "limit.inflight + limit.queue = {requests} needs limit.connections above that: it is {connections}"
    )]
    Room {
        /// Value of `limit.connections`.
        connections: u64,
        /// The requests that are served and that wait.
        requests: u64,
    },
    /// Fewer or more engines in a role than can be served.
    #[error("{key} lists {count} engines: expected 1 to {max}, as in {flag} host:port")]
    Engines {
        /// Name of the configuration key.
        key: &'static str,
        /// Number of entries in the list.
        count: usize,
        /// Limit of the list.
        max: usize,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// A text that may not be empty.
    #[error("{key} is empty: leave it out instead")]
    EmptyText {
        /// Name of the configuration key.
        key: &'static str,
    },
    /// An entry of `server.names` that is none.
    #[error(
        "server.names: `{text}` is no host name: expected a name without scheme, port or *, as in gateway.example"
    )]
    NotAName {
        /// Entry as it was given.
        text: String,
    },
    /// An entry of `pool.ranks` that is none.
    #[error("pool.ranks: `{text}` is no rank with its host: expected rank=host, as in 3=node-5")]
    NotARank {
        /// Entry as it was given.
        text: String,
    },
    /// An entry of `pool.hosts` that is none.
    #[error(
        "pool.hosts: `{text}` is no pair of names: expected what the pool says=the prefillers' host, as in 10.0.0.5=p1"
    )]
    NotAHostName {
        /// Entry as it was given.
        text: String,
    },
    /// Several addresses of a service that has one.
    #[error(
        "pool.addresses lists {count}, and pool.kind = {kind} has one: no standby of it is known, give the address that leads to the service"
    )]
    OneAddress {
        /// The kind of pool.
        kind: &'static str,
        /// Number of entries in the list.
        count: usize,
    },
    /// An entry of `events.endpoints` that is none.
    #[error(
        "events.endpoints: `{text}` is no prefiller with its address: expected host:port=tcp://host:port, as in p1:8001=tcp://p1:5557 tcp://p1:5558 with a replay socket"
    )]
    NotAPublisher {
        /// Entry as it was given.
        text: String,
    },
    /// Not two addresses.
    #[error(
        "{key}: `{text}` is no pair: write prefiller=host:port, as in 10.0.0.1:8100=10.0.0.1:8998, both without https"
    )]
    NotAPair {
        /// Name of the configuration key.
        key: &'static str,
        /// Value as it was given.
        text: String,
    },
    /// An address that decoders can't call back at.
    #[error(
        "decoders can't call back at `{text}`: {why}. Say how they reach this gateway, as in --callback-url http://10.0.0.9:8000 \
         (dialect.callback_url)"
    )]
    Callback {
        /// Address as it was given.
        text: String,
        /// Description of the fault.
        why: &'static str,
    },
    /// A path that is none.
    #[error("health.probe_path: `{text}` is no path: it begins with a slash, as in /health")]
    NotAPath {
        /// Value as it was given.
        text: String,
    },
    /// A page's origin that no browser would send.
    #[error(
        "server.cors_origins: `{text}` is no origin: scheme://host or scheme://host:port in small letters, with nothing behind, as in \
         https://chat.example; or * for all"
    )]
    NotAnOrigin {
        /// Value as it was given.
        text: String,
    },
    /// A path of `server.passthrough` that no request can have.
    #[error(
        "server.passthrough: `{text}` is no path: begin it with a slash and leave out host and query, as in /v1/new; /v1/new/* = all below it"
    )]
    NotAPassedPath {
        /// Value as it was given.
        text: String,
    },
    /// An entry of `fleet.ranks` that can't be read.
    #[error("fleet.ranks: `{text}` is not engine=number with 1 to 64 ranks, as in 10.0.0.1:8100=4")]
    NotARankCount {
        /// Value as it was given.
        text: String,
    },
    /// Ranks whose ports are each other's.
    #[error(
        "events.ranks = {ranks}: rank r uses events.port + r ({port} and on) and events.replay_port + r ({replay_port} and on), which overlap: set them further apart, as the engines have them"
    )]
    PortsOverlap {
        /// Value of `events.port`.
        port: u16,
        /// Value of `events.replay_port`.
        replay_port: u16,
        /// Value of `events.ranks`.
        ranks: u64,
    },
    /// A value that needs another key.
    #[error("{key} = {value} needs {needed}")]
    Needs {
        /// Name of the configuration key.
        key: &'static str,
        /// Value of the key.
        value: &'static str,
        /// The key that is missing.
        needed: &'static str,
    },
    /// A store for what gateways share that can't be one. Its URL is not shown.
    #[error("share.url {why}: write the address of Redis or Valkey, as in redis://user:password@host:6379")]
    Store {
        /// Description of the fault.
        why: &'static str,
    },
    /// A key that asks for what was left out of the program.
    #[error("share.url needs a client of Redis, and this program was built without the feature `share`")]
    NoShare,
    /// A key that asks for what was left out of the program.
    #[error("{key} needs TLS, and this program was built without the feature `tls`")]
    NoTls {
        /// Name of the configuration key.
        key: &'static str,
    },
    /// A key that asks for what was left out of the program.
    #[error(
        "{key} needs the Kubernetes API, and this program was built without it: build with `--features kubernetes`, take the image or the wheel, or set discovery.prefill_dns and discovery.decode_dns"
    )]
    NoKubernetes {
        /// Name of the configuration key.
        key: &'static str,
    },
    /// Two ways to find the same engines.
    #[error("{one} and {other} are both set: pods are found by one of them, leave out the other")]
    OneOf {
        /// Name of the first key.
        one: &'static str,
        /// Name of the second key.
        other: &'static str,
    },
    /// No ports, or more than a pod has.
    #[error("{key} lists {count} ports: expected 1 to {max}, as in [\"8000\"]")]
    Ports {
        /// Name of the configuration key.
        key: &'static str,
        /// Number of entries in the list.
        count: usize,
        /// Limit of the list.
        max: usize,
    },
    /// An address that spans can't be posted to.
    #[error(
        "trace.endpoint: `{text}` {why}: write where the collector takes OTLP over HTTP, as in http://collector:4318"
    )]
    Collector {
        /// Address as it was given.
        text: String,
        /// Description of the fault.
        why: &'static str,
    },
    /// A header for the collector that can't be sent.
    #[error("trace.headers: entry {number} {why}: write name=value, with commas between several")]
    CollectorHeader {
        /// Number of the entry, from 1.
        number: usize,
        /// Description of the fault.
        why: &'static str,
    },
    /// An entry of `fleet.aliases` that is none.
    #[error(
        "fleet.aliases: `{text}` is no alias: expected alias=model, two names of at most 256 bytes, as in gpt-4o=Qwen3-8B"
    )]
    NotAnAlias {
        /// Entry as it was given.
        text: String,
    },
    /// A fault of models that several fleets serve.
    #[error(transparent)]
    Models(#[from] ModelsProblem),
    /// A fault of several fleets, or of one of them.
    #[error(transparent)]
    Fleets(#[from] FleetProblem),
    /// A secret that cannot stand in an HTTP header.
    #[error(
        "{key} holds a space, line end or other character that no key has: is there a newline at its end?"
    )]
    SecretCharacters {
        /// Name of the configuration key.
        key: &'static str,
    },
}

impl ConfigErrors {
    /// The errors one by one.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\n" };
            write!(f, "{line_end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || ": `pd-proxy check --show` lists every key".to_owned(),
        |key| format!(": did you mean {key}?"),
    )
}

fn of(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("{key}: ") }
}
