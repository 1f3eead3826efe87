//! Reads of files that may never end: a share that hangs, a pipe into which nobody writes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The longest that a read is waited for. Those of a local disk take a millisecond.
const READ_TIME: Duration = Duration::from_secs(10);
/// Reads that may be under way, of which each has a thread, even if nobody waits for it any more.
const PLACES: usize = 4;

/// Reads beside the runtime, in bounded time and number.
#[derive(Clone, Debug)]
pub struct Disk {
    places: Arc<Semaphore>,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk { places: Arc::new(Semaphore::new(PLACES)) }
    }
}

impl Disk {
    /// Runs `work` in a thread that may wait for the disk.
    ///
    /// # Errors
    /// The disk does not answer within 10 s, or earlier reads still wait for it.
    pub async fn read<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Err(io::Error::other(format!("{PLACES} reads before this one have not ended")));
        };
        let reading = tokio::task::spawn_blocking(move || {
            // It belongs to the thread, which may outlast the wait.
            let _place = place;
            work()
        });
        match timeout(READ_TIME, reading).await {
            Ok(read) => read.map_err(io::Error::other),
            Err(_) => Err(io::Error::other(format!("the disk does not answer within {READ_TIME:?}"))),
        }
    }
}

/// Refuses what is no file, before it is opened: to open a pipe waits for its writer, and what was
/// read from one is gone.
///
/// # Errors
/// Nothing is there, it can't be looked at, or it is no file.
pub fn expect_file(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_file() {
        return Ok(());
    }
    Err(io::Error::other("it is no regular file, so that it can't be read again"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn reads_that_do_not_end_are_not_waited_for_and_are_few() {
        let disk = Disk::default();
        assert_eq!(disk.read(|| 1).await.unwrap(), 1);
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        tokio::time::pause();
        for _ in 0..PLACES {
            let held = held.clone();
            let read = disk.read(move || held.lock().map(|it| it.recv()).is_ok());
            // A clock that stands still does not go on by itself while a thread is at work.
            let (ended, ()) = tokio::join!(read, tokio::time::advance(2 * READ_TIME));
            assert!(ended.unwrap_err().to_string().starts_with("the disk does not answer within 10s"));
        }
        assert!(disk.read(|| 1).await.unwrap_err().to_string().contains("4 reads before this one"));
        drop(hold);
        tokio::time::resume();
        while disk.places.available_permits() < PLACES {
            tokio::task::yield_now().await;
        }
        assert_eq!(disk.read(|| 1).await.unwrap(), 1);
    }

    #[test]
    fn pipes_and_folders_are_no_files() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        for path in [pipe.as_str(), "/"] {
            assert!(expect_file(Path::new(path)).unwrap_err().to_string().contains("regular file"), "{path}");
        }
        assert_eq!(expect_file(Path::new("/nowhere")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(expect_file(Path::new("/proc/self/exe")).is_ok());
    }
}
