//! The expectation of a cell, by rules alone. Nothing here was copied from what the gateway does.
//!
//! 1. Before the client's first byte a failure is tried elsewhere, at most `retry.attempts` times
//!    per leg: one engine of two at fault is invisible, and when all are, the error names the leg
//!    and what happened to it.
//! 2. An engine's 4xx is its role's word on the request when another engine says the same, and is
//!    passed on unchanged. (One that has served since its last refusal is believed at once; here
//!    none has.) 429 says that it is busy, as 503 does: a request that all refuse so stands in line
//!    and is tried again, a bounded number of times. Then the client gets the status of them all.
//! 3. A hand-off goes to another decoder only if the first can't have had it; else the prompt is
//!    prefilled again.
//! 4. After the first byte the rest comes from another pair, where that is on and exact, or an
//!    error event ends the stream.
//! 5. KV stays pinned only where nobody can free it: its name was lost with the prefiller's answer,
//!    or it was in the hands of an engine that neither fetched nor gave back, or there is no
//!    decoder that takes it.

use std::ops::RangeInclusive;

use pd_proxy::sim::ConnectionEnd;

use super::plan::{Cell, Ill, Leg, Spot, Stage, Who};
use super::seen::Seen;

/// `retry.attempts`, per leg.
pub const ATTEMPTS: u32 = 3;
/// Times that a request leaves the line of a busy role to be refused again, at most.
const BUSY_ROUNDS: u32 = 8;

/// Facts that must hold for a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub seen: Seen,
    pub prefills: RangeInclusive<u32>,
    pub decodes: RangeInclusive<u32>,
    /// Hand-offs that stay pinned until their lease ends.
    pub pinned: RangeInclusive<u32>,
}

/// True if the engine at fault can have read the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    No,
    Maybe,
    Yes,
}

/// The sign of a failure that the gateway sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// A broken connection, a 5xx, an error event.
    Failed,
    /// Nothing, for too long.
    Silent,
    /// 429 or 503: this one.
    Busy(u16),
    /// A complete answer that is none.
    Useless,
}

fn had(ill: Ill) -> Had {
    match ill {
        Ill::Refused => Had::No,
        Ill::ResetAtAccept => Had::Maybe,
        _ => Had::Yes,
    }
}

fn sign(ill: Ill) -> Sign {
    match ill {
        _ if ill.silent() => Sign::Silent,
        Ill::Status(status @ (429 | 503)) => Sign::Busy(status),
        Ill::Body(_) | Ill::Handoff(_) | Ill::RecomputedWhole => Sign::Useless,
        _ => Sign::Failed,
    }
}

/// True if the prefiller's KV stays pinned with each request that meets the fault, since no engine
/// could free it.
fn strands(leg: Leg, ill: Ill) -> bool {
    match leg {
        // It computed and pinned, and its answer did not arrive or does not say where.
        Leg::Prefill => matches!(ill, Ill::Cut(..) | Ill::Stalls(_) | Ill::Handoff(_)),
        // The decoder had the request, and neither fetched nor gave back: it did not get that far.
        Leg::Decode => matches!(
            ill,
            Ill::Reset | Ill::Hangs | Ill::Status(500) | Ill::Body(_) | Ill::Events(_) | Ill::RecomputedWhole
        ),
    }
}

fn error(leg: Leg, sign: Sign) -> Seen {
    let (status, code) = match (leg, sign) {
        (_, Sign::Busy(status)) => (status, "overloaded"),
        (Leg::Prefill, Sign::Failed) => (502, "prefill_failed"),
        (Leg::Prefill, Sign::Silent) => (504, "prefill_timeout"),
        (Leg::Prefill, Sign::Useless) => (502, "bad_prefill_reply"),
        (Leg::Decode, Sign::Silent) => (504, "decode_timeout"),
        (Leg::Decode, Sign::Failed | Sign::Useless) => (502, "decode_failed"),
    };
    Seen::Error(status, code.into())
}

