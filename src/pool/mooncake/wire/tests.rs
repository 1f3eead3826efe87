//! Captures of real masters and their clients, damaged answers, and round trips with the simulated
//! master.

use std::path::{Path, PathBuf};

use super::read::open;
use super::*;
use crate::kvhash::keys::KeyBatch;
use crate::pool::{Placement, ReplicaPlace, Tier};

const KEYS: [&str; 3] = ["aa", "bb", "zz"];

fn batch<'a>(keys: impl IntoIterator<Item = &'a str>) -> KeyBatch {
    let mut batch = KeyBatch::default();
    for key in keys {
        batch.push(0, key).unwrap();
    }
    batch
}

fn request(call: Call<'_>, keys: &[&str]) -> Vec<u8> {
    let indexes: Vec<u32> = (0..keys.len() as u32).collect();
    let mut out = vec![7];
    write_request(&mut out, call, &batch(keys.iter().copied()), &indexes).unwrap();
    assert_eq!(out.remove(0), 7, "what was in the buffer stays");
    out
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2).map(|two| std::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

fn captures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

fn capture(name: &str) -> String {
    std::fs::read_to_string(captures_dir().join(name)).unwrap()
}

/// One exchange of a capture.
struct Exchange {
    function: Function,
    question: Vec<u8>,
    head: [u8; ANSWER_HEAD_BYTES],
    body: Vec<u8>,
}

/// The exchanges of a master's capture: `## Function`, then `> head`, its body in indented lines,
/// `< head`, its body.
fn exchanges(text: &str) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    let mut answering = false;
    for line in text.lines().filter(|line| !line.starts_with("# ")) {
        let word = line.split_whitespace().next().unwrap_or_default();
        let second = line.split_whitespace().nth(1).unwrap_or_default();
        match word {
            "##" => {
                let function = match second {
                    "ServiceReady" => Function::ServiceReady,
                    "ExistKey" => Function::ExistKey,
                    "BatchExistKey" => Function::BatchExistKey,
                    "GetReplicaList" => Function::GetReplicaList,
                    "BatchGetReplicaList" => Function::BatchGetReplicaList,
                    other => panic!("{other}"),
                };
                found.push(Exchange { function, question: vec![], head: [0; 16], body: vec![] });
                answering = false;
            }
            ">" => found.last_mut().unwrap().question = unhex(second),
            "<" => {
                found.last_mut().unwrap().head = unhex(second).try_into().unwrap();
                answering = true;
            }
            "" | "(empty" => {}
            hex if answering => found.last_mut().unwrap().body.extend(unhex(hex)),
            hex => found.last_mut().unwrap().question.extend(unhex(hex)),
        }
    }
    found
}

/// Every capture of a master, with the argument list of its version.
fn masters() -> Vec<(String, Form, Vec<Exchange>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(captures_dir()).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if let Some(version) = name.strip_prefix("mooncake-0.3.").and_then(|rest| rest.strip_suffix(".hex")) {
            let minor: u32 = version.split('.').next().unwrap().parse().unwrap();
            let form = if minor >= 12 { Form::Tenant } else { Form::Plain };
            all.push((version.to_owned(), form, exchanges(&capture(&name))));
        }
    }
    assert_eq!(all.len(), 12);
    all
}

fn on(host: &str, tier: Tier) -> Placement {
    Placement { present: true, places: smallvec::smallvec![ReplicaPlace { host: host.into(), tier }] }
}

/// Place where the objects of the captures lie.
fn placed() -> Vec<Placement> {
    vec![on("127.0.0.2", Tier::Memory), on("127.0.0.3", Tier::Memory), Placement::default()]
}

#[test]
fn questions_equal_those_of_the_clients_of_every_version() {
    let mut compared = 0;
    for (version, form, exchanges) in masters() {
        for exchange in exchanges {
            let sequence = u32::from_le_bytes(exchange.question[4..8].try_into().unwrap());
            let call = Call { function: exchange.function, form, tenant: "default", sequence, literal: true };
            let equal = match exchange.function {
                Function::BatchExistKey | Function::BatchGetReplicaList => {
                    request(call, &KEYS) == exchange.question
                }
                _ => KEYS.iter().any(|key| request(call, &[key]) == exchange.question),
            };
            assert!(equal, "{version} {:?}", exchange.function);
            compared += 1;
        }
    }
    assert_eq!(compared, 91);
}

