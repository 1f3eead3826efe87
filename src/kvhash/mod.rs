//! Names of KV blocks outside the engines.

pub mod keys;
