//! Answers that are read to their last byte before any of them goes on.

use bytes::Bytes;
use http::Response;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::Api;
use crate::dialect::fault::{self, Fault, LateRefusal};
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

/// A whole answer under status 200.
#[derive(Debug)]
pub(super) enum Reading {
    /// The answer that was asked for.
    Answer(Box<Object>),
    /// An error that blames the request, with the status that it should have had. Under a 200
    /// clients would take it for an answer.
    Refusal(LateRefusal),
}

/// Reads an answer that may go out under a 200. One that reports a failure of the engine is none.
pub(super) fn read(api: Api, body: Bytes) -> Result<Reading, Failure> {
    let bad = |detail: String| Failure::new(FailureKind::BadReply, true, detail);
    let answer = Object::scan(body, ScanLimits::default())
        .map_err(|e| bad(format!("the answer is no JSON object: {e}")))?;
    match fault::of_object(api, &answer) {
        None if !api.is_answer(&answer) => Err(bad("an answer under a 200 with nothing in it".into())),
        None => Ok(Reading::Answer(Box::new(answer))),
        Some(Fault::Request) => Ok(Reading::Refusal(LateRefusal::of(&answer))),
        Some(Fault::Engine) => Err(bad("an answer under a 200 that reports a failure".into())),
    }
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
        let usable = |text: &'static str| read(Api::Chat, Bytes::from_static(text.as_bytes()));
        let failed = r#"{"choices":[{"finish_reason":"error"}]}"#;
        for bad in [
            "",
            "<html>",
            "[]",
            "null",
            r#"{"error":{"code":500}}"#,
            r#"{"error":"x"}"#,
            failed,
            "{}",
            r#"{"detail":"x"}"#,
            r#"{"choices":[]}"#,
        ] {
            assert_eq!(usable(bad).unwrap_err().reason(), "bad_reply", "{bad}");
        }
        let response = Bytes::from_static(br#"{"id":"x","error":null,"output":[]}"#);
        assert!(matches!(read(Api::Responses, response), Ok(Reading::Answer(_))));
        for refusal in [
            r#"{"error":{"message":"m","type":"BadRequestError","code":400}}"#,
            r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
        ] {
            assert!(
                matches!(usable(refusal), Ok(Reading::Refusal(LateRefusal { status: 400, body })) if body == refusal),
                "{refusal}"
            );
        }
    }
}
