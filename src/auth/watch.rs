//! The file of keys is read again when its content changes. A broken file changes nothing: the keys
//! of the last valid file stay in use.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::file::{self, Entry, FileError};
use super::{Callers, Digest};
use crate::obs::Meters;
use crate::util::disk::{Disk, expect_file};

/// Most bytes of the file; a longer one is refused.
const FILE_BYTES: u64 = 16 << 20;

/// Reads the file of keys, at the start and whenever it changes.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    /// Digest of the content that was last read, valid or not.
    content: Digest,
    pause: Duration,
    callers: Arc<Callers>,
    meters: Arc<Meters>,
}

/// Reasons for which there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file does not exist.
    #[error("auth.keys_file {}: No such file here; `pd-proxy api-key new` prints an entry for one", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file can't be read.
    #[error("auth.keys_file {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        source: io::Error,
    },
    /// It makes no sense.
    #[error("auth.keys_file {}: {source}", path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// The fault of the file.
        source: FileError,
    },
}

impl Watch {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// It can't be read or makes no sense: a gateway without its keys must not start.
    pub fn open(path: PathBuf, pause: Duration, meters: Arc<Meters>) -> Result<Watch, KeysError> {
        let (content, entries) = load(&path)?;
        tracing::info!(keys = entries.len(), "keys were read");
        Ok(Watch { path, content, pause, callers: Arc::new(Callers::of(entries)), meters })
    }

    /// Those whom the file names.
    pub fn callers(&self) -> Arc<Callers> {
        self.callers.clone()
    }

    /// Reads the file again whenever it changes, and never returns.
    pub async fn run(mut self) {
        // One log line per trouble, not per look.
        let (disk, mut trouble) = (Disk::default(), None);
        loop {
            tokio::time::sleep(self.pause).await;
            let (path, before) = (self.path.clone(), self.content);
            match disk.read(move || look(&path, before)).await.flatten() {
                Ok(None) => {}
                Ok(Some((content, entries))) => {
                    self.content = content;
                    trouble = self.take(entries);
                }
                Err(e) => {
                    let said = e.to_string();
                    if trouble.as_ref() != Some(&said) {
                        self.keep(&said);
                        trouble = Some(said);
                    }
                }
            }
        }
    }

    /// Takes over the entries of a changed file; returns its fault, if it has one.
    fn take(&self, entries: Result<Vec<Entry>, FileError>) -> Option<String> {
        match entries {
            Ok(entries) => {
                tracing::info!(keys = entries.len(), "keys were read again");
                self.callers.replace(entries);
                self.meters.keys_read("loaded");
                None
            }
            Err(e) => {
                let said = e.to_string();
                self.keep(&said);
                Some(said)
            }
        }
    }

    fn keep(&self, said: &str) {
        tracing::error!("auth.keys_file can't be used, the keys stay as they were: {said}");
        self.meters.keys_read("broken");
    }
}

/// The digest of a file's content, and its entries.
///
/// # Errors
/// It can't be read or makes no sense.
pub fn load(path: &Path) -> Result<(Digest, Vec<Entry>), KeysError> {
    let text = read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => KeysError::Missing { path: path.into() },
        _ => KeysError::Unreadable { path: path.into(), source },
    })?;
    let entries = file::parse(&text).map_err(|source| KeysError::Wrong { path: path.into(), source })?;
    Ok((Digest::of(text.as_bytes()), entries))
}

type FileChange = Option<(Digest, Result<Vec<Entry>, FileError>)>;

/// Reads the file; returns its content if that differs from `before`.
fn look(path: &Path, before: Digest) -> io::Result<FileChange> {
    expect_file(path)?;
    let text = read(path)?;
    let content = Digest::of(text.as_bytes());
    Ok((content != before).then(|| (content, file::parse(&text))))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let bytes = File::open(path)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if bytes as u64 > FILE_BYTES {
        return Err(io::Error::other("the file is too long"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn write(path: &Path, text: &str) {
        // As volumes change: the old file or the new one, never half of one.
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_counts_and_a_broken_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let pause = Duration::from_secs(1);
        assert!(matches!(Watch::open(path.clone(), pause, Arc::default()), Err(KeysError::Missing { .. })));
        write(&path, "nonsense");
        assert!(matches!(Watch::open(path.clone(), pause, Arc::default()), Err(KeysError::Wrong { .. })));
        let good = |name: &str| format!("[[key]]\nname = \"{name}\"\nsha256 = \"{SHA}\"\n");
        write(&path, &good("first"));
        let watch = Watch::open(path.clone(), pause, Arc::default()).unwrap();
        let callers = watch.callers();
        let name = || callers.of_key(b"abc").map(|it| it.name.to_string());
        let run = watch.run();
        let script = async {
            assert_eq!(name().as_deref(), Some("first"));
            for (text, expected) in [
                (good("second"), "second"),
                ("[[key]]\n".to_owned(), "second"),
                (String::new(), "second"),
                (good("third"), "third"),
            ] {
                write(&path, &text);
                tokio::time::sleep(3 * pause).await;
                assert_eq!(name().as_deref(), Some(expected), "{text}");
            }
            std::fs::remove_file(&path).unwrap();
            tokio::time::sleep(3 * pause).await;
            assert_eq!(name().as_deref(), Some("third"), "a file that is gone changes nothing");
        };
        tokio::select! {
            () = run => {}
            () = script => {}
        }
    }
}
