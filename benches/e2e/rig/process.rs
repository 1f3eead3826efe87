//! CPU time and memory of a process and its descendants, as the kernel counts them.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// CPU time and memory of a tree of processes.
#[derive(Debug)]
pub(crate) struct Meter {
    root: u32,
    /// CPU time of each thread in ns, by process and thread. Threads that have ended stay.
    seen: HashMap<(u32, u32), u64>,
}

impl Meter {
    /// A meter of the tree below `root`.
    pub(crate) fn of(root: u32) -> Meter {
        Meter { root, seen: HashMap::new() }
    }

    /// Returns the CPU time of all threads of the tree. The time between the last reading of a
    /// thread and its end is missing.
    pub(crate) fn cpu(&mut self) -> Duration {
        for pid in tree(self.root) {
            for thread in numbers(&format!("/proc/{pid}/task")) {
                // Time on the processor in ns, time waiting for it, number of time slices.
                let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat"));
                let taken = stat.ok().and_then(|stat| stat.split(' ').next()?.parse().ok());
                if let Some(taken) = taken {
                    self.seen.insert((pid, thread), taken);
                }
            }
        }
        Duration::from_nanos(self.seen.values().sum())
    }

    /// Resident memory of the tree, in bytes; what its processes share counts for each of them.
    pub(crate) fn resident_bytes(&self) -> u64 {
        tree(self.root).into_iter().filter_map(resident_kb).sum::<u64>() * 1024
    }
}

fn resident_kb(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Process ids of `root` and its descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in numbers("/proc") {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut todo = vec![root];
    let mut found = Vec::new();
    while let Some(pid) = todo.pop() {
        found.push(pid);
        todo.extend(children.remove(&pid).unwrap_or_default());
    }
    found
}

/// Reads a process's parent: the second field after the name, which may hold anything and ends with
/// the last parenthesis.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The entries of a directory that are numbers.
fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
