//! Refusals (4xx) that may be the trouble of one engine.
//!
//! An engine that answers 401 to what others serve has a wrong key, one that answers 404 has lost
//! its model, one that answers 403 or 421 sits behind a proxy that is set up wrongly. Such a member
//! answers at once, looks idle, and draws the traffic of its role. So these statuses are believed
//! only when a second engine of the role says the same, or where there is none to ask.
//!
//! Other 4xx speak of the request's content, which is the same for all. They are believed from an
//! engine that serves in between. One that refuses a second time without having served has other
//! limits than its peers, or a proxy before it that answers: a second engine is asked, too.
//!
//! Nothing is kept on an engine for a refused request: asking another one costs one exchange. The
//! model is Envoy's outlier detection: an engine that refused what another one served rests, for
//! times that grow.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use smallvec::SmallVec;

use crate::dialect::Dialect;
use crate::dialect::fault::LateRefusal;
use crate::error::{Error, Kind};
use crate::fleet::health::key::is_of_the_key;
use crate::fleet::{BusyAnswer, FailedHandoff, Instance, Outcome, Role, Verdict};
use crate::relay::answer::strip_hop_by_hop;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::{Relay, Tries};

/// Least time between two readings of all lists of models that refusals bring about, ms: engines
/// may serve what they don't list, again and again.
const LISTS_PAUSE_MS: u64 = 1_000;

/// A refusal, and the engine that it came from.
#[derive(Clone, Debug)]
pub struct EngineRefusal {
    /// The engine that refused.
    pub by: Arc<Instance>,
    /// The prefiller whose KV it was to read.
    pub producer: Option<Arc<Instance>>,
    /// Its answer to the client.
    pub answer: Response<Bytes>,
}

/// The engines that an answer depends on.
#[derive(Clone, Copy)]
pub(super) struct AnswerSource<'a> {
    /// The engine that answered.
    pub(super) engine: &'a Arc<Instance>,
    /// The prefiller whose KV it was to read; it may be that which is refused.
    pub(super) producer: Option<&'a Arc<Instance>>,
}

impl<'a> AnswerSource<'a> {
    /// An engine that was to read no other engine's KV.
    pub(super) fn alone(engine: &'a Arc<Instance>) -> AnswerSource<'a> {
        AnswerSource { engine, producer: None }
    }
}

/// A refusal that is neither confirmed nor contradicted.
#[derive(Clone)]
struct PendingRefusal {
    by: Arc<Instance>,
    producer: Option<Arc<Instance>>,
    status: StatusCode,
}

/// Refusals of one request by engines of one role.
#[derive(Clone, Default)]
pub(super) struct Refusals {
    by: SmallVec<[PendingRefusal; 2]>,
    /// The latest answer.
    answer: Response<Bytes>,
}

/// An engine's answer to a leg.
pub(super) enum LegReply<T> {
    Served(T),
    /// A refusal about the request, which is the client's answer.
    Refused(Response<Bytes>),
}

/// True if an engine that answers so has too much to do.
pub fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// The status of a refusal that came under another one.
pub(super) fn late_status(refusal: &LateRefusal) -> StatusCode {
    StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST)
}

/// True if not an engine answered: vLLM, vLLM-Ascend and SGLang serve by uvicorn, and say so.
pub(super) fn is_of_a_proxy(headers: &HeaderMap) -> bool {
    headers.get(header::SERVER).is_some_and(|server| !server.as_bytes().starts_with(b"uvicorn"))
}

/// True if a status speaks of the engine, or of the way to it, and not of the request's content.
pub(super) fn is_of_the_engine(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 405 | 407 | 408 | 421)
}

/// True if somebody else's API refuses the gateway's key or model, or its bill.
pub fn is_of_the_gateway(status: StatusCode) -> bool {
    is_of_the_engine(status) || status == StatusCode::PAYMENT_REQUIRED
}

/// Decides if `by` may answer so for a reason of its own, where another engine would serve. To be
/// called once for each answer: it takes the credit that the engine has.
pub fn doubts(status: StatusCode, by: &Instance) -> bool {
    let refuses = status.is_client_error() && !is_busy(status);
    refuses && (is_of_the_engine(status) || !by.health().take_credit())
}

/// True if a decoder that answers so has fetched the KV or told the prefiller to let go: vLLM 0.32
/// does the latter for requests that its API rejects (400, 404, 422, 503), not for those that a
/// middleware turns away before.
pub(super) fn fetched_or_told(dialect: Dialect, status: StatusCode) -> bool {
    status.is_success() || dialect.tells_of_refusals() && matches!(status.as_u16(), 400 | 404 | 422 | 503)
}

