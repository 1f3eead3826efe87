//! Measures one cell for one proxy: starts engines and proxy, loads them and reads the cost.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pd_proxy::sim::EngineSpec;
use tokio::net::lookup_host;
use tokio::time::sleep;

use super::command::{Command, Places};
use super::cores::Cores;
use super::engines::Engines;
use super::options::{Options, Origin, Proxy};
use super::plan::{Cell, STREAM_TOKEN_MS, Scenario, Shape};
use super::process::Meter;
use super::prompts::Aim;
use super::sample::Sample;
use super::target::{Started, free_ports};
use super::{load, wave};

/// Longest time until a proxy answers.
const READY: Duration = Duration::from_secs(60);
/// Pause between attempts to reach a proxy.
const AGAIN: Duration = Duration::from_millis(50);
/// KV blocks of an engine. A prompt of a megabyte has 22 000, and several are there at a time.
const KV_BLOCKS: usize = 131_072;
/// KV blocks of an engine among many; there, prompts are short.
const FEW_KV_BLOCKS: usize = 4_096;
/// Most engines that have [`KV_BLOCKS`] each.
const MANY_ENGINES: usize = 16;
/// Descriptors besides those of streams: engines' listeners, idle connections, files.
const OTHER_FILES: u64 = 500;
/// Descriptors for an engine: its listener, and connections to it and from it.
const FILES_PER_ENGINE: u64 = 8;

/// Outcome of one measurement of a cell.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The cell was measured.
    Done(Box<Sample>),
    /// The cell can't be measured here, for this reason; that counts as no error.
    Skipped(String),
    /// The measurement failed, for this reason.
    Failed(String),
}

/// Settings that all cells share.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    /// Options of the run.
    pub(crate) options: &'a Options,
    /// Cores of the proxy and of the load.
    pub(crate) cores: &'a Cores,
    /// Directory for files of the run.
    pub(crate) work: &'a Path,
    /// Most files that a process may open.
    pub(crate) open_files: u64,
}

impl Bench<'_> {
    /// Measures `cell` for `proxy`.
    pub(crate) async fn measure(&self, cell: Cell, proxy: &Proxy) -> Outcome {
        if let Some(why) = self.impossible(cell, proxy) {
            return Outcome::Skipped(why);
        }
        let measured = match &proxy.origin {
            Origin::Command(command) => self.started(cell, command).await,
            Origin::Running(host, port, pid) => self.running(cell, host, *port, *pid).await,
        };
        match measured {
            Ok(sample) => Outcome::Done(Box::new(sample)),
            Err(e) => Outcome::Failed(e.to_string()),
        }
    }

    /// Returns the reason why a cell can't be measured, if there is one.
    fn impossible(&self, cell: Cell, proxy: &Proxy) -> Option<String> {
        // A stream has two descriptors in the proxy, and two here: the client's and the decoder's.
        let needed = 2 * cell.streams() + FILES_PER_ENGINE * cell.engines() as u64 + OTHER_FILES;
        if needed > self.open_files {
            let limit = self.open_files;
            return Some(format!(
                "needs {needed} open files, and the limit is {limit}: raise it (ulimit -Hn)"
            ));
        }
        match &proxy.origin {
            Origin::Command(command) if cell.engines() != 4 && !command.takes_any() => Some(
                "its command names four engines: put [ ] around what is to be repeated for each".to_owned(),
            ),
            Origin::Running(..)
                if matches!(cell.scenario, Scenario::Instances | Scenario::Cores | Scenario::Idle) =>
            {
                Some("it has its own engines and cores".to_owned())
            }
            _ => None,
        }
    }

    async fn started(&self, cell: Cell, command: &Command) -> io::Result<Sample> {
        let engines = Engines::start(cell.engines(), &self.engine(cell)).await?;
        let ports = free_ports(3)?;
        let cores = self.cores.of_proxy(cell.cores());
        let mut words = self.cores.prefix(&cores);
        words.extend(command.fill(&self.places(&engines, &ports, cores.len()), self.work)?);
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.first().copied().unwrap_or_default()));
        let aim = Arc::new(Aim::new(to, &self.options.model));
        let mut process = Started::new(&words, self.work)?;
        ready(&aim, &mut process).await?;
        let mut meter = Meter::of(process.pid());
        let sample = self.run(cell, &aim, Some(&engines), &mut meter).await;
        if process.is_over() {
            return Err(io::Error::other(format!("the proxy ended: {}", process.said())));
        }
        Ok(sample)
    }

    async fn running(&self, cell: Cell, host: &str, port: u16, pid: u32) -> io::Result<Sample> {
        let found = lookup_host((host, port)).await?.next();
        let to = found.ok_or_else(|| io::Error::other(format!("{host} has no address")))?;
        let aim = Arc::new(Aim::new(to, &self.options.model));
        load::probe(&aim).await.map_err(|e| io::Error::other(format!("{to}: {e}")))?;
        let mut meter = Meter::of(pid);
        if meter.cpu().is_zero() {
            return Err(io::Error::other(format!(
                "--pid {pid}: no such process: name the one that listens at {to}"
            )));
        }
        Ok(self.run(cell, &aim, None, &mut meter).await)
    }

    async fn run(&self, cell: Cell, aim: &Arc<Aim>, engines: Option<&Engines>, meter: &mut Meter) -> Sample {
        match cell.shape(self.options.window) {
            Shape::Whole(shape) => load::run(aim, shape, self.options.window, meter).await,
            Shape::Wave(shape) => wave::run(aim, shape, engines, meter).await,
        }
    }

    fn engine(&self, cell: Cell) -> EngineSpec {
        let tpot_ms = if cell.streams() > 0 { STREAM_TOKEN_MS } else { self.options.pace_ms };
        EngineSpec {
            model: self.options.model.clone(),
            kv_blocks: if cell.engines() > MANY_ENGINES { FEW_KV_BLOCKS } else { KV_BLOCKS },
            max_model_len: usize::MAX,
            tpot_ms,
            seen_requests: 0,
            ..EngineSpec::default()
        }
    }

    fn places(&self, engines: &Engines, ports: &[u16], cores: usize) -> Places {
        let (prefill, decode) = (engines.prefill_ports(), engines.decode_ports());
        let named = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
        let mut all = vec![
            named("exe", &self.options.exe),
            named("work", &self.work.display()),
            named("cores", &cores),
        ];
        all.extend(["port", "aux", "aux2"].iter().zip(ports).map(|(name, port)| named(name, port)));
        let each = prefill.iter().zip(&decode).enumerate();
        all.extend(each.flat_map(|(n, (p, d))| {
            [named(&format!("p{n}"), p), named(&format!("d{n}"), d), named(&format!("x{n}"), d)]
        }));
        Places { named: all, prefill, decode }
    }
}

/// Waits until the proxy answers as it should.
async fn ready(aim: &Aim, process: &mut Started) -> io::Result<()> {
    let until = Instant::now() + READY;
    loop {
        let probed = load::probe(aim).await;
        // Another process may answer at its port, in which case the proxy has ended.
        if process.is_over() {
            return Err(io::Error::other(format!("the proxy ended at once: {}", process.said())));
        }
        let Err(trouble) = probed else { return Ok(()) };
        if Instant::now() > until {
            return Err(io::Error::other(format!("the proxy is not ready ({trouble}): {}", process.said())));
        }
        sleep(AGAIN).await;
    }
}
