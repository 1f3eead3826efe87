//! Scenarios that can be measured, and their sizes.

use std::fmt;
use std::time::Duration;

use super::{load, wave};

/// Time of one token of a stream, ms.
pub(crate) const STREAM_TOKEN_MS: f64 = 20.0;
/// Chunks of one wave of streams: with many streams each has fewer tokens.
const WAVE_CHUNKS: u64 = 100_000;
/// Fewest tokens of a stream.
const LEAST_TOKENS: u64 = 10;
/// Tokens of a stream that is to be silent.
const IDLE_TOKENS: u64 = 10;
/// The longest prompt, 4 MiB: engines have blocks for one or two of them at a time.
const MOST_BYTES: u64 = 4 << 20;

/// Scenario in which the gateway is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Short prompts with whole answers.
    Small,
    /// Prompts of several lengths.
    Prompts,
    /// Fleets of many engines.
    Instances,
    /// Streams with a fixed time per token.
    Streams,
    /// More than one core for the gateway.
    Cores,
    /// Streams that are open and silent.
    Idle,
}

/// One size of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Scenario of the cell.
    pub(crate) scenario: Scenario,
    /// Size of the cell: bytes, engines, streams or cores.
    pub(crate) size: u64,
}

/// Load that a cell puts on the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Requests with whole answers.
    Whole(load::Shape),
    /// Streams that are open at once.
    Wave(wave::Shape),
}

/// Reasons why a text selects no cells.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// The name is unknown.
    #[error(
        "'{0}': no such scenario: choose of small, prompts, instances, streams, cores, idle, or all alone"
    )]
    Name(String),
    /// The size is no number or out of range.
    #[error("'{text}': {size} is no size: give a number from {least} to {most}")]
    Size {
        /// Scenario and sizes as they were given.
        text: String,
        /// Size as it was given.
        size: String,
        /// Least size of the scenario.
        least: u64,
        /// Greatest size of the scenario.
        most: u64,
    },
}

impl Scenario {
    /// All scenarios, in the order of the tables.
    pub(crate) const ALL: [Scenario; 6] = [
        Scenario::Small,
        Scenario::Prompts,
        Scenario::Instances,
        Scenario::Streams,
        Scenario::Cores,
        Scenario::Idle,
    ];

    /// Name of the scenario in options.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scenario::Small => "small",
            Scenario::Prompts => "prompts",
            Scenario::Instances => "instances",
            Scenario::Streams => "streams",
            Scenario::Cores => "cores",
            Scenario::Idle => "idle",
        }
    }

    /// Title of the scenario's table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Scenario::Small => "prompts of 200 bytes, whole answers, 32 connections, 4 engines",
            Scenario::Prompts => "longer prompts, whole answers, 4 engines",
            Scenario::Instances => {
                "prompts of 200 bytes, whole answers, 32 connections, half of the engines prefillers"
            }
            Scenario::Streams => "streams at 20 ms per token, all open before they go on, 4 engines",
            Scenario::Cores => {
                "prompts of 200 bytes, whole answers, 64 connections, as many cores and workers"
            }
            Scenario::Idle => "open streams that say nothing",
        }
    }

    /// Sizes of the scenario when it is asked for by name.
    fn sizes(self) -> &'static [u64] {
        match self {
            Scenario::Small => &[200],
            Scenario::Prompts => &[1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20],
            Scenario::Instances => &[4, 16, 64, 256],
            Scenario::Streams => &[1, 10, 100, 1_000, 10_000],
            Scenario::Cores => &[1, 2],
            Scenario::Idle => &[1_000, 5_000],
        }
    }

    /// Sizes of the scenario otherwise: those that take little time.
    fn quick_sizes(self) -> &'static [u64] {
        match self {
            Scenario::Streams => &[1, 10, 100, 1_000],
            Scenario::Idle => &[1_000],
            _ => self.sizes(),
        }
    }

    /// Least and greatest size of the scenario.
    fn bounds(self) -> (u64, u64) {
        match self {
            Scenario::Small | Scenario::Prompts => (20, MOST_BYTES),
            Scenario::Instances => (2, 1_024),
            Scenario::Streams | Scenario::Idle => (1, 100_000),
            Scenario::Cores => (1, 64),
        }
    }

    /// All cells of the scenario.
    pub(crate) fn cells(self) -> Vec<Cell> {
        self.sizes().iter().map(|&size| Cell { scenario: self, size }).collect()
    }
}

