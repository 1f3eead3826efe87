//! vLLM's KV events: what real publishers sent, and what original code encodes.

mod decoders;
mod gateway;
mod publisher;
mod watch;

use std::path::Path;

use pd_proxy::pool::events::decode::{Event, EventBatch, Frames, Medium};
use serde_json::Value;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// A hash as files have it: a number, perhaps signed, or hex digits.
fn hash(value: &Value) -> Option<u64> {
    match value {
        Value::Null => None,
        Value::String(hex) => Some(u64::from_be_bytes(*bytes(hex).last_chunk().unwrap())),
        number => Some(number.as_u64().unwrap_or_else(|| number.as_i64().unwrap().cast_unsigned())),
    }
}

fn hashes(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|it| hash(it).unwrap()).collect()
}

fn same_event(found: &Event, expected: &Value) {
    match (found, expected["type"].as_str().unwrap()) {
        (Event::Stored(stored), "BlockStored") => {
            assert_eq!(stored.hashes, hashes(&expected["block_hashes"]));
            assert_eq!(stored.parent, hash(&expected["parent_block_hash"]));
            let tokens: Vec<u64> = stored.token_ids.iter().copied().map(u64::from).collect();
            let listed = expected["token_ids"].as_array().unwrap();
            assert_eq!(tokens, listed.iter().map(|it| it.as_u64().unwrap()).collect::<Vec<_>>());
            assert_eq!(u64::from(stored.block_tokens), expected["block_size"].as_u64().unwrap());
            assert_eq!(stored.medium, Medium::Gpu);
            assert_eq!(stored.group.map(u64::from), expected["group_idx"].as_u64());
            assert!(!stored.windowed);
        }
        (Event::Removed(removed), "BlockRemoved") => {
            assert_eq!(removed.hashes, hashes(&expected["block_hashes"]));
            assert_eq!(removed.group.map(u64::from), expected["group_idx"].as_u64());
        }
        (Event::Cleared, "AllBlocksCleared") => {}
        (found, expected) => panic!("{found:?} for {expected}"),
    }
}

#[test]
fn recorded_messages_decode_to_what_was_recorded() {
    let (mut messages, mut events) = (0, 0);
    for line in file("captures/vllm-kv-events-recorded.hex").lines().filter(|it| !it.starts_with('#')) {
        let (topic, rest) = line.split_once(" | ").unwrap();
        let (sequence, rest) = rest.split_once(" | ").unwrap();
        let (payload, expected) = rest.split_once(" | ").unwrap();
        let frames = [bytes(topic), bytes(sequence), bytes(payload)];
        let frames = Frames::of(&frames).unwrap();
        let expected: Value = serde_json::from_str(expected).unwrap();
        let batch = EventBatch::decode(frames.payload).unwrap();
        assert_eq!(Some(batch.ts), expected[0].as_f64());
        assert_eq!(batch.dp_rank, Some(0));
        let listed = expected[1].as_array().unwrap();
        assert_eq!(batch.events.len(), listed.len());
        batch.events.iter().zip(listed).for_each(|(found, expected)| same_event(found, expected));
        (messages, events) = (messages + 1, events + listed.len());
        for cut in 0..frames.payload.len() {
            assert!(EventBatch::decode(&frames.payload[..cut]).is_err(), "cut at {cut}");
        }
    }
    assert!(messages >= 15 && events > 40, "{messages} messages, {events} events");
}

#[test]
fn messages_of_the_publisher_itself() {
    let text = file("captures/vllm-kv-events-0.32.hex");
    let batches: Vec<EventBatch> = text
        .lines()
        .filter_map(|line| line.strip_prefix("SUB "))
        .enumerate()
        .map(|(index, line)| {
            let frames: Vec<Vec<u8>> = line.split(" | ").map(bytes).collect();
            let frames = Frames::of(&frames).unwrap();
            assert_eq!((frames.topic, frames.sequence), (&b"kv-events"[..], index as u64));
            EventBatch::decode(frames.payload).unwrap()
        })
        .collect();
    let events: Vec<&Event> = batches.iter().flat_map(|batch| &batch.events).collect();
    let [Event::Stored(first), Event::Stored(second), Event::Removed(third), Event::Removed(fourth), last] =
        events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(first.hashes, [0x1819_1a1b_1c1d_1e1f]);
    assert_eq!((&first.token_ids[..], first.block_tokens, first.parent), (&[1, 2, 3, 4][..], 4, None));
    assert_eq!((second.parent, second.group), (Some(7), None));
    assert_eq!((third.hashes[0], third.group), (0x0101_0101_0101_0101, None));
    assert_eq!((fourth.hashes[0], fourth.group), (5, Some(1)));
    assert_eq!(last, &Event::Cleared);
}

#[test]
fn batches_of_every_release() {
    let rows: Vec<Value> = serde_json::from_str(&file("vectors/vllm_kv_events_msgpack.json")).unwrap();
    assert_eq!(rows.len(), 32);
    for row in rows {
        let (name, params) = (row["name"].as_str().unwrap(), &row["params"]);
        let payload = bytes(row["expect"][0].as_str().unwrap());
        let batch = EventBatch::decode(&payload).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((batch.ts, batch.dp_rank), (1.5, Some(0)), "{name}");
        let [Event::Stored(stored), Event::Removed(removed), Event::Cleared] = &batch.events[..] else {
            panic!("{name}: {:?}", batch.events)
        };
        let expected = hashes(&params["hashes"]);
        assert_eq!((&stored.hashes, stored.parent), (&expected, hash(&params["parent"])), "{name}");
        assert_eq!(removed.hashes, expected[..1], "{name}");
        let tokens: Vec<u64> = stored.token_ids.iter().copied().map(u64::from).collect();
        let listed = row["token_ids"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap());
        assert_eq!(tokens, listed.collect::<Vec<_>>(), "{name}");
        assert_eq!(u64::from(stored.block_tokens), params["block_size"].as_u64().unwrap(), "{name}");
        assert_eq!(stored.lora_name.as_deref(), params["lora_name"].as_str(), "{name}");
        let medium = if params["medium"] == "CPU" { Medium::Cpu } else { Medium::Gpu };
        assert_eq!((stored.medium, removed.medium), (medium, Medium::Gpu), "{name}");
        for cut in 0..payload.len() {
            assert!(EventBatch::decode(&payload[..cut]).is_err(), "{name}: cut at {cut}");
        }
    }
}
