//! Token ids in a chat's `kv_transfer_params`, read as vLLM does from 0.32 on
//! (`_reused_prompt_token_ids`, `has_non_text_content`).

use serde_json::Value;

use super::chat;
use super::fail::ApiFailure;
use super::spec::{Connector, EngineSpec};
use super::tokens;

/// Place of the ids in a body, as refusals name it.
const PARAM: &str = "kv_transfer_params.prompt_token_ids";

/// Types of parts that are text.
const TEXT_PARTS: [&str; 6] = ["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"];

/// Members of parts that are none, whatever their type.
const MEDIA_KEYS: [&str; 10] = [
    "input_image",
    "image_url",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "image_pil",
    "audio_url",
    "input_audio",
    "video_url",
];

/// The ids that take the place of the messages; `None` where these are rendered. They are not
/// looked at with `echo` or media.
pub(super) fn reused(body: &Value, spec: &EngineSpec) -> Result<Option<Vec<u32>>, ApiFailure> {
    let ids = body.get("kv_transfer_params").and_then(|params| params.get("prompt_token_ids"));
    let ids = ids.filter(|ids| !ids.is_null() && spec.takes_chat_ids && spec.connector != Connector::Sglang);
    let echo = body.get("echo").and_then(Value::as_bool).unwrap_or(false);
    let Some(ids) = ids.filter(|_| !echo && !has_media(body)) else { return Ok(None) };
    let numbers = ids.as_array().map(|ids| ids.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
    let Some(numbers) = numbers.flatten().filter(|ids| !ids.is_empty()) else {
        let message = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers. \
                       (parameter=kv_transfer_params.prompt_token_ids)";
        return Err(ApiFailure::bad_param(PARAM, message));
    };
    let known = |id: u64| u32::try_from(id).ok().filter(|id| *id < tokens::VOCAB);
    let read = |id: u64| {
        known(id).ok_or_else(|| {
            let message = format!("Token id {id} is out of vocabulary (parameter={PARAM})");
            ApiFailure::bad_param(PARAM, &message)
        })
    };
    numbers.into_iter().map(read).collect::<Result<Vec<u32>, _>>().map(Some)
}

/// True if a message has a part that is no text.
fn has_media(body: &Value) -> bool {
    let is_text = |part: &Value| {
        part.as_object().is_none_or(|part| {
            let kind = part.get("type").map_or(Some("text"), Value::as_str);
            kind.is_some_and(|kind| TEXT_PARTS.contains(&kind))
                && !part.keys().any(|key| MEDIA_KEYS.contains(&key.as_str()))
        })
    };
    chat::parts(body).any(|part| !is_text(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &Value) -> Result<Option<Vec<u32>>, u16> {
        reused(body, &EngineSpec::default()).map_err(|failure| failure.status)
    }

    #[test]
    fn ids_take_the_place_of_messages_unless_echo_or_media_need_these() {
        let body = |content: Value, ids: Value| json!({"messages": [{"role": "user", "content": content}], "kv_transfer_params": {"prompt_token_ids": ids}});
        assert_eq!(read(&body(json!("a"), json!([7, 8]))), Ok(Some(vec![7, 8])));
        assert_eq!(read(&body(json!([{"type": "text", "text": "a"}]), json!([7]))), Ok(Some(vec![7])));
        let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
        assert_eq!(read(&body(image, json!([7]))), Ok(None));
        let mut echo = body(json!("a"), json!([7]));
        echo["echo"] = json!(true);
        assert_eq!(read(&echo), Ok(None));
        assert_eq!(read(&body(json!("a"), Value::Null)), Ok(None));
        assert_eq!(read(&json!({"messages": []})), Ok(None));
    }

    #[test]
    fn malformed_ids_are_refused_and_older_engines_do_not_look() {
        for ids in [json!([]), json!("1"), json!([1, -2]), json!([1.5]), json!([true]), json!([1u64 << 40])] {
            let body = json!({"messages": [], "kv_transfer_params": {"prompt_token_ids": ids}});
            assert_eq!(read(&body), Err(400), "{body}");
            let older = EngineSpec { takes_chat_ids: false, ..EngineSpec::default() };
            assert!(matches!(reused(&body, &older), Ok(None)));
            let sglang = EngineSpec { connector: Connector::Sglang, ..EngineSpec::default() };
            assert!(matches!(reused(&body, &sglang), Ok(None)));
        }
    }
}
