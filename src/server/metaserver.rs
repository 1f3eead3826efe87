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
use crate::server::fleets::ServedFleet;
use crate::server::{Gateway, body, reply};

/// A call of a prompt of a million tokens in blocks of 16 takes about half a megabyte for each
/// group of layers.
const CALL_BYTES: usize = 4 << 20;

/// Place where decoders call back.
pub(super) const PATH: &str = layerwise::PATH;

/// Takes a decoder's call: 200 `{"status":"ok"}` where it is taken, or was before; 404 where nobody
/// waits for it; 502 where the prefill failed; 400 where it can't be understood.
pub(super) async fn called(State(gateway): State<Arc<Gateway>>, request: Request<Body>) -> Response<Body> {
    let fleets = gateway.fleets();
    let calling = fleets.iter().find(|fleet| fleet.relay.speech.now().dialect.calls_back());
    let Some(calling) = calling else {
        let message = "No decoder is asked to call back here: dialect.name is another.";
        return reply::error(&Error::new(Kind::UnknownUrl, message));
    };
    match take(&gateway, request).await {
        Ok(Some((fleet, outcome))) => {
            fleet.relay.meters.callback(outcome.name());
            answer(outcome)
        }
        Ok(None) => {
            calling.relay.meters.callback(Called::Unknown.name());
            answer(Called::Unknown)
        }
        Err(error) => {
            calling.relay.meters.callback("bad");
            tracing::warn!(
                reason = error.kind().code(),
                "a decoder's call can't be used: {}",
                error.log_line()
            );
            reply::error(&error)
        }
    }
}

/// Takes a call to the fleet that waits for it; `None` where none does.
async fn take(
    gateway: &Gateway,
    request: Request<Body>,
) -> Result<Option<(Arc<ServedFleet>, Called)>, Error> {
    let (head, body) = request.into_parts();
    let fleets = gateway.fleets();
    if fleets.iter().all(|fleet| fleet.relay.rendezvous.open_names() == 0) {
        // Nobody is waited for: what is said need not be read.
        return Ok(None);
    }
    let body = body::read(gateway, &head, body, CALL_BYTES).await?;
    let call = layerwise::read_call(body).map_err(|e| Error::new(Kind::InvalidField, e.to_string()))?;
    let waiting = fleets.iter().find(|fleet| fleet.relay.rendezvous.awaits(&call.request_id));
    Ok(match waiting {
        Some(fleet) => Some((fleet.clone(), fleet.relay.rendezvous.called(call).await)),
        None => None,
    })
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
