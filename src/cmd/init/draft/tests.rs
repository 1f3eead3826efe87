use http::StatusCode;

use super::*;
use crate::cmd::init::described::Sizes;
use crate::dialect::facts::{CacheFacts, ModelFact};
use crate::tokenization::facts::Gap;

fn facts(model: &str, block_tokens: Option<u32>) -> Facts {
    let cache =
        CacheFacts { block_tokens, hash_algo: Some("sha256".to_owned()), ranks: 1, ..CacheFacts::default() };
    Facts {
        version: Some("0.32.0".to_owned()),
        models: vec![ModelFact {
            id: model.to_owned(),
            root: Some(format!("/models/{model}")),
            parent: None,
            max_model_len: None,
        }],
        cache: Ok(Some(cache)),
        gaps: Vec::new(),
    }
}

fn prefiller() -> FoundEngine {
    FoundEngine {
        role: Role::Prefill,
        facts: facts("qwen", Some(32)),
        dialect: Some("kv_transfer"),
        description: None,
    }
}

fn connector(name: &str) -> Connector {
    Connector { name: name.to_owned(), backend: None, lease: None }
}

fn described(connectors: &[Connector]) -> Option<Description> {
    Some(Description { connectors: connectors.to_vec(), sizes: Sizes::default() })
}

/// Settings that are drawn for a fleet of these engines.
fn drawn(engines: Vec<FoundEngine>, change: impl FnOnce(&mut Findings)) -> Vec<Setting> {
    let mut findings = Findings { engines, ..Findings::default() };
    change(&mut findings);
    draw(&findings)
}

#[track_caller]
fn find<'a>(settings: &'a [Setting], key: &str) -> &'a Setting {
    let found: Vec<&Setting> = settings.iter().filter(|one| one.key == key).collect();
    assert_eq!(found.len(), 1, "{key} in {settings:?}");
    found[0]
}

#[track_caller]
fn expect(settings: &[Setting], key: &str, state: State, value: &str) {
    let found = find(settings, key);
    assert_eq!((found.state, found.value.as_str()), (state, value), "{found:?}");
}

#[test]
fn keys_that_the_gateway_asks_for_itself_are_shown_and_not_set() {
    let settings = drawn(vec![prefiller()], |_| {});
    expect(&settings, "dialect.name", State::Question, "\"auto\"");
    expect(&settings, "hash.block_tokens", State::Asked, "32");
    expect(&settings, "hash.algo", State::Asked, "\"sha256\"");
    expect(&settings, "hash.version", State::Asked, "\"0.32.0\"");
    expect(&settings, "fleet.model", State::Asked, "\"qwen\"");
    expect(&settings, "engine.lease_ms", State::Question, "30_000");
    expect(&settings, "prompt.model_path", State::Question, "\"/models/qwen\"");
    assert!(settings.iter().all(|one| one.state != State::Set && one.key != "hash.seed"), "{settings:?}");
}

#[test]
fn keys_that_were_given_stay_as_they_are() {
    let given = |key, value: &str| GivenKey {
        key,
        value: value.to_owned(),
        origin: "flag --tp".to_owned(),
        is_secret: key == "engine.api_key",
    };
    let settings = drawn(vec![prefiller()], |findings| {
        findings.has_pool = true;
        findings.given =
            vec![given("key.tp", "4"), given("hash.seed", "\"7\""), given("engine.api_key", "\"***\"")];
    });
    expect(&settings, "engine.api_key", State::Asked, "\"***\"");
    expect(&settings, "key.tp", State::Set, "4");
    expect(&settings, "hash.seed", State::Set, "\"7\"");
    assert_eq!(find(&settings, "key.tp").why, "Given by flag --tp.");
}

#[test]
fn engines_that_differ_are_a_question() {
    let mut other = prefiller();
    other.facts = facts("llama", Some(16));
    other.dialect = Some("mooncake");
    let settings = drawn(vec![prefiller(), other], |_| {});
    for key in ["dialect.name", "hash.block_tokens", "fleet.model"] {
        assert_eq!(find(&settings, key).state, State::Question, "{key}");
    }
}

#[test]
fn engines_of_sglang_are_known_by_their_signs() {
    let settings = drawn(vec![FoundEngine { dialect: Some("sglang"), ..prefiller() }], |_| {});
    expect(&settings, "dialect.name", State::Asked, "\"sglang\"");
    assert!(find(&settings, "pool.kind").why.contains("--pool"));
    assert!(settings.iter().all(|one| one.key != "engine.lease_ms"));
}

