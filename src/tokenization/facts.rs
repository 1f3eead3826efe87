//! Facts that an engine tells about itself: version, models, configuration of its cache.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use reqwest::{Client, RequestBuilder};

use super::exchange::{authorized, exchange, url};
use super::parity::TopicsSeen;
use crate::dialect::facts::{self, CacheFacts, Contradiction, ModelFact};
use crate::endpoint::Endpoint;
use crate::kvhash::release::{Release, Stage};
use crate::prompt::{Rules, Topic, Topics};

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

    /// The rules for chats that it is known to share with those followed here, and those that
    /// comparing may show.
    pub fn rules(&self) -> EngineRules {
        self.version.as_deref().map_or(EngineRules::Known(Rules::EVERY_RELEASE), rules_of)
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

/// Rules for chats of an engine, by its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineRules {
    /// Its release was compared with, or is older and shares what all releases do.
    Known(Rules),
    /// It is newer than all that were compared with: taken to be the newest of them as far as the
    /// comparison with it shows.
    Newer(Rules),
}

impl EngineRules {
    /// The rules under which its tokens are compared.
    pub fn compared(self) -> Rules {
        let (EngineRules::Known(rules) | EngineRules::Newer(rules)) = self;
        rules
    }

    /// The rules that count once `seen` was found.
    pub fn after(self, seen: TopicsSeen) -> Rules {
        let topics = match self {
            EngineRules::Known(rules) => rules.topics,
            EngineRules::Newer(rules) => rules.topics.shared_with(seen.same),
        };
        // Each model has a way of its own with images, of which no release tells.
        let unseen = Topics::NONE.with(Topic::Media).without(seen.same);
        Rules { topics: topics.without(seen.different).without(unseen), ..self.compared() }
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

/// Newest release that was compared with.
const NEWEST: Release = Release::new(0, 33, 0);

/// First release whose chat endpoint was seen to take token ids.
const FIRST_WITH_CHAT_IDS: Release = Release::new(0, 32, 0);

/// True if the chat endpoint of this version may take token ids in place of messages. Not all of
/// its builds need to, so that engines have to be asked.
pub fn may_take_chat_ids(version: &str) -> bool {
    Release::parse(version).is_some_and(|release| release >= FIRST_WITH_CHAT_IDS)
}

/// First release whose answers to token ids as a completion's prompt were compared with those to
/// its text.
const FIRST_WITH_COMPARED_IDS: Release = Release::new(0, 18, 0);

/// True if this version was seen to answer a completion by token ids as it does by text, or is
/// newer than one that was.
pub fn takes_completion_ids(version: &str) -> bool {
    Release::parse(version).is_some_and(|release| release >= FIRST_WITH_COMPARED_IDS)
}

/// First release whose streams end with what the decoder keeps for the next turn.
const FIRST_WITH_STREAMED_HANDOFFS: Release = Release::new(0, 33, 0);

/// True if streams of this version have `kv_transfer_params` in their last event.
pub fn streams_handoffs(version: &str) -> bool {
    Release::parse(version).is_some_and(|release| release >= FIRST_WITH_STREAMED_HANDOFFS)
}

/// Rules of a release. A version between releases that were compared with, or a name of somebody's
/// own, may have been changed in any way. A build of a release (`0.32.0+cu130`) is that release,
/// and so are its patches.
fn rules_of(version: &str) -> EngineRules {
    let Some(release) = Release::parse(version) else { return EngineRules::Known(Rules::EVERY_RELEASE) };
    let of = |from: u16, to: u16| {
        let range = Release::new(0, from, 0)..=Release::new(0, to, u16::MAX);
        release.stage() == Stage::Final && range.contains(&release)
    };
    match (of(33, 33), of(32, 32), of(22, 31)) {
        (true, ..) => EngineRules::Known(Rules::OF_33),
        (_, true, _) => EngineRules::Known(Rules::OF_32),
        (.., true) => EngineRules::Known(Rules::SINCE_22),
        _ if release > NEWEST => EngineRules::Newer(Rules::OF_33),
        _ => EngineRules::Known(Rules::EVERY_RELEASE),
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
    fn releases_that_were_compared_with_share_the_rules() {
        for (version, rules) in [
            ("0.33.0", Rules::OF_33),
            ("0.33.2+cpu", Rules::OF_33),
            ("0.32.0", Rules::OF_32),
            ("0.32.4+cu130", Rules::OF_32),
            ("0.31.1", Rules::SINCE_22),
            ("0.22.0", Rules::SINCE_22),
            ("0.21.3", Rules::EVERY_RELEASE),
            ("0.33.0rc1", Rules::EVERY_RELEASE),
            ("0.32.1rc1.dev3+g12345", Rules::EVERY_RELEASE),
            ("dev", Rules::EVERY_RELEASE),
            ("", Rules::EVERY_RELEASE),
        ] {
            assert_eq!(rules_of(version), EngineRules::Known(rules), "{version:?}");
        }
    }

    #[test]
    fn streams_that_end_with_a_handoff_are_told_by_the_release() {
        for (version, expected) in
            [("0.33.0", true), ("0.34.1rc2", true), ("1.0.0", true), ("0.32.0+cu130", false), ("main", false)]
        {
            assert_eq!(streams_handoffs(version), expected, "{version}");
        }
    }

    #[test]
    fn releases_that_may_take_chat_ids_are_told_by_their_number() {
        for version in ["0.32.0", "0.33.0+cu130", "0.34.0rc1", "1.0.0"] {
            assert!(may_take_chat_ids(version), "{version}");
        }
        for version in ["0.31.2", "0.32.0rc1", "0.8.5", "dev", ""] {
            assert!(!may_take_chat_ids(version), "{version}");
        }
    }

    #[test]
    fn releases_that_take_ids_of_completions_are_told_by_their_number() {
        for version in ["0.18.0", "0.23.0+cpu", "0.33.0", "1.0.0"] {
            assert!(takes_completion_ids(version), "{version}");
        }
        for version in ["0.17.1", "0.18.0rc1", "dev", ""] {
            assert!(!takes_completion_ids(version), "{version}");
        }
    }

    #[test]
    fn a_newer_release_shares_what_the_comparison_shows() {
        for version in ["0.34.0", "0.33.1.dev7+g12345", "0.33.0.post1", "0.34.0rc1", "1.0.0"] {
            assert_eq!(rules_of(version), EngineRules::Newer(Rules::OF_33), "{version:?}");
        }
        let one = |topic| Topics::NONE.with(topic);
        let newer = rules_of("0.34.0");
        assert_eq!(newer.after(TopicsSeen::default()).topics, Topics::NONE);
        let seen = TopicsSeen { same: Topics::ALL, different: one(Topic::Effort) };
        assert_eq!(newer.after(seen).topics, Topics::ALL.without(one(Topic::Effort)));
        assert_eq!(newer.after(seen).editions, Rules::OF_33.editions);
        // As an engine of a known release whose efforts are mapped in another way.
        assert_eq!(rules_of("0.33.0").after(seen).topics, Topics::ALL.without(one(Topic::Effort)));
        // Of images no release tells.
        let untold = Rules { topics: Topics::ALL.without(one(Topic::Media)), ..Rules::OF_33 };
        assert_eq!(rules_of("0.33.0").after(TopicsSeen::default()), untold);
    }
}
