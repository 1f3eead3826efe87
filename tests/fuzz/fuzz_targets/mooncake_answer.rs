//! Answers of a Mooncake master are read whatever they are; what is read has one entry per key.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pd_proxy::pool::mooncake::wire::{ANSWER_HEAD_BYTES, AnswerHead, read_answer, read_service, rpc_error};

fuzz_target!(|input: &[u8]| {
    let Some((asked, body)) = input.split_first() else { return };
    let asked = usize::from(*asked);
    if let Ok(answer) = read_answer(body, asked) {
        assert_eq!(answer.len(), asked);
        assert!(answer.iter().all(|placement| placement.present || placement.places.is_empty()));
    }
    let _ = read_service(body);
    let _ = rpc_error(1, body);
    if let Some(head) = body.first_chunk::<ANSWER_HEAD_BYTES>() {
        let _ = AnswerHead::read(head);
    }
});
