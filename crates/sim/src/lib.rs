//! An engine simulator shaped like vLLM: the HTTP API, the KV hand-off, the failures.
//!
//! [`Engine`] is one engine on one port. What it writes is a pure function of the KV content it
//! holds ([`text`]), so a hand-off that went wrong shows as wrong text, exactly as with a real
//! engine: HTTP 200 and plausible words. [`Ledger`] counts what it holds for others, [`Fault`]
//! makes it fail by script.
//!
//! Pure: [`tokens`], [`text`], [`blocks`], [`pool`], [`ledger`], [`core`], [`chat`], [`ask`],
//! [`handoff`], [`encodings`]. Sockets: [`gate`], [`net`], [`socket`], [`wire`], [`http`],
//! [`side`], [`layerwise`], [`sse`]. The answers: [`bodies`], [`chunks`], [`responses`],
//! [`messages`], [`fail`], [`role_switch`]. Servers of pools: [`mooncake`], [`memcache`], [`ems`].
//!
//! Not simulated: a token of its own for the end of a sequence, preemption, lease heartbeats,
//! HTTP/2.

pub mod api;
pub mod ask;
pub mod blocks;
pub mod bodies;
pub mod chat;
mod chat_ids;
pub mod chunks;
pub mod control;
pub mod core;
pub mod ems;
pub mod encodings;
pub mod engine;
pub mod extras;
pub mod fail;
pub mod faults;
pub mod gate;
pub mod r#gen;
pub mod handoff;
pub mod http;
pub mod hub;
pub mod layerwise;
pub mod ledger;
pub mod meet;
pub mod memcache;
pub mod messages;
pub mod mooncake;
pub mod net;
pub mod pool;
mod readback;
pub mod responses;
pub mod role_switch;
pub mod side;
pub mod socket;
pub mod spec;
pub mod sse;
pub mod text;
pub mod tokens;
pub mod wire;

pub use ems::{EmsAnswering, EmsLookup};
pub use encodings::{Encodings, Part};
pub use engine::Engine;
pub use faults::{ConnectionEnd, Fault, FaultKind, Match};
pub use hub::ObservedRequest;
pub use ledger::Ledger;
pub use net::{MemoryListener, Net};
pub use pool::{Mirror, Pool};
pub use spec::{Connector, EngineSpec, Role, RoleSwitch, Tokenizing};

#[cfg(test)]
mod tests;
