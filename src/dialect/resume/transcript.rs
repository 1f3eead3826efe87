//! Record of a stream as its client has it, and the rewriting of the next decoder's events into the
//! same stream.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::codec::json::Object;
use crate::codec::sse;
use crate::dialect::Api;
use crate::dialect::fault::{self, Fault, Report};
use crate::dialect::patch::Patch;
use crate::dialect::resume::body::{self, Remainder};
use crate::dialect::resume::event::{Event, EventFacts};
use crate::dialect::resume::event_rewrite::{self, Filling};
use crate::dialect::resume::hidden_tokens;
use crate::dialect::resume::plan::{Plan, Reason};
use crate::dialect::resume::text_tail::{Proof, Tail};
use crate::dialect::usage::TokenCounts;

/// Events without text that are held back. A character has at most four bytes and so comes in at
/// most four tokens; with more the text is not about to be completed.
const HELD_EVENTS: usize = 16;

const DONE: &[u8] = b"data: [DONE]\n\n";

/// One stream to one client.
#[derive(Debug)]
pub struct Transcript {
    plan: Plan,
    seen: SentText,
    leg: Leg,
    held: Vec<Entry>,
    /// Usage that came before the answer has ended: it is dropped if nothing follows it.
    early_usage: Bytes,
    /// Something went out that can't be followed, perhaps the word of a failure.
    is_unknown: bool,
    broke: Option<Break>,
}

/// Reasons why a decoder's stream is over before its end, as far as its events tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The engine wrote that it failed.
    Failed,
    /// The engine gave the request up ([`AbortSign`](super::AbortSign)).
    Recomputed,
    /// `[DONE]` came, and the answer has not ended.
    Ended,
    /// A token came that only the parser of the client's chat could place.
    HiddenToken,
}

/// Ways in which a broken stream goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The request is sent again: the client has seen nothing of the answer.
    Again,
    /// This body goes to `/v1/completions`; its prompt has so many tokens. Where text may be held
    /// back, it is to be shown first that none is.
    Continue(Bytes, u64, Option<Proof>),
    /// Only these bytes are missing.
    End(Bytes),
}

/// The part of the stream that the client has.
#[derive(Debug, Default)]
struct SentText {
    phase: Phase,
    /// `id` and `created` of its stream, as JSON.
    identity: Option<(Bytes, Bytes)>,
    /// The ids of the prompt.
    prompt: Vec<u32>,
    /// The ids of the answer.
    generated: Vec<u32>,
    /// Code points of a completion's text.
    chars: u64,
    /// The first event with text of the answer, or its last if there is none.
    template: Option<Bytes>,
    /// The last text was reasoning.
    reasoning: bool,
    /// The usage event.
    usage: bool,
    /// Tokens whose text may still change.
    open_text: bool,
    /// The last event had several tokens.
    several: bool,
    /// Its end, for what a client may not have been shown of it.
    tail: Tail,
    /// It can't be continued exactly any more.
    inexact: Option<Reason>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Nothing,
    /// A chat's first event, which says nothing.
    Role,
    /// Some of the answer.
    Text,
    /// All of the answer.
    Finished,
}

/// Request of the decoder at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leg {
    /// The client's request.
    Own,
    /// The same once more.
    Again,
    /// To go on behind so many tokens and code points.
    Continued { tokens: u64, chars: u64 },
}

/// An event on its way.
#[derive(Debug)]
struct Entry {
    frame: Bytes,
    ids: Option<Vec<u32>>,
    text: String,
    look: EventFacts,
    identity: Option<(Bytes, Bytes)>,
    template: Option<Bytes>,
}

impl Transcript {
    /// Nothing has been sent yet.
    pub fn new(plan: Plan) -> Transcript {
        Transcript {
            plan,
            seen: SentText::default(),
            leg: Leg::Own,
            held: Vec::new(),
            early_usage: Bytes::new(),
            is_unknown: false,
            broke: None,
        }
    }

    /// The break of the decoder's stream; events after it are dropped.
    pub fn broke(&self) -> Option<Break> {
        self.broke
    }

    /// Token ids that are kept.
    pub fn tokens(&self) -> usize {
        self.seen.prompt.len() + self.seen.generated.len()
    }

