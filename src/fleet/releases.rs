//! Releases of engines, and the pairs that can hand KV over.
//!
//! The handshake of vLLM's NIXL connectors compares a hash that has vLLM's version in it
//! (`nixl/metadata.py`, enforced by default): a decoder fails each request whose KV was computed by
//! another release. In a rolling upgrade both releases stand side by side for hours. So once a
//! hand-off of such a connector was seen, a prefiller without a decoder of its release gets no
//! prompts; where no pair is left, decoders compute prompts themselves.
//!
//! An engine that does not tell its release goes with every other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::fleet::health::State;
use crate::fleet::{Fleet, Instance, InstanceId, Role};
use crate::util::swap::Live;

/// Longest release that is kept of one engine, in bytes.
const MOST_BYTES: usize = 64;

/// State of a fleet whose engines may be of several releases.
#[derive(Debug)]
pub(super) struct Releases {
    /// True once engines were seen that compare releases.
    compared: AtomicBool,
    /// True while two engines tell different releases.
    mixed: AtomicBool,
    /// True while no prefiller that serves has a decoder of its release.
    unpaired: AtomicBool,
    /// Prefillers that would have one, and are down: one request at a time tries them.
    returning: Live<Vec<Arc<Instance>>>,
    /// Held while members are compared, so that the last comparison is of the last change.
    turn: Mutex<()>,
}

impl Default for Releases {
    fn default() -> Releases {
        Releases {
            compared: AtomicBool::new(false),
            mixed: AtomicBool::new(false),
            unpaired: AtomicBool::new(false),
            returning: Live::new(Vec::new()),
            turn: Mutex::default(),
        }
    }
}

/// An engine in the comparison.
#[derive(Debug)]
struct Candidate {
    release: Option<Arc<str>>,
    /// State of its breakers, whatever it lacks.
    state: State,
}

/// Result of the comparison.
#[derive(Debug, PartialEq, Eq)]
struct Pairing {
    mixed: bool,
    unpaired: bool,
    /// For each prefiller: no decoder that serves is of its release.
    lacks_partner: Vec<bool>,
}

impl Fleet {
    /// Tells that engines compare releases when they hand KV over.
    pub fn compare_releases(&self) {
        if !self.releases.compared.swap(true, Ordering::Relaxed) {
            self.update_pairs();
        }
    }

    /// True once engines were seen that compare releases.
    pub fn compares_releases(&self) -> bool {
        self.releases.compared.load(Ordering::Relaxed)
    }

    /// Records the release that `instance` told; `None` = it does not tell.
    pub fn record_release(&self, instance: &Instance, release: Option<&str>) {
        let release = release.filter(|text| !text.is_empty() && text.len() <= MOST_BYTES);
        if instance.release().as_deref() == release {
            return;
        }
        instance.set_release(release.map(Arc::from));
        self.update_pairs();
    }

    /// True while engines compare releases and no prefiller that serves has a decoder of its
    /// release. False for one request at a time while a prefiller that would have one comes back.
    pub fn has_no_equal_pair(&self) -> bool {
        self.is_unpaired() && !self.is_trial_due()
    }

    /// The same, whether or not a prefiller is due for a trial.
    pub fn is_unpaired(&self) -> bool {
        self.releases.unpaired.load(Ordering::Relaxed)
    }

    /// True if these two can exchange KV, as far as their releases tell.
    pub fn can_exchange(&self, producer: &Instance, consumer: &Instance) -> bool {
        if !self.releases.mixed.load(Ordering::Relaxed) {
            return true;
        }
        go_together(producer.release().as_ref(), consumer.release().as_ref())
    }

    fn is_trial_due(&self) -> bool {
        let now_ms = self.now_ms();
        let may_try = |it: &Arc<Instance>| {
            !it.draining() && it.health().state(now_ms) == State::HalfOpen && !it.health().resting(now_ms)
        };
        self.releases.returning.now().iter().any(may_try)
    }

    /// Members of `role` that can't exchange KV with `instance`, for their release.
    pub(super) fn of_other_release(&self, role: Role, of: InstanceId) -> SmallVec<[InstanceId; 4]> {
        if !self.releases.mixed.load(Ordering::Relaxed) {
            return SmallVec::new();
        }
        let partner_role = if role == Role::Decode { Role::Prefill } else { Role::Decode };
        let partners = self.members(partner_role);
        let release = partners.iter().find(|it| it.id() == of).and_then(|it| it.release());
        let differs = |it: &&Arc<Instance>| !go_together(release.as_ref(), it.release().as_ref());
        self.members(role).iter().filter(differs).map(|it| it.id()).collect()
    }

