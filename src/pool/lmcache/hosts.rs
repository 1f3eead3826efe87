//! The host that an instance is on, as the directory itself lists it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

/// Instances that are remembered.
const MAX_INSTANCES: usize = 4096;
/// A list is good for so long: an instance may come back on another host.
const FRESH: Duration = Duration::from_secs(60);
/// An instance that is not in the list makes us ask again, but not more often than this.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Hosts {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_instance: HashMap<Arc<str>, Arc<str>>,
    asked: Option<Instant>,
}

/// Both directories' lists: `{"workers":[…]}` and `{"instances":[…]}`, one entry per worker or
/// server.
#[derive(Deserialize)]
struct List {
    #[serde(alias = "workers")]
    instances: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    instance_id: String,
    ip: String,
}

impl Hosts {
    /// True if the directory should be asked before these are looked up; says so to one who asks.
    pub(super) fn is_due<'a>(&self, mut instances: impl Iterator<Item = &'a Arc<str>>) -> bool {
        let mut table = self.lock();
        let age = table.asked.map(|asked| asked.elapsed());
        let unknown = instances.any(|instance| !table.by_instance.contains_key(instance));
        let due = age.is_none_or(|age| age >= if unknown { AGAIN } else { FRESH });
        if due {
            table.asked = Some(Instant::now());
        }
        due
    }

    /// Takes over a directory's list.
    pub(super) fn learn(&self, body: &[u8]) -> serde_json::Result<()> {
        let list: List = serde_json::from_slice(body)?;
        let entries = list.instances.into_iter().take(MAX_INSTANCES);
        self.lock().by_instance =
            entries.map(|entry| (entry.instance_id.into(), host(&entry.ip).into())).collect();
        Ok(())
    }

    /// The host of an instance; its own name where that is not known.
    pub(super) fn of(&self, instance: &Arc<str>) -> Arc<str> {
        self.lock().by_instance.get(instance).unwrap_or(instance).clone()
    }

    /// All that are known, by name.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut all: Vec<_> =
            self.lock().by_instance.iter().map(|(name, host)| (name.clone(), host.clone())).collect();
        all.sort();
        all
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address without brackets.
fn host(ip: &str) -> &str {
    ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lists_are_asked_for_when_they_help() {
        let hosts = Hosts::default();
        let (p0, p9): (Arc<str>, Arc<str>) = ("p0".into(), "p9".into());
        assert!(hosts.is_due([&p0].into_iter()) && !hosts.is_due([&p0].into_iter()), "one asks");
        hosts.learn(br#"{"workers":[{"instance_id":"p0","worker_id":0,"ip":"10.0.0.1","port":7000}],"total_count":1}"#).unwrap();
        assert_eq!((&*hosts.of(&p0), &*hosts.of(&p9)), ("10.0.0.1", "p9"));
        tokio::time::advance(AGAIN).await;
        assert!(!hosts.is_due([&p0].into_iter()) && hosts.is_due([&p0, &p9].into_iter()));
        hosts.learn(br#"{"instances":[{"instance_id":"p9","ip":"[fd00::9]","metadata":{}}]}"#).unwrap();
        assert_eq!((&*hosts.of(&p0), &*hosts.of(&p9)), ("p0", "fd00::9"), "the new list is the whole list");
        tokio::time::advance(FRESH).await;
        assert!(hosts.is_due([&p9].into_iter()), "it may have moved");
        assert!(hosts.learn(b"{}").is_err());
    }
}
