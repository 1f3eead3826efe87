//! Estimated length of bodies with images, sounds, films and files in them, which the scan has
//! noted ([`Object::media`]).

use crate::codec::json::{MediaKind, Object};
use crate::route::estimate::{self, MediaEstimate};

/// Estimated tokens of a body that are text.
pub fn text_tokens(body: &Object) -> u64 {
    let no_text: usize = body.media().iter().map(|medium| medium.range().len()).sum();
    estimate::prompt_tokens(body.bytes().len() - no_text)
}

/// Estimated tokens of a body, of which nothing is known beyond it.
pub fn body_tokens(body: &Object) -> u64 {
    text_tokens(body) + media(body).tokens()
}

/// Position of a kind in a [`MediaEstimate`].
pub fn media_index(kind: MediaKind) -> usize {
    match kind {
        MediaKind::Image => 0,
        MediaKind::Audio => 1,
        MediaKind::Video => 2,
        MediaKind::File => 3,
    }
}

/// Media of a body, with the lengths that are assumed until one is known.
pub(super) fn media(body: &Object) -> MediaEstimate {
    let mut media = MediaEstimate::default();
    for medium in body.media() {
        media.counts[media_index(medium.kind())] += 1;
    }
    media
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;
    use crate::dialect::{Api, Shape};
    use crate::route::estimate::KINDS;

    fn read(api: Api, text: &str) -> Shape {
        Shape::read(api, &Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap())
    }

    #[test]
    fn media_are_no_text() {
        let data = "iVBORw0KGgoAAAANSUhEUgAA".repeat(100_000);
        for (api, body, counts) in [
            (
                Api::Chat,
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},
                {"type":"image_url","image_url":{"url":"data:image/jpeg;base64,@","detail":"high"}},
                {"type":"image_url","image_url":{"url":"https://example.com/a.jpg"}},
                {"type":"input_audio","input_audio":{"data":"@","format":"wav"}},
                {"type":"video_url","video_url":{"url":"data:video/mp4;base64,@"}},
                {"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,@"}}]}]}"#,
                [2, 1, 1, 1],
            ),
            (
                Api::Messages,
                r#"{"max_tokens":9,"messages":[{"role":"user","content":[
                {"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"@"}},
                {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"@"}},
                {"type":"tool_result","tool_use_id":"t","content":[
                {"type":"image","source":{"type":"base64","media_type":"image/png","data":"@"}}]}]}]}"#,
                [2, 0, 0, 1],
            ),
            (
                Api::Responses,
                r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"Sum up."},
                {"type":"input_image","image_url":"data:image/png;base64,@"},
                {"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,@"}]}]}"#,
                [1, 0, 0, 1],
            ),
            (Api::Completions, r#"{"prompt_embeds":"@","prompt":""}"#, [0, 0, 0, 1]),
            (
                Api::Generate,
                r#"{"token_ids":[1,2],"features":{"kwargs_data":{"image":["@","@"]}}}"#,
                [2, 0, 0, 0],
            ),
        ] {
            let mut shape = read(api, &body.replace('@', &data));
            assert_eq!(shape.media.counts, counts, "{body}");
            assert!(shape.text_tokens < 200, "{body}: {}", shape.text_tokens);
            assert_eq!(shape.prompt_tokens, shape.text_tokens + shape.media.tokens());
            shape.estimate_media([10; KINDS]);
            let media: u16 = counts.iter().sum();
            assert_eq!(shape.prompt_tokens, shape.text_tokens + 10 * u64::from(media));
        }
        let text = read(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":"{data}"}}]}}"#));
        assert!(text.media.is_empty() && text.prompt_tokens > 500_000, "{text:?}");
    }
}
