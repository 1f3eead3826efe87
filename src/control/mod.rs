//! Background loops that look at engines and at the configuration while the gateway serves.

pub mod dialect_detect;
pub mod discovery;
pub mod health_probe;
pub mod kv_events;
pub mod load_scrape;
pub mod parity;
pub mod reload;
pub mod settings;
