//! Our errors as HTTP: the only file that knows their status codes.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};

use crate::dialect::Api;
use crate::error::{Error, Kind};
use crate::server::fallback;
use crate::server::headers::REQUEST_ID;

/// The status of an error.
pub fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::InvalidJson | Kind::InvalidField | Kind::BodyBroken | Kind::InvalidHost => {
            StatusCode::BAD_REQUEST
        }
        Kind::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::BodyCoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::TransferCoded => StatusCode::NOT_IMPLEMENTED,
        Kind::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        Kind::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Kind::InvalidApiKey => StatusCode::UNAUTHORIZED,
        Kind::ForeignPage | Kind::AdminKeyNeeded | Kind::ForeignHost => StatusCode::FORBIDDEN,
        Kind::ModelNotFound | Kind::ResponseNotFound | Kind::UnknownUrl => StatusCode::NOT_FOUND,
        Kind::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Kind::Overloaded | Kind::NoPrefiller | Kind::NoDecoder | Kind::Shutdown => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Kind::EncodeFailed
        | Kind::PrefillFailed
        | Kind::BadPrefillReply
        | Kind::DecodeFailed
        | Kind::EngineFailed => StatusCode::BAD_GATEWAY,
        Kind::EncodeTimeout | Kind::PrefillTimeout | Kind::DecodeTimeout => StatusCode::GATEWAY_TIMEOUT,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Kind::Loop => StatusCode::LOOP_DETECTED,
    }
}

/// An error as OpenAI's JSON.
pub fn error(error: &Error) -> Response<Body> {
    error_of(None, error)
}

/// The same in the shape of the API that it is of.
pub fn error_of(api: Option<Api>, error: &Error) -> Response<Body> {
    let text = api.map_or_else(|| error.to_json(), |api| api.error_json(error));
    let mut response = json(status(error.kind()), text);
    let headers = response.headers_mut();
    headers.insert("x-pd-error", HeaderValue::from_static(error.kind().code()));
    if matches!(
        error.kind(),
        Kind::Overloaded | Kind::NoPrefiller | Kind::NoDecoder | Kind::Shutdown | Kind::RateLimited
    ) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(error.retry_after_s()));
    }
    if let Some(route) = error.route() {
        fallback::name_route(headers, route);
    }
    if error.kind() == Kind::InvalidApiKey {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // The rest of such a request is still on its way, and too much of it, or proxies on the way
    // read it otherwise: the connection is of no further use.
    if matches!(
        error.kind(),
        Kind::BodyTooLarge
            | Kind::BodyTimeout
            | Kind::HeadersTooLarge
            | Kind::InvalidHost
            | Kind::TransferCoded
    ) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The API of a path, if its errors have a shape of their own.
pub fn api_at(path: &str) -> Option<Api> {
    path.starts_with("/v1/messages").then_some(Api::Messages)
}

/// The API whose error events clients of a path know.
pub fn stream_api_at(path: &str) -> Api {
    let responses = path.starts_with(Api::Responses.path()).then_some(Api::Responses);
    api_at(path).or(responses).unwrap_or(Api::Chat)
}

/// The header in which Anthropic's clients look for the request's id.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// Says by which id a request is known here, in the headers where its API's clients look for it.
pub fn tell_id(response: &mut Response<Body>, api: Option<Api>, id: &str) {
    let Ok(id) = HeaderValue::from_str(id) else { return };
    if api == Some(Api::Messages) {
        response.headers_mut().insert(ANTHROPIC_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
}

/// The same where `overloaded` has the status that `limit.overload_status` gives it, or that of
/// engines which are all over a limit, in an API's own shape.
pub fn error_under(overloaded: StatusCode, api: Option<Api>, refused: &Error) -> Response<Body> {
    let mut response = error_of(api, refused);
    if refused.kind() == Kind::Overloaded {
        *response.status_mut() = if refused.is_limit() { StatusCode::TOO_MANY_REQUESTS } else { overloaded };
    }
    response
}

/// A JSON answer.
pub fn json(status: StatusCode, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn overload_refusals_have_retry_after() {
        let r = error(&Error::new(Kind::Overloaded, "full"));
        assert_eq!((r.status().as_u16(), r.headers()["retry-after"].to_str().unwrap()), (503, "1"));
        assert_eq!(r.headers()["x-pd-error"], "overloaded");
        let late = Error::new(Kind::RateLimited, "used up").retry_after(Duration::from_millis(2_001));
        let r = error(&late);
        assert_eq!((r.status().as_u16(), r.headers()["retry-after"].to_str().unwrap()), (429, "3"));
        let r = error_under(StatusCode::TOO_MANY_REQUESTS, None, &Error::new(Kind::Overloaded, "full"));
        assert_eq!((r.status().as_u16(), r.headers()["retry-after"].to_str().unwrap()), (429, "1"));
        let limited = Error::new(Kind::Overloaded, "full").limit().retry_after(Duration::from_secs(7));
        let r = error_under(
            StatusCode::SERVICE_UNAVAILABLE,
            None,
            &limited.routed("f1;from=f0;reason=overloaded"),
        );
        assert_eq!((r.status().as_u16(), r.headers()["retry-after"].to_str().unwrap()), (429, "7"));
        assert_eq!(r.headers()["x-pd-route"], "f1;from=f0;reason=overloaded");
        let r = error(&Error::new(Kind::InvalidJson, "no"));
        assert_eq!((r.status().as_u16(), r.headers().get("retry-after")), (400, None));
    }
}
