//! A prompt's token ids in the bodies of both legs, so that no engine renders or tokenises again
//! what is known.
//!
//! Facts of vLLM 0.32 and 0.33. `/v1/completions` takes ids as its `prompt`.
//! `/v1/chat/completions` takes them as `kv_transfer_params.prompt_token_ids`
//! (`_reused_prompt_token_ids` in `renderers/online_renderer.py`, from either leg): it then skips
//! template and tokenizer, and its parsers of tools and reasoning still read `messages`. It takes
//! the member out before any connector sees it, ignores it with `echo` and media, and refuses ids
//! beyond the vocabulary with 400.
//!
//! Tokens that nobody knows before are told by the prefiller (`return_token_ids`), and the decoder
//! gets those: it would make the same, for the KV that it fetches is of them.
//!
//! A prefill leg answers nobody, so that long messages can be left out of it (`STAND_IN`). An
//! engine that ignores the ids would compute another prompt then, which the count of its answer
//! tells ([`TokenIds::is_count`]).

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::codec::json::{Edit, Object, ScanLimits, Value};
use crate::dialect::{Api, PARAMS, PrefillAnswer};

/// The member of `kv_transfer_params` that has the ids.
const IDS: &str = "prompt_token_ids";

/// Messages of a prefill leg that has its prompt as ids: engines want one at least.
const STAND_IN: &[u8] = br#"[{"role":"user","content":"."}]"#;

/// Messages of fewer bytes stay in a prefill leg: leaving them out saves nothing. It also takes
/// care that no prompt has as few tokens as [`STAND_IN`].
const SHORT_BYTES: usize = 4 << 10;

/// Members of which an answer depends on the prompt's text, or for which an engine reads it.
const NEED_TEXT: [&str; 9] = [
    "echo",
    "prompt_logprobs",
    "prompt_embeds",
    "suffix",
    "use_beam_search",
    "truncate_prompt_tokens",
    "truncation_side",
    "mm_processor_kwargs",
    "media_io_kwargs",
];

/// Members whose name begins so ask for more in the answer, such as the prompt's text or the place
/// of each token in it.
const RETURNED: &str = "return_";

/// Those of them that do not concern the prompt's text.
const RETURNED_WITHOUT_TEXT: [&str; 3] =
    ["return_token_ids", "return_tokens_as_token_ids", "return_weight_versions"];

/// The ids of one request's prompt, for the bodies of its legs.
pub struct TokenIds {
    ids: Ids,
    place: Place,
}

/// Ids, by where they come from.
enum Ids {
    /// They were known before: the numbers, and the same as JSON once a leg needs it.
    Known { ids: Arc<[u32]>, text: OnceLock<Bytes> },
    /// As a prefiller wrote them.
    Told(Bytes),
}

/// Place of the ids in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The member `prompt`.
    Prompt,
    /// A member of `kv_transfer_params`; `long`: the messages are worth leaving out.
    Params { long: bool },
}

/// A prefill leg's body with ids.
#[derive(Debug)]
pub struct PrefillWithIds {
    /// The edit that makes it.
    pub edit: Edit,
    /// True if nothing else in the body tells the prompt.
    pub lacks_text: bool,
}

impl TokenIds {
    /// The ids of the prompt of `body`, if engines answer it with them as they do without; they
    /// must be the engines' own, to the last one.
    pub fn of(api: Api, body: &Object, ids: &Arc<[u32]>) -> Option<TokenIds> {
        let place = Place::of(api, body).filter(|_| !ids.is_empty())?;
        Some(TokenIds { ids: Ids::Known { ids: ids.clone(), text: OnceLock::new() }, place })
    }

    /// True if a prefiller may be asked for the ids of the prompt of `body`, which is long enough
    /// for that.
    pub fn may_be_told(api: Api, body: &Object) -> bool {
        body.bytes().len() >= SHORT_BYTES && body.media().is_empty() && Place::of(api, body).is_some()
    }

    /// The ids that a prefiller has computed of `body`, for its decoder alone.
    pub fn told(api: Api, body: &Object, answer: &PrefillAnswer) -> Option<TokenIds> {
        let place = Place::of(api, body).filter(|_| body.media().is_empty())?;
        Some(TokenIds { ids: Ids::Told(answer.prompt_ids()?), place })
    }

