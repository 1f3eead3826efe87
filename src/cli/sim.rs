//! Flags of the demo and of the engine simulator.

use super::number::{not_negative, positive};
use crate::config::Level;
use clap::{Args, ValueEnum};

/// Flags of `demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Address the gateway listens on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port the gateway listens on; 0 takes any free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// First of the ports that the simulated engines listen on; 0 takes any free ones
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub engine_base_port: u16,
    /// Speed of each answer, tokens per second
    #[arg(long, value_name = "RATE", default_value_t = 50.0, value_parser = positive)]
    pub tokens_per_s: f64,
    /// debug, info, warning, error or critical, in any case
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: Level,
}

/// Flags of `sim`: one simulated engine.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes any free one
    #[arg(long, default_value_t = 8100)]
    pub port: u16,
    /// The legs it serves
    #[arg(long, value_enum, default_value_t = SimRole::Both)]
    pub role: SimRole,
    /// The model name it serves
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub model: String,
    /// Tokens in a KV block
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub block_tokens: u32,
    /// KV blocks it has
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_blocks: u32,
    /// Prefill speed, tokens per second
    #[arg(long, value_name = "RATE", default_value_t = 20_000.0, value_parser = positive)]
    pub prefill_tokens_per_s: f64,
    /// Time per output token of a lone request, ms
    #[arg(long, value_name = "MS", default_value_t = 5.0, value_parser = not_negative)]
    pub tpot_ms: f64,
    /// What each further running request adds to that, ms
    #[arg(long, value_name = "MS", default_value_t = 0.05, value_parser = not_negative)]
    pub slope_ms: f64,
    /// How long it keeps KV for a decoder, ms
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub lease_ms: u64,
    /// How KV reaches the decoder
    #[arg(long, value_enum, default_value_t = SimConnector::Handoff)]
    pub connector: SimConnector,
    /// Name of the environment variable that holds the key to ask for
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_env: Option<String>,
}

/// The legs a simulated engine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimRole {
    /// Prefill legs only
    Prefill,
    /// Decode legs only
    Decode,
    /// Both legs
    Both,
}

/// How KV reaches the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimConnector {
    /// The prefiller's answer names its blocks in kv_transfer_params
    Handoff,
    /// Through a pool that both legs share; the answer carries no hand-off
    Pool,
}
