use super::*;

/// Puts a batch `[1.5, [event], 3]` around an event.
fn batch(event: &[u8]) -> Vec<u8> {
    [&[0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x91], event, &[3]].concat()
}

fn text(value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    [&[0xd9, length], value.as_bytes()].concat()
}

fn only(payload: &[u8]) -> Event {
    let mut batch = EventBatch::decode(payload).unwrap();
    assert_eq!(batch.events.len(), 1);
    batch.events.remove(0)
}

/// `["BlockStored", [7, -1], nil, [1, 300], 16, nil, "CPU"]`, as 0.10.2 cuts it.
fn positional() -> Vec<u8> {
    let tail = [0x92, 7, 0xff, 0xc0, 0x92, 1, 0xcd, 1, 44, 16, 0xc0];
    batch(&[&[0x97][..], &text("BlockStored"), &tail, &text("CPU")].concat())
}

/// The same as a map16, with fields that nobody knows and the type at the end.
fn named() -> Vec<u8> {
    let mut event = vec![0xde, 0, 10];
    let fields: [(&str, &[u8]); 9] = [
        ("ownership", &[0x81, 0xa1, b'x', 0x92, 0xc0, 0x90]),
        ("block_hashes", &[0xdd, 0, 0, 0, 2, 7, 0xff]),
        ("parent_block_hash", &[0xc0]),
        ("token_ids", &[0xdc, 0, 2, 1, 0xcd, 1, 44]),
        ("block_size", &[16]),
        ("lora_id", &[0xc0]),
        ("group_idx", &[0xcc, 2]),
        ("session_id", &[0xd6, 1, 0, 0, 0, 0]),
        ("medium", &[0xa3, b'C', b'P', b'U']),
    ];
    for (name, value) in fields {
        event.extend([text(name), value.to_vec()].concat());
    }
    event.extend([text("type"), text("BlockStored")].concat());
    batch(&event)
}

#[test]
fn arrays_and_maps_say_the_same() {
    let expected = Stored {
        hashes: vec![7, u64::MAX],
        token_ids: vec![1, 300],
        block_tokens: 16,
        medium: Medium::Cpu,
        ..Stored::default()
    };
    assert_eq!(only(&positional()), Event::Stored(expected.clone()));
    assert_eq!(only(&named()), Event::Stored(Stored { group: Some(2), ..expected }));
    let decoded = EventBatch::decode(&named()).unwrap();
    assert_eq!((decoded.ts, decoded.dp_rank), (1.5, Some(3)));
}

#[test]
fn cut_anywhere_is_an_error() {
    for whole in [positional(), named()] {
        for cut in 0..whole.len() {
            assert!(EventBatch::decode(&whole[..cut]).is_err(), "cut at {cut}");
        }
        let longer = [whole.as_slice(), &[0]].concat();
        assert_eq!(EventBatch::decode(&longer), Err(Malformed::Trailing));
    }
}

#[test]
fn inflated_lengths_are_errors_and_cost_nothing() {
    let huge = [0xdd, 0xff, 0xff, 0xff, 0xff];
    for payload in [
        [&[0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0][..], &huge].concat(),
        batch(&[&[0x92][..], &text("BlockRemoved"), &huge].concat()),
        huge.to_vec(),
    ] {
        assert!(EventBatch::decode(&payload).is_err());
    }
}

#[test]
fn many_small_events_and_hashes_are_refused() {
    let array = |count: usize| [&[0xdd][..], &u32::try_from(count).unwrap().to_be_bytes()].concat();
    let events = |count: usize, event: &[u8]| {
        let head = [&[0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0], &array(count)[..]].concat();
        EventBatch::decode(&[head, event.repeat(count), vec![0]].concat()).map(|batch| batch.events.len())
    };
    assert_eq!(events(MAX_EVENTS, &[0x91, 0xa0]), Ok(MAX_EVENTS));
    assert_eq!(events(MAX_EVENTS + 1, &[0x91, 0xa0]), Err(Malformed::TooMany("events")));
    let removed =
        |hashes: usize| [&[0x92][..], &text("BlockRemoved"), &array(hashes), &vec![1; hashes]].concat();
    assert_eq!(events(1, &removed(MAX_HASHES)), Ok(1));
    assert_eq!(events(1, &removed(MAX_HASHES + 1)), Err(Malformed::TooMany("hashes")));
    assert_eq!(events(4, &removed(MAX_HASHES / 4)), Ok(4));
    assert_eq!(events(5, &removed(MAX_HASHES / 4)), Err(Malformed::TooMany("hashes")));
}

