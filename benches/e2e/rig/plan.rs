//! What can be measured, and in which sizes.

use std::fmt;
use std::time::Duration;

use super::{load, wave};

/// Time of one token of a stream, ms.
pub(crate) const STREAM_TOKEN_MS: f64 = 20.0;
/// Chunks of one wave of streams: with many streams each has fewer tokens.
const WAVE_CHUNKS: u64 = 100_000;
/// Tokens of a stream, at least.
const LEAST_TOKENS: u64 = 10;
/// Tokens of a stream that is to be silent.
const IDLE_TOKENS: u64 = 10;
/// The longest prompt, 4 MiB: engines have blocks for one or two of them at a time.
const MOST_BYTES: u64 = 4 << 20;

/// A question to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Short prompts, whole answers.
    Small,
    /// Prompts of some length.
    Prompts,
    /// Many engines.
    Instances,
    /// Streams at a pace.
    Streams,
    /// More than one core for the gateway.
    Cores,
    /// Streams that say nothing.
    Idle,
}

/// One size of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The scenario.
    pub(crate) scenario: Scenario,
    /// Bytes, engines, streams or cores.
    pub(crate) size: u64,
}

/// What loads the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Whole answers.
    Whole(load::Shape),
    /// Streams.
    Wave(wave::Shape),
}

/// What is no scenario.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// Its name.
    #[error(
        "'{0}': no such scenario: choose of small, prompts, instances, streams, cores, idle, or all alone"
    )]
    Name(String),
    /// Its size.
    #[error("'{text}': {size} is no size: give a number from {least} to {most}")]
    Size {
        /// All of it.
        text: String,
        /// The size.
        size: String,
        /// The least that there is.
        least: u64,
        /// The most.
        most: u64,
    },
}

impl Scenario {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Scenario; 6] = [
        Scenario::Small,
        Scenario::Prompts,
        Scenario::Instances,
        Scenario::Streams,
        Scenario::Cores,
        Scenario::Idle,
    ];

    /// As in options.
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

    /// What its table is about.
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

    /// Its sizes when it is asked for by name.
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

    /// Its sizes otherwise: those that take little time.
    fn quick_sizes(self) -> &'static [u64] {
        match self {
            Scenario::Streams => &[1, 10, 100, 1_000],
            Scenario::Idle => &[1_000],
            _ => self.sizes(),
        }
    }

    /// The least and the most of its sizes.
    fn bounds(self) -> (u64, u64) {
        match self {
            Scenario::Small | Scenario::Prompts => (20, MOST_BYTES),
            Scenario::Instances => (2, 1_024),
            Scenario::Streams | Scenario::Idle => (1, 100_000),
            Scenario::Cores => (1, 64),
        }
    }

    /// All of its cells.
    pub(crate) fn cells(self) -> Vec<Cell> {
        self.sizes().iter().map(|&size| Cell { scenario: self, size }).collect()
    }
}

/// What takes two minutes in all.
pub(crate) fn quick() -> Vec<Cell> {
    let cells = |scenario: Scenario| scenario.quick_sizes().iter().map(move |&size| Cell { scenario, size });
    Scenario::ALL.into_iter().flat_map(cells).collect()
}

/// The cells of `names`, each a scenario and perhaps its sizes: `streams:1:10`.
///
/// # Errors
/// What is not known, or no size.
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

    /// The proxy's cores, if they are what it is about.
    pub(crate) fn cores(self) -> Option<usize> {
        (self.scenario == Scenario::Cores).then(|| usize::try_from(self.size).unwrap_or(1))
    }

    /// Streams that are open at once; 0 if there are none.
    pub(crate) fn streams(self) -> u64 {
        if matches!(self.scenario, Scenario::Streams | Scenario::Idle) { self.size } else { 0 }
    }

    /// What is asked, in a window of this length.
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

/// Requests at a time: engines have to keep up with long ones.
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
