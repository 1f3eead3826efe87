//! One cell: the fault is set, a client asks, and all that came of it is written down.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::journal::Journal;
use super::oracle::{self, Expected};
use super::plan::{Api, Cell, Ill, Leg, Spot, Who};
use super::rig::{ReleaseQueue, Rig, comes};
use super::seen::{Seen, words_of};
use super::stalls::Stalls;
use crate::common::client;

/// Tokens of the answer: more events than those before any fault.
const TOKENS: u32 = 24;
/// Events before a fault that counts events.
const EVENTS: usize = 5;
/// Requests until the engine at fault was asked: equals take turns, so the second is one too many
/// already.
const TRIES: usize = 8;
/// Time until a decoder fetches, where the prefiller is killed meanwhile.
const UNREAD: Duration = Duration::from_millis(1_500);
/// No answer takes longer, times the number of the round: limits grow with it, and four attempts
/// may run into them.
const ENDLESS: Duration = Duration::from_secs(18);
/// Most runs of a cell.
const ROUNDS: u32 = 3;
const REFUSAL: &str = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;

/// The outcome of a cell.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    pub expected: Expected,
    pub seen: Seen,
    pub prefills: u32,
    pub decodes: u32,
    pub pinned: u32,
    /// Lines in the access log, one for each request.
    pub lines: u32,
    /// Work that was not over when it should have been.
    pub open: Option<String>,
    /// Number of runs: more than one on a machine that stalled.
    pub rounds: u32,
}

impl Outcome {
    /// Its differences from the expectation; none if it is as expected.
    pub fn wrong(&self) -> Vec<String> {
        let want = &self.expected;
        let mut wrong = Vec::new();
        if self.seen != want.seen {
            wrong.push(format!("the client saw `{}` instead of `{}`", self.seen.name(), want.seen.name()));
        }
        let counts = [
            ("prefills", self.prefills, &want.prefills),
            ("decodes", self.decodes, &want.decodes),
            ("pinned", self.pinned, &want.pinned),
            ("lines in the log", self.lines, &(1..=1)),
        ];
        for (name, count, range) in counts {
            if !range.contains(&count) {
                wrong.push(format!("{count} {name} instead of {range:?}"));
            }
        }
        wrong.extend(self.open.clone());
        wrong
    }
}

/// An undisturbed engine, which says how answers are and how long.
pub struct Model(pub Engine);

/// One request of a client.
struct Request {
    id: String,
    bytes: Vec<u8>,
    words: String,
}

fn body(api: Api, prompt: &str, stream: bool) -> serde_json::Value {
    let said = json!([{"role": "user", "content": prompt}]);
    match api {
        Api::Chat | Api::Messages => {
            json!({"model": "sim", "messages": said, "max_tokens": TOKENS, "stream": stream})
        }
        Api::Completions => json!({"model": "sim", "prompt": prompt, "max_tokens": TOKENS, "stream": stream}),
        Api::Responses => {
            json!({"model": "sim", "input": prompt, "max_output_tokens": TOKENS, "stream": stream})
        }
    }
}

impl Model {
    /// A request with a prompt of its own, of which no engine has anything cached.
    async fn request(&self, cell: &Cell, id: String) -> Request {
        let prompt = format!("{id} tells of prefill and decode, of blocks and of tokens ").repeat(6);
        let whole = body(cell.api, &prompt, false).to_string();
        let words = words_of(&client::send(self.0.addr(), &client::post(cell.api.path(), &whole)).await);
        let asked = body(cell.api, &prompt, cell.stream).to_string();
        let bytes = client::post_with(cell.api.path(), &[("x-request-id", &id)], asked.as_bytes());
        Request { id, bytes, words }
    }

