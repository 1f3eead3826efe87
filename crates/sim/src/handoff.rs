//! `kv_transfer_params` of the NIXL pull connector, read with the severity of vLLM 0.32: a body
//! that lacks what the scheduler asserts on does not get an error, it kills the engine.

use serde_json::{Value, json};

use super::chat;
use super::fail::ApiFailure;
use super::layerwise::{self, Targets};
use super::spec::Connector;

/// Requests of `kv_transfer_params` to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handoff {
    /// There is none.
    None,
    /// Keep the KV for a decoder.
    Keep,
    /// Read the KV from a prefiller.
    Pull(Source),
    /// Read what a decoder keeps of so many tokens, compute the rest, and keep the KV for a
    /// decoder.
    KeepFrom(Source, usize),
    /// Keep the KV under this name.
    KeepAs(String),
    /// Read the KV that a prefiller keeps, or is going to keep, under the name that stands for its
    /// `request_id`.
    Meet(Source),
    /// Wait for KV that nobody can send.
    Never,
    /// Read the KV from a prefiller, but the fields the scheduler needs are not there: fatal.
    Broken(&'static str),
    /// Ask this metaserver for the KV, and wait for it (layerwise).
    Call(Option<String>),
    /// Write the KV into a decoder's blocks (layerwise).
    Write(Targets),
}

/// Location of the KV on the other engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The prefiller's engine id.
    pub engine_id: String,
    /// The hand-off's name there.
    pub request_id: String,
    /// Side channel host.
    pub host: String,
    /// Side channel port.
    pub port: u16,
    /// The blocks, in order.
    pub block_ids: Vec<u32>,
}

impl Handoff {
    /// Reads the member of a request body as `connector` does.
    pub fn read(connector: Connector, body: &Value) -> Result<Handoff, ApiFailure> {
        match body.get("kv_transfer_params") {
            Some(params @ Value::Object(_)) if connector == Connector::Layerwise => {
                Ok(layerwise::parse(params))
            }
            _ => Handoff::parse(body),
        }
    }

    /// Reads the member of a request body.
    pub fn parse(body: &Value) -> Result<Handoff, ApiFailure> {
        let params = match body.get("kv_transfer_params") {
            None | Some(Value::Null) => return Ok(Handoff::None),
            Some(params @ Value::Object(_)) => params,
            Some(other) => {
                let place = "body.kv_transfer_params";
                let input = other.as_str().map_or_else(|| chat::dict_of(other), str::to_owned);
                return Err(ApiFailure::schema(
                    "dict_type",
                    place,
                    "Input should be a valid dictionary",
                    &input,
                ));
            }
        };
        let flag = |name| params.get(name).and_then(Value::as_bool).unwrap_or(false);
        if flag("do_remote_prefill") {
            return Ok(Source::parse(params).map_or_else(Handoff::Broken, Handoff::Pull));
        }
        if !flag("do_remote_decode") {
            return Ok(Handoff::None);
        }
        // With a member missing nothing is read.
        let offered = params.get("remote_num_tokens").and_then(Value::as_u64);
        let offered = offered.and_then(|tokens| usize::try_from(tokens).ok());
        Ok(match (Source::parse(params), offered) {
            (Ok(source), Some(tokens)) if !source.block_ids.is_empty() => Handoff::KeepFrom(source, tokens),
            _ => Handoff::Keep,
        })
    }
}

impl Source {
    fn parse(params: &Value) -> Result<Source, &'static str> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
        let groups = params.get("remote_block_ids").and_then(Value::as_array);
        let group = groups.and_then(|groups| groups.first()).and_then(Value::as_array);
        let ids =
            group.map(|ids| ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect());
        let port =
            params.get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        Ok(Source {
            block_ids: ids.flatten().ok_or("assert num_external_tokens == 0")?,
            engine_id: text("remote_engine_id").ok_or("KeyError: 'remote_engine_id'")?,
            request_id: text("remote_request_id").ok_or("KeyError: 'remote_request_id'")?,
            host: text("remote_host").ok_or("KeyError: 'remote_host'")?,
            port: port.ok_or("KeyError: 'remote_port'")?,
        })
    }

    /// The member a prefiller answers with, all fields of vLLM 0.32 in its order.
    #[must_use]
    pub fn answer(&self, prompt_tokens: usize, cached_tokens: usize) -> Value {
        json!({
            "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [self.block_ids],
            "remote_engine_id": self.engine_id, "remote_request_id": self.request_id,
            "remote_host": self.host, "remote_port": self.port, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
            "remote_num_tokens": prompt_tokens, "remote_blocks_expiry_time": null, "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefiller_answer_is_read_by_the_decoder() {
        let source = Source {
            engine_id: "e".into(),
            request_id: "r".into(),
            host: "127.0.0.1".into(),
            port: 80,
            block_ids: vec![3, 1],
        };
        let body = json!({"kv_transfer_params": source.answer(20, 16)});
        assert_eq!(Handoff::parse(&body).unwrap(), Handoff::Pull(source));
    }

    #[test]
    fn missing_or_misshapen_fields_are_fatal_not_an_error() {
        for params in [
            json!({"do_remote_prefill": true}),
            json!({"do_remote_prefill": true, "remote_block_ids": [1, 2], "remote_engine_id": "e"}),
            json!({"do_remote_prefill": true, "remote_block_ids": [[1]], "remote_engine_id": "e"}),
        ] {
            let parsed = Handoff::parse(&json!({"kv_transfer_params": params.clone()})).unwrap();
            assert!(matches!(parsed, Handoff::Broken(_)), "{params}");
        }
        assert_eq!(
            Handoff::parse(&json!({"kv_transfer_params": {"do_remote_decode": true}})),
            Ok(Handoff::Keep)
        );
        assert_eq!(Handoff::parse(&json!({"kv_transfer_params": null})), Ok(Handoff::None));
        assert_eq!(Handoff::parse(&json!({"kv_transfer_params": "x"})).unwrap_err().status, 400);
    }
}
