//! The demo's pool: what the simulated engines store stands in a simulated Mooncake master as well,
//! under the keys that vLLM's connector would give it.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{Config, PoolKind, Tokens};
use crate::kvhash::keys::{KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, Refusal};
use crate::kvhash::{Algo, BlockContext, BlockHasher, HashProfile, ProfileError, Seed};
use crate::pool::{Answer, KeyStore, Placement, ReplicaPlace, Tier};
use crate::sim::mooncake::{AdminPort, KeyEntry, Mooncake, MooncakeSpec};
use crate::sim::{EngineSpec, Mirror};

const PRESET: &str = "mooncake-store-0.30";
/// `PYTHONHASHSEED` of the simulated engines.
const SEED: &str = "0";
/// Host on which the demo's objects are said to lie.
const HOST: &str = "127.0.0.1";
const SEGMENT: &str = "127.0.0.1:17000";
/// The demo shares its machine with whatever else runs: more than a gateway of one's own needs.
const DEADLINE_MS: u64 = 50;
/// The same for the engines' `/tokenize`.
const BUDGET_MS: u64 = 500;

/// A simulated master that mirrors the engines' store. Asked in this process it is a [`KeyStore`],
/// too.
#[derive(Debug)]
pub struct Embedded {
    master: Mooncake,
    admin: AdminPort,
    hasher: BlockHasher,
    profile: KeyProfile,
    /// The master's keys of each block of the engines' store.
    names: Mutex<HashMap<u64, Vec<String>>>,
}

/// Reasons for which the embedded pool can't run.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The port can't be opened.
    #[error("the simulated pool can't listen: {0}")]
    Listen(#[from] io::Error),
    /// Nobody hashes like this.
    #[error("the simulated engines' hashes: {0}")]
    Hash(#[from] ProfileError),
    /// Nobody names blocks like this.
    #[error("the simulated pool's keys: {0}")]
    Keys(#[from] Refusal),
}

impl Embedded {
    /// Starts a master for engines like `spec` on free ports of the loopback.
    ///
    /// # Errors
    /// [`EmbeddedError`].
    pub async fn start(spec: &EngineSpec) -> Result<Arc<Embedded>, EmbeddedError> {
        let version = spec.version.parse()?;
        let hasher = BlockHasher::new(&HashProfile {
            version,
            algo: Algo::Sha256,
            seed: Seed::Text(SEED.into()),
            block_tokens: spec.block_tokens,
            lookahead_tokens: 0,
        })?;
        let block_tokens = u32::try_from(spec.block_tokens).unwrap_or(u32::MAX);
        let shape = KvShape { block_tokens, ..KvShape::default() };
        let profile = KeyProfile::new(&KeyConfig::new(Preset::named(PRESET)?, &model(spec), shape))?;
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let master = Mooncake::start(MooncakeSpec::default(), free).await?;
        let admin = master.admin(free).await?;
        Ok(Arc::new(Embedded { master, admin, hasher, profile, names: Mutex::default() }))
    }

    /// The master's RPC address.
    pub fn addr(&self) -> SocketAddr {
        self.master.addr()
    }

    /// The master's HTTP address.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.addr()
    }

    /// Has a gateway ask this pool about every prompt, whose tokens it asks from the engines.
    pub fn configure(&self, config: &mut Config) {
        config.prompt.tokens = Tokens::Engine;
        config.prompt.budget_ms = BUDGET_MS;
        config.hash.seed = Some(SEED.to_owned());
        config.key.preset = Some(PRESET.to_owned());
        config.pool.kind = PoolKind::Mooncake;
        config.pool.addresses = vec![self.addr().to_string()];
        config.pool.admins = vec![self.admin_addr().to_string()];
        config.pool.deadline_ms = DEADLINE_MS;
    }

    fn placement(&self, key: &str) -> Placement {
        let place = ReplicaPlace { host: HOST.into(), tier: Tier::Memory };
        match self.master.held(key) {
            Some(KeyEntry::Object(_)) => {
                Placement { present: true, places: std::iter::once(place).collect() }
            }
            _ => Placement::default(),
        }
    }
}

/// Name of the model that the simulated engines serve.
fn model(spec: &EngineSpec) -> String {
    spec.root.clone().unwrap_or_else(|| format!("/models/{}", spec.model))
}

impl Mirror for Embedded {
    /// Prompts with a salt are left out: the engines' core knows its hash alone.
    fn stored(&self, prompt: &[u32], salt: u64, keys: &[u64]) {
        if salt != 0 {
            return;
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = KeyBatch::default();
        for (key, hash) in keys.iter().zip(self.hasher.chain(prompt, BlockContext::default())) {
            batch.clear();
            if names.contains_key(key) || self.profile.keys_of_block(hash.as_bytes(), &mut batch).is_err() {
                continue;
            }
            batch.iter().for_each(|name| self.master.put(name, SEGMENT));
            names.insert(*key, batch.iter().map(str::to_owned).collect());
        }
    }

    fn dropped(&self, key: u64) {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        names.iter().flatten().for_each(|name| self.master.remove(name));
    }
}

impl KeyStore for Arc<Embedded> {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn batch_keys(&self) -> usize {
        usize::MAX
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        let found = indexes.iter().map(|index| {
            let key = usize::try_from(*index).ok().and_then(|index| keys.get(index));
            key.map_or_else(Placement::default, |key| self.placement(key))
        });
        Box::pin(std::future::ready(Ok(found.collect())))
    }
}
