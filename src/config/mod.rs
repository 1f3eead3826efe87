//! The configuration: one tree, whose keys are the same in files,
//! environment and `--set`.
//!
//! Each section is a table of keys (`table`), from which all else that is known of a key comes.
//! `load` merges the sources, `validate` judges the result, `report` shows it. Every key is
//! documented for operators in `config/pd-proxy.toml`; a test holds that file equal to the tables.

pub mod auth;
pub mod autoscale;
mod bounds;
mod cors;
pub mod dialect;
pub mod discovery;
pub(crate) mod duration;
pub mod engine;
pub mod error;
pub mod events;
pub mod fleet;
mod fleet_error;
pub mod health;
pub(crate) mod hidden_characters;
mod itself;
pub mod kubernetes;
pub mod limit;
mod listeners;
pub mod load;
pub mod log;
pub mod model;
mod model_facts;
pub mod model_rules;
mod model_rules_error;
pub mod named_fleets;
mod names;
mod passthrough;
pub mod pool;
mod ranks;
pub mod remote;
pub mod report;
pub mod retry;
pub mod route;
mod schema;
mod selector;
pub mod server;
pub mod share;
mod source;
pub mod stream;
mod table;
pub mod timeout;
pub mod tls;
pub mod trace;
mod validate;
pub mod values;
mod warnings;

pub use crate::endpoint::{Endpoint, HostError};
pub use auth::Auth;
pub use autoscale::Autoscale;
pub use dialect::Dialect;
pub use discovery::Discovery;
pub use engine::Engine;
use error::Invalid;
pub use error::{ConfigError, ConfigErrors, Problem};
pub use events::Events;
pub use fleet::{Alias, Fleet};
pub use fleet_error::FleetProblem;
pub use health::Health;
pub use kubernetes::Kubernetes;
pub use limit::Limit;
pub use load::{Env, Loaded, LoadedFleet, Origin, Origins, process_env};
pub use log::Log;
pub use model::{Hash, Key, Prompt};
pub use model_facts::regular_file;
pub use model_rules::{Models, RoutedModel, Target};
pub use model_rules_error::ModelsProblem;
pub use named_fleets::NamedFleet;
pub use pool::Pool;
pub use remote::RemoteUrl;
pub use retry::Retry;
pub use route::Route;
pub(crate) use schema::secrets;
pub use server::Server;
pub use share::Share;
pub use stream::Stream;
use table::section;
pub(crate) use table::{Effect, KeyValue, Row, Section};
pub use timeout::Timeout;
pub use tls::Tls;
pub use trace::Trace;
pub use values::{
    Bind, ContentFormat, DialectName, HashAlgo, HashScheme, KeyLayout, KeyStore, Level, LogFormat, Policy,
    PoolKind, Scheme, Secret, Tokens, UnknownName,
};

section! {
    /// Everything an operator can set; `[section]` then `key` in TOML.
    Config = "" {}
    sections {
        /// Place where the gateway listens and how it runs.
        server: Server,
        /// HTTPS for clients.
        tls: Tls,
        /// `[auth]`: keys and rights of clients.
        auth: Auth,
        /// The engines it serves from.
        fleet: Fleet,
        /// `[models]`: models that several fleets serve.
        models: Models,
        /// `[dialect]`: the way in which engines move KV.
        dialect: Dialect,
        /// Place where engines are looked for.
        discovery: Discovery,
        /// `[health]`: probes and breakers.
        health: Health,
        /// `[engine]`: facts about the engines that the gateway must know.
        engine: Engine,
        /// `[route]`: the choice of engines.
        route: Route,
        /// `[prompt]`: the way from a request to the token ids that the engines see.
        prompt: Prompt,
        /// `[hash]`: the way in which engines hash their KV blocks.
        hash: Hash,
        /// `[key]`: names of blocks in the pool that the engines share.
        key: Key,
        /// The pool, asked about each prompt.
        pool: Pool,
        /// `[events]`: KV events that prefillers publish.
        events: Events,
        /// Number of times that a failed leg is tried again.
        retry: Retry,
        /// `[stream]`: handling of streamed answers.
        stream: Stream,
        /// Longest time that each step may take.
        timeout: Timeout,
        /// `[limit]`: limits of sizes and counts.
        limit: Limit,
        /// `[log]`: level and format of the log.
        log: Log,
        /// `[trace]`: export of spans.
        trace: Trace,
        /// `[share]`: other gateways in front of the same engines.
        share: Share,
        /// `[autoscale]`: latencies that the number of engines is to keep.
        autoscale: Autoscale,
    }
    apart {
        /// `[fleets.NAME]`: fleets side by side, in the order of their names; none = this is the
        /// configuration of the only one.
        fleets: Vec<NamedFleet>,
    }
}

impl Config {
    /// Endpoints of the prefillers.
    pub fn prefill_endpoints(&self) -> Vec<Endpoint> {
        endpoints(&self.fleet.prefill)
    }

    /// The keys whose values differ from those of `other`, secrets included, in the order of the
    /// tree.
    pub fn differs(&self, other: &Config) -> Vec<&'static str> {
        let (own, others) = (self.rows(), other.rows());
        let pairs = own.iter().zip(&others);
        pairs.filter(|(own, other)| own.value != other.value).map(|(own, _)| own.name).collect()
    }

    /// Every key with its value, in the order of the tree.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        self.add_rows(&mut rows);
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

#[cfg(test)]
mod tests;
