//! Passed-through requests: their routes, their engines, their retries; and the part of an engine's
//! answer a client gets.

mod every;
mod forms;
mod guards;
mod heads;
mod one;

use crate::common::raw_engine::{Asked, RawEngine, answer};

const CHAT: &str = "/v1/chat/completions";

/// An engine that answers everything with 200 and a JSON object.
async fn willing() -> RawEngine {
    RawEngine::start(|_| answer(200, r#"{"object":"list","data":[]}"#)).await
}

/// An engine that hangs up on everything that it is asked.
async fn hanging_up() -> RawEngine {
    RawEngine::start(|_| Vec::new()).await
}

/// The requests that it received on this path.
fn asked_at(engine: &RawEngine, path: &str) -> Vec<Asked> {
    engine.seen().into_iter().filter(|asked| asked.path() == path).collect()
}
