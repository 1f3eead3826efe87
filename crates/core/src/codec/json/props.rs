//! Against an independent reader: `serde_json`, whose maps also let the last duplicate win.

use std::fmt::Write as _;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value as Dom, json};

use super::*;

/// One member as spelled: every part is verbatim text.
#[derive(Debug, Clone)]
struct Spelled {
    key: &'static str,
    text: String,
}

const KEYS: [&str; 9] = [
    "a",
    "max_tokens",
    "max_tokens ",
    "stream",
    "bootstrap_host",
    "bootstrap_",
    "bootstrap",
    "é😀\"\\\n",
    "",
];

fn edit() -> Edit {
    let new = Edit::dropping(&["stream"], &["bootstrap_"]).drop("é😀\"\\\n");
    new.set("max_tokens", Bytes::from_static(b"1")).set("kv", Bytes::from_static(b"{\"x\": [\"]\"]}"))
}

fn edited(mut dom: Map<String, Dom>) -> Dom {
    dom.retain(|key, _| !removed(key));
    dom.insert("max_tokens".into(), json!(1));
    dom.insert("kv".into(), json!({"x": ["]"]}));
    Dom::Object(dom)
}

fn removed(key: &str) -> bool {
    matches!(key, "stream" | "max_tokens" | "kv" | "é😀\"\\\n") || key.starts_with("bootstrap_")
}

fn space() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,3}"
}

fn value() -> impl Strategy<Value = String> {
    let text = prop_oneof![any::<String>(), "[\\[\\]{}\",:\\\\ é]{0,80}"];
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Dom::from),
        any::<i64>().prop_map(Dom::from),
        (-1e9..1e9f64).prop_map(Dom::from),
        text.prop_map(Dom::from),
        vec(any::<u16>(), 0..60).prop_map(Dom::from),
    ];
    let tree = leaf.prop_recursive(4, 24, 5, |inner| {
        let map = vec((any::<String>(), inner.clone()), 0..5)
            .prop_map(|pairs| Dom::Object(pairs.into_iter().collect()));
        prop_oneof![vec(inner, 0..5).prop_map(Dom::from), map]
    });
    (tree, any::<bool>()).prop_map(|(tree, pretty)| {
        let written = if pretty { serde_json::to_string_pretty(&tree) } else { serde_json::to_string(&tree) };
        written.unwrap()
    })
}

/// A key as a JSON string in which each UTF-16 unit for which `escape` says so is written `\uXXXX`.
fn spell(key: &str, escape: &[bool]) -> String {
    let mut out = String::from("\"");
    for (index, char) in key.chars().enumerate() {
        if escape[index % escape.len()] || matches!(char, '"' | '\\' | '\0'..' ') {
            let mut units = [0; 2];
            char.encode_utf16(&mut units).iter().for_each(|unit| write!(out, "\\u{unit:04x}").unwrap());
        } else {
            out.push(char);
        }
    }
    out + "\""
}

fn member() -> impl Strategy<Value = Spelled> {
    let escape = prop_oneof![Just(vec![false]), vec(any::<bool>(), 1..9)];
    (prop::sample::select(&KEYS[..]), escape, space(), space(), value()).prop_map(
        |(key, escape, before, after, value)| Spelled {
            key,
            text: format!("{}{before}:{after}{value}", spell(key, &escape)),
        },
    )
}

prop_compose! {
    fn object()(
        members in vec(member(), 0..8),
        spaces in vec((space(), space()), 8),
        ends in (space(), space(), space()),
    ) -> (Vec<Spelled>, String) {
        let mut text = format!("{}{{{}", ends.0, ends.1);
        for (index, member) in members.iter().enumerate() {
            if index > 0 {
                write!(text, "{},{}", spaces[index].0, spaces[index].1).unwrap();
            }
            text.push_str(&member.text);
        }
        (members, text + &ends.2 + "}" + &ends.0)
    }
}

fn scan(text: &[u8]) -> Result<Object, JsonError> {
    Object::scan(Bytes::copy_from_slice(text), ScanLimits::default())
}

