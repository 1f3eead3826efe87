//! Memory for clients' bodies, from their first byte to the end of their requests.
//!
//! A body takes no place of `limit.inflight` before it is whole, so what bounds it is here: bytes
//! of all bodies together, bytes and number of those that are still on their way, bytes of these on
//! one connection. A new body that finds no room among those on their way is not refused: the one
//! that has been on its way for longest gives way. So clients that begin bodies and never end them
//! only get into each other's way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

/// Limits of bodies.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Bytes of all bodies in memory, whether their requests wait or are served.
    pub held_bytes: usize,
    /// Bytes of those that are on their way.
    pub unread_bytes: usize,
    /// Number of those.
    pub unread: usize,
    /// Bytes of those on one HTTP/2 connection.
    pub connection_bytes: usize,
    /// The least rate of a body, bytes per second, after [`BodyLimits::grace`]; 0 = none.
    pub least_rate: usize,
    /// Time for which no rate is asked for.
    pub grace: Duration,
}

/// The memory that bodies take.
#[derive(Clone, Debug, Default)]
pub struct BodyMemory(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    held_bytes: AtomicUsize,
    unread: Mutex<UnreadBodies>,
}

/// Bodies that are on their way, the oldest first.
#[derive(Debug, Default)]
struct UnreadBodies {
    begun: u64,
    bytes: usize,
    bodies: BTreeMap<u64, UnreadBody>,
}

#[derive(Debug)]
struct UnreadBody {
    bytes: usize,
    /// Dropped when it is to give way.
    _stays: oneshot::Sender<()>,
}

/// Bytes of one body, given back when dropped.
#[derive(Debug)]
pub(super) struct BodyBytes {
    memory: Arc<Inner>,
    bytes: usize,
}

/// A body that is on its way, until dropped.
#[derive(Debug)]
pub(super) struct IncomingBody {
    memory: Arc<Inner>,
    id: u64,
}

/// Bytes of the bodies that are on their way on one HTTP/2 connection; in the extensions of its
/// requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionBytes(Arc<AtomicUsize>);

/// The part of one body in them, given back when dropped.
#[derive(Debug)]
pub(super) struct ConnectionShare {
    connection: ConnectionBytes,
    bytes: usize,
}

/// There is no room for more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl BodyMemory {
    /// No bytes yet of a new body.
    pub(super) fn nothing(&self) -> BodyBytes {
        BodyBytes { memory: self.0.clone(), bytes: 0 }
    }

    /// Counts a body of which `bytes` have come as on its way. The receiver ends when it is to give
    /// way to newer ones.
    pub(super) fn begin(&self, bytes: usize, limits: &BodyLimits) -> (IncomingBody, oneshot::Receiver<()>) {
        let (stays, gives_way) = oneshot::channel();
        let mut unread = self.0.unread();
        unread.begun += 1;
        let id = unread.begun;
        unread.bytes += bytes;
        unread.bodies.insert(id, UnreadBody { bytes, _stays: stays });
        unread.make_room(limits);
        (IncomingBody { memory: self.0.clone(), id }, gives_way)
    }

    /// Bytes of all bodies in memory.
    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes.load(Ordering::Acquire)
    }
}

impl Inner {
    /// A panic elsewhere leaves the table whole.
    fn unread(&self) -> MutexGuard<'_, UnreadBodies> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnreadBodies {
    fn make_room(&mut self, limits: &BodyLimits) {
        while self.bodies.len() > limits.unread.max(1) || self.bytes > limits.unread_bytes {
            let Some((_, oldest)) = self.bodies.pop_first() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
        }
    }
}

impl BodyBytes {
    /// Takes room for `more` bytes.
    ///
    /// # Errors
    /// [`NoRoom`] when all bodies together would have more than `limits` allow.
    pub(super) fn grow(&mut self, more: usize, limits: &BodyLimits) -> Result<(), NoRoom> {
        let before = self.memory.held_bytes.fetch_add(more, Ordering::AcqRel);
        self.bytes += more;
        if before.saturating_add(more) > limits.held_bytes { Err(NoRoom) } else { Ok(()) }
    }