    /// Compares the releases of all members anew, after one came, went, changed its state or told
    /// its release.
    pub(super) fn update_pairs(&self) {
        if !self.compares_releases() {
            return;
        }
        let mut changed = Vec::new();
        {
            let _turn = self.releases.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let members = |role| -> Vec<Arc<Instance>> {
                self.members(role).iter().filter(|it| !it.draining()).cloned().collect()
            };
            let (prefillers, decoders) = (members(Role::Prefill), members(Role::Decode));
            let now_ms = self.now_ms();
            let candidate = |it: &Arc<Instance>| Candidate {
                release: it.release(),
                state: it.health().state_of_itself(now_ms),
            };
            let candidates = |all: &[Arc<Instance>]| all.iter().map(candidate).collect::<Vec<_>>();
            let pairing = pair(&candidates(&prefillers), &candidates(&decoders));
            self.releases.mixed.store(pairing.mixed, Ordering::Relaxed);
            let judged = || prefillers.iter().zip(pairing.lacks_partner.iter().copied());
            let returning = judged().filter(|(_, lacks)| pairing.unpaired && !lacks);
            self.releases.returning.set(returning.map(|(it, _)| it.clone()).collect());
            self.note_pairs(pairing.unpaired, &prefillers, &decoders);
            let news = judged().filter(|(it, lacks)| it.health().set_lacks_partner(*lacks));
            changed.extend(news.map(|(it, _)| it.clone()));
        }
        for prefiller in &changed {
            if prefiller.health().lacks_partner() {
                let release = prefiller.release().unwrap_or_default();
                prefiller.health().note_cause(&format!("no decoder of its release {release} serves"));
            }
            self.note_state(prefiller);
            self.tell_desk(prefiller);
        }
        if !changed.is_empty() {
            self.count(Role::Prefill);
        }
    }

    /// Logs that no pair of equal releases is left, or that one is again.
    fn note_pairs(&self, unpaired: bool, prefillers: &[Arc<Instance>], decoders: &[Arc<Instance>]) {
        if self.releases.unpaired.swap(unpaired, Ordering::Relaxed) == unpaired {
            return;
        }
        let fleet = self.log_name();
        if unpaired {
            let (prefill, decode) = (releases(prefillers), releases(decoders));
            tracing::warn!(
                fleet,
                prefill,
                decode,
                "no prefiller and decoder of one release serve: decoders compute prompts themselves until there are"
            );
        } else {
            tracing::info!(
                fleet,
                "a prefiller and a decoder of one release serve again: prompts go to prefillers"
            );
        }
    }
}

