//! The end of a streamed answer: complete, given up, failed by the engine's own word, or announced
//! without anything that has ended.

use bytes::Bytes;

use super::{Stream, reason};
use crate::codec::sse;
use crate::dialect::Api;
use crate::dialect::fault::{self, Fault};
use crate::fleet::Outcome;
use crate::relay::resume::Cause;

impl Stream {
    /// Withholds an answer that its engine gave up and that nobody follows: it would look complete.
    /// `has_reason`: some event of `out` names a reason.
    pub(super) fn without_what_was_given_up(
        &mut self,
        out: Bytes,
        has_reason: bool,
    ) -> (Bytes, Option<Cause>) {
        let given_up = match self.api {
            Api::Chat | Api::Completions if !has_reason => None,
            Api::Chat | Api::Completions => {
                self.finish.note();
                self.given_up.in_last_events(&out)
            }
            _ => self.given_up.in_events(&out),
        };
        match given_up {
            Some(at) => (out.slice(..at), Some(Cause::Recomputed)),
            None => (out, None),
        }
    }

    /// Withholds a `[DONE]` before which no choice has ended, and no failure was reported: the
    /// answer would look complete.
    pub(super) fn without_hollow_end(&mut self, out: Bytes) -> (Bytes, Option<Cause>) {
        let Some(live) = &self.live else { return (out, None) };
        if live.framer.mid_frame() {
            self.finish.note();
        }
        if self.finish.is_named() || self.errored.is_some() || !live.framer.ended() {
            return (out, None);
        }
        let last = sse::frames(&out).filter(sse::Frame::has_data).last();
        let at = last.map_or(out.len(), |done| done.range().start);
        (out.slice(..at), Some(Cause::Ended))
    }

    /// Cuts `out` before its first event that reports a failure, since the answer would look
    /// complete. An event for which clients raise an error passes with all of `out`, and is
    /// recorded.
    pub(super) fn cut_hidden_failure(&mut self, out: Bytes) -> (Bytes, Option<Cause>) {
        if !self.live.as_mut().is_some_and(|live| live.framer.take_error_hint()) {
            return (out, None);
        }
        let report = fault::in_events(self.api, &out);
        if let Some(status) = report.and_then(|report| report.status)
            && let Some(live) = &self.live
        {
            live.reservation.instance().meter().refused(status);
        }
        match report {
            Some(report) if report.raises => {
                self.record_failure(report.fault);
                (out, None)
            }
            Some(report) => (out.slice(..report.at), Some(Cause::of(report.fault))),
            None => (out, None),
        }
    }

    /// The answer failed, by its engine's word.
    pub(super) fn record_failure(&mut self, fault: Fault) {
        if self.errored.is_some() {
            return;
        }
        self.errored = Some(reason(fault));
        if let Some(live) = self.live.as_ref().filter(|_| fault == Fault::Engine) {
            self.blame(live, Cause::Failed);
        }
    }

    pub(super) fn look_for_end(&mut self, out: &[u8]) {
        let (api, was_over) = (self.api, self.over);
        if api.ends_with_done() {
            self.over |= self.live.as_ref().is_some_and(|live| live.framer.ended());
        } else {
            let ends = |event: &sse::Frame<'_>| event.event().is_some_and(|name| api.ends_with_event(name));
            if let Some(last) = sse::frames(out).find(ends) {
                self.ending = true;
                fault::of_event(api, &last).into_iter().for_each(|report| self.record_failure(report.fault));
            }
            self.over |= self.ending && !self.live.as_ref().is_some_and(|live| live.framer.mid_frame());
        }
        if self.over && !was_over {
            self.complete();
        }
    }

    pub(super) fn complete(&mut self) {
        let Some(ledger) = &mut self.ledger else { return };
        match self.errored {
            Some(reason) => return ledger.said(reason),
            None => ledger.complete(),
        }
        if let Some(live) =
            self.live.as_ref().filter(|it| it.reservation.instance().health().breaks_streams())
        {
            self.relay.fleet.report(live.reservation.instance(), Outcome::Served);
        }
        if let Some((pace, live)) = ledger.pace().zip(self.live.as_ref()) {
            live.reservation.observe(pace);
        }
        if let Some(live) = self.live.as_mut() {
            self.relay.remember(&mut live.reservation, ledger);
        }
    }
}
