//! The edge: sockets, routes, and everything that speaks HTTP to clients.

mod adapter;
pub mod admin;
mod alias_answer;
mod asleep;
mod auth;
mod begun;
mod bind;
mod body;
mod body_memory;
mod cors;
mod csrf;
mod cut;
mod every_engine;
mod explain;
mod fallback;
mod fast_path;
pub mod fleets;
mod form;
mod h2_stream_timeout;
pub mod headers;
mod host;
mod idle;
mod instances;
mod joining;
mod keep_alive;
mod listen;
mod loop_guard;
mod members;
mod metaserver;
mod models;
mod moves;
mod one_engine;
mod openai;
mod openapi;
mod operator_access;
mod page;
mod passed;
mod passthrough;
mod passthrough_accounting;
mod passthrough_body;
mod payload;
mod plain_path;
mod priority;
mod queries;
mod readiness;
pub mod reference;
mod refusal_votes;
pub mod reply;
mod response_lookup;
mod routes;
mod stall;
mod stream_end;
mod table;
mod tls;
mod transfer_coding;
mod ttft_slo;
mod unread_body;
mod write_coalescing;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::Callers;
use crate::obs::{Exposition, Meters};
use crate::relay::admit::Gate;
use crate::relay::traced;
use crate::server::openai::Route;
use crate::trace::{Span, Tracer, lines};
use crate::util::rng;
use crate::util::swap::Live;

use fleets::Fleets;

pub use asleep::Asleep;
pub use bind::{Bound, ListenError, Place, bind, bind_admin};
pub use body_memory::{BodyLimits, BodyMemory};
pub use instances::Waiting;
pub use listen::{CUT_NOTICE, serve};
pub use loop_guard::Via;
pub use moves::Moves;
pub use operator_access::open_routes;
pub use page::Served;
pub use passed::{PassedError, PassedSockets};
pub use routes::{admin_router, public_router, router};
pub use tls::renew;

/// State that the handlers share.
#[derive(Debug)]
pub struct Gateway {
    /// The fleets that are served.
    pub fleets: Live<Fleets>,
    /// Metrics of what they share.
    pub meters: Arc<Meters>,
    /// Lets them in.
    pub gate: Gate,
    /// Memory of their bodies.
    pub bodies: BodyMemory,
    /// Callers that may ask.
    pub callers: Arc<Callers>,
    /// Renderer of `/metrics`.
    pub exposition: Exposition,
    /// Name by which requests to engines are known again, should they come back.
    pub via: Via,
    /// Limits of clients' requests, in size and time.
    pub edge: Live<Edge>,
    /// Begins requests' spans.
    pub tracer: Arc<Tracer>,
    /// Models that engines serve, for people who look.
    pub served: Served,
    /// The files that the configuration was read from, once it is followed.
    pub files: OnceLock<Vec<String>>,
    /// Port at which clients ask, once it is bound.
    pub clients_port: OnceLock<u16>,
    /// Background work that handlers start: probes of new instances.
    pub tasks: TaskTracker,
    /// Cancelled when the gateway is to shut down soon: it still takes requests, and says that it
    /// should get none.
    pub ending: CancellationToken,
    /// Ends when the gateway shuts down.
    pub stop: CancellationToken,
    /// Cancelled when the time of open requests is over.
    pub cut: CancellationToken,
}

/// Limits and secrets of the edge.
#[derive(Clone, Debug)]
pub struct Edge {
    /// A client's body.
    pub body_bytes: usize,
    /// All header lines together.
    pub header_bytes: usize,
    /// Limit of header lines.
    pub headers: usize,
    /// Open client connections.
    pub connections: usize,
    /// Reading a body.
    pub body_time: Duration,
    /// Limits for the memory of all bodies, and for the pace of one.
    pub bodies: BodyLimits,
    /// Reading a head, and waiting for one on an idle connection.
    pub header_time: Duration,
    /// A client's TLS handshake.
    pub handshake_time: Duration,
    /// A client that takes nothing of its answer.
    pub write_time: Duration,
    /// Nesting of a JSON body.
    pub json_depth: usize,
    /// Members of a JSON body.
    pub json_members: usize,
    /// Origins whose pages may ask; `*` = all.
    pub cors_origins: Vec<http::HeaderValue>,
    /// Status of refusals for want of room.
    pub overload_status: http::StatusCode,
    /// Of this share of the requests each step is logged, at level debug.
    pub steps_ratio: f64,
    /// Guards changes of the fleet and looks into it.
    pub admin_key: Option<String>,
    /// A key may ask for responses of which it is not known for whom they were made.
    pub unknown_responses: bool,
    /// Everybody may use the operators' routes, also where other machines reach them.
    pub open_admin: bool,
    /// Names by which the operators' routes are served without a key, in lower case.
    pub names: Vec<String>,
    /// Paths that are passed on to one engine, beside those that are known; one that ends in `/*`
    /// stands for all below it.
    pub passthrough: Vec<String>,
}

impl Edge {
    /// True if the operator has a path that nobody here knows passed on.
    fn passes_on(&self, path: &str) -> bool {
        self.passthrough.iter().any(|listed| match listed.strip_suffix('*') {
            Some(folder) => path.len() > folder.len() && path.starts_with(folder),
            None => listed == path,
        })
    }
}

/// Time at which a request's head was read; put into its extensions at the edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived(pub(crate) Instant);

impl Gateway {
    /// Cuts all that is still open, and tells clients so.
    pub fn cut_all(&self) {
        self.meters.cut_all();
        self.cut.cancel();
    }

    /// The span of a request that is known as `id`; empty where requests are not traced.
    fn span(&self, request: &Request, id: &str, arrived: Instant) -> Span {
        let logged = lines::wanted(self.edge.now().steps_ratio, rng::random);
        if !logged && !self.tracer.collects() {
            return Span::default();
        }
        let (method, path) = (traced::method(request.method()), request.uri().path());
        let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let route = matched.or_else(|| Route::at(path).map(|_| path));
        let name = format!("{method} {}", route.unwrap_or_default()).trim_end().to_owned();
        let mut span = self.tracer.begin(request.headers(), name, arrived, logged.then_some(id));
        if span.is_kept() {
            span.set("http.request.method", method);
            span.set_if("http.route", route.map(str::to_owned));
            span.set("url.path", traced::short(path));
            span.set("pd_proxy.request_id", id.to_owned());
        }
        span
    }
}

/// A name that a client made up is repeated up to this length.
const NAME_CHARS: usize = 100;

/// A name that a client made up, fit for an answer and for the log.
fn printable(name: &str) -> String {
    name.chars().take(NAME_CHARS).flat_map(char::escape_debug).collect()
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
