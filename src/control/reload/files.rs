//! Content digests of a configuration's files: a ConfigMap is a link to a link that is exchanged.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::PathBuf;

use crate::util::disk::expect_file;

/// Bytes of a file that are compared: more than a configuration may have.
const FILE_BYTES: u64 = 2 << 20;

/// Digest of the files' content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(u64);

/// Digests of the files at the last load, and at the last check.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentTracker {
    read: Content,
    last: Content,
}

impl Content {
    /// Digests these files now. A file that can't be read counts as empty. So does a pipe, which
    /// can be read only once and is left to the loader. Waits for the disk.
    pub fn of(files: &[PathBuf]) -> Content {
        let mut hasher = DefaultHasher::new();
        for file in files {
            let mut content = Vec::new();
            if expect_file(file).is_ok()
                && let Ok(file) = File::open(file)
            {
                // The part before an error is compared; loading reports the error.
                let _ = file.take(FILE_BYTES).read_to_end(&mut content);
            }
            content.hash(&mut hasher);
        }
        Content(hasher.finish())
    }
}

impl ContentTracker {
    /// Starts with the content that the gateway runs with.
    pub(super) fn new(read: Content) -> ContentTracker {
        ContentTracker { read, last: read }
    }

    /// Compares `now` with the last check. True if there is new content that no longer changes: a
    /// file that is being written differs at the next check.
    pub(super) fn observe(&mut self, now: Content) -> bool {
        let rests = now == self.last;
        self.last = now;
        rests && now != self.read
    }

    /// Records the content that was loaded.
    pub(super) fn mark_loaded(&mut self, now: Content) {
        *self = ContentTracker::new(now);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    /// As `--config <(make-a-configuration)` has it.
    #[test]
    fn a_pipe_is_left_to_its_loader() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"text").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        assert_eq!(Content::of(std::slice::from_ref(&path)), Content::of(&[PathBuf::from("/nowhere")]));
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
    }

    #[test]
    fn file_is_read_once_its_writer_pauses() {
        let [old, half, new] = [1, 2, 3].map(Content);
        let mut seen = ContentTracker::new(old);
        assert_eq!([old, half, new, new].map(|now| seen.observe(now)), [false, false, false, true]);
        seen.mark_loaded(new);
        assert_eq!([new, half, new, new].map(|now| seen.observe(now)), [false; 4], "and back again");
    }
}
