//! A model by the name that the client knows it by: engines get their own name for it, and answers
//! have the client's.
//!
//! Engines repeat the model's name as the member `model`, of a whole answer, of each event, or of
//! an object in it. It is replaced wherever it stands unescaped, which is outside of JSON's
//! strings: inside of one its quotes have backslashes. So nothing is parsed, and nothing is held
//! back but a beginning of the member at the end of a piece.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use memchr::memmem;

use crate::codec::json::{Edit, Object, quote};
use crate::relay::answer::AnswerBody;
use crate::server::fleets::ModelAlias;

/// The member, as compact writers of JSON have it; others put a space after the colon.
const MEMBER: &[u8] = b"\"model\":";

/// The text of a body with the name that engines know.
pub(super) fn with_model(body: &Object, alias: &ModelAlias) -> Bytes {
    body.splice(&Edit::new().set("model", quote(&alias.model))).to_bytes()
}

/// An answer with the client's name for the model.
pub(super) fn renamed(answer: AnswerBody, alias: &ModelAlias) -> Body {
    match answer {
        AnswerBody::Whole(whole) => {
            Body::new(whole.map_bytes(|bytes| Names::of(alias).rename(&bytes).whole()))
        }
        AnswerBody::Stream(stream) => renamed_stream(Body::new(*stream), alias),
        AnswerBody::Merged(merged) => renamed_stream(Body::new(*merged), alias),
    }
}

/// The same of an answer that arrives piece by piece.
pub(super) fn renamed_stream(body: Body, alias: &ModelAlias) -> Body {
    Body::new(RenamedBody { body, names: Names::of(alias), held: Bytes::new(), ended: false })
}

/// Both names, in quotes, and the member with the engines' one.
struct Names {
    engines: Vec<u8>,
    clients: Vec<u8>,
    /// Without and with a space after the colon.
    members: [Vec<u8>; 2],
}

impl Names {
    fn of(alias: &ModelAlias) -> Names {
        let quoted = |name: &str| quote(name).to_vec();
        let engines = quoted(&alias.model);
        let members = [b"".as_slice(), b" "].map(|space| [MEMBER, space, &engines].concat());
        Names { engines, clients: quoted(&alias.name), members }
    }

    /// Replaces each name of the model.
    fn rename(&self, bytes: &Bytes) -> Renamed {
        let (mut renamed, mut done) = (BytesMut::new(), 0);
        for at in memmem::find_iter(bytes, MEMBER) {
            let begin = at + MEMBER.len();
            let value = bytes.get(begin..).unwrap_or_default();
            let space = usize::from(value.first() == Some(&b' '));
            if value.get(space..).is_some_and(|value| value.starts_with(&self.engines)) {
                renamed.extend_from_slice(bytes.get(done..begin + space).unwrap_or_default());
                renamed.extend_from_slice(&self.clients);
                done = begin + space + self.engines.len();
            }
        }
        Renamed { renamed, rest: bytes.slice(done..) }
    }

    /// Length of the end of `bytes` that may be a beginning of the member and its name.
    fn open_end(&self, bytes: &[u8]) -> usize {
        let [compact, spaced] = &self.members;
        let longest = (spaced.len() - 1).min(bytes.len());
        let from = bytes.len() - longest;
        let tail = bytes.get(from..).unwrap_or_default();
        let begins = |at: &usize| {
            let end = tail.get(*at..).unwrap_or_default();
            compact.len() > end.len() && compact.starts_with(end) || spaced.starts_with(end)
        };
        memchr::memchr_iter(b'"', tail).find(begins).map_or(0, |at| longest - at)
    }
}

/// Bytes up to the last name, which is replaced, and those after it.
struct Renamed {
    renamed: BytesMut,
    rest: Bytes,
}

impl Renamed {
    /// All of it; what has no name is passed on as it is.
    fn whole(self) -> Bytes {
        let Renamed { mut renamed, rest } = self;
        if renamed.is_empty() {
            return rest;
        }
        renamed.extend_from_slice(&rest);
        renamed.freeze()
    }
}

/// A body in which the names are replaced as it passes.
struct RenamedBody {
    body: Body,
    names: Names,
    /// A beginning of the member, at the end of the last piece.
    held: Bytes,
    ended: bool,
}

impl RenamedBody {
    /// Returns the part of a piece that can go out.
    fn pass(&mut self, piece: Bytes) -> Bytes {
        let bytes = match self.held.is_empty() {
            true => piece,
            false => [std::mem::take(&mut self.held), piece].concat().into(),
        };
        let mut renamed = self.names.rename(&bytes);
        let open = self.names.open_end(&renamed.rest);
        self.held = renamed.rest.split_off(renamed.rest.len() - open);
        renamed.whole()
    }
}

impl HttpBody for RenamedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        while !this.ended {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => {
                        let piece = this.pass(piece);
                        if !piece.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(piece))));
                        }
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => this.ended = true,
            }
        }
        let rest = std::mem::take(&mut this.held);
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && (self.ended || self.body.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias() -> ModelAlias {
        ModelAlias { name: "gpt-4o".into(), model: "Qwen/Qwen3-8B".into() }
    }

    fn passed(pieces: &[&str]) -> String {
        let mut body =
            RenamedBody { body: Body::empty(), names: Names::of(&alias()), held: Bytes::new(), ended: false };
        let mut all: Vec<u8> = Vec::new();
        for piece in pieces {
            all.extend(body.pass(Bytes::copy_from_slice(piece.as_bytes())));
        }
        all.extend(body.held);
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn model_names_are_replaced_wherever_they_stand_unescaped() {
        for (answer, renamed) in [
            (r#"{"id":"1","model":"Qwen/Qwen3-8B","x":1}"#, r#"{"id":"1","model":"gpt-4o","x":1}"#),
            (r#"{"model": "Qwen/Qwen3-8B"}"#, r#"{"model": "gpt-4o"}"#),
            (r#"{"response":{"model":"Qwen/Qwen3-8B"}}"#, r#"{"response":{"model":"gpt-4o"}}"#),
            (r#"{"model":"Qwen/Qwen3-8B-lora"}"#, r#"{"model":"Qwen/Qwen3-8B-lora"}"#),
            (r#"{"text":"\"model\":\"Qwen/Qwen3-8B\""}"#, r#"{"text":"\"model\":\"Qwen/Qwen3-8B\""}"#),
            ("data: [DONE]\n\n", "data: [DONE]\n\n"),
        ] {
            assert_eq!(passed(&[answer]), renamed);
        }
    }

    #[test]
    fn model_name_is_found_wherever_a_piece_ends() {
        let answer =
            "data: {\"model\":\"Qwen/Qwen3-8B\",\"n\":1}\n\ndata: {\"model\": \"Qwen/Qwen3-8B\"}\n\n\"mod";
        let whole = passed(&[answer]);
        assert_eq!(whole.matches("gpt-4o").count(), 2);
        for at in 0..answer.len() {
            assert_eq!(passed(&[&answer[..at], &answer[at..]]), whole, "cut at {at}");
        }
        let letters: Vec<&str> = answer.split("").collect();
        assert_eq!(passed(&letters), whole);
    }

    #[test]
    fn complete_events_are_not_held_back() {
        let mut body =
            RenamedBody { body: Body::empty(), names: Names::of(&alias()), held: Bytes::new(), ended: false };
        let event = Bytes::from_static(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
        assert_eq!(body.pass(event.clone()), event);
        assert!(body.held.is_empty());
    }
}