    /// Bytes of an answer up to this spot, as the engine writes it to the gateway.
    async fn bytes_to(&self, cell: &Cell, spot: Spot, id: &str) -> usize {
        let streamed = cell.stream && cell.leg == Leg::Decode;
        let prompt = format!("{id} tells of prefill and decode, of blocks and of tokens ").repeat(6);
        let mut body = body(cell.api, &prompt, streamed);
        if cell.resume {
            body["return_token_ids"] = json!(true);
        }
        let head = format!("x-request-id: {id}\r\nconnection: close");
        let body = body.to_string();
        let mut socket = TcpStream::connect(self.0.addr()).await.unwrap();
        let path = cell.api.path();
        let length = body.len();
        let asked = format!(
            "POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        socket.write_all(asked.as_bytes()).await.unwrap();
        let mut raw = Vec::new();
        socket.read_to_end(&mut raw).await.unwrap();
        // `connection: close` stands in this head, and not in that of the gateway's.
        offset(&String::from_utf8(raw).unwrap().replacen("connection: close\r\n", "", 1), spot, streamed)
    }
}

fn offset(raw: &str, spot: Spot, streamed: bool) -> usize {
    let head = raw.find("\r\n\r\n").unwrap() + 4;
    let events: Vec<usize> = raw.match_indices("data: ").map(|(at, _)| at).collect();
    // A chunk begins with its length in a line.
    let chunk = |at: usize| {
        raw[..at].rfind("\r\n").map(|cr| raw[..cr].rfind("\r\n").map_or(0, |line| line + 2)).unwrap()
    };
    match spot {
        Spot::Head => 30,
        Spot::HeadEnd => head,
        Spot::First if streamed => events[0] + 20,
        Spot::First => head + 40,
        Spot::Event => events[EVENTS] + 20,
        Spot::LastEvent => chunk(*events.last().unwrap()),
        Spot::End => raw.len() - "0\r\n\r\n".len(),
    }
}

/// A whole answer that says that it was given up.
fn recomputed(api: Api) -> String {
    let mut choice = json!({"index": 0, "finish_reason": "stop", "stop_reason": "recomputed"});
    match api {
        Api::Chat => choice["message"] = json!({"role": "assistant", "content": "half of"}),
        _ => choice["text"] = "half of".into(),
    }
    json!({"id": "x", "object": "x", "created": 1, "model": "sim", "choices": [choice]}).to_string()
}

/// The fault as engines are told of it; `None` for what is done by hand.
async fn scripted(model: &Model, cell: &Cell, id: &str) -> Option<FaultKind> {
    Some(match cell.ill {
        Ill::Refused => FaultKind::Refuse,
        Ill::ResetAtAccept => FaultKind::ResetAtAccept,
        Ill::Reset => FaultKind::ResetBeforeHead,
        Ill::Hangs => FaultKind::StallBeforeHead,
        Ill::Cut(spot, how) => FaultKind::CutAfterBytes { bytes: model.bytes_to(cell, spot, id).await, how },
        Ill::Stalls(spot) => FaultKind::StallAfterBytes(model.bytes_to(cell, spot, id).await),
        Ill::Status(status @ 400..=499) => FaultKind::Status(status, Some(REFUSAL.into())),
        Ill::Status(status) => FaultKind::Status(status, None),
        Ill::Body(text) => FaultKind::Status(200, Some(text.into())),
        Ill::Events(text) => FaultKind::Events(text.into()),
        Ill::Handoff(text) => FaultKind::BadHandoff(text.into()),
        Ill::Ends => FaultKind::EndAfterEvents(EVENTS),
        Ill::SaysError => FaultKind::ErrorEvent,
        Ill::Recomputed => FaultKind::RecomputeAfterEvents(EVENTS),
        Ill::RecomputedWhole => FaultKind::Status(200, Some(recomputed(cell.api).into())),
        Ill::ClientLeaves(Spot::Head) if cell.leg == Leg::Decode => {
            FaultKind::StallAfterBytes(model.bytes_to(cell, Spot::HeadEnd, id).await)
        }
        Ill::Killed | Ill::KilledUnread | Ill::KilledAfter | Ill::ClientLeaves(_) => return None,
    })
}

/// Runs the cell with the number `nth`. What it finds wrong counts only if the machine did not
/// stall meanwhile, or not again: limits are no measure of engines that get no time to answer.
pub async fn run(model: &Model, journal: &Journal, stalls: &Stalls, (nth, cell): (usize, Cell)) -> Outcome {
    let mut round = 0;
    loop {
        let began = Instant::now();
        let outcome = run_once(model, journal, (round, nth), cell).await;
        round += 1;
        if outcome.wrong().is_empty() || round == ROUNDS || !stalls.since(began) {
            return Outcome { rounds: round, ..outcome };
        }
        // Not by a macro: shown though the test passes.
        let wrong = outcome.wrong().join("; ");
        let line = format!("matrix: {cell:?} is run again, since the machine stalled; so far: {wrong}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

async fn run_once(model: &Model, journal: &Journal, (round, nth): (u32, usize), cell: Cell) -> Outcome {
    let rig = Rig::set(&cell, round).await;
    let count = if cell.who == Who::One { 1 } else { 2 };
    let expected = oracle::expected(&cell);
    // As long as the ids that follow.
    if let Some(what) = scripted(model, &cell, &format!("m{nth:04}-{round}-0")).await {
        rig.inject(cell.leg, count, &Fault::always(what));
    }
    if cell.ill == Ill::KilledUnread {
        rig.inject(Leg::Decode, 2, &Fault::once(FaultKind::Delay(UNREAD)));
    }
    let mut outcome = Outcome {
        cell,
        expected,
        seen: Seen::Lie("the engine at fault was never asked".into()),
        prefills: 0,
        decodes: 0,
        pinned: 0,
        lines: 0,
        open: None,
        rounds: 1,
    };
    for again in 0..TRIES {
        let request = model.request(&cell, format!("m{nth:04}-{round}-{again}")).await;
        let mut killed = Vec::new();
        let exchanged = timeout(ENDLESS * (round + 1), exchange(&rig, &cell, &request, &mut killed)).await;
        let seen = exchanged.unwrap_or_else(|_| Seen::Lie("an answer that never ends".into()));
        let failed = |leg| match (leg, journal.of(&request.id)) {
            (Leg::Prefill, entry) => entry.prefills_failed,
            (Leg::Decode, entry) => entry.decodes_failed,
        };
        let struck = !killed.is_empty() || failed(cell.leg) > 0 || rig.read(cell.leg, count, &request.id) > 0;
        // Nothing went wrong; should the client have noticed anything, the cell is wrong all the
        // same.
        if !struck && seen == Seen::Whole {
            continue;
        }
        let right = outcome.expected.pinned.clone();
        let no_decoder = cell.leg == Leg::Decode && cell.who == Who::All;
        let releases = if no_decoder { ReleaseQueue::MayWait } else { ReleaseQueue::MustBeOver };
        (outcome.pinned, outcome.open) =
            rig.settled(&killed, releases, |pinned| right.contains(&pinned)).await;
        let unread = |leg| {
            let nobody = matches!(cell.ill, Ill::Refused | Ill::ResetAtAccept | Ill::KilledUnread);
            let unread = leg == cell.leg && nobody;
            let refusing = leg == cell.leg && cell.ill == Ill::Killed && cell.who == Who::All;
            // Of a killed pair the first has read the request; in a stream that leg had not failed
            // before.
            let had = u32::from(refusing && !cell.begun());
            if unread || refusing { failed(leg) - had.min(failed(leg)) } else { 0 }
        };
        outcome.prefills = rig.read(Leg::Prefill, 2, &request.id) + unread(Leg::Prefill);
        outcome.decodes = rig.read(Leg::Decode, 2, &request.id) + unread(Leg::Decode);
        outcome.lines = journal.of(&request.id).lines;
        if no_decoder && killed.is_empty() && outcome.open.is_none() {
            outcome.open = rig.released().await;
        }
        let goes_on = seen == Seen::Whole
            && cell.begun()
            && cell.ill != Ill::Cut(Spot::End, pd_proxy::sim::ConnectionEnd::Reset);
        outcome.seen = if goes_on { Seen::Continued } else { seen };
        break;
    }
    rig.end().await;
    outcome
}

/// One exchange, with what is done by hand meanwhile.
async fn exchange(rig: &Rig, cell: &Cell, request: &Request, killed: &mut Vec<SocketAddr>) -> Seen {
    let mut socket = TcpStream::connect(rig.address).await.unwrap();
    socket.write_all(&request.bytes).await.unwrap();
    let mut first = Vec::new();
    let by_hand =
        matches!(cell.ill, Ill::ClientLeaves(_) | Ill::KilledUnread | Ill::Killed | Ill::KilledAfter);
    if by_hand && !at_that_moment(rig, cell, &request.id, (&mut socket, &mut first)).await {
        return Seen::Lie("the moment never came".into());
    }
    if matches!(cell.ill, Ill::ClientLeaves(_)) {
        return Seen::Left;
    }
    if by_hand {
        kill(rig, cell, &request.id, killed).await;
    }
    let answer = client::read_all(&mut socket, first).await;
    Seen::of(cell, &answer, &request.words, REFUSAL)
}

/// Waits for the moment at which something is done by hand; false if it does not come.
async fn at_that_moment(
    rig: &Rig,
    cell: &Cell,
    id: &str,
    (socket, first): (&mut TcpStream, &mut Vec<u8>),
) -> bool {
    let running = |leg| rig.at_work(leg).any(|engine| engine.ledger().running > 0);
    match cell.ill {
        _ if cell.begun() => read_some(socket, first).await,
        Ill::ClientLeaves(_) => comes(|| rig.read(cell.leg, 2, id) > 0).await,
        Ill::KilledUnread => comes(|| rig.read(Leg::Decode, 2, id) > 0).await,
        // The decoder computes only when it has fetched.
        Ill::KilledAfter => comes(|| running(Leg::Decode)).await,
        _ => comes(|| running(cell.leg)).await,
    }
}

/// Reads until the first event is here; false if there will be none.
async fn read_some(socket: &mut TcpStream, into: &mut Vec<u8>) -> bool {
    while !into.windows(6).any(|bytes| bytes == b"data: ") {
        let mut piece = vec![0; 4 << 10];
        let read = socket.read(&mut piece).await.unwrap_or(0);
        into.extend_from_slice(&piece[..read]);
        if read == 0 || into.starts_with(b"HTTP/1.1 5") {
            return false;
        }
    }
    true
}

/// Kills the engine that has the request, or both of its side.
async fn kill(rig: &Rig, cell: &Cell, id: &str, killed: &mut Vec<SocketAddr>) {
    let has = |engine: &&Engine| {
        let own = |seen: &pd_proxy::sim::ObservedRequest| seen.headers.iter().any(|(_, value)| value == id);
        cell.who == Who::All || engine.seen().iter().any(own)
    };
    let doomed: Vec<&Engine> = rig.side(cell.leg).iter().filter(has).collect();
    killed.extend(doomed.iter().map(|engine| engine.addr()));
    futures_util::future::join_all(doomed.iter().map(|engine| engine.kill())).await;
}
