//! Tables, and independence of chunking.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const CAP_BYTES: usize = 1024;

fn push(framer: &mut Framer, chunk: &'static str) -> Option<Bytes> {
    framer.push(Bytes::from_static(chunk.as_bytes()))
}

/// Feeds chunks; each comes with what must come out of it.
#[track_caller]
fn flows(cap_bytes: usize, steps: &[(&'static str, &str)], rest: &str) -> Framer {
    let mut framer = Framer::new(cap_bytes);
    for (chunk, expect) in steps {
        assert_eq!(push(&mut framer, chunk).unwrap_or_default(), *expect, "{chunk:?}");
    }
    assert_eq!(framer.finish().unwrap_or_default(), rest);
    framer
}

#[test]
fn whole_frames_pass_and_tails_wait() {
    flows(
        CAP_BYTES,
        &[("data: 1\n\n", "data: 1\n\n"), ("data: 2\n\ndata: 3\n\n", "data: 2\n\ndata: 3\n\n")],
        "",
    );
    flows(
        CAP_BYTES,
        &[("data: 1\n\nda", "data: 1\n\n"), ("ta: 2", ""), ("", ""), ("\n\n:", "data: 2\n\n")],
        ":",
    );
    flows(CAP_BYTES, &[("data: 1\n", ""), ("\n", "data: 1\n\n"), ("\n", "\n")], "");
    flows(CAP_BYTES, &[("data: 1\ndata: 2\n\nx\n", "data: 1\ndata: 2\n\n")], "x\n");
    flows(CAP_BYTES, &[("", "")], "");
}

#[test]
fn every_line_end_is_known() {
    flows(CAP_BYTES, &[("a\r\n\r\nb\n\r\nc\r\n\nd\r\re", "a\r\n\r\nb\n\r\nc\r\n\nd\r\r")], "e");
    flows(CAP_BYTES, &[("a\r", ""), ("\n", ""), ("\r", "a\r\n\r"), ("\n", "\n"), ("b\n\n", "b\n\n")], "");
    flows(CAP_BYTES, &[("a\r\n", ""), ("\r\n", "a\r\n\r\n")], "");
    flows(
        CAP_BYTES,
        &[("a\r", ""), ("\r", "a\r\r"), ("b\r", ""), ("\r", "b\r\r"), ("\nc\n\n", "\nc\n\n")],
        "",
    );
    flows(CAP_BYTES, &[("a\r\nb\r\n", "")], "a\r\nb\r\n");
    flows(CAP_BYTES, &[("a\n", ""), ("b\n", ""), ("\n", "a\nb\n\n")], "");
}

#[test]
fn only_frames_with_data_count() {
    #[track_caller]
    fn counts(text: &'static str, frames: u64, ended: bool) {
        let mut framer = Framer::new(CAP_BYTES);
        push(&mut framer, text);
        assert_eq!((framer.frames(), framer.ended()), (frames, ended), "{text:?}");
    }
    counts("data: {}\n\n", 1, false);
    counts(": ping\n\nevent: x\n\n\n\nid: 1\n\n", 0, false);
    counts("event: x\ndata:1\n\n: c\ndata\n\n", 2, false);
    counts("database: 1\n\n data: 1\n\n", 0, false);
    counts("data: [DONE]\n\n", 1, true);
    counts("data:[DONE]\r\n\r\n", 1, true);
    counts("data: [DONE] \n\n: bye\n\n", 1, true);
    counts("data: [DONE]\n", 0, false);
    counts("data: [DONE]\n\ndata: {}\n\n", 2, false);
    counts("data: {}\n\ndata: \"[DONE]\"\n\n", 2, false);
    counts("data: [DONE]\ndata: x\n\n", 1, false);
    counts("event: done\ndata: [DONE]\n\n", 1, true);
}

#[test]
fn a_chunk_of_whole_frames_is_not_copied() {
    let mut framer = Framer::new(CAP_BYTES);
    let chunk = Bytes::from(b"data: 1\n\ndata: 2\n\n".to_vec());
    let out = framer.push(chunk.clone()).unwrap();
    assert_eq!((out.as_ptr(), out.len()), (chunk.as_ptr(), chunk.len()));
    let chunk = Bytes::from(b"data: 3\n\ndata: ".to_vec());
    let out = framer.push(chunk.clone()).unwrap();
    assert_eq!((out.as_ptr(), &out[..]), (chunk.as_ptr(), &b"data: 3\n\n"[..]));
}

#[test]
fn beyond_the_cap_bytes_flow_raw_until_the_frame_ends() {
    let steps = [
        ("a\n\n12345678", "a\n\n"),
        ("9", "123456789"),
        ("0\n", "0\n"),
        ("x", "x"),
        ("y\n\nda", "y\n\n"),
        ("t", ""),
    ];
    assert_eq!(flows(8, &steps, "dat").frames(), 1);
    let framer = flows(8, &[("data: [DONE]\n\n", "data: [DONE]\n\n")], "");
    assert_eq!((framer.frames(), framer.ended()), (1, false));
    let framer = flows(0, &[("d", "d"), ("\n", "\n"), ("\n", "\n")], "");
    assert_eq!(framer.frames(), 1);
}

#[test]
fn held_bytes_stay_within_the_cap() {
    let mut framer = Framer::new(100);
    for _ in 0..1000 {
        push(&mut framer, "0123456789");
        assert!(framer.held.len() <= 100);
    }
}

#[test]
fn a_frame_shows_its_fields() {
    let text = b"event: a\ndata: 1\nevent:b\r\ndata:  2\rdata\n\n:c\n\ndata: {}\n\ndata: cut";
    let all: Vec<_> = frames(text).collect();
    assert_eq!(all.len(), 4);
    assert_eq!((&*all[0].data(), all[0].event()), (&b"1\n 2\n"[..], Some(&b"b"[..])));
    assert_eq!((&*all[1].data(), all[1].event(), all[1].has_data()), (&b""[..], None, false));
    assert!(matches!(all[2].data(), Cow::Borrowed(b"{}")));
    assert_eq!(all.iter().map(Frame::data_range).collect::<Vec<_>>(), [None, None, Some(6..8), Some(6..9)]);
    assert_eq!(&text[all[2].range()], b"data: {}\n\n");
    assert_eq!((all[2].whole(), all[2].is_complete()), (&b"data: {}\n\n"[..], true));
    assert_eq!((&*all[3].data(), all[3].is_complete()), (&b"cut"[..], false));
}

/// Streams made of what matters: line ends, fields, the end mark.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "\n",
        "\n",
        "\r",
        "\r\n",
        "data",
        "data: x",
        ":",
        " ",
        "[DONE]",
        "data: [DONE]",
        "event: e",
    ]);
    vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
}

