//! Recordings between a client and real meta services: equal questions, understood answers.

use super::wire::{self, Form, HEADER_BYTES, Object, Op, Rank, WireError};
use crate::pool::store::Tier;
use bytes::BytesMut;

const KEYS: [&str; 3] = ["key-0", "key-1", "nope"];

/// A question and its answer.
#[derive(Debug, PartialEq)]
struct Exchange {
    question: Vec<u8>,
    answer: Vec<u8>,
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| byte.is_ascii_hexdigit()).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// The exchanges on the link without a rank, up to the next hello.
fn exchanges(capture: &str) -> Vec<Exchange> {
    let mut lines =
        capture.lines().skip_while(|line| *line != "> 1b0f010000000000ffffffffffffffff").peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(question) = line.strip_prefix("> ") {
            if question.starts_with("1b0f") && !found.is_empty() {
                break;
            }
            let answer = lines.peek().and_then(|line| line.strip_prefix("< ")).unwrap();
            found.push(Exchange { question: bytes(question), answer: bytes(answer) });
        }
    }
    found
}

/// Reads a recorded answer, after having cut it at every byte.
fn body(answer: &[u8]) -> Vec<u8> {
    for end in 0..answer.len() {
        assert_eq!(wire::take_frame(&mut BytesMut::from(&answer[..end])), Ok(None));
    }
    wire::take_frame(&mut BytesMut::from(answer)).unwrap().unwrap().body.to_vec()
}

fn on(rank: u32) -> Object {
    Object { present: true, ranks: [Rank { rank, tier: Tier::Memory }].into_iter().collect() }
}

fn check_query(answer: &[u8], form: Form, ranks: [u32; 2]) {
    let body = body(answer);
    let [one, two] = ranks.map(on);
    assert_eq!(wire::query(&body, form, 3), Ok(vec![one, two, Object::default()]));
    for end in 0..body.len() {
        assert!(wire::query(&body[..end], form, 3).is_err(), "cut at {end}");
    }
    let mut longer = body.clone();
    longer.push(0);
    assert!(wire::query(&longer, form, 3).is_err());
}

/// The exchange that begins a link.
fn greeting() -> Exchange {
    Exchange { question: wire::hello().to_vec(), answer: vec![0; wire::WELCOME_BYTES] }
}

fn check_exist(Exchange { question, answer }: &Exchange) {
    assert_eq!(wire::request(Op::Exist, 1, KEYS.into_iter()).as_ref(), Ok(question));
    let body = body(answer);
    assert_eq!(wire::exist(&body, 3), Ok(vec![true, true, false]));
    for end in 0..body.len() {
        assert!(wire::exist(&body[..end], 3).is_err(), "cut at {end}");
    }
}

#[test]
fn version_1_1_answers_the_plain_form_alone() {
    let found = exchanges(include_str!("../../../tests/captures/memcache-1.1.0.hex"));
    let [hello, exist, flagged, plain] = found.as_slice() else { panic!("{} exchanges", found.len()) };
    assert_eq!(*hello, greeting());
    check_exist(exist);

    assert_eq!(wire::request(Op::Query(Form::Flagged), 2, KEYS.into_iter()).as_ref(), Ok(&flagged.question));
    let empty = wire::query(&body(&flagged.answer), Form::Flagged, 3);
    assert_eq!(empty, Err(WireError::Count { got: 0, asked: 3 }));

    assert_eq!(wire::request(Op::Query(Form::Plain), 3, KEYS.into_iter()).as_ref(), Ok(&plain.question));
    check_query(&plain.answer, Form::Plain, [0, 1]);
}

#[test]
fn versions_1_2_and_1_3_answer_the_flagged_form_in_two_layouts() {
    let later = [
        include_str!("../../../tests/captures/memcache-1.2.1.hex"),
        include_str!("../../../tests/captures/memcache-1.3.0.hex"),
    ];
    for capture in later {
        let found = exchanges(capture);
        let [hello, exist, flagged, refreshing] = found.as_slice() else {
            panic!("{} exchanges", found.len())
        };
        assert_eq!(*hello, greeting());
        check_exist(exist);

        let ours = wire::request(Op::Query(Form::Flagged), 2, KEYS.into_iter()).unwrap();
        assert_eq!(ours, flagged.question);
        check_query(&flagged.answer, Form::Flagged, [0, 3]);

        // The recorded client also asked with flag 1, which renews leases; we never do.
        assert_ne!(ours[HEADER_BYTES..], refreshing.question[HEADER_BYTES..]);
        check_query(&refreshing.answer, Form::Flagged, [0, 3]);
    }
}
