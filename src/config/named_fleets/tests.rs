use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::cli::ServeArgs;
use crate::config::{DialectName, Env, Loaded};

struct Files {
    dir: TempDir,
}

impl Files {
    fn with(text: &str) -> (Files, PathBuf) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("a.toml");
        std::fs::write(&path, text).unwrap();
        (Files { dir }, path)
    }
}

fn load(text: &str, sets: &[&str], env: &[(&str, &str)]) -> Result<Loaded, String> {
    let (files, path) = Files::with(text);
    let set = sets.iter().map(|set| (*set).to_owned()).collect();
    let args = ServeArgs { config: vec![path], set, ..ServeArgs::default() };
    let env: Env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let loaded = Config::load(&args, &env).map_err(|errors| errors.to_string());
    let folder = format!("{}/", files.dir.path().display());
    loaded.map_err(|text| text.replace(&folder, ""))
}

const TWO: &str = "
[route]
policy = \"round_robin\"
cache_tokens = 5
[fleets.chat.fleet]
prefill = [\"p:1\"]
decode = [\"d:1\"]
model = \"chat\"
[fleets.code.fleet]
prefill = [\"p:2\"]
decode = [\"d:2\"]
model = \"code\"
[fleets.code.dialect]
name = \"sglang\"
[fleets.code.route]
cache_tokens = 7
";

#[test]
fn fleets_take_what_they_do_not_say_from_the_top_level() {
    let sets = ["fleets.chat.retry.attempts=9"];
    let env = [("PD_PROXY__FLEETS__CODE__TIMEOUT__TOTAL_MS", "5s")];
    let loaded = load(TWO, &sets, &env).unwrap();
    let fleets = loaded.config.served_fleets();
    assert_eq!(fleets.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["chat", "code"]);
    let (chat, code) = (fleets[0].1, fleets[1].1);
    assert_eq!((chat.route.cache_tokens, code.route.cache_tokens), (5, 7));
    assert_eq!(chat.route.policy.name(), "round_robin");
    assert_eq!(code.route.policy.name(), "round_robin");
    assert_eq!((chat.dialect.name, code.dialect.name), (DialectName::Auto, DialectName::Sglang));
    assert_eq!((chat.retry.attempts, code.timeout.total_ms), (9, 5_000));
    assert_eq!(chat.fleet.prefill, ["p:1"]);
    let origins = &loaded.config.fleets[0].origins;
    assert_eq!(origins.of("retry.attempts").to_string(), "flag --set");
    assert!(origins.of("route.policy").to_string().ends_with("a.toml"));
    assert_eq!(*loaded.config.fleets[1].origins.of("retry.attempts"), Origin::Default);
    let shown = crate::config::report::render(&loaded);
    assert!(shown.contains("[fleets.code.route]\ncache_tokens") && shown.contains("# flag --set"), "{shown}");
    assert!(!shown.contains("[fleets.chat.route]"), "{shown}");
}

#[test]
fn configuration_without_fleets_is_the_default_one() {
    let loaded = load("[fleet]\nprefill = [\"p:1\"]\n", &[], &[]).unwrap();
    let [(DEFAULT_NAME, config)] = loaded.config.served_fleets()[..] else { panic!("one fleet") };
    assert_eq!(config.fleet.decode, ["localhost:8002"]);
    assert!(loaded.into_fleet(None).is_ok());
}

#[test]
fn command_names_the_fleet_that_it_is_about() {
    let loaded = load(TWO, &[], &[]).unwrap();
    let of = |name| loaded.clone().into_fleet(name);
    assert_eq!(of(Some("code")).unwrap().config.fleet.prefill, ["p:2"]);
    for (name, said) in [(None, "--fleet is missing"), (Some("x"), "--fleet x")] {
        let error = of(name).unwrap_err().to_string();
        assert_eq!(error, format!("{said}: expected one of chat, code"));
    }
}

#[test]
fn everything_wrong_with_fleets_is_told_at_once() {
    let text = "
[fleet]
prefill = [\"p:9\"]
[limit]
inflight = 0
[fleets.Chat.fleet]
prefill = [\"p:1\"]
[fleets.empty]
[fleets.one.fleet]
prefill = [\"p:1\", \"p:1\"]
decode = [\"d:1\"]
model = \"m\"
aliases = [\"a=b\", \"b=a\", \"c\"]
[fleets.one.server]
port = 1
[fleets.one.timeout]
body_ms = 1
[fleets.one.route]
polcy = \"random\"
[fleets.two.fleet]
prefill = [\"p:2\"]
decode = [\"d:1\"]
aliases = [\"m=x\"]
";
    let found = load(text, &[], &[]).unwrap_err();
    let lines: Vec<&str> = found.lines().collect();
    for wanted in [
        "file a.toml: [fleets.Chat]: expected a name of small letters",
        "file a.toml: fleets.one.server.port: server.port is one for all fleets: set it at the top level",
        "file a.toml: fleets.one.timeout.body_ms: timeout.body_ms is one for all fleets",
        "file a.toml: unknown key fleets.one.route.polcy: did you mean fleets.one.route.policy?",
        "file a.toml: fleet.prefill belongs to one fleet: set it as fleets.empty.fleet.prefill",
        "file a.toml: limit.inflight = 0: expected 1 to",
        "default: in [fleets.empty]: fleet.decode lists 0 engines",
        "file a.toml: in [fleets.one]: fleet.prefill: `p:1` is listed twice",
        "file a.toml: in [fleets.one]: fleet.aliases: `c` is no alias",
        "file a.toml: in [fleets.one]: fleet.aliases: `a` leads to `b`, which is an alias itself",
        "file a.toml: in [fleets.two]: fleet.decode: `d:1` is an engine of [fleets.one] and [fleets.two]",
        "file a.toml: in [fleets.two]: fleet.aliases: the model name `m` is claimed twice",
    ] {
        assert_eq!(lines.iter().filter(|line| line.starts_with(wanted)).count(), 1, "{wanted}\n{found}");
    }
}

#[test]
fn misplaced_keys_are_told_with_the_place_where_they_belong() {
    let text = TWO.replace("[fleets.chat.fleet]", "[fleet.chat.fleet]") + "[fleets.a]\nprefill = [\"p:3\"]\n";
    let found = load(&text, &["fleets.zzz.retry.attempts=1"], &[]).unwrap_err();
    for wanted in [
        "file a.toml: unknown key fleet.chat: did you mean [fleets.chat.fleet]?",
        "file a.toml: unknown key fleets.a.prefill: did you mean fleets.a.fleet.prefill?",
        "flag --set: there is no [fleets.zzz]: expected one of a, code, or its engines as well",
    ] {
        assert_eq!(found.lines().filter(|line| line.starts_with(wanted)).count(), 1, "{wanted}\n{found}");
    }
    assert!(!found.contains("in [fleets.zzz]"), "{found}");
}

#[test]
fn everything_wrong_with_shared_models_is_told_at_once() {
    let text = format!(
        "{TWO}[models]
targets = [\"m=chat:1 x:1\", \"m=chat:1\", \"n=chat:many\", \"o=chat:0\", \"p=cloud:1\", \"q=chat:1 chat:2\"]
fallback = [\"chat=chat\", \"r=nowhere\", \"s=\"]
[fleets.cloud.fleet]
remote = \"http://h/v1\"
[fleets.cloud.pool]
kind = \"mooncake\"
[fleets.cloud.engine]
api_key_file = \"/nowhere/key\"
[fleets.code.engine]
api_key = \"k\"
api_key_file = \"/nowhere/key\"
"
    )
    .replace("model = \"code\"", "model = \"code\"\naliases = [\"c=chat\"]");
    let found = load(&text, &[], &[]).unwrap_err();
    let lines: Vec<&str> = found.lines().collect();
    for wanted in [
        "file a.toml: models.targets: the weight `many` of the fleet chat for `n` is no number from 0 up",
        "file a.toml: models.targets: all weights are 0 for `o`",
        "file a.toml: models.targets: the model `m` has two entries",
        "file a.toml: models.targets: the entry for `m` names the fleet x, and there is no [fleets.x]; there are chat, cloud, code",
        "file a.toml: models.targets: cloud (for `p`) has fleet.remote",
        "file a.toml: models.targets: the entry for `q` names the fleet chat twice",
        "file a.toml: models.fallback: requests for `chat` go to the fleet chat already",
        "file a.toml: models.fallback: the entry for `r` names the fleet nowhere",
        "file a.toml: models.fallback: `s=`: expected model=fleet fleet",
        "file a.toml: in [fleets.cloud]: fleet.remote needs fleet.model",
        "file a.toml: in [fleets.cloud]: fleet.remote with pool.kind",
        "file a.toml: in [fleets.cloud]: engine.api_key_file: `/nowhere/key` can't be read",
        "file a.toml: in [fleets.code]: engine.api_key and engine.api_key_file are both set",
        "file a.toml: in [fleets.code]: fleet.aliases: `c` leads to `chat`, which is the model of [fleets.chat]",
    ] {
        assert_eq!(lines.iter().filter(|line| line.starts_with(wanted)).count(), 1, "{wanted}\n{found}");
    }
}

#[test]
fn api_elsewhere_takes_no_key_of_engines_and_is_no_engine() {
    let dir = TempDir::new().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, " sk-cloud\n").unwrap();
    let text = format!(
        "{TWO}[models]\nfallback = [\"chat=cloud\"]\n[engine]\napi_key = \"sk-engines\"\n[fleets.cloud.fleet]\n\
         remote = \"http://h/v1\"\nmodel = \"chat\"\n"
    );
    let key_of = |text: &str| {
        let loaded = load(text, &[], &[("OPENAI_API_KEY", "sk-variable")]).unwrap();
        let cloud = &loaded.config.fleets.iter().find(|fleet| fleet.name == "cloud").unwrap().config;
        assert_eq!((cloud.health.probe_ms, &cloud.fleet.decode[..]), (0, &["http://h:80".to_owned()][..]));
        cloud.engine.api_key.as_ref().map(|key| key.expose().to_owned())
    };
    assert_eq!(key_of(&text), None);
    let with_file = format!("{text}[fleets.cloud.engine]\napi_key_file = \"{}\"\n", key.display());
    assert_eq!(key_of(&with_file).as_deref(), Some("sk-cloud"));
}

#[test]
fn fleets_need_names_of_models_where_engines_are_not_asked() {
    let text = TWO.replace("model = \"code\"\n", "");
    assert!(load(&text, &[], &[]).is_ok());
    let error = load(&text, &["health.probe_ms=0"], &[]).unwrap_err();
    assert_eq!(
        error,
        "flag --set: in [fleets.code]: health.probe_ms = 0 needs fleet.model in each fleet where there are several: \
         engines are not asked which models they serve"
    );
}

#[test]
fn names_of_fleets_are_short_and_plain() {
    for good in ["chat", "qwen3-8b", "a_b", "0"] {
        assert!(name_fault(good).is_none(), "{good}");
    }
    for bad in ["", "Chat", "a.b", "a__b", "ä", "a b", &"a".repeat(64)] {
        assert!(name_fault(bad).is_some(), "{bad}");
    }
}