    /// Number of tokens, of ids that were known before.
    pub fn count(&self) -> Option<usize> {
        match &self.ids {
            Ids::Known { ids, .. } => Some(ids.len()),
            Ids::Told(_) => None,
        }
    }

    /// True if an engine must be known to read ids beside the messages of a chat.
    pub fn needs_reader(&self) -> bool {
        self.place != Place::Prompt
    }

    /// True if an engine that reports this number of prompt tokens has used the ids.
    pub fn is_count(&self, prompt_tokens: Option<u64>) -> bool {
        let count = self.count().and_then(|count| u64::try_from(count).ok());
        count.is_some() && count == prompt_tokens
    }

    /// `edit` of a prefill leg, with the ids, if they were known before. Long messages give way to
    /// a stand-in: only where no decoder reads the KV before the prefiller's count was looked at.
    pub fn in_prefill(&self, edit: Edit) -> PrefillWithIds {
        match (&self.ids, self.place, self.params(&edit)) {
            (Ids::Told(_), ..) => PrefillWithIds { edit, lacks_text: false },
            (Ids::Known { .. }, Place::Params { long: true }, Some(params)) => {
                let edit = edit.set(PARAMS, params).set("messages", Bytes::from_static(STAND_IN));
                PrefillWithIds { edit, lacks_text: true }
            }
            _ => PrefillWithIds { edit: self.in_decode(edit), lacks_text: false },
        }
    }

    /// `edit` of a decode leg, with the ids.
    pub fn in_decode(&self, edit: Edit) -> Edit {
        match (self.place, self.params(&edit)) {
            (Place::Prompt, _) => edit.set("prompt", self.text()),
            (Place::Params { .. }, Some(params)) => edit.set(PARAMS, params),
            (Place::Params { .. }, None) => edit,
        }
    }

    /// The parameters that `edit` sets for engines, with the ids; `None` where these have ids
    /// already, or can't be looked into.
    fn params(&self, edit: &Edit) -> Option<Bytes> {
        if self.place == Place::Prompt {
            return None;
        }
        let params = edit.value(PARAMS).cloned().unwrap_or(Bytes::from_static(b"{}"));
        let params = Object::scan(params, ScanLimits::default()).ok()?;
        let has_ids = params.contains(IDS);
        (!has_ids).then(|| params.splice(&Edit::new().set(IDS, self.text())).to_bytes())
    }

    fn text(&self) -> Bytes {
        match &self.ids {
            Ids::Told(text) => text.clone(),
            Ids::Known { ids, text } => {
                text.get_or_init(|| serde_json::to_vec(&ids[..]).unwrap_or_default().into()).clone()
            }
        }
    }
}

impl Place {
    /// The place of ids in a body like this; `None` where its text must stay.
    fn of(api: Api, body: &Object) -> Option<Place> {
        let place = match api {
            Api::Completions => body.get("prompt").filter(is_text).map(|_| Place::Prompt),
            Api::Chat => body.get("messages").map(|it| Place::Params { long: it.raw().len() >= SHORT_BYTES }),
            Api::Generate | Api::Responses | Api::Messages => None,
        };
        place.filter(|_| !body.members().any(|(key, value)| needs_text(&key, &value)))
    }
}

/// `edit` of a prefill leg whose engine is to tell the ids of its prompt.
pub fn asking_for_prompt(edit: Edit) -> Edit {
    edit.set("return_token_ids", Bytes::from_static(b"true"))
}

/// The number alone: ids are somebody's prompt.
impl fmt::Debug for TokenIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIds").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// True if a completion's `prompt` is a text, or a list that begins with one.
fn is_text(prompt: &Value<'_>) -> bool {
    prompt.is_string() || prompt.first_element().is_some_and(|first| first.is_string())
}

fn needs_text(key: &str, value: &Value<'_>) -> bool {
    let returns = key.starts_with(RETURNED) && !RETURNED_WITHOUT_TEXT.contains(&key);
    (returns || NEED_TEXT.contains(&key)) && !value.is_null() && value.as_bool() != Some(false)
}

#[cfg(test)]
mod tests;
