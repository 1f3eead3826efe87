//! Pages of other origins (`server.cors_origins`): what browsers let them ask, and read of the
//! answers.
//!
//! Only what clients ask. The routes of operators stay closed to pages, whoever's they are: without
//! a key, any page that an operator opens could use them from inside the operator's network.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue, header};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

use crate::server::{headers, table};

/// Stands for every origin.
const ANY: &str = "*";

/// Time for which a browser need not ask again.
const PREFLIGHT_TIME: Duration = Duration::from_secs(600);

/// Headers that a page may read beside the body: the id by which to ask about the request, the
/// reason of a refusal, the time to come again.
const READABLE: [HeaderName; 3] =
    [headers::REQUEST_ID, HeaderName::from_static("x-pd-error"), header::RETRY_AFTER];

/// None = pages are told nothing, and browsers let them ask nothing.
pub(super) fn layer(origins: &[HeaderValue]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let any = origins.iter().any(|origin| origin == ANY);
    let origins = origins.to_vec();
    let may = move |origin: &HeaderValue, asked: &Parts| {
        !table::is_for_operators(asked.uri.path()) && (any || origins.contains(origin))
    };
    let layer = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(may))
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(READABLE)
        .max_age(PREFLIGHT_TIME);
    Some(layer)
}
