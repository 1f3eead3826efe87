//! Media in a prompt: the strings that hold, or name, an image, a sound, a film or a file instead
//! of text.
//!
//! They are recognised where the scan meets them, by their first bytes and by the few bytes before
//! them, so that their data is stepped over once and never copied. Known are the forms of OpenAI's
//! chats (`image_url`, `input_audio`, `file`), vLLM's (`video_url`, `audio_url`, each also as a
//! mere string, `image_embeds`, `audio_embeds`, `prompt_embeds`, `kwargs_data` of generate),
//! Anthropic's (`source` of images and documents) and OpenAI's responses (`input_image`,
//! `input_file`). A string in any other place is text, whatever it says.

use std::ops::Range;

use super::scan::{Span, is_space};

/// Most media of one text that are told apart, since each costs memory; more count as text.
pub(super) const MOST_MEDIA: usize = 4096;
/// A shorter string is no base64 that is worth a look, with its quotes.
const LEAST_BASE64_BYTES: usize = 66;
/// The shortest string that says where its data is.
const LEAST_URL_BYTES: usize = 8;
/// Bytes at the beginning of a string by which base64 is told from text.
const TOLD_BY_BYTES: usize = 64;
/// The longest key in [`holder_kind`].
const LONGEST_KEY_BYTES: usize = 16;
/// Room for the members that stand between a holder's `{` and the data: `detail`, `format`,
/// `media_type`.
const BESIDE_BYTES: usize = 160;

/// Kind of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaKind {
    /// A picture, or its embeddings.
    Image,
    /// A recording of sound.
    Audio,
    /// A film or frames of one.
    Video,
    /// A document, or something that is not known.
    File,
}

/// One medium in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Medium {
    span: Span,
    kind: MediaKind,
}

impl Medium {
    /// Kind of the medium.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// Place of the string, quotes included, in the scanned text.
    pub fn range(&self) -> Range<usize> {
        self.span.start()..self.span.end()
    }
}

/// True if the string at `start` to `end`, quotes included, is worth a look: asked of every string,
/// so by its length and first byte alone.
#[inline]
pub(super) fn may_be(text: &[u8], start: usize, end: usize) -> bool {
    let bytes = end - start;
    bytes >= LEAST_BASE64_BYTES
        || bytes >= LEAST_URL_BYTES && matches!(text.get(start + 1), Some(b'd' | b'h'))
}

/// The medium that is the string at `start` to `end`, if it is one; `last` is the one before it.
pub(super) fn find(text: &[u8], start: usize, end: usize, last: Option<&Medium>) -> Option<Medium> {
    let value = text.get(start + 1..end - 1)?;
    let form = Form::of(value)?;
    let before = trim_space(text.get(..start)?);
    let kind = match before.last()? {
        b':' => {
            let key = key_before(before)?;
            form.kind_under(text, key)?
        }
        // The first of several in a list.
        b'[' if form != Form::Remote => form.kind_under(text, key_before(trim_space(strip_last(before)))?)?,
        // The next one in the list.
        b',' if form != Form::Remote => {
            let last = last.filter(|last| trim_space(strip_last(before)).len() == last.span.end())?;
            last.kind
        }
        _ => return None,
    };
    Some(Medium { span: Span::new(start, end), kind })
}

/// Form in which a string gives a medium.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `data:`, and the kind that its media type tells.
    Inline(Option<MediaKind>),
    /// A URL from which an engine fetches it.
    Remote,
    /// Base64 without a media type.
    Base64,
}

/// A key as it is spelled, and where its quote is.
#[derive(Clone, Copy)]
struct Key<'a> {
    text: &'a [u8],
    at: usize,
}

impl Form {
    fn of(value: &[u8]) -> Option<Form> {
        if let Some(media_type) = value.strip_prefix(b"data:") {
            return Some(Form::Inline(kind_of_type(media_type)));
        }
        if value.starts_with(b"http") {
            return Some(Form::Remote);
        }
        let head = value.get(..TOLD_BY_BYTES)?;
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_\\".contains(byte);
        head.iter().all(is_base64).then_some(Form::Base64)
    }

