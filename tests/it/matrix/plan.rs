//! The plan: every fault with the leg it strikes, and the cells that follow.

use pd_proxy::sim::ConnectionEnd;

/// The leg whose engine is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    Prefill,
    Decode,
}

/// The shape of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Messages,
    Responses,
}

/// Progress of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// In the middle of the status line or a header.
    Head,
    /// The head is out, of the body nothing.
    HeadEnd,
    /// In the first event, or in the JSON of an answer that is not streamed.
    First,
    /// In the fifth event.
    Event,
    /// All events but the last are out, which says that the stream is complete.
    LastEvent,
    /// The last event is out, the end of the framing is not.
    End,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ill {
    /// Nothing listens at its port.
    Refused,
    /// The connection is accepted and reset.
    ResetAtAccept,
    /// The request is read, then the connection is reset.
    Reset,
    /// The request is read and never answered.
    Hangs,
    /// The answer breaks off.
    Cut(Spot, ConnectionEnd),
    /// The answer stops, and the connection stays.
    Stalls(Spot),
    /// An answer with this status.
    Status(u16),
    /// 200 and this body as JSON.
    Body(&'static str),
    /// 200 and this body as a stream.
    Events(&'static str),
    /// This in place of the hand-off.
    Handoff(&'static str),
    /// A stream ends cleanly, without its last event.
    Ends,
    /// A stream has an error event of the engine.
    SaysError,
    /// A stream is given up, to be prefilled again.
    Recomputed,
    /// A whole answer says the same.
    RecomputedWhole,
    /// The engine's process is killed while it works for the request.
    Killed,
    /// The prefiller's process is killed when it has answered, before the decoder fetches.
    KilledUnread,
    /// The prefiller's process is killed while the decoder, which has the KV, answers.
    KilledAfter,
    /// No fault of any engine: the client hangs up while the leg runs, before the first byte or
    /// after it.
    ClientLeaves(Spot),
}

/// The engines of the leg that are at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    One,
    All,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub leg: Leg,
    pub ill: Ill,
    pub api: Api,
    pub stream: bool,
    pub who: Who,
    /// `retry.resume`
    pub resume: bool,
}

/// Place at which the fault strikes, as the client would see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    BeforeHead,
    InHead,
    BeforeFirstByte,
    MidStream,
    BeforeEnd,
}

const ERROR_500: &str =
    r#"{"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}"#;
const GIVEN_UP: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\",\"stop_reason\":\"recomputed\"}]}\n\ndata: [DONE]\n\n";
/// KV that a decoder can't fetch, since its holder is gone.
const NOWHERE: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31]],"remote_engine_id":"gone","remote_request_id":"gone","remote_host":"127.0.0.1","remote_port":1}"#;

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Messages => "/v1/messages",
            Api::Responses => "/v1/responses",
        }
    }

    /// Streams of these can be continued, and end with `[DONE]`.
    pub fn openai(self) -> bool {
        matches!(self, Api::Chat | Api::Completions)
    }

    pub fn name(self) -> &'static str {
        match self {
            Api::Chat => "chat",
            Api::Completions => "completions",
            Api::Messages => "messages",
            Api::Responses => "responses",
        }
    }
}

