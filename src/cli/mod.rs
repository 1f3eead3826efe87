//! The command line. Flags are texts that become entries of the configuration (`overlay`); only
//! what has no configuration file (the demo, the simulator, the replay of traces) reads its values
//! here.

mod api_key;
mod generate;
mod help;
mod init;
mod keys;
mod markdown;
mod number;
mod overlay;
mod pool;
mod replay;
#[cfg(feature = "sim")]
mod sim;

pub use api_key::{ApiKeyArgs, ApiKeyCommand};
pub use generate::{GenerateArgs, Generated, Page};
pub use init::InitArgs;
pub use keys::{KeysArgs, KeysFormat};
pub use markdown::markdown;
pub use replay::{ReplayArgs, ReplayLoop, ReplayPool, SimulatedArgs};
#[cfg(feature = "sim")]
pub use sim::{
    DemoArgs, SimArgs, SimConnector, SimEngineRelease, SimMooncakeArgs, SimOther, SimRelease, SimRole,
};

use clap::{Args, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Subcommands of the program.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the gateway; the default when no command is given
    Serve(ServeArgs),
    /// Judge the configuration, ask the engines and the pool, print what is found, the worst first,
    /// and exit
    #[command(
        after_help = "Exit codes: 0 good, 1 the gateway would not start, 2 a flag that does not exist, \
        3 the configuration is good, and an engine or the pool is away or not what it says."
    )]
    Check(CheckArgs),
    /// Ask the engines that the flags name what they are, and write a commented configuration for
    /// them
    Init(Box<InitArgs>),
    /// Ask the gateway that runs here under the same configuration whether it serves, and exit with
    /// 0 if it does
    Health(ServeArgs),
    /// Print a prompt's tokens, block hashes and pool keys, and exit
    Keys(Box<KeysArgs>),
    /// Make or hash a key for a client; its entry belongs into the file of auth.keys_file
    #[command(subcommand)]
    ApiKey(ApiKeyCommand),
    /// Replay a trace in virtual time, to compare policies
    Replay(Box<ReplayArgs>),
    /// Print completions for a shell, a manual page, or a page of the reference
    Generate(GenerateArgs),
    /// Run the gateway in front of simulated engines, to try it out
    #[cfg(feature = "sim")]
    Demo(DemoArgs),
    /// Run one simulated engine, or a simulated Mooncake master
    #[cfg(feature = "sim")]
    Sim(Box<SimArgs>),
}

/// Flags of `check`.
#[derive(Args, Clone, Debug, Default)]
#[command(args_override_self = true)]
pub struct CheckArgs {
    /// Ask nobody, neither engines nor the pool, and open no files of the model but its config.json
    #[arg(long, help_heading = "Configuration")]
    pub offline: bool,
    /// Have no prefiller store a prompt of its own in the pool, to look it up there
    #[arg(long, help_heading = "Configuration")]
    pub no_store: bool,
    /// Print the merged configuration as well, with the origin of each value, after the findings
    #[arg(long, help_heading = "Configuration")]
    pub show: bool,
    /// Options of a gateway
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// An OpenAI-compatible gateway for prefill/decode-disaggregated LLM serving on vLLM.
#[derive(Debug, Parser)]
#[command(name = "pd-proxy", version, args_conflicts_with_subcommands = true, args_override_self = true)]
#[command(after_help = help::examples())]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Flags of `serve` and `check`, as given; what is `None` or empty was not given.
#[derive(Args, Clone, Debug, Default)]
#[command(args_override_self = true)]
pub struct ServeArgs {
    /// TOML file with settings; repeat it to lay one over another
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub config: Vec<PathBuf>,
    /// Any key, as in route.policy=round_robin; repeatable
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Configuration")]
    pub set: Vec<String>,
    /// debug, info, warning, error or critical, in any case [default: info]
    #[arg(long, value_name = "LEVEL", help_heading = "Configuration")]
    pub log_level: Option<String>,

    /// text or json [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Configuration")]
    pub log_format: Option<String>,

    /// Address to listen on; localhost is loopback, IPv4 and IPv6 [default: localhost]
    #[arg(long, help_heading = "Listening")]
    pub host: Option<String>,
    /// Port to listen on; 0 takes any free one [default: 8000]
    #[arg(long, allow_negative_numbers = true, help_heading = "Listening")]
    pub port: Option<String>,
    /// Address for operators' routes and metrics, which are then served there alone [default:
    /// beside everything else]
    #[arg(long, value_name = "HOST", help_heading = "Listening")]
    pub admin_host: Option<String>,
    /// Port of that [default: 8009]
    #[arg(long, value_name = "PORT", allow_negative_numbers = true, help_heading = "Listening")]
    pub admin_port: Option<String>,
    /// File of the keys that clients need, with their rights and budgets [default: none is needed]
    #[arg(long, value_name = "FILE", help_heading = "Listening")]
    pub keys_file: Option<String>,
    /// Runtime threads; 0 = one per core [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Listening")]
    pub workers: Option<String>,

