//! The generating routes: from an HTTP request to an [`Ask`], and back.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, header};

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::{Api, Shape, guard};
use crate::error::{Error, Kind};
use crate::relay::ask::Ask;
use crate::server::{Arrived, Gateway, body, headers, reply};

/// The route label of a request to `/invocations` whose body could not be read.
const UNTOLD: &str = "invocations";

/// Serves one generating request. Without an `api` the shape of the body says which one it is (SageMaker's
/// `/invocations`).
pub(super) async fn generate(
    State(gateway): State<Arc<Gateway>>,
    api: Option<Api>,
    request: Request<Body>,
) -> Response<Body> {
    let arrived = arrived(&request);
    let id = headers::request_id(request.headers());
    let mut response = match run(&gateway, api, request, (id.clone(), arrived)).await {
        Ok(response) => response,
        Err(e) => {
            let response = reply::error(&e);
            let route = api.map_or(UNTOLD, Api::name);
            tracing::info!(id, route, reason = e.kind().code(), "{}", e.log_line());
            gateway.relay.meters.request(route, response.status().as_u16(), e.kind().code());
            response
        }
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(headers::REQUEST_ID, id);
    }
    response
}

/// The error is one that came up before the request was let in; later ones are answered here.
async fn run(
    gateway: &Gateway,
    api: Option<Api>,
    request: Request<Body>,
    (id, arrived): (String, Instant),
) -> Result<Response<Body>, Error> {
    let edge = &gateway.edge;
    let target = target(&request);
    let (head, body) = request.into_parts();
    let pass = gateway.gate.enter().await?;
    let body = body::read(&head.headers, body, edge.body_bytes, edge.body_time).await?;
    let body = gateway.scan(body)?;
    let api = api.unwrap_or(if body.contains("messages") { Api::Chat } else { Api::Completions });
    let shape = Shape::read(api, &body);
    gateway.check_model(&shape)?;
    let mut headers = headers::for_engine(&head.headers, &id, edge.engine_authorization.as_ref());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let ask = Ask { api, id, target, headers, body, shape, arrived };
    match gateway.relay.drive(Arc::new(ask), pass).await {
        Ok(answer) => Ok(answer.map(Body::new)),
        Err(mut refusal) => {
            let response = reply::error(&refusal.error);
            refusal.ledger.refused(&refusal.error, response.status());
            Ok(response)
        }
    }
}

impl Gateway {
    /// A body that may be edited and sent on.
    pub(super) fn scan(&self, body: Bytes) -> Result<Object, Error> {
        let limits = ScanLimits { depth: self.edge.json_depth, members: self.edge.json_members };
        let body = Object::scan(body, limits)
            .map_err(|e| Error::new(Kind::InvalidJson, format!("the request body can't be used: {e}")))?;
        if let Some(path) = guard::forbidden_argument(&body) {
            return Err(Error::new(
                Kind::InvalidField,
                format!("`{path}` names engines to each other and can't be set by a client; leave it out"),
            ));
        }
        Ok(body)
    }

    fn check_model(&self, shape: &Shape) -> Result<(), Error> {
        match (&self.edge.model, &shape.model) {
            (Some(served), Some(asked)) if served != asked => Err(Error::new(
                Kind::ModelNotFound,
                format!("The model `{asked}` does not exist. This gateway serves `{served}`."),
            )
            .param("model")),
            _ => Ok(()),
        }
    }
}

pub(super) fn arrived(request: &Request<Body>) -> Instant {
    request.extensions().get::<Arrived>().map_or_else(Instant::now, |a| a.0)
}

pub(super) fn target(request: &Request<Body>) -> PathAndQuery {
    request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}
