//! The configuration while the gateway runs: read again on SIGHUP, and when the content of a file changes.
//!
//! It goes through the one path on which it was read at the start, with the same flags and variables on top. A configuration
//! with anything wrong in it changes nothing. Requests that are inside keep what they began with, as far as it matters.

pub mod adopt;
pub mod reference;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::Signal;

use crate::config::{Config, ConfigErrors};
use crate::fleet::{Owner, Role};
use crate::obs::log::Threshold;
use crate::server::Gateway;
use crate::tuning;
use adopt::{Adopted, adopt};

/// Between looks at the files. They are looked at by content: a ConfigMap is a link to a link that is exchanged.
const LOOK: Duration = Duration::from_secs(5);

/// As much of a file is compared: more than a configuration may have, bytes.
const FILE_BYTES: u64 = 2 << 20;

/// Reads the configuration, as at the start.
pub type Load = Arc<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// Where a configuration comes from.
pub struct Source {
    /// Reads it.
    pub load: Load,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// SIGHUP, taken over from the system; `None` = files alone tell.
    pub hangup: Option<Signal>,
    /// The log's level.
    pub threshold: Option<Threshold>,
    /// Between looks at the files; `None` = the usual.
    pub every: Option<Duration>,
}

/// Follows a configuration.
pub struct Reloader {
    source: Source,
    running: Config,
    gateway: Arc<Gateway>,
}

impl Reloader {
    /// Of a gateway that runs with `running`.
    pub fn new(source: Source, running: Config, gateway: Arc<Gateway>) -> Reloader {
        Reloader { source, running, gateway }
    }

    /// Follows for ever.
    pub async fn run(mut self) {
        let every = self.source.every.unwrap_or(LOOK);
        let mut seen = fingerprint(&self.source.files).await;
        loop {
            tokio::select! {
                () = hangup(&mut self.source.hangup) => {
                    seen = fingerprint(&self.source.files).await;
                    self.reload("SIGHUP").await;
                }
                () = tokio::time::sleep(every) => {
                    let now = fingerprint(&self.source.files).await;
                    if now != seen {
                        seen = now;
                        self.reload("a file changed").await;
                    }
                }
            }
        }
    }

    async fn reload(&mut self, why: &'static str) {
        let load = self.source.load.clone();
        let loaded = tokio::task::spawn_blocking(move || load()).await;
        let meters = &self.gateway.relay.meters;
        let Ok(loaded) = loaded else { return };
        let refused = |text: String| {
            tracing::error!(why, "the configuration is refused, nothing changes: {text}");
            meters.refused();
        };
        let new = match loaded {
            Ok(new) => new,
            Err(errors) => return refused(errors.to_string()),
        };
        let Adopted { config, applied, pending } = adopt(&self.running, &new);
        let engines =
            [config.prefill_endpoints(), config.decode_endpoints(), config.encode_endpoints()].concat();
        let check = |engine| self.gateway.relay.upstream.check(engine);
        if let Err(error) = engines.iter().try_for_each(check) {
            return refused(error.to_string());
        }
        match tuning::edge(&config) {
            Ok(edge) => self.gateway.edge.set(edge),
            Err(error) => return refused(error.to_string()),
        }
        self.gateway.relay.settings.set(tuning::settings(&config));
        let fleet = &self.gateway.relay.fleet;
        fleet.want(Owner::Configuration, Role::Prefill, &config.prefill_endpoints());
        fleet.want(Owner::Configuration, Role::Decode, &config.decode_endpoints());
        fleet.want(Owner::Configuration, Role::Encode, &config.encode_endpoints());
        if let Some(threshold) = &self.source.threshold {
            threshold.set(config.log.level.filter().parse().unwrap_or(tracing::Level::INFO));
        }
        meters.reloaded(if pending.is_empty() { "applied" } else { "partial" }, pending.len());
        tracing::info!(why, applied = applied.join(" "), "the configuration was read again");
        if !pending.is_empty() {
            tracing::warn!(keys = pending.join(" "), "these keys count after a restart of the gateway");
        }
        self.running = config;
    }
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

/// Of the files' contents, as far as they are read at all; one that can't be read counts as empty.
async fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        let mut content = Vec::new();
        if let Ok(file) = File::open(file).await {
            // What came before an error is compared; loading will say what is wrong.
            let _ = file.take(FILE_BYTES).read_to_end(&mut content).await;
        }
        content.hash(&mut hasher);
    }
    hasher.finish()
}
