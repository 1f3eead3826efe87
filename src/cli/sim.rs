//! Flags of the demo and of the simulators.

use super::number::{not_negative, positive};
use crate::config::Level;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

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
    /// Play a steady load of six clients, so that page and metrics have something to show
    #[arg(long)]
    pub traffic: bool,
    /// debug, info, warning, error or critical, in any case
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: Level,
}

/// Flags of `sim`: one simulated engine, or what the command behind it says.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SimArgs {
    /// Something other than an engine
    #[command(subcommand)]
    pub other: Option<SimOther>,
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
    /// Time that each further running request adds to that, ms
    #[arg(long, value_name = "MS", default_value_t = 0.05, value_parser = not_negative)]
    pub slope_ms: f64,
    /// Mean length of answers that end by themselves, tokens; 0 = at max_tokens or a stop string
    /// alone
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub answer_tokens: u32,
    /// Release of vLLM that it tells and answers as
    #[arg(long, value_enum, default_value_t = SimEngineRelease::V0_32)]
    pub release: SimEngineRelease,
    /// Time for which it keeps KV for a decoder, ms
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub lease_ms: u64,
    /// Connector that takes KV to the decoder
    #[arg(long, value_enum, default_value_t = SimConnector::Handoff)]
    pub connector: SimConnector,
    /// Name of the environment variable that holds the key to ask for
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_env: Option<String>,
}

/// Parts of a cluster that can be simulated beside engines.
#[derive(Clone, Debug, Subcommand)]
pub enum SimOther {
    /// A Mooncake master: its RPC and its HTTP port, with keys that you give it
    Mooncake(SimMooncakeArgs),
}

/// Flags of `sim mooncake`.
#[derive(Args, Clone, Debug)]
pub struct SimMooncakeArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the RPC; 0 takes any free one
    #[arg(long, default_value_t = 50051)]
    pub port: u16,
    /// HTTP (admin) port; 0 takes any free one
    #[arg(long, value_name = "PORT", default_value_t = 9003)]
    pub admin_port: u16,
    /// The release whose bytes it speaks
    #[arg(long, value_enum, default_value_t = SimRelease::V0_3_13)]
    pub release: SimRelease,
    /// A file with the keys that it has, one per line
    #[arg(long, value_name = "FILE", help_heading = "Keys")]
    pub keys: Option<PathBuf>,
    /// So many keys of its own beside them: key-0, key-1, …
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Keys")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub fill: u32,
    /// Host on which the objects are said to lie
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:17000", help_heading = "Keys")]
    pub segment: String,
    /// Answer questions about keys so late, ms
    #[arg(long, value_name = "MS", default_value_t = 0, help_heading = "Trouble")]
    pub delay_ms: u64,
    /// Read questions and never answer, as a process that was stopped
    #[arg(long, help_heading = "Trouble")]
    pub deaf: bool,
    /// Close the connection instead of answering a question about keys
    #[arg(long, conflicts_with = "delay_ms", help_heading = "Trouble")]
    pub hang_up: bool,
    /// Be a standby of the master at this RPC address: the RPC port is closed
    #[arg(long, value_name = "HOST:PORT", help_heading = "Trouble")]
    pub standby_of: Option<String>,
}

/// Releases of Mooncake that differ on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimRelease {
    /// Mooncake version 0.3.7
    #[value(name = "0.3.7")]
    V0_3_7,
    /// Mooncake version 0.3.8
    #[value(name = "0.3.8")]
    V0_3_8,
    /// 0.3.9 and 0.3.10
    #[value(name = "0.3.9")]
    V0_3_9,
    /// Mooncake version 0.3.11
    #[value(name = "0.3.11")]
    V0_3_11,
    /// Mooncake version 0.3.12
    #[value(name = "0.3.12")]
    V0_3_12,
    /// 0.3.13 and later
    #[value(name = "0.3.13")]
    V0_3_13,
}

/// Releases of vLLM whose answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimEngineRelease {
    /// Release 0.32 of vLLM
    #[value(name = "0.32")]
    V0_32,
    /// Release 0.33 of vLLM: each event of a stream has kv_transfer_params
    #[value(name = "0.33")]
    V0_33,
}

impl SimEngineRelease {
    /// Its version, as engines tell it.
    pub fn version(self) -> &'static str {
        match self {
            SimEngineRelease::V0_32 => "0.32.0",
            SimEngineRelease::V0_33 => "0.33.0",
        }
    }
}

/// The legs a simulated engine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimRole {
    /// Prefill legs only
    Prefill,
    /// Decode legs only
    Decode,
    /// Takes both legs
    Both,
}

impl SimRole {
    /// As `--role` spells it.
    pub fn name(self) -> &'static str {
        match self {
            SimRole::Prefill => "prefill",
            SimRole::Decode => "decode",
            SimRole::Both => "both",
        }
    }
}

/// Connectors that the simulator speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimConnector {
    /// The prefiller's answer names its blocks in kv_transfer_params
    Handoff,
    /// By a transfer_id, as vLLM's MooncakeConnector; GET /query says who the engine is
    Mooncake,
    /// By the request's id, as vLLM's NixlPushConnector
    Push,
    /// By a bootstrap room, as SGLang
    Sglang,
    /// Through a pool that both legs share; the answer carries no hand-off
    Pool,
    /// The decoder calls the gateway back, the prefiller writes into its blocks
    Layerwise,
    /// By a hand-off under a transfer_id, as vLLM's MoRIIOConnector in READ mode
    Moriio,
}
