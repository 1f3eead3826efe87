//! `[pool]` and `[events]`: where the gateway learns which blocks of a prompt are already computed.

use super::values::PoolKind;
use serde::{Deserialize, Serialize};

/// `[pool]`: the pool that the engines share, asked about each prompt before it is routed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Which service answers.
    pub kind: PoolKind,
    /// Its addresses, each `host:port`; several where it has standbys, or where each engine has its own.
    pub addresses: Vec<String>,
    /// The longest that a request waits for it, ms; after that it is routed without.
    pub deadline_ms: u64,
    /// How long an answer is good for, ms.
    pub fresh_ms: u64,
    /// Connections to each address.
    pub connections: u32,
    /// Ask where blocks are, not only whether they exist.
    pub locations: bool,
    /// What the pool calls a host or rank, and what the fleet calls it: `10.0.0.5=node-5`, `3=node-5`.
    pub hosts: Vec<String>,
}

/// `[events]`: what the engines publish about their own caches.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Port of every prefiller's publisher (`--kv-events-config`, `endpoint`); 0 = none is listened to.
    pub port: u16,
    /// Port of its replay socket (`replay_endpoint`); 0 = it has none.
    pub replay_port: u16,
    /// The topic that is published under.
    pub topic: String,
    /// Blocks remembered per engine.
    pub blocks: usize,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            kind: PoolKind::Off,
            addresses: Vec::new(),
            deadline_ms: 5,
            fresh_ms: 1_000,
            connections: 2,
            locations: true,
            hosts: Vec::new(),
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self { port: 0, replay_port: 0, topic: String::new(), blocks: 1 << 20 }
    }
}
