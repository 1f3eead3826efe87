use super::*;
use std::path::Path;
use tempfile::TempDir;

fn env(variables: &[(&str, &str)]) -> Env {
    variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn from_env(variables: &[(&str, &str)]) -> Result<Loaded, String> {
    Config::load(&ServeArgs::default(), &env(variables)).map_err(|errors| errors.to_string())
}

fn from_files(paths: &[PathBuf]) -> Result<Loaded, String> {
    let args = ServeArgs { config: paths.to_vec(), ..ServeArgs::default() };
    Config::load(&args, &Env::new()).map_err(|errors| errors.to_string())
}

fn file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn as_json(config: &Config) -> serde_json::Value {
    serde_json::to_value(config).unwrap()
}

#[test]
fn nothing_given_is_the_default() {
    let loaded = from_env(&[]).unwrap();
    assert_eq!(as_json(&loaded.config), as_json(&Config::default()));
    assert_eq!(*loaded.origins.of("server.port"), Origin::Default);
}

#[test]
fn later_sources_win_and_are_named() {
    let dir = TempDir::new().unwrap();
    let first =
        file(&dir, "a.toml", "[server]\nport = 1\nworkers = 1\n[retry]\nattempts = 1\ndelay_ms = 5\n");
    let second = file(&dir, "b.toml", "[server]\nworkers = 2\n");
    let args = ServeArgs {
        config: vec![first.clone(), second.clone()],
        port: Some("4".to_owned()),
        ..ServeArgs::default()
    };
    let env = env(&[
        ("PD_PROXY__SERVER__PORT", "3"),
        ("PD_PROXY__RETRY__ATTEMPTS", "9"),
        ("PD_PROXY_PORT", "tcp://x"),
    ]);
    let Loaded { config, origins, .. } = Config::load(&args, &env).unwrap();
    assert_eq!((config.server.port, config.server.workers, config.retry.attempts), (4, 2, 9));
    assert_eq!(config.retry.delay_ms, 5.0, "a whole number is a number");
    assert_eq!(*origins.of("server.port"), Origin::Flag("--port".to_owned()));
    assert_eq!(*origins.of("server.workers"), Origin::File(second));
    assert_eq!(*origins.of("retry.delay_ms"), Origin::File(first));
    assert_eq!(origins.of("retry.attempts").to_string(), "env PD_PROXY__RETRY__ATTEMPTS");
}

/// An image says where to listen in a container; whoever runs it may say another.
#[test]
fn the_default_host_is_weaker_than_files_variables_and_flags() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "a.toml", "[server]\nhost = \"::\"\n");
    let image = ("PD_PROXY_DEFAULT_HOST", "0.0.0.0");
    let variables = [image, ("PD_PROXY__SERVER__HOST", "10.0.0.2")];
    let (none, files, flag) = (vec![], vec![path.clone()], Some("10.0.0.3".to_owned()));
    for (config, variables, host, expected, origin) in [
        (&none, &variables[..0], None, "localhost", Origin::Default),
        (&none, &variables[..1], None, "0.0.0.0", Origin::Env(image.0.to_owned())),
        (&files, &variables[..1], None, "::", Origin::File(path)),
        (&files, &variables[..], None, "10.0.0.2", Origin::Env(variables[1].0.to_owned())),
        (&files, &variables[..], flag, "10.0.0.3", Origin::Flag("--host".to_owned())),
    ] {
        let args = ServeArgs { config: config.clone(), host, ..ServeArgs::default() };
        let Loaded { config, origins, .. } = Config::load(&args, &env(variables)).unwrap();
        assert_eq!((config.server.host.as_str(), origins.of("server.host")), (expected, &origin));
        assert_eq!(config.server.admin_host, None, "operators are not asked for elsewhere");
    }
    let empty = from_env(&[("PD_PROXY_DEFAULT_HOST", "")]).unwrap();
    assert_eq!(*empty.origins.of("server.host"), Origin::Default);
}

