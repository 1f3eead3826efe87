//! Detects the engines' dialect if the configuration leaves it open (`dialect.name = "auto"`).
//!
//! A prefiller is asked a few questions before the gateway serves, and again while none has
//! answered. Signs that appear only in answers to prefills are read by the relay. When prefillers
//! have restarted, all are asked again: they may have been given another connector.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::{HeaderValue, StatusCode};

use crate::dialect::signs::{
    self, DetectedDialect, OLD_SERVER_INFO_PATH, SERVER_INFO_PATH, Signs, sglang_port,
};
use crate::dialect::{Dialect, event_sources, facts, mooncake};
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, LiveProtocol, Role};
use crate::tokenization::exchange::{authorized, exchange, url};

/// Pause between two rounds of questions, while no prefiller has answered.
const ROUND_PAUSE: Duration = Duration::from_secs(2);
/// The largest answer that is read, in bytes: SGLang sends its whole configuration.
const ANSWER_BYTES: usize = 1 << 20;
/// Rounds after the first answer: a bootstrap server may come later than its engine.
const PROVISIONAL_ROUNDS: usize = 15;
/// Prefillers that are asked in one round.
const PREFILLERS_PER_ROUND: usize = 4;

/// Prefillers that are asked after a restart: beyond that many, others say the same.
const ASKED_AGAIN: usize = 64;
/// Rounds in a row without a sign of a bootstrap server after which there is none: it may come some
/// seconds later than its engine.
const ROUNDS_WITHOUT_BOOTSTRAP: usize = 5;

/// Client and limits for questions to engines.
#[derive(Clone, Debug)]
pub struct SignClient {
    /// The client for control calls.
    pub client: reqwest::Client,
    /// `Authorization` header for engines.
    pub authorization: Option<HeaderValue>,
    /// Limit for one question.
    pub time: Duration,
}

impl SignClient {
    /// Asks a prefiller with this bootstrap server for signs of its dialect.
    pub async fn fetch_signs(&self, prefiller: &Endpoint, bootstrap: &Endpoint) -> Signs {
        let (info, query, version) = tokio::join!(
            self.server_info(prefiller),
            self.get(bootstrap, mooncake::QUERY_PATH, false),
            self.get(prefiller, "/version", true),
        );
        let peer = query.and_then(|body| mooncake::read_query(body, String::new()));
        Signs {
            sglang_port: info.and_then(sglang_port),
            mooncake_ranks: peer.map(|peer| peer.ranks()),
            vllm: version.and_then(|body| facts::version(&body)),
        }
    }

    /// Asks a prefiller where it publishes KV events; `None` if it does not answer.
    pub async fn ask_event_sources(&self, prefiller: &Endpoint) -> Option<(StatusCode, bytes::Bytes)> {
        self.ask(prefiller, event_sources::PATH, true).await
    }

    /// The description that an SGLang server gives of itself. vLLM has the first path in
    /// development mode, and says something else there.
    async fn server_info(&self, prefiller: &Endpoint) -> Option<bytes::Bytes> {
        let (status, body) = self.ask(prefiller, SERVER_INFO_PATH, true).await?;
        match status {
            StatusCode::OK => Some(body),
            StatusCode::NOT_FOUND => self.get(prefiller, OLD_SERVER_INFO_PATH, true).await,
            _ => None,
        }
    }

    async fn get(&self, at: &Endpoint, path: &str, is_engine: bool) -> Option<bytes::Bytes> {
        let (status, body) = self.ask(at, path, is_engine).await?;
        (status == StatusCode::OK).then_some(body)
    }

    /// A bootstrap server is no engine, and gets no key.
    async fn ask(&self, at: &Endpoint, path: &str, is_engine: bool) -> Option<(StatusCode, bytes::Bytes)> {
        let authorization = self.authorization.as_ref().filter(|_| is_engine);
        let call = authorized(self.client.get(url(at, path)), authorization);
        exchange(call, self.time, ANSWER_BYTES).await.ok()
    }
}

/// Conclusion from one prefiller's signs.
struct Verdict {
    engine: Endpoint,
    told: DetectedDialect,
    port: Option<u16>,
}

/// The loop that asks until a prefiller has answered, and after restarts.
#[derive(Debug)]
pub struct Detector {
    /// Prefillers that are asked.
    pub fleet: Arc<Fleet>,
    /// The protocol that is to be found out.
    pub protocol: Arc<LiveProtocol>,
    /// Client and limits of the questions.
    pub client: SignClient,
    /// True once a prefiller has answered.
    pub has_verdict: AtomicBool,
}

