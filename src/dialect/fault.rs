//! Events of a stream by which an engine says that the answer failed, and whose fault that was.

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse;
use crate::dialect::Api;

/// Types of an error in a stream of `/v1/messages` that are none of the request: vLLM's own (0.32), and Anthropic's.
const OF_THE_ENGINE: [&str; 4] = ["internal_error", "InternalServerError", "api_error", "overloaded_error"];

/// The lowest `code` that blames the engine; those below blame the request.
const LOWEST_CODE: u64 = 500;

/// Whose fault an answer's failure was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another engine may do better.
    Engine,
    /// It would be the same anywhere.
    Request,
}

/// What an event says of a failure; `None` where it is no error: vLLM's own (`data: {"error":…}`), the `error` events of OpenAI and
/// Anthropic, a response that failed.
pub fn of_event(api: Api, event: &sse::Frame<'_>) -> Option<Fault> {
    let data = event.data();
    let named = event.event().is_some_and(|name| api.fails_with_event(name));
    if !named && !data.starts_with(b"{\"error\"") {
        return None;
    }
    let Ok(data) = Object::scan(Bytes::copy_from_slice(&data), ScanLimits::default()) else {
        return Some(Fault::Request);
    };
    let inside = |outer: &Object, key: &str| outer.get(key)?.object().ok();
    let of_response = || inside(&data, "response").and_then(|response| inside(&response, "error"));
    let error = inside(&data, "error").or_else(of_response);
    let error = error.as_ref().unwrap_or(&data);
    let kind = error.get("type").filter(|_| api == Api::Messages).and_then(|kind| kind.as_str());
    let engine = blames_engine(error)
        || error.get("code").is_some_and(|code| code.as_str().as_deref() == Some("server_error"))
        || kind.is_some_and(|kind| OF_THE_ENGINE.contains(&kind.as_ref()));
    Some(if engine { Fault::Engine } else { Fault::Request })
}

/// The same of whole events: the first that says so.
pub fn in_events(api: Api, events: &[u8]) -> Option<Fault> {
    sse::frames(events).find_map(|event| of_event(api, &event))
}

/// Whether an error's `code` is one by which an engine blames itself.
pub(super) fn blames_engine(error: &Object) -> bool {
    error.get("code").and_then(|code| code.as_u64()).is_some_and(|code| code >= LOWEST_CODE)
}
