//! Reads any bytes as a lookup server's answer: frames, then a count. No count exceeds the blocks
//! of the question.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pd_proxy::pool::ems::{frame, zmtp};
use pd_proxy::pool::zmtp::check_greeting;

const BLOCKS: usize = 300;

fuzz_target!(|input: &[u8]| {
    if let Some(greeting) = input.first_chunk() {
        let _ = check_greeting(greeting);
    }
    let _ = zmtp::check_ready(input);
    if let Ok(Some(body)) = zmtp::answer(input) {
        assert_eq!(body.end, input.len(), "nothing follows an answer");
        assert!(body.len() <= zmtp::MAX_FRAME_BYTES);
        for cut in 0..input.len() {
            assert_eq!(zmtp::answer(&input[..cut]), Ok(None), "a part of an answer is none");
        }
        if let Ok(found) = frame::count(&input[body], BLOCKS) {
            assert!(found <= BLOCKS);
        }
    }
    if let Ok(found) = frame::count(input, BLOCKS) {
        assert!(found <= BLOCKS);
    }
});
