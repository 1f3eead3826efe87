//! Place where decoders that were asked first find the requests that they call back about.
//!
//! A meeting is open from before its decode leg is sent until its pair of legs is over. The names
//! under which it is found are made of an id that nobody but the decoder is told; that is all that
//! a call is known by.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::dialect::layerwise::{self, Call};

/// Names of requests that may be open at a time, over all meetings.
pub const MOST_NAMES: usize = 65_536;

/// A call is answered no later, though the prefill goes on: vllm-ascend's decoders make calls on 32
/// threads, and a call that is held keeps one of them from other requests.
const HOLD: Duration = Duration::from_secs(1);

/// All open meetings, by the names that decoders give their requests.
#[derive(Clone, Debug, Default)]
pub struct Rendezvous {
    table: Arc<Mutex<HashMap<String, Expected>>>,
}

/// One name of a meeting.
#[derive(Clone, Debug)]
struct Expected {
    shared: Arc<Shared>,
    /// Index of the prompt in its request.
    place: usize,
}

#[derive(Debug)]
struct Shared {
    calls: Mutex<Vec<Option<Call>>>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Calls are missing.
    Waiting,
    /// All have come; a prefiller is looked for, or works.
    Called,
    /// The prefill has ended, well or not.
    Over(bool),
}

/// An open meeting; closed when dropped.
#[derive(Debug)]
pub struct Meeting {
    rendezvous: Rendezvous,
    names: Vec<String>,
    shared: Arc<Shared>,
}

/// Sees whether a meeting's calls have come, without keeping it open.
#[derive(Clone, Debug)]
pub struct Watch(watch::Receiver<State>);

/// Outcomes of a decoder's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Taken: the prefill has ended well, or is under way, or other calls are waited for.
    Taken,
    /// The same was said before; nothing more is done for it.
    Again,
    /// Nobody waits for it: it never was, or it is over.
    Unknown,
    /// The prefill failed; this request will come to nothing.
    Failed,
}

impl Called {
    /// The value of the metric label `outcome`.
    pub fn name(self) -> &'static str {
        match self {
            Called::Taken => "taken",
            Called::Again => "again",
            Called::Unknown => "unknown",
            Called::Failed => "failed",
        }
    }
}

impl Rendezvous {
    /// Opens a meeting under these names; `None` when there is no room, or a name is taken.
    pub fn open(&self, names: Vec<String>) -> Option<Meeting> {
        let shared = Arc::new(Shared {
            calls: Mutex::new(vec![None; names.len()]),
            state: watch::Sender::new(State::Waiting),
        });
        let mut table = lock(&self.table);
        if table.len() + names.len() > MOST_NAMES || names.iter().any(|name| table.contains_key(name)) {
            return None;
        }
        for (place, name) in names.iter().enumerate() {
            table.insert(name.clone(), Expected { shared: shared.clone(), place });
        }
        Some(Meeting { rendezvous: self.clone(), names, shared: shared.clone() })
    }

    /// A decoder calls. The first word counts; whoever repeats it waits for the same outcome.
    pub async fn called(&self, call: Call) -> Called {
        let Some(Expected { shared, place }) = lock(&self.table).get(&call.request_id).cloned() else {
            return Called::Unknown;
        };
        let (fresh, complete) = shared.take(place, call);
        let well = if fresh { Called::Taken } else { Called::Again };
        // A decoder with many prompts must not run out of threads before its last call.
        if !complete {
            return well;
        }
        let mut state = shared.state.subscribe();
        // What is left of the meeting keeps the sender alive no longer than this call.
        drop(shared);
        let over = state.wait_for(|state| matches!(state, State::Over(_)));
        let over = match tokio::time::timeout(HOLD, over).await {
            Ok(over) => over.map(|state| *state).unwrap_or(State::Over(false)),
            Err(_) => State::Called,
        };
        if over == State::Over(false) { Called::Failed } else { well }
    }

    /// True if a decoder's call about this request is waited for.
    pub fn awaits(&self, request_id: &str) -> bool {
        lock(&self.table).contains_key(request_id)
    }

    /// Names that are open.
    pub fn open_names(&self) -> usize {
        lock(&self.table).len()
    }
}

impl Shared {
    /// Takes a call. Returns two flags: it is the first one for its place, and all have come.
    fn take(&self, place: usize, call: Call) -> (bool, bool) {
        let mut calls = lock(&self.calls);
        let fresh = calls.get(place).is_some_and(Option::is_none);
        if let Some(slot) = calls.get_mut(place).filter(|slot| slot.is_none()) {
            *slot = Some(call);
        }
        let complete = calls.iter().all(Option::is_some);
        if fresh && complete {
            self.state.send_replace(State::Called);
        }
        (fresh, complete)
    }
}

