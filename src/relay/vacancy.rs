//! Delays or refuses a request before its prefill when no decoder could take it: nothing is
//! computed for nobody.
//!
//! | the decoders | the request |
//! |---|---|
//! | one takes requests | goes on; the check is a look at two numbers |
//! | all are busy | stands in line, where it costs nothing, for at most `limit.queue_ms`; so does one that all of them have refused for that |
//! | each one's breaker is open | is refused, but for one at a time, which finds out if a decoder is back |
//! | the last one left just now, or the first one is still to come | waits for at most `fleet.empty_wait_ms` for another one |
//! | there is none | is refused |
//!
//! The same holds for prefillers before an item is encoded.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Method, StatusCode};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::codec::json::Parts;
use crate::error::{Error, Kind};
use crate::fleet::vacancy::{Bound, Trial};
use crate::fleet::{Instance, Placement, ProbeAnswer, Role, RoleOutlook};
use crate::relay::ask::Ask;
use crate::relay::failure::Failure;
use crate::relay::release::HandoffGuard;
use crate::relay::{Relay, Tries};
use crate::upstream::{Leg, Written};
use crate::util::rng;

/// Between two looks of the head of the line, which alone looks.
const LINE_LOOK: Duration = Duration::from_millis(20);
/// The longest that a look at one engine may take.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// Times that one request may leave the line and be refused as before. Each costs a prefill.
const BUSY_ROUNDS: u32 = 8;
/// Engines that one request looks at: in an outage of a large fleet the next one looks at others.
const LOOKED_AT: usize = 8;

/// The right to go on to a prefill while not every request may. Dropped when the request has its
/// decoder, or fails.
#[derive(Debug)]
pub(super) enum Passage {
    /// It is the one request that finds out whether a decoder is back, until its answer begins.
    Trial(Trial),
    /// It stood in line, and counts as one that wants a decoder.
    Line(#[expect(dead_code, reason = "counts until it has a decoder")] Bound),
}

/// A future of the slow way, made where it stays.
type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A path of engines that a look asks for: `health.probe_path`.
#[derive(Debug)]
pub struct ProbeSettings {
    /// Path that is asked for.
    pub path: http::uri::PathAndQuery,
    /// Longest time that a look may take.
    pub time: Duration,
}

impl Passage {
    /// Gives the right back unused, for another request to have it.
    pub(super) fn forgo(self) {
        if let Passage::Trial(trial) = self {
            trial.forgo();
        }
    }

    /// True if others are refused meanwhile.
    pub(super) fn is_trial(&self) -> bool {
        matches!(self, Passage::Trial(_))
    }

    /// True if the right is over as soon as the request has a decoder.
    pub(super) fn ends_with_a_seat(&self) -> bool {
        matches!(self, Passage::Line(_))
    }
}

impl Relay {
    /// Waits until a member of `role` could take a request that arrived at `arrived`. None = one
    /// takes requests, and nothing is to be kept.
    ///
    /// # Errors
    /// `NoDecoder` and its like when none could and another request finds out, `Overloaded` when
    /// all stay busy.
    pub(super) async fn vacancy(&self, role: Role, arrived: Instant) -> Result<Option<Passage>, Error> {
        if self.fleet.is_open(role) {
            return Ok(None);
        }
        let waiting: Waiting<'_, _> = Box::pin(self.wait_for_vacancy(role, arrived));
        waiting.await
    }

    /// Lets a request go to `role` that one engine answers alone. With a trial it may ask one
    /// engine, and is the only one that does.
    ///
    /// # Errors
    /// `NoPrefiller` and its like while all members are down and another request finds out.
    pub async fn admit_to(&self, role: Role) -> Result<Option<Trial>, Error> {
        match self.fleet.outlook(role) {
            RoleOutlook::Resting => {
                let trial: Waiting<'_, _> = Box::pin(self.begin_trial(role));
                trial.await.map(Some)
            }
            // What is busy says so itself, and of those that drain one will do.
            RoleOutlook::Open | RoleOutlook::Crowded | RoleOutlook::Leaving | RoleOutlook::Empty => Ok(None),
        }
    }

    /// True if a request that finds out whether a decoder is back has tried all that serve: a
    /// further prefill would be for nobody.
    pub(super) fn has_tried_in_vain(&self, decode: &Tries) -> bool {
        let members = || self.fleet.members(Role::Decode);
        let is_trial = decode.passage.as_ref().is_some_and(Passage::is_trial);
        is_trial
            && !self.fleet.is_open(Role::Decode)
            && members().iter().all(|it| it.draining() || decode.tried.contains(&it.id()))
    }

    async fn wait_for_vacancy(&self, role: Role, arrived: Instant) -> Result<Option<Passage>, Error> {
        loop {
            match self.fleet.outlook(role) {
                // Of those that drain, one will do for a request that was let in before.
                RoleOutlook::Open | RoleOutlook::Leaving => return Ok(None),
                RoleOutlook::Empty => {
                    if !self.members_come(role).await {
                        return Err(nobody(role));
                    }
                }
                RoleOutlook::Resting => {
                    return self.begin_trial(role).await.map(|trial| Some(Passage::Trial(trial)));
                }
                RoleOutlook::Crowded => {
                    if let Some(bound) = self.stand_in_line(role, arrived).await? {
                        return Ok(Some(Passage::Line(bound)));
                    }
                }
            }
        }
    }

