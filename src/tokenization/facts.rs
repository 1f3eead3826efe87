//! Facts that an engine tells about itself: version, models, configuration of its cache.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use reqwest::{Client, RequestBuilder};

use super::exchange::{authorized, exchange, url};
use crate::dialect::facts::{self, CacheFacts, Contradiction, ModelFact};
use crate::endpoint::Endpoint;
use crate::kvhash::release::{Release, Stage};
use crate::prompt::Rules;

/// The largest answer to `GET /version` that is read.
const VERSION_BYTES: usize = 4 << 10;
/// The largest answer to `GET /v1/models`.
const MODELS_BYTES: usize = 4 << 20;
/// The same where the names alone are wanted.
const NAMES_BYTES: usize = 1 << 20;
/// The largest answer to `GET /metrics`: 60 kB with one rank, and every rank and adapter adds to
/// it.
const METRICS_BYTES: usize = 32 << 20;

/// Facts of one engine. Parts that it does not offer are empty, and a [`Gap`] says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its version, such as `0.32.0`.
    pub version: Option<String>,
    /// Its model and LoRA adapters.
    pub models: Vec<ModelFact>,
    /// Settings of its cache, or the contradiction between its ranks.
    pub cache: Result<Option<CacheFacts>, Contradiction>,
    /// Facts that could not be learned.
    pub gaps: Vec<Gap>,
}

impl Facts {
    /// True if the engine serves gpt-oss, told by its name: vLLM encodes its chats by Harmony, not
    /// by a template, and its `/tokenize` does not show that.
    pub fn encodes_chats_itself(&self) -> bool {
        let harmony = |name: &str| name.to_ascii_lowercase().replace('_', "-").contains("gpt-oss");
        self.models.iter().any(|model| harmony(&model.id) || model.root.as_deref().is_some_and(harmony))
    }

    /// The rules for chats that it shares with those followed here; one whose release is not known
    /// shares what all do.
    pub fn rules(&self) -> Rules {
        self.version.as_deref().map_or(Rules::EveryRelease, rules_of)
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
    /// Route that was asked.
    pub path: &'static str,
    /// Fault, in words.
    pub why: String,
    /// The status of the answer, where there was one that is no 200.
    pub status: Option<StatusCode>,
    /// True if no whole answer came.
    pub is_unanswered: bool,
}

/// No route of the engine answered at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} can't be asked what it is: {why}")]
pub struct FactsError {
    /// Endpoint of the engine.
    pub engine: Endpoint,
    /// Fault of the first of the routes, in words.
    pub why: String,
}

/// Rules of a release. A version that is none of the releases compared with may have been changed:
/// a later one, one between two releases, a name of somebody's own. A build of a release
/// (`0.32.0+cu130`) is that release.
fn rules_of(version: &str) -> Rules {
    let release = Release::parse(version).filter(|release| release.stage() == Stage::Final);
    let known = |from: u16, to: u16| {
        let range = Release::new(0, from, 0)..=Release::new(0, to, u16::MAX);
        release.is_some_and(|release| range.contains(&release))
    };
    match (known(32, 32), known(22, 32)) {
        (true, _) => Rules::Of32,
        (_, true) => Rules::Since22,
        _ => Rules::EveryRelease,
    }
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

/// An engine's answer to the question for its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListReply {
    /// Names of all of them.
    Names(Vec<String>),
    /// A status other than one of success.
    Refused(StatusCode),
}

/// Sends `call`, which asks an engine for its list of models.
///
/// # Errors
/// The reason for which there is no answer within `time`, in words.
pub async fn model_names(call: RequestBuilder, time: Duration) -> Result<ListReply, String> {
    let (status, body) = exchange(call, time, NAMES_BYTES).await?;
    let names = || facts::models(&body).into_iter().map(|model| model.id).collect();
    Ok(if status.is_success() { ListReply::Names(names()) } else { ListReply::Refused(status) })
}

/// Sends `call`, which asks an engine for its release, and returns it; `None` if it does not tell
/// within `time`.
pub async fn release(call: RequestBuilder, time: Duration) -> Option<String> {
    let (status, body) = exchange(call, time, VERSION_BYTES).await.ok()?;
    if status.is_success() { facts::version(&body) } else { None }
}

/// Reads a good answer by `reader`; else notes the gap.
fn read<T>(
    path: &'static str,
    outcome: Outcome,
    gaps: &mut Vec<Gap>,
    reader: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let is_unanswered = outcome.is_err();
    let (why, status) = match outcome {
        Err(why) => (why, None),
        Ok((StatusCode::OK, body)) => match reader(&body) {
            Some(found) => return Some(found),
            None => ("nothing of ours in its answer".to_owned(), None),
        },
        Ok((status, _)) => (format!("it answered with status {}", status.as_u16()), Some(status)),
    };
    gaps.push(Gap { path, why, status, is_unanswered });
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_that_were_compared_with_share_the_rules() {
        for (version, rules) in [
            ("0.32.0", Rules::Of32),
            ("0.32.4+cu130", Rules::Of32),
            ("0.31.1", Rules::Since22),
            ("0.22.0", Rules::Since22),
            ("0.21.3", Rules::EveryRelease),
            ("0.33.0", Rules::EveryRelease),
            ("0.32.1rc1.dev3+g12345", Rules::EveryRelease),
            ("1.0.0", Rules::EveryRelease),
            ("dev", Rules::EveryRelease),
            ("", Rules::EveryRelease),
        ] {
            assert_eq!(rules_of(version), rules, "{version:?}");
        }
    }
}