#[test]
fn a_batch_may_be_a_map() {
    let payload = [
        &[0x83][..],
        &text("ts"),
        &[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0],
        &text("events"),
        &[0x92, 0x91],
        &text("AllBlocksCleared"),
        &[0x81],
        &text("type"),
        &text("Tomorrow"),
        &text("data_parallel_rank"),
        &[1],
    ]
    .concat();
    let decoded = EventBatch::decode(&payload).unwrap();
    assert_eq!(decoded, EventBatch { ts: 1.5, events: vec![Event::Cleared, Event::Other], dp_rank: Some(1) });
}

#[test]
fn pool_medium_is_recognised() {
    let event = [&[0x97][..], &text("BlockStored"), &[0x91, 9, 0xc0, 0xc0, 16, 0xc0], &text("cpu")].concat();
    let Event::Stored(stored) = only(&batch(&event)) else { panic!("another event") };
    assert_eq!((stored.medium, stored.token_ids.len()), (Medium::Pool, 0));
}

#[test]
fn windows_are_known_by_their_kind() {
    for (kind, windowed) in [("full_attention", false), ("sliding_window", true), ("mamba", true)] {
        let head = [&[0x9b][..], &text("BlockStored"), &[0x91, 9, 0xc0, 0xc0, 16, 0xc0, 0xc0, 0xc0, 0xc0, 1]];
        let event = [head.concat(), text(kind)].concat();
        let Event::Stored(stored) = only(&batch(&event)) else { panic!("another event") };
        assert_eq!((stored.windowed, stored.group), (windowed, Some(1)), "{kind}");
    }
}

#[test]
fn shapes_that_are_none() {
    for event in [
        [&[0x91][..], &text("BlockRemoved")].concat(),
        [&[0x92][..], &text("BlockRemoved"), &[0x91, 0xc0]].concat(),
        [&[0x92][..], &text("BlockRemoved"), &[0x91, 0xc4, 2, 1, 2]].concat(),
        vec![0x90],
        vec![0x80],
        vec![5],
    ] {
        assert!(EventBatch::decode(&batch(&event)).is_err(), "{event:x?}");
    }
    assert!(EventBatch::decode(&[0x91, 1]).is_err());
}

#[test]
fn frames_live_and_replayed() {
    let (sequence, end) = (258_u64.to_be_bytes(), END_OF_REPLAY.to_be_bytes());
    let live: [&[u8]; 3] = [b"kv", &sequence, b"x"];
    assert_eq!(Frames::of(&live), Ok(Frames { topic: b"kv", sequence: 258, payload: b"x" }));
    let replayed: [&[u8]; 4] = [b"", b"kv", &sequence, b"x"];
    assert_eq!(Frames::of(&replayed), Frames::of(&live));
    let older: [&[u8]; 3] = [b"", &sequence, b"x"];
    assert_eq!(Frames::of(&older).unwrap().topic, b"");
    let last: [&[u8]; 4] = [b"", b"", &end, b""];
    assert_eq!(Frames::of(&last).unwrap().sequence, END_OF_REPLAY);
    assert_eq!(Frames::of(&[&b"kv"[..], &sequence[..7], b"x"]), Err(BadMessage::Frames(3)));
    assert_eq!(Frames::of(&live[1..]), Err(BadMessage::Frames(2)));
    assert_eq!(Frames::of::<&[u8]>(&[]), Err(BadMessage::Frames(0)));
}