    /// The bytes that have come.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `body`, whose room is given back when the last slice of it is dropped.
    pub(super) fn keep(self, body: Bytes) -> Bytes {
        Bytes::from_owner(Kept { body, _held: self })
    }
}

impl Drop for BodyBytes {
    fn drop(&mut self) {
        self.memory.held_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A body with its room.
struct Kept {
    body: Bytes,
    _held: BodyBytes,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl IncomingBody {
    /// Counts `more` bytes of it.
    pub(super) fn grow(&self, more: usize, limits: &BodyLimits) {
        let mut unread = self.memory.unread();
        if let Some(own) = unread.bodies.get_mut(&self.id) {
            own.bytes += more;
            unread.bytes += more;
            unread.make_room(limits);
        }
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        let mut unread = self.memory.unread();
        if let Some(own) = unread.bodies.remove(&self.id) {
            unread.bytes = unread.bytes.saturating_sub(own.bytes);
        }
    }
}

impl ConnectionBytes {
    /// The part of a new body.
    pub(super) fn share(&self) -> ConnectionShare {
        ConnectionShare { connection: self.clone(), bytes: 0 }
    }
}

impl ConnectionShare {
    /// Takes room for `more` bytes.
    ///
    /// # Errors
    /// [`NoRoom`] when the connection would have more than `limits` allow.
    pub(super) fn grow(&mut self, more: usize, limits: &BodyLimits) -> Result<(), NoRoom> {
        let before = self.connection.0.fetch_add(more, Ordering::AcqRel);
        self.bytes += more;
        if before.saturating_add(more) > limits.connection_bytes { Err(NoRoom) } else { Ok(()) }
    }
}

impl Drop for ConnectionShare {
    fn drop(&mut self) {
        self.connection.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> BodyLimits {
        BodyLimits {
            held_bytes: 100,
            unread_bytes: 60,
            unread: 3,
            connection_bytes: 50,
            least_rate: 0,
            grace: Duration::ZERO,
        }
    }

    fn gives_way(told: &mut oneshot::Receiver<()>) -> bool {
        told.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn room_is_given_back_with_the_last_slice() {
        let (memory, limits) = (BodyMemory::default(), limits());
        let mut held = memory.nothing();
        assert_eq!((held.grow(80, &limits), held.bytes()), (Ok(()), 80));
        let body = held.keep(Bytes::from(vec![7; 80]));
        let slice = body.slice(10..12);
        drop(body);
        assert_eq!((memory.held_bytes(), &slice[..]), (80, &[7, 7][..]));
        assert_eq!(memory.nothing().grow(21, &limits), Err(NoRoom), "and what was refused takes none");
        assert_eq!(memory.nothing().grow(20, &limits), Ok(()));
        drop(slice);
        assert_eq!(memory.held_bytes(), 0);
    }

    #[test]
    fn the_oldest_gives_way_to_more_bodies_and_to_more_bytes() {
        let (memory, limits) = (BodyMemory::default(), limits());
        let mut all: Vec<_> = (0..4).map(|_| memory.begin(10, &limits)).collect();
        let told: Vec<bool> = all.iter_mut().map(|(_, told)| gives_way(told)).collect();
        assert_eq!(told, [true, false, false, false], "three may be on their way");
        all[3].0.grow(31, &limits);
        assert!(gives_way(&mut all[1].1) && !gives_way(&mut all[2].1), "sixty bytes may be");
        all[0].0.grow(1_000, &limits);
        assert!(!gives_way(&mut all[2].1), "it counts no more");
        all.clear();
        let unread = memory.0.unread();
        assert_eq!((unread.bytes, unread.bodies.len()), (0, 0));
    }

    #[test]
    fn a_connection_has_its_own_limit() {
        let (connection, limits) = (ConnectionBytes::default(), limits());
        let (mut one, mut other) = (connection.share(), connection.share());
        assert_eq!((one.grow(30, &limits), other.grow(21, &limits)), (Ok(()), Err(NoRoom)));
        drop((one, other));
        assert_eq!(connection.share().grow(50, &limits), Ok(()));
    }
}
