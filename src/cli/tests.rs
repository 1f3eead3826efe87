use super::*;
use crate::config::{Config, Env, Level, Loaded, Origin, Policy, Tokens};

fn serve(line: &str) -> ServeArgs {
    match parse_from(line.split_whitespace()).unwrap() {
        Command::Serve(args) => args,
        Command::Check(args) => args.serve,
        other => panic!("{other:?}"),
    }
}

fn keys(line: &str) -> KeysArgs {
    match parse_from(line.split_whitespace()).unwrap() {
        Command::Keys(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn load(line: &str) -> Loaded {
    Config::load(&serve(line), &Env::new()).unwrap_or_else(|errors| panic!("{line}\n{errors}"))
}

fn wrong(line: &str) -> String {
    Config::load(&serve(line), &Env::new()).unwrap_err().to_string()
}

#[test]
fn the_reference_command_works_unchanged() {
    let Loaded { config, origins, .. } = load(
        "pd-proxy --host 0.0.0.0 --port 9000 --workers 2 --prefiller-hosts 10.0.0.1 10.0.0.2 --prefiller-ports 8100 8101 \
         --decoder-hosts 10.0.0.3 10.0.0.4 --decoder-ports 8200 8201",
    );
    assert_eq!(
        (config.server.host.as_str(), config.server.port, config.server.workers),
        ("0.0.0.0", 9000, 2)
    );
    assert_eq!(config.fleet.prefill, ["10.0.0.1:8100", "10.0.0.2:8101"]);
    assert_eq!(config.fleet.decode, ["10.0.0.3:8200", "10.0.0.4:8201"]);
    assert_eq!(*origins.of("fleet.prefill"), Origin::Flag("--prefiller-hosts --prefiller-ports".to_owned()));
    assert_eq!(*origins.of("retry.attempts"), Origin::Default);
}

#[test]
fn the_pool_guide_s_command_works_unchanged() {
    let config = load(
        "pd-proxy --port 8181 --host 0.0.0.0 --prefiller-hosts H --prefiller-ports 7100 --decoder-hosts H --decoder-ports 7100",
    )
    .config;
    assert_eq!(config.server.port, 8181);
    assert_eq!((config.fleet.prefill, config.fleet.decode), (vec!["h:7100".into()], vec!["h:7100".into()]));
}

#[test]
fn the_demo_spelling_works_unchanged() {
    for line in [
        "pd-proxy --model /path --prefill 10.0.0.1:8100 --decode 10.0.0.2:8200 --port 8001",
        "pd-proxy -m /path -p 10.0.0.1:8100 -d 10.0.0.2:8200 --port 8001",
    ] {
        let config = load(line).config;
        assert_eq!(config.fleet.model.as_deref(), Some("/path"));
        assert_eq!(
            (config.fleet.prefill, config.fleet.decode),
            (vec!["10.0.0.1:8100".into()], vec!["10.0.0.2:8200".into()])
        );
        assert_eq!(config.server.port, 8001);
    }
}

#[test]
fn every_other_flag_of_the_reference_sets_its_key() {
    let config = load(
        "pd-proxy --max-retries 5 --retry-delay 0.002 --max-waiting-retries 7 --waiting-retry-interval 2.5 \
         --log-level WARNING --policy power_of_two",
    )
    .config;
    assert_eq!((config.retry.attempts, config.retry.delay_ms), (5, 2.0));
    assert_eq!((config.fleet.probe_attempts, config.fleet.probe_interval_ms), (7, 2_500));
    assert_eq!((config.log.level, config.route.policy), (Level::Warning, Policy::PowerOfTwo));
}

/// vllm-ascend's proxy tries at least once, whatever the number; nobody else means anything by 0.
#[test]
fn no_attempts_and_no_pause_are_as_few_as_there_can_be() {
    let config = load("pd-proxy --max-retries 0 --max-waiting-retries 0 --waiting-retry-interval 0").config;
    let fleet = &config.fleet;
    assert_eq!((config.retry.attempts, fleet.probe_attempts, fleet.probe_interval_ms), (1, 1, 1));
    check_messages(&[
        ("pd-proxy --max-retries 1001", "flag --max-retries: retry.attempts = 1001: expected 1 to 1000"),
        ("pd-proxy --set retry.attempts=0", "flag --set: retry.attempts = 0: expected 1 to 1000"),
        (
            "pd-proxy --set fleet.probe_interval_ms=0",
            "flag --set: fleet.probe_interval_ms = 0: expected 1 to 604800000",
        ),
    ]);
}

#[test]
fn the_demo_proxy_s_flag_for_a_policy_is_one_and_a_policy_by_name_wins() {
    let Loaded { config, origins, .. } = load("pd-proxy --model M --roundrobin --prefill a:1 --decode b:1");
    assert_eq!(config.route.policy, Policy::RoundRobin);
    assert_eq!(*origins.of("route.policy"), Origin::Flag("--roundrobin".to_owned()));
    assert_eq!(load("pd-proxy --policy random --roundrobin").config.route.policy, Policy::Random);
}

/// The command lines of `disagg_epd_proxy.py`.
#[test]
fn encoders_prefillers_and_decoders_may_be_given_as_their_proxy_has_them() {
    let fleet = load(
        "pd-proxy --host 0.0.0.0 --encode-servers-urls http://e1:8001,http://e2:8001 \
         --prefill-servers-urls http://p1:8003,http://p2:8004 --decode-servers-urls http://d1:8005",
    )
    .config
    .fleet;
    assert_eq!(fleet.encode, ["http://e1:8001", "http://e2:8001"]);
    assert_eq!(fleet.prefill, ["http://p1:8003", "http://p2:8004"]);
    assert_eq!(fleet.decode, ["http://d1:8005"]);
    for word in ["disable", "None"] {
        let line = format!(
            "pd-proxy --encode-servers-urls http://e:1 --prefill-servers-urls {word} --decode-servers-urls http://a:2,http://b:3"
        );
        let Loaded { config, origins, .. } = load(&line);
        assert_eq!(config.fleet.prefill, ["http://a:2", "http://b:3"], "they are in both lists");
        assert_eq!(config.fleet.decode, config.fleet.prefill);
        assert_eq!(*origins.of("fleet.prefill"), Origin::Flag("--decode".to_owned()));
    }
    check_messages(&[(
        "pd-proxy --prefill disable",
        "flag --prefill: fleet.prefill: `disable` has no port: write host:port",
    )]);
}

#[test]
fn lists_take_spaces_commas_repeats_and_singular_names() {
    let expected = ["a:1", "[::1]:2", "c:3"];
    for line in [
        "pd-proxy --prefiller-hosts a ::1 c --prefiller-ports 1 2 3",
        "pd-proxy --prefiller-hosts a,[::1] c --prefiller-ports 1,2,3",
        "pd-proxy --prefiller-host a --prefiller-host ::1 --prefiller-host c --prefiller-port 1 2 --prefiller-port 3",
        "pd-proxy --prefill a:1,[::1]:2 --prefill c:3",
        "pd-proxy --prefiller-hosts=a --prefiller-ports=1 --prefill [::1]:2 c:3",
        "pd-proxy --set fleet.prefill=a:1,[::1]:2,c:3",
    ] {
        let config = load(line).config;
        assert_eq!(config.fleet.prefill, expected, "{line}");
        assert_eq!(config.fleet.decode, ["localhost:8002"], "{line}");
    }
    let urls = load("pd-proxy --prefill http://a:1 none http://b:2/ --decode http://c:3").config;
    assert_eq!(urls.prefill_endpoints().iter().map(|e| e.authority()).collect::<Vec<_>>(), ["a:1", "b:2"]);
}

#[test]
fn one_host_or_one_port_alone_takes_the_reference_default() {
    assert_eq!(load("pd-proxy --prefiller-hosts a").config.fleet.prefill, ["a:8001"]);
    assert_eq!(load("pd-proxy --decoder-hosts a").config.fleet.decode, ["a:8002"]);
    assert_eq!(load("pd-proxy --decoder-ports 9").config.fleet.decode, ["localhost:9"]);
}

#[test]
fn the_last_of_a_repeated_flag_wins_and_set_wins_over_it() {
    let Loaded { config, origins, .. } =
        load("pd-proxy --set server.port=3 --port 1 --port 2 --set retry.attempts=4 --set retry.attempts=5");
    assert_eq!((config.server.port, config.retry.attempts), (3, 5));
    assert_eq!(*origins.of("server.port"), Origin::Flag("--set".to_owned()));
}

fn check_messages(cases: &[(&str, &str)]) {
    for (line, message) in cases {
        assert_eq!(wrong(line), *message, "{line}");
    }
}

#[test]
fn hosts_and_ports_that_do_not_fit_are_named() {
    check_messages(&[
        (
            "pd-proxy --prefiller-hosts a b --prefiller-ports 1",
            "flag --prefiller-hosts: --prefiller-hosts names 2 hosts and --prefiller-ports 1 port: give one port for each host",
        ),
        (
            "pd-proxy --decoder-hosts a b c",
            "flag --decoder-hosts: --decoder-hosts names 3 hosts and --decoder-ports 1 port (the default, 8002): \
             give one port for each host",
        ),
        (
            "pd-proxy --prefiller-ports 1 2",
            "flag --prefiller-ports: --prefiller-hosts names 1 host (the default, localhost) and --prefiller-ports 2 ports: \
             give one port for each host",
        ),
        (
            "pd-proxy --decoder-hosts 192.0.0.3192.0.0.3 --decoder-ports 1",
            "flag --decoder-hosts: `192.0.0.3192.0.0.3` is no IP address: it looks like two entries run together, \
             is a space missing between them (before a line continuation)?",
        ),
        (
            "pd-proxy --prefiller-hosts a:1",
            "flag --prefiller-hosts: `a:1` carries a port: give the host alone and its port in the list of ports, \
             or use host:port with --prefill or --decode",
        ),
        (
            "pd-proxy --prefiller-hosts fe80::1%eth0",
            "flag --prefiller-hosts: `fe80::1%eth0` names an interface behind `%`, which can't be said here: give an address that \
             needs none, or a host name",
        ),
        (
            "pd-proxy --prefiller-ports 81o0",
            "flag --prefiller-ports: `81o0` is no port: expected a whole number from 1 to 65535",
        ),
        (
            "pd-proxy --prefiller-hosts 0.0.0.0",
            "flag --prefiller-hosts: `0.0.0.0` is a wildcard, which names no engine: give the address at which it can be reached",
        ),
    ]);
}

#[test]
fn bad_flags_are_named_with_what_would_be_right() {
    check_messages(&[
        (
            "pd-proxy --port 70000",
            "flag --port: server.port = 70000: expected a whole number from 0 to 65535",
        ),
        ("pd-proxy --port -1", "flag --port: server.port = -1: expected a whole number from 0 to 65535"),
        (
            "pd-proxy --policy fastest",
            "flag --policy: route.policy = \"fastest\": expected one of predicted, least_work, least_requests, round_robin, random, power_of_two, reference, cache_aware, session",
        ),
        (
            "pd-proxy --log-level loud",
            "flag --log-level: log.level = \"loud\": expected one of trace, debug, info, warning, error, critical",
        ),
        (
            "pd-proxy --retry-delay -1",
            "flag --retry-delay: `-1` is no length of time: expected seconds, or a time with a unit, as in 0.5, 500ms or 30s",
        ),
        (
            "pd-proxy --prefill http://p1:30000 9001",
            "flag --prefill: `9001` after `http://p1:30000` looks like a bootstrap port: leave it out, and set \
             dialect.bootstrap_port = 9001 where all prefillers have it, else dialect.bootstraps = [\"p1:30000=p1:9001\"] \
             (on a command line by --set)",
        ),
        (
            "pd-proxy --decode http://d1:30001 9001",
            "flag --decode: fleet.decode: `9001` is a port without a host: write host:port",
        ),
        (
            "pd-proxy --host 0.0.0.0:8000",
            "flag --host: server.host: `0.0.0.0:8000` carries a port: give the address alone, and the port by \
             --port (server.port)",
        ),
        (
            "pd-proxy --set server.admin_host=[::]:8009",
            "flag --set: server.admin_host: `[::]:8009` carries a port: give the address alone, and the port by \
             server.admin_port",
        ),
        ("pd-proxy --decode h", "flag --decode: fleet.decode: `h` has no port: write host:port"),
        ("pd-proxy --decode h:1 H:1", "flag --decode: fleet.decode: `h:1` is listed twice"),
        (
            "pd-proxy --set route.polcy=random",
            "flag --set: unknown key route.polcy: did you mean route.policy?",
        ),
        (
            "pd-proxy --set route",
            "flag --set: `route` is no setting: write section.key=value, as in route.policy=round_robin",
        ),
        (
            "pd-proxy --set engine.api_key=sk-1",
            "flag --set: engine.api_key must not stand on a command line, where `ps` shows it: \
             use the variable OPENAI_API_KEY or a file",
        ),
    ]);
}

#[test]
fn all_errors_are_reported_together() {
    let text = wrong("pd-proxy --port x --prefiller-hosts a b --decode h --policy y --set limit.queue_ms=0");
    let starts =
        ["flag --prefiller-hosts:", "flag --port:", "flag --policy:", "flag --decode:", "flag --set:"];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{text}");
    assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{text}");
}

#[test]
fn commands_are_told_apart() {
    assert!(matches!(parse_from(["pd-proxy"]), Ok(Command::Serve(_))));
    let Ok(Command::Serve(args)) = parse_from(["pd-proxy", "serve", "--port", "1"]) else { panic!() };
    assert_eq!(args.port.as_deref(), Some("1"));
    let Ok(Command::Check(args)) =
        parse_from(["pd-proxy", "check", "--config", "a.toml", "--config", "b.toml"])
    else {
        panic!()
    };
    assert_eq!(args.serve.config, [PathBuf::from("a.toml"), PathBuf::from("b.toml")]);
}

#[test]
fn a_model_s_files_and_block_size_have_flags() {
    let Loaded { config, origins, .. } = load("pd-proxy --model-path /models/M --block-size 128");
    assert_eq!((config.prompt.model_path.as_deref(), config.hash.block_tokens), (Some("/models/M"), 128));
    assert_eq!(*origins.of("prompt.model_path"), Origin::Flag("--model-path".to_owned()));
    assert_eq!(*origins.of("hash.block_tokens"), Origin::Flag("--block-size".to_owned()));
    assert_eq!(config.tokens(), Tokens::Off, "a directory alone does not change how requests are routed");
    check_messages(&[
        (
            "pd-proxy --block-size -1",
            "flag --block-size: hash.block_tokens = -1: expected a whole number from 0 to 4294967295",
        ),
        ("pd-proxy --set prompt.tokens=local", "flag --set: prompt.tokens = local needs prompt.model_path"),
    ]);
}

#[test]
fn keys_take_a_prompt_and_what_a_gateway_is_started_with() {
    let args =
        keys("pd-proxy keys --tokens 1,2 --profile ascend-0.26 --format json --set key.tp=2 --prefill a:1");
    assert_eq!((args.tokens.as_deref(), &args.prompt, &args.messages), (Some("1,2"), &None, &None));
    assert_eq!(args.format, KeysFormat::Json);
    let Loaded { config, origins, .. } = Config::load(&args.configuration(), &Env::new()).unwrap();
    assert_eq!((config.key.preset.as_deref(), config.key.tp), (Some("ascend-0.26"), 2));
    assert_eq!(*origins.of("fleet.decode"), Origin::Default);
    let plain = keys("pd-proxy keys --cache-salt s");
    assert_eq!((plain.format, plain.cache_salt.as_deref()), (KeysFormat::Text, Some("s")));
    assert_eq!(
        keys("pd-proxy keys --tokens -1").tokens.as_deref(),
        Some("-1"),
        "said to be wrong later, in words"
    );
    assert!(parse_from(["pd-proxy", "keys", "--format", "yaml"]).is_err());
    assert!(parse_from(["pd-proxy", "--profile", "ascend-0.26"]).is_err(), "the gateway has key.preset");
}

#[cfg(feature = "sim")]
#[test]
fn demo_and_sim_have_their_defaults() {
    let Ok(Command::Demo(demo)) = parse_from(["pd-proxy", "demo"]) else { panic!() };
    assert_eq!((demo.host.as_str(), demo.port, demo.engine_base_port), ("127.0.0.1", 8000, 0));
    assert_eq!((demo.tokens_per_s, demo.log_level), (50.0, Level::Info));
    let line = "pd-proxy sim --role decode --connector pool --api-key-env KEY";
    let Ok(Command::Sim(sim)) = parse_from(line.split(' ')) else { panic!() };
    assert_eq!((sim.port, sim.role, sim.connector), (8100, SimRole::Decode, SimConnector::Pool));
    assert_eq!((sim.block_tokens, sim.kv_blocks, sim.lease_ms), (16, 4096, 30_000));
    assert_eq!((sim.prefill_tokens_per_s, sim.tpot_ms, sim.slope_ms), (20_000.0, 5.0, 0.05));
    assert_eq!(sim.api_key_env.as_deref(), Some("KEY"));
    for bad in ["--tpot-ms=-1", "--prefill-tokens-per-s=0", "--kv-blocks=0", "--tpot-ms=inf"] {
        assert!(parse_from(["pd-proxy", "sim", bad]).is_err(), "{bad}");
    }
}

#[test]
fn help_names_all_policies() {
    let text = parse_from(["pd-proxy", "--help"]).unwrap_err().to_string();
    let at = text.find("--policy").unwrap();
    let about = text[at..].split("--max-retries").next().unwrap();
    for name in "none".parse::<Policy>().unwrap_err().allowed {
        assert!(about.contains(name), "{name}: {about}");
    }
}

#[test]
fn times_of_flags_are_seconds_or_have_a_unit() {
    let times = |line: &str| {
        let config = load(&format!("pd-proxy {line}")).config;
        (config.retry.delay_ms, config.fleet.probe_interval_ms, config.engine.lease_ms)
    };
    let plain = "--retry-delay 0.5 --waiting-retry-interval 30 --lease 480";
    assert_eq!(times(plain), (500.0, 30_000, 480_000));
    assert_eq!(times("--retry-delay 500ms --waiting-retry-interval 30s --lease 8m"), times(plain));
}

/// Flags say defaults that are those of the tables of keys.
#[test]
fn help_says_the_defaults_of_the_keys() {
    let config = Config::default();
    let (server, route, retry, fleet) = (&config.server, &config.route, &config.retry, &config.fleet);
    let command = <Cli as clap::CommandFactory>::command();
    for (flag, default) in [
        ("log-level", config.log.level.to_string()),
        ("log-format", config.log.format.to_string()),
        ("admin-port", server.admin_port.to_string()),
        ("tp", config.key.tp.to_string()),
        ("lease", (config.engine.lease_ms / 1_000).to_string()),
        ("host", server.host.clone()),
        ("port", server.port.to_string()),
        ("workers", server.workers.to_string()),
        ("policy", route.policy.to_string()),
        ("max-retries", retry.attempts.to_string()),
        ("retry-delay", (retry.delay_ms / 1e3).to_string()),
        ("max-waiting-retries", fleet.probe_attempts.to_string()),
        ("waiting-retry-interval", (fleet.probe_interval_ms / 1_000).to_string()),
    ] {
        let flag = command.get_arguments().find(|argument| argument.get_long() == Some(flag)).expect(flag);
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.ends_with(&format!("[default: {default}]")), "{help}");
    }
}

#[test]
fn help_and_version_answer() {
    use clap::error::ErrorKind;
    let help = parse_from(["pd-proxy", "--help"]).unwrap_err();
    assert_eq!(help.kind(), ErrorKind::DisplayHelp);
    let text = help.to_string();
    for part in
        ["Commands:", "Listening:", "Engines:", "Routing and retries:", "Configuration:", "--prefiller-hosts"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(parse_from(["pd-proxy", "--version"]).unwrap_err().kind(), ErrorKind::DisplayVersion);
    let unknown = parse_from(["pd-proxy", "--prefiler-hosts", "a"]).unwrap_err().to_string();
    assert!(unknown.contains("a similar argument exists: '--prefiller-hosts'"), "{unknown}");
}

#[test]
fn search_for_the_largest_load_takes_no_load() {
    let line = ["pd-proxy", "replay", "--trace", "t.jsonl", "--capacity"];
    assert!(parse_from(line).is_ok());
    let refused = parse_from(line.into_iter().chain(["--load", "0.5"])).unwrap_err();
    assert_eq!(refused.kind(), clap::error::ErrorKind::ArgumentConflict, "{refused}");
}
