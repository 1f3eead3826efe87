//! `POST /v1/metaserver`: decoders that were asked first call back here (`dialect::layerwise`).
//!
//! A call carries no key. What it is known by is the name of a request, which nobody but the
//! decoder was told, and which is never logged.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{Request, Response, StatusCode};

use crate::dialect::layerwise;
use crate::error::{Error, Kind};
use crate::relay::rendezvous::Called;
use crate::server::{Gateway, body, reply};

/// A call of a prompt of a million tokens in blocks of 16 takes about half a megabyte for each
/// group of layers.
const CALL_BYTES: usize = 4 << 20;

/// Place where decoders call back.
pub(super) const PATH: &str = layerwise::PATH;

/// Takes a decoder's call: 200 `{"status":"ok"}` where it is taken, or was before; 404 where nobody
/// waits for it; 502 where the prefill failed; 400 where it can't be understood.
pub(super) async fn called(State(gateway): State<Arc<Gateway>>, request: Request<Body>) -> Response<Body> {
    let relay = &gateway.relay;
    if !relay.speech.now().dialect.calls_back() {
        let message = "No decoder is asked to call back here: dialect.name is another.";
        return reply::error(&Error::new(Kind::UnknownUrl, message));
    }
    match take(&gateway, request).await {
        Ok(outcome) => {
            relay.meters.callback(outcome.name());
            answer(outcome)
        }
        Err(error) => {
            relay.meters.callback("bad");
            tracing::warn!(
                reason = error.kind().code(),
                "a decoder's call can't be used: {}",
                error.log_line()
            );
            reply::error(&error)
        }
    }
}

async fn take(gateway: &Gateway, request: Request<Body>) -> Result<Called, Error> {
    let (head, body) = request.into_parts();
    if gateway.relay.rendezvous.open_names() == 0 {
        // Nobody is waited for: what is said need not be read.
        return Ok(Called::Unknown);
    }
    let body = body::read(gateway, &head, body, CALL_BYTES).await?;
    let call = layerwise::read_call(body).map_err(|e| Error::new(Kind::InvalidField, e.to_string()))?;
    Ok(gateway.relay.rendezvous.called(call).await)
}

fn answer(outcome: Called) -> Response<Body> {
    match outcome {
        Called::Taken | Called::Again => reply::json(StatusCode::OK, r#"{"status":"ok"}"#),
        Called::Unknown => {
            let message = "no request of this name waits for a prefill: it never did, or it is over";
            reply::error(&Error::new(Kind::UnknownUrl, message))
        }
        Called::Failed => reply::error(&Error::new(Kind::PrefillFailed, "the prefill failed")),
    }
}
