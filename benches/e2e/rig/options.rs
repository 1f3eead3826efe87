//! Command line of the bench, and the options that it yields.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use http::Uri;
use http::uri::Scheme;

use super::command::{Command, CommandError};
use super::plan::{Cell, PlanError, Scenario, quick, select};

/// The gateway of this package, in the command line's own notation.
const OURS: &str = "{exe} --host 127.0.0.1 --port {port} --workers {cores} --log-level warning \
                    --prefill [127.0.0.1:{p*}] --decode [127.0.0.1:{d*}]";
/// Name of this package's gateway in tables.
const OUR_NAME: &str = "pd-proxy";

/// Measures a gateway between simulated engines and a load generator: CPU time, and memory for each
/// stream.
#[derive(Debug, Parser)]
#[command(
    name = "e2e",
    after_help = "Commands have {port}, where the proxy is to listen, {p0} {p1} {d0} {d1}, ports of \
    engines on 127.0.0.1 ({x0} {x1}: for proxies without a prefill leg), {aux} {aux2}, free ports, {cores}, how many it has, \
    {work}, a directory, {file:PATH}, a copy of a file in which the same is replaced, and {exe}, this package's gateway (--exe). \
    What stands in brackets is repeated: [--prefill http://127.0.0.1:{p*}]. A command must stay in the foreground.\n\n\
    Exit codes: 0 good, 1 an answer was bad or something could not be measured, 2 a flag that makes no sense."
)]
pub(crate) struct Usage {
    /// small, prompts, instances, streams, cores, idle, each with its sizes (streams:100:9000), or
    /// all of them [default: some sizes of each, within two minutes]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Seconds measured in each cell
    #[arg(long, value_name = "N", default_value_t = 2.5)]
    seconds: f64,
    /// Repetitions, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    reps: u32,
    /// The proxy's cores [default: the first that this process may use]; the rest has the others
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// A pace for whole answers, ms per token; streams have 20
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pace_ms: f64,
    /// This package's gateway [default: as cargo builds it beside this bench, by the same profile];
    /// target/dist-pgo/pd-proxy is that of benches/pgo/dist.sh --pgo
    #[arg(long, value_name = "PATH", default_value = env!("CARGO_BIN_EXE_pd-proxy"), hide_default_value = true)]
    exe: String,
    /// Run this proxy in place of ours
    #[arg(long, value_name = "COMMAND")]
    cmd: Option<String>,
    /// Run this proxy, too, in turn with ours, and say the ratio; repeatable
    #[arg(long, value_name = "NAME=COMMAND")]
    compare: Vec<String>,
    /// A proxy that runs already, with engines of its own, in place of ours; needs --pid
    #[arg(long, value_name = "URL", requires = "pid", conflicts_with_all = ["cmd", "compare"])]
    url: Option<String>,
    /// Process id of the proxy at --url
    #[arg(long, value_name = "PID", requires = "url")]
    pid: Option<u32>,
    /// The model that requests name
    #[arg(long, value_name = "NAME", default_value = "sim")]
    model: String,
    /// Passed by cargo, without effect
    #[arg(long, hide = true)]
    bench: bool,
}

/// Reasons why a flag makes no sense.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OptionError {
    /// A scenario or one of its sizes is unknown.
    #[error("--scenarios {0}")]
    Scenario(#[from] PlanError),
    /// A command is malformed.
    #[error("{flag} '{text}': {source}")]
    Command {
        /// Flag that gave the command.
        flag: &'static str,
        /// Text of the command.
        text: String,
        /// Description of the fault.
        source: CommandError,
    },
    /// A compared command has no name before it.
    #[error("--compare '{0}': no name: write NAME=COMMAND, as in nginx=…")]
    Nameless(String),
    /// Two proxies of one name.
    #[error("--compare '{0}': this name is taken: give each proxy its own")]
    Twice(String),
    /// A time is out of its range.
    #[error("{flag} {value}: not from {least} to {most}: choose a number in between")]
    Time {
        /// Flag that gave the number.
        flag: &'static str,
        /// Number as it was given.
        value: f64,
        /// Least number that is allowed.
        least: f64,
        /// Greatest number that is allowed.
        most: f64,
    },
    /// An address is not `http://HOST:PORT`.
    #[error("--url '{0}': not http://HOST:PORT: leave path and https:// away")]
    Url(String),
}

