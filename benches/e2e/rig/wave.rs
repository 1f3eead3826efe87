//! Streams that are all open at once: opened a few at a time, silent for a while, then read to
//! their ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::answer::Events;
use super::client::Connection;
use super::engines::Engines;
use super::process::Meter;
use super::prompts::Aim;
use super::sample::Sample;
use super::trouble::{Trouble, Troubles};

/// Streams that begin at a time: more would wait for each other.
const BEGINNING: usize = 32;
/// Time for all of them to begin.
const BEGIN: Duration = Duration::from_secs(120);
/// Time for all of them to end.
const END: Duration = Duration::from_secs(120);
/// Pause between checks that all streams have begun or ended.
const LOOK: Duration = Duration::from_millis(10);
/// Time before a memory is read, in which memory that only the beginning needed is given back.
const SETTLE: Duration = Duration::from_millis(500);
/// Bytes of each prompt.
const PROMPT_BYTES: usize = 200;
/// Fewest streams whose memory is shown: that of fewer is lost in what the process takes and gives
/// back anyway.
const STREAMS_TO_WEIGH: u64 = 100;
/// Streams and tokens of a first wave that is not measured.
const WARM_UP: (u64, u64) = (8, 8);

/// Number and length of the streams of a wave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Number of streams.
    pub(crate) streams: u64,
    /// Tokens of each stream.
    pub(crate) tokens: u64,
    /// Time for which streams are silent after their first token.
    pub(crate) silence: Duration,
}

#[derive(Debug)]
struct Tally {
    begun: AtomicU64,
    chunks: AtomicU64,
    ended: AtomicU64,
    troubles: Mutex<Troubles>,
    doors: Semaphore,
    /// True if every token is an event of its own.
    exact: bool,
}

/// Opens the streams of a wave and reads them. `engines` keep them silent. Without engines of the
/// bench's own, streams are not held, and chunks are counted from the first beginning on.
pub(crate) async fn run(
    aim: &Arc<Aim>,
    shape: Shape,
    engines: Option<&Engines>,
    meter: &mut Meter,
) -> Sample {
    let (streams, tokens) = WARM_UP;
    let sample = wave(aim, Shape { streams, tokens, ..shape }, None, meter).await;
    if sample.troubles.count() > 0 {
        return sample;
    }
    sleep(SETTLE).await;
    wave(aim, shape, engines, meter).await
}

async fn wave(aim: &Arc<Aim>, shape: Shape, engines: Option<&Engines>, meter: &mut Meter) -> Sample {
    let tally = Arc::new(Tally {
        begun: AtomicU64::new(0),
        chunks: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        troubles: Mutex::default(),
        doors: Semaphore::new(BEGINNING),
        exact: engines.is_some(),
    });
    let resident = meter.resident_bytes();
    let mut cpu = meter.cpu();
    let mut begun = Instant::now();
    if let Some(engines) = engines {
        engines.hold();
    }
    let mut streams = JoinSet::new();
    for _ in 0..shape.streams {
        streams.spawn(stream(aim.clone(), tally.clone(), shape.tokens));
    }
    let mut sample = Sample { requests: shape.streams, answered: shape.streams, ..Sample::default() };
    if !tally.wait_until(&tally.begun, shape.streams, BEGIN).await {
        tally.note(Trouble::Late, shape.streams - tally.begun.load(Ordering::Relaxed));
        sample.troubles = tally.troubles();
        return sample;
    }
    if let Some(engines) = engines {
        sleep(SETTLE).await;
        (cpu, begun) = (meter.cpu(), Instant::now());
        sleep(shape.silence).await;
        sample.silent = Some((meter.cpu() - cpu, begun.elapsed()));
        let grown = meter.resident_bytes().saturating_sub(resident);
        sample.stream_bytes =
            (shape.streams >= STREAMS_TO_WEIGH).then(|| grown as f64 / shape.streams as f64);
        (cpu, begun) = (meter.cpu(), Instant::now());
        tally.chunks.store(0, Ordering::Relaxed);
        engines.go_on();
    }
    if !tally.wait_until(&tally.ended, shape.streams, END).await {
        tally.note(Trouble::Late, shape.streams - tally.ended.load(Ordering::Relaxed));
    }
    sample.cpu = meter.cpu() - cpu;
    sample.wall = begun.elapsed();
    sample.chunks = tally.chunks.load(Ordering::Relaxed);
    sample.troubles = tally.troubles();
    sample
}

impl Tally {
    fn note(&self, trouble: Trouble, count: u64) {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).add(trouble, count);
    }

    fn troubles(&self) -> Troubles {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `counter` has reached `all`; false if it has not within `limit`.
    async fn wait_until(&self, counter: &AtomicU64, all: u64, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while counter.load(Ordering::Relaxed) < all {
            if Instant::now() > until {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }
}

/// Reads one stream, and counts it as begun and ended whatever the outcome.
async fn stream(aim: Arc<Aim>, tally: Arc<Tally>, tokens: u64) {
    let mut begun = false;
    if let Err(trouble) = read(&aim, &tally, tokens, &mut begun).await {
        tally.note(trouble, 1);
    }
    if !begun {
        tally.begun.fetch_add(1, Ordering::Relaxed);
    }
    tally.ended.fetch_add(1, Ordering::Relaxed);
}

async fn read(aim: &Aim, tally: &Tally, tokens: u64, begun: &mut bool) -> Result<(), Trouble> {
    let mut door = tally.doors.acquire().await.ok();
    let mut connection = timeout(BEGIN, Connection::open(aim.to)).await.unwrap_or(Err(Trouble::Late))?;
    let mut answer = connection.ask(&aim.stream(PROMPT_BYTES, tokens)).await?;
    if answer.status != 200 {
        return Err(Trouble::Status(answer.status));
    }
    let mut events = Events::default();
    while let Some(piece) = answer.piece().await? {
        let came = events.feed(piece)?;
        tally.chunks.fetch_add(came, Ordering::Relaxed);
        if events.count > 0 && !*begun {
            *begun = true;
            tally.begun.fetch_add(1, Ordering::Relaxed);
            drop(door.take());
        }
    }
    events.finish(if tally.exact { tokens } else { 1 })
}
