//! Engines that come and go by themselves: listed in a file, the addresses of a name, or pods.
//! Files and names are looked at again and again, the API server of a cluster tells by itself.
//!
//! A query that fails changes nothing, and no engine is removed after one absence. A list that is
//! being written, or a name server that is down, must not empty a fleet.

#[cfg(not(feature = "kubernetes"))]
#[path = "kubernetes/absent.rs"]
pub mod kubernetes;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod list;
pub mod names;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{self, Config};
use crate::control::FleetHandles;
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, Owner, Role};
use crate::util::disk::{Disk, expect_file};
use list::EngineLists;
use names::{DnsNames, SystemResolver};

/// The longest file that is read, bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Looks for engines.
pub struct Discoverer {
    handles: FleetHandles,
    file: Option<PathBuf>,
    disk: Disk,
    /// The lists at the last look.
    listed: EngineLists,
    dns: [(Role, DnsNames<SystemResolver>); 2],
    every: Duration,
    /// The errors of the last looks at the file and at the names, so that each is logged once.
    wrong: [String; 2],
}

impl Discoverer {
    /// As configured; `None` when nothing is to be looked at.
    pub fn new(config: &Config, handles: FleetHandles) -> Option<Discoverer> {
        let discovery = &config.discovery;
        let names = |texts: &[String]| DnsNames::new(config::endpoints(texts), SystemResolver);
        discovery.looks_again().then(|| Discoverer {
            handles,
            file: discovery.file.as_ref().map(PathBuf::from),
            disk: Disk::default(),
            listed: EngineLists::default(),
            dns: [
                (Role::Prefill, names(&discovery.prefill_dns)),
                (Role::Decode, names(&discovery.decode_dns)),
            ],
            every: Duration::from_millis(discovery.interval_ms),
            wrong: Default::default(),
        })
    }

    /// Looks for ever.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(self.every).await;
            self.look().await;
        }
    }

    /// Looks once at everything.
    pub async fn look(&mut self) {
        if let Some(path) = self.file.clone() {
            let outcome = match read(&self.disk, &path).await {
                Ok(listed) => self.take(listed),
                Err(why) => Err(why),
            };
            let (changes, wrong) = match outcome {
                Ok(changes) => (changes, String::new()),
                Err(why) => (0, format!("{}: {why}", path.display())),
            };
            self.tell(0, "file", changes, wrong);
        }
        let (mut changes, mut all_wrong) = (0, Vec::new());
        let mut looked = false;
        for (role, names) in &mut self.dns {
            if names.is_empty() {
                continue;
            }
            looked = true;
            let (mut engines, mut wrong) = names.look().await;
            engines.retain(|engine| match self.handles.upstream.check(engine) {
                Ok(()) => true,
                Err(why) => {
                    wrong.push(format!("{engine}: {why}"));
                    false
                }
            });
            let (came, gone) = self.handles.fleet.want(Owner::Dns, *role, &engines);
            changes += came + gone;
            all_wrong.append(&mut wrong);
        }
        if looked {
            self.tell(1, "dns", changes, all_wrong.join("; "));
        }
    }

    /// Takes over the lists. Returns how many engines came or went; an error names listed engines
    /// that can't be spoken to.
    fn take(&mut self, listed: EngineLists) -> Result<usize, String> {
        let fleet = &self.handles.fleet;
        for engine in listed.prefill.iter().chain(&listed.decode).flatten() {
            self.handles.upstream.check(engine).map_err(|why| format!("{engine}: {why}"))?;
        }
        let want = |role, list: Option<Vec<Endpoint>>| {
            let (came, gone) = list.map_or((0, 0), |list| fleet.want(Owner::File, role, &list));
            came + gone
        };
        let both = listed.and(&self.listed);
        self.listed = listed;
        Ok(want(Role::Prefill, both.prefill) + want(Role::Decode, both.decode))
    }

    /// One look: so many came or went, and what went wrong, empty for nothing. Names fail one by
    /// one, so it may be both.
    fn tell(&mut self, at: usize, source: &'static str, changes: usize, wrong: String) {
        changed(&self.handles.fleet, source, changes);
        if !wrong.is_empty() && self.wrong[at] != wrong {
            let follows = if changes > 0 { "the rest stays as it was" } else { "nothing changes" };
            let fleet = self.handles.fleet.log_name();
            tracing::warn!(fleet, source, "{follows}, since not all engines could be looked for: {wrong}");
        }
        let outcome = match (wrong.is_empty(), changes) {
            (false, _) => "failed",
            (true, 0) => "same",
            (true, _) => "changed",
        };
        self.handles.meters.discovered(source, outcome);
        self.wrong[at] = wrong;
    }
}

/// Says that so many came or went, if any did.
fn changed(fleet: &Fleet, source: &'static str, changes: usize) {
    if changes > 0 {
        let (prefill, decode) = (fleet.serving(Role::Prefill), fleet.serving(Role::Decode));
        let name = fleet.log_name();
        tracing::info!(fleet = name, source, changes, prefill, decode, "the fleet changed");
    }
}

/// Reads a file of engines.
///
/// # Errors
/// The fault of the file, in words that do not name it.
pub async fn read(disk: &Disk, path: &Path) -> Result<EngineLists, String> {
    let path = path.to_owned();
    let text = disk.read(move || read_text(&path)).await.flatten().map_err(|e| e.to_string())?;
    if text.len() as u64 > FILE_BYTES {
        return Err(format!("is longer than {FILE_BYTES} bytes"));
    }
    list::read(&text).map_err(|e| e.to_string())
}

/// The text of a file, cut behind the longest that is read.
fn read_text(path: &Path) -> io::Result<String> {
    expect_file(path)?;
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}
