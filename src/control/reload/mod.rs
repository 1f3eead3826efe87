//! The configuration while the gateway runs: read again on SIGHUP, and when the content of a file
//! changes.
//!
//! It goes through the one path on which it was read at the start, with the same flags and
//! variables on top. A configuration with anything wrong in it changes nothing. Requests under way
//! keep the settings that they began with, as far as it matters.

pub mod adopt;
mod files;
pub mod lost_setting;

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;

use crate::config::{Config, ConfigErrors, Loaded};
use crate::control::FleetHandles;
use crate::endpoint::Endpoint;
use crate::fleet::{Owner, Role};
use crate::obs::Meters;
use crate::obs::log::Threshold;
use crate::util::disk::{Disk, expect_file};
use adopt::{Adoption, UNLIKE_FLEETS, adopt};
use files::ContentTracker;

pub use files::Content;

/// Pause between checks of the files, of which two must show the same content.
const LOOK: Duration = Duration::from_millis(2_500);

/// Reads the configuration, as at the start.
pub type Load = Arc<dyn Fn() -> Result<Loaded, ConfigErrors> + Send + Sync>;

/// The source of a configuration.
pub struct Source {
    /// Loads the configuration.
    pub load: Load,
    /// Files that it is read from.
    pub files: Vec<PathBuf>,
    /// Content of the files before they were read for the start: a change while the gateway starts
    /// is not missed.
    pub content: Content,
    /// Stream of SIGHUP; `None` = only changes of files cause a reload.
    pub hangup: Option<Signal>,
    /// The log's level.
    pub threshold: Option<Threshold>,
    /// Pause between checks of the files; `None` = the default.
    pub every: Option<Duration>,
}

/// Follows a configuration.
pub struct Reloader {
    source: Source,
    running: Loaded,
    target: Target,
    disk: Disk,
    /// Reason why the files could not be read, as it was logged last.
    unread: Option<String>,
}

/// The parts of a running gateway that a configuration changes.
pub struct Target {
    /// Engines that are listed, fleet by fleet.
    pub fleets: Vec<NamedHandles>,
    /// Metrics of reloads.
    pub meters: Arc<Meters>,
    /// Takes over the settings that are read anew for each request.
    pub apply: Apply,
}

/// A fleet's name, and the parts by which its engines come and leave.
#[derive(Clone, Debug)]
pub struct NamedHandles {
    /// Name of the fleet.
    pub name: Arc<str>,
    /// Members, and the client towards them.
    pub handles: FleetHandles,
}

/// Takes over the settings of a configuration, all or none; returns the parts of the fleets that
/// run then.
pub type Apply = Box<dyn Fn(Config) -> Applied + Send + Sync>;

/// The end of that.
pub type Applied = Pin<Box<dyn Future<Output = Result<Vec<NamedHandles>, Refusal>> + Send>>;

/// Reason why a configuration changes nothing.
pub type Refusal = String;

impl Reloader {
    /// Creates it for a gateway that runs with `running`.
    pub fn new(source: Source, running: Loaded, target: Target) -> Reloader {
        Reloader { source, running, target, disk: Disk::default(), unread: None }
    }

