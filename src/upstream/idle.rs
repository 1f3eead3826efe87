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

/// Outcomes of looking for a connection that waits.
#[derive(Debug)]
pub(super) enum Taken {
    /// One that its engine has not closed, as far as is known.
    Waiting(Wire),
    /// The engine has closed all that waited, before their time: its process may have ended.
    Closed,
    /// None waited, or not long ago.
    Nothing,
}

impl Idle {
    /// Takes the youngest connection that works.
    pub(super) fn take(&self, key: &Key) -> Taken {
        let mut taken = Taken::Nothing;
        loop {
            let popped = {
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.get_mut(key).and_then(VecDeque::pop_back)
            };
            let Some(mut kept) = popped else { return taken };
            if kept.since.elapsed() >= POOL_IDLE {
                continue;
            }
            if kept.wire.is_quiet() {
                return Taken::Waiting(kept.wire);
            }
            taken = Taken::Closed;
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

    /// Closes those that are old or that their engines have closed; returns the engines that have
    /// closed all of theirs before their time.
    pub(super) fn sweep(&self) -> Vec<Key> {
        let (mut closed, mut gone) = (Vec::new(), Vec::new());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|key, queue| {
            let mut is_early = false;
            for mut kept in std::mem::take(queue) {
                let is_young = kept.since.elapsed() < POOL_IDLE;
                if is_young && kept.wire.is_quiet() {
                    queue.push_back(kept);
                } else {
                    is_early |= is_young;
                    closed.push(kept);
                }
            }
            if queue.is_empty() && is_early {
                gone.push(key.clone());
            }
            !queue.is_empty()
        });
        drop(all);
        gone
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
        assert!(matches!(idle.take(&key("b:1")), Taken::Nothing));
        assert!(matches!(idle.take(&key("a:1")), Taken::Waiting(_)));
        assert!(matches!(idle.take(&key("a:1")), Taken::Nothing));

        let (wire, engine) = pair();
        idle.keep(key("a:1"), wire);
        drop(engine);
        assert!(matches!(idle.take(&key("a:1")), Taken::Closed));
        assert!(matches!(idle.take(&key("a:1")), Taken::Nothing));

        let (wire, mut engine) = pair();
        idle.keep(key("a:1"), wire);
        engine.write_all(b"HTTP/1.1 408").await.unwrap();
        assert!(matches!(idle.take(&key("a:1")), Taken::Closed));

        let (wire, _engine) = pair();
        idle.keep(key("a:1"), wire);
        tokio::time::advance(POOL_IDLE).await;
        assert!(matches!(idle.take(&key("a:1")), Taken::Nothing), "it is old, and says nothing");
    }

    #[tokio::test]
    async fn a_process_that_keeps_one_connection_has_not_ended() {
        let idle = Idle::default();
        let ((old, _engine), (young, closed)) = (pair(), pair());
        idle.keep(key("a:1"), old);
        idle.keep(key("a:1"), young);
        drop(closed);
        assert!(matches!(idle.take(&key("a:1")), Taken::Waiting(_)));
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
        let closed: Vec<_> = idle.sweep().into_iter().map(|key| key.authority.to_string()).collect();
        assert_eq!((idle.len(), closed), (1, vec!["b:1".to_owned()]));
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
