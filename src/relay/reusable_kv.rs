//! KV that decoders offer back: kept from answers, whole or streamed, and given to the prefill of
//! the next turn.
//!
//! Nothing hangs on an offer: one that is forgotten, or not taken, is freed by the decoder's own
//! clock. One that is taken and fails costs an attempt, which is made again without it and not
//! counted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::codec::json::Object;
use crate::dialect::offers::{self, Context, KeptKv, Offer, Wanted};
use crate::dialect::returned::{self, Returned, StreamedIds};
use crate::fleet::{Instance, Reservation, Sign};
use crate::obs::Meters;
use crate::relay::Relay;
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::tokenization::facts::streams_handoffs;
use crate::util::boot_clock::BootInstant;

/// KV that decoders keep for the next turns of conversations.
#[derive(Debug)]
pub struct Offers {
    all: Mutex<offers::Offers<Arc<Instance>>>,
    born: BootInstant,
    meters: Arc<Meters>,
}

/// A request as a turn of a conversation: its prompt is known, token by token.
#[derive(Clone, Debug)]
pub struct ConversationTurn {
    tokens: Arc<[u32]>,
    /// Of the engines' blocks.
    block_tokens: usize,
    context: Context,
    /// Its answer is one that can be offered back.
    returns: bool,
}

/// Outcomes of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A decoder's answer had one, for which there was room.
    Kept,
    /// It went unused: too old, no room, or its decoder is gone.
    Dropped,
    /// A prefiller took it.
    Used,
    /// A prefill with it failed, and was made again without it.
    Refused,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 4] = [Outcome::Kept, Outcome::Dropped, Outcome::Used, Outcome::Refused];

    /// The value of the metric label `outcome`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Kept => "kept",
            Outcome::Dropped => "dropped",
            Outcome::Used => "used",
            Outcome::Refused => "refused",
        }
    }
}

impl ConversationTurn {
    /// True if its answer is one that can be offered back.
    pub fn returns(&self) -> bool {
        self.returns
    }
}

impl Offers {
    /// An empty store of offers.
    pub fn new(meters: Arc<Meters>) -> Offers {
        // A rate sees the first of each.
        Outcome::ALL.iter().for_each(|outcome| meters.kv_offers(outcome.name(), 0));
        meters.kv_offered(0);
        Offers { all: Mutex::default(), born: BootInstant::now(), meters }
    }

    /// Drops all: what engines compute has changed.
    pub fn clear(&self) {
        let mut all = self.lock();
        let dropped = all.len();
        all.forget(|_| true);
        self.count(Outcome::Dropped, dropped);
    }

    fn keep(&self, returned: Returned, turn: &ConversationTurn, owner: &Arc<Instance>, life: Duration) {
        let now = self.born.elapsed();
        let kept = KeptKv {
            returned,
            context: turn.context.clone(),
            block_tokens: turn.block_tokens,
            owner: owner.clone(),
            until_ms: millis(now.saturating_add(life)),
        };
        let dropped = self.lock().keep(kept, millis(now));
        self.count(Outcome::Kept, 1);
        self.count(Outcome::Dropped, dropped);
    }

    fn take(&self, turn: &ConversationTurn, fleet_ms: u64) -> Option<Offer> {
        let mut all = self.lock();
        let before = all.len();
        let now_ms = millis(self.born.elapsed());
        let alive = |owner: &Arc<Instance>| !owner.draining() && !owner.health().resting(fleet_ms);
        let wanted = Wanted { tokens: &turn.tokens, context: &turn.context, block_tokens: turn.block_tokens };
        let taken = all.take(wanted, now_ms, alive);
        self.count(Outcome::Dropped, before - all.len() - usize::from(taken.is_some()));
        taken
    }

    /// Another process is where this one was.
    fn forget(&self, gone: &Instance) {
        let mut all = self.lock();
        let before = all.len();
        all.forget(|owner| owner.id() == gone.id());
        self.count(Outcome::Dropped, before - all.len());
    }

