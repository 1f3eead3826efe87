//! Connections that wait for their next request.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::uri::Authority;
use tokio::time::Instant;

use super::wire::Wire;

/// vLLM closes idle connections after 5 s (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`): we let go first.
pub const POOL_IDLE: Duration = Duration::from_secs(4);

/// Kept for one engine at most; of more, the oldest are closed.
const KEPT_PER_ENGINE: usize = 1_024;

/// Key of idle connections: the engine and its scheme.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) tls: bool,
    pub(super) authority: Authority,
}

/// By the very letters, as an instance has them: an [`Authority`] of its own compares and hashes
/// each in lower case.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.tls == other.tls && self.authority.as_str() == other.authority.as_str()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tls.hash(state);
        self.authority.as_str().hash(state);
    }
}

/// All connections that wait. The youngest is used first, so that the rest can grow old.
#[derive(Clone, Debug, Default)]
pub(super) struct Idle(Arc<Mutex<HashMap<Key, VecDeque<Kept>>>>);

#[derive(Debug)]
struct Kept {
    since: Instant,
    wire: Wire,
}

impl Idle {
    /// A connection that its engine has not closed, as far as is known.
    pub(super) fn take(&self, key: &Key) -> Option<Wire> {
        loop {
            let mut kept = {
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.get_mut(key)?.pop_back()?
            };
            if kept.since.elapsed() < POOL_IDLE && kept.wire.is_quiet() {
                return Some(kept.wire);
            }
        }
    }

    /// Keeps a connection whose last exchange is over.
    pub(super) fn keep(&self, key: Key, wire: Wire) {
        let kept = Kept { since: Instant::now(), wire };
        // Closed after the lock is given back.
        let _too_many = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = all.entry(key).or_default();
            queue.push_back(kept);
            if queue.len() > KEPT_PER_ENGINE { queue.pop_front() } else { None }
        };
    }

    /// Closes those that are old or that their engines have closed.
    pub(super) fn sweep(&self) {
        let mut closed = Vec::new();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, queue| {
            for mut kept in std::mem::take(queue) {
                let good = kept.since.elapsed() < POOL_IDLE && kept.wire.is_quiet();
                if good { queue.push_back(kept) } else { closed.push(kept) }
            }
            !queue.is_empty()
        });
        drop(all);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().unwrap().values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn pair() -> (Wire, DuplexStream) {
        let (ours, theirs) = duplex(64);
        (Wire::Other(Box::new(ours)), theirs)
    }

    fn key(host: &str) -> Key {
        Key { tls: false, authority: host.parse().unwrap() }
    }

    #[tokio::test(start_paused = true)]
    async fn stale_closed_or_talking_connection_is_not_reused() {
        let idle = Idle::default();
        let (wire, _engine) = pair();
        idle.keep(key("a:1"), wire);
        assert!(idle.take(&key("b:1")).is_none());
        assert!(idle.take(&key("a:1")).is_some());
        assert!(idle.take(&key("a:1")).is_none());

        let (wire, engine) = pair();
        idle.keep(key("a:1"), wire);
        drop(engine);
        assert!(idle.take(&key("a:1")).is_none());

        let (wire, mut engine) = pair();
        idle.keep(key("a:1"), wire);
        engine.write_all(b"HTTP/1.1 408").await.unwrap();
        assert!(idle.take(&key("a:1")).is_none());

        let (wire, _engine) = pair();
        idle.keep(key("a:1"), wire);
        tokio::time::advance(POOL_IDLE).await;
        assert!(idle.take(&key("a:1")).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn sweeping_closes_what_nobody_comes_for() {
        let idle = Idle::default();
        let (old, mut old_engine) = pair();
        idle.keep(key("a:1"), old);
        tokio::time::advance(POOL_IDLE).await;
        let ((live, _engine), (dead, gone)) = (pair(), pair());
        idle.keep(key("a:1"), live);
        idle.keep(key("b:1"), dead);
        drop(gone);
        idle.sweep();
        assert_eq!(idle.len(), 1);
        assert!(old_engine.write_all(b"x").await.is_err());
    }

    #[tokio::test]
    async fn of_too_many_the_oldest_is_closed() {
        let idle = Idle::default();
        let engines: Vec<_> = (0..=KEPT_PER_ENGINE)
            .map(|_| {
                let (wire, engine) = pair();
                idle.keep(key("a:1"), wire);
                engine
            })
            .collect();
        assert_eq!(idle.len(), KEPT_PER_ENGINE);
        let mut first = engines.into_iter().next().unwrap();
        assert!(first.write_all(b"x").await.is_err());
    }
}
