use std::time::{Duration, Instant};

use super::*;
use crate::config::{HashAlgo, HashScheme};
use crate::dialect::facts::{CacheFacts, ModelFact};
use crate::prompt::{Exactness, Prompt};

fn engine(port: u16, change: impl FnOnce(&mut Facts)) -> Published {
    let cache = CacheFacts {
        block_tokens: Some(32),
        hash_algo: Some("sha256_cbor".to_owned()),
        prefix_caching: Some(true),
        hash_block_tokens: None,
        ranks: 1,
    };
    let card = |id: &str, root: &str, parent: Option<&str>| ModelFact {
        id: id.to_owned(),
        root: Some(root.to_owned()),
        parent: parent.map(str::to_owned),
        max_model_len: None,
    };
    let mut facts = Facts {
        version: Some("0.32.0".to_owned()),
        models: vec![card("qwen", "/models/Qwen3-8B", None), card("sql", "/adapters/sql", Some("qwen"))],
        cache: Ok(Some(cache)),
        gaps: Vec::new(),
    };
    change(&mut facts);
    Published { engine: Endpoint::new("p", port), facts }
}

fn cache(facts: &mut Facts) -> &mut CacheFacts {
    facts.cache.as_mut().unwrap().as_mut().unwrap()
}

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    config.hash.seed = Some("0".to_owned());
    change(&mut config);
    config
}

fn refused(config: &Config, published: &[Published]) -> String {
    naming(config, published).unwrap_err().to_string()
}

#[test]
fn the_engines_fill_what_is_left_out() {
    let config = config(|c| c.key.preset = Some("mooncake-store-0.30".to_owned()));
    let naming = naming(&config, &[engine(1, |_| ()), engine(2, |_| ())]).unwrap();
    assert_eq!(naming.hasher.block_tokens().get(), 32);
    assert_eq!(naming.keys.as_ref().unwrap().block_tokens(), 32);
    let models = naming.models.unwrap();
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names, ["qwen", "sql"]);
    assert_eq!(models[1].adapter_path.as_deref(), Some("/adapters/sql"));
}

#[test]
fn unpublished_fact_is_missing_and_may_come() {
    let none = naming(&config(|_| ()), &[]).unwrap_err();
    assert!(none.may_pass());
    assert_eq!(none.to_string(), "hash.algo is not set, and no engine has said it (/metrics)");
    let quiet = engine(1, |facts| facts.version = None);
    assert_eq!(
        refused(&config(|_| ()), &[quiet]),
        "hash.version is not set, and no engine has said it (/version)"
    );
}

#[test]
fn a_contradiction_names_both() {
    let config_says = config(|c| c.hash.block_tokens = 64);
    assert_eq!(
        refused(&config_says, &[engine(1, |_| ())]),
        "the block size: the configuration (hash.block_tokens) says 64, but engine p:1 (/metrics) says 32: \
         they must be the same, or the gateway and the engines hash differently"
    );
    let other_release = engine(2, |facts| facts.version = Some("0.30.1".to_owned()));
    assert_eq!(
        refused(&config(|_| ()), &[engine(1, |_| ()), other_release]),
        "vLLM's release: engine p:1 (/version) says 0.32.0, but engine p:2 (/version) says 0.30.1: \
         they must be the same, or the gateway and the engines hash differently"
    );
    let model = config(|c| {
        c.key.preset = Some("mooncake-store-0.30".to_owned());
        c.key.model = Some("/models/other".to_owned());
    });
    let said = refused(&model, &[engine(1, |_| ())]);
    assert!(
        said.contains("(key.model) says /models/other, but engine p:1 (/v1/models) says /models/Qwen3-8B"),
        "{said}"
    );
    let ranks = engine(3, |facts| {
        let values = [Some("32".to_owned()), None];
        facts.cache = Err(crate::dialect::facts::Contradiction { label: "block_size", values });
    });
    let said = refused(&config(|_| ()), &[ranks]);
    assert!(said.starts_with("block_size: one rank of engine p:3 (/metrics) says 32, but another"), "{said}");
}

#[test]
fn packagers_suffixes_are_no_contradiction() {
    let config = config(|c| c.hash.version = Some("0.32.0".to_owned()));
    let built = engine(1, |facts| facts.version = Some("0.32.0+cu130".to_owned()));
    assert!(naming(&config, &[built]).is_ok());
}

