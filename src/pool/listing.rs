//! A sample of the keys that a pool holds, from where it lists them: the HTTP port of a service, or
//! directories. Questions of a person or of a check, not of a request.

use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::PoolError;
use super::mooncake::{Admin, KeySample};
use crate::kvhash::keys::sample::MAX_SAMPLE_KEYS;

/// As much of a list of keys is read: some ten thousand.
pub const LIST_BYTES: usize = 4 << 20;
/// Entries of one root that are looked at.
const MAX_ENTRIES: usize = 20_000;
/// Folders between a root and a block's file.
const MAX_DEPTH: usize = 3;

/// Places where a pool lists its keys.
#[derive(Clone, Debug)]
pub enum KeyListing {
    /// HTTP ports, of which the first that answers counts.
    Ports(Vec<Admin>),
    /// Root directories, all of which count.
    Roots(Vec<PathBuf>),
}

/// Content of the directory below one root.
#[derive(Debug, Default)]
pub struct FolderContents {
    /// Paths of the files.
    pub files: Vec<String>,
    /// There are more than were looked at.
    pub more: bool,
}

impl KeyListing {
    /// Some of the keys; `None` where they can't be listed now.
    pub async fn sample(&self) -> Option<KeySample> {
        match self {
            KeyListing::Ports(ports) => {
                for port in ports {
                    if let Ok(sample) = port.sample_keys(MAX_SAMPLE_KEYS, LIST_BYTES).await {
                        return Some(sample);
                    }
                }
                None
            }
            KeyListing::Roots(roots) => {
                let mut all = KeySample::default();
                for root in roots {
                    let below = list_files(root.clone()).await.ok()?;
                    all.seen += below.files.len();
                    all.more |= below.more;
                    let step = below.files.len().div_ceil(MAX_SAMPLE_KEYS).max(1);
                    all.keys.extend(below.files.into_iter().step_by(step));
                }
                Some(all)
            }
        }
    }
}

/// Lists the files below a root, in a thread of its own: a mount that hangs must not hold the
/// process.
///
/// # Errors
/// The root can't be read, or no thread can be had.
pub async fn list_files(root: PathBuf) -> Result<FolderContents, PoolError> {
    let (report, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("pd-look".to_owned());
    // An error of sending says that nobody waits any more.
    let started = thread.spawn(move || drop(report.send(walk(&root))));
    started.map_err(|error| PoolError::Unreachable(error.to_string()))?;
    let found = answer.await.map_err(|_| PoolError::Unreachable("a thread ended".to_owned()))?;
    found.map_err(|error| PoolError::Unreachable(error.to_string()))
}

/// The files below a root, folder by folder; an error if the root itself can't be read.
fn walk(root: &Path) -> io::Result<FolderContents> {
    let mut below = FolderContents::default();
    let mut folders = vec![(root.to_owned(), 0)];
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if depth == 0 => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // It is gone by now.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_ENTRIES {
                below.more = true;
                return Ok(below);
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => folders.push((entry.path(), depth + 1)),
                Ok(kind) if kind.is_file() => below.files.extend(entry.path().to_str().map(str::to_owned)),
                _ => {}
            }
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_below_folders_and_a_root_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("abc/deep/deeper/deepest")).unwrap();
        for name in ["abc/abc1", "abc/deep/deeper/x", "abc/deep/deeper/deepest/y"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let mut found = walk(root).unwrap().files;
        found.sort();
        let expected =
            ["abc/abc1", "abc/deep/deeper/x"].map(|name| root.join(name).to_str().unwrap().to_owned());
        assert_eq!(found, expected);
        assert!(walk(&root.join("none")).is_err());
    }
}
