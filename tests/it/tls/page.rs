//! The page at `/`, and the JSON that it shows.

use std::collections::BTreeSet;
use std::path::Path;

use pd_proxy::auth::Digest;
use pd_proxy::config::Secret;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::Value;

use super::{Running, pair};
use crate::common::client::{self, Raw};
use crate::common::stage::fast;
use crate::common::time::eventually;

const FILES: [(&str, &str); 5] = [
    ("/", "text/html; charset=utf-8"),
    ("/page.css", "text/css; charset=utf-8"),
    ("/page.js", "text/javascript; charset=utf-8"),
    ("/engines.js", "text/javascript; charset=utf-8"),
    ("/try.js", "text/javascript; charset=utf-8"),
];
const JSON: &str = "/status.json";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri \
                      'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

fn with_admin(config: &mut pd_proxy::config::Config) {
    config.server.admin_host = Some("127.0.0.1".into());
    config.server.admin_port = 0;
}

async fn get(to: std::net::SocketAddr, path: &str) -> Raw {
    client::send(to, &client::get(path)).await
}

async fn get_with(to: std::net::SocketAddr, path: &str, header: (&str, &str)) -> Raw {
    let (name, value) = header;
    let text = format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n{name}: {value}\r\n\r\n");
    client::send(to, text.as_bytes()).await
}

async fn ask(at: std::net::SocketAddr, id: &str) -> u16 {
    let body = br#"{"model":"sim","prompt":"one two three four","max_tokens":4}"#;
    let request = client::post_with("/v1/completions", &[("x-request-id", id)], body);
    client::send(at, &request).await.status
}

#[tokio::test]
async fn the_page_is_where_operators_are_and_comes_with_its_policy() {
    let (_engines, mut config) = pair().await;
    let alone = Running::start(config.clone()).await.unwrap();
    with_admin(&mut config);
    let gateway = Running::start(config).await.unwrap();
    for (path, kind) in FILES.into_iter().chain([(JSON, "application/json")]) {
        let hidden = get(gateway.at, path).await;
        assert_eq!((hidden.status, hidden.header("x-pd-error")), (404, Some("unknown_url")), "{path}");
        for at in [gateway.admin.unwrap(), alone.at] {
            comes_with_its_policy(at, path, kind).await;
        }
    }
    gateway.end().await;
    alone.end().await;
}

async fn comes_with_its_policy(at: std::net::SocketAddr, path: &str, kind: &str) {
    let raw = get(at, path).await;
    assert_eq!((raw.status, raw.header("content-type")), (200, Some(kind)), "{path}");
    let header = |name| raw.header(name);
    assert_eq!(header("content-security-policy"), Some(POLICY), "{path}");
    assert_eq!(header("x-content-type-options"), Some("nosniff"), "{path}");
    assert_eq!(header("referrer-policy"), Some("no-referrer"), "{path}");
    assert_eq!(header("cache-control"), Some("no-store"), "{path}");
    assert_eq!(header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
    assert_eq!(client::send(at, &client::post(path, "{}")).await.status, 405, "{path}");
}

/// A page that tells clients of a key does not show where to try one.
#[tokio::test]
async fn status_page_for_clients_is_off_with_keys() {
    let (_engines, config) = pair().await;
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    std::fs::write(
        &keys,
        format!("[[key]]\nname = \"a\"\nadmin = true\nsha256 = \"{}\"\n", Digest::of(b"sk-a")),
    )
    .unwrap();
    let (mut admin_key, mut keys_file) = (config.clone(), config);
    admin_key.server.admin_key = Some(Secret::new("sk-a"));
    keys_file.auth.keys_file = Some(keys.to_str().unwrap().to_owned());
    for config in [admin_key, keys_file] {
        let gateway = Running::start(config).await.unwrap();
        for path in FILES.map(|(path, _)| path).into_iter().chain([JSON]) {
            let hidden = get_with(gateway.at, path, ("x-api-key", "sk-a")).await;
            assert_eq!((hidden.status, hidden.header("x-pd-error")), (404, Some("unknown_url")), "{path}");
        }
        let beside = get_with(gateway.at, "/instances", ("x-api-key", "sk-a")).await;
        assert_eq!(beside.status, 200);
        gateway.end().await;
    }
}

/// Its policy would stop most of it, in browsers that have one.
#[tokio::test]
async fn nothing_in_the_page_comes_from_elsewhere_or_makes_markup_of_strings() {
    let (_engines, mut config) = pair().await;
    with_admin(&mut config);
    let gateway = Running::start(config).await.unwrap();
    let (mut texts, admin) = (Vec::new(), gateway.admin.unwrap());
    for (path, _) in FILES {
        texts.push(get(admin, path).await.text());
    }
    let (html, css, js) = (&texts[0], &texts[1], texts[2..].concat());
    let without_namespace = html.replace("xmlns='http://www.w3.org/2000/svg'", "");
    for (text, name) in [(&without_namespace, "html"), (css, "css"), (&js, "js")] {
        for foreign in ["http:", "https:", "//cdn", "url(", "@import"] {
            assert!(!text.contains(foreign), "{name} has {foreign}");
        }
    }
    for inline in ["<style", " style=", "<script>", "javascript:", " onclick", " onload", " onerror"] {
        assert!(!html.contains(inline), "{inline}");
    }
    assert!(html.contains("<html lang=\"en\">"));
    for unsafe_ in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "localStorage",
        "sessionStorage",
        "document.cookie",
        "createContextualFragment",
        "location.hash",
    ] {
        assert!(!js.contains(unsafe_), "{unsafe_}");
    }
    gateway.end().await;
}

