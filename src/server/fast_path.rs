//! Handler of a connection's requests: the table of routes, with a way past it for those that
//! generate.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Method, Request, Response, Version};
use hyper::body::Incoming;
use tokio::time::Instant;
use tower::Service;

use crate::relay::box_in_place::boxed;
use crate::server::body_memory::ConnectionBytes;
use crate::server::openai::{Route, generate};
use crate::server::operator_access::ListenerScope;
use crate::server::routes::at_the_door;
use crate::server::{Arrived, Gateway, h2_stream_timeout};

/// Answers one connection's requests. Nearly all of them generate: these are known by method and
/// path, and pass the same door without the search for their route and the copies that its layers
/// make of themselves, which were a tenth of the way to the prefiller (benches/RESULTS.md).
#[derive(Clone)]
pub(super) struct Front {
    gateway: Arc<Gateway>,
    routes: Router,
    /// False where nothing generates, or where the routes have a layer that these requests must
    /// pass as well.
    passes_routes: bool,
    reach: ListenerScope,
    /// Over HTTP/2, where one connection has many.
    bodies: Option<ConnectionBytes>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Front {
    /// In front of the routes of operators.
    pub(super) fn of_operators(gateway: &Arc<Gateway>, routes: Router) -> Front {
        let (gateway, reach) = (gateway.clone(), ListenerScope::Operators);
        Front { gateway, routes, passes_routes: false, reach, bodies: None }
    }

    /// The same for the requests of one connection.
    pub(super) fn of_connection(&self, version: Version) -> Front {
        let bodies = (version == Version::HTTP_2).then(ConnectionBytes::default);
        Front { bodies, ..self.clone() }
    }

    /// In front of the routes of clients.
    pub(super) fn of_clients(gateway: &Arc<Gateway>, routes: Router, reach: ListenerScope) -> Front {
        let layered = !gateway.edge.now().cors_origins.is_empty();
        Front { gateway: gateway.clone(), routes, passes_routes: !layered, reach, bodies: None }
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Answer {
        request.extensions_mut().insert(Arrived(Instant::now()));
        if let Some(bodies) = &self.bodies {
            request.extensions_mut().insert(bodies.clone());
        }
        let passes = self.passes_routes && request.method() == Method::POST;
        match Route::at(request.uri().path()).filter(|_| passes) {
            Some(route) => boxed(|| past_the_routes(self.gateway.clone(), route, request.map(Body::new))),
            None => {
                request.extensions_mut().insert(self.reach);
                let answer = self.routes.call(request);
                Box::pin(async { answer.await.map(h2_stream_timeout::watched) })
            }
        }
    }
}

async fn past_the_routes(
    gateway: Arc<Gateway>,
    route: Route,
    request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let state = State(gateway.clone());
    let answer = at_the_door(&gateway, request, |request| generate(state, route, request)).await;
    Ok(h2_stream_timeout::watched(answer))
}