/// True if engines of these releases can exchange KV. One that does not tell its release goes with
/// every other.
fn go_together(one: Option<&Arc<str>>, other: Option<&Arc<str>>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// Compares releases, as far as they are known.
fn pair(prefillers: &[Candidate], decoders: &[Candidate]) -> Pairing {
    let known: Vec<&Arc<str>> =
        prefillers.iter().chain(decoders).filter_map(|it| it.release.as_ref()).collect();
    let mixed = known.windows(2).any(|two| two[0] != two[1]);
    // Decoders on trial count where there are no others.
    let least =
        if decoders.iter().any(|it| it.state == State::Closed) { State::Closed } else { State::HalfOpen };
    let serving = || decoders.iter().filter(|it| it.state <= least);
    let goes_with =
        |one: &Candidate, other: &Candidate| go_together(one.release.as_ref(), other.release.as_ref());
    let has_decoder = serving().next().is_some();
    let lacks_partner: Vec<bool> = prefillers
        .iter()
        .map(|prefiller| mixed && has_decoder && !serving().any(|decoder| goes_with(prefiller, decoder)))
        .collect();
    let mut at_work =
        prefillers.iter().zip(&lacks_partner).filter(|(it, _)| it.state == State::Closed).peekable();
    let unpaired = at_work.peek().is_some() && at_work.all(|(_, lacks)| *lacks);
    Pairing { mixed, unpaired, lacks_partner }
}

/// The releases of these engines, each once.
fn releases(all: &[Arc<Instance>]) -> String {
    let mut names: Vec<String> = all
        .iter()
        .map(|it| it.release().map_or_else(|| "unknown".to_owned(), |name| name.to_string()))
        .collect();
    names.sort();
    names.dedup();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{Need, Outcome};
    use crate::route::Policy;

    const OLD: &str = "0.32.0";
    const NEW: &str = "0.33.0";

    fn engines(all: &[&str]) -> Vec<Candidate> {
        let candidate = |text: &&str| {
            let name = text.trim_end_matches(['!', '~']);
            let state = match text.as_bytes().last() {
                Some(b'!') => State::Open,
                Some(b'~') => State::HalfOpen,
                _ => State::Closed,
            };
            Candidate { release: (name != "?").then(|| name.into()), state }
        };
        all.iter().map(candidate).collect()
    }

    #[test]
    fn prefillers_without_a_decoder_of_their_release_are_found() {
        let lacking = |prefillers: &[&str], decoders: &[&str]| {
            let pairing = pair(&engines(prefillers), &engines(decoders));
            (pairing.lacks_partner, pairing.unpaired)
        };
        assert_eq!(lacking(&["a", "a"], &["a"]), (vec![false, false], false));
        assert_eq!(lacking(&["a", "b"], &["a"]), (vec![false, true], false));
        assert_eq!(lacking(&["a", "b"], &["a", "b!"]), (vec![false, true], false), "a decoder is away");
        assert_eq!(lacking(&["a", "b"], &["a", "b~"]), (vec![false, true], false), "one is on trial");
        assert_eq!(lacking(&["a"], &["b~"]), (vec![true], true), "no other is there");
        assert_eq!(lacking(&["a!", "b"], &["a"]), (vec![false, true], true), "its only prefiller is away");
        assert_eq!(lacking(&["b", "b"], &["a"]), (vec![true, true], true));
        assert_eq!(lacking(&["b", "?"], &["a"]), (vec![true, false], false), "one does not tell");
        assert_eq!(lacking(&["b"], &["?"]), (vec![false], false));
        assert_eq!(lacking(&["b"], &["a!"]), (vec![false], false), "no decoder serves at all");
        assert_eq!(lacking(&[], &["a"]), (vec![], false));
    }

    fn fleet(releases: [&[&str]; 2]) -> (Fleet, [Vec<Arc<Instance>>; 2]) {
        let fleet = Fleet::new(Policy::LeastRequests);
        let roles = [Role::Prefill, Role::Decode];
        for (role, releases) in roles.iter().zip(releases) {
            for (port, release) in (1..).zip(releases) {
                fleet.add(*role, Endpoint::new("e", port));
                let instance = fleet.members(*role).last().cloned().unwrap();
                fleet.record_release(&instance, Some(release));
            }
        }
        let members = roles.map(|role| fleet.members(role).to_vec());
        (fleet, members)
    }

    #[test]
    fn hand_offs_go_to_decoders_of_the_same_release() {
        let (fleet, [prefillers, decoders]) = fleet([&[OLD, NEW], &[OLD, NEW, NEW]]);
        let avoided = |at: usize| fleet.avoided_consumers(prefillers[at].id()).to_vec();
        assert!(avoided(0).is_empty(), "nobody has said that it matters");
        fleet.compare_releases();
        assert_eq!(avoided(0), [decoders[1].id(), decoders[2].id()]);
        assert_eq!(avoided(1), [decoders[0].id()]);
        assert_eq!(fleet.avoided_producers(decoders[0].id()).to_vec(), [prefillers[1].id()]);
        fleet.record_release(&prefillers[0], None);
        assert!(avoided(0).is_empty(), "it does not tell");
    }

    #[test]
    fn a_prefiller_without_partner_is_out_until_it_has_one() {
        let (fleet, [prefillers, decoders]) = fleet([&[OLD, NEW], &[OLD, OLD]]);
        fleet.compare_releases();
        let out = |at: usize| prefillers[at].health().state(fleet.now_ms()) == State::Open;
        assert!(!out(0) && out(1) && !fleet.has_no_equal_pair());
        fleet.record_release(&decoders[1], Some(NEW));
        assert!(!out(0) && !out(1));
        fleet.record_release(&decoders[0], Some(NEW));
        assert!(out(0) && !out(1), "the other one lacks it now");
        let taken = fleet.pick(Role::Prefill, Need::default()).unwrap();
        assert_eq!(taken.instance().id(), prefillers[1].id());
    }

    #[test]
    fn a_fleet_without_a_pair_serves_by_decoders() {
        let (fleet, [prefillers, decoders]) = fleet([&[NEW, NEW], &[OLD]]);
        fleet.compare_releases();
        let open = |it: &Arc<Instance>| it.health().state(fleet.now_ms()) == State::Open;
        assert!(fleet.has_no_equal_pair() && prefillers.iter().all(open));
        assert!(fleet.may_serve(Role::Prefill), "no request is refused for that");
        fleet.record_release(&decoders[0], Some(NEW));
        assert!(!fleet.has_no_equal_pair());
        // The decoder of the other release goes down, and what it leaves is told at once.
        fleet.add(Role::Decode, Endpoint::new("e", 9));
        let other = fleet.members(Role::Decode).last().cloned().unwrap();
        fleet.record_release(&other, Some(OLD));
        assert!(!fleet.has_no_equal_pair());
        for _ in 0..9 {
            fleet.report(&decoders[0], Outcome::Unreachable);
        }
        assert!(fleet.has_no_equal_pair());
    }
}
