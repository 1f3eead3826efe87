use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i128>().prop_map(Value::Int),
        (any::<i128>(), 0..127_u32).prop_map(|(int, shift)| Value::Int(int >> shift)),
        vec(any::<u8>(), 0..300).prop_map(Value::Bytes),
        ".{0,3}".prop_map(Value::Str),
        ".{0,200}".prop_map(Value::Str),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Tuple),
            vec(inner.clone(), 0..6).prop_map(Value::List),
            vec((inner.clone(), inner), 0..4).prop_map(Value::Dict),
        ]
    })
}

fn reads(pickle: &[u8]) -> Result<Value, ReadError> {
    read(pickle, ReadLimits::default())
}

proptest! {
    #[test]
    fn written_value_reads_back(value in values(), protocol in 0..3_usize) {
        let protocol = [Protocol::V3, Protocol::V4, Protocol::V5][protocol];
        prop_assert_eq!(reads(&write(&value, protocol).unwrap()), Ok(value));
    }

    #[test]
    fn any_bytes_read_or_fail(mut pickle in vec(any::<u8>(), 0..200), value in values(), cut in 0..100_usize) {
        let mut good = write(&value, Protocol::V5).unwrap();
        let end = cut.min(good.len());
        prop_assert!(reads(&good[..good.len() - end.max(1)]).is_err());
        let at = cut % good.len();
        good[at] ^= 1 << (cut % 8);
        let _ = reads(&good);
        pickle.splice(0..0, [0x80, 4]);
        let _ = reads(&pickle);
    }

    #[test]
    fn tokens_are_spelled_like_single_integers(tokens in vec(any::<u32>().prop_map(|t| t >> (t % 32)), 0..300)) {
        let written = |write: &dyn Fn(&mut Writer<'_>)| {
            let mut out = Vec::new();
            let mut writer = Writer::new(&mut out, Protocol::V5);
            write(&mut writer);
            writer.finish();
            out
        };
        let together = written(&|w| w.tokens(&tokens));
        prop_assert_eq!(together, written(&|w| tokens.iter().for_each(|&token| w.int(i128::from(token)))));
    }
}

#[test]
fn integers_take_the_least_bytes() {
    let of = |int| write(&Value::Int(int), Protocol::V3).unwrap()[2..].to_vec();
    assert_eq!(of(255), b"K\xff.");
    assert_eq!(of(65_535), b"M\xff\xff.");
    assert_eq!(of(-1), b"J\xff\xff\xff\xff.");
    assert_eq!(of(1 << 31), b"\x8a\x05\x00\x00\x00\x80\x00.");
    assert_eq!(of(-(1 << 31) - 1), b"\x8a\x05\xff\xff\xff\x7f\xff.");
    assert_eq!(of(1 << 63), b"\x8a\x09\0\0\0\0\0\0\0\x80\0.");
    assert_eq!(of(-(1 << 63)), b"\x8a\x08\0\0\0\0\0\0\0\x80.");
}

#[test]
fn interned_strings_are_written_once() {
    let twice = |text: &str| {
        let both = Value::Tuple(vec![Value::Str(text.into()), Value::Str(text.into())]);
        write(&both, Protocol::V4).unwrap()[11..].to_vec()
    };
    assert_eq!(twice("a"), b"\x8c\x01a\x94h\x00\x86\x94.");
    assert_eq!(twice("é"), b"\x8c\x02\xc3\xa9\x94h\x00\x86\x94.");
    assert_eq!(twice(""), b"\x8c\x00\x94h\x00\x86\x94.");
    assert_eq!(twice("ab"), b"\x8c\x02ab\x94\x8c\x02ab\x94\x86\x94.");
    assert_eq!(twice("租"), b"\x8c\x03\xe7\xa7\x9f\x94\x8c\x03\xe7\xa7\x9f\x94\x86\x94.");
}

#[test]
fn large_strings_stand_outside_of_frames() {
    let pair = Value::Tuple(vec![Value::None, Value::Bytes(vec![7; 64 << 10])]);
    let written = write(&pair, Protocol::V5).unwrap();
    // The frame of one opcode is too short for a header.
    assert_eq!(written[..8], *b"\x80\x05NB\x00\x00\x01\x00");
    assert_eq!(written[8 + (64 << 10)..], *b"\x95\x04\0\0\0\0\0\0\0\x94\x86\x94.");
}

#[test]
fn nothing_that_imports_or_calls_is_read() {
    // A global, a call, an object built, a persistent id, an extension, a float.
    for opcode in *b"cRboQ\x82\x93\x81iPG" {
        assert_eq!(reads(&[0x80, 4, opcode, b'.']), Err(ReadError::Opcode(opcode)));
    }
    assert_eq!(reads(b"\x80\x06N."), Err(ReadError::Protocol));
    assert_eq!(reads(b"N."), Err(ReadError::Protocol));
    assert_eq!(reads(b"\x80\x04N.N"), Err(ReadError::Trailing));
    assert_eq!(reads(b"\x80\x04NN."), Err(ReadError::Malformed("not exactly one object")));
    assert_eq!(reads(b"\x80\x04N(\x85."), Err(ReadError::Malformed("the stack is empty")));
}

#[test]
fn references_can_neither_loop_nor_multiply() {
    // A list that holds itself.
    assert_eq!(reads(b"\x80\x04]\x94h\x00a."), Err(ReadError::TooLarge("the depth limit")));
    // Each tuple holds the one before twice.
    let mut bomb = b"\x80\x04)\x94".to_vec();
    (0..40).for_each(|index| bomb.extend_from_slice(&[b'h', index, b'h', index, 0x86, 0x94]));
    // All of them below the last: far too much to look at, and more than one object besides.
    bomb.extend_from_slice(b"h\x28");
    let wrapped = [b"\x80\x04(".as_slice(), &bomb[2..], b"t."].concat();
    assert_eq!(reads(&wrapped), Err(ReadError::TooLarge("the item limit")));
    let mut list = b"\x80\x04]\x94(".to_vec();
    (0..30).for_each(|_| list.extend_from_slice(b"K\x01"));
    list.extend_from_slice(b"e.");
    let limits = ReadLimits { max_items: 20, ..ReadLimits::default() };
    assert_eq!(read(&list, limits), Err(ReadError::TooLarge("the item limit")));
    assert!(reads(&list).is_ok());
}
