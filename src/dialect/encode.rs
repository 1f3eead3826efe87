//! Encoders of their own (EPD): each image, sound or film of a prompt is sent to an encoder alone,
//! before the prompt is computed. The module is pure.
//!
//! As vLLM's `disagg_epd_proxy.py` does it, which vllm-ascend's examples share: per item one
//! request with the item as its only content and at most one token. The encoder keeps the item's
//! embedding where prefillers find it by the item's hash (`ec_connector`: ECExampleConnector,
//! ECCPUConnector, vllm-ascend's). From vLLM 0.30 on it may say how in `ec_transfer_params` of its
//! answer, one entry by hash, which both legs are then told. A prefiller computes an embedding that
//! it does not find itself, from the item, which stays in the body: the example's rewriting into
//! metadata is left out.
//!
//! These parts go into the hash (vLLM 0.32): the item, a `uuid` beside it, `mm_processor_kwargs`,
//! `media_io_kwargs`, and the weights behind the model's name. So an encoder is sent those, and
//! nothing else of the body.
//!
//! ECMooncakeConnector, whose encoders push to a consumer that they are told of, is not supported.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::codec::json::{JsonError, Object, ScanLimits, quote};
use crate::dialect::Api;
use crate::dialect::prefilled::{BadReply, answer};

/// The member by which encoders and prefillers are told of each other.
pub const PARAMS: &str = "ec_transfer_params";

/// Members of a body, other than the item, that decide on its embedding.
const BESIDE: [&str; 3] = ["model", "mm_processor_kwargs", "media_io_kwargs"];

/// Limit for the bytes that all bodies of one request repeat beside their items.
const REPEATED_BYTES: usize = 16 << 20;

/// The items of one body, in the order in which they stand in it.
#[derive(Debug)]
pub struct Items {
    api: Api,
    /// `"model":…,` and what else each body begins with.
    beside: Vec<u8>,
    items: Vec<Bytes>,
    limits: ScanLimits,
}

/// A body has more items than may be encoded apart, or repeats too much for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request has more images, sounds and films than limit.encode_items, or too much beside them")]
pub struct TooMany;

/// Parameters that encoders returned for the items of one request, by hash.
#[derive(Debug, Default)]
pub struct Encoded(BTreeMap<String, Bytes>);

