//! The files of a configuration, looked at by content: a ConfigMap is a link to a link that is exchanged.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::PathBuf;

/// As much of a file is compared: more than a configuration may have, bytes.
const FILE_BYTES: u64 = 2 << 20;

/// What was in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(u64);

/// What was in the files when they were last read, and when they were last looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    read: Content,
    last: Content,
}

impl Content {
    /// What is in these files now; one that can't be read counts as empty. Waits for the disk.
    pub fn of(files: &[PathBuf]) -> Content {
        let mut hasher = DefaultHasher::new();
        for file in files {
            let mut content = Vec::new();
            if let Ok(file) = File::open(file) {
                // What came before an error is compared; loading will say what is wrong.
                let _ = file.take(FILE_BYTES).read_to_end(&mut content);
            }
            content.hash(&mut hasher);
        }
        Content(hasher.finish())
    }
}

impl Seen {
    /// With this the gateway runs.
    pub(super) fn new(read: Content) -> Seen {
        Seen { read, last: read }
    }

    /// A look. Whether there is something new that has come to rest: what is being written has another content at the next look.
    pub(super) fn look(&mut self, now: Content) -> bool {
        let rests = now == self.last;
        self.last = now;
        rests && now != self.read
    }

    /// This was read.
    pub(super) fn read(&mut self, now: Content) {
        *self = Seen::new(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_is_not_read_before_it_rests() {
        let [old, half, new] = [1, 2, 3].map(Content);
        let mut seen = Seen::new(old);
        assert_eq!([old, half, new, new].map(|now| seen.look(now)), [false, false, false, true]);
        seen.read(new);
        assert_eq!([new, half, new, new].map(|now| seen.look(now)), [false; 4], "and back again");
    }
}