/// Output after all of `text`, cut into chunks of the given lengths in turn.
fn run(text: &[u8], lens: &[usize], cap_bytes: usize) -> (Vec<u8>, Framer) {
    let mut framer = Framer::new(cap_bytes);
    let (mut out, mut rest) = (Vec::new(), text);
    for len in lens.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at(rest.len().min(*len));
        out.extend(framer.push(Bytes::copy_from_slice(chunk)).unwrap_or_default());
        rest = after;
    }
    (out, framer)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunking_does_not_matter(text in stream(), lens in vec(1usize..12, 1..8), upto in any::<prop::sample::Index>()) {
        let text = &text[..upto.index(text.len() + 1)];
        let (once, mut whole) = run(text, &[usize::MAX], CAP_BYTES);
        let (out, mut split) = run(text, &lens, CAP_BYTES);
        prop_assert_eq!(&out, &once, "out so far");
        prop_assert_eq!((split.frames(), split.ended()), (whole.frames(), whole.ended()));
        let rest = split.finish();
        prop_assert_eq!(&rest, &whole.finish());
        prop_assert_eq!([&out[..], &rest.unwrap_or_default()].concat(), text);
        prop_assert!(frames(&out).all(|frame| frame.is_complete()));
        prop_assert_eq!(frames(&out).filter(Frame::has_data).count() as u64, split.frames());
        for frame in frames(&out) {
            let one = frame.data_range().map(|range| Cow::Borrowed(&frame.whole()[range]));
            let data = frame.has_data().then(|| frame.data()).filter(|data| matches!(data, Cow::Borrowed(_)));
            prop_assert_eq!(one, data);
        }
    }

    #[test]
    fn beyond_the_cap_nothing_is_lost_or_miscounted(text in stream(), lens in vec(1usize..12, 1..8), cap in 0usize..20) {
        let (mut once, mut whole) = run(&text, &[usize::MAX], cap);
        let (mut out, mut split) = run(&text, &lens, cap);
        prop_assert!(split.held.len() <= cap);
        prop_assert_eq!((split.frames(), split.ended()), (whole.frames(), whole.ended()));
        out.extend(split.finish().unwrap_or_default());
        once.extend(whole.finish().unwrap_or_default());
        prop_assert_eq!(&out, &text);
        prop_assert_eq!(&once, &text);
    }
}
