//! Listening to one engine: its events go into the index, what was missed is asked for again, and
//! what can't be known any more is forgotten.
//!
//! After each connection, and at each gap, the engine's replay socket is asked; meanwhile live
//! batches wait in the sockets between. An engine that is not heard for [`Times::lost_ms`] has
//! nothing in the index.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use super::decode::{END_OF_REPLAY, Event, EventBatch, Frames};
use super::index::{BlockIndex, HolderId};
use super::open::{accept_newer, open, within};
use super::sequence::{Cursor, Replay, Replayed, Step};
use super::status::{Count, State, Status};
use super::zmtp::{Address, Connection, LinkError, Listener, Role, Stream};

/// Most data-parallel ranks that one publisher speaks for.
const MAX_RANKS: usize = 64;
/// Dead entries given back at a time, while others may read the index.
const SWEEP_ENTRIES: usize = 256;
/// Hashes taken in at a time, likewise.
const PIECE_HASHES: usize = 512;
/// Most times that one replay is asked for again, because the engine left batches out of it.
const REPLAY_ROUNDS: u32 = 64;

/// The index, as watches and their readers share it. Readers hold it for one look-up.
pub type SharedIndex = Arc<RwLock<BlockIndex>>;

/// An engine's publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Number of the instance in the index.
    pub instance: u64,
    /// Its name in the log.
    pub name: Arc<str>,
    /// Data-parallel rank, where batches don't tell.
    pub rank: u32,
    /// Place where it publishes.
    pub events: Address,
    /// The engine connects to this address (its endpoint has no `*`) instead of listening there.
    pub engine_connects: bool,
    /// Its replay socket, if it has one. Without it, a gap empties the index.
    pub replay: Option<Address>,
    /// Beginning of the topics to listen to; empty for all.
    pub topic: Box<str>,
}

/// Longest time that things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A connection with its handshake.
    pub connect_ms: u64,
    /// Wait before the first repetition of a failed connection; each next one is twice as long.
    pub retry_ms: u64,
    /// Longest such wait.
    pub retry_max_ms: u64,
    /// Silence within a replay. vLLM looks for requests between batches, up to 0.1 s apart.
    pub replay_quiet_ms: u64,
    /// A replay as a whole.
    pub replay_ms: u64,
    /// An engine that is not heard for so long has nothing any more.
    pub lost_ms: u64,
}

/// A data-parallel rank and what the index calls it.
struct RankHolder {
    rank: u32,
    holder: HolderId,
}

/// A place in a batch: an event, and a hash of it.
#[derive(Clone, Copy, Default)]
struct Position {
    event: usize,
    hash: usize,
}

/// Listener to one engine. Dropping it removes its engine's blocks from the index.
pub struct Watch {
    source: Arc<Source>,
    times: Times,
    index: SharedIndex,
    status: Arc<Status>,
    cursor: Cursor,
    /// Within a batch, of which others may have seen a part.
    taking: bool,
    /// Ranks seen so far.
    holders: SmallVec<[RankHolder; 1]>,
}

enum Round {
    /// All that the engine has was taken.
    Ended,
    /// Batches are missing in it.
    Hole,
    /// It is another engine.
    Stranger,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect_ms: 2_000,
            retry_ms: 100,
            retry_max_ms: 5_000,
            replay_quiet_ms: 1_000,
            replay_ms: 20_000,
            lost_ms: 30_000,
        }
    }
}

impl Watch {
    /// Of this engine, into this index.
    pub fn new(source: Source, times: Times, index: SharedIndex) -> Self {
        Self {
            source: Arc::new(source),
            times,
            index,
            status: Arc::default(),
            cursor: Cursor::default(),
            taking: false,
            holders: SmallVec::new(),
        }
    }

    /// State and counters of the watch.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Starts it among `tasks`; it ends with `stop`.
    pub fn spawn(self, tasks: &mut JoinSet<()>, stop: CancellationToken) {
        tasks.spawn(self.run(stop));
    }