/// Cells that take two minutes in all.
pub(crate) fn quick() -> Vec<Cell> {
    let cells = |scenario: Scenario| scenario.quick_sizes().iter().map(move |&size| Cell { scenario, size });
    Scenario::ALL.into_iter().flat_map(cells).collect()
}

/// Selects the cells of `names`, each a scenario and perhaps its sizes: `streams:1:10`.
///
/// # Errors
/// A scenario is unknown, or a size is no number or out of range.
pub(crate) fn select(names: &[String]) -> Result<Vec<Cell>, PlanError> {
    let mut cells = Vec::new();
    for text in names {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let scenario = Scenario::ALL.into_iter().find(|scenario| scenario.name() == name);
        let scenario = scenario.ok_or_else(|| PlanError::Name(text.clone()))?;
        let (least, most) = scenario.bounds();
        let mut sizes = Vec::new();
        for size in parts {
            let known = size.parse().ok().filter(|size| (least..=most).contains(size));
            let wrong = || PlanError::Size { text: text.clone(), size: size.to_owned(), least, most };
            sizes.push(Cell { scenario, size: known.ok_or_else(wrong)? });
        }
        cells.extend(if sizes.is_empty() { scenario.cells() } else { sizes });
    }
    Ok(cells)
}

impl Cell {
    /// Engines that it needs, half of them prefillers.
    pub(crate) fn engines(self) -> usize {
        if self.scenario == Scenario::Instances { usize::try_from(self.size).unwrap_or(4) } else { 4 }
    }

    /// Number of the proxy's cores, if the scenario is about them.
    pub(crate) fn cores(self) -> Option<usize> {
        (self.scenario == Scenario::Cores).then(|| usize::try_from(self.size).unwrap_or(1))
    }

    /// Streams that are open at once; 0 if there are none.
    pub(crate) fn streams(self) -> u64 {
        if matches!(self.scenario, Scenario::Streams | Scenario::Idle) { self.size } else { 0 }
    }

    /// Load of the cell for a window of this length.
    pub(crate) fn shape(self, window: Duration) -> Shape {
        let whole = |bytes: u64, connections| {
            let prompt_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            Shape::Whole(load::Shape { prompt_bytes, connections })
        };
        let wave = |tokens, silence| Shape::Wave(wave::Shape { streams: self.size, tokens, silence });
        match self.scenario {
            Scenario::Small => whole(self.size, 32),
            Scenario::Instances => whole(200, 32),
            Scenario::Cores => whole(200, 64),
            Scenario::Prompts => whole(self.size, connections(self.size)),
            Scenario::Streams => {
                let paced = (window.as_secs_f64() * 1e3 / STREAM_TOKEN_MS) as u64;
                wave(paced.min(WAVE_CHUNKS / self.size).max(LEAST_TOKENS), Duration::ZERO)
            }
            Scenario::Idle => wave(IDLE_TOKENS, window),
        }
    }
}

/// Requests at a time: fewer if prompts are long, since engines have to keep up with them.
fn connections(bytes: u64) -> usize {
    match bytes {
        ..=16_384 => 16,
        16_385..=131_072 => 8,
        _ => 4,
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size;
        match self.scenario {
            Scenario::Small | Scenario::Prompts if size.is_multiple_of(1 << 20) => {
                write!(f, "{} MB", size >> 20)
            }
            Scenario::Small | Scenario::Prompts if size.is_multiple_of(1 << 10) => {
                write!(f, "{} KB", size >> 10)
            }
            Scenario::Small | Scenario::Prompts => write!(f, "{size} B"),
            Scenario::Instances => write!(f, "{size} engines"),
            Scenario::Streams | Scenario::Idle if size == 1 => f.write_str("1 stream"),
            Scenario::Streams | Scenario::Idle => write!(f, "{size} streams"),
            Scenario::Cores if size == 1 => f.write_str("1 core"),
            Scenario::Cores => write!(f, "{size} cores"),
        }
    }
}