#[test]
fn engines_in_development_mode_tell_of_connectors_leases_and_sizes() {
    let mut lease = connector("NixlConnector");
    lease.lease = Some(ToldLease::Ms(45_000));
    let mut told = described(&[lease, connector("MooncakeStoreConnector")]);
    told.as_mut().unwrap().sizes.tensor = Some(2);
    let settings = drawn(vec![FoundEngine { description: told, ..prefiller() }], |_| {});
    expect(&settings, "engine.lease_ms", State::Set, "45000");
    expect(&settings, "key.tp", State::Set, "2");
    expect(&settings, "pool.kind", State::Question, "\"mooncake\"");
    assert!(find(&settings, "pool.kind").why.contains("mooncake://HOST:50051?admin=9003"));

    let plain = described(&[connector("NixlConnector")]);
    let settings = drawn(vec![FoundEngine { description: plain, ..prefiller() }], |_| {});
    expect(&settings, "dialect.name", State::Asked, "\"kv_transfer\"");
    assert!(settings.iter().all(|one| !["pool.kind", "engine.lease_ms", "key.tp"].contains(&one.key)));

    for (name, dialect) in
        [("MooncakeLayerwiseConnector", "\"layerwise\""), ("MoRIIOConnector", "\"moriio\"")]
    {
        let settings =
            drawn(vec![FoundEngine { description: described(&[connector(name)]), ..prefiller() }], |_| {});
        expect(&settings, "dialect.name", State::Set, dialect);
    }
}

#[test]
fn connectors_of_pools_have_the_kind_of_theirs() {
    let ascend =
        |backend: &str| Connector { backend: Some(backend.to_owned()), ..connector("AscendStoreConnector") };
    for (connector, kind) in [
        (connector("MooncakeStoreConnector"), "\"mooncake\""),
        (ascend("memcache"), "\"memcache\""),
        (ascend("mooncake"), "\"mooncake\""),
        (connector("UCMConnector"), "\"ucm\""),
        (connector("EmsStoreConnector"), "\"ems\""),
        (connector("LMCacheConnectorV1"), "\"lmcache_controller\""),
        (connector("LMCacheMPConnector"), "\"lmcache_coordinator\""),
    ] {
        let engine = FoundEngine { description: described(&[connector]), ..prefiller() };
        expect(&drawn(vec![engine], |_| {}), "pool.kind", State::Question, kind);
    }
}

#[test]
fn the_seed_is_set_where_a_stored_prompt_was_found_by_it() {
    let seed = |trial: SeedTrial| {
        drawn(vec![prefiller()], |findings| {
            findings.has_pool = true;
            findings.seed = trial;
        })
    };
    expect(&seed(SeedTrial::Found(Some("0"))), "hash.seed", State::Set, "\"0\"");
    expect(&seed(SeedTrial::Found(None)), "hash.seed", State::Asked, "\"0\"");
    for trial in [SeedTrial::NoneFits, SeedTrial::NotMade] {
        expect(&seed(trial), "hash.seed", State::Question, "\"0\"");
    }
}

#[test]
fn engines_that_say_nothing_leave_questions() {
    let gap =
        |path| Gap { path, why: "404".to_owned(), status: Some(StatusCode::NOT_FOUND), is_unanswered: false };
    let silent = Facts {
        version: None,
        models: Vec::new(),
        cache: Ok(None),
        gaps: vec![gap("/version"), gap("/v1/models"), gap("/metrics")],
    };
    let engine = FoundEngine { facts: silent, dialect: None, ..prefiller() };
    let settings = drawn(vec![engine], |_| {});
    for key in ["dialect.name", "fleet.model", "prompt.model_path", "hash.block_tokens", "pool.kind"] {
        assert_eq!(find(&settings, key).state, State::Question, "{key}");
    }
}

#[test]
fn lease_that_is_no_time_is_a_question_that_names_it() {
    let told = |leases: &[ToldLease]| {
        let connectors =
            leases.iter().map(|told| Connector { lease: Some(told.clone()), ..connector("NixlConnector") });
        let connectors: Vec<Connector> = connectors.collect();
        drawn(vec![FoundEngine { description: described(&connectors), ..prefiller() }], |_| {})
    };
    let odd = ToldLease::NoTime("-5".to_owned());
    for leases in [vec![odd.clone()], vec![ToldLease::Ms(45_000), odd]] {
        let settings = told(&leases);
        expect(&settings, "engine.lease_ms", State::Question, "30_000");
        let why = &find(&settings, "engine.lease_ms").why;
        for part in ["kv_lease_duration", "NixlConnector is -5", "seconds above 0"] {
            assert!(why.contains(part), "{part} in {why}");
        }
    }
    expect(&told(&[ToldLease::Ms(45_000), ToldLease::Ms(20_000)]), "engine.lease_ms", State::Set, "20000");
}
