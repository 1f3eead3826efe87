//! Who runs on which core.

use std::fmt;
use std::process::{Command, Stdio};

/// The cores of this run. Without `taskset` nobody is bound to any.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    /// Of the proxy.
    proxy: Vec<usize>,
    /// Of engines and load.
    pub(crate) load: Vec<usize>,
    /// Whether they can be bound.
    pinned: bool,
}

impl Cores {
    /// The proxy has `wanted`, or the first core there is; the rest has the others, and this process is bound to them.
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

    /// Nobody is bound to any.
    pub(crate) fn undivided() -> Cores {
        let allowed = allowed();
        Cores { proxy: allowed.clone(), load: allowed, pinned: false }
    }

    /// The proxy's cores, or `count` of them in all, if a number of its own is asked for. Those beyond its own are taken
    /// from the load's, who then share them.
    pub(crate) fn of_proxy(&self, count: Option<usize>) -> Vec<usize> {
        let mut all = self.proxy.clone();
        all.extend(self.load.iter().copied().filter(|core| !self.proxy.contains(core)));
        count.map_or_else(|| self.proxy.clone(), |count| all.iter().copied().take(count).collect())
    }

    /// Whether `cores` are also the load's.
    pub(crate) fn shared(&self, cores: &[usize]) -> bool {
        cores.iter().any(|core| self.load.contains(core))
    }

    /// What stands before a command, so that it runs on `cores`.
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

/// `3` or `0-2`.
fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
