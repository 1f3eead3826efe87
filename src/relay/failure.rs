//! Failures of a leg, and their meaning: for the engine, for further attempts, for the client.

use std::time::Duration;

use http::StatusCode;

use crate::error::{Error, Kind};
use crate::fleet::{BusyAnswer, Outcome, Role, Verdict};
use crate::relay::refusals::EngineRefusal;

/// Failure of a leg.
#[derive(Debug)]
pub struct Failure {
    /// In what way.
    pub why: FailureKind,
    /// The engine may have the whole request, and with it the hand-off.
    pub written: bool,
    /// For the log.
    pub detail: String,
    /// Time for which a busy engine asked to be spared (`Retry-After`).
    pub spare: Option<Duration>,
    /// Not the engine answered, but a proxy before it: the engine does not know of the request.
    pub by_proxy: bool,
    /// The engine turned the request away under status 200, so after it had accepted it: nobody
    /// told its prefiller.
    pub accepted: bool,
    /// The engine's answer, if the failure is a refusal that another engine has to confirm.
    pub refusal: Option<Box<EngineRefusal>>,
    /// The engine that it is held against, of a leg that was to use another engine's KV.
    pub verdict: Option<Verdict>,
    /// Since when the leg could have been served, in ms of the fleet's clock, of one that got
    /// nothing, or nothing but an error.
    pub since_ms: Option<u64>,
}

/// In what way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection was made.
    Connect,
    /// The connection broke.
    Broken,
    /// It took too long.
    Timeout,
    /// The engine does nothing with what it was sent, while others work, or does not answer probes
    /// any more.
    Stuck,
    /// The engine has too much to do: it answered with this status, 429 or 503.
    Busy(StatusCode),
    /// The engine refused the request for a reason that may be its own (401, 403, 404, …).
    Refused(StatusCode),
    /// A status of 500 or more.
    Status,
    /// An answer that can't be used.
    BadReply,
    /// The hand-off is older than the prefiller's lease.
    Stale,
    /// The engine is of another release than when it was chosen, and was sent nothing.
    OtherRelease,
    /// The decoder gave the request up for others, as it says: it is to be prefilled again.
    AbortSign,
    /// Larger than we read: the limit is ours, and the engine did what it was asked.
    TooLarge(Large),
}

/// Parts of an engine's answer that can be too large to be read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Large {
    /// A prefiller's answer.
    PrefillReply,
    /// A whole answer.
    Answer,
    /// The body of a refusal.
    Refusal,
}

impl Failure {
    /// The hand-off grew older than the prefiller's lease.
    pub(super) fn stale() -> Failure {
        Failure::new(FailureKind::Stale, true, "the prefiller's lease is over")
    }

    /// The decoder put the request off, as engines do whose blocks are used up.
    pub(super) fn given_up() -> Failure {
        Failure::new(FailureKind::AbortSign, true, "the decoder gave the request up, to be prefilled again")
    }

    /// The prefiller can't be asked yet.
    pub(super) fn unprepared(detail: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Connect, false, detail)
    }

    /// The decoder did not call back for a prefill.
    pub(super) fn not_called(limit: Duration) -> Failure {
        Failure::new(FailureKind::Timeout, true, format!("it did not call back within {limit:?}"))
    }

    /// The decoder has its KV, or should have, and does not begin.
    pub(super) fn late(limit: Duration) -> Failure {
        Failure::new(FailureKind::Timeout, true, format!("no answer within {limit:?} of the prefill"))
    }

    /// It failed like this; `detail` is for the log.
    pub fn new(why: FailureKind, written: bool, detail: impl Into<String>) -> Failure {
        let (spare, refusal, verdict, since_ms) = (None, None, None, None);
        let (detail, by_proxy, accepted) = (detail.into(), false, false);
        Failure { why, written, detail, spare, by_proxy, accepted, refusal, verdict, since_ms }
    }

    /// The same, of a leg that was sent at `since_ms` and may have waited for another engine before
    /// its own answered with an error: what others did meanwhile is evidence, too.
    pub(super) fn answered_since(self, since_ms: u64) -> Failure {
        match self.why {
            FailureKind::Status | FailureKind::BadReply => Failure { since_ms: Some(since_ms), ..self },
            _ => self,
        }
    }

    /// The engine has too much to do.
    pub fn busy(&self) -> bool {
        matches!(self.why, FailureKind::Busy(_))
    }

    /// True if the engine turned the request away unread: it was busy, or refused it.
    pub(super) fn turned_away(&self) -> bool {
        self.turned_away_with().is_some()
    }

    /// The status with which the engine turned the request away unread.
    pub fn turned_away_with(&self) -> Option<StatusCode> {
        match self.why {
            FailureKind::Busy(status) | FailureKind::Refused(status) => Some(status),
            _ => None,
        }
    }

    /// The leg was taken from an engine that showed no byte, though nothing else failed.
    pub(super) fn is_of_silence(&self) -> bool {
        self.why == FailureKind::Stuck || self.why == FailureKind::Timeout && self.since_ms.is_some()
    }

    /// Every engine would end it like this.
    pub(super) fn lasting(&self) -> bool {
        matches!(self.why, FailureKind::TooLarge(_))
    }

    /// The engine may have begun with the request. One that turned it away unread has not, and of a
    /// hand-off that is too old none was told.
    pub(super) fn may_have_begun(&self) -> bool {
        self.written && self.why != FailureKind::Stale && (self.accepted || !self.turned_away())
    }

    /// A decoder answered: it has fetched what it was to fetch.
    pub(super) fn answered(&self) -> bool {
        matches!(self.why, FailureKind::TooLarge(Large::Answer) | FailureKind::AbortSign)
    }

    /// The decoder may have failed for what is wrong with its hand-off. One that does nothing may
    /// wait for KV that never comes, with each of its legs.
    pub(super) fn may_be_of_the_handoff(&self) -> bool {
        self.may_have_begun()
            && !self.turned_away()
            && !matches!(self.why, FailureKind::AbortSign | FailureKind::TooLarge(_))
    }

    /// Outcome of the leg for the instance's health.
    pub(super) fn outcome(&self) -> Outcome {
        match self.why.outcome() {
            Outcome::Busy(answer) => Outcome::Busy(BusyAnswer { spare: self.spare, ..answer }),
            other => other,
        }
    }

    /// The metric label.
    pub fn reason(&self) -> &'static str {
        self.why.name()
    }

    /// Error for the client when nothing else helped.
    pub(super) fn into_error(self, role: Role) -> Error {
        let (kind, public) = match (role, self.why) {
            (Role::Prefill, FailureKind::TooLarge(large)) => (Kind::BadPrefillReply, large.public()),
            (Role::Decode, FailureKind::TooLarge(large)) => (Kind::DecodeFailed, large.public()),
            (Role::Encode, FailureKind::TooLarge(_)) => {
                (Kind::EncodeFailed, "an encoder's answer is too large")
            }
            (_, FailureKind::Busy(_)) => (Kind::Overloaded, "all engines that were asked are busy"),
            (Role::Encode, FailureKind::Timeout | FailureKind::Stuck) => {
                (Kind::EncodeTimeout, "an item was not encoded in time")
            }
            (Role::Encode, _) => {
                (Kind::EncodeFailed, "an item could not be encoded by any encoder that was tried")
            }
            (Role::Prefill, FailureKind::Timeout | FailureKind::Stuck) => {
                (Kind::PrefillTimeout, "the prefill did not finish in time")
            }
            (Role::Prefill, FailureKind::BadReply) => {
                (Kind::BadPrefillReply, "the prefill brought no usable answer")
            }
            (Role::Prefill, _) => (Kind::PrefillFailed, "the prefill failed on every engine that was tried"),
            (Role::Decode, FailureKind::Timeout | FailureKind::Stuck) => {
                (Kind::DecodeTimeout, "no answer began in time")
            }
            (Role::Decode, _) => (Kind::DecodeFailed, "the decode failed on every engine that was tried"),
        };
        let error = Error::new(kind, public);
        let error = if self.lasting() { error.lasting() } else { error };
        error.detail(self.detail)
    }
}