#[test]
fn configuration_errors_are_refused_early() {
    for (change, said) in [
        (
            (|c| c.key.preset = Some("mooncake".to_owned())) as fn(&mut Config),
            "key.preset = \"mooncake\": there is no key preset `mooncake`: did you mean `mooncake-store-0.30`?",
        ),
        (
            |c| {
                c.hash.algo = HashAlgo::Xxhash;
                c.hash.seed = None;
            },
            "[hash]: without PYTHONHASHSEED, xxhash block hashes differ in every engine process: set it",
        ),
        (
            |c| c.hash.algo = HashAlgo::Blake3,
            "hash.algo = \"blake3\": this scheme has sha256, sha256_cbor, xxhash or xxhash_cbor",
        ),
        (
            |c| c.hash.version = Some("0.9".to_owned()),
            "hash.version = \"0.9\": block hashes of vLLM 0.9.0 are unknown: 0.10.2 is the oldest",
        ),
        (
            |c| {
                c.key.preset = Some("ascend-0.26".to_owned());
                c.key.groups = vec!["64:windowed".to_owned()];
            },
            "key.groups = \"64:windowed\": the kind is one of full, mla, window, mamba",
        ),
        (
            |c| {
                c.key.preset = Some("ascend-0.19.1".to_owned());
                (c.key.pcp, c.key.pp) = (2, 2);
            },
            "key.preset = \"ascend-0.19.1\": AscendStore of this version writes wrong pp_rank values when pcp and pp are both above 1",
        ),
        (
            |c| c.hash.scheme = HashScheme::Ucm,
            "hash.release is not set, and engines don't publish it: UCM needs it",
        ),
    ] {
        let refusal = refuse_early(&config(change)).err().map(|trouble| trouble.to_string());
        assert_eq!(refusal.unwrap_or_default(), said);
    }
    assert_eq!(refuse_early(&Config::default()), Ok(()));
}

#[test]
fn the_presets_connector_chooses_the_scheme() {
    let block_tokens = |preset: &str, change: fn(&mut Config)| {
        let config = config(|c| {
            c.key.preset = Some(preset.to_owned());
            change(c);
        });
        naming(&config, &[engine(1, |_| ())]).map(|n| (n.hasher.block_tokens().get(), n.hasher.hash_bytes()))
    };
    assert_eq!(block_tokens("ascend-0.26", |_| ()), Ok((32, 32)));
    let ucm = |c: &mut Config| {
        c.hash.release = Some("0.4".to_owned());
        c.key.dtype = "torch.bfloat16".to_owned();
        c.key.store = crate::config::KeyStore::Files;
        c.key.roots = vec!["/ucm".to_owned()];
    };
    assert_eq!(block_tokens("ucm-posix", ucm), Ok((32, 16)));
    let lmcache = |c: &mut Config| {
        c.key.python_minor = 12;
        c.key.dtype = "bfloat16".to_owned();
    };
    assert_eq!(block_tokens("lmcache-builtin", lmcache), Ok((256, 8)), "chunks are LMCache's own");
    assert_eq!(block_tokens("lmcache-mp", |_| ()), Ok((256, 32)));
    for name in ["ascend-legacy-0.10", "ascend-store-v1"] {
        assert_eq!(block_tokens(name, |_| ()), Ok((32, 32)), "{name}");
    }
}

#[test]
fn engines_hash_for_their_events_as_vllm_does_whatever_the_pool_does() {
    let events = |change: fn(&mut Config)| {
        config(|c| {
            c.events.listen = true;
            change(c);
        })
    };
    let engines = [engine(1, |_| ())];
    let plain = naming(&events(|_| ()), &engines).unwrap();
    assert!(plain.engine_hasher.is_none(), "they are the same");
    let ems = naming(&events(|c| c.hash.scheme = HashScheme::Ems), &engines).unwrap();
    let tokens: Vec<u32> = (0..64).collect();
    let prompt = Prompt { tokens: tokens.clone().into(), exactness: Exactness::Exact };
    let of_engine = ems.engine_hashes(&prompt, None, None).unwrap().unwrap();
    assert_eq!(of_engine, plain.hashes(&tokens, None, None).unwrap());
    assert_ne!(of_engine, ems.hashes(&tokens, None, None).unwrap());
    assert!(naming(&config(|c| c.hash.scheme = HashScheme::Ems), &engines).unwrap().engine_hasher.is_none());
    let lmcache = events(|c| {
        (c.hash.scheme, c.hash.algo) = (HashScheme::LmcacheMp, HashAlgo::Blake3);
    });
    assert_eq!(
        refuse_early(&lmcache).unwrap_err().to_string(),
        "events.listen = \"true\": [hash] is of LMCache's chunks: how the engines hash for their own events can't be \
         told beside it"
    );
}

