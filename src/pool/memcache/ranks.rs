//! From MemCache's ranks to hosts.

use std::collections::HashMap;
use std::sync::Arc;

/// The host that each rank is on. The service tells ranks and nothing else, and numbers them in the
/// order in which they joined unless they were configured, so only the operator can know.
#[derive(Clone, Debug, Default)]
pub struct RankHosts(HashMap<u32, Arc<str>>);

impl RankHosts {
    /// The host of a rank, without port and brackets.
    pub fn get(&self, rank: u32) -> Option<&Arc<str>> {
        self.0.get(&rank)
    }

    /// True if no rank is known: then asking for places is of no use.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<H: Into<Arc<str>>> FromIterator<(u32, H)> for RankHosts {
    fn from_iter<I: IntoIterator<Item = (u32, H)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(rank, host)| (rank, host.into())).collect())
    }
}
