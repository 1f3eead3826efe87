//! Messages between gateways: they take their time, and some are lost.

use std::collections::HashMap;
use std::collections::VecDeque;

use super::super::dispatch::{DecodeLoad, Dispatch};
use super::super::random::Random;
use super::{Event, World};
use crate::route::shared::message::{Numbered, ReplicaId};
use crate::route::shared::{BEAT_S, LATER_S};

/// Messages that are under way.
#[derive(Debug)]
pub(super) struct Share {
    last: u64,
    messages: HashMap<u64, UnderWay>,
    /// Loads of all gateways on decoders, oldest first.
    loads: VecDeque<Vec<Vec<DecodeLoad>>>,
    random: Random,
}

#[derive(Debug)]
struct UnderWay {
    from: ReplicaId,
    message: Numbered,
    /// Gateways that have not heard it.
    left: usize,
}

impl Share {
    pub(super) fn new(seed: u64) -> Share {
        let random = Random::new(seed ^ 0x5eed);
        Share { last: 0, messages: HashMap::new(), loads: VecDeque::new(), random }
    }
}

impl<D: Dispatch> World<'_, D> {
    /// Sends what a gateway wants to say. It hears itself, too, as all who listen do.
    pub(super) fn send_messages(&mut self, at: usize) {
        let Some(gateway) = self.gateways.get_mut(at) else { return };
        let messages = gateway.dispatch.messages();
        let Some(delay_s) = self.faults.share_s else { return };
        for message in messages {
            self.share.last += 1;
            let number = self.share.last;
            let from = ReplicaId(at as u64);
            let mut left = 0;
            let (first, last) = match message.to {
                Some(ReplicaId(to)) => (to as usize, to as usize),
                None => (0, self.gateways.len() - 1),
            };
            for to in first..=last {
                if self.share.random.unit() >= self.faults.share_lost {
                    self.plan(self.now + delay_s, Event::Heard { gateway: to as u16, message: number });
                    left += 1;
                }
            }
            if left > 0 {
                self.share.messages.insert(number, UnderWay { from, message, left });
            }
        }
    }

    pub(super) fn heard(&mut self, gateway: u16, number: u64) {
        let Some(mut it) = self.share.messages.remove(&number) else { return };
        let at = usize::from(gateway);
        self.gateways[at].dispatch.hear(self.now, it.from, &it.message);
        it.left -= 1;
        if it.left > 0 {
            self.share.messages.insert(number, it);
        }
        self.pump(at);
    }

    /// All gateways say what has waited for a later message.
    pub(super) fn rests(&mut self) {
        for at in 0..self.gateways.len() {
            self.gateways[at].dispatch.tell_rest();
            self.send_messages(at);
        }
        self.plan(self.now + LATER_S, Event::Rests);
    }

    pub(super) fn beats(&mut self) {
        for at in 0..self.gateways.len() {
            self.gateways[at].dispatch.beat(self.now);
            self.pump(at);
        }
        let loads = self.gateways.iter().map(|gateway| gateway.decoders.clone()).collect();
        self.share.loads.push_back(loads);
        self.plan(self.now + self.faults.share_s.unwrap_or_default(), Event::LoadsTold);
        self.plan(self.now + BEAT_S, Event::Beats);
    }

    /// All gateways know what load the others had on decoders.
    pub(super) fn loads_told(&mut self) {
        let Some(loads) = self.share.loads.pop_front() else { return };
        for (at, gateway) in self.gateways.iter_mut().enumerate() {
            gateway.told.fill(DecodeLoad::default());
            let others = loads.iter().enumerate().filter(|(other, _)| *other != at);
            for (_, its) in others {
                gateway.told.iter_mut().zip(its).for_each(|(sum, load)| *sum = sum.and(*load));
            }
        }
    }
}
