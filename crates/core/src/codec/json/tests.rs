//! Tables: what is read, what is refused, what a splice leaves.

use super::*;

fn scan(text: &str) -> Object {
    Object::scan(Bytes::copy_from_slice(text.as_bytes()), ScanLimits::default()).unwrap()
}

fn refusal(text: impl AsRef<[u8]>) -> JsonError {
    Object::scan(Bytes::copy_from_slice(text.as_ref()), ScanLimits::default()).unwrap_err()
}

#[track_caller]
fn refuses(text: impl AsRef<[u8]>, kind: JsonErrorKind, at: usize) {
    assert_eq!(refusal(text), JsonError { kind, at });
}

#[track_caller]
fn raw(text: &str, key: &str, expect: Option<&str>) {
    assert_eq!(scan(text).get(key).map(|value| value.raw()), expect.map(str::as_bytes), "{text}");
}

#[track_caller]
fn spliced(text: &str, edit: &Edit, expect: &str) {
    let parts = scan(text).splice(edit);
    assert_eq!(parts.to_bytes(), expect, "{text}");
    assert_eq!(parts.len_bytes(), expect.len());
    assert_eq!(parts.into_iter().collect::<Vec<_>>().concat(), expect.as_bytes());
}

#[test]
fn values_are_found_by_key() {
    raw(r#"{"a":1}"#, "a", Some("1"));
    raw(r#"{"a":1}"#, "b", None);
    raw(" \t\r\n{ \"a\"\n:\t[ 1, {\"a\":2} ]\r} \n", "a", Some("[ 1, {\"a\":2} ]"));
    raw(r#"{"a":{"b":1},"b":2}"#, "b", Some("2"));
    raw(r#"{"a":"} \" ] \\","b":"{["}"#, "b", Some(r#""{[""#));
    raw(r#"{"a":[[],[[]],{}],"":null}"#, "", Some("null"));
    raw(r#"{"é":"ü"}"#, "é", Some("\"ü\""));
    for scalar in ["0", "-0", "12.5e-3", "1E+9", "true", "false", "null", "NaN", "Infinity", "-Infinity"] {
        raw(&format!("{{\"a\":{scalar}}}"), "a", Some(scalar));
        raw(&format!("{{\"a\":{scalar} ,\"b\":[]}}"), "a", Some(scalar));
    }
}

#[test]
fn long_values_are_stepped_over() {
    let ids = (0..5000).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let prompt = "x".repeat(5000) + r#"\\\"{"# + &"é\\n".repeat(1000);
    let text = format!(r#"{{"ids":[{ids}],"prompt":"{prompt}","pairs":[[{ids}],["{prompt}"]],"n":1}}"#);
    raw(&text, "n", Some("1"));
    raw(&text, "ids", Some(&format!("[{ids}]")));
    raw(&text, "prompt", Some(&format!("\"{prompt}\"")));
}

#[test]
fn the_last_duplicate_wins_however_it_is_spelled() {
    raw(r#"{"a":1,"a":2}"#, "a", Some("2"));
    raw(r#"{"max_tokens":1,"max\u005ftokens":2}"#, "max_tokens", Some("2"));
    raw(r#"{"\u006dax_tokens":2,"max_tokens":1}"#, "max_tokens", Some("1"));
    raw(r#"{"\ud83d\ude00":1}"#, "😀", Some("1"));
    let object = scan(r#"{"a":1,"\ud800":2,"\u0061":3}"#);
    let keys: Vec<_> = object.members().map(|(key, value)| (key.into_owned(), value.raw())).collect();
    assert_eq!(keys.len(), 3);
    assert_eq!((keys[0].0.as_str(), keys[0].1), ("a", &b"1"[..]));
    assert!(keys[1].0.starts_with('\u{fffd}'));
    assert_eq!((keys[2].0.as_str(), keys[2].1), ("a", &b"3"[..]));
    assert!(object.contains("a") && !object.contains("\\u0061"));
}

#[test]
fn non_object_is_refused() {
    use JsonErrorKind::{NotAnObject, NotUtf8, Syntax, Trailing, UnexpectedEnd};
    refuses("", UnexpectedEnd, 0);
    refuses("  ", UnexpectedEnd, 2);
    refuses("[1]", NotAnObject, 0);
    refuses(" null", NotAnObject, 1);
    refuses(b"{\"a\":\"\xff\"}", NotUtf8, 6);
    refuses(b"{\"a\":\"\xed\xa0\x80\"}", NotUtf8, 6);
    refuses("\u{feff}{}", Syntax("a byte order mark is not allowed"), 0);
    refuses("{\0}\0", Syntax("expected a key in double quotes"), 1);
    refuses("\u{a0}{}", NotAnObject, 0);
    refuses("{} {}", Trailing, 3);
    refuses("{}\u{b}", Trailing, 2);
    refuses(r#"{"a":1}}"#, Trailing, 7);
}

#[test]
fn broken_members_are_refused() {
    use JsonErrorKind::{Syntax, UnexpectedEnd};
    for text in [
        "{",
        "{ ",
        "{\"",
        "{\"a",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":\"\\",
        "{\"a\":[{\"\":\"}",
    ] {
        refuses(text, UnexpectedEnd, text.len());
    }
    let key = Syntax("expected a key in double quotes");
    refuses(r#"{"a":1,}"#, key, 7);
    refuses("{,}", key, 1);
    refuses("{a:1}", key, 1);
    refuses("{'a':1}", key, 1);
    refuses(r#"{"a" 17}"#, Syntax("expected ':' after a key"), 5);
    refuses(r#"{"a"::1}"#, Syntax("expected a value"), 5);
    refuses(r#"{"a":,"b":1}"#, Syntax("expected a value"), 5);
    refuses(r#"{"a":1 "b":2}"#, Syntax("expected ',' or '}' after a value"), 7);
    refuses(r#"{"a":"b""c":2}"#, Syntax("expected ',' or '}' after a value"), 8);
    refuses(r#"{"a":[}]}"#, Syntax("mismatched bracket"), 6);
    refuses(r#"{"a":{"b":[1]]}}"#, Syntax("mismatched bracket"), 13);
    refuses(r#"{"a":1,"\x":2}"#, Syntax("invalid escape in the key"), 7);
    for scalar in [
        "01", "-", "+1", ".5", "1.", "1e", "1e+", "--1", "0x1", "1_0", "True", "nul", "nan", "-NaN", "１",
        "/**/1",
    ] {
        refuses(format!("{{\"a\":{scalar}}}"), Syntax("expected a value"), 5);
    }
}

#[test]
fn depth_and_members_are_bounded() {
    let nest = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    let with = |text: &str, depth, members| {
        Object::scan(Bytes::copy_from_slice(text.as_bytes()), ScanLimits { depth, members })
            .map_err(|error| error.kind)
    };
    assert!(with(&nest(MAX_DEPTH), MAX_DEPTH, 1).is_ok());
    assert_eq!(
        with(&nest(MAX_DEPTH + 1), MAX_DEPTH, 1).unwrap_err(),
        JsonErrorKind::TooDeep { limit: MAX_DEPTH }
    );
    assert!(with("{}", 1, 0).is_ok());
    assert_eq!(with("{}", 0, 0).unwrap_err(), JsonErrorKind::TooDeep { limit: 0 });
    assert_eq!(with(r#"{"a":[]}"#, 1, 1).unwrap_err(), JsonErrorKind::TooDeep { limit: 1 });
    assert!(with(r#"{"a":[],"b":[]}"#, 2, 2).is_ok(), "siblings are not nested");
    assert_eq!(with(r#"{"a":1,"a":1}"#, 2, 1).unwrap_err(), JsonErrorKind::TooManyMembers { limit: 1 });
    // Every level of a deep mix is remembered: only the innermost pair is swapped here.
    let mix = |inner| format!("{{\"a\":{}{inner}{}}}", "[{\"\":".repeat(100), "}]".repeat(100));
    assert!(with(&mix("[]"), MAX_DEPTH, 1).is_ok());
    assert_eq!(with(&mix("[}"), MAX_DEPTH, 1).unwrap_err(), JsonErrorKind::Syntax("mismatched bracket"));
}

#[test]
fn errors_read_well() {
    assert_eq!(
        refusal(r#"{"max_tokens": 1 "a""#).to_string(),
        "expected ',' or '}' after a value at byte 17"
    );
    assert_eq!(refusal("[]").to_string(), "expected a JSON object at byte 0");
}

#[test]
fn values_are_read_by_type() {
    let text = r#"{"t":true,"f":false,"z":null,"n":17,"neg":-1,"real":1.0,"big":18446744073709551616,
        "s":"a\u00e9\n","lone":"\ud800","bad":"\q","o":{"k":[1]},"a":[1],"quoted":"1"}"#;
    let object = scan(text);
    let get = |key| object.get(key).unwrap();
    assert_eq!((get("t").as_bool(), get("f").as_bool(), get("z").as_bool()), (Some(true), Some(false), None));
    assert_eq!((get("n").as_u64(), get("neg").as_u64(), get("real").as_u64()), (Some(17), None, None));
    assert_eq!((get("big").as_u64(), get("quoted").as_u64(), get("z").as_u64()), (None, None, None));
    assert_eq!(get("s").as_str().as_deref(), Some("aé\n"));
    assert!(matches!(get("quoted").as_str(), Some(Cow::Borrowed("1"))));
    assert_eq!((get("lone").as_str(), get("bad").as_str(), get("n").as_str()), (None, None, None));
    assert!(get("z").is_null() && get("o").is_object() && get("a").is_array() && get("s").is_string());
    assert!(!get("o").is_null() && !get("a").is_object() && !get("s").is_array() && !get("n").is_string());
    assert_eq!(get("o").object().unwrap().get("k").unwrap().raw(), b"[1]");
    assert_eq!(get("a").object().unwrap_err().kind, JsonErrorKind::NotAnObject);
    assert_eq!(&object.bytes()[get("n").range()], b"17");
    assert_eq!(get("o").to_bytes().as_ptr(), get("o").raw().as_ptr(), "shared, not copied");
}

#[test]
fn arrays_are_counted_and_opened() {
    #[track_caller]
    fn counts(array: &str, cap: usize, expect: Option<usize>) {
        let text = format!("{{\"a\":{array},\"b\":1}}");
        assert_eq!(scan(&text).get("a").unwrap().array_len_capped(cap), expect, "{array}");
    }
    counts("[]", 9, Some(0));
    counts("[ \n]", 9, Some(0));
    counts("[1]", 9, Some(1));
    counts(r#"[ [1,2] , {"a":[3,4]}, "x,y" ,null]"#, 9, Some(4));
    counts("[1,2,3]", 3, Some(3));
    counts("[1,2,3]", 2, Some(2));
    counts("[1,2,3]", 0, Some(0));
    counts("[1,,3]", 9, None);
    counts("[1,]", 9, None);
    counts("[1 2]", 9, None);
    counts("1", 9, None);
    let object = scan(r#"{"a":[ "x" , 2],"b":[],"c":[,],"d":{}}"#);
    let first = |key| object.get(key).unwrap().first_element().map(|value| value.raw());
    assert_eq!((first("a"), first("b"), first("c"), first("d")), (Some(&b"\"x\""[..]), None, None, None));
}

#[test]
fn dropping_gets_the_commas_right() {
    let text = "{\n \"a\": 1,\n \"b\" : [2] ,\n \"c\":3\n}\n";
    spliced(text, &Edit::new(), text);
    spliced(text, &Edit::new().drop("x"), text);
    spliced(text, &Edit::new().drop("a"), "{\n \"b\" : [2] ,\n \"c\":3\n}\n");
    spliced(text, &Edit::new().drop("b"), "{\n \"a\": 1 ,\n \"c\":3\n}\n");
    spliced(text, &Edit::new().drop("c"), "{\n \"a\": 1,\n \"b\" : [2]\n}\n");
    spliced(text, &Edit::new().drop("a").drop("b"), "{\n \"c\":3\n}\n");
    spliced(text, &Edit::new().drop("a").drop("c"), "{\n \"b\" : [2]\n}\n");
    spliced(text, &Edit::new().drop("b").drop("c"), "{\n \"a\": 1\n}\n");
    spliced(text, &Edit::new().drop("a").drop("b").drop("c"), "{\n \n}\n");
    spliced("{}", &Edit::new().drop("a"), "{}");
    spliced(" { } ", &Edit::new().drop("a"), " { } ");
}

#[test]
fn setting_appends_in_order() {
    let one = || Bytes::from_static(b"1");
    let edit = Edit::new().set("n", one()).set("o", Bytes::from_static(b"{\"x\": 2}"));
    spliced("{}", &edit, r#"{"n":1,"o":{"x": 2}}"#);
    spliced("{ }", &edit, r#"{"n":1,"o":{"x": 2} }"#);
    spliced(r#"{"a":1}"#, &edit, r#"{"a":1,"n":1,"o":{"x": 2}}"#);
    spliced("{\"a\":1\n}", &edit, "{\"a\":1,\"n\":1,\"o\":{\"x\": 2}\n}");
    spliced(r#"{"n":5,"a":1}"#, &edit, r#"{"a":1,"n":1,"o":{"x": 2}}"#);
    spliced(r#"{"a":1,"n":5}"#, &edit, r#"{"a":1,"n":1,"o":{"x": 2}}"#);
    spliced(r#"{"o":0,"n":5,"o":7}"#, &edit, r#"{"n":1,"o":{"x": 2}}"#);
    spliced(
        "{}",
        &Edit::new().set("n", one()).set("m", one()).set("n", Bytes::from_static(b"2")),
        r#"{"n":2,"m":1}"#,
    );
    spliced(r#"{"n":5}"#, &Edit::dropping(&["n"], &["n"]).set("n", one()).drop("n"), r#"{"n":1}"#);
    spliced("{}", &Edit::new().set("a\"\n", one()), r#"{"a\"\u000a":1}"#);
}

#[test]
fn no_spelling_escapes_an_edit() {
    let edit = Edit::dropping(&["max_tokens"], &["bootstrap_"]);
    for key in [
        "max_tokens",
        r"max\u005ftokens",
        r"max\u005Ftokens",
        r"\u006d\u0061x_tokens",
        "bootstrap_",
        "bootstrap_port",
    ] {
        spliced(&format!(r#"{{"{key}":1,"a":2,"{key}" : 3}}"#), &edit, r#"{"a":2}"#);
    }
    for key in [r"boot\u0073trap_host", r"bootstrap\u005f\ud800"] {
        spliced(&format!(r#"{{"{key}":1}}"#), &edit, "{}");
    }
    for key in [
        "max_token",
        "max_tokens ",
        "MAX_TOKENS",
        r"max_tokens\u0000",
        r"max\\u005ftokens",
        "bootstrap",
        r"max_tokens\ud800",
    ] {
        let text = format!(r#"{{"{key}":1}}"#);
        spliced(&text, &edit, &text);
    }
    let nested = r#"{"a":{"max_tokens":1},"b":"\",\"max_tokens\":1,\""}"#;
    spliced(nested, &edit, nested);
}

#[test]
fn splicing_shares_the_original() {
    let text = format!(r#"{{"prompt":"{}","a":1,"b":2,"stream":true}}"#, "x".repeat(4096));
    let object = scan(&text);
    let large = Bytes::from(vec![b'7'; 4096]);
    let parts = object
        .splice(&Edit::new().drop("stream").set("big", large.clone()).set("n", Bytes::from_static(b"1")));
    let pieces: Vec<Bytes> = parts.iter().cloned().collect();
    assert_eq!(pieces.len(), 5, "original, glue, value, glue, original");
    assert_eq!(pieces[0].as_ptr(), object.bytes().as_ptr());
    assert_eq!(pieces[2].as_ptr(), large.as_ptr());
    assert_eq!(pieces[4], "}");
    assert_eq!(pieces[4].as_ptr(), object.bytes()[text.len() - 1..].as_ptr());
    let untouched = object.splice(&Edit::new().drop("absent"));
    assert_eq!(untouched.iter().count(), 1);
    assert_eq!(untouched.to_bytes().as_ptr(), object.bytes().as_ptr());
}

#[test]
fn debug_output_shows_no_content() {
    let object = scan(r#"{"prompt":"secret"}"#);
    let edit = Edit::new().set("prompt", quote("secret"));
    let shown = format!("{object:?} {:?} {edit:?} {:?}", object.get("prompt").unwrap(), object.splice(&edit));
    assert!(shown.contains("len_bytes") && shown.contains("prompt") && !shown.contains("secret"), "{shown}");
}
