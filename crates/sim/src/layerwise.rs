//! vllm-ascend's MooncakeLayerwiseConnector: the decoder allocates, asks a metaserver for a
//! prefill, and waits until its blocks have been written; the prefiller writes them while it
//! computes.
//!
//! As in vllm-ascend at 016aa37, and vLLM 0.12 and later: the decoder repeats a call whose
//! connection breaks and ignores the status of the answer; it waits without a limit; hung up on
//! while it waits, it keeps the blocks until they have been written. `POST /sim/kv/write` with
//! `{"engine_id":E,"request_id":R,"blocks":[3,1],"contents":[…]}` stands for the transfer and for
//! the message that it is done, which are known by the decoder's name of the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use serde_json::{Map, Value, json};

use super::ask::{Api, Ask};
use super::core::{Computed, Progress, Prompt};
use super::fail::ApiFailure;
use super::r#gen::{JobGuard, wait};
use super::handoff::Handoff;
use super::hub::{Chore, Hub};
use super::side;

/// Member of a prefill leg with a list of prompts, beside the members of the first.
const BATCH: &str = "batch_kv_transfer_params";
/// Path of a decoder at which its blocks are written.
const WRITE_PATH: &str = "/sim/kv/write";
/// Most attempts of a call whose connection breaks.
const CALLS: usize = 3;

/// Destination on a decoder for the KV of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    engine_id: String,
    host: String,
    port: u16,
    block_ids: Vec<u32>,
    cached_tokens: usize,
}

/// Destinations for all prompts of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    first: Target,
    /// Destinations by the names that both engines give the prompts.
    batch: Option<BTreeMap<String, Target>>,
}

/// Reads `kv_transfer_params` as this connector does.
pub fn parse(params: &Value) -> Handoff {
    let flag = |name| params.get(name).and_then(Value::as_bool).unwrap_or(false);
    if flag("do_remote_prefill") {
        return Handoff::Call(params.get("metaserver").and_then(Value::as_str).map(str::to_owned));
    }
    if !flag("do_remote_decode") {
        return Handoff::None;
    }
    Targets::parse(params).map_or_else(Handoff::Broken, Handoff::Write)
}

impl Targets {
    fn parse(params: &Value) -> Result<Targets, &'static str> {
        let all = |batch: &Map<String, Value>| -> Result<BTreeMap<String, Target>, &'static str> {
            batch.iter().map(|(name, params)| Ok((name.clone(), Target::parse(params)?))).collect()
        };
        let batch = params.get(BATCH).and_then(Value::as_object).map(all).transpose()?;
        Ok(Targets { first: Target::parse(params)?, batch })
    }

    /// Place where the prompt of this name goes. Without parameters of their own all go where the
    /// first one does.
    pub fn of(&self, name: &str) -> Option<&Target> {
        self.batch.as_ref().map_or(Some(&self.first), |batch| batch.get(name))
    }
}

impl Target {
    fn parse(params: &Value) -> Result<Target, &'static str> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| params.get(name).and_then(Value::as_u64);
        let groups = params.get("remote_block_ids").and_then(Value::as_array);
        let group = groups.and_then(|groups| groups.first()).and_then(Value::as_array);
        let ids: Option<Vec<u32>> = group
            .and_then(|ids| ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect());
        let port = number("remote_port").and_then(|port| u16::try_from(port).ok());
        let cached = number("remote_cached_tokens").and_then(|tokens| usize::try_from(tokens).ok());
        Ok(Target {
            cached_tokens: cached.ok_or("KeyError: 'remote_cached_tokens'")?,
            block_ids: ids.ok_or("TypeError: 'NoneType' object is not subscriptable")?,
            engine_id: text("remote_engine_id").ok_or("no remote_engine_id")?,
            host: text("remote_host").ok_or("no remote_host")?,
            port: port.ok_or("no remote_port")?,
        })
    }
}

/// Name by which both engines know a prompt of the answer `id`.
pub fn name(api: Api, id: &str, place: usize) -> String {
    if api == Api::Completions { format!("{id}-{place}") } else { id.to_owned() }
}

/// The decoder's side: all prompts get blocks, the metaserver is told of each, and the KV comes.
pub async fn receive(
    hub: &Arc<Hub>,
    ask: &Ask,
    id: &str,
    url: Option<&str>,
) -> Result<Vec<(JobGuard, Computed)>, ApiFailure> {
    let each = ask.prompts.iter().enumerate().map(|(place, tokens)| {
        let prompt = Prompt { tokens: tokens.clone(), salt: ask.salt, remote: true, fetched: 0 };
        receive_one(hub, prompt, name(ask.api, id, place), url)
    });
    try_join_all(each).await
}

