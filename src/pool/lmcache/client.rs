//! The client of either directory.

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::BytesMut;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder};
use smallvec::SmallVec;

use super::hosts::Hosts;
use super::{Directory, Found, controller, coordinator};
use crate::endpoint::Endpoint;
use crate::pool::{Answer, KvPool, Near, PoolError, Presence, Question};

/// Most tokens of one question: the coordinator refuses more.
const MAX_TOKENS: usize = 1_000_000;
/// Largest answer that is read: the coordinator spends some 420 bytes on an object with one place.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// What the operator says of an LMCache deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LmcacheSettings {
    /// Where the directory listens.
    pub endpoint: Endpoint,
    /// Which it is.
    pub directory: Directory,
    /// Tokens per chunk: `LMCACHE_CHUNK_SIZE`, `--chunk-size`; LMCache's default is 256.
    pub chunk_tokens: NonZeroUsize,
}

/// An LMCache deployment with a directory.
#[derive(Debug)]
pub struct Lmcache {
    http: Client,
    settings: LmcacheSettings,
    hosts: Hosts,
}

impl Lmcache {
    /// `http` must follow no redirects and use no proxy.
    pub fn new(http: Client, settings: LmcacheSettings) -> Self {
        Self { http, settings, hosts: Hosts::default() }
    }

    async fn ask(&self, tokens: &[u32], chunks: usize) -> Result<Found, PoolError> {
        let (path, body) = match &self.settings.directory {
            Directory::Controller => (controller::PATH, controller::question(tokens)),
            Directory::Coordinator { model, world_size } => {
                (coordinator::PATH, coordinator::question(tokens, model, *world_size))
            }
        };
        let body = body.map_err(|error| PoolError::TooLarge(error.to_string()))?;
        let request = self.http.post(self.url(path)).body(body);
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = exchange(request).await?;
        match &self.settings.directory {
            Directory::Controller => controller::answer(&answer, self.settings.chunk_tokens.get(), chunks),
            Directory::Coordinator { world_size, .. } => coordinator::answer(&answer, *world_size, chunks),
        }
        .map_err(|error| PoolError::Protocol(error.to_string()))
    }

    /// The instances that are registered, and their hosts: from now on they go by these.
    ///
    /// # Errors
    /// [`PoolError`]; there is no limit to the time, which is the caller's.
    pub async fn instances(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, PoolError> {
        let path = match self.settings.directory {
            Directory::Controller => controller::INSTANCES_PATH,
            Directory::Coordinator { .. } => coordinator::INSTANCES_PATH,
        };
        let body = exchange(self.http.get(self.url(path))).await?;
        self.hosts.learn(&body).map_err(|error| PoolError::Protocol(error.to_string()))?;
        Ok(self.hosts.all())
    }

    /// Learns where the instances are, if that may be news. Without it they go by their names.
    async fn locate(&self, found: &Found) {
        if found.held.is_empty() || !self.hosts.is_due(found.held.iter().map(|held| &held.instance)) {
            return;
        }
        if let Err(error) = self.instances().await {
            tracing::debug!(pool = self.name(), %error, "no list of instances");
        }
    }

    fn presence(&self, found: &Found) -> Presence {
        let tokens = |chunks: usize| {
            u32::try_from(chunks.saturating_mul(self.settings.chunk_tokens.get())).unwrap_or(u32::MAX)
        };
        let mut near = SmallVec::<[Near; 4]>::new();
        for held in &found.held {
            let here =
                Near { host: self.hosts.of(&held.instance), tier: held.tier, tokens: tokens(held.chunks) };
            // Of several instances on one host the longest stands for it.
            if !near.iter().any(|known| (&known.host, known.tier) == (&here.host, here.tier)) {
                near.push(here);
            }
        }
        Presence { hit_tokens: tokens(found.chunks), near, sampled: false }
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
                return Ok(Presence::default());
            }
            let tokens = question.tokens.get(..chunks * self.settings.chunk_tokens.get()).unwrap_or_default();
            let found = self.ask(tokens, chunks).await?;
            self.locate(&found).await;
            Ok(self.presence(&found))
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