#[tokio::test]
async fn the_json_takes_the_admin_key_and_the_page_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    let entry = |name: &str, more: &str| {
        let digest = Digest::of(format!("sk-{name}").as_bytes());
        format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digest}\"\n{more}\n")
    };
    std::fs::write(&keys, entry("client", "") + &entry("operator", "admin = true")).unwrap();
    for clients_have_keys in [false, true] {
        let (_engines, mut config) = pair().await;
        with_admin(&mut config);
        config.server.admin_key = Some(Secret::new("k"));
        config.auth.keys_file = clients_have_keys.then(|| keys.display().to_string());
        let gateway = Running::start(config).await.unwrap();
        let admin = gateway.admin.unwrap();
        for (path, _) in FILES {
            assert_eq!(get(admin, path).await.status, 200, "{path}");
        }
        let refused = get(admin, JSON).await;
        assert_eq!((refused.status, refused.header("x-pd-error")), (401, Some("invalid_api_key")));
        assert_eq!(refused.header("content-security-policy"), Some(POLICY).filter(|_| !clients_have_keys));
        assert_eq!(get_with(admin, JSON, ("x-api-key", "wrong")).await.status, 401);
        for (key, status) in [("sk-client", 401), ("sk-operator", if clients_have_keys { 200 } else { 401 })]
        {
            assert_eq!(get_with(admin, JSON, ("x-api-key", key)).await.status, status, "{key}");
        }
        let shown = get_with(admin, JSON, ("x-api-key", "k")).await;
        assert_eq!(shown.status, 200);
        assert!(!shown.text().contains("\"k\""), "{}", shown.text());
        gateway.end().await;
    }
}

/// All paths of a value. Of a list the first element counts; `holes` are those where there is none,
/// or null.
fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>, holes: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let at = format!("{at}.{name}");
                found.insert(at.clone());
                paths(member, &at, found, holes);
            }
        }
        Value::Array(items) => match items.first() {
            Some(first) => paths(first, &format!("{at}[]"), found, holes),
            None => _ = holes.insert(at.to_owned()),
        },
        Value::Null => _ = holes.insert(at.to_owned()),
        _ => {}
    }
}

fn documented() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/status-page.md");
    let page = std::fs::read_to_string(path).unwrap();
    let example = page.split("<!-- status.json -->\n```json\n").nth(1).unwrap().split("```").next().unwrap();
    serde_json::from_str(example).unwrap()
}

#[tokio::test]
async fn the_json_has_the_documented_shape() {
    let (engines, mut config) = pair().await;
    with_admin(&mut config);
    config.fleet.prefill.push("127.0.0.1:1".into());
    let gateway = Running::start(config).await.unwrap();
    let admin = gateway.admin.unwrap();
    for n in 0..4 {
        assert_eq!(ask(gateway.at, &format!("r{n}")).await, 200);
    }
    let now = get(admin, JSON).await.json();
    let (mut shown, mut holes) = (BTreeSet::new(), BTreeSet::new());
    paths(&now, "", &mut shown, &mut holes);
    let (mut told, mut told_holes) = (BTreeSet::new(), BTreeSet::new());
    let documented = documented();
    paths(&documented, "", &mut told, &mut told_holes);
    assert_eq!(told_holes, BTreeSet::new(), "the documentation shows everything");
    let unknown: Vec<_> = shown.difference(&told).collect();
    assert!(unknown.is_empty(), "not in docs/status-page.md: {unknown:?}");
    let missing = told.difference(&shown);
    let missing: Vec<_> =
        missing.filter(|path| !holes.iter().any(|hole| path.starts_with(hole.as_str()))).collect();
    assert!(missing.is_empty(), "not there: {missing:?}");
    assert_eq!(now["format"], documented["format"]);
    drop(engines);
    gateway.end().await;
}

