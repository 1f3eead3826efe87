//! Stores of objects by key: Mooncake, MemCache, files.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Answer;
use crate::kvhash::keys::KeyBatch;

/// A store, asked about keys.
pub trait KeyStore: Send + Sync {
    /// A short stable name for metrics and logs.
    fn name(&self) -> &'static str;

    /// Most keys of one exchange that still takes about a millisecond.
    fn batch_keys(&self) -> usize;

    /// Place where the objects of the keys `indexes` of `keys` are, one entry per index, in that
    /// order. At most [`batch_keys`](Self::batch_keys) of them.
    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>>;
}

/// Place where one object is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// It exists and can be read.
    pub present: bool,
    /// Its replicas, as far as the store tells.
    pub places: SmallVec<[ReplicaPlace; 2]>,
}

/// Place where one replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPlace {
    /// Host, without port and brackets.
    pub host: Arc<str>,
    /// Medium that it lies on.
    pub tier: Tier,
}

/// Media of replicas, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Memory of an accelerator.
    Hbm,
    /// Main memory of a host.
    Memory,
    /// A disk or file.
    Disk,
}

impl Placement {
    /// An object that is there, somewhere.
    pub fn somewhere() -> Self {
        Self { present: true, places: SmallVec::new() }
    }
}
