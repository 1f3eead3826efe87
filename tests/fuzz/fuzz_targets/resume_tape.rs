//! Follows the stream of any decoder. That never fails, sends whole events only, and asks the next
//! decoder by a body that is JSON.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::codec::sse::{Framer, frames};
use pd_proxy::dialect::Api;
use pd_proxy::dialect::resume::{Next, Plan, Transcript};

// The first byte sets API and wishes; the rest are the streams of several decoders, separated by 0
// bytes.
fuzz_target!(|input: &[u8]| {
    let Some((&flags, streams)) = input.split_first() else {
        return;
    };
    let body = serde_json::json!({
        "stream": true, "max_tokens": flags, "return_token_ids": flags & 1 > 0,
        "stream_options": {"include_usage": flags & 2 > 0},
    });
    let scan = |text: Vec<u8>| Object::scan(Bytes::from(text), ScanLimits::default());
    let body = scan(body.to_string().into_bytes()).expect("it is JSON");
    let api = if flags & 4 > 0 { Api::Chat } else { Api::Completions };
    let mut tape = Transcript::new(Plan::of(api, &body, false).expect("a streamed request"));
    for stream in streams.split(|byte| *byte == 0) {
        let mut framer = Framer::new(1 << 16);
        let whole = framer.push(Bytes::copy_from_slice(stream)).unwrap_or_default();
        let out = tape.pass(&whole);
        assert!(frames(&out).all(|frame| frame.is_complete()), "{out:?}");
        match tape.next(&body, Some(3)) {
            Ok(Next::Continue(next, tokens, proof)) => {
                let next = scan(next.to_vec()).expect("it is JSON");
                let prompt = next.get("prompt").and_then(|prompt| prompt.array_len_capped(usize::MAX));
                assert_eq!(prompt.map(|len| len as u64), Some(tokens));
                if let Some(proof) = proof {
                    assert!(!proof.ids.is_empty() && proof.ids.len() as u64 <= tokens, "{proof:?}");
                    assert!(!proof.holds(&format!("{}, and more", proof.text)), "{proof:?}");
                }
            }
            Ok(Next::End(rest)) => assert!(rest.ends_with(b"data: [DONE]\n\n")),
            Ok(Next::Again) | Err(_) => {}
        }
    }
});
