//! Memory of a pod: what the configuration lets the gateway take fits into what the manifests and
//! the chart give it, with room for answers that are held whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pd_proxy::config::Config;

/// A stream that waits, bytes, as docs/operating.md has it.
const STREAM_BYTES: u64 = 13_000;
/// A token that is kept of a prompt or of a stream, bytes.
const TOKEN_BYTES: u64 = 4;
/// The program itself.
const PROGRAM_BYTES: u64 = 50 << 20;
/// Percent of the memory that all this may take. The rest is for answers that are not streamed.
const MOST_PERCENT: u64 = 75;

/// Keys of `[limit]` that decide about memory.
const KEYS: [&str; 3] = ["bodies_bytes", "inflight", "prompt_cache_tokens"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Lines without comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split('#').next().unwrap_or("").trim())
}

/// The keys of [`KEYS`] that a file sets, in TOML or YAML.
fn settings(text: &str) -> BTreeMap<&'static str, u64> {
    let of = |line: &str| {
        let (key, value) = line.split_once('=').or(line.split_once(':'))?;
        let key = KEYS.into_iter().find(|known| *known == key.trim())?;
        Some((key, value.trim().replace('_', "").parse().unwrap_or_else(|e| panic!("{line}: {e}"))))
    };
    lines(text).filter_map(of).collect()
}

/// True if a file has broken streams continued, for which tokens are kept.
fn resumes(text: &str) -> bool {
    lines(text).any(|line| matches!(line, "resume = true" | "resume: true"))
}

/// The most memory that a container may take, bytes, if the file says.
fn memory(text: &str) -> Option<u64> {
    let mut after = lines(text).skip_while(|line| *line != "limits:");
    let value = after.find_map(|line| line.strip_prefix("memory:"))?.trim();
    let units = [("Gi", 1 << 30), ("Mi", 1 << 20)];
    let read = |(unit, bytes): (&str, u64)| Some(value.strip_suffix(unit)?.parse::<u64>().ok()? * bytes);
    Some(units.into_iter().find_map(read).unwrap_or_else(|| panic!("memory: {value}")))
}

/// The memory that the gateway takes with what this file sets.
fn needed(text: &str) -> u64 {
    let (settings, limit) = (settings(text), Config::default().limit);
    let resume = if resumes(text) { limit.resume_tokens as u64 * TOKEN_BYTES } else { 0 };
    let defaults = [limit.bodies_bytes as u64, limit.inflight as u64, limit.prompt_cache_tokens as u64];
    let of = |at: usize| settings.get(KEYS[at]).copied().unwrap_or(defaults[at]);
    of(0) + of(1) * STREAM_BYTES + of(2) * TOKEN_BYTES + resume + PROGRAM_BYTES
}

fn fits(text: &str, memory: u64) -> bool {
    needed(text) * 100 <= memory * MOST_PERCENT
}

#[test]
fn allowed_memory_fits_into_a_pod() {
    let mut files = Vec::new();
    let deployed = memory(&read("kubernetes/deployment.yaml")).expect("the Deployment has a limit");
    for name in [
        "kubernetes/configmap.yaml",
        "kubernetes/dns/configmap.yaml",
        "pd-proxy.toml",
        "ascend.toml",
        "ems.toml",
    ] {
        files.push((name.to_owned(), deployed));
    }
    let charted = memory(&read("helm/pd-proxy/values.yaml")).expect("the chart has a limit");
    for entry in std::fs::read_dir(path("helm/pd-proxy")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("values") && name.ends_with(".yaml") {
            let name = format!("helm/pd-proxy/{name}");
            let own = memory(&read(&name)).unwrap_or(charted);
            files.push((name, own));
        }
    }
    assert!(files.len() >= 8, "{files:?}");
    for (name, memory) in files {
        let text = read(&name);
        assert!(fits(&text, memory), "{name}: {} of {} MiB", needed(&text) >> 20, memory >> 20);
    }
}

#[test]
fn limits_of_bodies_are_parts_of_each_other() {
    let limit = Config::default().limit;
    assert!(limit.body_bytes <= limit.connection_unread_bytes, "a body can come over HTTP/2");
    assert!(limit.connection_unread_bytes <= limit.unread_bytes && limit.unread_bytes <= limit.bodies_bytes);
}

#[test]
fn a_setting_that_does_not_fit_is_found() {
    let set = "[limit]\n# bodies_bytes = 1\nbodies_bytes = 2_147_483_648 # 2 GiB\n  inflight: 20000\n";
    assert_eq!(settings(set), BTreeMap::from([("bodies_bytes", 2 << 30), ("inflight", 20_000)]));
    let text = "resources:\n  requests:\n    memory: 1Mi\n  # memory: 1Gi\n  limits:\n    memory: 2Gi\n";
    assert_eq!(memory(text), Some(2 << 30));
    assert!(!fits(set, 2 << 30) && fits(set, 4 << 30));
    assert!(fits("", 2 << 30) && !fits("[retry]\nresume = true\n", 2 << 30));
}