/// The time for which an engine asks to be spared: seconds or a date (RFC 9110 §10.2.3). A date
/// counts from that of the answer, where there is one: clocks differ.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let sent = headers.get(header::DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    Some(until.duration_since(sent.unwrap_or_else(SystemTime::now)).unwrap_or_default())
}

/// Passes a refusal on if it is about the request, with the headers that may go out.
///
/// # Errors
/// A failure that holds the refusal, if it may be the engine's own trouble.
pub(super) fn judge(
    AnswerSource { engine: by, producer }: AnswerSource<'_>,
    mut answer: Response<Bytes>,
) -> Result<Response<Bytes>, Failure> {
    strip_hop_by_hop(answer.headers_mut());
    let status = answer.status();
    let is_doubted = doubts(status, by);
    if !is_doubted && producer.is_none_or(|producer| producer.handoffs().take_credit()) {
        return Ok(answer);
    }
    let producer = producer.cloned();
    let failure = Failure::new(FailureKind::Refused(status), true, format!("status {}", status.as_u16()));
    Err(Failure { refusal: Some(Box::new(EngineRefusal { by: by.clone(), producer, answer })), ..failure })
}

/// The same of a refusal that came under status 200, with that answer's head.
///
/// # Errors
/// As [`judge`], and if the engine says that it is busy.
pub(super) fn judge_late(
    from: AnswerSource<'_>,
    mut head: http::response::Parts,
    refusal: LateRefusal,
) -> Result<Response<Bytes>, Failure> {
    head.status = late_status(&refusal);
    from.engine.meter().refused(refusal.status);
    let answer = if is_busy(head.status) {
        let detail = format!("status {} under a 200", refusal.status);
        Err(Failure::new(FailureKind::Busy(head.status), true, detail))
    } else {
        judge(from, Response::from_parts(head, refusal.body))
    };
    answer.map_err(|failure| Failure { accepted: true, ..failure })
}

impl Relay {
    /// Decides whether a refusal stands: an engine that is believed said the same before, or no
    /// other one can be asked. It is then the client's answer.
    ///
    /// # Errors
    /// The failure, if it is none, or another engine is to be asked.
    pub(super) fn weigh(
        &self,
        role: Role,
        mut failure: Failure,
        tries: &mut Tries,
    ) -> Result<Response<Bytes>, Failure> {
        let Some(refusal) = failure.refusal.take() else { return Err(failure) };
        let EngineRefusal { by, producer, answer } = *refusal;
        let refusals = tries.refusals.get_or_insert_default();
        // Two that refuse the same KV say nothing of the request.
        let has_other_kv = |it: &&PendingRefusal| match (&producer, &it.producer) {
            (Some(producer), Some(before)) => {
                producer.id() != before.id() || !self.has_other_prefiller(producer)
            }
            _ => true,
        };
        let before: SmallVec<[StatusCode; 2]> =
            refusals.by.iter().filter(has_other_kv).map(|it| it.status).collect();
        let confirmed = self.confirms(&by, before.into_iter(), answer.status());
        refusals.by.push(PendingRefusal { by, producer, status: answer.status() });
        refusals.answer = answer;
        if confirmed || tries.left == 0 || !self.fleet.has_other(role, &tries.tried) {
            return self.settle_refusal(tries).ok_or(failure);
        }
        Err(failure)
    }

    /// True if `by`, which refuses with `status`, makes a refusal the word of its role. `before`:
    /// statuses of other engines' refusals. An engine that has served nobody since it refuses may
    /// be an outlier itself: a third one is asked.
    pub fn confirms(
        &self,
        by: &Instance,
        mut before: impl ExactSizeIterator<Item = StatusCode>,
        status: StatusCode,
    ) -> bool {
        let asked = before.len();
        before.any(|earlier| earlier == status) && (asked > 1 || by.health().serves_between_refusals())
    }

    /// The answer of a request that failed for good: a refusal that nobody contradicted, if there
    /// is one and the engines that were asked after it could not say otherwise.
    ///
    /// # Errors
    /// Ours, for the failure.
    pub(super) fn conclude(
        &self,
        role: Role,
        failure: Failure,
        tries: &mut Tries,
    ) -> Result<Response<Bytes>, Error> {
        match self.settle_refusal(tries).filter(|_| !failure.busy()) {
            Some(refusal) => Ok(refusal),
            None => Err(self.error_of(role, failure)),
        }
    }

