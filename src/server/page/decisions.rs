//! The last placements: who was chosen, why, and what came of it.

use serde_json::{Value, json};

use crate::relay::decision_log::DecisionRecord;
use crate::route::Terms;
use crate::server::page::json::unix_ms;
use crate::server::printable;

/// Seconds that two candidates may differ in and count as alike.
const ALIKE_S: f64 = 0.000_5;

/// Reasons why the winner won, as far as the next best tells. What each would have cost stands
/// beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum WinReason {
    /// There was no other.
    Only,
    /// It had less to compute and to fetch, since it has more of the prompt.
    Cached,
    /// It could begin sooner.
    Sooner,
    /// The next best was as good.
    Alike,
    /// Predicted times did not decide: another policy, or room and sharing.
    Policy,
}

impl WinReason {
    fn name(self) -> &'static str {
        match self {
            WinReason::Only => "only",
            WinReason::Cached => "cached",
            WinReason::Sooner => "sooner",
            WinReason::Alike => "alike",
            WinReason::Policy => "policy",
        }
    }
}

/// JSON of one placement.
pub(super) fn decision(record: &DecisionRecord) -> Value {
    let (choice, job) = (&record.choice, &record.job);
    let others = choice.others.iter().map(|(who, terms)| candidate(&who.name(), terms));
    let outcome = record.fate.end().map(|end| {
        json!({
            "status": end.status,
            "reason": end.reason,
            "total_ms": end.took.as_secs_f64() * 1e3,
            "output_tokens": end.output_tokens,
        })
    });
    json!({
        "id": printable(&record.id),
        "at_unix_ms": unix_ms(record.at),
        "prompt_tokens": job.prompt_tokens,
        "exact": job.exact,
        "exact_tokens": job.counted_tokens(),
        "waited_ms": choice.waited.as_secs_f64() * 1e3,
        "waiting": choice.waiting,
        "why": why(&choice.terms, choice.others.first().map(|(_, next)| next)).name(),
        "winner": candidate(&record.prefiller.name(), &choice.terms),
        "next_best": others.collect::<Vec<_>>(),
        "cached_tokens": record.cached_tokens,
        "decoder": record.fate.decoder().map(|decoder| decoder.endpoint().to_string()),
        "outcome": outcome,
    })
}

fn candidate(instance: &str, terms: &Terms) -> Value {
    json!({
        "instance": instance,
        "predicted_tokens": terms.hit.any_tokens,
        "hbm_tokens": terms.hit.hbm_tokens,
        "backlog_ms": terms.wait_s * 1e3,
        "prefill_ms": terms.prefill_s * 1e3,
        "restore_ms": terms.restore_s * 1e3,
    })
}

/// Reason why `winner` won over the next best.
pub(in crate::server) fn why(winner: &Terms, next: Option<&Terms>) -> WinReason {
    let Some(next) = next else { return WinReason::Only };
    let own_s = |terms: &Terms| terms.prefill_s + terms.restore_s;
    let (less_work_s, sooner_s) = (own_s(next) - own_s(winner), next.wait_s - winner.wait_s);
    let gain_s = less_work_s + sooner_s;
    if gain_s < -ALIKE_S {
        WinReason::Policy
    } else if gain_s <= ALIKE_S {
        WinReason::Alike
    } else if less_work_s > sooner_s {
        WinReason::Cached
    } else {
        WinReason::Sooner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Hit, LaneId};

    fn terms(wait_s: f64, prefill_s: f64) -> Terms {
        Terms {
            lane: LaneId(0),
            hit: Hit::default(),
            told_tokens: None,
            in_flight: false,
            wait_s,
            prefill_s,
            restore_s: 0.0,
            shared_s: 0.0,
            score_s: 0.0,
        }
    }

    #[test]
    fn the_reason_is_what_the_next_best_lacked() {
        let why = |winner: Terms, next: Option<Terms>| why(&winner, next.as_ref());
        assert_eq!(why(terms(1.0, 1.0), None), WinReason::Only);
        assert_eq!(why(terms(0.2, 0.1), Some(terms(0.0, 1.0))), WinReason::Cached);
        assert_eq!(why(terms(0.0, 1.0), Some(terms(3.0, 0.5))), WinReason::Sooner);
        assert_eq!(why(terms(0.0, 1.0), Some(terms(0.0, 1.0))), WinReason::Alike);
        assert_eq!(why(terms(2.0, 1.0), Some(terms(0.0, 1.0))), WinReason::Policy);
    }
}
