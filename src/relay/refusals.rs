//! Refusals that may be the trouble of one engine: whether a 4xx is the word of a role on a
//! request.
//!
//! An engine that answers 401 to what others serve has a wrong key, one that answers 404 has lost
//! its model, one that answers 403 or 421 sits behind a proxy that is set up wrongly. Such a member
//! answers at once, looks idle, and draws the traffic of its role. So these statuses are believed
//! only when a second engine of the role says the same, or where there is none to ask. Nothing is
//! kept on an engine for a refused request: asking another one costs one exchange. The model is
//! Envoy's outlier detection: an engine that refused what another one served rests, for times that
//! grow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use smallvec::SmallVec;

use crate::error::Error;
use crate::fleet::{Instance, Role};
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::{Relay, Tries};

/// A refusal, and the engine that it came from.
#[derive(Clone, Debug)]
pub struct EngineRefusal {
    /// The engine that refused.
    pub by: Arc<Instance>,
    /// Its answer to the client.
    pub answer: Response<Bytes>,
}

/// Refusals of one request by engines of one role.
#[derive(Clone, Default)]
pub(super) struct Refusals {
    by: SmallVec<[(Arc<Instance>, StatusCode); 2]>,
    /// The latest answer.
    answer: Response<Bytes>,
}

/// True if an engine that answers so has too much to do.
pub fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// True if an engine may answer so for a reason of its own, where another one would serve. What
/// other 4xx say is about the body, which is the same for all.
pub fn is_doubtful(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 405 | 407 | 408 | 421)
}

/// The time for which an engine asks to be spared. A date is not read: engines and their proxies
/// send seconds.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Passes a refusal on if it is about the request.
///
/// # Errors
/// A failure that holds the refusal, if it may be the engine's own trouble.
pub(super) fn judge(by: &Arc<Instance>, answer: Response<Bytes>) -> Result<Response<Bytes>, Failure> {
    let status = answer.status();
    if !is_doubtful(status) {
        return Ok(answer);
    }
    let failure = Failure::new(FailureKind::Refused(status), true, format!("status {}", status.as_u16()));
    Err(Failure { refusal: Some(Box::new(EngineRefusal { by: by.clone(), answer })), ..failure })
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
        let EngineRefusal { by, answer } = *refusal;
        let refusals = tries.refusals.get_or_insert_default();
        let confirmed = self.confirms(&by, refusals.by.iter().map(|(_, status)| *status), answer.status());
        refusals.by.push((by, answer.status()));
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
            None => Err(failure.into_error(role)),
        }
    }

    /// The latest refusal, which stands. Nobody is to blame for it.
    fn settle_refusal(&self, tries: &mut Tries) -> Option<Response<Bytes>> {
        let refusals = tries.refusals.take()?;
        for (by, _) in &refusals.by {
            self.fleet.acquit(by);
        }
        Some(refusals.answer)
    }

    /// Another engine has served what some refused, if any did: they are outliers.
    pub(super) fn contradict(&self, id: &str, tries: &mut Tries) {
        for (by, status) in tries.refusals.take().into_iter().flat_map(|refusals| refusals.by) {
            self.contradicted(id, &by, status);
        }
    }

    /// `by` has refused with `status` what another engine of its role served.
    pub fn contradicted(&self, id: &str, by: &Instance, status: StatusCode) {
        by.meter().failed("refused");
        tracing::warn!(
            id,
            leg = by.role().name(),
            instance = %by.endpoint(),
            status = status.as_u16(),
            "it refused what another engine served"
        );
        // A model that only some engines have says nothing of the others that they serve.
        let at_once = status != StatusCode::NOT_FOUND;
        if !at_once {
            by.health().identity().want_models();
        }
        self.fleet.contradicted(by, at_once);
    }
}
