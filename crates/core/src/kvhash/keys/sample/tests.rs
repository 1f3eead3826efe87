use super::super::batch::KeyBatch;
use super::super::profile::{Ask, KeyProfile, PromptBlocks};
use super::super::ranks::KvShape;
use super::*;

fn config(preset: &str, model: &str, shape: KvShape) -> KeyConfig {
    KeyConfig::new(Preset::named(preset).unwrap(), model, shape)
}

fn shape() -> KvShape {
    KvShape { tp: 2, kv_heads: 8, block_tokens: 16, ..KvShape::default() }
}

/// Keys of `blocks` blocks, as the connector makes them.
fn keys(config: &KeyConfig, blocks: u8) -> Vec<String> {
    let bytes = config.hash_bytes.unwrap_or(config.preset.hash_bytes);
    let hashes: Vec<Vec<u8>> = (0..blocks).map(|n| vec![n.wrapping_mul(37) | 0x11; bytes]).collect();
    let mut batch = KeyBatch::default();
    let prompt = PromptBlocks::new(&hashes, u32::from(blocks) * config.shape.block_tokens);
    KeyProfile::new(config).unwrap().keys_of_prompt(&prompt, Ask::Every, &mut batch).unwrap();
    batch.iter().map(str::to_owned).collect()
}

