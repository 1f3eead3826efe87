//! Facts of the model that its `config.json` has: they fill keys that are not set, and are compared
//! with those that are.

use super::load::{Origin, Origins};
use super::{Config, KeyLayout};
use serde_json::Value as Json;
use std::fs::Metadata;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The longest `config.json` that is read, bytes: the largest known have some hundred thousand.
const MAX_BYTES: u64 = 1 << 20;

/// A fact in the file.
struct ModelFact {
    /// Key of the configuration.
    key: &'static str,
    /// Member of the file.
    member: &'static str,
    value: u32,
}

/// Fills `key.kv_heads`, `key.mla` and `key.layers` from the file in `prompt.model_path`, where
/// blocks have keys and these are not set; returns a line for each that is set otherwise, and one
/// where the file would matter and can't be read.
pub(super) fn fill(config: &mut Config, origins: &mut Origins) -> Vec<String> {
    let Some(path) = config.prompt.model_path.as_ref() else { return Vec::new() };
    let path = PathBuf::from(path).join("config.json");
    let has_keys = config.key.preset.is_some();
    let model = match read(&path) {
        Ok(model) if has_keys => model,
        Ok(_) => return Vec::new(),
        Err(why) => return unread(config, origins, &UnreadFile { path: &path, why }),
    };
    let mut warnings = Vec::new();
    for fact in facts(config, &model) {
        let (set, now) = (*origins.of(fact.key) != Origin::Default, fact.of(config));
        if !set && now != fact.value {
            fact.put(config);
            origins.filled(fact.key, &path);
        } else if set && now != fact.value {
            let ModelFact { key, member, .. } = fact;
            warnings.push(format!(
                "{key} is {}, and {} says {} ({member}): blocks would have other names than the engines'; leave the key out, unless the engines are told otherwise, too",
                fact.shown(now),
                path.display(),
                fact.shown(fact.value),
            ));
        }
    }
    warnings
}

fn facts(config: &Config, model: &Json) -> Vec<ModelFact> {
    // Models with other inputs keep what is of their text apart.
    let text = model.get("text_config").filter(|text| text.is_object()).unwrap_or(model);
    let number = |member: &str| {
        let number = text.get(member).or_else(|| model.get(member))?.as_u64()?;
        u32::try_from(number).ok().filter(|number| (1..=MAX_NUMBER).contains(number))
    };
    if number("kv_lora_rank").is_some() {
        return vec![ModelFact { key: "key.mla", member: "kv_lora_rank", value: 1 }];
    }
    // Without the first, each head has its own KV.
    let heads = ["num_key_value_heads", "num_attention_heads"];
    let heads = heads.into_iter().find_map(|member| Some((member, number(member)?)));
    let mut facts: Vec<ModelFact> =
        heads.into_iter().map(|(member, value)| ModelFact { key: "key.kv_heads", member, value }).collect();
    let layers = number("num_hidden_layers").filter(|layers| layers.is_multiple_of(config.key.pp.max(1)));
    if let Some(layers) = layers.filter(|_| config.key.layout != KeyLayout::Whole) {
        let value = layers / config.key.pp.max(1);
        facts.push(ModelFact { key: "key.layers", member: "num_hidden_layers", value });
    }
    facts
}

/// More heads or layers than any model has.
const MAX_NUMBER: u32 = 4_096;

impl ModelFact {
    /// The value that the configuration has.
    fn of(&self, config: &Config) -> u32 {
        match self.key {
            "key.mla" => u32::from(config.key.mla),
            "key.layers" => config.key.layers,
            _ => config.key.kv_heads,
        }
    }

    fn put(&self, config: &mut Config) {
        match self.key {
            "key.mla" => config.key.mla = self.value > 0,
            "key.layers" => config.key.layers = self.value,
            _ => config.key.kv_heads = self.value,
        }
    }

    /// A value of the key, as it is written.
    fn shown(&self, value: u32) -> String {
        if self.key == "key.mla" { (value > 0).to_string() } else { value.to_string() }
    }
}

/// A file that can't be read, and the reason.
struct UnreadFile<'a> {
    path: &'a Path,
    why: std::io::Error,
}

/// A line of what is not known without the file, if that matters.
fn unread(config: &Config, origins: &Origins, file: &UnreadFile<'_>) -> Vec<String> {
    let heads = config.key.kv_heads;
    let needs_heads = config.key.preset.is_some()
        && config.key.tp > 1
        && !config.key.mla
        && *origins.of("key.kv_heads") == Origin::Default;
    let without = match (file.why.kind() == ErrorKind::NotFound, needs_heads) {
        (true, false) => return Vec::new(),
        (_, true) => format!(
            "key.kv_heads is {heads}, though with key.tp = {} each rank may have keys of its own: set it (or key.mla), or mend the file",
            config.key.tp
        ),
        (false, false) => {
            "sizes of keys are what is set, and the way in which engines render chats is taken to be a template: mend the file".to_owned()
        }
    };
    vec![format!("{}: {}: {without}", file.path.display(), file.why)]
}

