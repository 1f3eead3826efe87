//! Estimated length of bodies with images, sounds, films and files in them, which the scan has
//! noted ([`Object::media`]).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::codec::json::{MediaKind, Medium, Object};
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

/// Most media of a body whose data is looked at: the size of those after them is not known.
const MOST_LOOKED_AT: usize = 32;
/// Base64 digits of an image in which most formats tell its size; and those in which a photograph
/// does, which may have a small picture of itself and more in front of it.
const LOOKS: [usize; 2] = [256, 128 << 10];

/// Position of each medium of a body in a [`MediaEstimate`]: by its kind, and by its size if it is
/// an image that tells it.
pub fn media_kinds(body: &Object) -> impl Iterator<Item = (Medium, usize)> {
    body.media().iter().enumerate().map(|(at, medium)| {
        let data = body.bytes().get(medium.range()).filter(|_| at < MOST_LOOKED_AT);
        let main = match medium.kind() {
            MediaKind::Image => data.and_then(pixels).map_or(0, estimate::image_kind),
            MediaKind::Audio => 1,
            MediaKind::Video => 2,
            MediaKind::File => 3,
        };
        (*medium, main)
    })
}

/// Pixels of the image whose data this JSON string has; `None` if it has an address, or the format
/// is not known.
fn pixels(string: &[u8]) -> Option<u64> {
    let text = string.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""))?;
    let digits = match text.strip_prefix(b"data:") {
        Some(rest) => rest.get(memchr::memchr(b',', rest)? + 1..)?,
        None => text,
    };
    for most in LOOKS {
        // Four digits are three bytes.
        let looked_at = digits.len().min(most) / 4 * 4;
        let bytes = STANDARD.decode(digits.get(..looked_at)?).ok()?;
        // The first bytes tell the format: without one there is no size further on.
        imagesize::image_type(&bytes).ok()?;
        if let Ok(size) = imagesize::blob_size(&bytes) {
            return (size.width as u64).checked_mul(size.height as u64);
        }
    }
    None
}

/// Media of a body, with the lengths that are assumed until one is known.
pub(super) fn media(body: &Object) -> MediaEstimate {
    let mut media = MediaEstimate::default();
    for (_, kind) in media_kinds(body) {
        media.counts[kind] += 1;
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
        let data = "QUJDREVGR0hJSktMTU5PUFFS".repeat(100_000);
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
            assert_eq!(shape.media.counts[..counts.len()], counts, "{body}");
            assert!(shape.text_tokens < 200, "{body}: {}", shape.text_tokens);
            assert_eq!(shape.prompt_tokens, shape.text_tokens + shape.media.tokens());
            shape.estimate_media([10; KINDS]);
            let media: u16 = counts.iter().sum();
            assert_eq!(shape.prompt_tokens, shape.text_tokens + 10 * u64::from(media));
        }
        let text = read(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":"{data}"}}]}}"#));
        assert!(text.media.is_empty() && text.prompt_tokens > 500_000, "{text:?}");
    }

    /// Beginnings of real files: a PNG, a GIF, and a JPEG with 70 kB in front of its size.
    #[test]
    fn an_image_tells_its_size() {
        let png: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\0\0\0\x02\0\x08\x02\0\0\0";
        let gif: &[u8] = b"GIF89a\x20\x03\x58\x02\xf7\0\0";
        let segment = |length: u16| {
            [&[0xff, 0xe1][..], &length.to_be_bytes(), &vec![0; usize::from(length) - 2]].concat()
        };
        let frame: &[u8] = b"\xff\xc0\0\x11\x08\x0b\xb8\x0f\xa0\x03\x01\x22\0\x02\x11\x01\x03\x11\x01";
        let jpeg = [b"\xff\xd8".to_vec(), segment(35_000), segment(35_000), frame.to_vec()].concat();
        let base64 = |bytes: &[u8]| STANDARD.encode([bytes, &[0; 3_000]].concat());
        for (bytes, expected) in [(png, 1_024 * 512), (gif, 800 * 600), (&jpeg[..], 4_000 * 3_000)] {
            let digits = base64(bytes);
            assert_eq!(pixels(format!("\"data:image/x;base64,{digits}\"").as_bytes()), Some(expected));
            assert_eq!(pixels(format!("\"{digits}\"").as_bytes()), Some(expected));
        }
        for other in [
            "",
            "\"",
            "\"\"",
            "\"data:\"",
            "\"data:,\"",
            "\"https://example.com/a.png\"",
            "\"iVBORw0KGgo\"",
            "\"=\"",
        ] {
            assert_eq!(pixels(other.as_bytes()), None, "{other}");
        }
        let image = |bytes: &[u8]| {
            format!(
                r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}"#,
                base64(bytes)
            )
        };
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":[{},{}]}}]}}"#, image(png), image(&jpeg));
        let shape = read(Api::Chat, &body);
        assert_eq!(shape.media.tokens(), 1_024 + 16_384, "{:?}", shape.media);
    }
}