#[test]
fn files_that_a_variable_names_are_read_before_those_of_flags() {
    let dir = TempDir::new().unwrap();
    let texts = ["attempts = 1\ndelay_ms = 1\nbudget = 1", "attempts = 2\ndelay_ms = 2", "attempts = 3"];
    let name = |at: usize| format!("{at}.toml");
    let paths: Vec<PathBuf> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| file(&dir, &name(at), &format!("[retry]\n{text}\n")))
        .collect();
    let named = format!("{}, {},", paths[0].display(), paths[1].display());
    let variables = env(&[("PD_PROXY_CONFIG", named.as_str()), ("PD_PROXY__RETRY__BUDGET", "9")]);
    let args = ServeArgs { config: vec![paths[2].clone()], ..ServeArgs::default() };
    assert_eq!(Config::files(&args, &variables), paths);
    let Loaded { config, origins, .. } = Config::load(&args, &variables).unwrap();
    assert_eq!((config.retry.attempts, config.retry.delay_ms, config.retry.budget), (3, 2.0, 9.0));
    assert_eq!(*origins.of("retry.delay_ms"), Origin::File(paths[1].clone()));
    assert_eq!(origins.files().iter().collect::<Vec<_>>(), paths.iter().collect::<Vec<_>>());

    for empty in ["", " ", ","] {
        assert_eq!(Config::files(&args, &env(&[("PD_PROXY_CONFIG", empty)])), paths[2..], "{empty:?}");
    }
    let message = from_env(&[("PD_PROXY_CONFIG", "/nonexistent/a.toml")]).unwrap_err();
    assert!(message.starts_with("file /nonexistent/a.toml: cannot be read: "), "{message}");
}

/// The fault lies between three keys; the error names the one that was set.
#[test]
fn too_few_connections_are_told_of_the_key_that_was_set() {
    let dir = TempDir::new().unwrap();
    for (text, requests, connections) in [
        ("inflight = 30_000", 34_096, 32_768),
        ("queue = 20_000", 36_384, 32_768),
        ("connections = 20_480", 20_480, 20_480),
    ] {
        let path = file(&dir, "a.toml", &format!("[limit]\n{text}\n"));
        let message = from_files(std::slice::from_ref(&path)).unwrap_err();
        let expected = format!(
            "file {}: limit.inflight + limit.queue = {requests} needs limit.connections above that: it is {connections}",
            path.display()
        );
        assert_eq!(message, expected);
    }
    assert!(from_env(&[("PD_PROXY__LIMIT__CONNECTIONS", "20481")]).is_ok(), "one for a health check");
}

#[test]
fn variables_are_read_by_the_kind_of_their_key() {
    let config = from_env(&[
        ("PD_PROXY__FLEET__PREFILL", "a:1, b:2"),
        ("PD_PROXY__FLEET__DECODE", "[\"c:3\"]"),
        ("PD_PROXY__FLEET__MODEL", "123"),
        ("PD_PROXY__LIMIT__BODY_BYTES", "1_000"),
        ("PD_PROXY__RETRY__DELAY_MS", "0.5"),
        ("PD_PROXY__LOG__FORMAT", "JSON"),
        ("PD_PROXY__SERVER__HOST", ""),
    ])
    .unwrap()
    .config;
    assert_eq!(config.fleet.prefill, ["a:1", "b:2"]);
    assert_eq!(config.fleet.decode, ["c:3"]);
    assert_eq!(config.fleet.model.as_deref(), Some("123"));
    assert_eq!((config.limit.body_bytes, config.retry.delay_ms), (1_000, 0.5));
    assert_eq!(config.log.format, crate::config::LogFormat::Json);
    assert_eq!(config.server.host, "localhost", "an empty variable is not set");
}