    /// Hosts of the prefillers, one or more [default: localhost]
    #[arg(long, alias = "prefiller-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    #[arg(help_heading = "Engines")]
    pub prefiller_hosts: Vec<String>,
    /// Their ports, one for each host [default: 8001]
    #[arg(long, alias = "prefiller-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    #[arg(help_heading = "Engines")]
    pub prefiller_ports: Vec<String>,
    /// Hosts of the decoders, one or more [default: localhost]
    #[arg(long, alias = "decoder-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    #[arg(help_heading = "Engines")]
    pub decoder_hosts: Vec<String>,
    /// Their ports, one for each host [default: 8002]
    #[arg(long, alias = "decoder-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    #[arg(help_heading = "Engines")]
    pub decoder_ports: Vec<String>,
    /// Prefillers as host:port or URL, in place of or beside hosts and ports
    #[arg(short, long, alias = "prefill-servers-urls", value_name = "HOST:PORT", num_args = 1..)]
    #[arg(value_delimiter = ',', help_heading = "Engines")]
    pub prefill: Vec<String>,
    /// Decoders as host:port or URL, in place of or beside hosts and ports
    #[arg(short, long, alias = "decode-servers-urls", value_name = "HOST:PORT", num_args = 1..)]
    #[arg(value_delimiter = ',', help_heading = "Engines")]
    pub decode: Vec<String>,
    /// Hosts of encoders of images, sounds and films, for prompts with such [default: none; the
    /// prefillers encode]
    #[arg(long, alias = "encoder-host", value_name = "HOST", num_args = 1.., value_delimiter = ',')]
    #[arg(help_heading = "Engines")]
    pub encoder_hosts: Vec<String>,
    /// Their ports, one for each host
    #[arg(long, alias = "encoder-port", value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    #[arg(help_heading = "Engines")]
    pub encoder_ports: Vec<String>,
    /// Encoders as host:port or URL, in place of or beside hosts and ports
    #[arg(long, alias = "encode-servers-urls", value_name = "HOST:PORT", num_args = 1..)]
    #[arg(value_delimiter = ',', help_heading = "Engines")]
    pub encode: Vec<String>,
    /// The model's directory, for tokenising here: tokenizer.json, tokenizer_config.json
    #[arg(long, value_name = "DIR", help_heading = "Engines")]
    pub model_path: Option<String>,
    /// The engines' --block-size, in tokens [default: asked]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, help_heading = "Engines")]
    pub block_size: Option<String>,
    /// The served model name that requests must carry, of a path its last part [default: any]
    #[arg(short, long, value_name = "NAME", help_heading = "Engines")]
    pub model: Option<String>,

    /// The pool that the engines share, as mooncake://10.0.0.8:50051?admin=9003, memcache://,
    /// ems://, ucm:///DIR or lmcache://; sets pool.kind, its addresses, key.preset
    #[arg(long, value_name = "URL", help_heading = "Pool")]
    pub pool: Option<String>,
    /// Tensor-parallel size of an engine, for the pool's keys [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Pool")]
    pub tp: Option<String>,
    /// PYTHONHASHSEED of all engine processes [default: unset there, too]
    #[arg(long, value_name = "TEXT", allow_negative_numbers = true, help_heading = "Pool")]
    pub seed: Option<String>,

    /// The engines' connector is MooncakeLayerwiseConnector: sets dialect.name=layerwise
    #[arg(long, help_heading = "Engines")]
    pub layerwise: bool,
    /// This gateway as decoders reach it, for connectors that call back [default: --host and
    /// --port]
    #[arg(long, value_name = "URL", help_heading = "Engines")]
    pub callback_url: Option<String>,

    /// Time for which prefillers keep KV for a decoder, vLLM's kv_lease_duration: seconds, or a
    /// time with a unit, as 8m [default: 30]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = "Engines")]
    pub lease: Option<String>,

    /// predicted, least_work, least_requests, round_robin, random, power_of_two, reference,
    /// cache_aware or session [default: predicted]
    #[arg(long, value_name = "POLICY", help_heading = "Routing and retries")]
    pub policy: Option<String>,
    /// As --policy round_robin
    #[arg(long, hide = true)]
    pub roundrobin: bool,
    /// Attempts per leg, the first one included [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Routing and retries")]
    pub max_retries: Option<String>,
    /// Pause before the second attempt, doubled with each further one: seconds, or a time with
    /// a unit, as 500ms [default: 0.001]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = "Routing and retries")]
    pub retry_delay: Option<String>,
    /// Probes of an instance being added before it is given up [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Routing and retries")]
    pub max_waiting_retries: Option<String>,
    /// Pause between those probes, written the same way [default: 10]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = "Routing and retries")]
    pub waiting_retry_interval: Option<String>,
}

/// Reads a command line, the program's name first. The error is also how `--help` and `--version`
/// answer.
pub fn parse_from<I, T>(args: I) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let mut program = help::program();
    let matches = program.try_get_matches_from_mut(args)?;
    let Cli { command, serve } = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut program))?;
    Ok(command.unwrap_or(Command::Serve(serve)))
}

#[cfg(test)]
mod tests;