impl Meeting {
    /// Waits for all calls, and gives what the prefiller is to be told.
    pub async fn params(&self) -> Option<Bytes> {
        let mut state = self.shared.state.subscribe();
        state.wait_for(|state| *state != State::Waiting).await.ok()?;
        let calls: Option<Vec<Call>> = lock(&self.shared.calls).iter().cloned().collect();
        layerwise::prefill_params(&calls?)
    }

    /// The prefill has ended: decoders that wait for an answer get it.
    pub fn tell(&self, well: bool) {
        self.shared.state.send_replace(State::Over(well));
    }

    /// Something that sees whether the calls have come.
    pub fn watch(&self) -> Watch {
        Watch(self.shared.state.subscribe())
    }
}

impl Watch {
    /// True if all calls have come.
    pub fn has_called(&self) -> bool {
        *self.0.borrow() != State::Waiting
    }

    /// Waits until all calls have come, or the meeting is over.
    pub async fn called(&mut self) {
        let _ = self.0.wait_for(|state| *state != State::Waiting).await;
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // A call that is still held learns that nothing comes of it.
        self.shared.state.send_if_modified(|state| {
            let open = !matches!(state, State::Over(_));
            if open {
                *state = State::Over(false);
            }
            open
        });
        let mut table = lock(&self.rendezvous.table);
        for name in &self.names {
            if let Entry::Occupied(found) = table.entry(name.clone())
                && Arc::ptr_eq(&found.get().shared, &self.shared)
            {
                found.remove();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, port: u16) -> Call {
        let said = format!(r#"{{"request_id":"{id}","do_remote_decode":true,"remote_port":{port}}}"#);
        layerwise::read_call(said.into()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_call_counts_and_repeats_get_the_same_answer() {
        let rendezvous = Rendezvous::default();
        let meeting = rendezvous.open(vec!["a".to_owned()]).unwrap();
        assert_eq!(rendezvous.called(call("b", 1)).await, Called::Unknown);
        let prefill = async {
            let params = meeting.params().await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            meeting.tell(true);
            params
        };
        let (params, first, again) =
            tokio::join!(prefill, rendezvous.called(call("a", 1)), rendezvous.called(call("a", 2)));
        assert_eq!((first, again), (Called::Taken, Called::Again));
        assert_eq!(params, call("a", 1).params);
        drop(meeting);
        assert_eq!(rendezvous.called(call("a", 1)).await, Called::Unknown, "it is over");
        assert_eq!(rendezvous.open_names(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_told_before_all_prompts_are_known() {
        let rendezvous = Rendezvous::default();
        let meeting = rendezvous.open(vec!["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(rendezvous.called(call("b", 2)).await, Called::Taken, "answered at once");
        let waits = tokio::time::timeout(Duration::from_secs(60), meeting.params()).await;
        assert!(waits.is_err());
        let (params, last) = tokio::join!(
            async {
                let params = meeting.params().await;
                meeting.tell(false);
                params
            },
            rendezvous.called(call("a", 1))
        );
        assert_eq!((params.is_some(), last), (true, Called::Failed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_not_held_for_a_whole_prefill_and_learns_when_the_request_is_gone() {
        let rendezvous = Rendezvous::default();
        let meeting = rendezvous.open(vec!["a".to_owned()]).unwrap();
        assert_eq!(rendezvous.called(call("a", 1)).await, Called::Taken, "after a second");
        let (gone, ()) = tokio::join!(rendezvous.called(call("a", 1)), async {
            tokio::time::sleep(HOLD / 2).await;
            drop(meeting);
        });
        assert_eq!(gone, Called::Failed);
    }

    #[test]
    fn there_is_room_for_so_many_names() {
        let rendezvous = Rendezvous::default();
        let names = |from: usize, count: usize| (from..from + count).map(|n| n.to_string()).collect();
        let all = rendezvous.open(names(0, MOST_NAMES)).unwrap();
        assert!(rendezvous.open(names(MOST_NAMES, 1)).is_none());
        drop(all);
        let one = rendezvous.open(names(7, 1)).unwrap();
        assert!(rendezvous.open(names(7, 1)).is_none(), "a name belongs to one meeting");
        drop(one);
        assert_eq!(rendezvous.open_names(), 0);
    }
}
