//! Engines that are known to read a chat's token ids beside its messages.
//!
//! It is a property of a process, shown by asking it (`control::chat_ids`). So it is forgotten
//! whenever the process may be another one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fleet::{Fleet, Instance};

/// States of a process; the bits above them count processes.
const UNKNOWN: u64 = 0;
const READS: u64 = 1;
const IGNORES: u64 = 2;
const STATES: u64 = 4;

/// Knowledge about the process of one engine.
#[derive(Debug, Default)]
pub(super) struct ChatIds(AtomicU64);

/// A process that is asked; what it answers says nothing about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedProcess(u64);

impl ChatIds {
    fn forget(&self) {
        let next = |state: u64| Some((state / STATES + 1) * STATES);
        // The closure never gives up.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    fn record(&self, AskedProcess(asked): AskedProcess, reads: bool) {
        let state = asked / STATES * STATES + if reads { READS } else { IGNORES };
        // One that fails is about a process that may be gone.
        let _ = self.0.compare_exchange(asked, state, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Instance {
    /// True if its chat endpoint takes token ids in place of messages.
    pub fn reads_chat_ids(&self) -> bool {
        self.chat_ids.0.load(Ordering::Relaxed) % STATES == READS
    }

    /// The process that is to be asked for it; `None` where that is known, or it is in doubt which
    /// process it is.
    pub fn unasked_for_chat_ids(&self) -> Option<AskedProcess> {
        let state = self.chat_ids.0.load(Ordering::Relaxed);
        let is_due = state % STATES == UNKNOWN && !self.health().is_doubted() && !self.draining();
        is_due.then_some(AskedProcess(state))
    }

    /// Notes what a process answered.
    pub fn record_chat_ids(&self, asked: AskedProcess, reads: bool) {
        self.chat_ids.record(asked, reads);
    }

    /// Its process may be another one by now.
    pub(super) fn forget_chat_ids(&self) {
        self.chat_ids.forget();
    }
}

impl Fleet {
    /// Notes that an engine ignored the ids that it was sent: it is not sent any, nor asked, until
    /// its process is another one.
    pub fn ignores_chat_ids(&self, instance: &Instance) {
        for role in self.roles_of(instance) {
            let now = AskedProcess(role.chat_ids.0.load(Ordering::Relaxed));
            role.record_chat_ids(now, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{FleetSettings, Role};

    fn engine() -> (Fleet, Arc<Instance>) {
        let fleet = Fleet::with(FleetSettings { probed: true, ..FleetSettings::default() });
        fleet.add(Role::Decode, Endpoint::new("e", 1));
        let instance = fleet.members(Role::Decode).last().cloned().unwrap();
        fleet.record_release(&instance, Some("0.32.0"));
        (fleet, instance)
    }

    #[test]
    fn answer_counts_until_the_process_may_be_another_one() {
        let (fleet, engine) = engine();
        let asked = engine.unasked_for_chat_ids().unwrap();
        engine.record_chat_ids(asked, true);
        assert!(engine.reads_chat_ids() && engine.unasked_for_chat_ids().is_none());
        fleet.doubt_process(&engine);
        assert!(!engine.reads_chat_ids());
        assert!(engine.unasked_for_chat_ids().is_none(), "it has to list its models first");
        engine.health().identity().models_asked();
        fleet.record_models(&engine, vec!["m".to_owned()]);
        assert!(engine.unasked_for_chat_ids().is_some());
        engine.record_chat_ids(asked, true);
        assert!(!engine.reads_chat_ids(), "that was about the process before");
    }

    #[test]
    fn engine_of_a_new_release_is_asked_again() {
        let (fleet, engine) = engine();
        engine.record_chat_ids(engine.unasked_for_chat_ids().unwrap(), true);
        fleet.record_release(&engine, Some("0.31.0"));
        assert!(!engine.reads_chat_ids() && engine.unasked_for_chat_ids().is_some());
    }

    #[test]
    fn engine_that_ignores_ids_is_left_alone() {
        let (fleet, engine) = engine();
        engine.record_chat_ids(engine.unasked_for_chat_ids().unwrap(), true);
        fleet.ignores_chat_ids(&engine);
        assert!(!engine.reads_chat_ids() && engine.unasked_for_chat_ids().is_none());
    }
}