    fn count(&self, outcome: Outcome, count: usize) {
        self.meters.kv_offers(outcome.name(), count as u64);
    }

    /// A panic elsewhere leaves them usable: at worst one entry is named that is gone.
    fn lock(&self) -> MutexGuard<'_, offers::Offers<Arc<Instance>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// The request as a turn, where decoders offer KV back and its tokens are these.
    pub(super) fn turn(&self, ask: &ReceivedRequest, tokens: &Arc<[u32]>) -> Option<ConversationTurn> {
        if self.settings.now().kept_back.is_zero() || !self.speech.now().dialect.takes_back() {
            return None;
        }
        let naming = self.prompts.as_ref()?.naming()?;
        Some(ConversationTurn {
            tokens: tokens.clone(),
            block_tokens: naming.engine_hasher().block_tokens().get(),
            context: offers::context(&ask.body),
            returns: returned::may_return(ask.api, &ask.body),
        })
    }

    /// Takes a decoder's offer for this prompt; it is on offer no more.
    pub(super) fn offer(&self, ask: &Ask) -> Option<Offer> {
        let offer = self.offers.take(ask.turn.as_ref()?, self.fleet.now_ms())?;
        self.meters.kv_offered(offer.tokens as u64);
        Some(offer)
    }

    /// Takes what a decoder offers out of its answer, whose rest is the client's.
    pub(super) fn take_back(&self, ask: &Ask, reservation: &Reservation, answer: Object) -> Object {
        let turn = ask.turn.as_ref().filter(|turn| turn.returns);
        if let Some((turn, returned)) = turn.and_then(|turn| Some((turn, Returned::read(&answer)?))) {
            self.keep_offer(turn, reservation.instance(), returned);
        }
        returned::hidden(&ask.body, &answer, turn.is_some()).unwrap_or(answer)
    }

    /// Keeps what `owner` offers, unless that was turned off meanwhile.
    fn keep_offer(&self, turn: &ConversationTurn, owner: &Arc<Instance>, returned: Returned) {
        let life = self.settings.now().kept_back;
        if life.is_zero() {
            return;
        }
        if returned::engine_id(&returned).is_some_and(|id| self.fleet.seen(owner, Sign::Engine(id))) {
            self.offers.forget(owner);
        }
        self.offers.keep(returned, turn, owner, life);
    }
}

/// True if `decoder` is asked for token ids so that it can offer its KV back: older releases tell
/// nothing at the end of a stream.
pub(super) fn asks_for_ids(ask: &Ask, decoder: &Instance) -> bool {
    let tells = || decoder.release().is_some_and(|release| streams_handoffs(&release));
    ask.turn.as_ref().is_some_and(|turn| turn.returns) && (!ask.shape.stream || tells())
}

/// Offer that is under way in a stream.
#[derive(Debug)]
pub(super) struct StreamedOffer {
    turn: ConversationTurn,
    ids: StreamedIds,
}

impl StreamedOffer {
    /// The offer that the stream which answers `ask` may end with.
    pub(super) fn of(ask: &Ask) -> Option<Box<StreamedOffer>> {
        let turn = ask.turn.clone().filter(|turn| turn.returns)?;
        let is_followed = ask.plan().is_some_and(|plan| plan.exact.is_ok());
        Some(Box::new(StreamedOffer { turn, ids: StreamedIds::new(&ask.body, is_followed) }))
    }

    /// Takes whole events of `decoder`; gives them as they are to go on. Keeps the offer that is
    /// among them.
    pub(super) fn pass(&mut self, relay: &Relay, decoder: &Arc<Instance>, events: Bytes) -> Bytes {
        let (events, returned) = self.ids.pass(events);
        if let Some(returned) = returned {
            relay.keep_offer(&self.turn, decoder, returned);
        }
        events
    }

    /// Another decoder goes on with the stream.
    pub(super) fn restart(&mut self) {
        self.ids.restart();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
