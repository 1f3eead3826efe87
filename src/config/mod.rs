//! The configuration: one tree, whose defaults are here and whose keys are the same in files,
//! environment and `--set`.
//!
//! `load` merges the sources, `validate` judges the result, `report` shows it. Every key is
//! documented for operators in `config/pd-proxy.toml`; a test holds that file equal to these
//! defaults.

pub mod auth;
mod bounds;
mod cors;
pub mod dialect;
pub mod discovery;
pub mod engine;
pub mod error;
pub mod events;
pub mod fleet;
pub mod health;
mod itself;
pub mod kubernetes;
pub mod limit;
mod listeners;
pub mod load;
pub mod log;
pub mod model;
mod names;
mod passthrough;
pub mod pool;
mod ranks;
pub mod report;
pub mod retry;
pub mod route;
mod schema;
mod selector;
pub mod server;
mod source;
pub mod stream;
mod table;
pub mod timeout;
pub mod tls;
pub mod trace;
mod validate;
pub mod values;

pub use crate::endpoint::{Endpoint, HostError};
pub use auth::Auth;
pub use dialect::Dialect;
pub use discovery::Discovery;
pub use engine::Engine;
use error::Invalid;
pub use error::{ConfigError, ConfigErrors, Problem};
pub use events::Events;
pub use fleet::Fleet;
pub use health::Health;
pub use kubernetes::Kubernetes;
pub use limit::Limit;
pub use load::{Env, Loaded, Origin, Origins, process_env};
pub use log::Log;
pub use model::{Hash, Key, Prompt};
pub use pool::Pool;
pub use retry::Retry;
pub use route::Route;
pub use server::Server;
pub use stream::Stream;
pub use timeout::Timeout;
pub use tls::Tls;
pub use trace::Trace;
pub use values::{
    Bind, ContentFormat, DialectName, HashAlgo, HashScheme, KeyLayout, KeyStore, Level, LogFormat, Policy,
    PoolKind, Scheme, Secret, Tokens, UnknownName,
};

use serde::{Deserialize, Serialize};
use table::Row;
pub(crate) use table::Section;

/// Keys whose value is a secret, each with the familiar environment variable that also sets it; the
/// last has none but its own.
pub(crate) const SECRETS: [(&str, &str); 3] = [
    ("engine.api_key", "OPENAI_API_KEY"),
    ("server.admin_key", "ADMIN_API_KEY"),
    ("trace.headers", "PD_PROXY__TRACE__HEADERS"),
];

/// Everything an operator can set; `[section]` then `key` in TOML.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Place where the gateway listens and how it runs.
    pub server: Server,
    /// HTTPS for clients.
    pub tls: Tls,
    /// `[auth]`: keys and rights of clients.
    pub auth: Auth,
    /// The engines it serves from.
    pub fleet: Fleet,
    /// `[dialect]`: the way in which engines move KV.
    pub dialect: Dialect,
    /// Place where engines are looked for.
    pub discovery: Discovery,
    /// `[health]`: probes and breakers.
    pub health: Health,
    /// `[engine]`: facts about the engines that the gateway must know.
    pub engine: Engine,
    /// `[route]`: the choice of engines.
    pub route: Route,
    /// `[prompt]`: the way from a request to the token ids that the engines see.
    pub prompt: Prompt,
    /// `[hash]`: the way in which engines hash their KV blocks.
    pub hash: Hash,
    /// `[key]`: names of blocks in the pool that the engines share.
    pub key: Key,
    /// The pool, asked about each prompt.
    pub pool: Pool,
    /// `[events]`: KV events that prefillers publish.
    pub events: Events,
    /// Number of times that a failed leg is tried again.
    pub retry: Retry,
    /// `[stream]`: handling of streamed answers.
    pub stream: Stream,
    /// Longest time that each step may take.
    pub timeout: Timeout,
    /// `[limit]`: limits of sizes and counts.
    pub limit: Limit,
    /// `[log]`: level and format of the log.
    pub log: Log,
    /// `[trace]`: export of spans.
    pub trace: Trace,
}

impl Config {
    /// Endpoints of the prefillers.
    pub fn prefill_endpoints(&self) -> Vec<Endpoint> {
        endpoints(&self.fleet.prefill)
    }

    /// The keys whose values differ from those of `other`, secrets included, in the order of the
    /// tree.
    pub fn differs(&self, other: &Config) -> Vec<String> {
        // Their values are masked where others are compared. One for each, in their order.
        let secrets = |config: &Config| -> [Option<Secret>; SECRETS.len()] {
            [config.engine.api_key.clone(), config.server.admin_key.clone(), config.trace.headers.clone()]
        };
        let changed: Vec<&str> = SECRETS
            .iter()
            .zip(secrets(self).into_iter().zip(secrets(other)))
            .filter(|(_, (own, others))| {
                own.as_ref().map(Secret::expose) != others.as_ref().map(Secret::expose)
            })
            .map(|((key, _), _)| *key)
            .collect();
        let own = schema::leaves(self);
        let others = schema::leaves(other);
        let pairs = own.into_iter().zip(others);
        let differing =
            pairs.filter(|((key, own), (_, others))| own != others || changed.contains(&key.as_str()));
        differing.map(|((key, _), _)| key).collect()
    }

    /// The rows of sections with tables, in the order of the tree.
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        self.server.add_rows(&mut rows);
        self.tls.add_rows(&mut rows);
        self.auth.add_rows(&mut rows);
        self.fleet.add_rows(&mut rows);
        self.dialect.add_rows(&mut rows);
        self.discovery.add_rows(&mut rows);
        self.health.add_rows(&mut rows);
        self.engine.add_rows(&mut rows);
        self.route.add_rows(&mut rows);
        self.prompt.add_rows(&mut rows);
        self.hash.add_rows(&mut rows);
        self.key.add_rows(&mut rows);
        self.pool.add_rows(&mut rows);
        self.events.add_rows(&mut rows);
        self.retry.add_rows(&mut rows);
        self.stream.add_rows(&mut rows);
        self.timeout.add_rows(&mut rows);
        self.limit.add_rows(&mut rows);
        self.log.add_rows(&mut rows);
        self.trace.add_rows(&mut rows);
        rows
    }

    /// Endpoints of the decoders.
    pub fn decode_endpoints(&self) -> Vec<Endpoint> {
        endpoints(&self.fleet.decode)
    }

    /// Endpoints of the encoders.
    pub fn encode_endpoints(&self) -> Vec<Endpoint> {
        endpoints(&self.fleet.encode)
    }
}

/// Entries that are no endpoint, which a loaded configuration cannot hold, are left out.
pub(crate) fn endpoints(entries: &[String]) -> Vec<Endpoint> {
    entries.iter().filter_map(|entry| Endpoint::parse(entry).ok()).collect()
}
