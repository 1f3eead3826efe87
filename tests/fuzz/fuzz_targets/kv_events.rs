//! A batch of KV events takes any bytes, and holds no more than there were bytes for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pd_proxy::pool::events::decode::{Event, EventBatch};

fuzz_target!(|input: &[u8]| {
    if let Ok(batch) = EventBatch::decode(input) {
        let held: usize = batch
            .events
            .iter()
            .map(|event| match event {
                Event::Stored(stored) => 1 + stored.hashes.len() + stored.token_ids.len(),
                Event::Removed(removed) => 1 + removed.hashes.len(),
                Event::Cleared | Event::Other => 1,
            })
            .sum();
        assert!(held <= input.len());
        for cut in 0..input.len() {
            assert!(EventBatch::decode(&input[..cut]).is_err());
        }
    }
});
