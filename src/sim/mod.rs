//! An engine simulator shaped like vLLM: the HTTP API, the KV hand-off, the failures.

pub mod blocks;
pub mod core;
pub mod ledger;
pub mod pool;
pub mod spec;
pub mod text;
pub mod tokens;

pub use ledger::Ledger;
pub use pool::Pool;
pub use spec::{Connector, EngineSpec, Role};
