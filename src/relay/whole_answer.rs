//! Answers that are read to their last byte before any of them goes on.

use bytes::Bytes;
use http::Response;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::Api;
use crate::dialect::fault;
use crate::dialect::usage::ReportedUsage;
use crate::relay::account::Ledger;
use crate::relay::failure::{Failure, FailureKind, Large};
use crate::upstream::{CollectError, Reply, collect};

/// An engine's refusal is read up to this size; vLLM echoes long prompts in its 400s.
const REFUSAL_BYTES: usize = 4 << 20;

/// Limit for the size of an answer that is read as a whole.
#[derive(Clone, Copy)]
pub(super) struct SizeLimit {
    pub(super) bytes: usize,
    /// The failure of a larger one.
    pub(super) exceeded: Large,
}

/// An answer with its whole body, and the engine's own headers.
pub(super) async fn whole(response: Response<Reply>, limit: SizeLimit) -> Result<Response<Bytes>, Failure> {
    let (head, body) = response.into_parts();
    let refusal = SizeLimit { bytes: REFUSAL_BYTES, exceeded: Large::Refusal };
    let SizeLimit { bytes, exceeded } = if head.status.is_success() { limit } else { refusal };
    let body = collect(body, bytes).await.map_err(|e| {
        let why = if e == CollectError::TooLarge(bytes) {
            FailureKind::TooLarge(exceeded)
        } else {
            FailureKind::Broken
        };
        Failure::new(why, true, e.to_string())
    })?;
    Ok(Response::from_parts(head, body))
}

/// Reads an answer that may go out under a 200. One that reports a failure is none.
pub(super) fn usable(api: Api, body: Bytes) -> Result<Object, Failure> {
    let bad = |detail: String| Failure::new(FailureKind::BadReply, true, detail);
    let answer = Object::scan(body, ScanLimits::default())
        .map_err(|e| bad(format!("the answer is no JSON object: {e}")))?;
    if fault::of_object(api, &answer).is_some() {
        return Err(bad("an answer under a 200 that reports a failure".into()));
    }
    Ok(answer)
}

/// The client's text of a complete answer.
pub(super) fn finish(api: Api, answer: &Object, ledger: &mut Ledger) -> Bytes {
    let reported = ReportedUsage::by(api, answer);
    ledger.decoded(reported.as_ref().map(ReportedUsage::counts).unwrap_or_default());
    match reported.zip(ledger.cached_of_prefill()) {
        Some((reported, cached)) => reported.with_cached(answer.bytes(), cached),
        None => answer.bytes().clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_200_without_an_answer_is_none() {
        let usable = |text: &'static str| {
            usable(Api::Chat, Bytes::from_static(text.as_bytes())).map(|o| o.bytes().clone())
        };
        let failed = r#"{"choices":[{"finish_reason":"error"}]}"#;
        for bad in ["", "<html>", "[]", "null", r#"{"error":{"code":500}}"#, r#"{"error":"x"}"#, failed] {
            assert_eq!(usable(bad).map_err(|f| f.reason()), Err("bad_reply"), "{bad}");
        }
        assert!(usable(r#"{"id":"x","error":null}"#).is_ok(), "as responses have it");
    }
}
