//! Other gateways as they were heard, and what they have under way.

use std::collections::HashMap;

use super::message::{Beat, DecoderLoad, ReplicaId};
use super::share::{Share, Stage};
use crate::route::job::{LaneId, Seconds};

/// A gateway that was heard.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) heard_s: Seconds,
    /// Number of its last message for all that was heard; 0 before the first.
    last: u64,
    /// Of those for this gateway alone.
    pub(super) last_to_me: u64,
    /// Number of the last message of this gateway for it alone.
    pub(super) said: u64,
    pub(super) beat: Beat,
}

/// Facts of another gateway, as it was heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerFacts {
    /// Number of the gateway.
    pub id: ReplicaId,
    /// Time since its last message.
    pub silent_s: Seconds,
    /// It places the requests of all.
    pub leads: bool,
    /// Requests that wait there.
    pub waiting: u32,
    /// Prefills of its requests under way.
    pub prefills: u32,
    /// Answers under way on decoders.
    pub answers: u32,
    /// Tokens of their context.
    pub answer_tokens: u64,
}

impl Peer {
    /// Number of its last message that was heard, of those for all or for this gateway alone.
    pub(super) fn last_mut(&mut self, to_me: bool) -> &mut u64 {
        if to_me { &mut self.last_to_me } else { &mut self.last }
    }
}

impl Share {
    /// Facts of all gateways that are heard, by their numbers.
    pub(super) fn peer_facts(&self, now: Seconds) -> Vec<PeerFacts> {
        let facts = |(id, Peer { heard_s, beat, .. }): (&ReplicaId, &Peer)| PeerFacts {
            id: *id,
            silent_s: (now - heard_s).max(0.0),
            leads: beat.leads,
            waiting: beat.waiting,
            prefills: self.count_booked(|of, _| of == *id),
            answers: beat.decoders.iter().map(|load| load.requests).fold(0, u32::saturating_add),
            answer_tokens: beat.decoders.iter().map(|load| load.tokens).fold(0, u64::saturating_add),
        };
        let mut all: Vec<PeerFacts> = self.peers.iter().map(facts).collect();
        all.sort_unstable_by_key(|it| it.id);
        all
    }

    /// Number of gateways that are heard.
    pub(super) fn heard(&self) -> usize {
        self.peers.len()
    }

    /// Sums of the loads that other gateways told of.
    pub(super) fn decoders_elsewhere(&self) -> HashMap<u64, DecoderLoad> {
        let mut sums: HashMap<u64, DecoderLoad> = HashMap::new();
        for told in self.peers.values().flat_map(|peer| &peer.beat.decoders) {
            let decoder = told.decoder;
            let sum = sums.entry(decoder).or_insert(DecoderLoad { decoder, ..DecoderLoad::default() });
            sum.requests = sum.requests.saturating_add(told.requests);
            sum.tokens = sum.tokens.saturating_add(told.tokens);
        }
        sums
    }

    /// Number of prefills of other gateways on a lane.
    pub(super) fn booked_elsewhere(&self, lane: LaneId) -> u32 {
        let Some(name) = self.names.name(lane) else { return 0 };
        self.count_booked(|_, at| at == name)
    }

    /// Number of prefills of other gateways, of those that have this gateway and prefiller.
    fn count_booked(&self, counts: impl Fn(ReplicaId, u64) -> bool) -> u32 {
        let booked = self.elsewhere.iter().filter_map(|(id, stage)| match stage {
            Stage::Booked(_, lane) => Some((id.replica, *lane)),
            Stage::WaitsHere(_) => None,
        });
        u32::try_from(booked.filter(|(of, at)| counts(*of, *at)).count()).unwrap_or(u32::MAX)
    }

    /// Predicted seconds of work in the leader's line, for each prefiller.
    pub(super) fn leaders_line_s(&self) -> Seconds {
        self.leaders_beat().map_or(0.0, |beat| beat.line_s)
    }

    /// True if requests waited at the leader when it was last heard.
    pub(super) fn leader_has_line(&self) -> bool {
        self.leaders_beat().is_some_and(|beat| beat.waiting > 0)
    }

    /// Last beat of the leader, where that is another gateway.
    fn leaders_beat(&self) -> Option<&Beat> {
        let leader = self.leader.filter(|_| !self.leads)?;
        self.peers.get(&leader).map(|leader| &leader.beat)
    }
}