impl Ill {
    /// In words; `leg` tells a hang-up of the client from another.
    pub fn name(self) -> String {
        let spot = |at: Spot| match at {
            Spot::Head => "in the head",
            Spot::HeadEnd => "after the head",
            Spot::First => "in the first event or the JSON",
            Spot::Event => "in a later event",
            Spot::LastEvent => "before the last event",
            Spot::End => "after the last event",
        };
        match self {
            Ill::Refused => "connection refused".into(),
            Ill::ResetAtAccept => "reset at accept".into(),
            Ill::Reset => "reset before the head".into(),
            Ill::Hangs => "hangs before the head".into(),
            Ill::Cut(at, ConnectionEnd::Reset) => format!("reset {}", spot(at)),
            Ill::Cut(at, ConnectionEnd::Close) => format!("closed {}", spot(at)),
            Ill::Stalls(at) => format!("stalls {}", spot(at)),
            Ill::Status(status) => format!("status {status}"),
            Ill::Body("") => "200, empty JSON body".into(),
            Ill::Body(ERROR_500) => "200, error object".into(),
            Ill::Body(_) => "200, garbage".into(),
            Ill::Events("") => "200, empty stream".into(),
            Ill::Events("data: [DONE]\n\n") => "200, stream of `[DONE]` alone".into(),
            Ill::Events(GIVEN_UP) => "200, stream begins with `recomputed`".into(),
            Ill::Events(text) if text.contains("error") => "200, stream begins with a 5xx event".into(),
            Ill::Events(text) if text.starts_with("data") => "200, stream of events that are no JSON".into(),
            Ill::Events(_) => "200, stream of garbage".into(),
            Ill::Handoff("null") => "hand-off missing".into(),
            Ill::Handoff(NOWHERE) => "hand-off to nobody".into(),
            Ill::Handoff(text) if text.starts_with('{') => "hand-off names nothing".into(),
            Ill::Handoff(_) => "hand-off garbage".into(),
            Ill::Ends => "stream ends without `[DONE]`".into(),
            Ill::SaysError => "engine's error event".into(),
            Ill::Recomputed | Ill::RecomputedWhole => "recomputed".into(),
            Ill::Killed => "killed at work".into(),
            Ill::KilledUnread => "killed before its KV was fetched".into(),
            Ill::KilledAfter => "killed after its KV was fetched".into(),
            Ill::ClientLeaves(Spot::Event) => "client leaves mid-stream".into(),
            Ill::ClientLeaves(_) => "client leaves before the first byte".into(),
        }
    }

    pub fn goes_nowhere(self) -> bool {
        self == Ill::Handoff(NOWHERE)
    }

    /// True if the engine answers nothing any more, without hanging up.
    pub fn silent(self) -> bool {
        matches!(self, Ill::Hangs | Ill::Stalls(_))
    }

    /// The form of answers that it can strike: `None` = either.
    fn form(self) -> Option<bool> {
        match self {
            Ill::Cut(Spot::Event | Spot::LastEvent | Spot::End, _) | Ill::Stalls(Spot::Event) => Some(true),
            Ill::Events(_) | Ill::Ends | Ill::SaysError | Ill::Recomputed => Some(true),
            Ill::RecomputedWhole => Some(false),
            Ill::ClientLeaves(at) => (at == Spot::Event).then_some(true),
            _ => None,
        }
    }
}

impl Cell {
    /// Place at which it strikes: a prefiller's answer, and one that is not streamed, are before
    /// the client's first byte to their end.
    pub fn stage(&self) -> Stage {
        let whole = self.leg == Leg::Prefill || !self.stream;
        match self.ill {
            Ill::Refused | Ill::ResetAtAccept | Ill::Reset | Ill::Hangs | Ill::Status(_) => Stage::BeforeHead,
            Ill::Cut(Spot::Head, _) | Ill::Stalls(Spot::Head) => Stage::InHead,
            Ill::Cut(Spot::LastEvent | Spot::End, _) => Stage::BeforeEnd,
            Ill::Cut(Spot::Event, _) | Ill::Stalls(Spot::Event) | Ill::ClientLeaves(Spot::Event) => {
                Stage::MidStream
            }
            Ill::Ends | Ill::SaysError | Ill::Recomputed | Ill::KilledAfter => Stage::MidStream,
            Ill::Killed if !whole => Stage::MidStream,
            _ => Stage::BeforeFirstByte,
        }
    }

    /// True if the client has seen a part of the answer when it strikes.
    pub fn begun(&self) -> bool {
        self.stage() >= Stage::MidStream && self.ill != Ill::KilledAfter
    }
}

