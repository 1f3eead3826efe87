//! A load of several connections, each of which asks again as soon as it is answered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::answer::check_whole;
use super::client::Connection;
use super::process::Meter;
use super::prompts::Aim;
use super::sample::Sample;
use super::trouble::{Trouble, Troubles};

/// Time before a window, in which connections open and pools and caches fill.
const WARM_UP: Duration = Duration::from_millis(700);
/// Longest time of a request, also of those that are open when the window ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause after a bad answer: a proxy that refuses everything must not be flooded.
const AFTER_TROUBLE: Duration = Duration::from_millis(20);
/// Longest answer, in bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// Size and number of the requests of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of each prompt.
    pub(crate) prompt_bytes: usize,
    /// Requests that are open at a time.
    pub(crate) connections: usize,
}

#[derive(Debug, Default)]
struct Tally {
    answered: AtomicU64,
    ended: AtomicBool,
    troubles: Mutex<Troubles>,
}

/// Sends requests before and during the window, and waits for those that are open at its end.
pub(crate) async fn run(aim: &Arc<Aim>, shape: Shape, window: Duration, meter: &mut Meter) -> Sample {
    let tally = Arc::new(Tally::default());
    let mut workers = JoinSet::new();
    for _ in 0..shape.connections {
        workers.spawn(work(aim.clone(), tally.clone(), shape.prompt_bytes));
    }
    sleep(WARM_UP).await;
    let (cpu, answered, begun) = (meter.cpu(), tally.answered.load(Ordering::Relaxed), Instant::now());
    sleep(window).await;
    let mut sample = Sample {
        cpu: meter.cpu() - cpu,
        requests: tally.answered.load(Ordering::Relaxed) - answered,
        wall: begun.elapsed(),
        ..Sample::default()
    };
    tally.ended.store(true, Ordering::Relaxed);
    // Each worker ends by itself: its requests have a time limit.
    while workers.join_next().await.is_some() {}
    sample.answered = tally.answered.load(Ordering::Relaxed);
    sample.troubles = tally.troubles.lock().unwrap_or_else(PoisonError::into_inner).clone();
    sample
}

async fn work(aim: Arc<Aim>, tally: Arc<Tally>, prompt_bytes: usize) {
    let mut kept = None;
    while !tally.ended.load(Ordering::Relaxed) {
        let request = aim.whole(prompt_bytes);
        match timeout(PATIENCE, exchange(&aim, &mut kept, &request)).await.unwrap_or(Err(Trouble::Late)) {
            Ok(()) => drop(tally.answered.fetch_add(1, Ordering::Relaxed)),
            Err(trouble) => {
                kept = None;
                tally.troubles.lock().unwrap_or_else(PoisonError::into_inner).note(trouble);
                sleep(AFTER_TROUBLE).await;
            }
        }
    }
}

/// Sends one request, over the connection that was kept if there is one.
async fn exchange(aim: &Aim, kept: &mut Option<Connection>, request: &[u8]) -> Result<(), Trouble> {
    match once(aim, kept, request).await {
        // The peer may close an idle connection at any time, which is no fault.
        Err(Trouble::Stale) => once(aim, kept, request).await,
        other => other,
    }
}

async fn once(aim: &Aim, kept: &mut Option<Connection>, request: &[u8]) -> Result<(), Trouble> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => Connection::open(aim.to).await?,
    };
    let mut answer = connection.ask(request).await?;
    if answer.status != 200 {
        return Err(Trouble::Status(answer.status));
    }
    check_whole(&answer.whole(ANSWER_BYTES).await?)?;
    *kept = Some(connection).filter(Connection::is_free);
    Ok(())
}

/// Checks that the proxy answers now.
pub(crate) async fn probe(aim: &Aim) -> Result<(), Trouble> {
    let request = aim.whole(40);
    timeout(PATIENCE, once(aim, &mut None, &request)).await.unwrap_or(Err(Trouble::Late))
}