/// The differing fields of the keys that `theirs` makes, under the profile `ours`: field, expected,
/// found.
fn differing(ours: &KeyConfig, theirs: &KeyConfig) -> Vec<(&'static str, Vec<String>, String)> {
    let judged = judge(ours, &keys(theirs, 3), true).unwrap();
    assert!(!judged.fits(), "{judged:?}");
    assert_eq!(judged.written_by, [], "{judged:?}");
    let told = |one: Difference| (one.field.name(), one.expected, one.found);
    judged.differences.into_iter().map(told).collect()
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn keys_of_every_preset_fit_their_own_profile() {
    for preset in Preset::all() {
        let layouts = [Layout::Whole, Layout::Layers, Layout::Gva, Layout::Shared];
        for layout in layouts.into_iter().filter(|layout| preset.template(*layout).is_ok()) {
            let mut config = config(preset.name, "org/Qwen3-8B", KvShape { layers: 2, ..shape() });
            config.layout = layout;
            config.dtype = "bfloat16".to_owned();
            config.python_minor = Some(12);
            if preset.whole.contains("{root}") {
                config.store = Store::Files { roots: owned(&["/mnt/a/", "/mnt/b"]) };
            }
            let keys = keys(&config, 8);
            let judged = judge(&config, &keys, true).unwrap();
            assert!(
                judged.fits() && judged.fitting == keys.len().min(MAX_SAMPLE_KEYS),
                "{judged:?} of {keys:?}"
            );
        }
    }
}

#[test]
fn the_field_that_differs_is_named() {
    let ours = config("mooncake-store-0.30", "org/Qwen3-8B", shape());
    let mut theirs = ours.clone();
    theirs.model = "org/Qwen3-8B-FP8".to_owned();
    let told = differing(&ours, &theirs);
    assert_eq!(told, [("model", owned(&["Qwen3-8B"]), "Qwen3-8B-FP8".to_owned())]);
    theirs = KeyConfig { prefix: "blue".to_owned(), ..ours.clone() };
    assert_eq!(differing(&ours, &theirs), [("prefix", owned(&[""]), "blue".to_owned())]);
    assert_eq!(differing(&theirs, &ours), [("prefix", owned(&["blue"]), String::new())]);
    theirs = KeyConfig { hash_bytes: Some(16), ..ours.clone() };
    assert_eq!(differing(&ours, &theirs), [("hash", owned(&["64"]), "32".to_owned())]);
    theirs = KeyConfig { namespace: "@store_tp:2".to_owned(), ..ours.clone() };
    assert_eq!(differing(&ours, &theirs), [("namespace", owned(&[""]), "@store_tp:2".to_owned())]);
    let mut wide = ours.clone();
    wide.shape.tp = 4;
    let told = differing(&ours, &wide);
    assert_eq!(
        told.iter().map(|one| (one.0, one.2.as_str())).collect::<Vec<_>>(),
        [("shard", "2"), ("shard", "3")]
    );
    wide.shape = KvShape { pp: 2, ..shape() };
    assert_eq!(differing(&ours, &wide), [("pp", owned(&["0"]), "1".to_owned())]);
}

#[test]
fn a_rank_that_never_writes_is_missed_when_there_are_enough_keys() {
    let ours = config("ascend-0.26", "org/Qwen3-8B", shape());
    let mut narrow = ours.clone();
    narrow.shape.tp = 1;
    let judged = judge(&ours, &keys(&narrow, 40), true).unwrap();
    assert_eq!((judged.fits(), judged.absent), (false, vec![(Field::Head, "1".to_owned())]));
    assert!(judge(&ours, &keys(&narrow, 40), false).unwrap().fits(), "only the beginning of a list was read");
    assert!(judge(&ours, &keys(&narrow, 10), true).unwrap().fits(), "too few to tell");
}

#[test]
fn another_release_is_recognised_by_its_template() {
    let ours = config("ascend-0.26", "org/Qwen3-8B", shape());
    let writer = |preset: &str| {
        let judged = judge(&ours, &keys(&config(preset, "org/Qwen3-8B", shape()), 4), true).unwrap();
        assert!(!judged.fits(), "{judged:?}");
        judged.written_by
    };
    assert_eq!(writer("ascend-0.30"), [("ascend-0.30", Layout::Whole)]);
    assert_eq!(
        writer("ascend-0.14"),
        ["ascend-0.13", "ascend-0.14", "ascend-0.19.1"].map(|n| (n, Layout::Whole))
    );
    assert_eq!(
        writer("mooncake-store-0.30"),
        ["mooncake-store-0.22", "mooncake-store-0.24", "mooncake-store-0.30"].map(|n| (n, Layout::Whole))
    );
    // A template with fewer fields can be read into one with more: the model's name takes them.
    let fewer = config("ascend-0.30", "org/Qwen3-8B", shape());
    assert_eq!(judge(&fewer, &keys(&ours, 4), true).unwrap().written_by, [("ascend-0.26", Layout::Whole)]);
    let mut layers = ours.clone();
    layers.layout = Layout::Layers;
    assert_eq!(
        judge(&ours, &keys(&layers, 4), true).unwrap().written_by,
        [("ascend-0.26", Layout::Layers)],
        "the preset is right, its layout is not"
    );
}

#[test]
fn strangers_in_a_shared_pool_are_no_fault_and_keys_of_no_form_are_shown() {
    let ours = config("mooncake-store-0.30", "org/Qwen3-8B", shape());
    let mut all = keys(&ours, 3);
    all.extend(keys(&config("mooncake-store-0.30", "Llama-3", shape()), 5));
    all.push("something else".to_owned());
    let judged = judge(&ours, &all, true).unwrap();
    assert!(judged.fits() && judged.fitting == 6 && judged.unread == 1, "{judged:?}");
    let strange = judge(&ours, &owned(&["something else", "", "@@@@"]), true).unwrap();
    assert_eq!(
        (strange.unread, strange.written_by, strange.example.as_deref()),
        (3, vec![], Some("something else"))
    );
    assert_eq!(judge(&ours, &[], true).unwrap(), Judgement::default());
}

#[test]
fn a_hostile_key_ends() {
    let mut ours = config("mooncake-store-0.30", "m", shape());
    ours.template = Some("{model}{prefix}{namespace}{dtype}{full_model}@{hash}".to_owned());
    let judged = judge(&ours, &["@".repeat(1000), "a@".repeat(500)], true).unwrap();
    assert_eq!(judged.unread, 2);
}