    /// Waits in line for a prefiller with room, where all of them are busy. Where all rest, one
    /// request at a time finds out if one is back.
    ///
    /// # Errors
    /// `Overloaded` when they stay busy, `NoPrefiller` while another request finds out.
    pub(super) async fn room_to_prefill(&self, ask: &Ask, tries: &mut Tries) -> Result<(), Error> {
        let role = Role::Prefill;
        if self.fleet.is_open(role) || tries.passage.is_some() {
            return Ok(());
        }
        match self.fleet.outlook(role) {
            RoleOutlook::Crowded => {
                let line: Waiting<'_, _> = Box::pin(self.stand_in_line(role, ask.arrived));
                tries.passage = line.await?.map(Passage::Line);
            }
            RoleOutlook::Resting if tries.made == 0 => {
                let trial: Waiting<'_, _> = Box::pin(self.begin_trial(role));
                tries.passage = Some(Passage::Trial(trial.await?));
            }
            // What is said of a role that is leaving or empty is said where a place is looked for.
            RoleOutlook::Resting | RoleOutlook::Open | RoleOutlook::Leaving | RoleOutlook::Empty => {}
        }
        Ok(())
    }

    /// Waits in line after a busy engine of `role` refused a request, if no other one is left to be
    /// asked. True = some engine has room: the refusals before do not count. Nothing is waited for
    /// where each of them names a time (`Retry-After`) beyond the wait.
    ///
    /// # Errors
    /// `Overloaded` when all stay busy.
    pub(super) async fn room_after(
        &self,
        role: Role,
        failure: &Failure,
        arrived: Instant,
        tries: &mut Tries,
    ) -> Result<bool, Error> {
        if !failure.busy() || tries.busy_rounds >= BUSY_ROUNDS {
            return Ok(false);
        }
        if tries.left > 0 && self.fleet.has_idle_other(role, &tries.tried) {
            return Ok(false);
        }
        self.fleet.crowd(role);
        let until = arrived + self.settings.now().queue;
        let spare = self.fleet.busy_answer(role).and_then(|answer| answer.spare);
        if spare.is_some_and(|spare| spare > until.saturating_duration_since(Instant::now())) {
            return Err(self.is_too_busy(role));
        }
        self.meters.retry(role.name(), failure.reason());
        let line: Waiting<'_, _> = Box::pin(self.stand_in_line(role, arrived));
        tries.passage = line.await?.map(Passage::Line);
        tries.busy_rounds += 1;
        tries.left = tries.left.max(1);
        let members = self.fleet.members(role);
        let was_busy = |id| members.iter().any(|it| it.id() == id && it.health().capacity().most().is_some());
        tries.tried.retain(|id| !was_busy(*id));
        Ok(true)
    }

    /// Waits for a decoder with room for a prompt that is computed, after a busy one turned it away
    /// with its KV unread. True if another one may be asked without a further prefill.
    ///
    /// That is so where nothing was handed over, and after the 429 of a proxy before the engine. An
    /// engine that refuses by itself may have the prefiller free the blocks, as vLLM 0.32 does with
    /// its 503 (`--max-num-queued-reqs`).
    ///
    /// # Errors
    /// `Overloaded` when all stay busy.
    pub(super) async fn room_for_handoff(
        &self,
        ask: &Ask,
        failure: &Failure,
        guard: &mut HandoffGuard,
        tries: &mut Tries,
    ) -> Result<bool, Error> {
        let Some(status) = failure.turned_away_with().filter(|_| failure.busy()) else { return Ok(false) };
        let is_unread =
            guard.handoff().is_none() || status == StatusCode::TOO_MANY_REQUESTS && failure.by_proxy;
        if !is_unread || self.speech.now().dialect.binds_pairs() {
            return Ok(false);
        }
        guard.take_back();
        let role = Role::Decode;
        let has_room = self.room_after(role, failure, ask.arrived, tries).await?
            || tries.left > 0
                && self.fleet.has_idle_other(role, &tries.tried)
                && self.back_off(role, failure, tries.made).await;
        Ok(has_room && !guard.stale(self.settings.now().lease))
    }

    /// Refuses what is new where all decoders drain, and none comes in their place.
    pub(super) async fn has_decoder(&self) -> Result<(), Error> {
        if self.fleet.serving(Role::Decode) > 0 || self.members_come(Role::Decode).await {
            Ok(())
        } else {
            Err(nobody(Role::Decode))
        }
    }