/// A proxy to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// Name of the proxy in tables.
    pub(crate) name: String,
    /// Origin of the proxy.
    pub(crate) origin: Origin,
}

/// Ways in which a proxy comes to be there.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The bench starts it by this command, in front of engines of its own.
    Command(Command),
    /// It runs already: host, port and process id.
    Running(String, u16, u32),
}

/// Options that have been checked.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Cells that are measured, in order.
    pub(crate) cells: Vec<Cell>,
    /// Time for which each cell is measured.
    pub(crate) window: Duration,
    /// Number of repetitions, of which the median counts.
    pub(crate) reps: u32,
    /// Cores of the proxies; empty = the first that this process may use.
    pub(crate) cores: Vec<usize>,
    /// Time per token of a whole answer, in ms.
    pub(crate) pace_ms: f64,
    /// The proxies; ratios are those of the first to each.
    pub(crate) proxies: Vec<Proxy>,
    /// The model that requests name.
    pub(crate) model: String,
    /// Path of this package's gateway.
    pub(crate) exe: String,
}

impl Options {
    /// Returns the profile by which the gateway was built: the folder that cargo, or
    /// benches/pgo/dist.sh, puts it into.
    pub(crate) fn profile(&self) -> &str {
        Path::new(&self.exe).parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or("unknown")
    }
}

impl TryFrom<Usage> for Options {
    type Error = OptionError;

    fn try_from(usage: Usage) -> Result<Options, OptionError> {
        let proxies = proxies(&usage)?;
        let cells = match usage.scenarios.as_slice() {
            [] => quick(),
            [one] if one == "all" => Scenario::ALL.into_iter().flat_map(Scenario::cells).collect(),
            some => select(some)?,
        };
        Ok(Options {
            cells,
            window: Duration::from_secs_f64(within("--seconds", usage.seconds, (0.1, 600.0))?),
            reps: usage.reps,
            cores: usage.cores,
            pace_ms: within("--pace-ms", usage.pace_ms, (0.0, 10_000.0))?,
            proxies,
            model: usage.model,
            exe: usage.exe,
        })
    }
}

fn within(flag: &'static str, value: f64, (least, most): (f64, f64)) -> Result<f64, OptionError> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(OptionError::Time { flag, value, least, most })
    }
}

fn proxies(usage: &Usage) -> Result<Vec<Proxy>, OptionError> {
    if let (Some(url), Some(pid)) = (&usage.url, usage.pid) {
        let (host, port) = place(url).ok_or_else(|| OptionError::Url(url.clone()))?;
        return Ok(vec![Proxy { name: url.clone(), origin: Origin::Running(host, port, pid) }]);
    }
    let mut found = match &usage.cmd {
        Some(text) => vec![proxy("--cmd", "cmd", text)?],
        None => vec![proxy("its own command", OUR_NAME, OURS)?],
    };
    for text in &usage.compare {
        let named = text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains([' ', '{']));
        let (name, command) = named.ok_or_else(|| OptionError::Nameless(text.clone()))?;
        if found.iter().any(|proxy| proxy.name == name) {
            return Err(OptionError::Twice(text.clone()));
        }
        found.push(proxy("--compare", name, command)?);
    }
    Ok(found)
}

fn proxy(flag: &'static str, name: &str, text: &str) -> Result<Proxy, OptionError> {
    let command = Command::parse(text).map_err(|source| OptionError::Command {
        flag,
        text: text.to_owned(),
        source,
    })?;
    Ok(Proxy { name: name.to_owned(), origin: Origin::Command(command) })
}

/// Reads host and port of an address without a path.
fn place(url: &str) -> Option<(String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let plain = uri.scheme() == Some(&Scheme::HTTP) && uri.path() == "/" && uri.query().is_none();
    let host = uri.host().filter(|_| plain)?.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), uri.port_u16()?))
}
