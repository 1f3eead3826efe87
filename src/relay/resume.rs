//! Streams that break and go on elsewhere: what has been sent is followed, and after a break both
//! legs run once more for the rest of the answer. What can be continued exactly, and how events are
//! rewritten, is in `dialect::resume`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Instant;

use bytes::Bytes;
use http::uri::PathAndQuery;
use tokio::time::timeout_at;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::Shape;
use crate::dialect::fault::Fault;
use crate::dialect::resume::{Break, Next, Reason, Transcript};
use crate::error::{Error, Kind};
use crate::fleet::InstanceId;
use crate::relay::account::Ledger;
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::relay::failure::FailureKind;
use crate::relay::legs::DecodeEnd;
use crate::relay::shown::ShownText;
use crate::relay::source::Source;
use crate::relay::{Relay, Tries};

/// Room for the token ids of all streams that could be continued.
#[derive(Debug)]
pub struct Room {
    taken: AtomicUsize,
    most: usize,
}

/// Share of one stream in it, until dropped.
#[derive(Debug)]
struct Place {
    room: Arc<Room>,
    tokens: usize,
}

/// Follows one stream to its client.
#[derive(Debug)]
pub(super) struct Follower {
    relay: Arc<Relay>,
    ask: Arc<Ask>,
    /// Of a stream with several answers nothing is kept.
    tape: Result<Transcript, Reason>,
    place: Place,
    left: u32,
}

/// Reasons why a decoder's part of a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its connection broke.
    Broken,
    /// Its body ended before the answer did.
    Ended,
    /// It was silent for too long.
    Silent,
    /// It wrote that it failed.
    Failed,
    /// It wrote that the request can't be answered.
    Refused,
    /// It gave the request up for others.
    Recomputed,
    /// It left a token of a chat out that the client's parser might have shown.
    HidToken,
}

/// Ways in which a stream goes on.
pub(super) enum Continuation {
    /// These bytes are the rest.
    End(Bytes),
    /// Another pair is looked for.
    Pair(Pair),
}

/// Both legs of a continuation; the ledger goes with them and comes back.
pub(super) type Pair = Pin<Box<dyn Future<Output = (Ledger, Result<Box<Source>, Error>)> + Send>>;

impl Room {
    /// For so many ids, 4 bytes each.
    pub fn new(most: usize) -> Room {
        Room { taken: AtomicUsize::new(0), most }
    }
}

impl Place {
    /// Takes what is missing to `tokens`; false if there is no room.
    fn grow(&mut self, tokens: usize) -> bool {
        let more = tokens.saturating_sub(self.tokens);
        if more == 0 {
            return true;
        }
        let before = self.room.taken.fetch_add(more, Ordering::Relaxed);
        if before + more > self.room.most {
            self.room.taken.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.tokens = tokens;
        true
    }

    fn empty(&mut self) {
        self.room.taken.fetch_sub(std::mem::take(&mut self.tokens), Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.empty();
    }
}

impl Cause {
    /// The value of the metric label `reason`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Cause::Broken => "broken",
            Cause::Ended => "ended",
            Cause::Silent => "silent",
            Cause::Failed => "failed",
            Cause::Refused => "refused",
            Cause::Recomputed => "recomputed",
            Cause::HidToken => "special_tokens",
        }
    }
}

impl Cause {
    /// The cause that a failure with this fault is.
    pub(super) fn of(fault: Fault) -> Cause {
        match fault {
            Fault::Engine => Cause::Failed,
            Fault::Request => Cause::Refused,
        }
    }

    /// The decoder's failure, as one of a leg; `None` if it did not fail.
    pub(super) fn failure(self) -> Option<FailureKind> {
        match self {
            Cause::Broken | Cause::Ended => Some(FailureKind::Broken),
            Cause::Silent => Some(FailureKind::Timeout),
            Cause::Failed => Some(FailureKind::Status),
            Cause::Recomputed => Some(FailureKind::AbortSign),
            Cause::Refused | Cause::HidToken => None,
        }
    }
}

impl Follower {
    /// Follows the stream that answers `ask`, if it is to be followed.
    pub(super) fn new(relay: &Arc<Relay>, ask: &Arc<Ask>) -> Option<Box<Follower>> {
        let plan = ask.plan()?.clone();
        let tape = match plan.exact {
            Err(reason) if !plan.one_answer() => Err(reason),
            _ => Ok(Transcript::new(plan)),
        };
        let place = Place { room: relay.room.clone(), tokens: 0 };
        let left = relay.settings.now().attempts.saturating_sub(1);
        Some(Box::new(Follower { relay: relay.clone(), ask: ask.clone(), tape, place, left }))
    }

    /// Releases the part of whole events that may go to the client.
    pub(super) fn pass(&mut self, frames: Bytes) -> Bytes {
        let Ok(tape) = &mut self.tape else { return frames };
        let out = tape.pass(&frames);
        if !self.place.grow(tape.tokens()) {
            tape.forget(Reason::Memory);
            self.place.empty();
        }
        out
    }

    /// The break of the decoder's stream, as far as its events tell.
    pub(super) fn broke(&self) -> Option<Cause> {
        self.tape.as_ref().ok()?.broke().map(|broke| match broke {
            Break::Failed => Cause::Failed,
            Break::Recomputed => Cause::Recomputed,
            Break::Ended => Cause::Ended,
            Break::HiddenToken => Cause::HidToken,
        })
    }

