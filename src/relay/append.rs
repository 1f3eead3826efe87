//! Requests that go to a decoder alone, and those whose decoder remembers the prompt: it computes
//! the rest by itself.

use crate::fleet::{AppendNeed, AppendSeat, BestAppend, HitTokens, Reservation, Role};
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::{Relay, Tries};
use crate::route::AppendRules;
use crate::util::rng;

/// The reason of a request whose decoder remembers its prompt, as in the metrics.
pub const REMEMBERED: &str = "remembered";

/// Reason why a request has no prefill leg.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) reason: &'static str,
    /// The seat on the decoder that remembers its prompt, where that is the reason.
    pub(super) seat: Option<Box<AppendSeat>>,
}

impl Relay {
    /// Reason why a request has no prefill leg, if there is one: `known`, or another. It is
    /// counted.
    pub(super) fn alone(&self, ask: &Ask, known: Option<&'static str>, decode: &Tries) -> Option<Alone> {
        if let Some(reason) = known.or_else(|| self.bypass(ask)) {
            self.meters.bypassed(reason);
            return Some(Alone { reason, seat: None });
        }
        let seat = self.append_seat(ask, decode)?;
        self.meters.bypassed(REMEMBERED);
        self.decision_log.appended(&ask.id, &ask.job, seat.reservation.member(), seat.append);
        Some(Alone { reason: REMEMBERED, seat: Some(Box::new(seat)) })
    }

    /// The decoder that would compute the rest of a prompt soonest within the rules, if one may.
    pub fn explain_append(&self, ask: &Ask) -> Option<BestAppend> {
        let rules = self.append_rules(ask)?;
        let tried = self.fleet.lacking_model(Role::Decode, ask.shape.model.as_deref());
        let need = AppendNeed { job: &ask.job, rules, tried: &tried, random: rng::random() };
        self.fleet.best_append(&need)
    }

    /// A seat on a decoder that had better compute the rest of the prompt. A request that failed on
    /// some decoder has none: what another one holds of it is no reason to have its streams wait.
    fn append_seat(&self, ask: &Ask, decode: &Tries) -> Option<AppendSeat> {
        let rules = self.append_rules(ask).filter(|_| decode.made == 0)?;
        let tried = self.fleet.lacking_model(Role::Decode, ask.shape.model.as_deref());
        let need = AppendNeed { job: &ask.job, rules, tried: &tried, random: rng::random() };
        self.fleet.append_seat(&need)
    }

    /// Rules by which a decoder may compute the rest of a prompt; `None` where none may. Only of
    /// prompts that were counted: a guess must not cost a decoder's users a long prefill.
    fn append_rules(&self, ask: &Ask) -> Option<AppendRules> {
        let rules = self.settings.now().append;
        let may = rules.gap_s > 0.0
            && ask.job.exact
            && ask.encodings.is_none()
            && self.speech.now().dialect.decodes_alone()
            && self.kept.keeper_for(ask).is_none()
            && self.fleet.is_open(Role::Decode);
        may.then_some(rules)
    }

    /// A decoder's answer is complete: what it holds is remembered, and compared with the belief if
    /// it computed the prompt.
    pub(super) fn remember(&self, reservation: &mut Reservation, ledger: &Ledger) {
        let counts = ledger.decode_counts();
        let counts = match counts.is_alone {
            true => self.affinity.counted_by_decoder(counts),
            false => counts,
        };
        let Some(held) = reservation.end_answer(counts) else { return };
        self.meters.decoder_predicted(held.verdict.verdict.name());
        self.meters.source_trusted("decoders", held.verdict.trusted);
        self.meters.source_trusted("answers", held.verdict.answers_trusted);
        self.decision_log.append_found(ledger.id(), counts.cached_tokens);
        reservation.instance().hits().add(HitTokens {
            prompt: u64::from(held.prompt_tokens),
            predicted: u64::from(held.held_tokens),
            cached: counts.cached_tokens.unwrap_or(0),
        });
    }
}
