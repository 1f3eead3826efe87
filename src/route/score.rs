//! Cost of sending a request to one prefiller, in seconds.

use super::cost::{PrefillCosts, Service};
use super::job::{Hit, LaneId, Seconds};
use super::lane::Lane;
use super::popular::SharedPrefixes;

/// Restoring weighs half of computing: it takes the link, but not the accelerator.
const RESTORE_WEIGHT: f64 = 0.5;

/// One candidate's terms: what `/debug/route` prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Lane of the candidate.
    pub lane: LaneId,
    /// Work that it is spared.
    pub hit: Hit,
    /// Tokens that it told that it holds in its own memory; `None` when it does not tell.
    pub told_tokens: Option<u32>,
    /// Some of the hit is of a prompt that is still being computed there.
    pub in_flight: bool,
    /// Until it can begin.
    pub wait_s: Seconds,
    /// To compute the rest.
    pub prefill_s: Seconds,
    /// To fetch what is in the pool.
    pub restore_s: Seconds,
    /// Of the computing, what others will profit from.
    pub shared_s: Seconds,
    /// Score that is compared. It is no prediction: pressure and sharing are in it.
    pub score_s: Seconds,
}

impl Terms {
    /// Predicted seconds until the first token, apart from the decoder.
    pub(super) fn first_token_s(&self) -> Seconds {
        self.wait_s + self.prefill_s
    }
}

/// Weight of saved work against the request's own wait, given the numbers of waiting requests and
/// instances. It is zero when none waits, since the first token comes soonest where it does, and up
/// to sixteen under pressure, when work saved is waiting saved for all.
pub(super) fn pressure(waiting: usize, instances: usize) -> f64 {
    if waiting == 0 || instances == 0 {
        return 0.0;
    }
    (1.0 + 4.0 * waiting as f64 / instances as f64).min(16.0)
}

/// Values that are the same for all candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommonTerms<'a> {
    pub(super) prompt_tokens: u32,
    pub(super) shared_prefixes: &'a SharedPrefixes,
    pub(super) instances: usize,
    pub(super) pressure: f64,
    pub(super) now: Seconds,
}

/// A prefiller that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneCandidate<'a> {
    pub(super) id: LaneId,
    pub(super) lane: &'a Lane,
    /// Work that it is spared.
    pub(super) hit: Hit,
    /// Its backlog, with what is planned for it.
    pub(super) backlog_s: Seconds,
}

/// The terms of one candidate.
pub(super) fn terms(asking: &CommonTerms<'_>, costs: &PrefillCosts, candidate: LaneCandidate<'_>) -> Terms {
    let LaneCandidate { id, lane, hit, backlog_s } = candidate;
    let Service { prefill_s, restore_s } = lane.here(costs.service(asking.prompt_tokens, hit));
    let shared_s = lane.slowness() * shared(asking, costs, hit);
    let wait_s = if restore_s > 0.0 { backlog_s.max(lane.link_s(asking.now) + restore_s) } else { backlog_s };
    let own_s = prefill_s - shared_s + RESTORE_WEIGHT * restore_s;
    let score_s = wait_s + own_s * (1.0 + asking.pressure);
    Terms {
        lane: id,
        hit,
        told_tokens: None,
        in_flight: false,
        wait_s,
        prefill_s,
        restore_s,
        shared_s,
        score_s,
    }
}

/// The part of the computing that many others will not have to do again here: of each shared block
/// so much as there are others per instance.
fn shared(asking: &CommonTerms<'_>, costs: &PrefillCosts, hit: Hit) -> Seconds {
    let mut begin = hit.any_tokens;
    let mut sum = 0.0;
    for (end, popularity) in asking.shared_prefixes {
        let end = (*end).min(asking.prompt_tokens);
        if end > begin {
            let others = popularity / asking.instances.max(1) as f64;
            sum += costs.span(begin, end) * others / (1.0 + others);
            begin = end;
        }
    }
    sum
}