    /// Error for the client of a leg on `role` that failed for good.
    pub(super) fn error_of(&self, role: Role, failure: Failure) -> Error {
        let error = failure.into_error(role);
        if error.kind() == Kind::Overloaded { self.as_busy_engines_say(role, error) } else { error }
    }

    /// A refusal for want of room with what the engines of `role` said themselves: when to come
    /// back, and whether it is a limit.
    pub fn as_busy_engines_say(&self, role: Role, error: Error) -> Error {
        let Some(BusyAnswer { spare, is_limit }) = self.fleet.busy_answer(role) else { return error };
        let error = if is_limit { error.limit() } else { error };
        match spare {
            Some(spare) => error.retry_after(spare),
            None => error,
        }
    }

    /// The latest refusal, which stands. Nobody is to blame for it.
    fn settle_refusal(&self, tries: &mut Tries) -> Option<Response<Bytes>> {
        let refusals = tries.refusals.take()?;
        for PendingRefusal { by, producer, status } in &refusals.by {
            self.fleet.acquit(by);
            producer.iter().for_each(|producer| producer.handoffs().accept());
            if is_of_the_key(*status) {
                self.fleet.refuses_key_of_request(by, *status);
            }
        }
        Some(refusals.answer)
    }

    /// Compares an answer that stands with what other engines refused before it, if any did.
    pub(super) fn compare_refusals(&self, id: &str, answered: StatusCode, tries: &mut Tries) {
        for refusal in tries.refusals.take().into_iter().flat_map(|refusals| refusals.by) {
            if !self.is_of_the_kv(answered, &refusal) {
                self.compare_refusal(id, answered, &refusal.by, refusal.status);
            }
        }
    }

    /// Counts a refusal of content that did not stand as a hand-off that failed. True if the
    /// evidence speaks against the KV and not against the engine that refused it.
    fn is_of_the_kv(&self, answered: StatusCode, refusal: &PendingRefusal) -> bool {
        let PendingRefusal { by, producer, status } = refusal;
        let Some(producer) =
            producer.as_ref().filter(|_| answered.is_success() && !is_of_the_engine(*status))
        else {
            return false;
        };
        let (outcome, since_ms) = (Outcome::Refused, None);
        let failed = FailedHandoff { producer, consumer: by, reporter: by, outcome, since_ms };
        matches!(self.fleet.handoff_failed(failed), Verdict::Producer(_) | Verdict::Pair(_))
    }

    fn has_other_prefiller(&self, prefiller: &Instance) -> bool {
        self.fleet.has_other(Role::Prefill, &[prefiller.id()])
    }

    /// Holds a refusal against the engine that gave it if another one `answered` otherwise: by
    /// serving, or by refusing the content of a request that this one did not look at.
    pub fn compare_refusal(&self, id: &str, answered: StatusCode, by: &Instance, refused: StatusCode) {
        if answered.is_client_error() && !is_of_the_engine(refused) {
            self.fleet.acquit(by);
        } else {
            self.contradicted(id, by, refused);
        }
    }

    /// `by` has refused with `status` what another engine of its role served.
    fn contradicted(&self, id: &str, by: &Instance, status: StatusCode) {
        by.meter().failed("refused");
        tracing::warn!(
            id,
            engine = %by.endpoint(),
            role = by.role().name(),
            status = status.as_u16(),
            "it refused what another engine served"
        );
        // A model that only some engines have says nothing of the others that they serve; and a
        // prompt that is too long for this one, nothing of shorter ones.
        let at_once = is_of_the_engine(status) && status != StatusCode::NOT_FOUND;
        if status == StatusCode::NOT_FOUND {
            // Lists of both are wanted: that one engine lacks a model says nothing of who has it.
            self.fleet.ask_for_lists(LISTS_PAUSE_MS);
        }
        self.fleet.contradicted(by, at_once);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let read = |after: &'static str, date: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(after));
            headers.insert(header::DATE, HeaderValue::from_static(date));
            retry_after(&headers).map(|wait| wait.as_secs())
        };
        // The date of RFC 9110's own example, and half a minute before it.
        let (then, before) = ("Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:29 GMT");
        assert_eq!((read("120", before), read(" 7 ", before)), (Some(120), Some(7)));
        assert_eq!((read(then, before), read(before, then)), (Some(30), Some(0)));
        assert_eq!(read(then, "yesterday"), Some(0), "by our own clock it is past");
        for nonsense in ["", "soon", "-1", "1.5", "Fri, 31 Dec 1999"] {
            assert_eq!(read(nonsense, before), None, "{nonsense}");
        }
    }
}
