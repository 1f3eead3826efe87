//! Pure pieces of a request's processing, each run as often as asked. They are there to count
//! instructions, which repeat where times do not (`tests/instructions.sh`).
//!
//! Called as `instructions PIECE TIMES`. Without arguments it prints the names of the pieces.

use std::hint::black_box;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::codec::sse::Framer;
use pd_proxy::dialect::{Api, Shape, usage};
use pd_proxy::kvhash::keys::{Ask, KeyBatch, PromptBlocks};
use pd_proxy::kvhash::{Algo, BlockContext};
use pd_proxy::prompt::{CacheLimits, PrefixCache};
use pd_proxy::route::{Done, Reported};
use pd_proxy::upstream::chunked::Chunked;
use pd_proxy::upstream::head;

#[path = "inputs/codec.rs"]
mod codec;
#[path = "inputs/hash.rs"]
mod hash;
#[path = "inputs/prompt.rs"]
mod prompt;
#[path = "inputs/route.rs"]
mod route;

/// Runs a piece this number of times; `None` if its input could not be made.
type Piece = fn(usize) -> Option<()>;

const PIECES: [(&str, Piece); 18] = [
    ("scan and splice, 200 B", |times| scan_and_splice(times, &codec::chat(200))),
    ("scan and splice, 8 KB", |times| scan_and_splice(times, &codec::chat(8 << 10))),
    ("scan and splice, 1 MB", |times| scan_and_splice(times, &codec::chat(1 << 20))),
    ("scan and splice, 128 KB of ids", |times| scan_and_splice(times, &codec::token_ids(128 << 10))),
    ("shape, 8 KB", shape),
    ("an event framed and looked at", event),
    ("an event taken out of its chunk", chunk),
    ("a request's head written", head_written),
    ("an answer's head read", head_read),
    ("hashes, 4 096 tokens in blocks of 16", |times| hashes(times, 16)),
    ("hashes, 4 096 tokens in blocks of 128", |times| hashes(times, 128)),
    ("keys, 1 000", keys),
    ("prompt, 8 KB, first turn", |times| turn(times, false)),
    ("prompt, 8 KB, again", |times| turn(times, true)),
    ("decision among 8", |times| decision(times, 8)),
    ("decision among 64", |times| decision(times, 64)),
    ("100 turns of 64 lanes, 500 wait", |times| turns(times, 64, 500)),
    ("100 turns of 1 024 lanes, 4 000 wait", |times| turns(times, 1_024, 4_000)),
];

fn scan_and_splice(times: usize, body: &Bytes) -> Option<()> {
    let edit = codec::prefill_edit();
    for _ in 0..times {
        let body = Object::scan(black_box(body.clone()), ScanLimits::default()).ok()?;
        black_box(body.splice(&edit));
    }
    Some(())
}

fn shape(times: usize) -> Option<()> {
    let body = Object::scan(codec::chat(8 << 10), ScanLimits::default()).ok()?;
    (0..times).for_each(|_| drop(black_box(Shape::read(Api::Chat, black_box(&body)))));
    Some(())
}

fn event(times: usize) -> Option<()> {
    let (event, mut framer) = (Bytes::from(codec::event()), Framer::new(1 << 20));
    for _ in 0..times {
        let out = framer.push(black_box(event.clone()))?;
        black_box(usage::may_carry_usage(&out));
    }
    Some(())
}

fn chunk(times: usize) -> Option<()> {
    let event = codec::event();
    let (wire, mut coding) = (format!("{:x}\r\n{event}\r\n", event.len()), Chunked::default());
    for _ in 0..times {
        coding.read(black_box(wire.as_bytes()), |data| drop(black_box(Bytes::copy_from_slice(data)))).ok()?;
    }
    Some(())
}

fn head_written(times: usize) -> Option<()> {
    let lines = [
        ("content-type", "application/json"),
        ("accept", "*/*"),
        ("user-agent", "OpenAI/Python 1.109.1"),
        ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
        ("x-request-id", "0190a5b4-7c1e-4d1f-9a53-5d1f3b8f6c11"),
    ];
    let lines =
        lines.map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers = HeaderMap::from_iter(lines);
    for _ in 0..times {
        black_box(head::write(&Method::POST, "/v1/completions", "10.0.0.1:8100", black_box(&headers), 8_192));
    }
    Some(())
}

fn head_read(times: usize) -> Option<()> {
    let text = Bytes::from_static(
        b"HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; \
          charset=utf-8\r\nx-request-id: 0190a5b4-7c1e-4d1f-9a53-5d1f3b8f6c11\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    for _ in 0..times {
        black_box(head::read(black_box(&text), &Method::POST).ok()??);
    }
    Some(())
}

fn hashes(times: usize, block_tokens: usize) -> Option<()> {
    let (tokens, hasher) = (hash::prompt(), hash::hasher(Algo::Sha256, block_tokens)?);
    for _ in 0..times {
        black_box(hasher.chain(black_box(tokens.get(..4_096)?), BlockContext::default()).last()?);
    }
    Some(())
}

fn keys(times: usize) -> Option<()> {
    let profile = hash::key_profile("mooncake-store-0.30", 1)?;
    let hashes: Vec<[u8; 32]> = (0..hash::KEYS).map(|n| [n.to_le_bytes()[0]; 32]).collect();
    let prompt = PromptBlocks::new(&hashes, hash::KEYS * profile.block_tokens());
    let mut batch = KeyBatch::default();
    for _ in 0..times {
        batch.clear();
        profile.keys_of_prompt(black_box(&prompt), Ask::Every, &mut batch).ok()?;
    }
    (batch.len() == hashes.len()).then_some(())
}

fn turn(times: usize, known: bool) -> Option<()> {
    let (template, tokenizer) = (prompt::template()?, prompt::tokenizer()?);
    let body = prompt::object(&prompt::messages(8 << 10, 0))?;
    let limits = if known { CacheLimits::default() } else { CacheLimits { min_text_bytes: 0, tokens: 1 } };
    let cache = PrefixCache::new(tokenizer.as_ref(), limits, 1);
    for _ in 0..times {
        let text = prompt::text(&template, black_box(&body))?;
        black_box(cache.encode(tokenizer.as_ref(), &text).ok()?);
    }
    Some(())
}

fn decision(times: usize, lanes: u64) -> Option<()> {
    let mut board = route::board(lanes);
    let mut now = 1e6;
    for n in 0..times as u64 {
        now += 10.0;
        board.arrive(now, route::job((1 << 31) + n, 200));
        for commit in board.pump(now, &(), &mut || n) {
            board.done(now + 1.0, commit.booking, Done::Computed(Reported::default()));
        }
    }
    Some(())
}

/// Ends of prefills, and arrivals, in front of a standing line: two decisions a turn.
fn turns(times: usize, lanes: u64, waiting: usize) -> Option<()> {
    let mut line = route::StandingLine::new(lanes, waiting);
    (0..100 * times).for_each(|_| line.step());
    Some(())
}

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let Some(name) = args.next() else {
        PIECES.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let (_, piece) = PIECES.iter().find(|(known, _)| *known == name).ok_or(format!("no piece `{name}`"))?;
    let times = args.next().and_then(|times| times.parse().ok()).ok_or("how many times?")?;
    piece(times).ok_or(format!("`{name}` could not be done"))
}