fn of(seen: Seen, prefills: u32, decodes: u32, pinned: u32) -> Expected {
    Expected { seen, prefills: prefills..=prefills, decodes: decodes..=decodes, pinned: pinned..=pinned }
}

/// Its expected outcome.
pub fn expected(cell: &Cell) -> Expected {
    match (cell.ill, cell.leg) {
        (Ill::ClientLeaves(_), Leg::Prefill) => of(Seen::Left, 1, 0, 0),
        (Ill::ClientLeaves(_), Leg::Decode) => of(Seen::Left, 1, 1, 0),
        // Rule 2.
        (Ill::Status(status @ 400..=428), leg) => refused(status, leg, cell.who),
        // As where KV travels through a pool; this prefiller pinned, and said nothing of it.
        (Ill::Handoff("null"), _) => of(Seen::Whole, 1, 1, 1),
        (Ill::KilledUnread, _) => died_with_its_kv(cell.who),
        (Ill::KilledAfter, _) => of(Seen::Whole, 1, 1, 0),
        _ if cell.begun() => after_the_first_byte(cell),
        _ if cell.ill.goes_nowhere() => handed_to_nobody(cell.who),
        (_, Leg::Prefill) => prefill(cell),
        (_, Leg::Decode) => decode(cell),
    }
}

/// Rule 2: each decode leg that is refused takes its hand-off with it, since vLLM then tells the
/// prefiller to let go.
fn refused(status: u16, leg: Leg, who: Who) -> Expected {
    match (who, leg) {
        (Who::One, Leg::Prefill) => of(Seen::Whole, 2, 1, 0),
        (Who::One, Leg::Decode) => of(Seen::Whole, 2, 2, 0),
        (Who::All, Leg::Prefill) => of(Seen::Refused(status), 2, 0, 0),
        (Who::All, Leg::Decode) => of(Seen::Refused(status), 2, 2, 0),
    }
}

/// Rule 1 for prefillers: no decoder is asked before one has answered.
fn prefill(cell: &Cell) -> Expected {
    let each = u32::from(strands(cell.leg, cell.ill));
    match cell.who {
        Who::All if matches!(sign(cell.ill), Sign::Busy(_)) => Expected {
            seen: error(cell.leg, sign(cell.ill)),
            prefills: ATTEMPTS..=ATTEMPTS + BUSY_ROUNDS,
            decodes: 0..=0,
            pinned: 0..=0,
        },
        Who::One => of(Seen::Whole, 2, 1, each),
        Who::All => of(error(cell.leg, sign(cell.ill)), ATTEMPTS, 0, ATTEMPTS * each),
    }
}

/// Rules 1 and 3 for decoders.
fn decode(cell: &Cell) -> Expected {
    let (ill, sign) = (cell.ill, sign(cell.ill));
    if let (Who::All, Sign::Busy(_)) = (cell.who, sign) {
        let legs = 2..=2 + BUSY_ROUNDS;
        // No engine tells of a 429, and there is no decoder that takes what is to be released.
        let pinned = if ill == Ill::Status(429) { 0..=2 + BUSY_ROUNDS } else { 0..=0 };
        return Expected { seen: error(cell.leg, sign), prefills: legs.clone(), decodes: legs, pinned };
    }
    let (seen, failures, decodes) = match (cell.who, sign) {
        (Who::One, _) => (Seen::Whole, 1, 2),
        (Who::All, _) => (error(cell.leg, sign), ATTEMPTS, ATTEMPTS),
    };
    // A failure for good is not followed by a prefill.
    let followed = decodes - 1;
    let lost = failures * u32::from(strands(cell.leg, ill));
    match had(ill) {
        // Killed at work: one had the request, the others refuse, and so nobody fetches what is
        // left.
        _ if ill == Ill::Killed && cell.who == Who::All => of(seen, 2, decodes, 1),
        Had::Yes => of(seen, 1 + followed, decodes, lost),
        // One and the same hand-off, which nobody takes at last.
        Had::No => of(seen, 1, decodes, u32::from(cell.who == Who::All)),
        Had::Maybe => {
            let least = u32::from(cell.who == Who::All);
            Expected {
                seen,
                prefills: 1..=1 + followed,
                decodes: decodes..=decodes,
                pinned: least..=failures,
            }
        }
    }
}

