//! Names of KV blocks in the pools that engines share.
//!
//! A [`Preset`] says how one connector version spells and spreads keys, and [`KeyConfig`] adds what
//! the operator knows. [`KeyProfile`] is both, checked and bound: it turns block hashes into the
//! keys to ask a pool for. A profile that could only produce keys nobody writes is refused with the
//! reason ([`Refusal`]). Nothing here talks to a pool.

pub mod batch;
pub mod bind;
mod check;
pub mod groups;
pub mod lmcache;
pub mod preset;
pub mod profile;
pub mod ranks;
pub mod refuse;
pub mod sample;
pub mod template;
pub mod ucm;
pub mod yuanrong;

pub use batch::KeyBatch;
pub use groups::{GroupHash, GroupKind, KvGroup};
pub use preset::{Connector, Layout, Preset};
pub use profile::{Ask, KeyConfig, KeyProfile, PromptBlocks, Store};
pub use ranks::{KvShape, Place};
pub use refuse::{KeyError, Refusal};
pub use template::{Template, TemplateError};