    /// Watches for changes for ever.
    pub async fn run(mut self) {
        let every = self.source.every.unwrap_or(LOOK);
        let mut seen = ContentTracker::new(self.source.content);
        loop {
            let asked = tokio::select! {
                () = hangup(&mut self.source.hangup) => true,
                () = tokio::time::sleep(every) => false,
            };
            let why = if asked { "SIGHUP" } else { "a file changed" };
            match self.read(asked, &mut seen).await {
                Ok(loaded) => {
                    self.unread = None;
                    if let Some(loaded) = loaded {
                        self.reload(why, loaded).await;
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    // One line per trouble, not per look.
                    if asked || self.unread.as_ref() != Some(&error) {
                        self.unread = Some(error.clone());
                        self.reload(why, Err(error)).await;
                    }
                }
            }
        }
    }

    /// Reads the configuration, if that is asked for or its files have changed.
    async fn read(
        &self,
        asked: bool,
        seen: &mut ContentTracker,
    ) -> io::Result<Option<Result<Loaded, Refusal>>> {
        let now = self.content().await?;
        if !asked && !seen.observe(now) {
            return Ok(None);
        }
        let (files, load) = (self.source.files.clone(), self.source.load.clone());
        let loaded = self.disk.read(move || load_again(&files, &load)).await?;
        // The file changed while it was read: it is loaded once it no longer changes.
        if !asked && self.content().await? != now {
            return Ok(None);
        }
        seen.mark_loaded(now);
        Ok(Some(loaded))
    }

    /// Digest of the files.
    async fn content(&self) -> io::Result<Content> {
        let files = self.source.files.clone();
        self.disk.read(move || Content::of(&files)).await
    }

    async fn reload(&mut self, why: &'static str, loaded: Result<Loaded, Refusal>) {
        let taken = match loaded {
            Ok(new) => self.take(new).await,
            Err(error) => Err(error),
        };
        let meters = &self.target.meters;
        match taken {
            Ok(Adoption { applied, pending, .. }) => {
                meters.reloaded(if pending.is_empty() { "applied" } else { "partial" }, pending.len());
                tracing::info!(why, applied = applied.join(" "), "the configuration was read again");
                if !pending.is_empty() {
                    tracing::warn!(
                        keys = pending.join(" "),
                        "these keys count after a restart of the gateway"
                    );
                }
            }
            Err(text) => {
                tracing::error!(why, "the configuration is refused, nothing changes: {text}");
                meters.refused();
            }
        }
    }

    /// Applies the part of `new` that can change at run time.
    async fn take(&mut self, new: Loaded) -> Result<Adoption, Refusal> {
        if self.running.config.fleets.is_empty() != new.config.fleets.is_empty() {
            return Err(UNLIKE_FLEETS.to_owned());
        }
        lost_setting::check(&self.running, &new).map_err(|lost_setting| lost_setting.to_string())?;
        let adoption = adopt(&self.running.config, &new.config).map_err(|mixture| mixture.to_string())?;
        let config = &adoption.config;
        self.check_engines(config)?;
        // Engines of a fleet that comes are its own from the start.
        self.target.fleets = (self.target.apply)(config.clone()).await?;
        let lists = self.engine_lists(config);
        for EngineList { handles, role, engines } in &lists {
            handles.fleet.want(Owner::Configuration, *role, engines);
        }
        if let Some(threshold) = &self.source.threshold {
            threshold.set(config.log.level.filter().parse().unwrap_or(tracing::Level::INFO));
        }
        drop(lists);
        self.running = Loaded { config: config.clone(), origins: new.origins, warnings: new.warnings };
        Ok(adoption)
    }

    /// Checks that engines of the fleets that run could be connected to.
    fn check_engines(&self, config: &Config) -> Result<(), Refusal> {
        let lists = self.engine_lists(config);
        let mut all = lists.iter().flat_map(|list| list.engines.iter().map(move |one| (list, one)));
        let unreachable = all.try_for_each(|(list, one)| list.handles.upstream.check(one));
        unreachable.map_err(|error| error.to_string())
    }

    /// The engines that a configuration lists for the fleets that run.
    fn engine_lists(&self, config: &Config) -> Vec<EngineList<'_>> {
        let mut lists = Vec::new();
        for (name, config) in config.served_fleets() {
            let Some(fleet) = self.target.fleets.iter().find(|it| &*it.name == name) else { continue };
            let handles = &fleet.handles;
            for (role, engines) in [
                (Role::Prefill, config.prefill_endpoints()),
                (Role::Decode, config.decode_endpoints()),
                (Role::Encode, config.encode_endpoints()),
            ] {
                lists.push(EngineList { handles, role, engines });
            }
        }
        lists
    }
}

/// The engines that a configuration lists for a role of a fleet.
struct EngineList<'a> {
    handles: &'a FleetHandles,
    role: Role,
    engines: Vec<Endpoint>,
}

/// Loads the configuration once more, unless a file has become something that can't be read again.
fn load_again(files: &[PathBuf], load: &Load) -> Result<Loaded, Refusal> {
    for file in files {
        match expect_file(file) {
            // A file that is gone has an error of its own, and may be one of several.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", file.display()));
            }
            _ => {}
        }
    }
    load().map_err(|errors| errors.to_string())
}

async fn hangup(signal: &mut Option<Signal>) {
    let received = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn pipe_is_refused_before_it_is_opened_again() {
        let load: Load = Arc::new(|| panic!("it would wait for a writer"));
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let refusal = load_again(&[PathBuf::from(&pipe)], &load).err().unwrap();
        assert_eq!(refusal, format!("{pipe}: it is no regular file, so that it can't be read again"));
    }
}
