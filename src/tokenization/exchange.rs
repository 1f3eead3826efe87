//! One exchange with one engine's control routes: a time limit, and an answer that is bounded.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, StatusCode, header};
use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::dialect::Api;
use crate::endpoint::Endpoint;

/// Good for [`Asker::answer_bytes`]: some eight million token ids.
pub const ANSWER_BYTES: usize = 64 << 20;

/// Good for [`Asker::time`]: beyond it an engine is not slow but stuck.
pub const ASK_TIME: Duration = Duration::from_secs(10);

/// Asks engines to tokenise.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The client for control calls; it must not follow redirects nor use a proxy.
    pub client: Client,
    /// Sent with every question, if the engines want a key.
    pub authorization: Option<HeaderValue>,
    /// The longest that one exchange may take.
    pub time: Duration,
    /// The largest answer that is read, in bytes.
    pub answer_bytes: usize,
}

/// Reasons why a question brought no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The engine answered with another status than 200.
    #[error("it answered with status {0}")]
    Refused(u16),
    /// No connection, no whole answer in time, or an answer too large.
    #[error("{0}")]
    Unreachable(String),
    /// An answer of status 200 that has no token ids.
    #[error("its answer has no token ids")]
    BadAnswer,
}

impl Asker {
    /// The tokens of one body of `POST /tokenize`.
    ///
    /// # Errors
    /// An [`AskError`] says what failed.
    pub async fn ask(&self, engine: &Endpoint, body: Bytes) -> Result<Vec<u32>, AskError> {
        #[derive(Deserialize)]
        struct Answer {
            tokens: Vec<u32>,
        }
        self.post(engine, "/tokenize", body).await.and_then(|answer: Answer| some(answer.tokens))
    }

    /// The tokens that an API's endpoint makes of a body, from the route `/render` beside it, which
    /// generates nothing. Engines have it from 0.32 on, if not before.
    ///
    /// # Errors
    /// An [`AskError`] says what failed.
    pub async fn render(&self, engine: &Endpoint, api: Api, body: Bytes) -> Result<Vec<u32>, AskError> {
        #[derive(Deserialize)]
        struct Answer {
            token_ids: Vec<u32>,
        }
        let path = format!("{}/render", api.path());
        self.post(engine, &path, body).await.and_then(|answer: Answer| some(answer.token_ids))
    }

    /// The prompt tokens that a chat's answer reports. It is a chat that is answered.
    ///
    /// # Errors
    /// An [`AskError`] says what failed.
    pub async fn count_of_chat(&self, engine: &Endpoint, body: Bytes) -> Result<u64, AskError> {
        #[derive(Deserialize)]
        struct Answer {
            usage: Counts,
        }
        #[derive(Deserialize)]
        struct Counts {
            prompt_tokens: u64,
        }
        self.post(engine, Api::Chat.path(), body).await.map(|answer: Answer| answer.usage.prompt_tokens)
    }

    async fn post<A: DeserializeOwned>(
        &self,
        engine: &Endpoint,
        path: &str,
        body: Bytes,
    ) -> Result<A, AskError> {
        let request = self.client.post(url(engine, path)).body(body);
        let request = request.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = authorized(request, self.authorization.as_ref());
        let (status, answer) =
            exchange(request, self.time, self.answer_bytes).await.map_err(AskError::Unreachable)?;
        if status != StatusCode::OK {
            return Err(AskError::Refused(status.as_u16()));
        }
        serde_json::from_slice(&answer).map_err(|_| AskError::BadAnswer)
    }
}

/// The tokens of a prompt, which has one at least.
fn some(tokens: Vec<u32>) -> Result<Vec<u32>, AskError> {
    if tokens.is_empty() { Err(AskError::BadAnswer) } else { Ok(tokens) }
}

/// `path` on `engine`.
pub fn url(engine: &Endpoint, path: &str) -> String {
    engine.url(path)
}

/// With the header that engines want, if they do.
pub fn authorized(request: RequestBuilder, authorization: Option<&HeaderValue>) -> RequestBuilder {
    match authorization {
        Some(value) => request.header(header::AUTHORIZATION, value.clone()),
        None => request,
    }
}

/// Reasons why an exchange brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// Nobody listens at the address.
    #[error("{0}")]
    ConnectionRefused(String),
    /// No connection, no whole answer in time, or an answer too large.
    #[error("{0}")]
    Failed(String),
}

/// Sends `request` and reads an answer of at most `limit_bytes`, all of it within `time`.
///
/// # Errors
/// A description of the failure for the log.
pub async fn exchange(
    request: RequestBuilder,
    time: Duration,
    limit_bytes: usize,
) -> Result<(StatusCode, Bytes), String> {
    try_exchange(request, time, limit_bytes).await.map_err(|error| error.to_string())
}

/// The same, which tells a refused connection from other failures.
///
/// # Errors
/// An [`ExchangeError`] says what failed.
pub async fn try_exchange(
    request: RequestBuilder,
    time: Duration,
    limit_bytes: usize,
) -> Result<(StatusCode, Bytes), ExchangeError> {
    let whole = async {
        let mut response = request.send().await?;
        let status = response.status();
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > limit_bytes {
                let text = format!("its answer is larger than {limit_bytes} bytes");
                return Err(ExchangeError::Failed(text));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body.freeze()))
    };
    match tokio::time::timeout(time, whole).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ExchangeError::Failed(format!("no whole answer within {} ms", time.as_millis()))),
    }
}

impl From<reqwest::Error> for ExchangeError {
    fn from(error: reqwest::Error) -> ExchangeError {
        let cause = innermost(&error);
        let refused = cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
        let text = cause.to_string();
        if refused { ExchangeError::ConnectionRefused(text) } else { ExchangeError::Failed(text) }
    }
}

/// The innermost cause: the outer ones repeat the URL.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    innermost(error).to_string()
}

fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}
