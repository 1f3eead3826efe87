//! A request's prompt, by whoever tokenises: the gateway, an engine, or the client.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwapOption;
use time::OffsetDateTime;
use tokio::sync::Semaphore;

use super::engine::EngineTokenizer;
use super::naming::Naming;
use super::question::question;
use crate::codec::json::Object;
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::prompt::{CacheStats, Exactness, Prompt, PromptSource, Prompter, Reason, Today};

/// Bodies above this take a millisecond and more to tokenise, in bytes: they are worked on beside the runtime.
const ASIDE_BYTES: usize = 256 << 10;

/// Reads prompts. One per gateway, shared by all requests.
pub struct Prompts {
    source: Source,
    trust: AtomicU8,
    naming: ArcSwapOption<Naming>,
    /// So many large bodies at once: one per core.
    aside: Semaphore,
}

/// Who tokenises what the client has not.
pub enum Source {
    /// The gateway.
    Local(Arc<Prompter>),
    /// An engine.
    Engine(EngineTokenizer),
}

/// Whether tokens computed here are known to be the engines'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Trust {
    /// No engine has been compared with yet: prompts count as unknown.
    Unproven,
    /// Every engine that was compared with makes the same tokens.
    Proven,
    /// One makes others: prompts count as unknown until the gateway is restarted.
    Refuted,
}

/// The date of the engines, which is taken to be UTC as in most containers.
pub fn today() -> Today {
    let date = OffsetDateTime::now_utc().date();
    Today { year: u16::try_from(date.year()).unwrap_or(0), month: date.month().into(), day: date.day() }
}

impl Prompts {
    /// Tokens by `source`; local ones count only once they are [`Trust::Proven`].
    pub fn new(source: Source) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            source,
            trust: AtomicU8::new(Trust::Unproven as u8),
            naming: ArcSwapOption::empty(),
            aside: Semaphore::new(cores),
        }
    }

    /// The local tokenizer and template, if they are in use.
    pub fn local(&self) -> Option<&Arc<Prompter>> {
        match &self.source {
            Source::Local(prompter) => Some(prompter),
            Source::Engine(_) => None,
        }
    }

    /// Whether local tokens count.
    pub fn trust(&self) -> Trust {
        match self.trust.load(Ordering::Relaxed) {
            1 => Trust::Proven,
            2 => Trust::Refuted,
            _ => Trust::Unproven,
        }
    }

    /// Sets what [`trust`](Self::trust) answers; nothing undoes [`Trust::Refuted`].
    pub fn set_trust(&self, trust: Trust) {
        if self.trust() != Trust::Refuted {
            self.trust.store(trust as u8, Ordering::Relaxed);
        }
    }

    /// How blocks are named; None while it is not known, or contradicted.
    pub fn naming(&self) -> Option<Arc<Naming>> {
        self.naming.load_full()
    }

    /// Sets what [`naming`](Self::naming) answers.
    pub fn set_naming(&self, naming: Option<Naming>) {
        self.naming.store(naming.map(Arc::new));
    }

    /// Counters of the local prefix cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.local().map(|prompter| prompter.cache_stats()).unwrap_or_default()
    }

    /// The prompt of a request; `engine` is asked where engines tokenise.
    pub async fn prompt(&self, api: Api, body: &Object, engine: Option<Endpoint>) -> Prompt {
        let today = today();
        match &self.source {
            Source::Local(_) if self.trust() != Trust::Proven => self.given(api, body),
            Source::Local(prompter) => {
                let prompter = prompter.clone();
                self.work(body, move |body| prompter.prompt(api, body, today)).await.unwrap_or_else(unknown)
            }
            Source::Engine(tokenizer) => {
                let Some(engine) = engine else { return unknown(Reason::EngineUnreachable) };
                let asked = async {
                    let question = self.work(body, move |body| question(api, body)).await??;
                    tokenizer.answer(&engine, question, today).await
                };
                asked.await.map_or_else(unknown, exact)
            }
        }
    }

    /// Token ids that the client brought need no proof.
    fn given(&self, api: Api, body: &Object) -> Prompt {
        let brought = matches!(api, Api::Completions | Api::Generate)
            .then(|| PromptSource::read(api, body))
            .and_then(Result::ok);
        match (brought, self.trust()) {
            (Some(PromptSource::TokenIds(ids)), _) => exact(ids),
            (_, Trust::Refuted) => unknown(Reason::Refuted),
            _ => unknown(Reason::Unproven),
        }
    }

    /// Runs `read` on the body: here, or beside the runtime if the body is large.
    async fn work<T: Send + 'static>(
        &self,
        body: &Object,
        read: impl FnOnce(&Object) -> T + Send + 'static,
    ) -> Result<T, Reason> {
        if body.bytes().len() <= ASIDE_BYTES {
            return Ok(read(body));
        }
        // Closed never, so the permit is there.
        let _permit = self.aside.acquire().await.map_err(|_| Reason::Tokenizer)?;
        // Bytes and spans: the copy shares the text.
        let body = body.clone();
        tokio::task::spawn_blocking(move || read(&body)).await.map_err(|_| Reason::Tokenizer)
    }
}

impl fmt::Debug for Prompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = matches!(self.source, Source::Local(_));
        f.debug_struct("Prompts").field("local", &local).field("trust", &self.trust()).finish_non_exhaustive()
    }
}

fn exact(tokens: Arc<[u32]>) -> Prompt {
    Prompt { tokens, exactness: Exactness::Exact }
}

fn unknown(reason: Reason) -> Prompt {
    Prompt { tokens: Arc::default(), exactness: Exactness::Inexact(reason) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::codec::json::ScanLimits;
    use crate::prompt::PrefixCache;

    fn object(text: String) -> Object {
        Object::scan(Bytes::from(text), ScanLimits::default()).unwrap()
    }

    #[tokio::test]
    async fn local_tokens_count_when_they_are_proven_and_the_clients_own_always() {
        let prompts = Prompts::new(Source::Local(Arc::new(Prompter::new(None, None, PrefixCache::off()))));
        let text = object(r#"{"prompt":"a"}"#.to_owned());
        let ids = object(r#"{"prompt":[1,2]}"#.to_owned());
        let reason = async |body: &Object| prompts.prompt(Api::Completions, body, None).await.exactness;
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::Unproven));
        assert_eq!(reason(&ids).await, Exactness::Exact);
        prompts.set_trust(Trust::Proven);
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::NoTokenizer));
        prompts.set_trust(Trust::Refuted);
        prompts.set_trust(Trust::Proven);
        assert_eq!(reason(&text).await, Exactness::Inexact(Reason::Refuted));
        assert_eq!(reason(&ids).await, Exactness::Exact);
    }

    #[tokio::test]
    async fn large_bodies_are_read_beside_the_runtime_with_the_same_result() {
        let prompts = Prompts::new(Source::Local(Arc::new(Prompter::new(None, None, PrefixCache::off()))));
        prompts.set_trust(Trust::Proven);
        let ids: Vec<u32> = (0..100_000).collect();
        let body = object(format!(r#"{{"prompt":{ids:?}}}"#));
        assert!(body.bytes().len() > ASIDE_BYTES);
        let prompt = prompts.prompt(Api::Completions, &body, None).await;
        assert_eq!((&prompt.tokens[..], prompt.exactness), (&ids[..], Exactness::Exact));
    }
}