    /// Decides how the stream goes on; `None` if it can't, which has been counted. Takes the ledger
    /// for as long as another pair is looked for.
    pub(super) fn go_on(
        &mut self,
        cause: Cause,
        tried: InstanceId,
        account: &mut Option<Ledger>,
        end: Instant,
    ) -> Option<Continuation> {
        let cached = account.as_ref().and_then(Ledger::cached_of_prefill).map(|counts| counts.cached);
        let relay = self.relay.clone();
        let next = match self.next(cached, end) {
            Ok(next) => next,
            Err(reason) => {
                relay.meters.continuation("refused", reason);
                return None;
            }
        };
        let (request, proof) = match next {
            Next::End(rest) => {
                relay.meters.continuation("resumed", cause.name());
                return Some(Continuation::End(rest));
            }
            Next::Again => (NextRequest::Same(self.ask.clone()), None),
            Next::Continue(body, prompt_tokens, proof) => {
                (NextRequest::Rest(Box::new(continued(&self.ask, body, prompt_tokens).ok()?)), proof)
            }
        };
        self.left -= 1;
        let mut ledger = account.take()?;
        Some(Continuation::Pair(Box::pin(async move {
            let going = async {
                let shown = match &proof {
                    Some(proof) => relay.shows(request.received(), proof, tried).await,
                    None => ShownText::All,
                };
                if !matches!(shown, ShownText::All) {
                    return Resumption::Withheld(shown);
                }
                ledger.resumes(cause.name());
                Resumption::Begun(relay.again(request, tried, &mut ledger).await)
            };
            let found = match timeout_at(end, going).await {
                Ok(Resumption::Begun(found)) => found,
                Ok(Resumption::Withheld(shown)) => {
                    let (outcome, reason) = match shown {
                        ShownText::Unknown => ("failed", cause.name()),
                        _ => ("refused", Reason::HeldText.name()),
                    };
                    relay.meters.continuation(outcome, reason);
                    return (
                        ledger,
                        Err(Error::new(Kind::DecodeFailed, "text of the answer may be held back")),
                    );
                }
                Err(_) => Err(Error::new(Kind::DecodeTimeout, "the total time limit is over")),
            };
            let outcome = if found.is_ok() { "resumed" } else { "failed" };
            relay.meters.continuation(outcome, cause.name());
            (ledger, found)
        })))
    }

    fn next(&mut self, cached: Option<u64>, end: Instant) -> Result<Next, &'static str> {
        let tape = self.tape.as_mut().map_err(|reason| reason.name())?;
        if Instant::now() >= end {
            return Err("deadline");
        }
        let next = tape.next(&self.ask.body, cached).map_err(Reason::name)?;
        if matches!(next, Next::End(_)) {
            return Ok(next);
        }
        if self.left == 0 {
            return Err("attempts");
        }
        if !self.relay.budget.allows() {
            return Err("budget");
        }
        Ok(next)
    }
}

/// Attempt to go on with a stream.
enum Resumption {
    /// Another pair was asked.
    Begun(Result<Box<Source>, Error>),
    /// None was asked, since the client may lack a part of the text.
    Withheld(ShownText),
}

/// Request for the pair that goes on with a stream.
enum NextRequest {
    /// The whole answer once more.
    Same(Arc<Ask>),
    /// The rest of the answer, after a prompt of its own.
    Rest(Box<ReceivedRequest>),
}

impl NextRequest {
    fn received(&self) -> &ReceivedRequest {
        match self {
            NextRequest::Same(ask) => ask,
            NextRequest::Rest(request) => request,
        }
    }
}

/// The request for the rest of an answer.
fn continued(
    ask: &Ask,
    body: Bytes,
    prompt_tokens: u64,
) -> Result<ReceivedRequest, crate::codec::json::JsonError> {
    let body = Object::scan(body, ScanLimits::default())?;
    let ask = ask.instead(PathAndQuery::from_static("/v1/completions"), body);
    Ok(ReceivedRequest { shape: Shape { prompt_tokens, text_tokens: prompt_tokens, ..ask.shape }, ..ask })
}

impl Relay {
    /// Both legs of a request whose stream broke on the decoder `tried`, up to the first event of
    /// the next stream.
    async fn again(
        self: &Arc<Self>,
        request: NextRequest,
        tried: InstanceId,
        ledger: &mut Ledger,
    ) -> Result<Box<Source>, Error> {
        let ask = match request {
            NextRequest::Same(ask) => ask,
            NextRequest::Rest(request) => Arc::new(self.understand(*request).await.0),
        };
        let mut tries = Tries::new(self.settings.now().attempts);
        tries.tried.push(tried);
        match self.both_legs(&ask, tries, ledger).await? {
            DecodeEnd::Stream { source, .. } => Ok(source),
            DecodeEnd::Whole(answer) => {
                Err(Error::new(Kind::DecodeFailed, "the rest of the answer was refused")
                    .detail(format!("status {}", answer.status().as_u16())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_shared_and_given_back() {
        let room = Arc::new(Room::new(100));
        let place = || Place { room: room.clone(), tokens: 0 };
        let (mut one, mut two) = (place(), place());
        assert!(one.grow(60) && one.grow(50), "it never shrinks");
        assert!(two.grow(40) && !two.grow(41));
        drop(one);
        assert!(two.grow(100) && !two.grow(101));
        two.empty();
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
