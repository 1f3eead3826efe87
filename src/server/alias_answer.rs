//! A model by the name that the client knows it by: engines get their own name for it, and answers
//! have the client's.
//!
//! Engines repeat the model's name as the member `model`, of a whole answer, of each event, or of
//! an object in it. There it is replaced, and nowhere deeper, nor in the client's own `metadata`:
//! strings and braces are followed, nothing is parsed, and nothing is held back but a beginning of
//! the name at the end of a piece.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use smallvec::SmallVec;

use crate::codec::json::{Edit, Object, quote};
use crate::relay::answer::AnswerBody;
use crate::server::fleets::ModelAlias;

/// The text of a body with the name that engines know.
pub(super) fn with_model(body: &Object, alias: &ModelAlias) -> Bytes {
    body.splice(&Edit::new().set("model", quote(&alias.model))).to_bytes()
}

/// An answer with the client's name for the model.
pub(super) fn renamed(answer: AnswerBody, alias: &ModelAlias) -> Body {
    match answer {
        AnswerBody::Whole(whole) => Body::new(whole.map_bytes(|bytes| {
            let mut renamer = Renamer::of(alias);
            let renamed = renamer.pass(&bytes);
            if renamer.held.is_empty() { renamed } else { [renamed, renamer.held.into()].concat().into() }
        })),
        AnswerBody::Stream(stream) => renamed_stream(Body::new(*stream), alias),
        AnswerBody::Merged(merged) => renamed_stream(Body::new(*merged), alias),
    }
}

/// The same of an answer that arrives piece by piece.
pub(super) fn renamed_stream(body: Body, alias: &ModelAlias) -> Body {
    Body::new(RenamedBody { body, renamer: Renamer::of(alias), ended: false })
}

/// Names of members that matter, without quotes.
const MODEL: &[u8] = b"model";
const METADATA: &[u8] = b"metadata";

/// Deepest object in which engines name the model: that of an event, or the answer in it.
const MAX_DEPTH: usize = 2;

/// The member that a value is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Member {
    Model,
    /// The client's own words, whose members may be called anything.
    Metadata,
    #[default]
    Other,
}

/// Place in the text of a reader that has read some of it.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    /// Outside of strings.
    #[default]
    Between,
    /// In a string, of which as many bytes as `matched` are the engines' name in quotes, if it is
    /// the value of the member.
    InString { escaped: bool, matched: Option<usize> },
}

/// Replaces the model's name in JSON text, or in events of it, that arrives in pieces.
#[derive(Debug)]
struct Renamer {
    /// Both names, in quotes.
    engines: Vec<u8>,
    clients: Vec<u8>,
    place: Place,
    depth: usize,
    /// Depth of the metadata that is being read.
    metadata: Option<usize>,
    /// Member whose value is next.
    member: Member,
    /// The beginning of the last string, as long as the longest name that matters, and one byte.
    text: SmallVec<[u8; METADATA.len() + 1]>,
    /// The last byte ended a line.
    line_ended: bool,
    /// The name, as far as it has been read at the end of a piece.
    held: Vec<u8>,
}

/// Result of reading one byte.
enum Step {
    /// Nothing that matters.
    Plain,
    /// The value of the member begins.
    Begins,
    /// The value is the engines' name, and ends here.
    Ends,
    /// The value is another one.
    Differs,
}

impl Renamer {
    fn of(alias: &ModelAlias) -> Renamer {
        let quoted = |name: &str| quote(name).to_vec();
        Renamer {
            engines: quoted(&alias.model),
            clients: quoted(&alias.name),
            place: Place::default(),
            depth: 0,
            metadata: None,
            member: Member::Other,
            text: SmallVec::new(),
            line_ended: false,
            held: Vec::new(),
        }
    }

    /// Returns the part of a piece that can go out, with the client's name.
    fn pass(&mut self, piece: &Bytes) -> Bytes {
        let mut renamed = BytesMut::new();
        // Up to here all has gone out; a name that is being read begins there, or before the piece.
        let (mut done, mut begin) = (0, (!self.held.is_empty()).then_some(0));
        for (at, byte) in piece.iter().enumerate() {
            match self.step(*byte) {
                Step::Plain => {}
                Step::Begins => begin = Some(at),
                Step::Ends => {
                    renamed
                        .extend_from_slice(piece.get(done..begin.take().unwrap_or(at)).unwrap_or_default());
                    renamed.extend_from_slice(&self.clients);
                    self.held.clear();
                    done = at + 1;
                }
                Step::Differs => {
                    renamed.extend_from_slice(&std::mem::take(&mut self.held));
                    begin = None;
                }
            }
        }
        let end = begin.unwrap_or(piece.len());
        self.held.extend_from_slice(piece.get(end..).unwrap_or_default());
        if renamed.is_empty() {
            return piece.slice(done..end);
        }
        renamed.extend_from_slice(piece.get(done..end).unwrap_or_default());
        renamed.freeze()
    }