#[tokio::test]
async fn page_lists_outcomes_of_the_last_requests() {
    let (engines, mut config) = pair().await;
    with_admin(&mut config);
    let gateway = Running::start(config).await.unwrap();
    let admin = gateway.admin.unwrap();
    let id = "run_7.a:b-C";
    assert_eq!(ask(gateway.at, id).await, 200);
    let now = get(admin, JSON).await.json();
    let decision = &now["decisions"][0];
    assert_eq!(decision["id"], id);
    assert_eq!(decision["winner"]["instance"], engines[0].addr().to_string());
    assert_eq!(decision["decoder"], engines[1].addr().to_string());
    assert_eq!((&decision["why"], &decision["next_best"]), (&"only".into(), &Value::Array(Vec::new())));
    assert_eq!((&decision["outcome"]["status"], &decision["outcome"]["reason"]), (&200.into(), &"ok".into()));
    let of =
        |role: &str| now["engines"].as_array().unwrap().iter().find(|it| it["role"] == role).unwrap().clone();
    let prefiller = of("prefill");
    assert_eq!(
        (&prefiller["state"], &prefiller["leases"], &prefiller["running"]),
        (&"up".into(), &0.into(), &0.into())
    );
    assert!(prefiller["prompt_tokens"].as_u64().unwrap() > 0);
    assert_eq!((&now["requests"]["ended"], &now["requests"]["failed"]), (&1.into(), &0.into()));
    assert_eq!(now["gateway"]["state"], "up");

    assert!(engines[1].inject(Fault::always(FaultKind::Status(500, None))));
    assert_eq!(ask(gateway.at, "lost").await, 502);
    let now = get(admin, JSON).await.json();
    let lost = &now["decisions"][0];
    assert_eq!((&lost["id"], &lost["outcome"]["status"]), (&"lost".into(), &502.into()));
    assert_eq!(lost["outcome"]["reason"], "decode_failed");
    assert_eq!(now["requests"]["failed"], 1);
    let decoder = now["engines"].as_array().unwrap().iter().find(|it| it["role"] == "decode").unwrap();
    assert_eq!(decoder["last_error"]["reason"], "status");
    assert_eq!((&decoder["state"], &decoder["detail"]), (&"up".into(), &"in_doubt".into()));

    engines[1].clear_faults();
    for n in 0..60 {
        ask(gateway.at, &format!("r{n}")).await;
    }
    let now = get(admin, JSON).await.json();
    assert_eq!(now["decisions"].as_array().unwrap().len(), 50, "no more are shown");
    gateway.end().await;
}

#[tokio::test]
async fn models_are_asked_when_somebody_looks() {
    let (engines, mut config) = pair().await;
    with_admin(&mut config);
    let name = "<img src=x onerror=alert(1)>\n";
    let spec = EngineSpec { role: Role::Prefill, model: name.into(), ..fast() };
    let hostile = Engine::start(spec, ([127, 0, 0, 1], 0).into()).await.unwrap();
    config.fleet.prefill.push(hostile.addr().to_string());
    // A probe asks for models, too.
    config.health.probe_ms = 0;
    let gateway = Running::start(config).await.unwrap();
    let admin = gateway.admin.unwrap();
    let asked = || engines[0].seen().iter().filter(|seen| seen.path == "/v1/models").count();
    assert_eq!(asked(), 0, "nobody has looked");
    let models = async || {
        let now = get(admin, JSON).await.json();
        [0, 1, 2].map(|at| now["engines"][at]["models"].clone())
    };
    let shown = eventually("all models are shown", async || {
        let shown = models().await;
        let all = shown.iter().all(|of| of.as_array().is_some_and(|all| !all.is_empty()));
        if all { Ok(shown) } else { Err(shown) }
    })
    .await;
    let expected = ["sim", "<img src=x onerror=alert(1)>\\n", "sim"];
    assert_eq!(
        shown,
        expected.map(|name| serde_json::json!([name])),
        "others' words, but no lines of their own"
    );
    assert_eq!(asked(), 1, "however many look");
    gateway.end().await;
}