#[test]
fn context_parallel_engines_hash_longer_blocks() {
    let wide = config(|c| (c.key.tp, c.key.dcp, c.key.pcp) = (4, 2, 2));
    let of = |version: &str| {
        let engine = engine(1, |facts| facts.version = Some(version.to_owned()));
        naming(&wide, &[engine]).unwrap().hasher.block_tokens().get()
    };
    assert_eq!(of("0.24.0"), 128);
    assert_eq!(of("0.26.0"), 64);
    let published = engine(1, |facts| cache(facts).hash_block_tokens = Some(16));
    assert_eq!(naming(&wide, &[published]).unwrap().hasher.block_tokens().get(), 16, "its own word wins");
}

#[test]
fn upstream_keys_are_of_the_schedulers_blocks() {
    let block_tokens = |version: &str, preset: &str, change: fn(&mut Config)| {
        let config = config(|c| {
            (c.key.preset, c.key.tp) = (Some(preset.to_owned()), 4);
            change(c);
        });
        let engine = engine(1, |facts| facts.version = Some(version.to_owned()));
        let naming = naming(&config, &[engine]).unwrap();
        let keys = naming.keys.unwrap();
        assert_eq!(usize::try_from(keys.hash_tokens()), Ok(naming.hasher.block_tokens().get()));
        keys.block_tokens()
    };
    let wide: fn(&mut Config) = |c| (c.key.dcp, c.key.pcp) = (2, 2);
    assert_eq!(block_tokens("0.22.0", "mooncake-store-0.22", wide), 128);
    assert_eq!(block_tokens("0.24.0", "mooncake-store-0.24", wide), 128);
    assert_eq!(block_tokens("0.26.0", "mooncake-store-0.24", wide), 64);
    let named: fn(&mut Config) = |c| (c.key.dcp, c.key.groups) = (2, vec!["32:full".to_owned()]);
    assert_eq!(block_tokens("0.32.0", "mooncake-store-0.30", named), 64, "the same group, spelled out");
    assert_eq!(block_tokens("0.32.0", "mooncake-store-0.30", |_| ()), 32);
    let early =
        config(|c| (c.key.preset, c.key.tp, c.key.dcp) = (Some("mooncake-store-0.30".to_owned()), 2, 2));
    assert_eq!(refuse_early(&early), Ok(()));
}

#[test]
fn ucm_loads_the_blocks_of_context_parallel_ranks_together_and_counts_these_as_one() {
    let ucm = |change: fn(&mut Config)| {
        let config = config(|c| {
            (c.hash.release, c.key.dtype) = (Some("0.8.0".to_owned()), "torch.bfloat16".to_owned());
            (c.key.preset, c.key.store) = (Some("ucm-posix".to_owned()), crate::config::KeyStore::Files);
            (c.key.roots, c.key.tp) = (vec!["/ucm".to_owned()], 4);
            change(c);
        });
        naming(&config, &[engine(1, |_| ())])
    };
    let tokens: Vec<u32> = (0..64).collect();
    let of = |change: fn(&mut Config)| {
        let naming = ucm(change).unwrap();
        let hashes = naming.hashes(&tokens, None, None).unwrap();
        let keys = naming.keys.unwrap();
        (keys.block_tokens(), keys.unit_tokens(), hashes)
    };
    let (block, unit, four_ranks) = of(|_| ());
    assert_eq!((block, unit), (32, 32));
    let (block, unit, of_two) = of(|c| (c.key.dcp, c.key.pcp) = (2, 2));
    assert_eq!((block, unit), (32, 128));
    assert_eq!(of_two, of(|c| c.key.tp = 2).2);
    assert_ne!(of_two, four_ranks);
    assert_eq!(
        of(|c| (c.key.mla, c.key.dcp) = (true, 2)).2,
        four_ranks,
        "latent attention has no heads to divide"
    );
    assert_eq!(
        ucm(|c| c.key.dcp = 3).unwrap_err().to_string(),
        "key.dcp = \"3\": key.tp is 4: set one that divides it, UCM's ids have their quotient in them"
    );
}