/// Place where an API keeps its messages, and the types of its parts that are items.
fn form(api: Api) -> Option<(&'static str, &'static [&'static str])> {
    match api {
        Api::Chat => Some(("messages", &["image_url", "audio_url", "input_audio", "video_url"])),
        Api::Messages => Some(("messages", &["image"])),
        Api::Responses => Some(("input", &["input_image"])),
        // Texts, tokens, and items that are processed already.
        Api::Completions | Api::Generate => None,
    }
}

impl Items {
    /// Finds the items of a body, at most `most`.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn of(api: Api, body: &Object, most: usize) -> Result<Items, TooMany> {
        let mut found = Items { api, beside: Vec::new(), items: Vec::new(), limits: body.limits() };
        let Some((messages, types)) = form(api) else { return Ok(found) };
        let list = body.get(messages).into_iter().flat_map(|list| list.elements());
        for message in list.filter_map(|message| message.object().ok()) {
            let parts = message.get("content").into_iter().flat_map(|content| content.elements());
            let is_item = |part: &Object| {
                let kind = part.get("type").and_then(|kind| kind.as_str());
                kind.is_some_and(|kind| types.contains(&kind.as_ref()))
            };
            let items = parts.filter(|part| part.object().is_ok_and(|part| is_item(&part)));
            found.items.extend(items.map(|part| part.to_bytes()).take(most + 1));
            if found.items.len() > most {
                return Err(TooMany);
            }
        }
        for (key, value) in BESIDE.iter().filter_map(|key| Some((key, body.get(key)?))) {
            found.beside.extend_from_slice(&quote(key));
            found.beside.push(b':');
            found.beside.extend_from_slice(value.raw());
            found.beside.push(b',');
        }
        let repeated = found.beside.len().saturating_mul(found.items.len());
        if repeated > REPEATED_BYTES { Err(TooMany) } else { Ok(found) }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Body for the encoder of the item `at`: the item alone, and one token at most.
    ///
    /// # Errors
    /// None for items that [`Items::of`] has found.
    pub fn body(&self, at: usize) -> Result<Object, JsonError> {
        let item = self.items.get(at).map(Bytes::as_ref).unwrap_or_default();
        let (list, end): (&str, &str) = match self.api {
            Api::Responses => ("input", r#""max_output_tokens":1,"store":false,"stream":false}"#),
            _ => ("messages", r#""max_tokens":1,"stream":false}"#),
        };
        let begin = format!(r#""{list}":[{{"role":"user","content":["#);
        let pieces = [b"{", &self.beside[..], begin.as_bytes(), item, b"]}],", end.as_bytes()];
        Object::scan(pieces.concat().into(), self.limits)
    }
}

impl Encoded {
    /// Reads an encoder's 200.
    ///
    /// # Errors
    /// [`BadReply`] when it can't be understood.
    pub fn read(&mut self, reply: Bytes) -> Result<(), BadReply> {
        let reply = answer(Api::Chat, reply)?;
        let Some(params) = reply.get(PARAMS).filter(|params| !params.is_null()) else { return Ok(()) };
        let params = params.object().map_err(|_| BadReply::NotAnObject)?;
        self.0.extend(params.members().map(|(key, value)| (key.into_owned(), value.to_bytes())));
        Ok(())
    }

    /// Adds the parameters of another answer.
    pub fn add(&mut self, other: Encoded) {
        self.0.extend(other.0);
    }

    /// The value of [`PARAMS`] for both legs; `None` where no encoder said anything.
    pub fn params(&self) -> Option<Bytes> {
        if self.0.is_empty() {
            return None;
        }
        let mut text = Vec::from(b"{");
        for (hash, entry) in &self.0 {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(&quote(hash));
            text.push(b':');
            text.extend_from_slice(entry);
        }
        text.push(b'}');
        Some(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(api: Api, text: &str, most: usize) -> Result<Vec<String>, TooMany> {
        let body = Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap();
        let items = Items::of(api, &body, most)?;
        let text = |at| String::from_utf8(items.body(at).unwrap().bytes().to_vec()).unwrap();
        Ok((0..items.len()).map(text).collect())
    }

    #[test]
    fn every_item_is_sent_alone_and_with_what_its_hash_is_made_of() {
        let body = r#"{"model":"m","temperature":0.5,"stream":true,"mm_processor_kwargs":{"fps":2},"messages":[
            {"role":"system","content":"look"},
            {"role":"user","content":[{"type":"text","text":"at"},{"type":"image_url","image_url":{"url":"data:a"},"uuid":"u"}]},
            {"role":"user","content":[{"type":"input_audio","input_audio":{"data":"b","format":"wav"}},{"type":"video\u005furl","video_url":{"url":"c"}}]}]}"#;
        let sent = items(Api::Chat, body, 3).unwrap();
        assert_eq!(sent.len(), 3);
        assert_eq!(
            sent[0],
            r#"{"model":"m","mm_processor_kwargs":{"fps":2},"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a"},"uuid":"u"}]}],"max_tokens":1,"stream":false}"#
        );
        assert!(sent[1].contains("input_audio") && sent[2].contains(r"video\u005furl"));
        assert_eq!(items(Api::Chat, body, 2), Err(TooMany));
    }

    #[test]
    fn other_apis_have_items_of_their_own() {
        let messages = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64"}}]}]}"#;
        assert_eq!(
            items(Api::Messages, messages, 9).unwrap(),
            [
                r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64"}}]}],"max_tokens":1,"stream":false}"#
            ]
        );
        let response =
            r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}],"model":"m"}"#;
        assert_eq!(
            items(Api::Responses, response, 9).unwrap(),
            [
                r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}],"max_output_tokens":1,"store":false,"stream":false}"#
            ]
        );
    }

    #[test]
    fn text_prompt_has_no_items() {
        for (api, body) in [
            (Api::Chat, r#"{"messages":[{"role":"user","content":"image_url"}]}"#),
            (
                Api::Chat,
                r#"{"messages":[{"content":[{"type":"text","text":"a"},{"type":"image_embeds"},7,null]}]}"#,
            ),
            (Api::Chat, r#"{"messages":{"content":[{"type":"image_url"}]}}"#),
            (Api::Chat, r#"{"messages":[{"content":[{"type":"image_url"}]}],"messages":[]}"#),
            (Api::Completions, r#"{"prompt":"a","messages":[{"content":[{"type":"image_url"}]}]}"#),
            (Api::Responses, r#"{"input":"input_image"}"#),
        ] {
            assert_eq!(items(api, body, 9), Ok(vec![]), "{body}");
        }
    }

    #[test]
    fn bytes_repeated_for_each_item_are_bounded() {
        let kwargs = "x".repeat(REPEATED_BYTES / 2);
        let item = r#"{"type":"image_url","image_url":{"url":"a"}}"#;
        let body = |count: usize| {
            let all = vec![item; count].join(",");
            format!(r#"{{"mm_processor_kwargs":"{kwargs}","messages":[{{"content":[{all}]}}]}}"#)
        };
        assert_eq!(items(Api::Chat, &body(1), 9).map(|sent| sent.len()), Ok(1));
        assert_eq!(items(Api::Chat, &body(2), 9), Err(TooMany));
    }

    #[test]
    fn encoders_params_are_merged_by_hash() {
        let mut all = Encoded::default();
        assert_eq!(all.params(), None);
        for reply in [
            r#"{"choices":[],"ec_transfer_params":{"b":{"peer_host":"h","size_bytes":7}}}"#,
            r#"{"choices":[],"ec_transfer_params":null}"#,
            r#"{"choices":[]}"#,
            r#"{"ec_transfer_params":{"a\"":{"metadata":{}},"b":{"size_bytes":8}}}"#,
        ] {
            let mut one = Encoded::default();
            one.read(reply.into()).unwrap();
            all.add(one);
        }
        assert_eq!(all.params().unwrap(), r#"{"a\"":{"metadata":{}},"b":{"size_bytes":8}}"#);
        assert_eq!(all.read(r#"{"ec_transfer_params":[]}"#.into()), Err(BadReply::NotAnObject));
        assert_eq!(all.read(r#"{"error":{"code":500}}"#.into()), Err(BadReply::ErrorObject));
    }
}