async fn receive_one(
    hub: &Arc<Hub>,
    prompt: Prompt,
    name: String,
    url: Option<&str>,
) -> Result<(JobGuard, Computed), ApiFailure> {
    let (id, bell) = hub.submit(prompt);
    let live = JobGuard::new(hub.clone(), id);
    let mut called = false;
    loop {
        match hub.poll(id) {
            Progress::Ready(computed) => return Ok((live, computed)),
            Progress::Pull { .. } if called => bell.notified().await,
            Progress::Pull { .. } => {
                called = true;
                let (blocks, cached_tokens) = hub.with(|core, _| core.expect(id, &name));
                if let Some(url) = url {
                    hub.chore(Chore::Call(url.to_owned(), call(hub, &name, &blocks, cached_tokens)));
                }
            }
            Progress::Wait(until_us) => wait(hub, &bell, until_us).await,
        }
    }
}

/// The decoder's call, with all members of 016aa37.
fn call(hub: &Hub, name: &str, blocks: &[u32], cached_tokens: usize) -> Value {
    let at = hub.gate.addr();
    json!({
        "token_ids": [], "request_id": name, "do_remote_prefill": false, "do_remote_decode": true,
        "remote_block_ids": [blocks], "remote_block_size": [hub.spec.block_tokens],
        "remote_engine_id": hub.engine_id, "remote_host": at.ip().to_string(), "remote_port": at.port(),
        "remote_tp_size": 1, "remote_pcp_size": 1, "remote_dcp_size": 1, "remote_cached_tokens": cached_tokens,
    })
}

/// Makes a call, and notes the status of its answer.
pub async fn make_call(hub: &Hub, url: &str, said: &Value) {
    let Some((host, port, path)) = parts(url) else { return };
    for _ in 0..CALLS {
        if let Ok(status) = side::post(hub.gate.net(), host, port, path, &said.to_string()).await {
            hub.hear(status);
            return;
        }
    }
}

/// Host, port and path of a plain URL.
fn parts(url: &str) -> Option<(&str, u16, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = authority.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?, path))
}

/// The prefiller's side: writes the KV of a prompt, whose blocks hold `contents`, where the decoder
/// wants it. What goes wrong is logged by a real engine, and no more.
pub async fn write(hub: &Hub, target: &Target, name: &str, contents: &[u64]) {
    if hub.faults.loses_kv(WRITE_PATH) {
        return;
    }
    let first = target.cached_tokens / hub.spec.block_tokens.max(1);
    let blocks = target.block_ids.get(first..).unwrap_or_default();
    let contents = contents.get(first..).unwrap_or_default();
    let said = json!({
        "engine_id": target.engine_id, "request_id": name, "blocks": blocks, "contents": contents,
    });
    let _ = side::post(hub.gate.net(), &target.host, target.port, WRITE_PATH, &said.to_string()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        assert_eq!(parts("http://10.0.0.1:80/v1/metaserver"), Some(("10.0.0.1", 80, "/v1/metaserver")));
        assert_eq!(parts("http://[::1]:80/x"), Some(("::1", 80, "/x")));
        assert_eq!(parts("https://a:1/x"), None);
    }

    #[test]
    fn a_prefiller_dies_of_what_it_can_not_use() {
        let good = json!({
            "do_remote_decode": true, "remote_block_ids": [[1, 2]], "remote_engine_id": "e", "remote_host": "h",
            "remote_port": 7, "remote_cached_tokens": 0,
        });
        assert!(matches!(parse(&good), Handoff::Write(_)));
        for member in ["remote_cached_tokens", "remote_port", "remote_block_ids", "remote_host"] {
            let mut bad = good.clone();
            bad.as_object_mut().unwrap().remove(member);
            assert!(matches!(parse(&bad), Handoff::Broken(_)), "{member}");
        }
        let mut batch = good.clone();
        batch[BATCH] = json!({"cmpl-a-0": good});
        let Handoff::Write(targets) = parse(&batch) else { panic!("{batch}") };
        assert!(targets.of("cmpl-a-0").is_some() && targets.of("cmpl-a-1").is_none());
        assert_eq!(parse(&json!({"do_remote_prefill": true})), Handoff::Call(None));
    }
}
