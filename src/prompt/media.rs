//! Images, sounds and films in a chat: what a template is shown in their place (vLLM 0.32 and 0.33,
//! `_parse_chat_message_content_part`).
//!
//! An engine replaces what the template writes for an item by as many tokens as the model's
//! processor makes of it. So a chat is exact up to its first item. To find that place the chat is
//! rendered twice, as engines show items to the template and with a text in their place: up to the
//! first item both renderings are the same.

use serde_json::{Map, Value};

/// Form in which items reach a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MediaForm {
    /// They don't: a chat that has one is not known.
    #[default]
    Unknown,
    /// As engines show them: a part with their kind; where contents are strings, a text in front.
    Items,
    /// As a text in their place; where contents are strings, another one in front.
    Text,
}

/// Texts that no template writes by itself: of Unicode's private use. They are never tokenised.
const OTHER: &str = "\u{e000}";
const ANOTHER: &str = "\u{e001}";

/// Types of items, each with the member that holds the data, and its kind.
const ITEMS: [(&str, &str, &str); 9] = [
    ("image_url", "image_url", "image"),
    ("input_image", "image_url", "image"),
    ("image_pil", "image_pil", "image"),
    ("image_embeds", "image_embeds", "image"),
    ("audio_url", "audio_url", "audio"),
    ("input_audio", "input_audio", "audio"),
    ("audio_embeds", "audio_embeds", "audio"),
    ("video_url", "video_url", "video"),
    ("video_embeds", "video_embeds", "video"),
];

impl MediaForm {
    /// Text in front of a content that is a string.
    pub(super) fn text_in_front(self) -> &'static str {
        if self == MediaForm::Items { OTHER } else { ANOTHER }
    }

    /// Text in an item's place in a content of parts; `None` for the item itself.
    pub(super) fn text_in_place(self) -> Option<&'static str> {
        (self == MediaForm::Text).then_some(ANOTHER)
    }
}

/// Kind of the item that a part is, as templates are told it. `None` for a part that engines refuse
/// or read in a way that is not followed: of another type, without data, or with the data of two.
pub(super) fn kind(part: &Map<String, Value>) -> Option<&'static str> {
    let given = part.get("type")?.as_str()?;
    let (_, member, kind) = ITEMS.into_iter().find(|(name, ..)| *name == given)?;
    let is_data = |name: &str| ITEMS.iter().any(|(_, member, _)| *member == name);
    let only = part.keys().filter(|name| is_data(name)).eq([member]);
    (only && part.get(member).is_some_and(|data| !data.is_null())).then_some(kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_is_told_by_its_type_and_its_data() {
        let kind_of = |part: Value| kind(part.as_object().unwrap());
        let url = json!({"url": "data:,"});
        assert_eq!(kind_of(json!({"type": "image_url", "image_url": url, "uuid": "u"})), Some("image"));
        assert_eq!(kind_of(json!({"type": "input_image", "image_url": "data:,"})), Some("image"));
        assert_eq!(kind_of(json!({"type": "input_audio", "input_audio": {"data": ""}})), Some("audio"));
        assert_eq!(kind_of(json!({"type": "video_url", "video_url": url})), Some("video"));
        for unknown in [
            json!({"type": "image_url", "image_url": null, "uuid": "u"}),
            json!({"image_url": url}),
            json!({"type": "video_url", "video_url": url, "image_url": url}),
            json!({"type": "file", "file": {"file_id": "f"}}),
            json!({"type": "prompt_embeds", "data": "AA=="}),
        ] {
            assert_eq!(kind_of(unknown.clone()), None, "{unknown}");
        }
    }
}
