//! Our errors as HTTP: the only file that knows their status codes.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};

use crate::error::{Error, Kind};

/// What a client that is refused for want of room should wait, in seconds.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// The status of an error.
pub fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::InvalidJson | Kind::InvalidField | Kind::BodyBroken => StatusCode::BAD_REQUEST,
        Kind::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        Kind::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Kind::InvalidApiKey => StatusCode::UNAUTHORIZED,
        Kind::ModelNotFound | Kind::UnknownUrl => StatusCode::NOT_FOUND,
        Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Kind::Overloaded | Kind::NoPrefiller | Kind::NoDecoder => StatusCode::SERVICE_UNAVAILABLE,
        Kind::PrefillFailed | Kind::BadPrefillReply | Kind::DecodeFailed | Kind::EngineFailed => {
            StatusCode::BAD_GATEWAY
        }
        Kind::PrefillTimeout | Kind::DecodeTimeout => StatusCode::GATEWAY_TIMEOUT,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error as OpenAI's JSON.
pub fn error(error: &Error) -> Response<Body> {
    let mut response = json(status(error.kind()), error.to_json());
    let headers = response.headers_mut();
    headers.insert("x-pd-error", HeaderValue::from_static(error.kind().code()));
    if matches!(error.kind(), Kind::Overloaded | Kind::NoPrefiller | Kind::NoDecoder) {
        headers.insert(header::RETRY_AFTER, RETRY_AFTER_S);
    }
    // The rest of such a request is still on its way: the connection is of no further use.
    if matches!(error.kind(), Kind::BodyTooLarge | Kind::BodyTimeout | Kind::HeadersTooLarge) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
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
    use super::*;

    #[test]
    fn who_is_turned_away_for_room_learns_when_to_come_back() {
        let r = error(&Error::new(Kind::Overloaded, "full"));
        assert_eq!((r.status().as_u16(), r.headers()["retry-after"].to_str().unwrap()), (503, "1"));
        assert_eq!(r.headers()["x-pd-error"], "overloaded");
        let r = error(&Error::new(Kind::InvalidJson, "no"));
        assert_eq!((r.status().as_u16(), r.headers().get("retry-after")), (400, None));
    }
}
