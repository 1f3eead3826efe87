//! The generating routes: from an HTTP request to an [`Ask`], and back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Version, header};
use tokio::time::Instant;

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::{Api, Shape, guard};
use crate::error::{Error, Kind};
use crate::relay::Refusal;
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::server::{Arrived, Gateway, body, explain, headers, reply};

/// A model name is repeated to the client up to this length.
const NAME_CHARS: usize = 100;

/// Which API a generating route speaks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// The path says it.
    Of(Api),
    /// `/invocations` (SageMaker): the body does.
    ByBody,
}

/// Serves one generating request.
pub(super) async fn generate(
    State(gateway): State<Arc<Gateway>>,
    route: Route,
    request: Request<Body>,
) -> Response<Body> {
    let arrived = arrived(&request);
    let id = headers::request_id(request.headers());
    let api = match route {
        Route::Of(api) => api,
        Route::ByBody => Api::Completions,
    };
    let mut ledger = Ledger::open(gateway.relay.meters.clone(), api, id.clone(), arrived);
    let explains = request.headers().contains_key(explain::ROUTE).then(|| request.headers().clone());
    let ended = match prepare(&gateway, route, request, &mut ledger).await {
        Ok(ask) => gateway.relay.drive(ask, ledger).await,
        Err(error) => Err(Box::new(Refusal { error, ledger })),
    };
    let mut response = match ended {
        Ok(answer) => answer.map(Body::new),
        Err(mut refusal) => {
            let response = reply::error(&refusal.error);
            refusal.ledger.refused(&refusal.error, response.status());
            response
        }
    };
    if let Some(value) = explains.and_then(|asked| explain::header(&gateway, &asked, &id)) {
        response.headers_mut().insert(explain::ROUTE, value);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(headers::REQUEST_ID, id);
    }
    response
}

/// From the request to what is to be driven: let in, read, scanned, checked.
async fn prepare(
    gateway: &Gateway,
    route: Route,
    request: Request<Body>,
    ledger: &mut Ledger,
) -> Result<Ask, Error> {
    let edge = &gateway.edge;
    let (arrived, target) = (arrived(&request), target(&request));
    let (head, body) = request.into_parts();
    ledger.admitted(gateway.gate.enter().await?);
    let body = body::read(&head.headers, body, edge.body_bytes, edge.body_time).await?;
    let body = gateway.scan(body)?;
    let api = match route {
        Route::Of(api) => api,
        Route::ByBody if body.contains("messages") => Api::Chat,
        Route::ByBody => Api::Completions,
    };
    ledger.is_about(api);
    let shape = Shape::read(api, &body);
    gateway.check_model(&shape)?;
    let id = ledger.id().to_owned();
    let mut headers = headers::for_engine(&head.headers, &id, edge.engine_authorization.as_ref());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let http2 = head.version == Version::HTTP_2;
    let job = Arc::default();
    Ok(Ask { api, id, target, headers, body, shape, job, http2, arrived })
}

impl Gateway {
    /// A body that may be edited and sent on.
    pub(super) fn scan(&self, body: Bytes) -> Result<Object, Error> {
        let limits = ScanLimits { depth: self.edge.json_depth, members: self.edge.json_members };
        let body = Object::scan(body, limits)
            .map_err(|e| Error::new(Kind::InvalidJson, format!("the request body can't be used: {e}")))?;
        guard::check_arguments(&body).map_err(|e| Error::new(Kind::InvalidField, e.to_string()))?;
        Ok(body)
    }

    fn check_model(&self, shape: &Shape) -> Result<(), Error> {
        match (&self.edge.model, &shape.model) {
            (Some(served), Some(asked)) if served != asked => Err(Error::new(
                Kind::ModelNotFound,
                format!("The model `{}` does not exist. This gateway serves `{served}`.", printable(asked)),
            )
            .param("model")),
            _ => Ok(()),
        }
    }
}

/// A name that a client made up, fit for an answer and for the log.
fn printable(name: &str) -> String {
    name.chars().take(NAME_CHARS).flat_map(char::escape_debug).collect()
}

pub(super) fn arrived(request: &Request<Body>) -> Instant {
    request.extensions().get::<Arrived>().map_or_else(Instant::now, |a| a.0)
}

pub(super) fn target(request: &Request<Body>) -> PathAndQuery {
    request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_names_can_not_write_lines_of_their_own() {
        assert_eq!(printable("qwen-3"), "qwen-3");
        assert_eq!(printable("x\nFAKE \u{1b}[1m"), "x\\nFAKE \\u{1b}[1m");
        assert_eq!(printable(&"y".repeat(1 << 20)).len(), NAME_CHARS);
    }
}
