//! What an engine is, by its own word: version, models, configuration of its cache.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use reqwest::Client;

use super::exchange::{authorized, exchange, url};
use crate::dialect::facts::{self, CacheFacts, Contradiction, ModelFact};
use crate::endpoint::Endpoint;

/// The largest answer to `GET /version` that is read.
const VERSION_BYTES: usize = 4 << 10;
/// The largest answer to `GET /v1/models`.
const MODELS_BYTES: usize = 4 << 20;
/// The largest answer to `GET /metrics`: 60 kB with one rank, and every rank and adapter adds to it.
const METRICS_BYTES: usize = 32 << 20;

/// What one engine told of itself; whatever it does not offer is empty, and a [`Gap`] says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its version, such as `0.32.0`.
    pub version: Option<String>,
    /// Its model and LoRA adapters.
    pub models: Vec<ModelFact>,
    /// How its cache is set up, or that its ranks contradict each other.
    pub cache: Result<Option<CacheFacts>, Contradiction>,
    /// What could not be learned.
    pub gaps: Vec<Gap>,
}

impl Facts {
    /// Whether the engine serves gpt-oss, told by its name: vLLM encodes its chats by Harmony, not by a template, and
    /// its `/tokenize` does not show that.
    pub fn encodes_chats_itself(&self) -> bool {
        let harmony = |name: &str| name.to_ascii_lowercase().replace('_', "-").contains("gpt-oss");
        self.models.iter().any(|model| harmony(&model.id) || model.root.as_deref().is_some_and(harmony))
    }

    /// Fills the gaps with what the same engine said before.
    #[must_use]
    pub fn or_before(mut self, before: &Facts) -> Self {
        for gap in &self.gaps {
            match gap.path {
                "/version" => self.version.clone_from(&before.version),
                "/v1/models" => self.models.clone_from(&before.models),
                _ => self.cache.clone_from(&before.cache),
            }
        }
        self
    }
}

/// A route that did not tell what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GET {path}: {why}")]
pub struct Gap {
    /// The route.
    pub path: &'static str,
    /// What went wrong, in words.
    pub why: String,
    /// The status of the answer, where there was one that is no 200.
    pub status: Option<StatusCode>,
}

/// No route of the engine answered at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} can't be asked what it is: {why}")]
pub struct FactsError {
    /// The engine.
    pub engine: Endpoint,
    /// What went wrong with the first of the routes, in words.
    pub why: String,
}

/// A whole answer of any status, or why there is none.
type Outcome = Result<(StatusCode, Bytes), String>;

/// Asks `engine` what it is, by three requests at once, each within `time`.
///
/// # Errors
/// [`FactsError`] when none of them brought an answer of whatever status.
pub async fn fetch(
    client: &Client,
    engine: &Endpoint,
    authorization: Option<&HeaderValue>,
    time: Duration,
) -> Result<Facts, FactsError> {
    let get = |path, limit_bytes| {
        exchange(authorized(client.get(url(engine, path)), authorization), time, limit_bytes)
    };
    let (version, models, metrics) = tokio::join!(
        get("/version", VERSION_BYTES),
        get("/v1/models", MODELS_BYTES),
        get("/metrics", METRICS_BYTES)
    );
    if let (Err(why), Err(_), Err(_)) = (&version, &models, &metrics) {
        return Err(FactsError { engine: engine.clone(), why: why.clone() });
    }
    let mut gaps = Vec::new();
    let version = read("/version", version, &mut gaps, facts::version);
    let models = read("/v1/models", models, &mut gaps, |body| {
        Some(facts::models(body)).filter(|models| !models.is_empty())
    });
    let cache = read("/metrics", metrics, &mut gaps, |body| {
        facts::cache_config(&String::from_utf8_lossy(body)).transpose()
    });
    Ok(Facts { version, models: models.unwrap_or_default(), cache: cache.transpose(), gaps })
}

/// What `reader` finds in a good answer; else the gap is noted.
fn read<T>(
    path: &'static str,
    outcome: Outcome,
    gaps: &mut Vec<Gap>,
    reader: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let (why, status) = match outcome {
        Err(why) => (why, None),
        Ok((StatusCode::OK, body)) => match reader(&body) {
            Some(found) => return Some(found),
            None => ("nothing of ours in its answer".to_owned(), None),
        },
        Ok((status, _)) => (format!("it answered with status {}", status.as_u16()), Some(status)),
    };
    gaps.push(Gap { path, why, status });
    None
}
