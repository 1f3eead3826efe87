//! Looks at UCM's directories, in a thread of its own: a mount that hangs must not hold the
//! process.

use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::{Grade, Inquiry, Keys, Report, counted};
use crate::kvhash::keys::sample::MAX_SAMPLE_KEYS;
use crate::pool::PoolError;

/// Entries of one root that are looked at.
const MAX_ENTRIES: usize = 20_000;
/// Folders between a root and a block's file.
const MAX_DEPTH: usize = 3;

/// Content of the directory below one root.
#[derive(Debug, Default)]
struct FolderContents {
    files: Vec<String>,
    more: bool,
}

/// Looks below every root.
pub(super) async fn look(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let (mut sample, mut whole) = (Vec::new(), true);
    for root in &inquiry.config.key.roots {
        let path = PathBuf::from(root);
        match inquiry.within(in_a_thread(path)).await {
            Ok(below) => {
                let count = below.files.len();
                let files = counted(count, "file");
                let more = if below.more { "more than " } else { "" };
                let such = below.files.first().map_or_else(String::new, |file| format!(", such as {file}"));
                report.say(Grade::Good, format!("{root} (key.roots) can be read: {more}{files}{such}"));
                whole &= !below.more;
                let step = count.div_ceil(MAX_SAMPLE_KEYS).max(1);
                sample.extend(below.files.into_iter().step_by(step));
            }
            Err(why) => {
                let advice = "is the share mounted here, at the same place as on the engines' machines?";
                report.say(Grade::Bad, format!("{root} (key.roots): {why}; {advice}"));
            }
        }
    }
    if !report.good() {
        return None;
    }
    let step = sample.len().div_ceil(MAX_SAMPLE_KEYS).max(1);
    Some(Keys { sample: sample.into_iter().step_by(step).collect(), whole })
}

async fn in_a_thread(root: PathBuf) -> Result<FolderContents, PoolError> {
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
