//! Assignment of cores to the proxy and to the load.

use std::fmt;
use std::process::{Command, Stdio};

/// Cores of this run. Without `taskset` no process is bound to a core.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    /// Cores of the proxy.
    proxy: Vec<usize>,
    /// Cores of engines and load.
    pub(crate) load: Vec<usize>,
    /// True if processes are bound to these cores.
    pinned: bool,
}

impl Cores {
    /// Gives the proxy `wanted`, or the first core there is, and binds this process to the others.
    /// If there are no others, engines and load share the proxy's.
    pub(crate) fn divide(wanted: &[usize]) -> Cores {
        let allowed = allowed();
        let proxy =
            if wanted.is_empty() { allowed.iter().copied().take(1).collect() } else { wanted.to_vec() };
        let others: Vec<usize> = allowed.iter().copied().filter(|core| !proxy.contains(core)).collect();
        let load = if others.is_empty() { allowed } else { others };
        let pid = std::process::id().to_string();
        if taskset(&["-a", "-c", "-p", &list(&load), &pid]) {
            return Cores { proxy, load, pinned: true };
        }
        Cores::undivided()
    }

    /// Cores of a run in which no process is bound to a core.
    pub(crate) fn undivided() -> Cores {
        let allowed = allowed();
        Cores { proxy: allowed.clone(), load: allowed, pinned: false }
    }

    /// Returns the proxy's cores, or `count` cores if it is given. Those beyond the proxy's own are
    /// taken from the load, which then shares them.
    pub(crate) fn of_proxy(&self, count: Option<usize>) -> Vec<usize> {
        let mut all = self.proxy.clone();
        all.extend(self.load.iter().copied().filter(|core| !self.proxy.contains(core)));
        count.map_or_else(|| self.proxy.clone(), |count| all.iter().copied().take(count).collect())
    }

    /// True if the load uses one of `cores`, too.
    pub(crate) fn shared(&self, cores: &[usize]) -> bool {
        cores.iter().any(|core| self.load.contains(core))
    }

    /// Returns the words that bind a command to `cores` when they are put before it. There are none
    /// if no process is bound.
    pub(crate) fn prefix(&self, cores: &[usize]) -> Vec<String> {
        if !self.pinned {
            return Vec::new();
        }
        ["taskset".to_owned(), "-c".to_owned(), list(cores)].into()
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (proxy, load) = (list(&self.proxy), list(&self.load));
        if self.pinned {
            write!(f, "proxy on core {proxy}, engines and load on core {load}")
        } else {
            f.write_str("nobody is bound to a core: taskset is not there, or does not give these")
        }
    }
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn taskset(words: &[&str]) -> bool {
    let quiet = Command::new("taskset").args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// The cores that this process may use.
fn allowed() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let listed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let found: Vec<usize> =
        listed.unwrap_or_default().trim().split(',').filter_map(range).flatten().collect();
    if found.is_empty() { vec![0] } else { found }
}

/// Parses one core or a range of cores, as in `3` or `0-2`.
fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