impl Detector {
    /// Asks one round of prefillers, beginning with the `first` member. True if no further question
    /// is needed.
    pub async fn ask_round(&self, first: usize) -> bool {
        let protocol = self.protocol.now();
        let members = self.fleet.members(Role::Prefill);
        let first = first % members.len().max(1);
        for prefiller in members.iter().cycle().skip(first).take(PREFILLERS_PER_ROUND.min(members.len())) {
            let signs = self
                .client
                .fetch_signs(prefiller.endpoint(), &protocol.bootstrap(prefiller.endpoint()))
                .await;
            let Some(told) = signs.verdict() else { continue };
            self.apply_verdict(prefiller.endpoint(), &told, signs.sglang_port);
            return !self.protocol.now().open;
        }
        false
    }

    /// Logs a warning if no prefiller has answered: the gateway is ready, and requests would fail.
    pub fn warn_of_silence(&self) {
        let members = self.fleet.members(Role::Prefill);
        if self.has_verdict.load(Ordering::Relaxed) || members.is_empty() {
            return;
        }
        let asked: Vec<String> =
            members.iter().take(PREFILLERS_PER_ROUND).map(|member| member.endpoint().to_string()).collect();
        tracing::warn!(
            fleet = self.fleet.log_name(),
            asked = asked.join(" "),
            "no prefiller says yet what it is: are they up, and are these their ports? `pd-proxy check` asks every engine"
        );
    }

    /// Asks until the dialect is known, and again after restarts, for ever.
    pub async fn run(self, is_known: bool) {
        let mut restarts = self.fleet.watch_restarts();
        let mut counted = self.prefillers_restarts();
        if !is_known {
            self.ask_until_known().await;
        }
        loop {
            let now = self.prefillers_restarts();
            if std::mem::replace(&mut counted, now) != now && self.protocol.reopen() {
                self.ask_after_restarts().await;
            } else if restarts.changed().await.is_err() {
                return;
            }
        }
    }

    /// Goes on for a while after a first answer, as an engine may have started before its bootstrap
    /// server.
    async fn ask_until_known(&self) {
        let mut answered = 0;
        for round in 1_usize.. {
            tokio::time::sleep(ROUND_PAUSE).await;
            if self.ask_round(round).await || answered == PROVISIONAL_ROUNDS {
                return;
            }
            answered += usize::from(self.has_verdict.load(Ordering::Relaxed));
        }
    }

    fn prefillers_restarts(&self) -> u64 {
        self.fleet.members(Role::Prefill).iter().map(|it| u64::from(it.restarts())).sum()
    }

    /// Asks all prefillers for some rounds. One dialect is spoken at a time, so that it changes
    /// when all that answer agree.
    async fn ask_after_restarts(&self) {
        let mut without_bootstrap = 0;
        for _ in 0..PROVISIONAL_ROUNDS {
            let assumed = self.protocol.now().dialect;
            if let Some(Verdict { engine, told, port }) = self.common_verdict().await {
                without_bootstrap =
                    if told.dialect == Dialect::KvTransfer { without_bootstrap + 1 } else { 0 };
                let is_certain = without_bootstrap == 0
                    || !assumed.asks_bootstrap()
                    || without_bootstrap >= ROUNDS_WITHOUT_BOOTSTRAP;
                if signs::contradicts(told.dialect, assumed) && is_certain {
                    return self.apply_verdict(&engine, &told, port);
                }
                if told.dialect == assumed && assumed != Dialect::KvTransfer {
                    return self.protocol.turn_to(assumed, port);
                }
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
    }

    /// The verdict on which all prefillers that answer agree.
    async fn common_verdict(&self) -> Option<Verdict> {
        let (protocol, members) = (self.protocol.now(), self.fleet.members(Role::Prefill));
        let asked = members.iter().filter(|it| !it.draining()).take(ASKED_AGAIN).map(async |it| {
            let engine = it.endpoint().clone();
            let signs = self.client.fetch_signs(&engine, &protocol.bootstrap(&engine)).await;
            Some(Verdict { engine, told: signs.verdict()?, port: signs.sglang_port })
        });
        let mut verdicts = join_all(asked).await.into_iter().flatten();
        let first = verdicts.next()?;
        verdicts.all(|it| it.told.dialect == first.told.dialect).then_some(first)
    }

    fn apply_verdict(&self, prefiller: &Endpoint, told: &DetectedDialect, bootstrap_port: Option<u16>) {
        let before = self.protocol.now().dialect;
        if self.has_verdict.swap(true, Ordering::Relaxed) && before == told.dialect {
            return;
        }
        tracing::info!(fleet = self.fleet.log_name(), dialect = told.dialect.name(), engine = %prefiller, role = Role::Prefill.name(), "dialect: {}", told.why);
        self.protocol.turn_to(told.dialect, bootstrap_port);
    }
}