/// Faults that either leg can have.
const EITHER: [Ill; 18] = [
    Ill::Refused,
    Ill::ResetAtAccept,
    Ill::Reset,
    Ill::Hangs,
    Ill::Cut(Spot::Head, ConnectionEnd::Reset),
    Ill::Cut(Spot::Head, ConnectionEnd::Close),
    Ill::Stalls(Spot::Head),
    Ill::Cut(Spot::HeadEnd, ConnectionEnd::Reset),
    Ill::Cut(Spot::First, ConnectionEnd::Close),
    Ill::Stalls(Spot::First),
    Ill::Status(500),
    Ill::Status(503),
    Ill::Status(429),
    Ill::Status(400),
    Ill::Body(""),
    Ill::Body("<html>bad gateway</html>"),
    Ill::Body(ERROR_500),
    Ill::Killed,
];

const PREFILL: [Ill; 7] = [
    Ill::Handoff("null"),
    Ill::Handoff("[1]"),
    Ill::Handoff(r#"{"do_remote_prefill":true}"#),
    Ill::Handoff(NOWHERE),
    Ill::KilledUnread,
    Ill::KilledAfter,
    Ill::ClientLeaves(Spot::Head),
];

const DECODE: [Ill; 19] = [
    Ill::Events(""),
    Ill::Events("<html>bad gateway</html>\n\n"),
    Ill::Events("data: <html>bad gateway</html>\n\ndata: [DONE]\n\n"),
    Ill::Events(
        "data: {\"error\":{\"message\":\"boom\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n",
    ),
    Ill::Events("data: [DONE]\n\n"),
    Ill::Events(GIVEN_UP),
    Ill::Cut(Spot::Event, ConnectionEnd::Reset),
    Ill::Cut(Spot::Event, ConnectionEnd::Close),
    Ill::Stalls(Spot::Event),
    Ill::Cut(Spot::LastEvent, ConnectionEnd::Reset),
    Ill::Cut(Spot::LastEvent, ConnectionEnd::Close),
    Ill::Cut(Spot::End, ConnectionEnd::Reset),
    Ill::Ends,
    Ill::SaysError,
    Ill::Recomputed,
    Ill::RecomputedWhole,
    Ill::Stalls(Spot::HeadEnd),
    Ill::ClientLeaves(Spot::Head),
    Ill::ClientLeaves(Spot::Event),
];

/// The other APIs share all code but the form of their events: a few faults of each stage.
const OTHERS: [Ill; 5] = [
    Ill::Refused,
    Ill::Status(500),
    Ill::Status(400),
    Ill::Cut(Spot::Event, ConnectionEnd::Reset),
    Ill::Ends,
];

/// All cells, in the order of the table.
pub fn cells() -> Vec<Cell> {
    let prefill = EITHER.iter().chain(&PREFILL).map(|ill| (Leg::Prefill, *ill));
    let decode = EITHER.iter().chain(&DECODE).map(|ill| (Leg::Decode, *ill));
    prefill.chain(decode).flat_map(|(leg, ill)| cells_of(leg, ill)).collect()
}

fn cells_of(leg: Leg, ill: Ill) -> Vec<Cell> {
    let mut cells = Vec::new();
    for api in [Api::Chat, Api::Completions, Api::Messages, Api::Responses] {
        for stream in [true, false] {
            for (who, resume) in [(Who::One, false), (Who::All, false), (Who::One, true), (Who::All, true)] {
                let cell = Cell { leg, ill, api, stream, who, resume };
                let fits =
                    ill.form().is_none_or(|form| form == stream) && (api.openai() || OTHERS.contains(&ill));
                // Before the first byte a continuation has no part in it; it is there for chats and
                // completions.
                let continued = cell.begun() && api.openai() && stream;
                let alone = matches!(ill, Ill::ClientLeaves(_)) && who == Who::One;
                if fits && !alone && (continued || !resume) {
                    cells.push(cell);
                }
            }
        }
    }
    cells
}
