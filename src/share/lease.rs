//! The lease that one gateway holds: it leads as long as it renews it.

use std::time::Duration;

use redis::Script;
use redis::aio::ConnectionLike;
use tokio::time::Instant;

use super::ShareError;
use crate::route::shared::message::ReplicaId;

/// Time after which a lease that is not renewed is another's to take.
pub const LEASE: Duration = Duration::from_millis(1_500);
/// Time between two renewals.
pub const RENEWAL: Duration = Duration::from_millis(300);
/// A leader that has not renewed its lease for so long does not lead any more, well before another
/// one can.
pub const LOST: Duration = Duration::from_millis(1_000);

/// Takes the lease if nobody has it, renews it if it is the caller's. One step, so that no two
/// gateways can take it.
const TAKE: &str = "local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";

/// The lease, as one gateway sees it.
#[derive(Clone, Debug)]
pub struct Lease {
    key: String,
    owner: String,
    take: Script,
    renewed: Option<Instant>,
}

impl Lease {
    /// The lease under that key, for a gateway.
    pub fn new(key: String, me: ReplicaId) -> Lease {
        Lease { key, owner: format!("{:016x}", me.0), take: Script::new(TAKE), renewed: None }
    }

    /// Takes or renews the lease. True if it is this gateway's.
    ///
    /// # Errors
    /// The store refuses, for instance since its memory is full.
    pub async fn take(&self, store: &mut impl ConnectionLike) -> Result<bool, ShareError> {
        let milliseconds = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        let mut call = self.take.key(&self.key);
        let taken: u8 = call.arg(&self.owner).arg(milliseconds).invoke_async(store).await?;
        Ok(taken == 1)
    }

    /// Notes an answer to a question that was asked at `asked`. True if this gateway leads.
    pub fn note(&mut self, taken: bool, asked: Instant) -> bool {
        self.renewed = taken.then_some(asked);
        self.leads()
    }

    /// True if this gateway leads, now.
    pub fn leads(&self) -> bool {
        self.renewed.is_some_and(|renewed| renewed.elapsed() < LOST)
    }
}