    /// Listens until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.listen()).await;
        self.status.set(State::Lost);
        let holders = self.release();
        self.sweep(&holders).await;
    }

    /// Connects, replays what was missed, and follows live batches, over and over; never returns.
    async fn listen(&mut self) {
        let mut disconnected_at = Instant::now();
        let mut listener = None;
        // A connection that the engine made while the old one was open.
        let mut newer = None;
        loop {
            let mut link = self.connect(&mut listener, newer.take(), disconnected_at).await;
            self.status.add(Count::Connections);
            self.cursor.connected();
            let caught_up = self.resume().await;
            if !caught_up && self.cursor.has_taken() {
                // The engine may have restarted with an empty cache, and stay silent until it has
                // work.
                self.forget().await;
            }
            // Even after a failed replay, which `follow` repeats.
            self.status.set(State::Live);
            newer = self.follow(&mut link, listener.as_ref(), caught_up).await;
            disconnected_at = Instant::now();
            self.status.set(State::Lost);
        }
    }

    /// A connection with its subscription, however long it takes; past the limit, nothing is known
    /// any more.
    async fn connect(
        &mut self,
        listener: &mut Option<Listener>,
        newer: Option<Box<dyn Stream>>,
        ended: Instant,
    ) -> Connection {
        let source = Arc::clone(&self.source);
        let opening = open(&source, self.times, listener, newer);
        tokio::pin!(opening);
        let limit = sleep_until(ended + Duration::from_millis(self.times.lost_ms));
        tokio::select! {
            link = &mut opening => return link,
            () = limit => {}
        }
        tracing::warn!(engine = %source.name, role = "prefill", "no KV events from this engine: its blocks are forgotten");
        self.forget().await;
        opening.await
    }

    /// Takes what came since the last batch that was taken. True if all came that the engine still
    /// has.
    async fn resume(&mut self) -> bool {
        let replay = self.cursor.resume();
        let caught_up = self.catch_up(replay).await;
        if caught_up {
            self.cursor.caught_up();
        }
        caught_up
    }

    /// Takes live batches until the connection ends; gives the stream of a newer one, if that is
    /// the reason. A replay that failed is asked for again for a while: an engine that starts opens
    /// one port before the other, and what it says in between reaches nobody.
    async fn follow(
        &mut self,
        link: &mut Connection,
        listener: Option<&Listener>,
        caught_up: bool,
    ) -> Option<Box<dyn Stream>> {
        let mut behind = self.source.replay.is_some() && !caught_up;
        let mut pause = Duration::from_millis(self.times.retry_ms);
        let mut again = Instant::now() + pause;
        let until = Instant::now() + Duration::from_millis(self.times.lost_ms);
        loop {
            let message = tokio::select! {
                message = link.receive() => message,
                newer = accept_newer(listener, self.times) => return Some(newer),
                () = sleep_until(again), if behind => {
                    behind = !self.resume().await && again < until;
                    self.status.set(State::Live);
                    pause = (2 * pause).min(Duration::from_millis(self.times.retry_max_ms));
                    again = Instant::now() + pause;
                    continue;
                }
            };
            match message {
                Ok(frames) => self.live(&frames).await,
                Err(error) => {
                    tracing::info!(engine = %self.source.name, role = "prefill", %error, "connection of KV events ended");
                    return None;
                }
            }
        }
    }

    async fn live(&mut self, frames: &[Bytes]) {
        let frames = match Frames::of(frames) {
            Ok(frames) if frames.sequence != END_OF_REPLAY => frames,
            _ => return self.status.add(Count::Malformed),
        };
        let digest = xxh3_64(frames.payload);
        match self.cursor.live(frames.sequence, digest) {
            Step::Take => self.take(&frames, digest).await,
            Step::Known => {}
            Step::Gap(from) => {
                if self.cursor.has_taken() {
                    self.status.add(Count::Gaps);
                }
                let caught_up = self.catch_up(Replay::from(from)).await;
                self.take_after(&frames, digest, caught_up).await;
            }
            Step::Restart => {
                self.status.add(Count::Restarts);
                self.forget().await;
                let caught_up = self.catch_up(Replay::from(0)).await;
                self.take_after(&frames, digest, caught_up).await;
            }
        }
        self.status.set(State::Live);
    }

    /// Takes the live batch that made a replay necessary, unless it was among those replayed.
    /// Batches that no replay brought may still come with the next.
    async fn take_after(&mut self, frames: &Frames<'_>, digest: u64, caught_up: bool) {
        match self.cursor.place(frames.sequence, digest) {
            Step::Known => {}
            Step::Take => self.take(frames, digest).await,
            Step::Gap(_) | Step::Restart => {
                self.forget().await;
                self.take(frames, digest).await;
                if !caught_up {
                    self.cursor.owes();
                }
            }
        }
    }

    /// Asks for what was missed, and takes it. True if all came that the engine still has.
    async fn catch_up(&mut self, replay: Replay) -> bool {
        let Some(address) = self.source.replay.clone() else { return false };
        self.status.set(State::Replaying);
        self.status.add(Count::Replays);
        let limit = Duration::from_millis(self.times.replay_ms);
        let done = timeout(limit, self.rounds(&address, replay)).await;
        let Err(error) = done.unwrap_or(Err(LinkError::TimedOut)) else { return true };
        self.status.add(Count::ReplayFailures);
        tracing::warn!(engine = %self.source.name, role = "prefill", %address, %error, "replay of KV events failed");
        if self.taking {
            // Its time ended within a batch, whose rest is lost.
            self.forget().await;
        }
        false
    }

    async fn rounds(&mut self, address: &Address, mut replay: Replay) -> Result<(), LinkError> {
        for _ in 0..REPLAY_ROUNDS {
            match self.round(address, &mut replay).await? {
                Round::Ended => return Ok(()),
                Round::Hole => replay = Replay::from(self.cursor.next()),
                Round::Stranger => {
                    self.status.add(Count::Restarts);
                    self.forget().await;
                    replay = Replay::from(0);
                }
            }
        }
        Err(LinkError::Protocol("a replay with ever more holes"))
    }

    /// One question and its answers, on a connection of its own: what is left of an earlier one
    /// can't get into it.
    async fn round(&mut self, address: &Address, replay: &mut Replay) -> Result<Round, LinkError> {
        let connect = async { Connection::greet(address.connect().await?, Role::Dealer).await };
        let mut link = within(self.times.connect_ms, connect).await?;
        link.send(&[b"", &replay.asked().to_be_bytes()]).await?;
        loop {
            let message = within(self.times.replay_quiet_ms, link.receive()).await?;
            let Ok(frames) = Frames::of(&message) else {
                self.status.add(Count::Malformed);
                continue;
            };
            if frames.sequence == END_OF_REPLAY {
                return Ok(if replay.ended_strange() { Round::Stranger } else { Round::Ended });
            }
            let digest = xxh3_64(frames.payload);
            match replay.came(frames.sequence, digest) {
                Replayed::Take => self.take(&frames, digest).await,
                Replayed::TakeAfterLoss => {
                    self.forget().await;
                    self.take(&frames, digest).await;
                }
                Replayed::Known => {}
                Replayed::Hole => return Ok(Round::Hole),
                Replayed::Stranger => return Ok(Round::Stranger),
            }
        }
    }

    /// A batch goes into the index. One that is not understood may have told that anything was
    /// removed, so all is forgotten.
    async fn take(&mut self, frames: &Frames<'_>, digest: u64) {
        let Ok(batch) = EventBatch::decode(frames.payload) else {
            self.forget().await;
            self.cursor.took(frames.sequence, digest);
            self.status.set_complete(false);
            return self.status.add(Count::Malformed);
        };
        self.cursor.took(frames.sequence, digest);
        self.status.add(Count::Batches);
        let rank = batch.dp_rank.unwrap_or(self.source.rank);
        let Some(holder) = self.holder(rank) else { return self.status.add(Count::Unplaced) };
        self.taking = true;
        self.apply(holder, &batch.events).await;
        self.taking = false;
        self.count_blocks();
        if frames.sequence == 0 || batch.events.contains(&Event::Cleared) {
            self.status.set_complete(true);
        }
    }

    /// In pieces, between which others may read the index.
    async fn apply(&self, holder: HolderId, events: &[Event]) {
        let mut at = Position::default();
        while at.event < events.len() {
            at = self.apply_piece(holder, events, at);
            yield_now().await;
        }
    }

    /// Takes in as much as one piece may be, from `at` on. Returns the position at which the next
    /// piece begins.
    fn apply_piece(&self, holder: HolderId, events: &[Event], at: Position) -> Position {
        let Position { mut event, mut hash } = at;
        let mut left = PIECE_HASHES;
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        while let Some(it) = events.get(event).filter(|_| left > 0) {
            let end = it.hashes().min(hash + left);
            index.apply_part(holder, it, hash..end);
            left = left.saturating_sub((end - hash).max(1));
            (event, hash) = if end == it.hashes() { (event + 1, 0) } else { (event, end) };
        }
        Position { event, hash }
    }

    fn holder(&mut self, rank: u32) -> Option<HolderId> {
        if let Some(known) = self.holders.iter().find(|known| known.rank == rank) {
            return Some(known.holder);
        }
        if self.holders.len() == MAX_RANKS {
            return None;
        }
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let holder = index.holder(self.source.instance, rank)?;
        self.holders.push(RankHolder { rank, holder });
        Some(holder)
    }

    /// Nothing is known of the engine any more.
    async fn forget(&mut self) {
        if self.cursor.has_taken() {
            self.status.add(Count::Emptied);
        }
        self.cursor.forget();
        self.taking = false;
        self.status.set_complete(false);
        for RankHolder { holder, .. } in &self.holders {
            self.index.write().unwrap_or_else(PoisonError::into_inner).clear(*holder);
        }
        self.count_blocks();
        self.sweep(&self.holders).await;
    }

    fn count_blocks(&self) {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let sizes = self.holders.iter().map(|of| index.block_tokens(of.holder));
        self.status.set_block_tokens(sizes.max().unwrap_or(0));
        let held = self.holders.iter().map(|of| index.held_blocks(of.holder));
        let (own, pool) = held.fold((0, 0), |(own, pool), it| (own + it.0, pool + it.1));
        self.status.set_blocks(own, pool);
    }

    /// Gives its holders back, which have nothing any more.
    fn release(&mut self) -> SmallVec<[RankHolder; 1]> {
        let holders = std::mem::take(&mut self.holders);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        holders.iter().for_each(|of| index.release(of.holder));
        self.status.set_blocks(0, 0);
        holders
    }

    /// Gives back the memory of what was forgotten.
    async fn sweep(&self, holders: &[RankHolder]) {
        for RankHolder { holder, .. } in holders {
            while self.index.write().unwrap_or_else(PoisonError::into_inner).sweep(*holder, SWEEP_ENTRIES) {
                yield_now().await;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for RankHolder { holder, .. } in self.release() {
            while self.index.write().unwrap_or_else(PoisonError::into_inner).sweep(holder, SWEEP_ENTRIES) {}
        }
    }
}
