//! Load of each role in seconds and in engines, for those who decide on the number of engines.
//!
//! It is computed when it is looked at; a request only adds to sums. What others gave the engines
//! is left out, but for gateways that tell each other of all requests: each shows the load that it
//! knows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::fleet::health::State;
use crate::fleet::load_window::{LoadWindow, PlaceWindow, RecentWork, RoleWork};
use crate::fleet::{Fleet, Instance, Reservation, Role, SchedulerHandle};
use crate::obs::{LoadGauges, Meters};
use crate::route::saturation::{DecodeLoad, DecodePlace, QueueLoad, WorkSum};
use crate::route::{Seconds, Workload};

/// Latencies that the number of engines is to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadTargets {
    /// Nine of ten prompts, and items to encode, wait no longer than this.
    pub wait_s: Seconds,
    /// A step of a decoder takes no longer than this.
    pub per_token_s: Seconds,
}

impl Default for LoadTargets {
    fn default() -> LoadTargets {
        LoadTargets { wait_s: 1.0, per_token_s: 0.05 }
    }
}

/// Load of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoleLoad {
    /// Engines of the role that take requests.
    pub engines: u32,
    /// Predicted seconds for which all work that waits and runs takes one engine. A stream takes
    /// the part of a decoder that it is of a full batch.
    pub work_s: Seconds,
    /// Load as a share of what these engines just bear within the targets.
    pub saturation: f64,
    /// Engines that would bear the load.
    pub engines_needed: f64,
}

/// Sums from which loads are computed.
#[derive(Debug, Default)]
pub(super) struct LoadRecord {
    prefill: LoadWindow,
    encode: LoadWindow,
    decode: PlaceWindow,
    /// Items that were encoded.
    encoded: Mutex<WorkSum>,
    /// Times for which decoders had streams.
    pub(super) stays: Arc<Mutex<WorkSum>>,
}

/// Places of a role, engines or their data-parallel ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    /// Engines that take requests.
    engines: u32,
    /// Number of their places.
    places: u32,
}

impl Places {
    fn of(members: &[Arc<Instance>], now_ms: u64) -> Places {
        let accepts = |it: &&Arc<Instance>| !it.draining() && it.health().state(now_ms) != State::Open;
        members.iter().filter(accepts).fold(Places::default(), |all, it| Places {
            engines: all.engines + 1,
            places: all.places + u32::from(it.rank_count()),
        })
    }

    /// Engines with so many places.
    fn engines_with(self, places: f64) -> f64 {
        let engines = places * f64::from(self.engines.max(1)) / f64::from(self.places.max(1));
        // What rounding adds is no engine, and nothing is 0 and not -0.
        if engines > 0.0 { (engines - 1e-6).ceil().max(1.0) } else { 0.0 }
    }
}

impl SchedulerHandle {
    /// Predicted work of all prefillers.
    pub(super) fn workload(&self) -> Workload {
        let (now, state) = (self.now(), self.lock());
        state.board.board().workload(now)
    }

    /// Counts the predicted seconds of a request that was refused since they would come too late.
    pub fn note_refused(&self, seconds: Seconds) {
        self.lock().board.board_mut().note_refused(seconds);
    }
}

impl Fleet {
    /// Counts an item that an encoder took so long for. Those that it had at once shared the time.
    pub fn note_encoded(&self, reservation: &Reservation, took: Duration) {
        let items = f64::from(reservation.instance().load().requests().max(1));
        lock(&self.loads.encoded).add(took.as_secs_f64() / items);
    }

    /// Load of a role; None for an API elsewhere, and for encoders where there were none.
    pub fn role_load(&self, role: Role) -> Option<RoleLoad> {
        let members = self.members(role);
        let has_encoded = || lock(&self.loads.encoded).pieces > 0.0;
        if self.settings.is_remote || role == Role::Encode && members.is_empty() && !has_encoded() {
            return None;
        }
        let places = Places::of(&members, self.now_ms());
        Some(match role {
            Role::Prefill => {
                let workload = self.prefill_workload();
                let work_s = workload.booked_s + workload.waiting_s;
                self.queue_load(&self.loads.prefill, role_work(&workload), places, work_s)
            }
            Role::Encode => {
                let work = self.encode_work(&members);
                self.queue_load(&self.loads.encode, work, places, work.waiting_s)
            }
            Role::Decode => self.decode_load(&members, places),
        })
    }

    /// Updates the gauges of loads, and remembers the work that was given to engines until now.
    pub(super) fn show_loads(&self, meters: &Meters) {
        let at = self.since_start();
        self.loads.prefill.note(at, role_work(&self.prefill_workload()));
        self.loads.encode.note(at, self.encode_work(&self.members(Role::Encode)));
        self.loads.decode.note(at, self.streams_load(&self.members(Role::Decode)).places_needed);
        for role in Role::ALL {
            if let Some(RoleLoad { work_s, saturation, engines_needed, .. }) = self.role_load(role) {
                meters.role_load(role.name(), LoadGauges { work_s, saturation, engines_needed });
            }
        }
    }

    /// Work of all prefillers, and of the requests that wait for the first one.
    fn prefill_workload(&self) -> Workload {
        let mut workload = self.scheduler.workload();
        workload.waiting_s += self.vacancy(Role::Prefill).awaiting() as f64 * workload.mean_s;
        workload
    }

    fn since_start(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }

    /// Work of encoders, whose items count when they end: what they have now is taken to be as long
    /// as the others were.
    fn encode_work(&self, members: &[Arc<Instance>]) -> RoleWork {
        let offered = *lock(&self.loads.encoded);
        let items: u32 = members.iter().map(|it| it.load().working()).sum();
        RoleWork { offered, waiting_s: f64::from(items) * offered.mean_s(), queued_s: 0.0 }
    }

    fn queue_load(&self, window: &LoadWindow, work: RoleWork, places: Places, work_s: Seconds) -> RoleLoad {
        let RecentWork { came, busy } = window.recent(self.since_start(), work);
        let kind = if came.seconds > 0.0 { came } else { work.offered };
        let wait_s = self.settings.load_targets.wait_s;
        let load = QueueLoad { busy, residual_s: kind.residual_s(), wait_s };
        RoleLoad {
            engines: places.engines,
            work_s,
            saturation: load.saturation(places.places),
            engines_needed: places.engines_with(f64::from(load.servers_needed())),
        }
    }

    /// Load of the streams of this moment.
    fn streams_load(&self, members: &[Arc<Instance>]) -> DecodeLoad {
        let each: SmallVec<[DecodePlace; 16]> =
            members.iter().flat_map(|it| it.ranks().map(move |rank| it.decode_place(rank))).collect();
        DecodeLoad::of(&each, &self.decode_steps(), self.settings.load_targets.per_token_s)
    }

    /// Load of decoders: that of this moment at once, and less only with the mean of the last
    /// minute.
    fn decode_load(&self, members: &[Arc<Instance>], places: Places) -> RoleLoad {
        let load = self.streams_load(members);
        let left_s = lock(&self.loads.stays).residual_s();
        let needed = load.places_needed.max(self.loads.decode.mean(self.since_start()));
        RoleLoad {
            engines: places.engines,
            work_s: load.streams_in_places * left_s,
            saturation: needed / f64::from(places.places.max(1)),
            engines_needed: places.engines_with(needed),
        }
    }
}

fn role_work(workload: &Workload) -> RoleWork {
    let Workload { offered, waiting_s, queued_s, .. } = *workload;
    RoleWork { offered, waiting_s, queued_s }
}

fn lock(sum: &Mutex<WorkSum>) -> MutexGuard<'_, WorkSum> {
    sum.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
