//! Compares splicing with an edit of the tree that `serde_json` builds: same members, whatever the
//! text. The value that is caught of a text in pieces does not depend on the pieces, and is one of
//! the same member.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::json::{Catch, Edit, Object, ScanLimits};
use serde_json::{Map, Value, json};

/// Catches the member `a` of a text in pieces of `size` bytes.
fn caught(text: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut catch = Catch::new("a", 1 << 10);
    text.chunks(size).for_each(|piece| catch.push(piece));
    catch.caught().map(<[u8]>::to_vec)
}

fuzz_target!(|text: &[u8]| {
    let passed_by = caught(text, text.len().max(1));
    for size in [1, 2, 3, 7] {
        assert_eq!(caught(text, size), passed_by);
    }
    let ours = Object::scan(Bytes::copy_from_slice(text), ScanLimits::default());
    let edit = Edit::dropping(&["b"], &["bootstrap_"]).set("a", Bytes::from_static(b"[1]"));
    let spliced = ours.as_ref().ok().map(|object| object.splice(&edit).to_bytes());
    let Ok(mut dom) = serde_json::from_slice::<Map<String, Value>>(text) else {
        return;
    };
    let object = ours.expect("what is an object elsewhere is one here");
    if let Some(value) = passed_by {
        assert!(dom.contains_key("a"));
        serde_json::from_slice::<Value>(&value).expect("a value");
    }
    for (key, expect) in &dom {
        let value = object.get(key).expect("the same keys");
        assert_eq!(&serde_json::from_slice::<Value>(value.raw()).expect("a value"), expect);
        assert_eq!(value.as_str().as_deref(), expect.as_str());
        assert_eq!(value.array_len_capped(usize::MAX), expect.as_array().map(Vec::len));
        assert_eq!(value.object().is_ok(), expect.is_object());
    }
    assert!(object.members().all(|(key, _)| dom.contains_key(&*key)));
    dom.retain(|key, _| key != "a" && key != "b" && !key.starts_with("bootstrap_"));
    dom.insert("a".into(), json!([1]));
    let spliced = spliced.expect("it was scanned");
    assert_eq!(serde_json::from_slice::<Map<String, Value>>(&spliced).expect("an object"), dom);
});