    /// Waits for a place on a prefiller, and for a prefiller where the last one has just left.
    pub(super) async fn place_on_one(&self, ask: &Ask, tries: &Tries) -> Result<Placement, Error> {
        loop {
            let tried = self.fleet.chosen_last(Role::Prefill, &tries.tried, &tries.lacking);
            let waiting = self.fleet.scheduler().place(ask.job.clone(), ask.arrived, tried);
            let placed = match waiting {
                Some(waiting) => waiting.await,
                None => None,
            };
            if let Some(placed) = placed {
                return Ok(placed);
            }
            // They may all have left while it waited, or its own alone.
            if !self.members_come(Role::Prefill).await || !self.fleet.scheduler().serves() {
                return Err(nobody(Role::Prefill));
            }
        }
    }

    /// Waits for a member of a role that has just lost its last one, or that has had none since the
    /// gateway began a moment ago; false if none came in time.
    pub(super) async fn members_come(&self, role: Role) -> bool {
        let (vacancy, patience) = (self.fleet.vacancy(role), self.settings.now().empty_wait);
        let _waits = vacancy.await_member();
        loop {
            let changed = vacancy.changed().notified();
            if self.fleet.serving(role) > 0 {
                return true;
            }
            // The last one may have left so recently that it is still counted.
            let empty_ms = vacancy.empty_ms(self.fleet.now_ms()).unwrap_or(0);
            let left = patience.saturating_sub(Duration::from_millis(empty_ms));
            if left.is_zero() || timeout(left, changed).await.is_err() {
                return false;
            }
        }
    }

    /// Waits in line until a member has room; None when the members are no longer busy.
    async fn stand_in_line(&self, role: Role, arrived: Instant) -> Result<Option<Bound>, Error> {
        let vacancy = self.fleet.vacancy(role);
        let until = arrived + self.settings.now().queue;
        let _waits = vacancy.wait();
        let head = timeout_at(until, vacancy.line().acquire()).await;
        while head.is_ok() && Instant::now() < until {
            if self.fleet.outlook(role) != RoleOutlook::Crowded {
                return Ok(None);
            }
            if let Some(bound) = self.fleet.leave_line(role) {
                return Ok(Some(bound));
            }
            sleep(LINE_LOOK).await;
        }
        Err(self.is_too_busy(role))
    }

    /// The refusal of a request for which no member of `role` has room in time.
    fn is_too_busy(&self, role: Role) -> Error {
        self.meters.turned_away(match role {
            Role::Decode => "decode_busy",
            Role::Prefill | Role::Encode => "prefill_busy",
        });
        let message = format!("every {} is busy, and the wait was too long", role.who());
        self.as_busy_engines_say(role, Error::new(Kind::Overloaded, message))
    }

    /// Takes the one place of a request that finds out whether a member of a resting role is back,
    /// if it may be tried now.
    async fn begin_trial(&self, role: Role) -> Result<Trial, Error> {
        let trial = self.fleet.vacancy(role).begin_trial(self.fleet.now_ms()).ok_or_else(|| nobody(role))?;
        let members = self.fleet.members(role);
        // One that serves another model can't answer, and is asked for its models by probes.
        let serving = || members.iter().filter(|it| !it.draining() && !it.health().serves_other_model());
        // What fails requests while it answers probes is seen by requests alone.
        if serving().any(|it| !it.health().is_out_of_reach()) {
            return Ok(trial);
        }
        let first = usize::try_from(rng::random()).unwrap_or(0) % members.len().max(1);
        let all = serving().cycle().skip(first).take(serving().count().min(LOOKED_AT)).cloned();
        let look = |it| -> Waiting<'_, bool> { Box::pin(self.answers(it)) };
        let mut probes: FuturesUnordered<Waiting<'_, bool>> = all.map(look).collect();
        while let Some(answered) = probes.next().await {
            if answered {
                return Ok(trial);
            }
        }
        trial.found_nobody();
        Err(nobody(role))
    }

    /// Asks an engine that was out of reach whether it is back, as a probe does. True if a request
    /// may be sent to it.
    async fn answers(&self, instance: Arc<Instance>) -> bool {
        let leg = Leg {
            instance: &instance,
            method: Method::GET,
            target: &self.probe.path,
            headers: Cow::Owned(HeaderMap::new()),
            body: Parts::default(),
        };
        let written = Written::default();
        let asked = timeout(self.probe.time.min(LOOK_TIME), self.upstream.send(leg, &written)).await;
        let alive = asked.is_ok_and(|answer| answer.is_ok_and(|it| !it.status().is_server_error()));
        if alive {
            instance.meter().probed("alive");
            self.fleet.probed(&instance, ProbeAnswer::Good);
        }
        alive && !instance.health().is_out_of_reach()
    }
}

/// The end of a request that the gateway's own end cuts.
pub fn shutdown() -> Error {
    Error::new(Kind::Shutdown, "the gateway ends, and its time for open requests is over")
}

/// The refusal of a request that needs a member of a role that has none to give.
pub(super) fn nobody(role: Role) -> Error {
    match role {
        Role::Prefill => Error::new(Kind::NoPrefiller, "no prefiller is available"),
        Role::Decode => Error::new(Kind::NoDecoder, "no decoder is available"),
        Role::Encode => Error::new(Kind::EncodeFailed, "no encoder is available"),
    }
}
