//! The page at `/` of the operators' listener, or of the only one where no key is asked for: what
//! people look at, in a browser. The files beside this one, and the JSON that they show.
//!
//! Names of engines and models and the ids of requests are others' words. The script puts them in
//! as text alone; the policy that goes with every file keeps a mistake there from running anything,
//! and the page from asking anybody else.

pub(super) mod decisions;
mod json;
mod loads;
mod served;

use axum::body::Body;
use http::{HeaderName, HeaderValue, Response, header};

pub(super) use json::json;
pub use served::Served;

/// The page itself.
pub(super) const HTML: &str = "/";
/// Path of the style sheet.
pub(super) const STYLE: &str = "/page.css";
/// Path of the script.
pub(super) const SCRIPT: &str = "/page.js";
/// Path of the script for the tables of engines.
pub(super) const ENGINES_SCRIPT: &str = "/engines.js";
/// Path of the script for trying a request.
pub(super) const TRY_SCRIPT: &str = "/try.js";
/// Path of the page's data. Under a path that takes the admin key, as `/status` does.
pub(super) const JSON: &str = "/status.json";

/// With every file. `form-action` keeps the key from leaving by a form that the script did not
/// catch.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    // The next release has other files at the same paths.
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Answers with the page.
pub(super) async fn html() -> Response<Body> {
    file("text/html; charset=utf-8", include_str!("page.html"))
}

/// Answers with its style sheet.
pub(super) async fn style() -> Response<Body> {
    file("text/css; charset=utf-8", include_str!("page.css"))
}

/// Answers with its script.
pub(super) async fn script() -> Response<Body> {
    file("text/javascript; charset=utf-8", include_str!("page.js"))
}

/// Answers with the script for the tables of engines.
pub(super) async fn engines_script() -> Response<Body> {
    file("text/javascript; charset=utf-8", include_str!("engines.js"))
}

/// Answers with the script for trying a request.
pub(super) async fn try_script() -> Response<Body> {
    file("text/javascript; charset=utf-8", include_str!("try.js"))
}

fn file(kind: &'static str, text: &'static str) -> Response<Body> {
    guarded(Response::new(Body::from(text)), kind)
}

fn guarded(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    let headers = response.headers_mut();
    headers.extend(HEADERS);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