#[test]
fn secrets_come_from_familiar_variables_and_the_full_name_wins() {
    let loaded = from_env(&[("OPENAI_API_KEY", "sk-1"), ("ADMIN_API_KEY", "12345")]).unwrap();
    assert_eq!(loaded.config.engine.api_key.as_ref().map(|key| key.expose()), Some("sk-1"));
    assert_eq!(loaded.config.server.admin_key.as_ref().map(|key| key.expose()), Some("12345"));
    assert!(!format!("{loaded:?}").contains("sk-1"));
    let both = from_env(&[("OPENAI_API_KEY", "sk-1"), ("PD_PROXY__ENGINE__API_KEY", "sk-2")]).unwrap();
    assert_eq!(both.config.engine.api_key.as_ref().map(|key| key.expose()), Some("sk-2"));
}

#[test]
fn bad_variables_are_named() {
    for (name, text, message) in [
        ("PD_PROXY__ROUTE__POLCY", "random", "unknown key route.polcy: did you mean route.policy?"),
        (
            "PD_PROXY__TLS__CERTIFICATE",
            "x",
            "unknown key tls.certificate: `pd-proxy check --show` lists every key",
        ),
        (
            "PD_PROXY__SERVER",
            "x",
            "`server` is a section: set its keys, as in [server] or server.key = value",
        ),
        (
            "PD_PROXY__SERVER__PORT",
            "eight",
            "server.port = \"eight\": expected a whole number from 0 to 65535",
        ),
        ("PD_PROXY__TIMEOUT__GAP_MS", "-5", "timeout.gap_ms = -5: expected a whole number, 0 or more"),
        (
            "PD_PROXY__RETRY__DELAY_MS",
            "soon",
            "retry.delay_ms = \"soon\": expected milliseconds, or a time with a unit (ms, s, m, h, d), as in 60_000 or \"60s\"",
        ),
        ("PD_PROXY__FLEET__PREFILL", "[1, 2]", "fleet.prefill = [1, 2]: expected a string"),
        ("PD_PROXY__FLEET__PREFILL", "10.0.0.1", "fleet.prefill: `10.0.0.1` has no port: write host:port"),
        (
            "PD_PROXY_DEFAULT_HOST",
            "0.0.0.0:8000",
            "server.host: `0.0.0.0:8000` carries a port: give the address alone, and the port by --port (server.port)",
        ),
        (
            "OPENAI_API_KEY",
            "sk-1 ",
            "engine.api_key holds a space, line end or other character that no key has: is there a newline at its end?",
        ),
    ] {
        assert_eq!(from_env(&[(name, text)]).unwrap_err(), format!("env {name}: {message}"));
    }
}

#[test]
fn bad_files_are_named_with_what_is_wrong() {
    let dir = TempDir::new().unwrap();
    for (text, message) in [
        ("[server]\nport = 1\nport = 2\n", "line 3, column 1: duplicate key"),
        ("[server]\nprot = 1\n", "unknown key server.prot: did you mean server.port?"),
        ("[sever]\nport = 1\n", "unknown key sever.port: did you mean server.port?"),
        ("port = 1\n", "unknown key port: did you mean server.port?"),
        ("server = 1\n", "`server` is a section: set its keys, as in [server] or server.key = value"),
        ("[server]\nport = \"80\"\n", "server.port = \"80\": expected a whole number from 0 to 65535"),
        ("[fleet]\nprefill = \"h:1\"\n", "fleet.prefill = \"h:1\": expected a list of strings"),
        (
            "[fleet]\nprefill = []\n",
            "fleet.prefill lists 0 engines: expected 1 to 4096, as in --prefill host:port",
        ),
        ("[engine]\napi_key = 12345\n", "engine.api_key = ***: expected a string"),
        ("[server.tls]\ncert = \"x\"\n", "unknown key server.tls: `pd-proxy check --show` lists every key"),
    ] {
        let path = file(&dir, "bad.toml", text);
        assert_eq!(
            from_files(std::slice::from_ref(&path)).unwrap_err(),
            format!("file {}: {message}", path.display()),
            "{text}"
        );
    }
}

