//! The listener of operators.

use pd_proxy::config::Secret;

use super::{Running, pair};
use crate::command::run;
use crate::common::client;
use crate::common::time::eventually;

const OPERATORS: [&str; 3] = ["/metrics", "/status", "/debug/route/x"];
const BOTH: [&str; 5] = ["/health", "/healthz", "/ping", "/readyz", "/healthcheck"];

#[tokio::test]
async fn with_a_listener_of_their_own_operators_are_answered_there_alone() {
    let (_engines, mut config) = pair().await;
    config.server.admin_host = Some("127.0.0.1".into());
    config.server.admin_port = 0;
    config.server.admin_key = Some(Secret::new("k"));
    let gateway = Running::start(config).await.unwrap();
    let admin = gateway.admin.unwrap();
    let get = async |to, path: &str| client::send(to, &client::get(path)).await;
    eventually("its probes have told", async || get(admin, "/readyz").await.status == 200).await;
    for path in BOTH {
        assert_eq!(get(gateway.at, path).await.status, 200, "{path}");
        assert_eq!(get(admin, path).await.status, 200, "{path}");
    }
    for path in OPERATORS {
        let hidden = get(gateway.at, path).await;
        assert_eq!(hidden.status, 404, "{path}");
        assert!(hidden.text().contains("Unknown request URL"), "{}", hidden.text());
    }
    assert_eq!(get(admin, "/metrics").await.status, 200);
    assert_eq!(get(admin, "/status").await.status, 401, "the key is still wanted");
    let change = client::post("/instances/remove", r#"{"type":"decode","instances":"h:1"}"#);
    assert_eq!(client::send(gateway.at, &change).await.status, 404);
    assert_eq!(client::send(admin, &change).await.status, 401, "the key is still wanted");
    assert_eq!(client::send(gateway.at, &client::post("/reset_prefix_cache", "")).await.status, 404);
    assert_eq!(client::send(admin, &client::post("/reset_prefix_cache", "")).await.status, 401);
    let reset = client::post_with("/reset_prefix_cache", &[("x-api-key", "k")], b"");
    assert_eq!(client::send(admin, &reset).await.status, 200);

    let body = r#"{"model":"sim","prompt":"one two","max_tokens":4}"#;
    assert_eq!(client::send(gateway.at, &client::post("/v1/completions", body)).await.status, 200);
    assert_eq!(client::send(admin, &client::post("/v1/completions", body)).await.status, 404);
    gateway.end().await;
}

#[tokio::test]
async fn without_one_everything_is_answered_on_the_one_listener() {
    let (_engines, config) = pair().await;
    let gateway = Running::start(config).await.unwrap();
    assert_eq!(gateway.admin, None);
    let status = async |path: &str| client::send(gateway.at, &client::get(path)).await.status;
    for path in ["/metrics", "/status"] {
        assert_eq!(status(path).await, 200, "{path}");
    }
    eventually("its probes have told", async || status("/readyz").await == 200).await;
    gateway.end().await;
}

#[tokio::test]
async fn the_program_asks_itself_whether_it_serves() {
    let (_engines, config) = pair().await;
    let gateway = Running::start(config).await.unwrap();
    let ask = async |port: u16| {
        let port = port.to_string();
        let asked =
            tokio::task::spawn_blocking(move || run(&["health", "--host", "0.0.0.0", "--port", &port], &[]));
        asked.await.unwrap()
    };
    assert_eq!(ask(gateway.at.port()).await, (0, String::new(), String::new()));
    let port = gateway.at.port();
    // As an image's health check does, to which nobody can give flags.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[server]\nhost = \"127.0.0.1\"\nport = {port}\n")).unwrap();
    let asked = tokio::task::spawn_blocking(move || {
        run(&["health"], &[("PD_PROXY_CONFIG", file.path().to_str().unwrap())])
    });
    assert_eq!(asked.await.unwrap(), (0, String::new(), String::new()));
    gateway.end().await;
    let (code, _, err) = ask(port).await;
    assert_eq!(code, 1);
    assert!(err.starts_with(&format!("pd-proxy: 0.0.0.0:{port} (server.host, server.port) does not answer")));
}
