//! Splicing versus an edit of the tree that `serde_json` builds: same members, whatever the text.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::json::{Edit, Object, ScanLimits};
use serde_json::{Map, Value, json};

fuzz_target!(|text: &[u8]| {
    let ours = Object::scan(Bytes::copy_from_slice(text), ScanLimits::default());
    let edit = Edit::new().drop("b").drop_prefix("bootstrap_").set("a", Bytes::from_static(b"[1]"));
    let spliced = ours.as_ref().ok().map(|object| object.splice(&edit).to_bytes());
    let Ok(mut dom) = serde_json::from_slice::<Map<String, Value>>(text) else {
        return;
    };
    let object = ours.expect("what is an object elsewhere is one here");
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