    /// Keeps no ids from now on, for this reason.
    pub fn forget(&mut self, reason: Reason) {
        self.seen.inexact.get_or_insert(reason);
        self.seen.prompt = Vec::new();
        self.seen.generated = Vec::new();
    }

    /// Takes whole events of the decoder; gives what may go to the client, possibly nothing.
    pub fn pass(&mut self, frames: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(frames.len() + 64);
        for frame in sse::frames(frames) {
            if self.broke.is_some() {
                break;
            }
            self.frame(&frame, &mut out);
        }
        out.freeze()
    }

    /// Decides how to go on after a break, for a request with this `body`. `cached`: cached tokens
    /// for the usage event.
    ///
    /// # Errors
    /// The reason for which that can't be exact.
    pub fn next(&mut self, body: &Object, cached: Option<u64>) -> Result<Next, Reason> {
        self.held.clear();
        self.early_usage = Bytes::new();
        self.broke = None;
        match self.seen.phase {
            Phase::Nothing => {
                self.seen = SentText { inexact: self.seen.inexact, ..SentText::default() };
                Ok(Next::Again)
            }
            Phase::Role => {
                self.leg = Leg::Again;
                Ok(Next::Again)
            }
            Phase::Text => self.go_on(body, cached),
            Phase::Finished => self.end(cached, BytesMut::new()),
        }
    }

    fn go_on(&mut self, body: &Object, cached: Option<u64>) -> Result<Next, Reason> {
        self.exact()?;
        let SentText { prompt, generated, chars, .. } = &self.seen;
        let tokens = generated.len() as u64;
        let left = body::left(self.plan.api, body, tokens);
        let doubtful = self.plan.api == Api::Chat || self.seen.several;
        let proof = doubtful.then(|| self.seen.tail.proof(generated).ok_or(Reason::HeldText)).transpose()?;
        if left == Remainder::Tokens(0) {
            if self.seen.several {
                return Err(Reason::HeldText);
            }
            let mut out = BytesMut::new();
            out.extend_from_slice(&framed(&self.filled(b"\"\"", b"\"length\"").ok_or(Reason::Unreadable)?));
            return self.end(cached, out);
        }
        let next = body::continuation(self.plan.api, body, prompt, generated, left);
        let prompt_tokens = prompt.len() as u64 + tokens;
        self.leg = Leg::Continued { tokens, chars: *chars };
        Ok(Next::Continue(next, prompt_tokens, proof))
    }

    /// Checks that the ids are those of the text that the client has.
    fn exact(&self) -> Result<(), Reason> {
        self.plan.exact?;
        let seen = &self.seen;
        match seen.inexact {
            Some(reason) => Err(reason),
            None if seen.prompt.is_empty() || seen.generated.is_empty() => Err(Reason::NoIds),
            None if seen.open_text => Err(Reason::HeldText),
            None if seen.reasoning || seen.template.is_none() => Err(Reason::Reasoning),
            None => Ok(()),
        }
    }

    /// The last event with text once more, with this text and end.
    fn filled(&self, text: &[u8], finish: &[u8]) -> Option<Bytes> {
        let template = Event::read(self.seen.template.clone()?)?;
        let ids: &[u8] = if self.plan.wants_ids { b"[]" } else { b"null" };
        let counts = self.counts();
        Some(event_rewrite::fill(
            &template,
            &Filling { text, ids, finish, stop: b"null", counts, fingerprint: None },
        ))
    }

    /// Tokens of the whole answer so far.
    fn counts(&self) -> TokenCounts {
        TokenCounts { prompt: self.seen.prompt.len() as u64, output: self.seen.generated.len() as u64 }
    }

    /// Writes the end of the stream: the usage event where the client wants it, and the mark of the
    /// end.
    fn end(&self, cached: Option<u64>, mut out: BytesMut) -> Result<Next, Reason> {
        if self.plan.include_usage && !self.seen.usage {
            self.exact()?;
            let template = self.seen.template.clone().and_then(Event::read).ok_or(Reason::Unreadable)?;
            let counts = self.counts();
            out.extend_from_slice(&framed(&event_rewrite::usage_event(&template, counts, cached)));
        }
        out.extend_from_slice(DONE);
        Ok(Next::End(out.freeze()))
    }

