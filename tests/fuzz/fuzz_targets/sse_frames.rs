//! Framing does not depend on how a stream was cut into chunks, and loses nothing.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::sse::{Framer, frames};

// The first byte sets the cap, the next seven the chunk lengths in turn, the rest is the stream.
fuzz_target!(|input: &[u8]| {
    let Some((&[cap, ref lens @ ..], text)) = input.split_first_chunk::<8>() else {
        return;
    };
    let cap = usize::from(cap);
    let mut whole = Framer::new(cap);
    let mut once = whole.push(Bytes::copy_from_slice(text)).unwrap_or_default().to_vec();
    let mut split = Framer::new(cap);
    let (mut out, mut rest) = (Vec::new(), text);
    for len in lens.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at(rest.len().min(usize::from(*len).max(1)));
        out.extend(split.push(Bytes::copy_from_slice(chunk)).unwrap_or_default());
        rest = after;
    }
    if text.len() <= cap {
        assert_eq!(out, once, "what is out so far");
        assert!(frames(&out).all(|frame| frame.is_complete()));
    }
    assert_eq!((split.frames(), split.ended()), (whole.frames(), whole.ended()));
    out.extend(split.finish().unwrap_or_default());
    once.extend(whole.finish().unwrap_or_default());
    assert_eq!(out, text);
    assert_eq!(once, text);
    assert_eq!(frames(text).flat_map(|frame| frame.whole()).copied().collect::<Vec<u8>>(), text);
});