#[test]
fn answers_of_every_version_say_where_the_objects_are() {
    let placed = placed();
    let somewhere = [Placement::somewhere(), Placement::somewhere(), Placement::default()];
    for (version, _, exchanges) in masters() {
        for Exchange { function, question, head, body } in exchanges {
            let head = AnswerHead::read(&head).unwrap();
            let sequence = u32::from_le_bytes(question[4..8].try_into().unwrap());
            assert_eq!((head.error, head.sequence, head.body_bytes), (0, sequence, body.len()));
            let asked = |key: &str| question.windows(3).any(|w| w == [&[2], key.as_bytes()].concat());
            let only = KEYS.iter().position(|key| asked(key)).unwrap_or(0);
            match function {
                Function::BatchGetReplicaList => {
                    assert_eq!(read_answer(&body, 3).unwrap(), placed, "{version}")
                }
                Function::BatchExistKey => assert_eq!(read_answer(&body, 3).unwrap(), somewhere, "{version}"),
                Function::GetReplicaList => assert_eq!(read_answer(&body, 1).unwrap(), placed[only..=only]),
                Function::ExistKey => assert_eq!(read_answer(&body, 1).unwrap(), somewhere[only..=only]),
                Function::ServiceReady => {
                    let service = if version.starts_with("7.") { "" } else { "2.0.0" };
                    assert_eq!(read_service(&body).unwrap(), service, "{version}");
                }
            }
        }
    }
}

#[test]
fn a_client_that_describes_no_types_is_understood_by_every_version() {
    let text = capture("mooncake-rust-client.hex");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 5 * 4);
    for four in lines.chunks(4) {
        let form = if four[0].starts_with("0.3.13") { Form::Tenant } else { Form::Plain };
        let question = unhex(&four[1][2..]);
        let sequence = u32::from_le_bytes(question[4..8].try_into().unwrap());
        let function = Function::BatchGetReplicaList;
        let call = Call { function, form, tenant: "default", sequence, literal: false };
        assert_eq!(request(call, &KEYS), question, "{}", four[0]);
        let (head, body) = (unhex(&four[2][2..]), unhex(four[3].trim()));
        assert_eq!(AnswerHead::read(&head.try_into().unwrap()).unwrap().body_bytes, body.len());
        assert_eq!(read_answer(&body, 3).unwrap(), placed(), "{}", four[0]);
    }
}

#[test]
fn errors_of_a_master_are_told_in_its_own_words() {
    let text = capture("mooncake-errors.hex");
    let errors = [
        ("good, no tenant", 4, "invalid rpc arg"),
        ("unknown function", 11, "the rpc function not registered"),
    ];
    for (start, code, words) in errors {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        let bytes = unhex(line.split_whitespace().find(|word| word.starts_with("1500")).unwrap());
        let head = AnswerHead::read(bytes[..16].try_into().unwrap()).unwrap();
        assert_eq!((head.error, head.body_bytes), (code, bytes.len() - 16));
        assert_eq!(rpc_error(code, &bytes[16..]), WireError::Rpc { code, text: words.to_owned() });
    }
    let none = "5d8c5f2a0484870b010000";
    assert!(text.contains(none) && read_answer(&unhex(none), 0).unwrap().is_empty(), "no keys, no entries");
    assert_eq!(rpc_error(9, b"\xff\xff"), WireError::Rpc { code: 9, text: String::new() });
}