    fn frame(&mut self, frame: &sse::Frame<'_>, out: &mut BytesMut) {
        if !frame.has_data() {
            return out.extend_from_slice(frame.whole());
        }
        let data = frame.data();
        if data.trim_ascii() == b"[DONE]" {
            // The client would take what it has for the whole answer.
            if self.seen.phase < Phase::Finished && !self.is_unknown {
                self.broke = Some(Break::Ended);
                return;
            }
            self.release(out);
            return out.extend_from_slice(frame.whole());
        }
        // A refusal of the request would come from another engine, too, and passes.
        let failed = |report: Report| report.fault == Fault::Engine;
        if frame.is_complete() && fault::of_event(self.plan.api, frame).is_some_and(failed) {
            self.broke = Some(Break::Failed);
            return;
        }
        let event = Event::read(Bytes::copy_from_slice(&data)).filter(|_| frame.is_complete());
        let Some(event) = event else {
            self.unknown();
            self.release(out);
            return out.extend_from_slice(frame.whole());
        };
        if event.given_up(self.plan.given_up) {
            self.broke = Some(Break::Recomputed);
        } else if self.hides_token(&event) {
            self.seen.inexact.get_or_insert(Reason::SpecialTokens);
            self.broke = Some(Break::HiddenToken);
        } else {
            let rewritten = self.rewritten(&event);
            let whole = placed(frame.whole(), &data, &rewritten);
            self.event(&event, rewritten, whole, out);
        }
    }

    /// True if an event of a continued chat has a token of which nobody knows if the client should
    /// see it.
    fn hides_token(&self, event: &Event) -> bool {
        let continues_chat = self.plan.api == Api::Chat && matches!(self.leg, Leg::Continued { .. });
        let choice = event.choice.as_ref().filter(|_| continues_chat);
        choice.is_some_and(|choice| hidden_tokens::exist(choice, &event.text().unwrap_or_default()))
    }

    /// Puts an event where it belongs: to the client, among those that are held, or nowhere.
    fn event(&mut self, event: &Event, rewritten: Bytes, frame: Bytes, out: &mut BytesMut) {
        let Some(choice) = &event.choice else {
            let is_usage = event.top.given("usage").is_some();
            if is_usage && self.seen.phase < Phase::Finished && !self.is_unknown {
                self.early_usage = frame;
                return;
            }
            self.release(out);
            match is_usage {
                true => self.seen.usage = true,
                // A refusal of the request, or something unknown: sent once.
                false => self.unknown(),
            }
            return out.extend_from_slice(&frame);
        };
        let look = event.look();
        if matches!(self.leg, Leg::Own | Leg::Again)
            && let Some(ids) = event.prompt_ids().filter(|_| self.collects())
        {
            self.seen.prompt = ids;
        }
        let raw = |key| event.top.object.get(key).map(|v| v.to_bytes());
        let mut entry = Entry {
            frame,
            ids: choice.numbers("token_ids"),
            text: event.text().unwrap_or_default(),
            look,
            identity: raw("id").zip(raw("created")),
            template: None,
        };
        // Some engines repeat the role beside each token.
        let tells_token = entry.ids.as_ref().is_some_and(|ids| !ids.is_empty());
        if look.role && !look.visible() && !tells_token {
            return self.role(&entry, out);
        }
        if self.seen.template.is_none() && (look.text || look.finish) {
            entry.template = Some(rewritten);
        }
        if !look.visible() && self.held.len() < HELD_EVENTS {
            return self.held.push(entry);
        }
        self.release(out);
        self.send(entry, out);
    }

    /// Something goes out that can't be followed.
    fn unknown(&mut self) {
        self.is_unknown = true;
        self.forget(Reason::Unreadable);
        self.seen.phase = self.seen.phase.max(Phase::Text);
    }

    /// A chat's first event: sent once.
    fn role(&mut self, entry: &Entry, out: &mut BytesMut) {
        if self.seen.phase == Phase::Nothing {
            self.seen.phase = Phase::Role;
            self.seen.identity.clone_from(&entry.identity);
            out.extend_from_slice(&entry.frame);
        }
    }

    /// Sends what is held.
    fn release(&mut self, out: &mut BytesMut) {
        for entry in std::mem::take(&mut self.held) {
            self.send(entry, out);
        }
        let usage = std::mem::take(&mut self.early_usage);
        self.seen.usage |= !usage.is_empty();
        out.extend_from_slice(&usage);
    }