impl FailureKind {
    /// Outcome of such a leg for the instance's health.
    pub(super) fn outcome(self) -> Outcome {
        match self {
            FailureKind::Busy(status) => {
                let is_limit = status == StatusCode::TOO_MANY_REQUESTS;
                Outcome::Busy(BusyAnswer { spare: None, is_limit })
            }
            // It had no room left.
            FailureKind::AbortSign => Outcome::Busy(BusyAnswer::default()),
            FailureKind::Refused(_) => Outcome::Refused,
            FailureKind::Stuck => Outcome::Stuck,
            FailureKind::Connect => Outcome::Unreachable,
            // It is there, and has told its release.
            FailureKind::OtherRelease => Outcome::Declined,
            FailureKind::TooLarge(_) => Outcome::Served,
            _ => Outcome::Failed,
        }
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Connect => "connect",
            FailureKind::Broken => "broken",
            FailureKind::Timeout => "timeout",
            FailureKind::Stuck => "no_progress",
            FailureKind::Busy(_) => "busy",
            FailureKind::Refused(_) => "refused",
            FailureKind::Status => "status",
            FailureKind::BadReply => "bad_reply",
            FailureKind::Stale => "stale",
            FailureKind::OtherRelease => "other_release",
            FailureKind::AbortSign => "given_up",
            FailureKind::TooLarge(_) => "too_large",
        }
    }
}

impl Large {
    /// The limit that it ran into, for the client.
    fn public(self) -> &'static str {
        match self {
            Large::PrefillReply => "the prefill's answer is larger than limit.prefill_reply_bytes",
            Large::Answer => "the answer is larger than limit.answer_bytes; streamed, it could be passed on",
            Large::Refusal => "an engine refused the request, in more words than can be passed on",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_learns_which_side_failed_and_how() {
        let kind = |role, why| Failure::new(why, true, "").into_error(role).kind();
        assert_eq!(kind(Role::Prefill, FailureKind::Connect), Kind::PrefillFailed);
        assert_eq!(kind(Role::Prefill, FailureKind::Timeout), Kind::PrefillTimeout);
        assert_eq!(kind(Role::Prefill, FailureKind::BadReply), Kind::BadPrefillReply);
        assert_eq!(kind(Role::Decode, FailureKind::BadReply), Kind::DecodeFailed);
        assert_eq!(kind(Role::Decode, FailureKind::Stale), Kind::DecodeFailed);
        assert_eq!(kind(Role::Decode, FailureKind::Timeout), Kind::DecodeTimeout);
        assert_eq!(kind(Role::Decode, FailureKind::Busy(StatusCode::TOO_MANY_REQUESTS)), Kind::Overloaded);
        assert_eq!(kind(Role::Prefill, FailureKind::TooLarge(Large::PrefillReply)), Kind::BadPrefillReply);
        assert_eq!(kind(Role::Decode, FailureKind::TooLarge(Large::Answer)), Kind::DecodeFailed);
    }
}