#[test]
fn no_cut_and_no_length_is_believed() {
    for (version, _, exchanges) in masters() {
        for Exchange { function, body, .. } in exchanges {
            let asked = if function.takes_many() { 3 } else { 1 };
            let read = |body: &[u8]| match function {
                Function::ServiceReady => read_service(body).map(drop),
                _ => read_answer(body, asked).map(drop),
            };
            read(&body).unwrap();
            for cut in 0..body.len() {
                assert!(read(&body[..cut]).is_err(), "{version} {function:?} cut at {cut}");
            }
            let longer = [body.as_slice(), &[0]].concat();
            assert_eq!(read(&longer), Err(WireError::Trailing));
            // Lengths of eight bytes instead of one: none of them is there.
            let wide = [&body[..4], &[body[4] | 0x18], &body[5..]].concat();
            assert!(read(&wide).is_err() || function == Function::ServiceReady || asked == 1, "{version}");
            for at in 4..body.len() {
                let mut inflated = body.clone();
                inflated[at] = 0xff;
                // Any outcome but a panic; most are errors.
                let _ = read(&inflated);
            }
        }
    }
    let many = [&unhex("5d8c5f2a1c84870b0100")[..], &[0xff; 7], &[0x7f], &[1; 64]].concat();
    assert_eq!(read_answer(&many, 3), Err(WireError::Truncated));
    assert_eq!(read_answer(&unhex("5c8c5f2a0201010101"), 3), Err(WireError::Count { asked: 3, answered: 2 }));
    let mut head = [0x15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    assert_eq!(AnswerHead::read(&head).unwrap().body_bytes, MAX_BODY_BYTES);
    head[8] = 1;
    assert!(AnswerHead::read(&head).is_err());
    assert!(AnswerHead::read(b"HTTP/1.1 400 Bad").is_err());
}

#[test]
fn lengths_are_as_wide_as_the_longest_needs() {
    let call = Call {
        function: Function::BatchExistKey,
        form: Form::Tenant,
        tenant: "t",
        sequence: 1,
        literal: false,
    };
    let start = |keys: &[&str]| request(call, keys)[20..30].to_vec();
    let key = |len: usize| "k".repeat(len);
    assert_eq!(start(&[&key(255)])[..6], unhex("628df70001ff"));
    assert_eq!(start(&[&key(256)])[..9], unhex("638df7000801000001"));
    assert_eq!(start(&[&key(65535)])[..9], unhex("638df700080100ffff"));
    assert_eq!(start(&[&key(65536)])[..9], unhex("638df7001001000000"));
    assert_eq!(start(&vec!["k"; 300])[..9], unhex("638df700082c010100"));
    assert_eq!(request(call, &[])[20..], unhex("628df700000174"));
}

#[test]
fn a_question_that_can_not_be_written_leaves_no_trace() {
    let call = Call {
        function: Function::BatchExistKey,
        form: Form::Plain,
        tenant: "",
        sequence: 1,
        literal: false,
    };
    let (mut out, keys) = (vec![1, 2], batch(KEYS));
    assert_eq!(write_request(&mut out, call, &keys, &[0, 3]), Err(WireError::NoKey(3)));
    assert_eq!(
        write_request(&mut out, Call { function: Function::ExistKey, ..call }, &keys, &[]),
        Err(WireError::NoKey(0))
    );
    let large = "k".repeat(1 << 20);
    let many = [0; 65];
    assert!(matches!(
        write_request(&mut out, call, &batch([large.as_str()]), &many),
        Err(WireError::TooLarge(_))
    ));
    assert_eq!(out, [1, 2]);
}

#[test]
fn a_type_that_is_not_known_is_named() {
    let literal = "84870a01";
    let body = unhex(&format!("a1a1a1a104{literal}000001"));
    let unknown = WireError::Unknown { code: 0xa1a1_a1a0, literal: literal.to_owned() };
    assert_eq!(read_answer(&body, 1), Err(unknown.clone()));
    assert!(matches!(PoolError::from(unknown), PoolError::Protocol(text) if text.contains("a1a1a1a0")));
    let bare = unhex("a0a1a1a10101");
    assert_eq!(
        read_answer(&bare, 1),
        Err(WireError::Unknown { code: 0xa1a1_a1a0, literal: "none".to_owned() })
    );
    // The same body with a literal that helps: expected<struct {string, optional<u64>}, i32>.
    let told = unhex("a1a1a1a1048487fd800c8504ff01000201 02 6161 00 00 40fdffff".replace(' ', "").as_str());
    assert_eq!(read_answer(&told, 2).unwrap(), [Placement::somewhere(), Placement::default()]);
    let endless =
        unhex("a1a1a1a11c8487fd84faff01000100000000000000 01 ffffffffffffff7f".replace(' ', "").as_str());
    assert_eq!(read_answer(&endless, 1), Err(WireError::Malformed("too many values for its bytes")));
    assert!(open(&body).unwrap().literal.is_some());
}

#[test]
fn errors_of_one_key_are_errors_of_the_answer_unless_they_mean_absence() {
    let body = |error: i32| [unhex("5c8c5f2a0100"), error.to_le_bytes().to_vec()].concat();
    for absent in [-703, -704] {
        assert_eq!(read_answer(&body(absent), 1).unwrap(), [Placement::default()]);
    }
    for error in [-1010, -1011, -1701, -600, 0] {
        assert_eq!(read_answer(&body(error), 1), Err(WireError::Entry(error)));
    }
}

#[cfg(feature = "sim")]
mod simulated {
    use proptest::prelude::*;

    use super::*;
    use crate::sim::mooncake::{
        Arguments, KeyEntry, Medium, MooncakeSpec, Replica, Replicas, function_id, read_keys,
        write_existence, write_replicas,
    };

    const VERSIONS: [Replicas; 6] =
        [Replicas::A, Replicas::B, Replicas::C, Replicas::D, Replicas::E, Replicas::Later];
    const MEDIUMS: [Medium; 5] = [Medium::Memory, Medium::Nof, Medium::Disk, Medium::LocalDisk, Medium::Dfs];

    fn replica() -> impl Strategy<Value = Replica> {
        let place =
            prop_oneof!["10\\.0\\.0\\.[1-9]:[1-9][0-9]{2}", "\\[fd00::[1-9]\\]:8[0-9]", "/mnt/[a-z]{1,300}"];
        (proptest::sample::select(MEDIUMS.to_vec()), place, any::<bool>())
            .prop_map(|(medium, place, complete)| Replica { medium, place, complete })
    }

    fn held() -> impl Strategy<Value = KeyEntry> {
        prop_oneof![
            3 => proptest::collection::vec(replica(), 0..4).prop_map(KeyEntry::Object),
            1 => proptest::sample::select(vec![-703, -704]).prop_map(KeyEntry::Error),
        ]
    }

    /// Expected reading of an answer of `version`.
    fn model(version: Replicas, held: &KeyEntry) -> Placement {
        let KeyEntry::Object(replicas) = held else { return Placement::default() };
        let mut placement = Placement::default();
        let told = |medium: Medium| match version {
            Replicas::A => matches!(medium, Medium::Memory | Medium::Disk),
            Replicas::B | Replicas::C => !matches!(medium, Medium::Nof | Medium::Dfs),
            Replicas::D => medium != Medium::Dfs,
            Replicas::E | Replicas::Later => true,
        };
        for replica in replicas.iter().filter(|replica| replica.complete && told(replica.medium)) {
            placement.present = true;
            let tier = if replica.medium == Medium::Memory { Tier::Memory } else { Tier::Disk };
            let with_host = !matches!(replica.medium, Medium::Disk | Medium::Dfs);
            let Some((host, _)) = replica.place.rsplit_once(':').filter(|_| with_host) else { continue };
            let place = ReplicaPlace { host: host.trim_matches(['[', ']']).into(), tier };
            if !placement.places.contains(&place) {
                placement.places.push(place);
            }
        }
        if version == Replicas::Later { Placement::somewhere() } else { placement }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn answers_round_trip(
            version in proptest::sample::select(VERSIONS.to_vec()),
            terse in any::<bool>(),
            held in proptest::collection::vec(held(), 0..24),
        ) {
            let spec = MooncakeSpec { replicas: version, terse, ..MooncakeSpec::default() };
            let answer = read_answer(&write_replicas(spec, &held), held.len());
            if version == Replicas::Later && terse {
                prop_assert!(matches!(answer, Err(WireError::Unknown { .. })), "{answer:?}");
            } else {
                let model: Vec<_> = held.iter().map(|held| model(version, held)).collect();
                prop_assert_eq!(answer, Ok(model));
            }
            let exist = read_answer(&write_existence(spec, &held), held.len()).unwrap();
            for (placement, held) in exist.iter().zip(&held) {
                let there = matches!(held, KeyEntry::Object(replicas) if replicas.iter().any(|r| r.complete));
                prop_assert_eq!((placement.present, placement.places.len()), (there, 0));
            }
        }

        #[test]
        fn questions_round_trip(
            keys in proptest::collection::vec("[ -~é]{0,40}|k{250,260}", 0..24),
            tenant in "[a-z]{0,9}|t{250,260}",
            plain in any::<bool>(),
            literal in any::<bool>(),
        ) {
            let (form, arguments) =
                if plain { (Form::Plain, Arguments::Plain) } else { (Form::Tenant, Arguments::Tenant) };
            let call = Call { function: Function::BatchExistKey, form, tenant: &tenant, sequence: 5, literal };
            let texts: Vec<&str> = keys.iter().map(String::as_str).collect();
            let question = request(call, &texts);
            prop_assert_eq!(u32::from_le_bytes(question[12..16].try_into().unwrap()) as usize, question.len() - 20);
            let spec = MooncakeSpec { arguments, ..MooncakeSpec::default() };
            prop_assert_eq!(read_keys(&question[20..], spec), Some(keys.clone()));
            let other = if plain { Arguments::Tenant } else { Arguments::Plain };
            prop_assert_eq!(read_keys(&question[20..], MooncakeSpec { arguments: other, ..spec }), None);
        }

        #[test]
        fn anything_is_read_without_panic(
            version in proptest::sample::select(VERSIONS.to_vec()),
            held in proptest::collection::vec(held(), 0..8),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let spec = MooncakeSpec { replicas: version, ..MooncakeSpec::default() };
            let mut body = write_replicas(spec, &held);
            for (at, byte) in damage {
                let at = at.index(body.len());
                body[at] = byte;
            }
            if let Ok(answer) = read_answer(&body, held.len()) {
                prop_assert_eq!(answer.len(), held.len());
            }
        }
    }

    #[test]
    fn functions_are_named_by_their_digest() {
        for (function, name) in [
            (Function::ExistKey, "ExistKey"),
            (Function::BatchExistKey, "BatchExistKey"),
            (Function::GetReplicaList, "GetReplicaList"),
            (Function::BatchGetReplicaList, "BatchGetReplicaList"),
            (Function::ServiceReady, "ServiceReady"),
        ] {
            assert_eq!(function as u32, function_id(name), "{name}");
        }
    }
}
