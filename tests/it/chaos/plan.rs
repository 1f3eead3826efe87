//! The plan of one run, drawn from a seed.

use std::time::Duration;

use bytes::Bytes;
use pd_proxy::config::DialectName;
use pd_proxy::sim::{ConnectionEnd, Connector, FaultKind};

use crate::dialects::{SPOKEN, Spoken};

/// splitmix64 (public domain, Sebastiano Vigna).
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` up to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let at = self.between(0, from.len() as u64 - 1) as usize;
        from[at].clone()
    }
}

/// The dialect in which decoders call back.
pub const DECODER_FIRST: Spoken = (DialectName::Layerwise, Connector::Layerwise);

/// Dialects that are not drawn, so that seeds mean what they always meant.
pub const LATER: [Spoken; 2] =
    [(DialectName::Moriio, Connector::Moriio), (DialectName::Pool, Connector::Pool)];

/// The shapes of requests that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    Chat,
    Completions,
    Messages,
    Responses,
}

/// A request of the plan.
#[derive(Clone, Debug)]
pub struct Request {
    pub api: Api,
    pub stream: bool,
    /// Words of the prompt.
    pub words: u64,
    pub tokens: u64,
    /// Time at which it is sent, in ms.
    pub at_ms: u64,
    /// Time that its client stays, in ms; None = to the end.
    pub stays_ms: Option<u64>,
}

/// Something that goes wrong on an engine.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// On a prefiller; else on a decoder.
    pub prefiller: bool,
    /// Index of the engine, counted from 0.
    pub engine: usize,
    pub at_ms: u64,
    pub what: Wrong,
}

#[derive(Clone, Debug)]
pub enum Wrong {
    /// So many requests meet this.
    Fault(FaultKind, u32),
    /// It is killed, and does not come back.
    Dies,
    /// Nobody can read the KV that it makes.
    Unreadable,
    /// All faults are over.
    Heals,
}

/// The plan of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The connector of all engines.
    pub spoken: Spoken,
    /// Mean length of answers that end by themselves; 0 = none does.
    pub answer_tokens: u32,
    pub prefillers: u8,
    pub decoders: u8,
    pub attempts: u32,
    pub prefill_ms: u64,
    pub first_byte_ms: u64,
    pub gap_ms: u64,
    pub total_ms: u64,
    pub grace_ms: u64,
    pub requests: Vec<Request>,
    pub troubles: Vec<Trouble>,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let rng = &mut Rng(seed);
        let (prefillers, decoders) = (rng.between(1, 3) as u8, rng.between(1, 3) as u8);
        let requests = (0..rng.between(1, 6)).map(|_| request(rng)).collect();
        let troubles = (0..rng.between(0, 5)).map(|_| trouble(rng, prefillers, decoders)).collect();
        Plan {
            spoken: *SPOKEN.get(seed as usize % (SPOKEN.len() + 1)).unwrap_or(&DECODER_FIRST),
            answer_tokens: 0,
            prefillers,
            decoders,
            attempts: rng.between(1, 4) as u32,
            prefill_ms: rng.between(300, 2_000),
            first_byte_ms: rng.between(300, 2_000),
            gap_ms: rng.between(200, 2_000),
            total_ms: rng.between(1_000, 10_000),
            grace_ms: rng.pick(&[1, 100, 500]),
            requests,
            troubles,
        }
    }
}

impl Plan {
    /// The same, and with it faults whose author is not the one that reports them.
    pub fn draw_with_blame(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let rng = &mut Rng(seed ^ 0xb1a3e);
        for _ in 0..rng.between(1, 3) {
            let trouble = trouble(rng, plan.prefillers, plan.decoders);
            let refused = FaultKind::Status(rng.pick(&[401, 403, 404, 405, 421, 429]), None);
            let what = match rng.between(0, 3) {
                0 => Wrong::Fault(refused, u32::MAX),
                1 => Wrong::Fault(FaultKind::StallBeforeHead, u32::MAX),
                2 => Wrong::Fault(FaultKind::Retired, u32::MAX),
                _ => Wrong::Unreadable,
            };
            plan.troubles.push(Trouble { what, ..trouble });
        }
        plan
    }
}

fn request(rng: &mut Rng) -> Request {
    Request {
        api: rng.pick(&[Api::Chat, Api::Completions, Api::Messages, Api::Responses]),
        stream: rng.percent(60),
        words: rng.pick(&[1, 20, 200]),
        tokens: rng.pick(&[1, 5, 30]),
        at_ms: rng.between(0, 500),
        stays_ms: rng.percent(30).then(|| rng.between(0, 1_000)),
    }
}

fn trouble(rng: &mut Rng, prefillers: u8, decoders: u8) -> Trouble {
    let prefiller = rng.percent(50);
    let engines = if prefiller { prefillers } else { decoders };
    let what = match rng.between(0, 9) {
        0 => Wrong::Dies,
        1 => Wrong::Heals,
        _ => Wrong::Fault(fault(rng), rng.pick(&[1, 1, 2, u32::MAX])),
    };
    Trouble {
        prefiller,
        engine: rng.between(0, u64::from(engines) - 1) as usize,
        at_ms: rng.between(0, 600),
        what,
    }
}

fn fault(rng: &mut Rng) -> FaultKind {
    let how = rng.pick(&[ConnectionEnd::Reset, ConnectionEnd::Close]);
    let bytes = rng.between(0, 3_000) as usize;
    // Not one that lacks what its flags promise: decoders die of it, and only who knows the
    // connector could tell.
    let handoff =
        rng.pick(&["", "7", "null", "{}", "{\"odd\":true}", "[", "{\"do_remote_prefill\":true}", "\"x\""]);
    match rng.between(0, 12) {
        0 => FaultKind::Refuse,
        1 => FaultKind::ResetAtAccept,
        2 => FaultKind::ResetBeforeHead,
        3 => FaultKind::StallBeforeHead,
        4 => FaultKind::Status(rng.pick(&[500, 502, 503, 503, 429, 400]), None),
        5 => FaultKind::Status(200, Some(Bytes::from_static(b"<html>"))),
        6 | 7 => FaultKind::CutAfterBytes { bytes, how },
        8 => FaultKind::StallAfterBytes(bytes),
        9 => FaultKind::DribbleBytes(rng.between(1, 50) as usize),
        10 => rng.pick(&[FaultKind::CloseWithoutDone, FaultKind::ErrorEvent]),
        11 => FaultKind::BadHandoff(handoff.into()),
        _ => FaultKind::Delay(Duration::from_millis(rng.between(1, 2_500))),
    }
}