#[test]
fn many_engines_with_many_adapters_are_compared_at_once() {
    let adapter = |at: usize| ModelFact {
        id: format!("adapter-with-a-name-of-some-length-{at:05}"),
        root: Some("/adapters".to_owned()),
        parent: Some("qwen".to_owned()),
        max_model_len: None,
    };
    let engines: Vec<Published> =
        (0..100).map(|port| engine(port, |facts| facts.models.extend((0..2_000).map(adapter)))).collect();
    let began = Instant::now();
    let models = naming(&config(|_| ()), &engines).unwrap().models.unwrap();
    assert_eq!(models.len(), 2_002);
    // Each with each would be 200 million comparisons, half a minute in a build for tests.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn harmless_differences_are_no_contradiction() {
    let fine = |change: fn(&mut Config), engines: &[Published]| naming(&config(change), engines).map(drop);
    let patched = engine(2, |facts| facts.version = Some("0.32.4".to_owned()));
    assert_eq!(fine(|_| (), &[engine(1, |_| ()), patched]), Ok(()), "both hash alike");
    let next = engine(2, |facts| facts.version = Some("0.33.0".to_owned()));
    assert_eq!(fine(|_| (), &[engine(1, |_| ()), next]), Ok(()), "so do these, without lookahead");
    let elsewhere = engine(2, |facts| facts.models[0].root = Some("/mnt/Qwen3-8B/".to_owned()));
    let pool = |c: &mut Config| c.key.preset = Some("mooncake-store-0.30".to_owned());
    assert_eq!(fine(pool, &[engine(1, |_| ()), elsewhere]), Ok(()), "keys have the last component only");
    let other_hash = engine(2, |facts| cache(facts).hash_algo = Some("sha256".to_owned()));
    assert_eq!(fine(|c| c.hash.scheme = HashScheme::Ems, &[engine(1, |_| ()), other_hash]), Ok(()));
}

#[test]
fn only_the_configurations_own_contradictions_stop_the_start() {
    let other = engine(2, |facts| cache(facts).block_tokens = Some(64));
    let trouble = naming(&config(|_| ()), &[engine(1, |_| ()), other]).unwrap_err();
    assert!(!trouble.is_configured() && !trouble.may_pass());
    let trouble = naming(&config(|c| c.hash.block_tokens = 64), &[engine(1, |_| ())]).unwrap_err();
    assert!(trouble.is_configured());
}

#[test]
fn a_preset_of_another_release_or_of_other_blocks_is_refused() {
    let pool = |preset: &str| config(|c| c.key.preset = Some(preset.to_owned()));
    let old = engine(1, |facts| facts.version = Some("0.24.0".to_owned()));
    assert_eq!(
        refused(&pool("mooncake-store-0.30"), &[old]),
        "key.preset = \"mooncake-store-0.30\": the engines are vLLM 0.24.0, whose keys are those of mooncake-store-0.24"
    );
    let finer = engine(1, |facts| cache(facts).hash_block_tokens = Some(16));
    let ucm = config(|c| {
        c.key.preset = Some("ascend-0.26".to_owned());
        (c.key.tp, c.key.dcp) = (2, 2);
        c.hash.scheme = HashScheme::Ems;
    });
    assert!(refused(&ucm, &[finer]).starts_with("key.preset = \"ascend-0.26\": "));
}

#[test]
fn a_release_that_is_none_is_said() {
    let built = engine(1, |facts| facts.version = Some("dev".to_owned()));
    assert_eq!(
        refused(&config(|_| ()), std::slice::from_ref(&built)),
        "hash.version = \"dev\": an engine says so, and it is no release known here: set the one that it hashes like"
    );
    assert!(naming(&config(|c| c.hash.version = Some("0.32.0".to_owned())), &[built]).is_ok());
}

#[test]
fn groups_do_not_need_the_block_size_to_be_looked_at() {
    let hybrid = config(|c| {
        c.key.preset = Some("ascend-0.26".to_owned());
        c.key.groups = vec!["64:full".to_owned(), "64:window".to_owned()];
    });
    assert_eq!(refuse_early(&hybrid), Ok(()));
}