    fn send(&mut self, entry: Entry, out: &mut BytesMut) {
        let Entry { frame, ids, text, look, identity, template } = entry;
        let collects = self.collects();
        let seen = &mut self.seen;
        seen.phase = seen.phase.max(if look.finish { Phase::Finished } else { Phase::Text });
        seen.identity = seen.identity.take().or(identity);
        seen.template = seen.template.take().or(template);
        seen.chars += text.chars().count() as u64;
        if look.text || look.reasoning {
            seen.reasoning = look.reasoning && !look.text;
        }
        // Of several tokens at once the last may be a character's first bytes, which the text does
        // not show: engines that go on from there repeat the prompt, or lose the character (vLLM's
        // detokenizers).
        seen.several = ids.as_ref().is_some_and(|ids| ids.len() > 1);
        seen.open_text = !look.finish && !look.visible();
        match (look.reasoning, &ids) {
            (false, Some(ids)) if collects => seen.tail.push(ids.len(), &text),
            _ => seen.tail.clear(),
        }
        if look.other {
            seen.inexact.get_or_insert(Reason::Tools);
        }
        match ids {
            Some(ids) if collects => seen.generated.extend(ids),
            None if look.visible() => {
                seen.inexact.get_or_insert(Reason::NoIds);
            }
            _ => {}
        }
        // Engines write an event for a token without text only because token ids were asked for,
        // here by us.
        let ours = look.bare && !look.finish && !self.plan.wants_ids && self.plan.exact.is_ok();
        if !ours {
            out.extend_from_slice(&frame);
        }
    }

    fn collects(&self) -> bool {
        self.plan.exact.is_ok() && self.seen.inexact.is_none()
    }

    /// An event's data as the client is to read it.
    fn rewritten(&self, event: &Event) -> Bytes {
        let mut patch = Patch::default();
        if let Leg::Continued { tokens, chars } = self.leg {
            let counts = self.seen.prompt.len() as u64;
            if self.plan.api == Api::Chat && event.choice.is_some() {
                return self.as_chat(event, counts, tokens).unwrap_or_default();
            }
            event_rewrite::recount(event, counts, tokens, &mut patch);
            event_rewrite::shift_offsets(event, chars, &mut patch);
            event_rewrite::hide_prompt(event, &mut patch);
            if self.plan.api == Api::Chat {
                patch.set(event.top.span("object"), "\"chat.completion.chunk\"");
            }
        }
        if !self.plan.wants_ids {
            event_rewrite::hide_ids(event, &mut patch);
        }
        if let Some((id, created)) = self.seen.identity.as_ref().filter(|_| self.leg != Leg::Own) {
            patch.set(event.top.span("id"), id);
            patch.set(event.top.span("created"), created);
        }
        patch.apply(event.data())
    }

    /// A completion's event as one of the chat that it continues.
    fn as_chat(&self, event: &Event, prompt: u64, carried: u64) -> Option<Bytes> {
        let template = Event::read(self.seen.template.clone()?)?;
        let choice = event.choice.as_ref()?;
        let raw = |key| choice.object.get(key).map_or(b"null".as_slice(), |v| v.raw());
        let ids = if self.plan.wants_ids { raw("token_ids") } else { b"null" };
        let usage = event.top.part("usage");
        let own = usage.and_then(|u| u.object.get("completion_tokens")?.as_u64()).unwrap_or(0);
        let fingerprint = event.top.given("system_fingerprint");
        Some(event_rewrite::fill(
            &template,
            &Filling {
                text: raw("text"),
                ids,
                finish: raw("finish_reason"),
                stop: raw("stop_reason"),
                counts: TokenCounts { prompt, output: own + carried },
                fingerprint: fingerprint.map(|v| v.raw()),
            },
        ))
    }
}

/// A frame with its data replaced.
fn placed(whole: &[u8], data: &[u8], rewritten: &Bytes) -> Bytes {
    match memmem::find(whole, data).filter(|_| !data.contains(&b'\n')) {
        Some(at) => [&whole[..at], rewritten, &whole[at + data.len()..]].concat().into(),
        // Data on several lines, which engines don't write.
        None => framed(rewritten),
    }
}

/// An event with this data, each line of it as one.
fn framed(data: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(data.len() + 8);
    for line in data.split(|byte| *byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
    out.into()
}
