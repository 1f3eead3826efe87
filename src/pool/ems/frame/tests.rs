use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

/// Reads pickles with a length of 4 bytes before each, as the server does, and prints the hashes of
/// each.
const SERVER: &str = "
import pickle, struct, sys
data, at = open(sys.argv[1], 'rb').read(), 0
while at < len(data):
    (size,) = struct.unpack_from('<I', data, at)
    req_id, hashes = pickle.loads(data[at + 4:at + 4 + size])
    assert req_id == 'pd-proxy' and type(hashes) is list and all(type(h) is int for h in hashes)
    assert pickle.dumps([req_id, hashes], 4) == data[at + 4:at + 4 + size]
    at += 4 + size
    print(*hashes)
";

/// Every length at which the pickle changes its form, every width of a number, and many at random.
fn questions() -> Vec<Vec<i64>> {
    let edges = [0, 1, -1, -2, 255, 256, 65_535, 65_536, 1 << 31, (1 << 31) - 1, -(1 << 31), -(1 << 31) - 1];
    let around = |bit: i64| vec![bit, bit.wrapping_neg(), bit.wrapping_sub(1)];
    let mut all: Vec<Vec<i64>> = (0..64).map(|bits| around(1 << bits)).collect();
    all.extend([edges.to_vec(), vec![i64::MIN, i64::MAX, i64::MIN + 1]]);
    // The impossible block makes one more: lists change at 1, 2, 1000 and 1001, frames at about
    // 6550 and 13 100.
    let most = i64::try_from(MAX_BLOCKS).unwrap();
    for len in [0, 1, 2, 998, 999, 1000, 1001, 1999, 2000, 6552, 6553, 6554, 13_105, 13_106, most, 20_000] {
        all.push((0..len).map(|n: i64| n.wrapping_mul(-7_046_029_254_386_353_131)).collect());
    }
    let (mut runner, any_size) = (TestRunner::deterministic(), vec(any::<i64>(), 0..500));
    all.extend((0..100).map(|_| any_size.new_tree(&mut runner).unwrap().current()));
    all
}

fn hashes(body: &[u8]) -> Vec<i64> {
    let limits = ReadLimits { max_text_bytes: REQUEST_ID.len(), ..ReadLimits::default() };
    let Value::List(pair) = pickle::read(body, limits).unwrap() else { panic!("a list") };
    let [Value::Str(id), Value::List(hashes)] = &pair[..] else { panic!("a pair") };
    assert_eq!(id, REQUEST_ID);
    hashes
        .iter()
        .map(|hash| match hash {
            Value::Int(hash) => i64::try_from(*hash).expect("64 bits"),
            _ => panic!("a number"),
        })
        .collect()
}

#[test]
fn every_question_is_a_pair_for_python_too() {
    let questions = questions();
    let (mut file, mut expected) = (tempfile::NamedTempFile::new().unwrap(), String::new());
    for question in &questions {
        let request = Request::new(question).unwrap();
        let asked = hashes(&request.body);
        let (last, rest) = asked.split_last().unwrap();
        assert_eq!(rest, &question[..question.len().min(MAX_BLOCKS)]);
        assert_eq!((rest.len(), *last), (request.blocks, impossible(rest.last().copied().unwrap_or(0))));
        file.write_all(&u32::try_from(request.body.len()).unwrap().to_le_bytes()).unwrap();
        file.write_all(&request.body).unwrap();
        let line: Vec<String> = asked.iter().map(i64::to_string).collect();
        writeln!(expected, "{}", line.join(" ")).unwrap();
    }
    file.flush().unwrap();
    // Without Python the loop above has shown as much as can be shown.
    if let Ok(python) = Command::new("python3").args(["-c", SERVER]).arg(file.path()).output() {
        assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
        assert!(String::from_utf8(python.stdout).unwrap() == expected, "Python read other hashes");
    }
}

#[test]
fn the_engine_s_own_question_has_the_same_bytes() {
    let body = encode("chatcmpl-1", [-7_549_238_594_337_658_173, 5].into_iter()).unwrap();
    let capture = include_str!("../../../../tests/captures/ems-zmtp.hex");
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(capture.contains(&hex), "{hex}");
}

#[test]
fn a_count_is_a_number_that_the_question_allows() {
    let answer = |value: &Value, protocol| count(&pickle::write(value, protocol).unwrap(), 300);
    for protocol in [Protocol::V2, Protocol::V3, Protocol::V4, Protocol::V5] {
        for found in [0, 1, 255, 256, 300] {
            assert_eq!(answer(&Value::Int(found), protocol), Ok(usize::try_from(found).unwrap()));
        }
        assert_eq!(answer(&Value::Int(301), protocol), Err(AnswerError::Impossible));
        for wrong in [302, -1, i128::from(u32::MAX), i128::MAX, i128::MIN] {
            assert_eq!(answer(&Value::Int(wrong), protocol), Err(AnswerError::NoCount), "{wrong}");
        }
        assert_eq!(answer(&Value::Bool(true), protocol), Ok(1));
        assert_eq!(answer(&Value::None, protocol), Err(AnswerError::NoCount));
        assert_eq!(answer(&Value::List(vec![Value::Int(3)]), protocol), Err(AnswerError::NoCount));
    }
    assert!(matches!(count(b"\x80\x04cos\nsystem\n.", 300), Err(AnswerError::Pickle(_))), "imports nothing");
    let whole = b"\x80\x04M\x2c\x01.";
    assert_eq!(count(whole, 300), Ok(300));
    assert!((0..whole.len()).all(|cut| count(&whole[..cut], 300).is_err()), "a part of an answer is none");
    assert!(count(b"\x80\x04K\x03..", 300).is_err(), "nor is more than one");
}
