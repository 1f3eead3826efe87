//! The client of either directory.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder};
use tokio::task::JoinSet;

use super::hosts::Hosts;
use super::{ChunkLookup, Directory};
use crate::endpoint::Endpoint;
use crate::pool::aside::aside;
use crate::pool::{
    Answer, KvPool, LoadableBy, MAX_HOSTS, Near, PoolError, Presence, Question, Remnant, by_host,
};

/// Most tokens of one question: the coordinator refuses more.
const MAX_TOKENS: usize = 1_000_000;
/// Largest answer that is read: the coordinator spends some 420 bytes on an object with one place.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Tokens that take a tenth of a millisecond to write as JSON: more are written beside the runtime.
const ASIDE_TOKENS: usize = 16 << 10;
/// The same for reading an answer, bytes.
const ASIDE_BYTES: usize = 64 << 10;
/// The longest that a list of instances is waited for: nobody waits with it.
const LIST_TIME: Duration = Duration::from_secs(5);

/// The operator's settings of an LMCache deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LmcacheSettings {
    /// Place where the directory listens.
    pub endpoint: Endpoint,
    /// Kind of directory that is asked.
    pub directory: Directory,
    /// Tokens per chunk: `LMCACHE_CHUNK_SIZE`, `--chunk-size`; LMCache's default is 256.
    pub chunk_tokens: NonZeroUsize,
    /// Instances lend each other what they have in memory (`enable_p2p`, `--p2p-advertise-url`),
    /// which they don't by default.
    pub p2p: bool,
}

/// An LMCache deployment with a directory.
#[derive(Debug)]
pub struct Lmcache {
    http: Client,
    settings: LmcacheSettings,
    hosts: Arc<Hosts>,
    /// The fetching of a list; one at a time.
    lists: Mutex<JoinSet<()>>,
}

impl Lmcache {
    /// `http` must follow no redirects and use no proxy.
    pub fn new(http: Client, settings: LmcacheSettings) -> Self {
        Self { http, settings, hosts: Arc::default(), lists: Mutex::default() }
    }

    async fn ask(&self, question: &Question, chunks: usize) -> Result<ChunkLookup, PoolError> {
        let chunk = self.settings.chunk_tokens.get();
        let (all, salt) = (question.tokens.clone(), question.salt.clone());
        let directory = self.settings.directory.clone();
        let len = chunks * chunk;
        let body =
            aside(len > ASIDE_TOKENS, move || directory.question(all.get(..len).unwrap_or_default(), &salt));
        let body = body.await?.map_err(|error| PoolError::TooLarge(error.to_string()))?;
        let request = self.http.post(self.url(self.settings.directory.path())).body(body);
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = exchange(request).await?;
        let (directory, salt) = (self.settings.directory.clone(), question.salt.clone());
        let found =
            aside(answer.len() > ASIDE_BYTES, move || directory.answer(&answer, &salt, chunks, chunk));
        found.await?.map_err(|error| PoolError::Protocol(error.to_string()))
    }

    /// The instances that are registered, and their hosts: from now on they go by these.
    ///
    /// # Errors
    /// [`PoolError`]; there is no limit to the time, which is the caller's.
    pub async fn instances(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, PoolError> {
        let body = exchange(self.http.get(self.url(self.settings.directory.instances_path()))).await?;
        self.hosts.learn(&body).map_err(|error| PoolError::Protocol(error.to_string()))?;
        Ok(self.hosts.all())
    }

    /// Begins to learn where the instances are, if that may be news. No answer waits for it: until
    /// it is there, instances go by what was known, or by their names.
    fn locate(&self, found: &ChunkLookup) {
        if found.held.is_empty() {
            return;
        }
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        while lists.try_join_next().is_some() {}
        if !lists.is_empty() || !self.hosts.is_due(found.held.iter().map(|held| &held.instance)) {
            return;
        }
        let listed = exchange(self.http.get(self.url(self.settings.directory.instances_path())));
        let (hosts, pool) = (self.hosts.clone(), self.name());
        lists.spawn(async move {
            let listed = tokio::time::timeout(LIST_TIME, listed).await;
            let late = || Err(PoolError::Unreachable(format!("no list in {} s", LIST_TIME.as_secs())));
            let learnt = match listed.unwrap_or_else(|_| late()) {
                Ok(body) => aside(body.len() > ASIDE_BYTES, move || hosts.learn(&body))
                    .await
                    .and_then(|learnt| learnt.map_err(|error| PoolError::Protocol(error.to_string()))),
                Err(error) => Err(error),
            };
            if let Err(error) = learnt {
                tracing::debug!(pool, %error, "no list of instances");
            }
        });
    }

    /// Presence that follows from an answer about a prompt of `chunks` whole chunks.
    fn presence(&self, found: &ChunkLookup, chunks: usize) -> Presence {
        let tokens = |chunks: usize| {
            u32::try_from(chunks.saturating_mul(self.settings.chunk_tokens.get())).unwrap_or(u32::MAX)
        };
        let near = found.held.iter().map(|held| Near {
            host: self.hosts.of(&held.instance),
            tier: held.tier,
            tokens: tokens(held.chunks),
        });
        let near = by_host(near, MAX_HOSTS);
        let whole = found.chunks >= chunks;
        let reach = match (self.settings.p2p, found.lent) {
            (true, lent) if lent == found.chunks => LoadableBy::All,
            (true, lent) => LoadableBy::Own { fetchable_tokens: tokens(lent) },
            (false, _) => LoadableBy::Own { fetchable_tokens: tokens(found.shared) },
        };
        Presence {
            hit_tokens: tokens(found.chunks),
            reach,
            near,
            sampled: false,
            whole,
            remnant: Remnant::Nothing,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.settings.endpoint)
    }
}

impl KvPool for Lmcache {
    fn name(&self) -> &'static str {
        match self.settings.directory {
            Directory::Controller => "lmcache_controller",
            Directory::Coordinator { .. } => "lmcache_coordinator",
        }
    }

    fn lookup<'a>(&'a self, question: &'a Question) -> Answer<'a, Presence> {
        Box::pin(async move {
            let chunks = question.tokens.len().min(MAX_TOKENS) / self.settings.chunk_tokens;
            if chunks == 0 {
                return Ok(self.presence(&ChunkLookup::default(), chunks));
            }
            let found = self.ask(question, chunks).await?;
            self.locate(&found);
            Ok(self.presence(&found, chunks))
        })
    }
}

/// The body of an answer with status 200.
async fn exchange(request: RequestBuilder) -> Result<BytesMut, PoolError> {
    let lost = |error: reqwest::Error| PoolError::Unreachable(innermost(&error));
    let mut response = request.send().await.map_err(lost)?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(PoolError::Refused(format!("it answered with status {}", response.status().as_u16())));
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(PoolError::Protocol(format!("its answer is larger than {MAX_ANSWER_BYTES} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The cause behind all others: those before it repeat the URL.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