/// Facts of a model's file, which is there for good: reading a pipe might never end.
///
/// # Errors
/// It is none, or can't be looked at.
pub fn regular_file(path: &Path) -> Result<Metadata, std::io::Error> {
    let found = path.metadata()?;
    if found.is_file() { Ok(found) } else { Err(std::io::Error::other("it is no regular file")) }
}

fn read(path: &Path) -> Result<Json, std::io::Error> {
    let mut text = String::new();
    regular_file(path)?;
    std::fs::File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use crate::cli::ServeArgs;
    use crate::config::{Config, Env, Loaded};

    fn loaded(json: &str, sets: &[&str]) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), json).unwrap();
        let args = ServeArgs {
            model_path: Some(dir.path().display().to_string()),
            set: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..ServeArgs::default()
        };
        Config::load(&args, &Env::new()).unwrap()
    }

    const PRESET: &str = "key.preset=mooncake-store-0.30";
    const QWEN: &str = r#"{"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36}"#;

    #[test]
    fn sizes_that_are_not_set_come_from_the_model() {
        let loaded = loaded(QWEN, &[PRESET]);
        assert_eq!((loaded.config.key.kv_heads, loaded.config.key.layers), (8, 1));
        let origin = loaded.origins.of("key.kv_heads").to_string();
        assert!(origin.starts_with("file /") && origin.ends_with("/config.json"), "{origin}");
        assert_eq!(loaded.warnings, Vec::<String>::new());
    }

    #[test]
    fn a_file_that_is_half_there_is_warned_of() {
        let half = loaded(r#"{"num_key"#, &[PRESET, "key.tp=4"]);
        assert_eq!(half.config.key.kv_heads, 1);
        let [warning] = &half.warnings[..] else { panic!("{:?}", half.warnings) };
        assert!(warning.contains("/config.json: EOF while parsing"), "{warning}");
        assert!(warning.contains("key.kv_heads is 1, though with key.tp = 4"), "{warning}");
        let [warning] = &loaded("", &[]).warnings[..] else { panic!("one") };
        assert!(warning.contains("mend the file"), "{warning}");
        for set in ["key.kv_heads=8", "key.mla=true"] {
            let warnings = loaded(QWEN, &[PRESET, "key.tp=4", set]).warnings;
            assert!(!warnings.iter().any(|line| line.contains("mend")), "{warnings:?}");
        }
    }

    #[test]
    fn other_kinds_of_models_have_theirs() {
        let key = |json: &str, sets: &[&str]| loaded(json, sets).config.key;
        let layered = key(QWEN, &["key.preset=ascend-0.26", "key.layout=layers", "key.pp=2"]);
        assert_eq!((layered.kv_heads, layered.layers), (8, 18));
        let latent = key(r#"{"kv_lora_rank": 512, "num_key_value_heads": 128}"#, &[PRESET]);
        assert_eq!((latent.mla, latent.kv_heads), (true, 1));
        assert_eq!(key(r#"{"text_config": {"num_key_value_heads": 4}}"#, &[PRESET]).kv_heads, 4);
        assert_eq!(key(r#"{"num_attention_heads": 12}"#, &[PRESET]).kv_heads, 12);
        for odd in ["[]", r#"{"num_key_value_heads": "8"}"#, r#"{"num_key_value_heads": 0}"#] {
            assert_eq!(key(odd, &[PRESET]).kv_heads, 1, "{odd}");
        }
        assert_eq!(key(QWEN, &[]).kv_heads, 1, "no keys");
    }

    #[test]
    fn a_size_that_is_set_stays_and_a_conflict_is_told() {
        let other = loaded(QWEN, &[PRESET, "key.kv_heads=4"]);
        assert_eq!(other.config.key.kv_heads, 4);
        let [line] = &other.warnings[..] else { panic!("{:?}", other.warnings) };
        assert!(
            line.contains("key.kv_heads is 4, and /") && line.contains("says 8 (num_key_value_heads)"),
            "{line}"
        );
        assert_eq!(loaded(QWEN, &[PRESET, "key.kv_heads=8"]).warnings, Vec::<String>::new());
        let mla = loaded(r#"{"kv_lora_rank": 512}"#, &[PRESET, "key.mla=false"]);
        assert!(mla.warnings.iter().any(|line| line.contains("key.mla is false")), "{:?}", mla.warnings);
    }
}
