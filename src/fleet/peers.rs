//! The scheduler among other gateways that share the fleet: its messages to them, and theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::fleet::scheduler_handle::SchedulerHandle;
use crate::fleet::{Fleet, InstanceId, Role};
use crate::obs::Meters;
use crate::obs::share::Placements;
use crate::route::shared::message::{DecoderLoad, Numbered, ReplicaId};
use crate::route::shared::{PeerFacts, SharedScheduler, Standing, Traffic};

/// Messages that wait to be sent: those of a second at some thousand requests per second. Beyond
/// it the store is too slow, and what is left unsaid is told anew when it is back.
const UNSENT: usize = 8_192;

/// Way to the other gateways.
#[derive(Debug)]
pub struct PeerSender {
    messages: mpsc::Sender<Numbered>,
    /// Some messages found no room.
    overflowed: Arc<AtomicBool>,
}

/// Messages for other gateways, for whoever sends them.
#[derive(Debug)]
pub struct PeerMessages {
    messages: mpsc::Receiver<Numbered>,
    overflowed: Arc<AtomicBool>,
}

/// Most messages that are sent at once.
const TOGETHER: usize = 256;

impl PeerMessages {
    /// The next messages, in their order, not before that time; waits for the first. Nothing is
    /// lost where it is not waited for.
    pub async fn next(&mut self, not_before: Option<Instant>) -> Vec<Numbered> {
        if let Some(time) = not_before {
            sleep_until(time).await;
        }
        let mut together = Vec::new();
        self.messages.recv_many(&mut together, TOGETHER).await;
        together
    }

    /// Drops all that waits.
    pub fn reset(&mut self) {
        while self.messages.try_recv().is_ok() {}
        self.overflowed.store(false, Ordering::Relaxed);
    }

    /// True if some messages found no room since the last reset.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }
}

impl SchedulerHandle {
    /// Shares the fleet with other gateways from now on, once. Returns what is to be sent to them;
    /// None if the fleet is shared already.
    pub fn share(&self, me: ReplicaId) -> Option<PeerMessages> {
        let (sender, messages) = mpsc::channel(UNSENT);
        let overflowed = Arc::new(AtomicBool::new(false));
        self.peers.set(PeerSender { messages: sender, overflowed: overflowed.clone() }).ok()?;
        self.lock().board.share(me);
        Some(PeerMessages { messages, overflowed })
    }

    /// Takes over what another gateway says.
    pub fn hear(self: &Arc<Self>, from: ReplicaId, messages: &[Numbered]) {
        self.among_peers(|board, now| messages.iter().for_each(|it| board.hear(now, from, it)));
    }

    /// This gateway places the requests of all from now on, or does so no longer.
    pub fn lead(self: &Arc<Self>, leads: bool) {
        self.among_peers(|board, now| board.lead(leads, now));
    }

    /// Others can be heard from now on, or no longer.
    pub fn connect(self: &Arc<Self>, connected: bool) {
        self.among_peers(|board, now| board.connect(connected, now));
    }

    /// Says that this gateway is there and what load it has on decoders, and forgets gateways that
    /// are not there.
    pub fn beat(self: &Arc<Self>, decoders: Vec<DecoderLoad>) {
        self.among_peers(|board, now| {
            board.pass(now);
            board.beat(now, decoders);
        });
    }

    /// Says what has waited for a later message.
    pub fn tell_rest(&self) {
        let mut state = self.lock();
        state.board.tell_rest();
        self.tell_peers(&mut state.board);
    }

    /// Shows the standing among other gateways, where the fleet is shared.
    pub(super) fn show(&self, meters: &Meters) {
        let (standing, traffic, heard) = {
            let board = &self.lock().board;
            (board.standing(), board.traffic(), board.heard_gateways())
        };
        let (Some(standing), Some(traffic), Some(heard)) = (standing, traffic, heard) else { return };
        let Traffic { placed, own, lapsed, for_others, .. } = traffic;
        let placements = Placements { leader: placed, here: own, lapsed, for_others };
        meters.share(&Standing::NAMES, standing.name(), placements);
        meters.share_heard(heard);
    }

    /// Standing among the other gateways; none where the fleet is not shared.
    pub fn standing(&self) -> Option<Standing> {
        self.lock().board.standing()
    }

    /// Number of this gateway among others, and facts of those that are heard; none where the fleet
    /// is not shared.
    pub fn gateways(&self) -> Option<(ReplicaId, Vec<PeerFacts>)> {
        self.lock().board.gateways(self.now())
    }

    /// Number of gateways of the fleet that are heard, this one included.
    pub fn heard_gateways(&self) -> usize {
        self.lock().board.heard_gateways().unwrap_or(1)
    }

    /// Counts of what was told to other gateways; none where the fleet is not shared.
    pub fn traffic(&self) -> Option<Traffic> {
        self.lock().board.traffic()
    }

    fn among_peers(self: &Arc<Self>, change: impl FnOnce(&mut SharedScheduler, f64)) {
        {
            let (now, mut state) = (self.now(), self.lock());
            change(&mut state.board, now);
            self.tell_peers(&mut state.board);
        }
        self.pump();
    }

    /// Hands over what is to be said, in its order: to be called under the lock.
    pub(super) fn tell_peers(&self, board: &mut SharedScheduler) {
        let Some(peers) = self.peers.get() else { return };
        for message in board.take_messages() {
            if peers.messages.try_send(message).is_err() {
                peers.overflowed.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Fleet {
    /// Load of this gateway on decoders, or on their ranks, as far as there is any.
    pub fn decoder_loads(&self) -> Vec<DecoderLoad> {
        let members = self.members(Role::Decode);
        let places = members.iter().flat_map(|engine| engine.ranks().map(move |rank| (engine, rank)));
        let loads = places.map(|(engine, rank)| {
            let load = engine.load_of(rank);
            DecoderLoad {
                decoder: engine.identity(rank),
                requests: load.requests(),
                tokens: load.work_tokens(),
            }
        });
        loads.filter(|load| load.requests > 0).collect()
    }

    /// The name of a decoder, the same in all gateways; None where it is none of the fleet.
    pub fn decoder_name(&self, decoder: InstanceId) -> Option<u64> {
        self.members(Role::Decode).iter().find(|it| it.id() == decoder).map(|it| it.identity(None))
    }

    /// The decoder of that name, if it is one of the fleet.
    pub fn decoder_named(&self, name: u64) -> Option<InstanceId> {
        self.members(Role::Decode).iter().find(|it| it.identity(None) == name).map(|it| it.id())
    }

    /// Takes over the load that other gateways told that they have on decoders.
    pub fn take_told_loads(&self) {
        let told = self.scheduler().lock().board.decoders_elsewhere();
        for engine in self.members(Role::Decode).iter() {
            for rank in engine.ranks() {
                let load = told.get(&engine.identity(rank)).copied().unwrap_or_default();
                engine.set_told_load(rank, load.requests, load.tokens);
            }
        }
    }
}
