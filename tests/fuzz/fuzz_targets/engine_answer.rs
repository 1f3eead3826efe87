//! Reads an engine's answer, whose meaning does not depend on how it was cut into pieces.
#![no_main]

use bytes::Bytes;
use http::Method;
use libfuzzer_sys::fuzz_target;
use pd_proxy::upstream::chunked::{BadChunk, Chunked};
use pd_proxy::upstream::head::{self, Framing};

/// Returns the body, whether it ended, and the number of bytes of `wire` that it took.
fn body(wire: &[u8], lens: &[u8]) -> Result<(Vec<u8>, bool, usize), BadChunk> {
    let (mut chunked, mut data, mut at) = (Chunked::default(), Vec::new(), 0);
    let mut lens = lens.iter().cycle();
    while at < wire.len() && !chunked.ended() {
        let len = lens.next().map_or(wire.len(), |len| usize::from(*len).max(1));
        let piece = &wire[at..(at + len).min(wire.len())];
        at += chunked.read(piece, |piece| data.extend_from_slice(piece))?;
    }
    Ok((data, chunked.ended(), at))
}

// The first byte sets where the head is cut, the next three set the lengths of the body's pieces.
// The rest is the engine's answer.
fuzz_target!(|input: &[u8]| {
    let Some((&[cut, ref lens @ ..], wire)) = input.split_first_chunk::<4>() else {
        return;
    };
    let wire = Bytes::copy_from_slice(wire);
    let part = wire.slice(..wire.len().min(usize::from(cut) * 4));
    let whole = head::read(&wire, &Method::POST);
    if let Ok(Some((early, at))) = head::read(&part, &Method::POST) {
        let (late, whole_at) = whole.as_ref().unwrap().as_ref().unwrap();
        assert_eq!((early.status, early.framing, at), (late.status, late.framing, *whole_at));
        assert_eq!(early.headers, late.headers);
    }
    let rest = match &whole {
        Ok(Some((head, at))) => {
            assert!(!head.status.is_informational() && (head.framing != Framing::Close || !head.keep));
            wire.slice(*at..)
        }
        _ => wire.clone(),
    };
    assert_eq!(body(&rest, lens), body(&rest, &[]));
});