    /// Kind of a medium of this form that is the value of `key`, or a value in its list.
    fn kind_under(self, text: &[u8], key: Key<'_>) -> Option<MediaKind> {
        let of_key = || match key.text {
            b"url" | b"data" => of_holder(text, key),
            key => holder_kind(key),
        };
        match self {
            // Under `url` nothing else begins so.
            Form::Inline(told) if key.text == b"url" => told.or_else(of_key).or(Some(MediaKind::File)),
            Form::Inline(told) => of_key().map(|kind| told.unwrap_or(kind)),
            Form::Remote
                if matches!(key.text, b"url" | b"image_url" | b"video_url" | b"audio_url" | b"file_url") =>
            {
                of_key()
            }
            Form::Remote => None,
            Form::Base64 if key.text == b"url" => None,
            Form::Base64 => of_key(),
        }
    }
}

/// Kind that the members of this name hold, where they hold one by themselves.
fn holder_kind(key: &[u8]) -> Option<MediaKind> {
    match key {
        b"image_url" | b"image_embeds" | b"image" => Some(MediaKind::Image),
        b"audio_url" | b"audio_embeds" | b"audio" | b"input_audio" => Some(MediaKind::Audio),
        b"video_url" | b"video" => Some(MediaKind::Video),
        b"file_data" | b"file_url" | b"prompt_embeds" => Some(MediaKind::File),
        _ => None,
    }
}

/// Kind of what is in the object that `key` is a member of, by the object's own name.
fn of_holder(text: &[u8], key: Key<'_>) -> Option<MediaKind> {
    let from = key.at.saturating_sub(BESIDE_BYTES);
    let beside = text.get(from..key.at)?;
    let brace = from + beside.iter().rposition(|byte| *byte == b'{')?;
    let holder = key_before(trim_space(text.get(..brace)?))?;
    if holder.text != b"source" {
        return holder_kind(holder.text);
    }
    // Anthropic's: the type is said inside of it, or before it.
    let said = text.get(brace..key.at)?;
    let around = text.get(holder.at.saturating_sub(BESIDE_BYTES)..holder.at)?;
    let has = |text: &[u8], word: &[u8]| memchr::memmem::find(text, word).is_some();
    let is_document = has(said, b"application/") || has(around, br#""document""#);
    Some(if is_document { MediaKind::File } else { MediaKind::Image })
}

/// Kind by the beginning of a media type.
fn kind_of_type(media_type: &[u8]) -> Option<MediaKind> {
    if media_type.starts_with(b"image") {
        Some(MediaKind::Image)
    } else if media_type.starts_with(b"audio") {
        Some(MediaKind::Audio)
    } else if media_type.starts_with(b"video") {
        Some(MediaKind::Video)
    } else {
        None
    }
}

/// The key whose colon `text` ends with.
fn key_before(text: &[u8]) -> Option<Key<'_>> {
    let inside = trim_space(text.strip_suffix(b":")?).strip_suffix(b"\"")?;
    let from = inside.len().saturating_sub(LONGEST_KEY_BYTES + 1);
    let at = from + inside.get(from..)?.iter().rposition(|byte| *byte == b'"')?;
    Some(Key { text: inside.get(at + 1..)?, at })
}

fn strip_last(text: &[u8]) -> &[u8] {
    text.split_last().map_or(text, |(_, rest)| rest)
}