    fn step(&mut self, byte: u8) -> Step {
        let line_ended = std::mem::replace(&mut self.line_ended, byte == b'\n');
        match &mut self.place {
            // No string of JSON has one: the event broke off.
            Place::InString { matched, .. } if byte == b'\n' => {
                let differs = matched.is_some();
                self.begin_event();
                return if differs { Step::Differs } else { Step::Plain };
            }
            Place::InString { escaped, matched } => {
                let ends = byte == b'"' && !*escaped;
                *escaped = byte == b'\\' && !*escaped;
                let before = *matched;
                *matched = before.filter(|at| self.engines.get(*at) == Some(&byte)).map(|at| at + 1);
                let step = match (before, *matched) {
                    (Some(_), None) => Step::Differs,
                    (Some(_), Some(length)) if ends && length == self.engines.len() => Step::Ends,
                    (Some(_), Some(_)) if ends => Step::Differs,
                    _ => Step::Plain,
                };
                if ends {
                    self.place = Place::Between;
                } else if self.text.len() <= METADATA.len() {
                    self.text.push(byte);
                }
                return step;
            }
            Place::Between => {}
        }
        match byte {
            b'"' => {
                let is_name =
                    self.member == Member::Model && self.depth <= MAX_DEPTH && self.metadata.is_none();
                self.text.clear();
                self.place = Place::InString { escaped: false, matched: is_name.then_some(1) };
                return if is_name { Step::Begins } else { Step::Plain };
            }
            b':' => self.member = member(&std::mem::take(&mut self.text)),
            b'{' | b'[' => {
                self.depth += 1;
                if std::mem::take(&mut self.member) == Member::Metadata {
                    self.metadata.get_or_insert(self.depth);
                }
            }
            b'}' | b']' => {
                self.metadata = self.metadata.filter(|depth| *depth < self.depth);
                self.depth = self.depth.saturating_sub(1);
                self.member = Member::Other;
            }
            b',' => self.member = Member::Other,
            b'\n' if line_ended => self.begin_event(),
            _ => {}
        }
        Step::Plain
    }

    fn begin_event(&mut self) {
        (self.place, self.depth, self.metadata, self.member) = (Place::Between, 0, None, Member::Other);
        self.text.clear();
    }
}

/// The member of this name.
fn member(name: &[u8]) -> Member {
    match name {
        MODEL => Member::Model,
        METADATA => Member::Metadata,
        _ => Member::Other,
    }
}

/// A body in which the names are replaced as it passes.
struct RenamedBody {
    body: Body,
    renamer: Renamer,
    ended: bool,
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
                        let piece = this.renamer.pass(&piece);
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
        let rest = std::mem::take(&mut this.renamer.held);
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.renamer.held.is_empty() && (self.ended || self.body.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias() -> ModelAlias {
        ModelAlias { name: "gpt-4o".into(), model: "Qwen/Qwen3-8B".into() }
    }

    fn passed(pieces: &[&str]) -> String {
        let mut renamer = Renamer::of(&alias());
        let mut all: Vec<u8> = Vec::new();
        for piece in pieces {
            all.extend(renamer.pass(&Bytes::copy_from_slice(piece.as_bytes())));
        }
        all.extend(renamer.held);
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
            (r#"{"model" : "Qwen/Qwen3-8B" }"#, r#"{"model" : "gpt-4o" }"#),
            ("{\n  \"model\":\n\t\"Qwen/Qwen3-8B\"\n}", "{\n  \"model\":\n\t\"gpt-4o\"\n}"),
            (
                "{\"text\":\"broken\n\ndata: {\"model\":\"Qwen/Qwen3-8B\"}",
                "{\"text\":\"broken\n\ndata: {\"model\":\"gpt-4o\"}",
            ),
            (
                r#"{"metadata":{"model":"Qwen/Qwen3-8B","a":[1]},"model":"Qwen/Qwen3-8B"}"#,
                r#"{"metadata":{"model":"Qwen/Qwen3-8B","a":[1]},"model":"gpt-4o"}"#,
            ),
            (r#"{"tools":[{"model":"Qwen/Qwen3-8B"}]}"#, r#"{"tools":[{"model":"Qwen/Qwen3-8B"}]}"#),
            (r#"{"a":"model","b":"Qwen/Qwen3-8B"}"#, r#"{"a":"model","b":"Qwen/Qwen3-8B"}"#),
            ("data: [DONE]\n\n", "data: [DONE]\n\n"),
        ] {
            assert_eq!(passed(&[answer]), renamed);
        }
    }

    #[test]
    fn model_name_is_found_wherever_a_piece_ends() {
        let answer = "data: {\"model\":\"Qwen/Qwen3-8B\",\"n\":1}\n\ndata: {\"model\": \"Qwen/Qwen3-8B\"}\n\n{\"model\":\"Qwen/Q";
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
        let mut renamer = Renamer::of(&alias());
        let event = Bytes::from_static(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
        assert_eq!(renamer.pass(&event), event);
        assert!(renamer.held.is_empty());
    }
}