/// The decoder fails, and the prefiller is to blame: the next prompt must not always be computed by
/// that one.
fn handed_to_nobody(who: Who) -> Expected {
    match who {
        Who::One => Expected {
            seen: Seen::Whole,
            prefills: 2..=ATTEMPTS,
            decodes: 2..=ATTEMPTS,
            pinned: 1..=ATTEMPTS - 1,
        },
        Who::All => of(error(Leg::Decode, Sign::Failed), ATTEMPTS, ATTEMPTS, ATTEMPTS),
    }
}

/// The decoder fails, since nobody is where the hand-off says; then the prompt is computed by
/// whoever is left, though the dead one may be asked first, as it has the prompt cached.
fn died_with_its_kv(who: Who) -> Expected {
    match who {
        Who::One => Expected { seen: Seen::Whole, prefills: 2..=3, decodes: 2..=2, pinned: 0..=0 },
        Who::All => of(error(Leg::Prefill, Sign::Failed), 1 + ATTEMPTS, 1, 0),
    }
}

/// Rule 4: the decoder has fetched, so nothing is pinned but what a continuation leaves.
fn after_the_first_byte(cell: &Cell) -> Expected {
    let code = if sign(cell.ill) == Sign::Silent { "decode_timeout" } else { "decode_failed" };
    let event = Seen::ErrorEvent(code.into());
    match (cell.resume, cell.who) {
        // What was missing was the framing's end, or an event that says nothing new.
        _ if matches!(cell.ill, Ill::Cut(Spot::End, _)) => of(Seen::Whole, 1, 1, 0),
        (true, _) if cell.stage() == Stage::BeforeEnd => of(Seen::Continued, 1, 1, 0),
        (false, _) if cell.ill == Ill::SaysError => of(Seen::EngineEvent, 1, 1, 0),
        (false, _) => of(event, 1, 1, 0),
        (true, Who::One) => of(Seen::Continued, 2, 2, 0),
        // The first had the answer, the others refuse, and nobody fetches what was prefilled for
        // the rest.
        (true, Who::All) if cell.ill == Ill::Killed => of(event, 2, 1 + ATTEMPTS, 1),
        // Each continuation breaks in its turn.
        (true, Who::All) if !matches!(cell.ill, Ill::Cut(..) | Ill::Stalls(_)) => {
            of(event, ATTEMPTS, ATTEMPTS, 0)
        }
        // Counted in bytes, it may strike before the first event of the rest, and be tried
        // elsewhere for that.
        (true, Who::All) => {
            let most = 1 + (ATTEMPTS - 1) * ATTEMPTS;
            Expected { seen: event, prefills: 2..=most, decodes: 2..=most, pinned: 0..=0 }
        }
    }
}

#[test]
fn the_rules_are_those_of_the_issue() {
    use super::plan::Api;
    let cell = |leg, ill, who, resume| Cell { leg, ill, api: Api::Chat, stream: true, who, resume };
    let one = |leg, ill| expected(&cell(leg, ill, Who::One, false)).seen;
    for ill in [Ill::Refused, Ill::Reset, Ill::Hangs, Ill::Status(500), Ill::Status(503), Ill::Body("")] {
        assert_eq!((one(Leg::Prefill, ill), one(Leg::Decode, ill)), (Seen::Whole, Seen::Whole), "{ill:?}");
    }
    let cut = Ill::Cut(Spot::Event, ConnectionEnd::Reset);
    assert_eq!(one(Leg::Decode, cut), Seen::ErrorEvent("decode_failed".into()));
    assert_eq!(expected(&cell(Leg::Decode, cut, Who::One, true)).seen, Seen::Continued);
    assert_eq!(one(Leg::Decode, Ill::Status(400)), Seen::Whole);
    let all = expected(&cell(Leg::Decode, Ill::Status(400), Who::All, false)).seen;
    assert_eq!(all, Seen::Refused(400));
}
