//! Flags of `pd-proxy replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::number::{factor, not_negative, percent, positive};

/// Most prefillers, and most decoders.
const MACHINES_MAX: i64 = 64;

/// Flags of `replay`: a trace, and what it runs through.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// A trace in Mooncake's format: a JSON object per line with timestamp, input_length,
    /// output_length, hash_ids
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Only the trace's first requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// One JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Draw times to the first token and the share within the SLO over load into this SVG file,
    /// with --ratio the requests per second over the splits
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Replay in virtual time
    #[command(flatten)]
    pub simulated: SimulatedArgs,
}

/// Flags of a replay in virtual time.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Virtual time")]
pub struct SimulatedArgs {
    /// Policies to compare, the first with the others; all = every one there is
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "all")]
    pub policy: Vec<String>,
    /// Show policies that can't bear a load as well, where all are compared
    #[arg(long)]
    pub diverging: bool,
    /// Rates of arrival; 1.0 is what the prefillers just bear when they know no prompt
    #[arg(long, value_name = "LOAD", value_delimiter = ',', default_value = "0.5,0.75", value_parser = factor)]
    pub load: Vec<f64>,
    /// Later turns of conversations come at their time (open), or when the answer before has ended
    /// and its user has thought (closed)
    #[arg(long = "loop", value_enum, default_value_t = ReplayLoop::Open)]
    pub pace: ReplayLoop,
    /// Mean think time of a closed loop, exponentially distributed [default: the trace's own gaps]
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    pub think_ms: Option<f64>,
    /// Search the largest load at which nine in ten requests are within the SLO, instead of
    /// replaying at --load
    #[arg(long, conflicts_with = "load")]
    pub capacity: bool,
    /// Search the split of this many engines into prefillers and decoders that bears the most
    /// requests per second, with the first of the policies
    #[arg(long, value_name = "N", requires = "capacity")]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=MACHINES_MAX))]
    pub ratio: Option<u16>,
    /// Runs of each kind; the spread of arrivals and the ties differ between them
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// Number of prefillers
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=MACHINES_MAX))]
    pub prefillers: u16,
    /// Number of decoders
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=MACHINES_MAX))]
    pub decoders: u16,
    /// Pool that the prefillers share
    #[arg(long, value_enum, default_value_t = ReplayPool::None)]
    pub pool: ReplayPool,
    /// The prefillers publish KV events
    #[arg(long)]
    pub kv_events: bool,
    /// Prefix cache of a prefiller, tokens [default: 1000000]
    #[arg(long, value_name = "N")]
    pub hbm_tokens: Option<u32>,
    /// Pool memory of a prefiller's host, tokens [default: 3200000]
    #[arg(long, value_name = "N")]
    pub pool_tokens: Option<u32>,
    /// Decoders keep a prefix cache of what they were handed and generated, and can compute the
    /// rest of a prompt
    #[arg(long)]
    pub decode_cache: bool,
    /// Longest time between two tokens that streams beside a prompt may be given, ms; 0 = decoders
    /// compute no prompt
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = not_negative, requires = "decode_cache")]
    pub append_gap_ms: f64,
    /// Most time by which tokens of all streams beside a prompt together may be late, ms
    #[arg(long, value_name = "MS", default_value_t = 1000.0, value_parser = not_negative, requires = "decode_cache")]
    pub append_late_ms: f64,
    /// Tokens that a decoder computes in one step
    #[arg(long, value_name = "N", default_value_t = 512, requires = "decode_cache")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub append_chunk: u32,
    /// SLO: seconds until the first token
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = not_negative)]
    pub slo_ttft: f64,
    /// SLO: and so many times what the request's own prefill takes when nothing of it is cached
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = not_negative)]
    pub slo_prefills: f64,
    /// SLO: longest time between two tokens of a request, ms
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = positive)]
    pub slo_gap: f64,

    /// Requests for which the pool gives no answer, %
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    #[arg(help_heading = "Faults, in virtual time")]
    pub pool_missing: f64,
    /// Age of the pool's answers, s
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative)]
    #[arg(help_heading = "Faults, in virtual time")]
    pub pool_stale: f64,
    /// Gateways that share the requests; without --share-ms they know nothing of each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    #[arg(help_heading = "Faults, in virtual time")]
    pub gateways: u16,
    /// Time that a message between gateways takes, ms
    #[arg(long, value_name = "MS", value_parser = not_negative, requires = "gateways")]
    #[arg(help_heading = "Faults, in virtual time")]
    pub share_ms: Option<f64>,
    /// Messages between gateways that are lost, %
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent, requires = "share_ms")]
    #[arg(help_heading = "Faults, in virtual time")]
    pub share_lost: f64,
    /// Factor by which the costs assumed at the start are multiplied
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    #[arg(help_heading = "Faults, in virtual time")]
    pub cost_factor: f64,
    /// Factor by which one prefiller is slower than the others
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    #[arg(help_heading = "Faults, in virtual time")]
    pub slow: f64,
    /// Factor by which KV goes slower from each prefiller to every second decoder
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    #[arg(help_heading = "Faults, in virtual time")]
    pub far_links: f64,
    /// One prefiller dies when half of the requests have come
    #[arg(long, help_heading = "Faults, in virtual time")]
    pub dead: bool,
}

/// Ways in which later turns of conversations come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReplayLoop {
    /// At their time
    Open,
    /// A think time after the answer before has ended
    Closed,
}

/// Pools that simulated prefillers can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReplayPool {
    /// No pool at all
    None,
    /// One pool that each of them restores from
    Shared,
    /// A store on each host, for its own prefiller only
    Local,
    /// A store on each host, slower for the others
    Mixed,
}
