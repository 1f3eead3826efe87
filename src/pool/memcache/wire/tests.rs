use proptest::prelude::*;

use super::*;
use crate::pool::store::Tier;

/// Body of an answer: head, count, entries.
fn body(message: i16, count: u64, entries: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(message.to_le_bytes());
    body.extend(0u32.to_le_bytes());
    body.extend(count.to_le_bytes());
    body.extend(entries);
    body
}

/// An object of 1.2 and later, its replicas being (rank, medium, state), in `replica_bytes` each.
fn object(replicas: &[(u32, u16, u16)], replica_bytes: usize) -> Vec<u8> {
    let count = replicas.len() as u8;
    let mut bytes = 4096u64.to_le_bytes().to_vec();
    bytes.extend([0, 0, count, u8::from(count > 0)]);
    bytes.extend(u64::from(count).to_le_bytes());
    for (rank, medium, state) in replicas {
        let start = bytes.len();
        bytes.extend(4096u64.to_le_bytes());
        bytes.extend((u64::from(*rank) << 40).to_le_bytes());
        bytes.extend(rank.to_le_bytes());
        bytes.extend(medium.to_le_bytes());
        bytes.extend(state.to_le_bytes());
        bytes.extend(9999u64.to_le_bytes());
        bytes.resize(start + replica_bytes, 0);
    }
    bytes
}

fn rank(rank: u32, tier: Tier) -> Rank {
    Rank { rank, tier }
}

#[test]
fn a_hello_names_no_rank() {
    assert_eq!(hello(), [0x1b, 0x0f, 1, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    assert_eq!(hello().get(8..), Some(u64::MAX.to_le_bytes().as_slice()));
}

#[test]
fn frames_are_taken_whole() {
    let whole = request(Op::Exist, 7, ["a", "bc"].into_iter()).unwrap();
    let mut buffer = BytesMut::new();
    for byte in &whole[..whole.len() - 1] {
        buffer.extend([*byte]);
        assert_eq!(take_frame(&mut buffer), Ok(None));
    }
    buffer.extend(&whole[whole.len() - 1..]);
    buffer.extend(&whole);
    let frame = take_frame(&mut buffer).unwrap().unwrap();
    assert_eq!((frame.op, frame.seq, &frame.body[..]), (9, 7, &whole[HEADER_BYTES..]));
    assert_eq!(take_frame(&mut buffer).unwrap(), Some(frame));
    assert_eq!(take_frame(&mut buffer), Ok(None));
}

#[test]
fn frames_that_are_none_end_it_at_their_header() {
    let mut other = BytesMut::from(&[1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]);
    assert_eq!(take_frame(&mut other), Err(WireError::Frame { kind: 1, bytes: 0 }));
    let mut long = BytesMut::from(&[0, 0, 9, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0][..]);
    assert_eq!(take_frame(&mut long), Err(WireError::Frame { kind: 0, bytes: u32::MAX as usize }));
}

#[test]
fn presence_is_result_zero_alone() {
    let results: Vec<u8> = [0i32, -3007, -3102, 1].iter().flat_map(|result| result.to_le_bytes()).collect();
    assert_eq!(exist(&body(5, 4, &results), 4), Ok(vec![true, false, false, false]));
    assert_eq!(exist(&body(5, 4, &results), 3), Err(WireError::Count { got: 4, asked: 3 }));
    assert_eq!(exist(&body(5, 0, &[]), 4), Err(WireError::Count { got: 0, asked: 4 }));
    assert_eq!(exist(&body(10, 4, &results), 4), Err(WireError::Message(10)));
    assert_eq!(exist(&body(5, 4, &results[1..]), 4), Err(WireError::Layout(31)));
}

#[test]
fn both_later_layouts_are_told_apart() {
    for bytes in [32, 40] {
        let mut all = object(&[(3, 1, 1), (0, 0, 1)], bytes);
        all.extend(object(&[], bytes));
        all.extend(object(&[(5, 2, 1)], bytes));
        let found = query(&body(10, 3, &all), Form::Flagged, 3).unwrap();
        assert_eq!(found[0].ranks.as_slice(), [rank(3, Tier::Memory), rank(0, Tier::Hbm)]);
        assert_eq!(found[1], Object::default());
        assert_eq!((found[2].present, found[2].ranks.as_slice()), (true, &[rank(5, Tier::Disk)][..]));
        for end in 0..all.len() {
            assert!(query(&body(10, 3, &all[..end]), Form::Flagged, 3).is_err(), "{bytes}: {end}");
        }
    }
}

#[test]
fn unreadable_replica_is_absent() {
    let writing = object(&[(3, 1, 0)], 40);
    assert_eq!(query(&body(10, 1, &writing), Form::Flagged, 1), Ok(vec![Object::default()]));
    let half = object(&[(3, 1, 0), (4, 1, 1)], 40);
    let found = query(&body(10, 1, &half), Form::Flagged, 1).unwrap();
    assert_eq!((found[0].present, found[0].ranks.as_slice()), (true, &[rank(4, Tier::Memory)][..]));
}

#[test]
fn a_medium_without_a_name_is_present_and_nowhere() {
    let found = query(&body(10, 1, &object(&[(3, 9, 1)], 40)), Form::Flagged, 1).unwrap();
    assert_eq!((found[0].present, found[0].ranks.len()), (true, 0));
}

#[test]
fn counts_beyond_the_bytes_are_refused() {
    let mut lying = object(&[(3, 1, 1)], 40);
    lying[12..20].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(query(&body(10, 1, &lying), Form::Flagged, 1), Err(WireError::Layout(76)));
    assert_eq!(query(&body(10, u64::MAX, &[]), Form::Flagged, usize::MAX), Err(WireError::Layout(16)));
    assert_eq!(query(&body(10, u64::MAX, &[]), Form::Plain, usize::MAX), Err(WireError::Layout(16)));
    assert_eq!(exist(&body(5, u64::MAX, &[]), usize::MAX), Err(WireError::Layout(16)));
    // A 1.1 object that claims more replicas than it has room for gives those there are.
    let mut many = vec![0; 64];
    (many[10], many[11]) = (255, 1);
    assert_eq!(query(&body(10, 1, &many), Form::Plain, 1).unwrap()[0].ranks.len(), 8);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        count in 0u64..6,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut whole: Vec<u8> = object(&[(3, 1, 1)], 40);
        whole.extend(object(&[], 40));
        whole.extend(object(&[(0, 0, 1), (1, 2, 0)], 40));
        for (at, value) in flips {
            let at = at.index(whole.len());
            whole[at] = value;
        }
        for body in [body(10, count, &bytes), body(5, count, &bytes), body(10, 3, &whole), bytes] {
            for asked in [count as usize, 3] {
                for form in [Form::Plain, Form::Flagged] {
                    prop_assert!(query(&body, form, asked).map_or(true, |found| found.len() == asked));
                }
                prop_assert!(exist(&body, asked).map_or(true, |found| found.len() == asked));
            }
            let mut buffer = BytesMut::from(&body[..]);
            while let Ok(Some(frame)) = take_frame(&mut buffer) {
                prop_assert!(frame.body.len() + HEADER_BYTES <= body.len());
            }
        }
    }
}
