//! UCM's stores on a mounted file system: a block is there if its file has its final name.
//!
//! Only `stat` is called, which changes nothing. A mount that hangs holds the threads that asked
//! it, and no more. A later question waits for one of them until it gives up, and beyond a bound is
//! told `Busy`. These are threads of our own, so that the process can end while they hang.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::try_join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::store::{KeyStore, Placement};
use super::{Answer, PoolError};
use crate::kvhash::keys::KeyBatch;

/// Most keys of one question: a share answers a `stat` in 0.1 to 0.5 ms.
const BATCH_KEYS: usize = 64;
/// Keys that one thread is given, if there are more threads to be had.
const SHARE_KEYS: usize = 8;
/// Questions, or parts of one, that wait for a thread.
const MAX_WAITING: usize = 1024;

/// Place where the blocks are. Their keys are whole paths, as the engines' machines have them; the
/// share must be mounted at the same place here.
#[derive(Clone, Debug)]
pub struct UcmConfig {
    /// The stores' root directories, absolute. Keys outside of them are not looked at.
    pub roots: Vec<PathBuf>,
    /// Threads, and so the most calls that a hung mount can hold.
    pub threads: usize,
}

/// A client of one set of storage directories.
pub struct Ucm<F = fn(&Path) -> io::Result<bool>> {
    config: UcmConfig,
    jobs: SyncSender<Job<F>>,
    permits: Arc<Semaphore>,
    /// Places to wait in for a permit.
    waiting: Semaphore,
    exists: F,
}

/// Some keys of one question.
struct Job<F> {
    paths: Vec<PathBuf>,
    exists: F,
    report: oneshot::Sender<io::Result<Vec<bool>>>,
    /// Gone when nobody waits any more.
    wanted: Weak<()>,
    /// Given back when the last call has returned, however long after.
    permit: OwnedSemaphorePermit,
}

impl Ucm {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn new(config: UcmConfig) -> io::Result<Self> {
        Self::with(config, exists)
    }
}

impl<F> Ucm<F>
where
    F: Fn(&Path) -> io::Result<bool> + Clone + Send + Sync + 'static,
{
    /// As [`Ucm::new`], with another way to look.
    fn with(config: UcmConfig, exists: F) -> io::Result<Self> {
        let threads = config.threads.max(1);
        let (jobs, queue) = sync_channel(threads);
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..threads {
            let queue = queue.clone();
            std::thread::Builder::new().name(format!("pd-ucm-{n}")).spawn(move || work(&queue))?;
        }
        let (permits, waiting) = (Arc::new(Semaphore::new(threads)), Semaphore::new(MAX_WAITING));
        Ok(Self { config, jobs, permits, waiting, exists })
    }

    async fn ask(&self, keys: &KeyBatch, indexes: &[u32]) -> Result<Vec<Placement>, PoolError> {
        if indexes.len() > BATCH_KEYS {
            return Err(PoolError::TooLarge(format!("{} keys at once", indexes.len())));
        }
        let paths = indexes.iter().map(|index| self.path(keys, *index)).collect::<Result<Vec<_>, _>>()?;
        let found = self.exist(paths).await?;
        if !found.is_empty() && !found.contains(&true) {
            self.check_roots().await?;
        }
        Ok(found.into_iter().map(|present| Placement { present, ..Placement::default() }).collect())
    }

    fn path(&self, keys: &KeyBatch, index: u32) -> Result<PathBuf, PoolError> {
        let key = keys.get(index as usize);
        let path = Path::new(key.ok_or_else(|| PoolError::TooLarge("an index beyond the keys".to_owned()))?);
        let up = path.components().any(|part| part == std::path::Component::ParentDir);
        if up || !self.config.roots.iter().any(|root| path.starts_with(root)) {
            return Err(PoolError::Refused("a key outside of the roots".to_owned()));
        }
        Ok(path.to_owned())
    }

    /// With its share gone, a store has no block, and that is not what an empty store is.
    async fn check_roots(&self) -> Result<(), PoolError> {
        match self.exist(self.config.roots.clone()).await? {
            there if there.iter().all(|there| *there) => Ok(()),
            _ => Err(PoolError::Unreachable("a root directory is not there".to_owned())),
        }
    }

    async fn exist(&self, paths: Vec<PathBuf>) -> Result<Vec<bool>, PoolError> {
        let wanted = Arc::new(());
        let mut permits = self.permits(paths.len().div_ceil(SHARE_KEYS)).await?;
        let share = paths.len().div_ceil(permits.len().max(1)).max(1);
        let mut reports = Vec::new();
        for paths in paths.chunks(share) {
            let Some(permit) = permits.pop() else { return Err(PoolError::Busy) };
            let (report, answer) = oneshot::channel();
            let job = Job {
                paths: paths.to_vec(),
                exists: self.exists.clone(),
                report,
                wanted: Arc::downgrade(&wanted),
                permit,
            };
            // There are as many places as permits.
            self.jobs.try_send(job).map_err(|_| PoolError::Busy)?;
            reports.push(answer);
        }
        drop(permits);
        let found = try_join_all(reports).await;
        let found = found.map_err(|_| PoolError::Unreachable("a thread ended".to_owned()))?;
        let found: io::Result<Vec<Vec<bool>>> = found.into_iter().collect();
        let found = found.map_err(|error| PoolError::Unreachable(error.to_string()))?;
        Ok(found.into_iter().flatten().collect())
    }

    /// As many as there are to be had, up to `most`; the first is waited for, in the order of the
    /// questions.
    async fn permits(&self, most: usize) -> Result<Vec<OwnedSemaphorePermit>, PoolError> {
        if most == 0 {
            return Ok(Vec::new());
        }
        let first = {
            let _place = self.waiting.try_acquire().map_err(|_| PoolError::Busy)?;
            self.permits.clone().acquire_owned().await.map_err(|_| PoolError::Busy)?
        };
        let more = (1..most).map_while(|_| self.permits.clone().try_acquire_owned().ok());
        Ok(std::iter::once(first).chain(more).collect())
    }
}

impl<F> KeyStore for Ucm<F>
where
    F: Fn(&Path) -> io::Result<bool> + Clone + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "ucm"
    }

    fn batch_keys(&self) -> usize {
        BATCH_KEYS
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        Box::pin(self.ask(keys, indexes))
    }
}

impl<F> fmt::Debug for Ucm<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ucm").field("config", &self.config).finish_non_exhaustive()
    }
}

/// One thread's life: until there is nobody left to ask.
fn work<F: Fn(&Path) -> io::Result<bool>>(queue: &Mutex<Receiver<Job<F>>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let Job { paths, exists, report, wanted, permit } = job;
        // Once nobody waits, what is left is not looked at.
        let looked_at = paths.iter().take_while(|_| wanted.strong_count() > 0);
        let found = looked_at.map(|path| exists(path)).collect();
        // Before the answer: who has it may ask again at once.
        drop(permit);
        // An error here says that the one who asked has left.
        let _ = report.send(found);
    }
}

/// True if a file has this name. Blocks have another one while they are being written.
fn exists(path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