#[test]
fn broken_toml_does_not_show_the_line_that_may_hold_a_secret() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "bad.toml", "[engine]\n  api_key = sk-very-secret\n");
    let message = from_files(std::slice::from_ref(&path)).unwrap_err();
    assert!(message.starts_with(&format!("file {}: line 2, column 13: ", path.display())), "{message}");
    assert!(!message.contains("very-secret") && message.lines().count() == 1, "{message}");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = TempDir::new().unwrap();
    let gone = dir.path().join("gone.toml");
    let message = from_files(std::slice::from_ref(&gone)).unwrap_err();
    assert_eq!(
        message,
        format!("file {}: cannot be read: No such file or directory (os error 2)", gone.display())
    );
    let long = file(&dir, "long.toml", &"#".repeat((1 << 20) + 1));
    let message = from_files(std::slice::from_ref(&long)).unwrap_err();
    assert_eq!(
        message,
        format!("file {}: is longer than 1048576 bytes: is this the right file?", long.display())
    );
}

#[test]
fn errors_of_all_sources_come_together() {
    let args = ServeArgs {
        config: vec![PathBuf::from("/nonexistent/a.toml")],
        port: Some("x".to_owned()),
        ..ServeArgs::default()
    };
    let errors = Config::load(&args, &env(&[("PD_PROXY__LIMIT__INFLIGHT", "0")])).unwrap_err();
    let origins: Vec<String> = errors.iter().map(|error| error.origin.to_string()).collect();
    assert_eq!(origins, ["file /nonexistent/a.toml", "flag --port", "env PD_PROXY__LIMIT__INFLIGHT"]);
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

#[test]
fn the_documented_file_holds_every_key_with_its_default() {
    let path = example("pd-proxy.toml");
    let loaded = from_files(std::slice::from_ref(&path)).unwrap();
    assert_eq!(as_json(&loaded.config), as_json(&Config::default()));
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let config = Config::default();
    for (key, value) in config.rows().iter().map(|row| (row.name, row.value.json())) {
        let (section, name) = key.rsplit_once('.').unwrap();
        let start = if value.is_null() { format!("# {name} = ") } else { format!("{name} = ") };
        let opens = lines.iter().position(|line| *line == format!("[{section}]")).expect(section);
        let in_section = lines[opens + 1..].iter().take_while(|line| !line.starts_with('['));
        let at = in_section
            .clone()
            .position(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("{key} is missing"));
        assert!(lines[opens + at].starts_with("# "), "{key} has no comment above it");
        let set_here = *loaded.origins.of(key) == Origin::File(path.clone());
        assert_eq!(set_here, !value.is_null(), "{key}");
    }
}

/// The chart writes `config` into a ConfigMap, where no secret belongs.
#[test]
fn the_chart_takes_no_secret() {
    let checks = std::fs::read_to_string(example("helm/pd-proxy/templates/_checks.tpl")).unwrap();
    for (key, variable) in crate::config::secrets() {
        let line = checks.lines().find(|line| line.starts_with(&format!("{key}: \"it is a secret: ")));
        assert!(line.is_some_and(|line| line.contains(variable)), "{key}: {line:?}");
    }
}

#[test]
fn the_example_files_can_be_run() {
    for (name, port, prefill, decode) in [
        ("ascend.toml", 8000, "10.0.0.1:8100", "10.0.0.3:8200"),
        ("ems.toml", 8181, "10.0.0.1:7100", "10.0.0.2:7100"),
    ] {
        let config = from_files(&[example(name)]).unwrap_or_else(|errors| panic!("{name}\n{errors}")).config;
        assert_eq!((config.server.host.as_str(), config.server.port), ("0.0.0.0", port), "{name}");
        assert_eq!(config.fleet.prefill.first().map(String::as_str), Some(prefill), "{name}");
        assert_eq!(config.fleet.decode.first().map(String::as_str), Some(decode), "{name}");
    }
}