/// The value that is caught from a text that comes in pieces of these sizes, over and over.
fn caught(text: &[u8], sizes: &[usize]) -> Option<Vec<u8>> {
    let (mut catch, mut rest) = (Catch::new("stream", 1 << 20), text);
    for size in sizes.iter().cycle() {
        let (piece, more) = rest.split_at(rest.len().min(*size));
        catch.push(piece);
        rest = more;
        if rest.is_empty() {
            break;
        }
    }
    catch.caught().map(<[u8]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splice_equals_an_edit_of_the_tree((members, text) in object()) {
        let dom: Map<String, Dom> = serde_json::from_str(&text).unwrap();
        let object = scan(text.as_bytes()).unwrap();
        let parts = object.splice(&edit());
        let after = parts.to_bytes();
        prop_assert_eq!(parts.len_bytes(), after.len());
        prop_assert_eq!(serde_json::from_slice::<Dom>(&after).unwrap(), edited(dom));

        // Members that stay keep their bytes and their order; those that are set come last, once.
        let found = scan(&after).unwrap();
        let found: Vec<_> = found.members.iter().map(|at| &after[at.key.start()..at.value.end()]).collect();
        let kept = members.iter().filter(|member| !removed(member.key)).map(|member| member.text.as_bytes());
        let set: [&[u8]; 2] = [b"\"max_tokens\":1", b"\"kv\":{\"x\": [\"]\"]}"];
        prop_assert_eq!(found, kept.chain(set).collect::<Vec<_>>());
    }

    #[test]
    fn values_equal_those_of_the_tree((_, text) in object()) {
        let dom: Map<String, Dom> = serde_json::from_str(&text).unwrap();
        let object = scan(text.as_bytes()).unwrap();
        for (key, expect) in &dom {
            let value = object.get(key).unwrap();
            prop_assert_eq!(&serde_json::from_slice::<Dom>(value.raw()).unwrap(), expect);
            prop_assert_eq!(value.as_str(), expect.as_str().map(Cow::Borrowed));
            prop_assert_eq!(value.as_bool(), expect.as_bool());
            prop_assert_eq!(value.as_u64(), expect.as_u64());
            prop_assert_eq!(value.array_len_capped(usize::MAX), expect.as_array().map(Vec::len));
            prop_assert_eq!(value.object().is_ok(), expect.is_object());
        }
    }

    #[test]
    fn a_member_is_caught_in_whatever_pieces((members, text) in object(), sizes in vec(1..40usize, 1..6)) {
        let mut plainly = members.iter().filter_map(|member| member.text.strip_prefix("\"stream\""));
        let last = plainly.next_back().map(|rest| rest.trim_start().trim_start_matches(':'));
        let expect = last.map(|value| serde_json::from_str::<Dom>(value).unwrap());
        let found = caught(text.as_bytes(), &sizes);
        prop_assert_eq!(found.map(|value| serde_json::from_slice::<Dom>(&value).unwrap()), expect);
    }

    #[test]
    fn any_bytes_are_survived(text in vec(any::<u8>(), 0..200), sizes in vec(1..40usize, 1..6)) {
        agrees(&text)?;
        prop_assert_eq!(caught(&text, &sizes), caught(&text, &[text.len().max(1)]));
    }

    #[test]
    fn any_marks_are_survived(text in r#"\{("[a\\"]{0,2}"|[{}\[\]",:\\u0 1e.-]|true|"a":){0,14}\}?"#) {
        agrees(text.as_bytes())?;
    }

    #[test]
    fn damaged_objects_are_survived((_, text) in object(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = text.into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        agrees(&text)?;
    }

    #[test]
    fn quoting_and_decoding_are_inverse(text in any::<String>()) {
        let quoted = quote(&text);
        prop_assert_eq!(&serde_json::from_slice::<String>(&quoted).unwrap(), &text);
        let object = scan(&[b"{\"a\":", &quoted[..], b"}"].concat()).unwrap();
        prop_assert_eq!(object.get("a").unwrap().as_str().unwrap(), text);
    }
}

/// Nothing panics, and what the other reader takes for an object has the same keys here.
fn agrees(text: &[u8]) -> Result<(), TestCaseError> {
    let ours = scan(text);
    if let Ok(object) = &ours {
        let _ = object.splice(&edit()).to_bytes();
    }
    if let Ok(dom) = serde_json::from_slice::<Map<String, Dom>>(text) {
        let object = ours.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(dom.keys().all(|key| object.contains(key)));
        prop_assert!(object.members().all(|(key, _)| dom.contains_key(&*key)));
        prop_assert_eq!(
            serde_json::from_slice::<Dom>(&object.splice(&edit()).to_bytes()).unwrap(),
            edited(dom)
        );
    }
    Ok(())
}