fn trim_space(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., last] = text
        && is_space(*last)
    {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Object, ScanLimits};
    use super::*;

    /// Kind and text of each medium, of texts that have none but these.
    fn media(text: &str) -> Vec<(MediaKind, String)> {
        let object = Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap();
        let text = |it: &Medium| (it.kind(), text[it.range()].trim_matches('"').to_owned());
        object.media().iter().map(text).collect()
    }

    fn base64() -> String {
        "iVBORw0KGgo".repeat(10)
    }

    #[test]
    fn each_form_of_the_apis_is_found() {
        use MediaKind::{Audio, File, Image, Video};
        let long = base64();
        let png = format!("data:image/png;base64,{long}");
        let escaped = format!(r"data:image\/png;base64,{long}\/{long}");
        let wav = format!("data:audio/wav;base64,{long}");
        let mp4 = format!("data:video/mp4;base64,{long}");
        let pdf = format!("data:application/pdf;base64,{long}");
        let site = "https://example.com/a.png".to_owned();
        for (part, kind, data) in [
            (r#"{"type":"image_url","image_url":{"url":"@","detail":"low"}}"#, Image, &png),
            (r#"{"image_url" : { "detail" : "high" , "url" : "@" } , "type":"image_url"}"#, Image, &escaped),
            (r#"{"type":"image_url","image_url":{"detail":"high","url":"@"}}"#, Image, &site),
            (r#"{"type":"image_url","image_url":"@"}"#, Image, &png),
            (r#"{"type":"video_url","video_url":{"url":"@"}}"#, Video, &mp4),
            (r#"{"type":"video_url","video_url":{"url":"@"}}"#, Video, &site),
            (r#"{"type":"audio_url","audio_url":{"url":"@"}}"#, Audio, &wav),
            (r#"{"type":"input_audio","input_audio":{"data":"@","format":"wav"}}"#, Audio, &long),
            (r#"{"type":"input_audio","input_audio":{"format":"wav","data":"@"}}"#, Audio, &long),
            (r#"{"type":"file","file":{"filename":"a.pdf","file_data":"@"}}"#, File, &pdf),
            (r#"{"type":"image_embeds","image_embeds":"@"}"#, Image, &long),
            (
                r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"@"}}"#,
                Image,
                &long,
            ),
            (r#"{"type":"image","source":{"type":"url","url":"@"}}"#, Image, &site),
            (
                r#"{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"@"}}"#,
                File,
                &long,
            ),
            (r#"{"type":"document","source":{"type":"url","url":"@"}}"#, File, &site),
            (r#"{"type":"input_image","image_url":"@"}"#, Image, &png),
            (r#"{"type":"input_file","filename":"a.pdf","file_data":"@"}"#, File, &pdf),
            (r#"{"type":"input_file","file_url":"@"}"#, File, &site),
        ] {
            for list in ["messages", "input"] {
                let part = part.replace('@', data);
                let text = format!(r#"{{"{list}":[{{"role":"user","content":[{part}]}}]}}"#);
                assert_eq!(media(&text), [(kind, data.clone())], "{text}");
            }
        }
    }

    #[test]
    fn lists_of_data_are_found_in_whole() {
        let long = base64();
        let text = format!(r#"{{"features":{{"kwargs_data":{{"image":["{long}" , "{long}","{long}"]}}}}}}"#);
        assert_eq!(media(&text), vec![(MediaKind::Image, long.clone()); 3]);
        let text = format!(r#"{{"prompt_embeds":"{long}","prompt":""}}"#);
        assert_eq!(media(&text), [(MediaKind::File, long)]);
    }

    #[test]
    fn text_stays_text() {
        let long = base64();
        let png = format!("data:image/png;base64,{long}");
        for text in [
            format!(r#"{{"messages":[{{"role":"user","content":"{png}"}}]}}"#),
            format!(r#"{{"messages":[{{"content":[{{"type":"text","text":"{long}"}}]}}]}}"#),
            format!(r#"{{"prompt":"{long}"}}"#),
            format!(r#"{{"prompt":["{long}","{png}"]}}"#),
            format!(r#"{{"input":"{png}","metadata":{{"data":"{long}"}}}}"#),
            format!(r#"{{"a":[{{"type":"redacted_thinking","data":"{long}"}}]}}"#),
            format!(r#"{{"a":[{{"type":"url_citation","url":"https://{long}"}}]}}"#),
            format!(r#"{{"a":{{"source":{{"type":"text","data":"{}"}}}}}}"#, "Plain words. ".repeat(9)),
            r#"{"a":{"image_url":"file:///a","x":"data:","data:":"http"}}"#.to_owned(),
            format!(r#"{{"{long}":1,"image_url":["http://x"]}}"#),
        ] {
            assert_eq!(media(&text), [], "{text}");
        }
    }

    #[test]
    fn media_beyond_the_limit_are_text() {
        let part = r#"{"image_url":"data:image/png,"}"#;
        let text = format!(r#"{{"a":[{}]}}"#, vec![part; MOST_MEDIA + 9].join(","));
        assert_eq!(media(&text).len(), MOST_MEDIA);
    }
}
