//! MemCache's answers may be any bytes; what is read has as many entries as keys were asked for.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use pd_proxy::pool::memcache::wire::{Form, exist, query, take_frame};

fuzz_target!(|input: &[u8]| {
    let mut buffer = BytesMut::from(input);
    while let Ok(Some(frame)) = take_frame(&mut buffer) {
        assert!(frame.body.len() <= input.len());
    }
    let Some((asked, body)) = input.split_first() else { return };
    let asked = usize::from(*asked);
    if let Ok(found) = exist(body, asked) {
        assert_eq!(found.len(), asked);
    }
    for form in [Form::Plain, Form::Flagged] {
        if let Ok(found) = query(body, form, asked) {
            assert_eq!(found.len(), asked);
            assert!(found.iter().all(|object| object.present || object.ranks.is_empty()));
        }
    }
});
