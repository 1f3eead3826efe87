//! A fleet that is somebody else's API (`fleet.remote`), and keys in files of their own.

use std::io::Read;
use std::path::Path;

use http::Uri;

use super::error::Invalid;
use super::load::Origins;
use super::model_rules_error::ModelsProblem;
use super::{Config, DialectName, Endpoint, Problem, Secret, Tokens};

/// The longest file with a key that is read, bytes.
const MAX_KEY_BYTES: u64 = 64 << 10;

/// Path below which APIs have their routes, where the URL says no other.
const USUAL_PATH: &str = "/v1";

/// Sections of the top level that hold for an API elsewhere, too. The others are about engines:
/// their key, above all, is none of its business.
const TAKEN_SECTIONS: [&str; 9] =
    ["server", "tls", "auth", "limit", "log", "trace", "timeout", "stream", "retry"];

/// Sections that such a fleet can have, beside two keys of `[fleet]`.
const OWN_SECTIONS: [&str; 5] = ["engine", "health", "timeout", "stream", "retry"];

/// Keys of `[fleet]` that it can have.
const OWN_KEYS: [&str; 2] = ["remote", "model"];

/// Place of somebody else's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    /// Host and port.
    pub endpoint: Endpoint,
    /// Path in place of `/v1`, without a `/` at its end.
    pub path: String,
}

impl RemoteUrl {
    /// Reads a URL such as `https://api.example.com/v1`.
    pub(super) fn parse(text: &str) -> Result<RemoteUrl, ModelsProblem> {
        let wrong = |why: &str| ModelsProblem::NotARemote { text: shown(text), why: why.to_owned() };
        let url: Uri = text.trim().parse().map_err(|_| wrong("can't be read"))?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(wrong("has no scheme or host"));
        };
        if authority.as_str().contains('@') {
            return Err(wrong("holds credentials, which belong into engine.api_key or engine.api_key_file"));
        }
        if url.query().is_some() {
            return Err(wrong("has a query"));
        }
        let port = url.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let endpoint = Endpoint::parse(&format!("{scheme}://{}:{port}", authority.host()));
        let endpoint = endpoint.map_err(|error| wrong(&error.to_string()))?;
        let path = match url.path().trim_end_matches('/') {
            "" => USUAL_PATH,
            path => path,
        };
        Ok(RemoteUrl { endpoint, path: path.to_owned() })
    }
}

/// The URL without what may be a password in it.
fn shown(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.to_owned(),
    }
}

/// Finds fault with a text that is no URL of an API.
pub(super) fn url_fault(_: &'static str, text: &str) -> Option<Problem> {
    RemoteUrl::parse(text).err().map(Problem::from)
}

/// True if this tree of a fleet names an API elsewhere.
pub(super) fn is_remote(own: &toml::Table) -> bool {
    own.get("fleet").and_then(|fleet| fleet.get("remote")).is_some()
}

/// The part of the top level that holds for an API elsewhere.
pub(super) fn taken_from_top(top: &toml::Table) -> toml::Table {
    let taken = top.iter().filter(|(section, _)| TAKEN_SECTIONS.contains(&section.as_str()));
    taken.map(|(section, value)| (section.clone(), value.clone())).collect()
}

/// The same of the places where keys were set.
pub(super) fn is_taken(key: &str) -> bool {
    TAKEN_SECTIONS.iter().any(|section| key.split('.').next() == Some(section))
}

/// Leaves out the key that a fleet takes from the top level where it has another one.
pub(super) fn without_other_key(top: &mut toml::Table, own: &toml::Table) {
    let has = |key: &str| own.get("engine").and_then(|engine| engine.get(key)).is_some();
    let Some(engine) = top.get_mut("engine").and_then(toml::Value::as_table_mut) else { return };
    if has("api_key") {
        engine.remove("api_key_file");
    }
    if has("api_key_file") {
        engine.remove("api_key");
    }
}

impl Config {
    /// Place of the API that this fleet is; `None` = it has engines.
    pub fn remote(&self) -> Option<RemoteUrl> {
        RemoteUrl::parse(self.fleet.remote.as_deref()?).ok()
    }

    /// Makes a fleet of an API elsewhere: one that answers alone, and is not probed.
    pub(super) fn settle_remote(&mut self) {
        let Some(remote) = self.remote() else { return };
        self.fleet.prefill.clear();
        self.fleet.decode = vec![remote.endpoint.url("")];
        self.dialect.name = DialectName::KvTransfer;
        self.prompt.tokens = Tokens::Off;
        self.health.probe_ms = 0;
        self.route.scrape_ms = 0;
        self.route.bypass_without_prefiller = true;
        self.retry.resume = false;
    }

    /// Fills `engine.api_key` from `engine.api_key_file`.
    pub(super) fn fill_key(&mut self, origins: &mut Origins) -> Option<Invalid> {
        let path = self.engine.api_key_file.clone()?;
        if self.engine.api_key.is_some() {
            return Some(("engine.api_key_file", ModelsProblem::TwoKeys.into()));
        }
        match read_key(Path::new(&path)) {
            Ok(key) => {
                self.engine.api_key = Some(Secret::new(key));
                origins.filled("engine.api_key", Path::new(&path));
                None
            }
            Err(why) => Some(("engine.api_key_file", ModelsProblem::KeyFile { path, why }.into())),
        }
    }
}

/// Faults of a fleet that is an API elsewhere. `own`: its tree alone.
pub(super) fn faults(config: &Config, own: &[String]) -> Vec<Invalid> {
    let Some(remote) = config.fleet.remote.clone() else { return Vec::new() };
    let mut faults = Vec::new();
    if config.fleet.model.is_none() {
        let remote = shown(&remote);
        faults.push(("fleet.remote", ModelsProblem::RemoteWithoutModel { remote }.into()));
    }
    let is_own = |key: &&String| match key.split_once('.') {
        Some(("fleet", name)) => OWN_KEYS.contains(&name),
        Some((section, _)) => OWN_SECTIONS.contains(&section),
        None => true,
    };
    for key in own.iter().filter(|key| !is_own(key)) {
        faults.push(("fleet.remote", ModelsProblem::RemoteWithEngines { key: key.clone() }.into()));
    }
    faults
}

fn read_key(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| format!("can't be read: {error}"))?;
    file.take(MAX_KEY_BYTES).read_to_string(&mut text).map_err(|error| format!("can't be read: {error}"))?;
    match text.trim() {
        "" => Err("is empty".to_owned()),
        key => Ok(key.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_read_with_its_port_and_path() {
        let read = |text: &str| {
            let RemoteUrl { endpoint, path } = RemoteUrl::parse(text).unwrap();
            (endpoint.url(""), path)
        };
        assert_eq!(read("http://api.example.com"), ("http://api.example.com:80".into(), "/v1".into()));
        assert_eq!(read("http://h:81/openai/v1/"), ("http://h:81".into(), "/openai/v1".into()));
        #[cfg(feature = "tls")]
        assert_eq!(read("https://h/v1"), ("https://h:443".into(), "/v1".into()));
    }

    #[test]
    fn text_that_is_no_url_is_refused_without_its_password() {
        for text in ["", "h:1", "ftp://h", "http://user:sk-1@h/v1", "http://h/v1?key=1", "/v1"] {
            let fault = url_fault("fleet.remote", text).map(|problem| problem.to_string());
            assert!(fault.as_ref().is_some_and(|fault| fault.contains("expected a URL")), "{text}");
            assert!(!fault.is_some_and(|fault| fault.contains("sk-1")), "{text}");
        }
    }
}
